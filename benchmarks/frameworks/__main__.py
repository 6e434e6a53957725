"""Measures exactly-once copies of a topic by kafkameta, quixstreams, PyFlink and a program of confluent-kafka.

    python -m benchmarks.frameworks [--records 2000000] [--rounds 3] [--seconds 20] [--json FILE]

`make frameworks` makes the environments, one each for quixstreams and PyFlink, which want other releases of pyarrow
and confluent-kafka. The programs beside this one take turns, from topic to topic of 6 partitions and 3 replicas. They
begin with records of 200 bytes, without a codec, and commit about once a second: the rate is that from the first
commit to the last. Then, in another program, a thousand records a second arrive, which are committed about ten times a
second, by Spark as often as it can: the delay is that until a consumer with read_committed has a record. Raises
RuntimeError if a record is missing or there twice. Spark's own sink has no commits by which to measure: see
`benchmarks.kafka_to_kafka`.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from benchmarks.harness import argument_parser, brokers, report
from benchmarks.latency_parts import delays
from benchmarks.peers import take_turns
from benchmarks.topics import delete, fill, new_topic, trickle
from pyspark_kafka_meta.testing.maven_jars import resolve_jars
from tests.kafka.cluster_tools import poll_until

ROOT = Path(__file__).parent.parent.parent
PARTITIONS = 6
VALUE_BYTES = 200
RECORDS_PER_S = 1_000
COPY_COMMIT_MS, DELAY_COMMIT_MS = 1_000, 100
WARM_UP_S = 10
POLL_S = 0.1
QUIET_S = 10
"""Longer than any commit takes."""
TIMEOUT_S = 600
LEADERS_UNKNOWN = {KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.NOT_LEADER_FOR_PARTITION}
"""To a broker, of a new topic."""
CONNECTOR = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"


class Framework(NamedTuple):
    """A program, and the environment that runs it."""

    name: str
    program: str
    python: Path = Path(sys.executable)


QUIXSTREAMS, PYFLINK = (ROOT / f".venv-{name}" / "bin" / "python" for name in ("quixstreams", "pyflink"))
OURS = Framework("kafkameta", "spark_copy.py")
FRAMEWORKS = (
    OURS,
    Framework("confluent-kafka by hand", "confluent_copy.py"),
    Framework("quixstreams", "quixstreams_copy.py", python=QUIXSTREAMS),
    Framework("PyFlink, SQL", "pyflink_copy.py", python=PYFLINK),
)


class Turn(NamedTuple):
    """Figures of one framework in one round."""

    first_commit_s: float
    krec_s: float
    delays_ms: list[float]


@contextmanager
def copying(framework: Framework, servers: str, source: str, target: str, commit_ms: int) -> Iterator[None]:
    """Inside `with`, the program copies. What it has logged becomes a note of an exception."""
    (jar,) = resolve_jars([CONNECTOR], transitive=False)
    program = Path(__file__).with_name(framework.program)
    environment = {**os.environ, "PYSPARK_PYTHON": str(framework.python), "PYTHONPATH": str(ROOT)}
    environment |= {"KAFKA_JAR": str(jar)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Path(folder, "log").open("w+") as log:
        command = [str(framework.python), str(program), servers, source, target, str(commit_ms)]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        except Exception as error:
            error.add_note(Path(folder, "log").read_text()[-4000:])
            raise
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def committed(servers: str, topic: str) -> int:
    """The committed records of a topic, and a marker in each partition of a transaction."""
    admin, latest = AdminClient({"bootstrap.servers": servers, "log_level": 0}), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(topic, number): latest for number in range(PARTITIONS)}
    ends = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
    try:
        return sum(end.result().offset for end in ends.values())
    except KafkaException as error:
        if error.args[0].code() not in LEADERS_UNKNOWN:
            raise
        return 0


def copied(servers: str, target: str, records: int) -> tuple[float, float]:
    """Wait until all records are committed; returns the seconds until the first commit, and records a second after it.
    Raises RuntimeError: the first commit had most of them."""
    began = time.monotonic()
    seen = [(0.0, 0)]
    while (elapsed_s := time.monotonic() - began) < TIMEOUT_S:
        count = committed(servers, target)
        if count > seen[-1][1]:
            seen.append((elapsed_s, count))
        elif count >= records and elapsed_s - seen[-1][0] > QUIET_S:
            (first_s, first), (last_s, last) = seen[1], seen[-1]
            if first > records / 2:
                raise RuntimeError("most records came in the first commit: give more --records")
            return first_s, (last - first) / (last_s - first_s)
        time.sleep(POLL_S)
    raise RuntimeError(f"{seen[-1][1]:,} of {records:,} records came in {TIMEOUT_S} s")


def check(servers: str, target: str, records: int) -> None:
    """Each record of `fill` has a key of its own."""
    settings = {"group.id": target, "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": servers, **settings})
    consumer.assign([TopicPartition(target, number, 0) for number in range(PARTITIONS)])
    keys, ended = [], 0
    while ended < PARTITIONS:
        messages = consumer.consume(10_000, 1)
        keys += [message.key() for message in messages if message.error() is None]
        ended += sum(message.error() is not None for message in messages)
    consumer.close()
    if not len(keys) == len(set(keys)) == records:
        raise RuntimeError(f"{target} has {len(keys):,} records with {len(set(keys)):,} keys, of {records:,}")


def turn(servers: str, source: str, records: int, seconds: int, framework: Framework) -> Turn:
    """Copies `source`, and then records that arrive."""
    target, arriving, arrived = (new_topic(servers, name, PARTITIONS) for name in ("target", "arriving", "arrived"))
    with copying(framework, servers, source, target, COPY_COMMIT_MS):
        first_commit_s, per_s = copied(servers, target, records)
    check(servers, target, records)
    with (
        delays(servers, arrived, delivers=True) as late,
        trickle(servers, arriving, PARTITIONS, RECORDS_PER_S),
        copying(framework, servers, arriving, arrived, DELAY_COMMIT_MS),
    ):
        poll_until(lambda: committed(servers, arrived) > 0, TIMEOUT_S)
        time.sleep(WARM_UP_S + seconds)
        delays_ms = late((time.time() - seconds) * 1000)
    if not delays_ms:
        raise RuntimeError(f"{framework.name} copied nothing in the last {seconds} s")
    delete(servers, target, arriving, arrived)
    return Turn(first_commit_s, per_s / 1000, delays_ms)


def result_rows(turns: dict[str, list[Turn]]) -> list[dict[str, object]]:
    """A ratio is the median of the ratios of turns in the same round."""
    ours = [turn.krec_s for turn in turns[OURS.name]]
    rows: list[dict[str, object]] = []
    for name, taken in turns.items():
        ratios = [turn.krec_s / our for turn, our in zip(taken, ours, strict=True)]
        late = sorted(chain.from_iterable(turn.delays_ms for turn in taken))
        rows.append(
            {
                "framework": name,
                "krec_s": round(statistics.median(turn.krec_s for turn in taken)),
                "times_kafkameta": round(statistics.median(ratios), 2),
                "from": round(min(ratios), 2),
                "to": round(max(ratios), 2),
                "first_commit_s": round(statistics.median(turn.first_commit_s for turn in taken), 1),
                "delay_p50_ms": round(statistics.median(late)),
                "delay_p99_ms": round(late[len(late) * 99 // 100]),
            }
        )
    return rows


def main() -> None:
    arguments = argument_parser(__doc__, records=2_000_000, rounds=3, seconds=20).parse_args()
    with brokers() as servers:
        source = new_topic(servers, "source", PARTITIONS)
        fill(servers, source, PARTITIONS, arguments.records, VALUE_BYTES)
        turns = take_turns(
            FRAMEWORKS,
            arguments.rounds,
            lambda framework: turn(servers, source, arguments.records, arguments.seconds, framework),
            warm_up_rounds=0,
        )
    report(f"Copies of {arguments.records:,} records", result_rows(turns), arguments.json)


if __name__ == "__main__":
    main()
