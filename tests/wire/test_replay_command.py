"""`kafkameta replay`: where and when its records are, also of letters that Kafka Connect wrote."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message, Producer
from typer.testing import CliRunner

from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.cli.main import app
from tests.consumer import consume

PARTITIONS = 4


def letter(topic: str, partition: int, **others: str) -> list[tuple[str, bytes]]:
    """Its headers."""
    said = {"topic": topic, "partition": str(partition), "offset": "7", **others}
    return [(f"__connect.errors.{name}", value.encode()) for name, value in said.items()]


@pytest.fixture
def replayed(mock_cluster: MockCluster) -> Any:
    """Sends letters again to `orders`, and returns its records."""
    mock_cluster.create_topic("orders", partitions=PARTITIONS)
    mock_cluster.create_topic("orders-letters", partitions=1)
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers})

    def replay(*letters: dict[str, Any]) -> list[Message]:
        for each in letters:
            producer.produce("orders-letters", **{"value": "nonsense", "partition": 0, **each})
        assert producer.flush(30) == 0
        arguments = ["orders-letters", "--to", "orders", "--yes", "--bootstrap-servers", mock_cluster.bootstrap_servers]
        result = CliRunner().invoke(app, ["replay", *arguments])
        assert result.exit_code == 0, result.stderr
        return consume(mock_cluster.bootstrap_servers, "orders")

    return replay


def test_records_go_back_to_their_partitions_whatever_their_producers_partitioner_is(replayed: Any) -> None:
    """That of librdkafka puts the same key elsewhere than Java's."""
    places = [("orders", partition) for partition in range(PARTITIONS)]
    others = [("orders", PARTITIONS), ("payments", 0)]  # removed since, and not of this topic
    sent = replayed(*({"key": "same", "headers": letter(*place)} for place in [*places, *others]))

    found = {(message.headers() or [])[-1][1].decode(): message.partition() for message in sent}
    assert {found.pop(f"orders-{partition}-7") for partition in range(PARTITIONS)} == set(range(PARTITIONS))
    assert len({found.pop("orders-4-7"), found.pop("payments-0-7")}) == 1
    assert not found


def test_letters_of_kafka_connect_have_the_time_of_their_records(replayed: Any) -> None:
    """Records of a topic that was recreated are at the same place at another time."""
    headers = letter("orders", 1, **{"connector.name": "sink", "stage": "VALUE_CONVERTER"})
    sent = replayed(*({"timestamp": time_ms, "headers": headers} for time_ms in (5_000, 5_000, 9_000)))

    assert sorted(message.timestamp()[1] for message in sent) == [5_000, 9_000]


def test_tombstones_and_null_keys_stay_null(replayed: Any) -> None:
    (sent,) = replayed({"value": None, "headers": letter("orders", 1)})

    assert (sent.key(), sent.value()) == (None, None)


def test_a_letter_of_a_letter_is_that_letter_again(replayed: Any) -> None:
    inner = letter("payments", 3, key="inner", timestamp="5")
    (sent,) = replayed({"key": "outer", "timestamp": 9_000, "headers": [*inner, *letter("orders", 1)]})

    assert (sent.key(), sent.partition(), sent.headers()[:-1]) == (b"outer", 1, inner)
    assert sent.timestamp()[1] != 5
