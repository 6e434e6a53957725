"""Table latest, and a stream that begins with it, through Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.traces import Query

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

HISTORY = [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("c", None), ("b", "2")]


@pytest.fixture
def write(topic: str, produce: Any) -> Any:
    def write(*records: tuple[str | None, str | None]) -> None:
        produce(topic, [{"key": key, "value": value} for key, value in records], partition=0)

    return write


def test_table_latest_has_the_last_value_of_each_key_that_was_not_deleted(
    spark: SparkSession, kafka: Any, topic: str, write: Any
) -> None:
    write(*HISTORY)
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "table": "latest"}
    latest = spark.read.format("kafkameta").options(**given).load()

    rows = latest.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value", "offset").collect()
    assert [tuple(row) for row in rows] == [("a", "2", 2), ("b", "2", 5)]
    assert latest.count() == 2
    ended = spark.read.format("kafkameta").options(**given, endingOffsets=f'{{"{topic}":{{"0":2,"1":0,"2":0}}}}').load()
    assert [row.offset for row in ended.select("offset").collect()] == [0, 1]
    with pytest.raises(PySparkException, match="a stream with startingOffsets latestByKey begins with the same rows"):
        spark.readStream.format("kafkameta").options(**given).load().writeStream.format(
            "noop"
        ).start().processAllAvailable()


def test_latest_changes_are_the_rows_of_the_table(spark: SparkSession, kafka: Any, topic: str, write: Any) -> None:
    row = "struct<id int, name string>"
    given = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": topic,
        "table": "latest",
        "changes": "debezium",
        "valueFormat": "json",
        "keySchema": "id int",
        "valueSchema": f"op string, before {row}, after {row}, source struct<ts_ms bigint>, ts_ms bigint",
    }
    for change in (("c", 1, "a"), ("c", 2, "b"), ("u", 1, "c"), ("c", 3, "d"), ("d", 2, None)):
        op, number, name = change
        after = None if name is None else {"id": number, "name": name}
        write((json.dumps({"id": number}), json.dumps({"op": op, "after": after, "source": {}})))

    rows = spark.read.format("kafkameta").options(**given).load().select("id", "name", "_change.op", "_change.sequence")
    assert [tuple(each) for each in rows.collect()] == [(1, "c", "u", 2), (3, "d", "c", 3)]


@pytest.mark.thorough
def test_record_without_a_key_fails_with_one_sentence(spark: SparkSession, kafka: Any, topic: str, write: Any) -> None:
    write((None, "x"))
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "table": "latest"}

    with pytest.raises(PySparkException, match=f"MissingKeyError: the record of {topic}-0 at offset 0 has no key"):
        spark.read.format("kafkameta").options(**given).load().collect()


def test_stream_begins_with_the_latest_values_and_goes_on_with_every_record(
    spark: SparkSession, kafka: Any, topic: str, write: Any, tmp_path: Any, wait_for: Any
) -> None:
    """Although micro-batch 0 fails before its commit, and later ones have one offset each."""
    write(*HISTORY)
    pipeline = Query(spark, tmp_path, kafka.bootstrap_servers)
    pipeline.options |= {"subscribe": topic, "startingOffsets": "latestByKey", "maxOffsetsPerTrigger": "1"}
    first: list[int] = []

    def crash(batch: DataFrame, batch_id: int) -> None:
        first.extend(row.offset for row in batch.select("offset").collect())
        raise RuntimeError("crashed between the offset log and the commit")

    crashing = pipeline.frame().writeStream.foreachBatch(crash)
    query = crashing.option("checkpointLocation", str(pipeline.checkpoint)).start()
    wait_for(lambda: query.exception() is not None)
    assert first == [2, 5]

    write(("b", None), ("b", "3"), ("d", "1"))
    pipeline.run_rows(pipeline.frame().selectExpr("CAST(offset AS STRING) AS value"))
    assert pipeline.values() == ["2", "5", "6", "7", "8"]
