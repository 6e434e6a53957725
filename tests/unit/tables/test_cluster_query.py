"""Queries of a live cluster, and the lag of a query."""

from __future__ import annotations

from collections import deque
from typing import NoReturn
from uuid import UUID

import pytest

from pyspark_kafka_meta.errors import AuthenticationError, ConnectError, KafkaMetaError, TlsError
from pyspark_kafka_meta.model import Address, Position, TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables import cluster_query
from pyspark_kafka_meta.tables.lag import lag_rows, partitions_behind, without_recreated_topics
from pyspark_kafka_meta.tables.rows import PartitionRow
from tests.partitions import T0
from tests.unit.fake_network import FakeNetwork

REBOOTSTRAP_REQUIRED = 129
OPTIONS = ClientOptions.parse({"kafka.bootstrap.servers": "broker-1:9092,broker-2:9092"})


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> FakeNetwork:
    fake = FakeNetwork()
    monkeypatch.setattr(cluster_query, "KafkaNetwork", lambda _: fake)
    return fake


def test_address_with_an_error_is_skipped(network: FakeNetwork) -> None:
    network.metadata_refusals[1] = deque([REBOOTSTRAP_REQUIRED])
    cluster = cluster_query.describe_cluster(OPTIONS, ())

    assert (cluster.address, len(cluster.response.brokers)) == (Address("broker-2", 9092), 3)


def test_connect_error_has_the_error_of_each_address(network: FakeNetwork) -> None:
    for node_id in (1, 2):
        network.metadata_refusals[node_id] = deque([REBOOTSTRAP_REQUIRED])
    told = r"no broker responded \(broker-1:9092 responded .*error 129.*; broker-2:9092 responded .*\): check the addr"
    with pytest.raises(ConnectError, match=told):
        cluster_query.describe_cluster(OPTIONS, ())


@pytest.mark.parametrize("error", [AuthenticationError("wrong password"), TlsError("unknown authority")])
def test_error_of_all_is_raised(error: KafkaMetaError, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = []

    def refuse(address: Address, *_: object) -> NoReturn:
        addresses.append(address)
        raise error

    monkeypatch.setattr(network, "metadata", refuse)
    with pytest.raises(type(error), match=f"^{error}$"):
        cluster_query.describe_cluster(OPTIONS, ())
    assert addresses == [Address("broker-1", 9092)]


def test_partitions_have_the_newest_leader_that_two_brokers_name(network: FakeNetwork) -> None:
    """The first is cut off from the cluster, and was the leader itself."""
    network.cluster.create_topic("t", 1)
    network.cut_off(1)
    network.cluster.move_leader(T0, 2)
    network.cluster.create_topic("u", 1)

    for _ in range(20):
        (row,) = cluster_query.partition_rows(OPTIONS, ["t"])
        assert (row.leader_id, row.leader_epoch, row.error) == (2, 1, None)
    assert {row.topic for row in cluster_query.partition_rows(OPTIONS, None)} == {"t", "u"}


def test_second_broker_that_does_not_respond_is_left_out(network: FakeNetwork) -> None:
    network.cluster.create_topic("t", 1)
    network.down |= {2, 3}

    assert [row.leader_id for row in cluster_query.partition_rows(OPTIONS, ["t"])] == [1]


def test_topics_of_another_id_are_not_merged() -> None:
    first, second = FakeNetwork(), FakeNetwork()
    for network, leader_id in ((first, 2), (second, 3)):
        network.cluster.create_topic("t", 1)
        network.cluster.move_leader(T0, leader_id)
    second.cluster.move_leader(T0, 1)
    address = Address("broker-1", 9092)

    both = cluster_query.merged(first.metadata(address, None, 1.0), second.metadata(address, None, 1.0))
    assert [partition.leader_id for topic in both.topics for partition in topic.partitions] == [2]


NOW = 1_000.0


@pytest.mark.parametrize(
    ("live", "timestamps", "behind"),
    [
        pytest.param([PartitionRow(topic="t", partition=0, end_offset=7)], {}, (0, 0.0), id="no unread record"),
        pytest.param([PartitionRow(topic="t", partition=0, end_offset=9)], {T0: 940.0}, (2, 60.0), id="behind"),
        pytest.param([PartitionRow(topic="t", partition=0, end_offset=9)], {}, (2, None), id="no record at the offset"),
        pytest.param(
            [PartitionRow(topic="t", partition=0, end_offset=9)], {T0: 1_001.0}, (2, 0.0), id="future timestamp"
        ),
        pytest.param([PartitionRow(topic="t", partition=0, end_offset=5)], {}, (0, 0.0), id="truncated log"),
        pytest.param(
            [PartitionRow(topic="t", partition=0, leader_epoch=2, end_offset=9)],
            {T0: 940.0},
            (2, 60.0),
            id="same epoch",
        ),
        pytest.param(
            [PartitionRow(topic="t", partition=0, leader_epoch=1, end_offset=7)], {}, (None, None), id="replaced leader"
        ),
        pytest.param([PartitionRow(topic="t", partition=0, error="down")], {}, (None, None), id="leader failure"),
        pytest.param([PartitionRow(topic="t", error="gone")], {}, (None, None), id="no topic"),
    ],
)
def test_lag_of_a_partition_read_up_to_offset_7(
    live: list[PartitionRow], timestamps: dict[TopicPartition, float], behind: tuple[int | None, float | None]
) -> None:
    positions = {T0: Position(7, 1, 0, reported_epoch=2)}
    (row,) = lag_rows(positions, live, timestamps, NOW)

    assert (row.records_behind, row.seconds_behind) == behind
    assert partitions_behind(positions, live) == ([T0] if behind[0] else [])


def test_recreated_topics_are_not_compared() -> None:
    old, new = UUID(int=1), UUID(int=2)
    live = [
        PartitionRow(topic=topic, partition=0, topic_id=str(new), end_offset=5) for topic in ("again", "same", "new")
    ]
    unknown = PartitionRow(topic="unknown", partition=0, end_offset=5)

    comparable = without_recreated_topics([*live, unknown], {"again": old, "same": new, "new": None, "unknown": old})

    assert [row.topic for row in comparable] == ["same", "new", "unknown"]
