"""Streams while the registry is away: they wait for a schema that they lack, write on with one that they know, and give
up once their time is over. Whatever happens, each row arrives once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from pyspark_kafka_meta.testing import MockRegistry
from tests.consumer import consume_committed
from tests.marks import thorough_after

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

AWAY_S = 30
V1: dict[str, Any] = {"type": "record", "name": "Click", "fields": [{"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "page", "type": "string", "default": "/"}]}


class Reading:
    """A stream that reads clicks of version 2 as version 1. It lacks the schema of its first record."""

    def __init__(
        self, spark: SparkSession, servers: str, make_topic: Callable[..., str], produce: Any, folder: Path
    ) -> None:
        self._spark, self._servers, self._produce, self._folder = spark, servers, produce, folder
        self._topic = make_topic(partitions=2)

    def start(self, registry: MockRegistry, timeout_ms: int) -> StreamingQuery:
        """Start or continue the query."""
        registry.register(f"{self._topic}-value", json.dumps(V1))
        options = {**typed(self._servers, registry, timeout_ms), "subscribe": self._topic, "valueSchemaVersion": "1"}
        rows = self._spark.readStream.format("kafkameta").options(**options, startingOffsets="earliest").load()
        sink = rows.selectExpr("CAST(value.id AS STRING) AS value").writeStream.format("text")
        sink = sink.option("path", str(self._folder / "rows"))
        return sink.option("checkpointLocation", str(self._folder / "checkpoint")).start()

    def feed(self, registry: MockRegistry, numbers: Iterable[int]) -> None:
        schema_id = registry.register(f"{self._topic}-value", json.dumps(V2))
        self._produce(self._topic, [framed(schema_id, number) + b"\2/" for number in numbers])

    def numbers(self) -> list[int]:
        """Of the rows, in order."""
        files = (self._folder / "rows").glob("*.txt")
        return sorted(int(line) for file in files for line in file.read_text().splitlines())


class Writing:
    """A stream of text that is written as clicks, exactly once. It lacks the schema of its first micro-batch."""

    def __init__(
        self, spark: SparkSession, servers: str, make_topic: Callable[..., str], produce: Any, folder: Path
    ) -> None:
        self._spark, self._servers, self._produce, self._folder = spark, servers, produce, folder
        self._topic, self.copies = make_topic(partitions=2), make_topic(partitions=2)

    def start(self, registry: MockRegistry, timeout_ms: int) -> StreamingQuery:
        """Start or continue the query."""
        registry.register(f"{self.copies}-value", json.dumps(V1))
        source = {"kafka.bootstrap.servers": self._servers, "subscribe": self._topic, "startingOffsets": "earliest"}
        rows = self._spark.readStream.format("kafkameta").options(**source).load()
        clicks = rows.selectExpr("struct(CAST(CAST(value AS STRING) AS BIGINT) AS id) AS value")
        once = {"topic": self.copies, "kafka.transactional.id": self.copies}
        sink = clicks.writeStream.format("kafkameta").options(**typed(self._servers, registry, timeout_ms), **once)
        return sink.option("checkpointLocation", str(self._folder / "checkpoint")).start()

    def feed(self, registry: MockRegistry, numbers: Iterable[int]) -> None:
        self._produce(self._topic, map(str, numbers))

    def numbers(self) -> list[int]:
        """Of the copies, in order."""
        return sorted(number for _, number in self.written())

    def written(self) -> list[tuple[int, int]]:
        """Schema id and number of each copy."""
        values = [message.value() or b"" for message in consume_committed(self._servers, self.copies)]
        return [(int.from_bytes(value[1:5]), value[5] // 2) for value in values]


def typed(servers: str, registry: MockRegistry, timeout_ms: int) -> dict[str, str]:
    url = {"schema.registry.url": registry.url, "schema.registry.timeout.ms": str(timeout_ms)}
    return {"kafka.bootstrap.servers": servers, "valueFormat": "avro", **url}


def framed(schema_id: int, number: int) -> bytes:
    """A number below 64 has one byte."""
    return b"\0" + schema_id.to_bytes(4, "big") + bytes([number * 2])


@pytest.fixture
def registry() -> Iterator[MockRegistry]:
    with MockRegistry() as registry:
        yield registry


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, spark: SparkSession, kafka: Any, make_topic: Any, produce: Any, tmp_path: Path
) -> Any:
    return request.param(spark, kafka.bootstrap_servers, make_topic, produce, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("scene", [Reading, Writing], indirect=True)
def test_a_stream_waits_for_a_registry_that_is_away_for_half_a_minute(
    scene: Reading | Writing, registry: MockRegistry
) -> None:
    query = scene.start(registry, timeout_ms=120_000)
    registry.stop()
    back = threading.Timer(AWAY_S, registry.start)
    began = time.monotonic()
    back.start()
    scene.feed(registry, range(30))
    query.processAllAvailable()
    waited_s = time.monotonic() - began
    scene.feed(registry, range(30, 60))
    query.processAllAvailable()
    query.stop()
    back.join()

    assert waited_s >= AWAY_S
    assert scene.numbers() == list(range(60))


@pytest.mark.parametrize("scene", thorough_after(1, [Writing, Reading]), indirect=True)
def test_a_stream_that_gave_the_registry_up_goes_on_after_a_restart(
    scene: Reading | Writing, registry: MockRegistry
) -> None:
    query = scene.start(registry, timeout_ms=500)
    registry.stop()
    scene.feed(registry, range(30))
    with pytest.raises(StreamingQueryException, match="cannot reach the schema registry at http://"):
        query.processAllAvailable()

    registry.start()
    query = scene.start(registry, timeout_ms=60_000)
    scene.feed(registry, range(30, 60))
    query.processAllAvailable()
    query.stop()
    assert scene.numbers() == list(range(60))


@pytest.mark.thorough
@pytest.mark.parametrize("scene", [Writing], indirect=True)
def test_a_sink_that_knows_a_schema_writes_on_while_the_registry_is_away(
    scene: Writing, registry: MockRegistry
) -> None:
    query = scene.start(registry, timeout_ms=2_000)
    scene.feed(registry, range(20))
    query.processAllAvailable()
    registry.stop()
    scene.feed(registry, range(20, 40))
    query.processAllAvailable()
    registry.register(f"{scene.copies}-value", json.dumps(V2))
    registry.start()
    repeated, deadline = 0, time.monotonic() + 60
    while (2, 40) not in scene.written() and time.monotonic() < deadline:  # the pause after the failure passes
        scene.feed(registry, [40])
        query.processAllAvailable()
        repeated += 1
    query.stop()

    before = [(1, number) for number in range(40)] + [(1, 40)] * (repeated - 1)
    assert sorted(scene.written()) == [*before, (2, 40)]
