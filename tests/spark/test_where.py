"""The option `where` keeps the rows that Spark's `where` keeps."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.where_cases import CASES, FIXED, MARKS, Conditions, masked, rows

pytestmark = pytest.mark.spark

CONDITIONS, ROWS, AT_ONCE = 5_000, 64, 200


@pytest.mark.thorough
def test_spark_has_the_results_that_tests_of_values_expect(spark: SparkSession) -> None:
    with settings(spark, ansi="true"):
        found = masks_of_spark(as_frame(spark, FIXED), list(CASES))
    assert ["".join(MARKS[each] for each in mask) for mask in found] == list(CASES.values())


@pytest.mark.thorough
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_generated_conditions_are_true_of_the_same_rows(spark: SparkSession, ansi: str) -> None:
    rng = random.Random(f"where-{ansi}")
    batch = rows(ROWS, rng)
    masks: dict[str, list[bool | None]] = {}
    refused = 0
    conditions = Conditions(rng)
    while len(masks) < CONDITIONS:
        text = conditions.condition()
        try:
            masks[text] = masked(text, batch)
        except ValueError:
            refused += 1
    assert refused < CONDITIONS / 2
    with settings(spark, ansi):
        frame, texts = as_frame(spark, batch), list(masks)
        parts = [texts[start : start + AT_ONCE] for start in range(0, CONDITIONS, AT_ONCE)]
        found = {text: mask for part in parts for text, mask in zip(part, masks_of_spark(frame, part), strict=True)}
    assert [text for text in texts if found[text] != masks[text]] == []


@pytest.mark.kafka
def test_a_batch_and_a_stream_have_the_rows_of_sparks_where(
    spark: SparkSession, kafka: Any, topic: str, produce: Any, tmp_path: Path
) -> None:
    """Malformed values, tombstones, empty values; and columns that the query does not return."""
    values = [*(f'{{"id": {number}, "at": {{"n": null}}}}' for number in range(40)), None, "", "{", '{"id": null}']
    kinds = ([("kind", b"a")], [("kind", b"b"), ("kind", b"a")], [("kind", b"b")], None)
    for partition in range(2):
        records = [{"key": str(number % 3), "value": value} for number, value in enumerate(values)]
        produce(topic, [{**each, "headers": kinds[at % 4]} for at, each in enumerate(records)], partition)
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    given |= {"valueFormat": "json", "valueSchema": "id INT, at STRUCT<n: STRING>", "onMalformedRecord": "null"}
    where = "(value.id BETWEEN 5 AND 30 OR value.at.n IS NULL) AND key != '1' AND partition >= 0"
    behind = spark.read.format("kafkameta").options(**given, includeHeaders="true").load().where(where)
    expected = sorted(behind.where("element_at(headers, -1).value = 'a'").select("partition", "offset").collect())
    given["where"] = f"{where} AND Headers['kind'] = 'a'"

    batch = spark.read.format("kafkameta").options(**given).schema("offset BIGINT, partition INT").load()
    assert sorted(batch.select("partition", "offset").collect()) == expected
    assert spark.read.format("kafkameta").options(**given).load().count() == len(expected) > 10

    stream = spark.readStream.format("kafkameta").options(**given).load().select("partition", "offset")
    query = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    running = query.trigger(availableNow=True).start(str(tmp_path / "rows"))
    running.awaitTermination()
    assert sorted(spark.read.parquet(str(tmp_path / "rows")).collect()) == expected
    assert end_offsets(running, topic) == [len(values), len(values), 0]


@pytest.mark.kafka
def test_a_condition_that_does_not_fit_the_columns_is_refused_at_the_first_action(
    spark: SparkSession, kafka: Any, topic: str
) -> None:
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "where": "value.id = 1"}
    with pytest.raises(Exception, match="Option 'where': id is no field of a column of type binary"):
        spark.read.format("kafkameta").options(**given).load().collect()


@pytest.mark.thorough
@pytest.mark.kafka
def test_a_stream_whose_condition_excludes_every_partition_advances(
    spark: SparkSession, kafka: Any, topic: str, produce: Any, tmp_path: Path
) -> None:
    produce(topic, ["a", "b"], 0)
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    nothing = spark.readStream.format("kafkameta").options(**given, where="partition > 5").load()
    ended = nothing.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    running = ended.trigger(availableNow=True).start()
    running.awaitTermination()
    assert running.lastProgress is not None
    assert running.lastProgress["numInputRows"] == 0
    assert end_offsets(running, topic) == [2, 0, 0]


@pytest.mark.thorough
@pytest.mark.kafka
def test_spark_pushes_filters_into_the_condition(spark: SparkSession, kafka: Any, topic: str, produce: Any) -> None:
    produce(topic, [{"key": str(number), "value": f'{{"id": {number}}}'} for number in range(30)], 0)
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "where": "value.id != 12"}
    given |= {"valueFormat": "json", "valueSchema": "id INT"}
    rows = spark.read.format("kafkameta").options(**given).load()
    condition = "value.id > 9 AND offset IN (1, 11, 12, 13, 14) AND partition = 0 AND key <> X'3133' AND topic LIKE '%'"
    expected = rows.where(condition).select("offset").collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = spark.read.format("kafkameta").options(**given).load().where(condition)
        assert pushed.select("offset").collect() == expected == [(11,), (14,)]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def end_offsets(query: StreamingQuery, topic: str) -> list[int]:
    """Where the last micro-batch ended, by partition."""
    assert query.lastProgress is not None
    offsets = json.loads(query.lastProgress["sources"][0]["endOffset"])["topics"][topic]["partitions"]
    return [offset[0] if isinstance(offset, list) else offset for offset in offsets.values()]


@contextmanager
def settings(spark: SparkSession, ansi: str) -> Iterator[None]:
    """A time zone that is not UTC, and what casts do."""
    given = {"spark.sql.ansi.enabled": ansi, "spark.sql.session.timeZone": "America/New_York"}
    before = {name: str(spark.conf.get(name)) for name in given}
    for name, value in given.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def as_frame(spark: SparkSession, batch: pa.RecordBatch) -> DataFrame:
    """The rows in Spark, where headers by name are a map."""
    maps = [
        None if headers is None else [(header["key"], header["value"]) for header in headers]
        for headers in batch["headers"].to_pylist()
    ]
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns |= {"headers": pa.array(maps, pa.map_(pa.string(), pa.binary())), "row": pa.array(range(len(batch)))}
    return spark.createDataFrame(pa.table(columns)).cache()


def masks_of_spark(frame: DataFrame, texts: Sequence[str]) -> list[list[bool | None]]:
    columns = [f"CAST(({text}) AS BOOLEAN) AS c{number}" for number, text in enumerate(texts)]
    found = frame.selectExpr("row", *columns).toArrow().sort_by("row")
    return [found[f"c{number}"].to_pylist() for number in range(len(texts))]
