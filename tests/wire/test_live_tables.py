"""The live cluster as rows: complete on a good cluster, with errors in the rows of failed partitions."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.options import ClientOptions, ClusterOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.tables.lag import next_record_timestamps
from pyspark_kafka_meta.testing import MockCluster

LIST_OFFSETS = 2


def options(servers: str, **others: str) -> ClientOptions:
    return ClientOptions.parse({"kafka.bootstrap.servers": servers, **others})


@pytest.mark.parametrize("topics", [None, ["t"]])
def test_partitions_have_leaders_and_offsets(cluster: MockCluster, topics: list[str] | None) -> None:
    rows = partition_rows(options(cluster.bootstrap_servers), topics)

    assert [(row.partition, row.leader_id, row.start_offset, row.end_offset, row.error) for row in rows] == [
        (0, 1, 0, 3, None),
        (1, 2, 0, 0, None),
    ]


def test_a_leader_that_is_down_costs_only_its_own_offsets(cluster: MockCluster) -> None:
    cluster.broker_down(1)
    down, well = partition_rows(options(cluster.bootstrap_servers.split(",")[1]), ["t"])

    assert (down.leader_id, down.end_offset) == (1, None)
    assert "broker 1" in str(down.error)
    assert (well.end_offset, well.error) == (0, None)


def test_what_a_leader_refuses_is_told(cluster: MockCluster) -> None:
    cluster.push_request_errors(LIST_OFFSETS, 6)  # of the first broker
    rows = partition_rows(options(cluster.bootstrap_servers), ["t"])
    [refused] = [row for row in rows if row.start_offset is None]
    [well] = [row for row in rows if row is not refused]

    assert [row.end_offset for row in rows] == [3, 0]
    assert "NOT_LEADER_OR_FOLLOWER" in str(refused.error)
    assert well.error is None


def test_a_partition_without_a_leader_costs_only_its_own_offsets(cluster: MockCluster) -> None:
    cluster.move_leader("t", 0, -1)
    leaderless, well = partition_rows(options(cluster.bootstrap_servers), ["t"])

    assert (leaderless.leader_id, leaderless.start_offset, leaderless.end_offset) == (-1, None, None)
    assert str(leaderless.error).startswith("no offsets: broker -1, its leader")
    assert (well.leader_id, well.start_offset, well.end_offset, well.error) == (2, 0, 0, None)


def test_a_record_from_beyond_the_times_that_python_knows_has_a_timestamp(cluster: MockCluster) -> None:
    cluster.create_topic("u", partitions=1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    microseconds = 1_700_000_000_000_000  # where milliseconds are meant
    producer.produce("u", b"v", partition=0, timestamp=microseconds)
    assert producer.flush(30) == 0
    u0 = TopicPartition("u", 0)
    read_up_to = SourceOffset({u0: Position(0)}, {"u": None})

    options = ClusterOptions.parse({"kafka.bootstrap.servers": cluster.bootstrap_servers})
    found = next_record_timestamps(options, read_up_to, [u0])
    assert found == {u0: microseconds / 1000}


def test_looking_asks_each_leader_twice_and_two_brokers_for_metadata(cluster: MockCluster) -> None:
    cluster.start_request_tracking()
    partition_rows(options(cluster.bootstrap_servers), ["t"])
    api_keys = [request.api_key for request in cluster.requests()]

    assert (api_keys.count(3), api_keys.count(LIST_OFFSETS)) == (2, 4)
