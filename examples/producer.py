"""Write page views to a topic, with the choices of a Kafka producer.

    python examples/producer.py                                      # a thousand records, partitioned by key hash
    python examples/producer.py --by sticky --compression zstd       # no keys: a batch goes to one partition
    python examples/producer.py --by 1 --acks 1                      # all to partition 1
    python examples/producer.py --seconds 60                         # a thousand records per second, for a minute

You will see:

    delivered 1000 of 1000 records: key-hash, lz4, acks=all, idempotent
    partition 0: 400 records
    partition 1: 600 records

The choices:

- `--by key-hash` sends equal keys to the same partition, where they stay in order. It uses the hash of Kafka's Java
  clients, so that Java producers choose the same partitions. `sticky` writes records without a key and changes the
  partition every `--linger-ms`, which fills batches better. A number is the partition itself.
- `--compression` works on batches: larger batches (`--batch-bytes`, `--linger-ms`) compress better. The source reads
  all codecs.
- `--acks 0` waits for no response and may lose records. `1` waits for the leader: a record is lost if the leader dies
  before its followers have the record. `all` waits for the in-sync replicas.
- Idempotence numbers the batches, so that a retried batch is neither written twice nor out of order. It needs
  `--acks all`, which enables it; `--no-idempotence` disables it.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Collection
from typing import Any

from confluent_kafka import KafkaException, Producer

STICKY, KEY_HASH = "sticky", "key-hash"
CREATION_S = 5
"""With auto.create.topics.enable, the first request for a topic creates the topic, which exists a moment later."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--records", type=int, default=1000, help="number of records, or records per second")
    parser.add_argument("--seconds", type=int, default=0, help="time to write; 0: write once")
    parser.add_argument("--by", default=KEY_HASH, help="key-hash, sticky, or the number of a partition")
    parser.add_argument("--compression", choices=["none", "gzip", "snappy", "lz4", "zstd"], default="lz4")
    parser.add_argument("--acks", choices=["0", "1", "all"], default="all")
    parser.add_argument("--idempotence", action=argparse.BooleanOptionalAction, help="default: with --acks all")
    parser.add_argument("--linger-ms", type=int, default=20, help="time to wait for more records in a batch")
    parser.add_argument("--batch-bytes", type=int, default=1_000_000, help="maximum size of a batch")
    options = parser.parse_args()
    if options.by not in (KEY_HASH, STICKY) and not options.by.isdigit():
        parser.error(f"--by {options.by}: give {KEY_HASH}, {STICKY} or the number of a partition")
    if options.idempotence and options.acks != "all":
        parser.error("--idempotence needs --acks all")
    if options.idempotence is None:
        options.idempotence = options.acks == "all"
    return options


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "bootstrap.servers": options.bootstrap_servers,
        "partitioner": "murmur2_random",  # as in Java; librdkafka's default hash is crc32
        "sticky.partitioning.linger.ms": options.linger_ms,
        "linger.ms": options.linger_ms,
        "batch.size": options.batch_bytes,
        "compression.type": options.compression,
        "acks": options.acks,
        "enable.idempotence": options.idempotence,
        "log_level": 0,  # errors are printed below
    }


def partitions(producer: Producer, options: argparse.Namespace) -> Collection[int]:
    """The partitions of the topic, once it exists."""
    give_up_at = time.monotonic() + CREATION_S
    try:
        while (topic := producer.list_topics(options.topic, timeout=10).topics[options.topic]).error is not None:
            if time.monotonic() > give_up_at:
                raise SystemExit(f"topic {options.topic}: {topic.error.str()}")
            time.sleep(0.2)
    except KafkaException:
        raise SystemExit(f"no broker answers at {options.bootstrap_servers}: is the cluster up?") from None
    return list(topic.partitions)


def main() -> None:
    options = arguments()
    producer = Producer(settings(options))
    existing = partitions(producer, options)
    if options.by.isdigit() and int(options.by) not in existing:
        raise SystemExit(f"--by {options.by}: topic {options.topic} has {len(existing)} partitions, from 0 on")
    delivered: Counter[int] = Counter()
    by_partition: dict[str, Any] = {"partition": int(options.by)} if options.by.isdigit() else {}

    def on_delivery(error: Any, message: Any) -> None:
        if error is None:
            delivered[message.partition()] += 1
        else:
            print(f"not delivered: {error}")

    for second in range(max(options.seconds, 1)):
        for number in range(options.records):
            key = None if options.by == STICKY else f"user-{number % 10}"
            value = f"user-{number % 10} opened page-{number % 7}"
            producer.produce(options.topic, value, key, on_delivery=on_delivery, **by_partition)
            producer.poll(0)  # calls on_delivery
        if second + 1 < options.seconds:
            time.sleep(1)
    producer.flush(60)

    written = options.records * max(options.seconds, 1)
    idempotent = "idempotent" if options.idempotence else "not idempotent"
    how = f"{options.by}, {options.compression}, acks={options.acks}, {idempotent}"
    print(f"delivered {delivered.total()} of {written} records: {how}")
    for partition, count in sorted(delivered.items()):
        print(f"partition {partition}: {count} records")


if __name__ == "__main__":
    main()
