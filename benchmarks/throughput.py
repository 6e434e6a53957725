"""Measures the records per second that Spark reads from Kafka, by record size, codec, headers and projection.

    python -m benchmarks.throughput [--rounds 5] [--megabytes 600] [--json FILE] [CASE ...]

Each case has its own topic, of that many megabytes and at most 3 million records; a long case has five times as much. A
topic of one partition is read by one task, which leaves a core for its Python; otherwise there are as many tasks as
cores. Readers take turns. A turn reads the whole topic into the noop sink, which uses each column of each row. A figure
is the median of the turns; a ratio is the median of the ratios of turns in the same round. CPU seconds are means per
turn, by process; brokers, if the benchmark started them, always use some.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import CONSUME, JVM, NOT_DECODED, OURS, TUNED_JVM, Reader, ceiling, register, take_turns
from benchmarks.processes import KINDS, cpu_s
from benchmarks.topics import BATCH_BYTES, MAX_RECORD_BYTES, fill, new_topic

PARTITIONS = 6
VALUE_BYTES = 200
MAX_RECORDS = 3_000_000
VALUE_ALONE = Reader("kafkameta, value alone", "kafkameta", schema="value BINARY")
WITH_HEADERS = {"includeHeaders": "true"}
CPU = tuple(KINDS.values())
HEADERS = {"trace": b"12345678", "app": b"shop"}


@dataclass(frozen=True)
class Case:
    """A topic, and the peers that read it."""

    value_bytes: int = VALUE_BYTES
    codec: str = "none"
    peers: tuple[Reader, ...] = (JVM,)
    ours: Reader = OURS
    headers: dict[str, bytes] = field(default_factory=dict)
    batch_bytes: int = BATCH_BYTES
    with_ceiling: bool = False
    times_as_long: int = 1
    partitions: int = PARTITIONS


EVERYBODY = (JVM, TUNED_JVM, VALUE_ALONE, CONSUME, NOT_DECODED)
CASES = {
    "200B": Case(peers=EVERYBODY, with_ceiling=True),
    "200B-lz4": Case(codec="lz4", peers=EVERYBODY, with_ceiling=True),
    "200B-zstd": Case(codec="zstd"),
    "200B-snappy": Case(codec="snappy"),
    "200B-gzip": Case(codec="gzip"),
    "200B-headers": Case(
        ours=OURS._replace(options=WITH_HEADERS), peers=(JVM._replace(options=WITH_HEADERS),), headers=HEADERS
    ),
    "200B-small-batches": Case(batch_bytes=16_384),  # the default of Kafka's Java producer
    "200B-long": Case(peers=(JVM, TUNED_JVM), with_ceiling=True, times_as_long=5),
    "200B-one-task": Case(peers=(JVM, TUNED_JVM), with_ceiling=True, times_as_long=5, partitions=1),
    "200B-lz4-one-task": Case(codec="lz4", peers=(JVM, TUNED_JVM), with_ceiling=True, times_as_long=5, partitions=1),
    "20B": Case(20),
    "2kB": Case(2_000),
    "100kB": Case(100_000),
}


class Turn(NamedTuple):
    """Wall-clock seconds of one batch query, planning included, and CPU seconds by process, without ended processes."""

    seconds: float
    cpu_s: dict[str, float]


def read(spark: SparkSession, bootstrap_servers: str, topic: str, reader: Reader) -> Turn:
    return measured(partial(reader.read, spark, bootstrap_servers, topic))


def measured(query: Callable[[], DataFrame]) -> Turn:
    before, started = cpu_s(), time.perf_counter()
    query().write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    return Turn(seconds, {kind: max(0.0, taken - before[kind]) for kind, taken in cpu_s().items()})


def result_rows(
    case: Mapping[str, object], role: str, records: int, played: Mapping[str, Sequence[Turn]]
) -> list[dict[str, object]]:
    """A row for each reader or writer, whose key is `role`; the first of them is this package's."""
    ours = next(iter(played.values()))
    rows = []
    for name, turns in played.items():
        ratios = sorted(theirs.seconds / own.seconds for own, theirs in zip(ours, turns, strict=True))
        rows.append(
            {
                **case,
                role: name,
                "krec_s": round(records / statistics.median(turn.seconds for turn in turns) / 1000, 1),
                "kafkameta_is_faster_by": round(statistics.median(ratios), 2),
                "from": round(ratios[0], 2),
                "to": round(ratios[-1], 2),
                **{f"{kind}_cpu_s": round(statistics.mean(turn.cpu_s[kind] for turn in turns), 2) for kind in CPU},
            }
        )
    return rows


def play(
    spark: SparkSession, bootstrap_servers: str, name: str, rounds: int, megabytes: int
) -> list[dict[str, object]]:
    """The rows of one case."""
    case = CASES[name]
    records = min(MAX_RECORDS, megabytes * 1_000_000 // case.value_bytes) * case.times_as_long
    config = {"max.message.bytes": str(MAX_RECORD_BYTES)}
    topic = new_topic(bootstrap_servers, "throughput", case.partitions, config=config)
    fill(
        bootstrap_servers, topic, case.partitions, records, case.value_bytes, case.codec, case.headers, case.batch_bytes
    )
    readers = [case.ours, *case.peers]
    if case.with_ceiling:
        readers += [ceiling(case.partitions, records, case.value_bytes, low_latency) for low_latency in (True, False)]
    turns = take_turns(readers, rounds, partial(read, spark, bootstrap_servers, topic))
    return result_rows({"case": name}, "reader", records, turns)


def main() -> None:
    parser = argument_parser(__doc__, rounds=5, megabytes=600)
    parser.add_argument("cases", nargs="*", metavar="CASE", default=list(CASES), help=f"of {', '.join(CASES)}")
    arguments = parser.parse_args()
    rows = []
    with brokers() as bootstrap_servers, spark_session() as spark:
        register(spark)
        for name in arguments.cases:
            rows += play(spark, bootstrap_servers, name, arguments.rounds, arguments.megabytes)
    report(f"Thousands of records a second, {arguments.rounds} turns each", rows, arguments.json)


if __name__ == "__main__":
    main()
