"""The demo's brokers and feed: leaders of embedded brokers after kills, restores and moves; missing real brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from pyspark_kafka_meta.model import NO_LEADER, TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.cluster_query import describe_cluster, partition_rows
from pyspark_kafka_meta.testing import ClusterError, MockCluster
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.demo import clusters, runner
from pyspark_kafka_meta.tools.demo.clusters import COPY, REPLICAS, TOPIC, EmbeddedCluster, LocalKafkaCluster, copy_of
from pyspark_kafka_meta.tools.demo.query import RecordFeed, records_per_round

FIRST = TopicPartition(TOPIC, 0)


@pytest.fixture
def cluster(mock_cluster: MockCluster) -> EmbeddedCluster:
    return EmbeddedCluster(mock_cluster)


def leaders(cluster: EmbeddedCluster, topics: Sequence[str]) -> list[int]:
    """Of all partitions, by topic and number."""
    described = describe_cluster(ClientOptions.parse(cluster.options), topics).response.topics
    return [
        partition.leader_id
        for topic in sorted(described, key=lambda topic: topic.name)
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition)
    ]


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ([], [1, 2, 3, 1]),
        ([lambda one: one.move_leader(FIRST, 1)], [2, 2, 3, 1]),
        ([lambda one: one.move_leader(FIRST, 1), lambda one: one.kill(2)], [3, 3, 3, 1]),
        ([lambda one: one.kill(2), lambda one: one.kill(3)], [1, 1, 1, 1]),
        ([lambda one: one.kill(2), lambda one: one.kill(3), lambda one: one.restore(2)], [1, 2, 1, 1]),
        ([lambda one: one.kill(2), lambda one: one.restore(2)], [1, 2, 3, 1]),
        ([lambda one: one.kill(3), lambda one: one.move_leader(FIRST, 2)], [1, 2, 1, 1]),
        ([lambda one: one.grow(), lambda one: one.grow(), lambda one: one.kill(3)], [1, 2, 1, 1, 1, 1]),
    ],
    ids=range(8),
)
def test_a_broker_that_runs_leads(
    cluster: EmbeddedCluster, acts: list[Callable[[EmbeddedCluster], None]], expected: list[int]
) -> None:
    for act in acts:
        act(cluster)

    assert leaders(cluster, cluster.topics) == expected


def test_copies_have_the_partitions_of_their_topics_and_leaders_of_their_own(cluster: EmbeddedCluster) -> None:
    cluster.move_leader(copy_of(FIRST), 1)
    cluster.kill(3)
    added = cluster.grow()

    assert copy_of(added) == TopicPartition(f"{COPY}-more-1", 0)
    assert cluster.copies == [COPY, copy_of(added).topic]
    assert leaders(cluster, cluster.topics) == [1, 2, 1, 1, 1]
    assert leaders(cluster, cluster.copies) == [2, 2, 1, 1, 1]


def test_a_missing_topic_of_yours_is_told_at_first(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> NoReturn:
        pytest.fail("something was started")

    monkeypatch.setattr(runner, "find_java", start)
    arguments = ["demo", "--bootstrap-servers", cluster.options["kafka.bootstrap.servers"], "--topic", "nope"]
    result = CliRunner().invoke(app, arguments)

    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
    assert "topic nope cannot be read (UNKNOWN_TOPIC_OR_PARTITION (error 3)): correct --topic" in result.stderr


def test_nobody_leads_while_all_are_dead_and_who_comes_back_leads_all(cluster: EmbeddedCluster) -> None:
    for broker_id in (1, 2, 3):
        cluster.kill(broker_id)
    with pytest.raises(ClusterError, match="restore a broker first"):
        cluster.move_leader(FIRST, NO_LEADER)
    cluster.restore(2)

    assert leaders(cluster, cluster.topics) == leaders(cluster, cluster.copies) == [2, 2, 2, 2]


def test_that_no_real_broker_responds_is_told_as_a_cluster_in_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "ADMIN_TIMEOUT_S", 0.1)
    real: Any = LocalKafkaCluster.__new__(LocalKafkaCluster)
    real._admin = AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})

    with pytest.raises(ClusterError, match=f"broker 2 is not in sync in {FIRST}"):
        real.move_leader(FIRST, NO_LEADER)


def test_records_get_to_the_brokers(mock_cluster: MockCluster, wait_for: Callable[..., Any]) -> None:
    cluster = EmbeddedCluster(mock_cluster)
    with RecordFeed(cluster):
        wait_for(lambda: any(row.end_offset for row in partition_rows(ClientOptions.parse(cluster.options), [TOPIC])))


def test_of_records_that_brokers_refuse_the_first_error_is_printed(
    mock_cluster: MockCluster, wait_for: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = EmbeddedCluster(mock_cluster)
    mock_cluster.set_topic_error(TOPIC, 29)
    with RecordFeed(cluster):
        errors = wait_for(lambda: capsys.readouterr().err)

    assert "TOPIC_AUTHORIZATION_FAILED" in errors
    assert capsys.readouterr().err == ""


def test_each_partition_of_an_added_topic_gets_as_many_records_as_those_of_the_first() -> None:
    first, added = records_per_round(["clicks", "clicks-more-1"]).values()

    assert first == added * len(REPLICAS)
