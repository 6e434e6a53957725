"""A million Avro records of which each hundredth is malformed: a batch and a stream lose none, read none wrong, and say
of each malformed one where it is, what is wrong with it, and its bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession

from benchmarks.topics import fill_with
from pyspark_kafka_meta.testing import MockRegistry
from tests.spark.traces import run_to_the_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]

RECORDS, PARTITIONS = 1_000_000, 3
FIELDS: list[dict[str, Any]] = [
    {"name": "title", "type": "string"},
    {"name": "id", "type": "long"},
    {"name": "weight", "type": "double"},
    {"name": "tags", "type": {"type": "array", "items": "int"}},
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "name", "type": "string"},
]
CLICK: dict[str, Any] = {"type": "record", "name": "Click", "fields": FIELDS}
OLD_FIELDS = [FIELDS[0], {"name": "gone", "type": "int"}, {"name": "id", "type": "int"}, *FIELDS[2:4], FIELDS[5]]
OLD = {**CLICK, "fields": OLD_FIELDS}
"""The schema of every second record."""
OTHER = {**CLICK, "fields": [{"name": "id", "type": "string"}]}
UNKNOWN_ID = 999
GOOD = """value_error IS NULL AND value <=> named_struct(
    'title', concat('title ', number),
    'id', number,
    'weight', number / 8D,
    'tags', transform(sequence(0L, number % 3), each -> CAST(each + number AS INT)),
    'note', IF(number % 2 = 1 OR number % 5 = 0, NULL, concat('é', number)),
    'name', concat('name ', number))"""
IN_ITS_PLACE = f"partition = number % {PARTITIONS} AND offset = number div {PARTITIONS}"


def click(number: int) -> dict[str, Any]:
    return {
        "title": f"title {number}",
        "gone": -number,
        "id": number,
        "weight": number / 8,
        "tags": [each + number for each in range(number % 3 + 1)],
        "note": None if number % 5 == 0 else f"é{number}",
        "name": f"name {number}",
    }


class Fault(NamedTuple):
    """A way in which records are malformed.

    Attributes:
        cause: a part of what the row says.
        damage: a good value, without its frame.
        schema: of the frame, if it is not that of the good value; empty for no frame.
    """

    cause: str
    damage: Callable[[bytes], bytes]
    schema: str | None = None


FAULTS = [
    Fault("no frame: its first byte is not 0", lambda value: b"{" + value, ""),
    Fault(f"was asked for schema id {UNKNOWN_ID} and does not have it", bytes, "unknown"),
    Fault("the value ends before its last field", lambda value: value[:14]),  # in a number
    Fault("bytes follow the last field", lambda value: value + b"\0"),
    Fault("field 'title': a number has more than 64 bits", lambda value: b"\xff" * 10 + value),
    Fault("field 'name': a string is not UTF-8", lambda value: value[:-1] + b"\xff"),
    Fault(
        "field 'title': a length is negative or reaches over the end",
        lambda value: b"\xfe" + b"\xff" * 8 + b"\x01" + value,
    ),
    Fault("field 'id': the writer's string cannot be read as long", lambda _: b"\2x", "other"),
    Fault("its schema is JSON, not Avro", lambda _: b'{"id": 1}', "json"),
]


class Malformed(NamedTuple):
    """A malformed record."""

    number: int
    cause: str
    schema_id: int | None
    raw: bytes


class Topic(NamedTuple):
    name: str
    registry: MockRegistry
    malformed: list[Malformed]


def fault_of(number: int) -> Fault | None:
    """Of each hundred numbers one has a fault: one place after the other, one fault after the other."""
    hundred, place = divmod(number, 100)
    return FAULTS[hundred % len(FAULTS)] if (hundred + place) % 100 == 0 else None


def raw_values(ids: Mapping[str, int], malformed: list[Malformed]) -> Iterator[bytes]:
    """The values of all records in their frames. Adds the malformed ones to the list."""
    writers = [(ids[name], fastavro.parse_schema(schema)) for name, schema in (("click", CLICK), ("old", OLD))]
    buffer = io.BytesIO()
    for number in range(RECORDS):
        schema_id, schema = writers[number % 2]
        buffer.seek(0)
        buffer.truncate()
        fastavro.schemaless_writer(buffer, schema, click(number))
        raw = framed(schema_id, buffer.getvalue())
        if (fault := fault_of(number)) is not None:
            wrong_id = schema_id if fault.schema is None else ids.get(fault.schema)
            raw = framed(wrong_id, fault.damage(buffer.getvalue()))
            malformed.append(Malformed(number, fault.cause, wrong_id, raw))
        yield raw


def framed(schema_id: int | None, value: bytes) -> bytes:
    return value if schema_id is None else b"\0" + schema_id.to_bytes(4, "big") + value


@pytest.fixture(scope="module")
def faulty(kafka: Any, make_topic: Callable[..., str]) -> Iterator[Topic]:
    """A topic whose keys are numbers: the record n is in partition n % 3."""
    with MockRegistry() as registry:
        name = make_topic(partitions=PARTITIONS)
        schemas = {"other": OTHER, "old": OLD, "click": CLICK}
        ids = {each: registry.register(f"{name}-value", json.dumps(schema)) for each, schema in schemas.items()}
        ids |= {"json": registry.register("json-value", "{}", kind="JSON"), "unknown": UNKNOWN_ID}
        malformed: list[Malformed] = []
        values = list(raw_values(ids, malformed))
        fill_with(values, kafka.bootstrap_servers, name, PARTITIONS, RECORDS)
        yield Topic(name, registry, malformed)


def batch(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    rows = spark.read.format("kafkameta").options(**options).load()
    rows.write.parquet(str(folder / "rows"))


def stream(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    rows = spark.readStream.format("kafkameta").options(**options, maxOffsetsPerTrigger="400000").load()
    sink = rows.writeStream.format("parquet").option("path", str(folder / "rows"))
    sink = sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    run_to_the_end(sink.start, folder / "checkpoint")


@pytest.mark.parametrize("copy", [batch, stream])
def test_no_record_is_lost_or_wrong_and_each_malformed_one_is_described(
    spark: SparkSession, kafka: Any, faulty: Topic, wait_for: Any, tmp_path: Path, copy: Callable[..., None]
) -> None:
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": faulty.name,
        "startingOffsets": "earliest",
        "valueFormat": "avro",
        "schema.registry.url": faulty.registry.url,
        "onMalformedRecord": "record",
        "eventsPath": str(tmp_path / "events"),
    }
    copy(spark, options, tmp_path)

    rows = spark.read.parquet(str(tmp_path / "rows")).selectExpr("CAST(CAST(key AS STRING) AS BIGINT) AS number", "*")
    counts = rows.selectExpr(
        "count(*)", "count(DISTINCT number)", f"count_if({IN_ITS_PLACE})", f"count_if({GOOD})"
    ).first()
    assert counts is not None
    assert tuple(counts) == (RECORDS, RECORDS, RECORDS, RECORDS - len(faulty.malformed))
    described(rows.where("value IS NULL").select("number", "value_error.*"), faulty.malformed)

    def counted() -> int:
        table = spark.read.format("kafkameta").options(table="refresh_events", eventsPath=options["eventsPath"])
        return sum(row.malformed_records for row in table.load().where("malformed_records > 0").collect())

    wait_for(lambda: counted() >= len(faulty.malformed))
    assert counted() == len(faulty.malformed)


def described(rows: DataFrame, malformed: list[Malformed]) -> None:
    found = {row.number: row for row in rows.collect()}
    assert sorted(found) == [each.number for each in malformed]
    for each in malformed:
        row = found[each.number]
        assert (row.schema_id, bytes(row.raw)) == (each.schema_id, each.raw)
        assert each.cause in row.cause
