"""quixstreams: two processes of a consumer group, as each has one thread."""

import multiprocessing
import sys

from quixstreams import Application


def copy(servers: str, source: str, target: str, commit_ms: str) -> None:
    application = Application(
        broker_address=servers,
        consumer_group=target,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=int(commit_ms) / 1000,
        loglevel="WARNING",
    )
    as_bytes = {"key_deserializer": "bytes", "value_deserializer": "bytes"}
    to_bytes = {"key_serializer": "bytes", "value_serializer": "bytes"}
    rows = application.dataframe(application.topic(source, **as_bytes))
    rows.to_topic(application.topic(target, **to_bytes))
    application.run()


if __name__ == "__main__":
    second = multiprocessing.Process(target=copy, args=sys.argv[1:], daemon=True)
    second.start()
    copy(*sys.argv[1:])
