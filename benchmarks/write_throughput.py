"""Measures the records per second that Spark writes to Kafka, by codec and writer.

    python -m benchmarks.write_throughput [--rounds 5] [--records 2000000] [--tasks 2] [--json FILE] [CODEC ...]

Values of 200 bytes under keys of 9 bytes go to 6 partitions of 3 replicas, 2 of which must be in sync, with acks=all.
All writers write the same cached DataFrame; a turn writes it to a new topic, whose records are counted afterwards.
Writers take turns. A figure is the median of the turns; a ratio is the median of the ratios of turns in the same round.
CPU seconds are means per turn, by process. The peak memory of a Python worker is of a session for this writer alone.
"""

from __future__ import annotations

import time
from functools import partial

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import argument_parser, brokers, report, spark_session
from benchmarks.peers import take_turns
from benchmarks.processes import cpu_s, worker_peak_mb
from benchmarks.throughput import Turn, result_rows
from benchmarks.topics import delete, new_topic, record_count
from benchmarks.write_peers import DROP, JVM, OURS, PRODUCE, TUNED_JVM, DropSink, Writer

PARTITIONS = 6
CODECS = ("none", "lz4", "zstd")
WRITERS = (OURS, JVM, TUNED_JVM, PRODUCE, DROP)
CONFIG = {"min.insync.replicas": "2"}


def cached_rows(spark: SparkSession, records: int, tasks: int) -> DataFrame:
    """Rows in the memory of Spark: values half of random hexadecimal digits, half compressible."""
    digits, filling = "md5(cast(id AS string))", "repeat('x', 32)"
    value = f"concat({digits}, {filling}, {digits}, {filling}, {digits}, {filling}, '12345678')"
    key = "lpad(cast(id AS string), 9, '0')"
    rows = spark.range(0, records, 1, tasks).selectExpr(f"cast({key} AS binary) key", f"cast({value} AS binary) value")
    rows.persist(StorageLevel.MEMORY_ONLY).count()
    return rows


def write(rows: DataFrame, bootstrap_servers: str, codec: str, records: int, writer: Writer) -> Turn:
    """Raises RuntimeError if the topic does not hold as many records as rows."""
    topic = new_topic(bootstrap_servers, "write", PARTITIONS, config=CONFIG)
    before, started = cpu_s(), time.perf_counter()
    writer.write(rows, bootstrap_servers, topic, codec)
    seconds = time.perf_counter() - started
    taken = {kind: max(0.0, now - before[kind]) for kind, now in cpu_s().items()}
    written = record_count(bootstrap_servers, topic)
    if writer is not DROP and written != records:
        raise RuntimeError(f"{writer.name} wrote {written} of {records} records")
    delete(bootstrap_servers, topic)
    return Turn(seconds, taken)


def peak_mb(bootstrap_servers: str, codec: str, records: int, tasks: int, writer: Writer) -> float | str:
    """The peak of a Python worker that only writes; empty for a writer without Python."""
    if writer.sink == JVM.sink:
        return ""
    with spark_session() as spark:
        spark.dataSource.register(DropSink)
        write(cached_rows(spark, records, tasks), bootstrap_servers, codec, records, writer)
        return round(worker_peak_mb())


def main() -> None:
    parser = argument_parser(__doc__, rounds=5, records=2_000_000, tasks=2)
    parser.add_argument("codecs", nargs="*", metavar="CODEC", default=CODECS, help=f"default: {', '.join(CODECS)}")
    arguments = parser.parse_args()
    records, tasks = arguments.records, arguments.tasks
    results: list[dict[str, object]] = []
    with brokers() as bootstrap_servers:
        with spark_session() as spark:
            spark.dataSource.register(DropSink)
            rows = cached_rows(spark, records, tasks)
            for codec in arguments.codecs:
                turn = partial(write, rows, bootstrap_servers, codec, records)
                played = take_turns(WRITERS, arguments.rounds, turn)
                results += result_rows({"codec": codec}, "writer", records, played)
        peaks = {
            (codec, writer.name): peak_mb(bootstrap_servers, codec, records, tasks, writer)
            for codec in arguments.codecs
            for writer in WRITERS
        }
    for result in results:
        result["worker_peak_MB"] = peaks[str(result["codec"]), str(result["writer"])]
    report(f"Thousands of records a second, {arguments.rounds} turns each", results, arguments.json)


if __name__ == "__main__":
    main()
