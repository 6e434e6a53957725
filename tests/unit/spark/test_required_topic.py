"""The driver finds a missing topic of a write before tasks start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_kafka_meta.errors import AuthorizationError, UnknownTopicError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.source import KafkaMetaDataSource
from pyspark_kafka_meta.spark.client_pool import worker_clients
from tests.unit.scene import Scene

TOPIC_AUTHORIZATION_FAILED = 29
VALUES = StructType().add("value", "string")
WRITES = pytest.mark.parametrize("write", ["writer", "streamWriter"])


@pytest.fixture
def client(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> KafkaClient:
    """In place of the clients of this process."""
    made = scene.client()

    @contextmanager
    def kept(*_: Any) -> Iterator[KafkaClient]:
        yield made

    monkeypatch.setattr(worker_clients, "client", kept)
    return made


def sink(topic: str) -> KafkaMetaDataSource:
    return KafkaMetaDataSource({"kafka.bootstrap.servers": "broker-1:9092", "topic": topic})


@WRITES
def test_missing_topic_fails_before_a_task_starts(scene: Scene, client: KafkaClient, write: str) -> None:
    with pytest.raises(UnknownTopicError, match=r"^topic tt does not exist .* \(there is t\)"):
        getattr(sink("tt"), write)(VALUES, False)


@WRITES
def test_topic_that_may_not_be_written_fails_too(scene: Scene, client: KafkaClient, write: str) -> None:
    scene.network.metadata_errors["t"] = TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(AuthorizationError, match=r"topic t cannot be written.*WRITE"):
        getattr(sink("t"), write)(VALUES, False)


@WRITES
def test_existing_topic_is_asked_for_once(scene: Scene, client: KafkaClient, write: str) -> None:
    for _ in range(3):
        getattr(sink("t"), write)(VALUES, False)
    assert scene.sent("Metadata") == [1]


def test_process_that_commits_asks_no_broker(scene: Scene, client: KafkaClient) -> None:
    source = sink("tt")
    source.__setstate__({})
    source.streamWriter(VALUES, False)
    assert scene.sent("Metadata") == []
