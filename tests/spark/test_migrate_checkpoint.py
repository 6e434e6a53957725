"""A query moves from Spark's own Kafka source to this one: no record is lost or repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_kafka_meta.tools.checkpoints import starting_offsets, write_checkpoint

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


class Stream:
    """A query from a topic to a Parquet folder, which runs with any source and checkpoint."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str, topic: str, rows: Path) -> None:
        self.spark, self.rows = spark, rows
        self.options = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic}

    def run(self, source: str, checkpoint: Path, starting_offsets: str = "earliest") -> None:
        stream = self.spark.readStream.format(source).options(**self.options, startingOffsets=starting_offsets).load()
        counted = stream.selectExpr("CAST(value AS STRING) AS value").dropDuplicates(["value"])  # a stateful operator
        sink = counted.writeStream.format("parquet").option("path", str(self.rows))
        query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120), "the query did not end"

    def values(self) -> list[str]:
        return sorted(row.value for row in self.spark.read.parquet(str(self.rows)).collect())


@pytest.fixture
def begun(spark: SparkSession, jvm_source: str, kafka: Any, topic: str, produce: Any, tmp_path: Path) -> Stream:
    """The query after two batches of Spark's own source, with its checkpoint in `old`, and more records after it."""
    stream = Stream(spark, kafka.bootstrap_servers, topic, tmp_path / "rows")
    for values in (["a", "b", "c"], ["d", "e"]):
        produce(topic, values)
        stream.run(jvm_source, tmp_path / "old")
    produce(topic, ["f", "g"])
    return stream


@pytest.mark.thorough
def test_a_new_query_with_the_printed_offsets_and_a_written_checkpoint_go_on(
    begun: Stream, topic: str, produce: Any, tmp_path: Path
) -> None:
    """The written checkpoint keeps the state of operators and the numbers of micro-batches, too."""
    produce(topic, ["a"])
    (offsets,), pending = starting_offsets(tmp_path / "old")
    assert pending is None
    write_checkpoint(tmp_path / "old", tmp_path / "written")
    begun.run("kafkameta", tmp_path / "written")
    assert begun.values() == ["a", "b", "c", "d", "e", "f", "g"]

    begun.rows = tmp_path / "rows of the new query"
    begun.run("kafkameta", tmp_path / "new", offsets)
    assert begun.values() == ["a", "f", "g"]


@pytest.mark.thorough
def test_a_batch_that_was_not_committed_is_read_as_it_was_planned(
    begun: Stream, jvm_source: str, tmp_path: Path
) -> None:
    """The sink already has batch 1, and recognizes its number."""
    for leftover in (tmp_path / "old" / "commits").glob("*1*"):
        leftover.unlink()
    (tmp_path / "old" / "commits" / ".1.crc").unlink(missing_ok=True)
    assert starting_offsets(tmp_path / "old")[1] == 1
    write_checkpoint(tmp_path / "old", tmp_path / "new")
    begun.run("kafkameta", tmp_path / "new")
    assert begun.values() == ["a", "b", "c", "d", "e", "f", "g"]
