"""Checks that a stream from Kafka to Kafka loses nothing while brokers and workers fail for a long time.

    python -m benchmarks.write_soak [--minutes 10] [--partitions 6] [--rate 2000] [--json FILE]

As `benchmarks.soak`, but the query writes another topic, at least once, and a fifth kind of fault kills the Python
workers of tasks: the micro-batch fails, the query is started again and repeats it. At the end every acknowledged record
must be in the other topic, and only records of repeated micro-batches may be there twice. Exits with 1 if not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.acked_feed import AckedFeed
from benchmarks.harness import argument_parser, report, spark_session
from benchmarks.peers import JVM
from benchmarks.soak import KINDS, WORKERS, Soak, Verdict, result_rows, stand
from benchmarks.topics import new_topic
from pyspark_kafka_meta.testing import LocalKafka


@dataclass(frozen=True, slots=True)
class Repeated:
    """Counts of repeated micro-batches, their records that were written twice, and other records written twice."""

    batches: int
    records: int
    unexplained: int


class WriteSoak(Soak):
    """A query that writes to `target` where each record is from, and the start of its micro-batch, by which the
    checkpoint identifies a micro-batch."""

    kinds: ClassVar[Sequence[str]] = (*KINDS, WORKERS)

    def __init__(self, spark: SparkSession, kafka: LocalKafka, topic: str, target: str, folder: Path) -> None:
        self._target = target
        self._repeated_ms: set[int] = set()
        super().__init__(spark, kafka, topic, folder)

    def repeated(self) -> Repeated:
        """What was written twice."""
        position = self._rows().groupBy("partition", "offset")
        twice = position.agg((F.count("*") - 1).alias("more"), F.max("batch_ms").alias("batch_ms")).where("more > 0")
        is_repeated = F.col("batch_ms").isin(list(self._repeated_ms))
        [(explained, all_of_them)] = twice.agg(F.sum(F.when(is_repeated, F.col("more"))), F.sum("more")).collect()
        return Repeated(len(self._repeated_ms), explained or 0, (all_of_them or 0) - (explained or 0))

    def _rows(self) -> DataFrame:
        parts = F.split(F.col("key").cast("string"), " ")
        names = ("partition", "offset", "batch_ms")
        columns = [parts[index].cast("bigint").alias(name) for index, name in enumerate(names)]
        written = JVM.read(self._spark, self._options["kafka.bootstrap.servers"], self._target)
        return written.select(*columns, F.col("value").cast("string").cast("bigint").alias("number"))

    def _start(self) -> StreamingQuery:
        self._repeated_ms |= uncommitted_ms(self._folder / "state")
        rows = self._spark.readStream.format("kafkameta").options(**self._options).load()
        key = F.concat_ws(" ", "partition", "offset", F.unix_millis(F.current_timestamp())).alias("key")
        sink = rows.select(key, "value").writeStream.format("kafkameta").option("topic", self._target)
        sink = sink.option("kafka.bootstrap.servers", self._options["kafka.bootstrap.servers"])
        sink = sink.option("eventsPath", self._options["eventsPath"])
        sink = sink.option("checkpointLocation", str(self._folder / "state"))
        return sink.trigger(processingTime="1 second").start()


def uncommitted_ms(state: Path) -> set[int]:
    """The start of the micro-batch that a query with this checkpoint repeats first, in ms since 1970 UTC."""
    planned, committed = (
        {int(file.name) for file in state.glob(f"{log}/*") if file.name.isdigit()} for log in ("offsets", "commits")
    )
    texts = [(state / "offsets" / str(batch_id)).read_text() for batch_id in planned - committed]
    return {int(json.loads(text.splitlines()[1])["batchTimestampMs"]) for text in texts}


def main() -> None:
    arguments = argument_parser(__doc__, minutes=10, partitions=6, rate=2_000).parse_args()
    partitions, rate, minutes = arguments.partitions, arguments.rate, arguments.minutes
    with spark_session() as spark, LocalKafka() as kafka, TemporaryDirectory() as folder:
        source, target = (new_topic(kafka.bootstrap_servers, purpose, partitions) for purpose in ("source", "target"))
        soak = WriteSoak(spark, kafka, source, target, Path(folder))
        feed = AckedFeed(kafka.bootstrap_servers, source, partitions, rate)
        seen = stand(soak, kafka, [source, target], minutes * 60)
        acknowledged = feed.close()
        rows = soak.catch_up(acknowledged)
        verdict, repeated = Verdict.of(acknowledged, rows, len(soak.failures)), soak.repeated()
        setting = f"{partitions:,} partitions of 3 replicas, {rate:,} records a second for {minutes} minutes"
        results = result_rows(setting, seen, acknowledged, rows, verdict, soak, minutes)
        results += [
            {"measure": "repeated micro-batches", "value": f"{repeated.batches:,}"},
            {"measure": "their records written twice", "value": f"{repeated.records:,}"},
            {"measure": "other records written twice", "value": f"{repeated.unexplained:,}"},
        ]
        report("Soak from Kafka to Kafka", results, arguments.json)
    for failure in soak.failures:
        print(f"the query ended: {failure}")
    sys.exit(verdict.missing > 0 or repeated.unexplained > 0)


if __name__ == "__main__":
    main()
