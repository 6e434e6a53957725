"""Brokers without topic ids, as before Kafka 2.8: which recreated topics a query detects, and which it cannot."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.cluster_tools import (
    create_topic,
    delete_topic,
    elect_leader,
    poll_until,
    reassign,
    topic_on_each_broker,
)
from tests.kafka.harness import Stream, write_numbers

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

OpenStream = Callable[..., Stream]


@pytest.fixture(scope="module")
def old_kafka() -> Iterator[LocalKafka]:
    with LocalKafka(brokers=2, version="2.8.2", config={"inter.broker.protocol.version": "2.7"}) as cluster:
        yield cluster


@pytest.fixture
def topic(old_kafka: LocalKafka) -> str:
    name = f"without-id-{uuid.uuid4().hex}"
    create_topic(old_kafka, name, [list(old_kafka.broker_ids)])
    entries = topic_on_each_broker(old_kafka.bootstrap_servers, name)
    assert {entry.topic_id for entry in entries if entry is not None} == {None}
    return name


@pytest.fixture
def open_stream(old_kafka: LocalKafka, topic: str, tmp_path: Path) -> Iterator[OpenStream]:
    with ExitStack() as stack:

        def make(**options: str) -> Stream:
            stream = Stream(old_kafka.bootstrap_servers, [topic], tmp_path / uuid.uuid4().hex, **options)
            return stack.enter_context(closing(stream))

        yield make


def move_leader(kafka: LocalKafka, topic: str) -> None:
    """Move the leader to the second broker, in a newer leader epoch."""
    first, second = kafka.broker_ids
    reassign(kafka, topic, 0, [second, first])
    elect_leader(kafka, topic, 0, second)


def recreate(kafka: LocalKafka, topic: str) -> None:
    delete_topic(kafka, topic)

    def created() -> bool:
        try:
            create_topic(kafka, topic, [list(kafka.broker_ids)])
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS, error  # its deletion is not complete
            return False
        return True

    poll_until(created)


def test_lower_epoch_shows_a_topic_recreated(old_kafka: LocalKafka, topic: str, open_stream: OpenStream) -> None:
    move_leader(old_kafka, topic)
    write_numbers(old_kafka, topic, 0, 20)
    strict, lenient = open_stream(), open_stream(onTopicRecreated="earliest")
    strict.run_until(lambda: len(strict.rows) == 20)
    lenient.run_until(lambda: len(lenient.rows) == 20)
    recreate(old_kafka, topic)
    write_numbers(old_kafka, topic, 100, 160)

    with pytest.raises(DataLossError, match=rf"topic {topic} was deleted and recreated .*no topic ids"):
        strict.run_until(lambda: False)
    assert len(strict.rows) == 20
    lenient.run_until(lambda: len(lenient.rows) == 80)
    assert [row.value for row in lenient.rows[20:]] == [str(number) for number in range(100, 160)]
