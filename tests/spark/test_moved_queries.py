"""A query goes on with a copy of its topic: each record comes once."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pyspark_kafka_meta.tools.cli.main import app

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]
FIRST_MS = 1_700_000_000_000


def copy(servers: str, topic: str, numbers: range) -> None:
    """With a marker after each record."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": uuid4().hex})
    producer.init_transactions(60)
    for number in numbers:
        producer.begin_transaction()
        producer.produce(topic, str(number), partition=number % 3, timestamp=FIRST_MS + number)
        producer.commit_transaction(60)


class Stream:
    def __init__(self, spark: SparkSession, servers: str, rows: Path) -> None:
        self.spark, self.servers, self.rows = spark, servers, rows

    def run(self, source: str, topic: str, checkpoint: Path) -> None:
        options = {"kafka.bootstrap.servers": self.servers, "subscribe": topic, "startingOffsets": "earliest"}
        stream = self.spark.readStream.format(source).options(**options).load()
        sink = stream.selectExpr("CAST(value AS STRING) AS value").writeStream.format("parquet")
        sink = sink.option("path", str(self.rows)).option("checkpointLocation", str(checkpoint))
        query = sink.trigger(availableNow=True).start()
        assert query.awaitTermination(120), "the query did not end"

    def values(self) -> list[int]:
        return sorted(int(row.value) for row in self.spark.read.parquet(str(self.rows)).collect())


@pytest.mark.parametrize("source", ["kafkameta", "kafka"])
@pytest.mark.parametrize("is_committed", [True, False])
def test_rows_of_both_runs_are_those_of_the_topic(
    spark: SparkSession,
    kafka: Any,
    jvm_source: str,
    make_topic: Any,
    produce: Any,
    tmp_path: Path,
    source: str,
    is_committed: bool,
) -> None:
    """The planned micro-batch, whose rows the sink has already, is not read with other rows."""
    first, other = (make_topic(partitions=3, config={"retention.ms": "-1"}) for _ in range(2))
    stream = Stream(spark, kafka.bootstrap_servers, tmp_path / "rows")
    for numbers in (range(20), range(20, 45)):
        for partition in range(3):
            produce(
                first, [{"value": str(n), "timestamp": FIRST_MS + n} for n in numbers if n % 3 == partition], partition
            )
        stream.run(source, first, tmp_path / "old")
    if not is_committed:
        for leftover in (tmp_path / "old" / "commits").glob("*1*"):
            leftover.unlink()
    for partition in range(3):
        produce(
            first,
            [{"value": str(n), "timestamp": FIRST_MS + n} for n in range(45, 50) if n % 3 == partition],
            partition,
        )
    copy(kafka.bootstrap_servers, other, range(50))

    arguments = ["--to", kafka.bootstrap_servers, "--topic", f"{first}={other}", "--by", "timestamps"]
    command = ["move-checkpoint", str(tmp_path / "old"), "--bootstrap-servers", kafka.bootstrap_servers, *arguments]
    done = CliRunner().invoke(app, [*command, "--write", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert stream.values() == list(range(45))
    stream.run("kafkameta", other, tmp_path / "new")
    assert stream.values() == list(range(50))
