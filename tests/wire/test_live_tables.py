"""The live cluster as rows: complete on a good cluster, with errors in the rows of failed partitions, and with the same
figures in a scrape of the exporter."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from pyspark_kafka_meta.events.event import BrokerFetches, Outcome
from pyspark_kafka_meta.kafka.metadata.snapshot import PartitionLearned, SnapshotChanges
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.options import ClientOptions, ClusterOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.cluster_query import describe_cluster, partition_rows
from pyspark_kafka_meta.tables.lag import next_record_timestamps, query_lag, read_checkpoint
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.cluster_state import live_leaders
from pyspark_kafka_meta.tools.event_sources import FolderEvents
from pyspark_kafka_meta.tools.exporter.server import Poller, PollTargets, serve
from tests.checkpoints import write_checkpoint
from tests.partitions import T0, T1
from tests.unit.written_events import made, write

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


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(url: str) -> Samples:
    with urlopen(url, timeout=30) as response:
        text = response.read().decode()
    families = list(text_string_to_metric_families(text))
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def sample(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((f"kafkameta_{name}", frozenset(labels.items())))


EXECUTOR = {"application_id": "", "executor": "1"}


def test_stale_partitions_and_lag_are_those_of_the_cluster(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "kafka.default.api.timeout.ms": "2000"}
    live = live_leaders(describe_cluster(ClientOptions.parse(options), ["t"]).response)
    learned = tuple(
        PartitionLearned(row.topic, row.partition or 0, row.leader_id or 0, row.leader_epoch or 0, row.topic_id)
        for row in live.values()
    )
    changes = SnapshotChanges(topics_added=("t",), partitions_learned=learned)
    common = {"outcome": Outcome.CHANGED, "changes": changes, "fetches": (BrokerFetches(1, 2, 300),)}
    end = SourceOffset({T0: Position(1), T1: Position(0)}, {"t": None})
    checkpoint = write_checkpoint(tmp_path / "checkpoint", {4: end}, 4)
    targets = PollTargets(
        events=FolderEvents(str(tmp_path)), cluster=options, checkpoints=[checkpoint], per_partition=True
    )
    poller = Poller(targets, interval_s=1.0)
    with closing(serve(poller, "127.0.0.1", 0)) as server:
        poller.poll()
        write(tmp_path, made("a" * 32, 1, int(time.time() * 1000), **common))
        poller.poll()
        first = scrape(server.url)
        rows = query_lag(options, read_checkpoint(checkpoint).offsets)
        cluster.move_leader("t", 1, 3)
        poller.poll()
        moved = scrape(server.url)
        cluster.broker_down(-1)
        poller.poll()
        down = scrape(server.url)

    assert sample(first, "exporter_up", source="cluster") == 1
    of_topic = {"query_id": "query-1", "topic": "t"}
    assert sample(first, "lag_records", **of_topic) == sum(row.records_behind or 0 for row in rows) == 2
    assert {row.partition: row.records_behind for row in rows} == {
        number: sample(first, "partition_lag_records", **of_topic, partition=str(number)) for number in (0, 1)
    }
    assert 0 < (sample(first, "lag_seconds", **of_topic) or 0) < 60
    assert sample(first, "query_batch", query_id="query-1") == 4
    assert sample(first, "fetch_response_bytes_total", cluster_id="", broker="1") == 300
    assert [sample(found, "stale_partitions", **EXECUTOR) for found in (first, moved)] == [0, 1]
    assert sample(down, "exporter_up", source="cluster") == sample(down, "exporter_up", source="lag") == 0
    assert sample(down, "stale_partitions", **EXECUTOR) == 1, "the last response is a lower bound"
    assert sample(down, "lag_records", **of_topic) is None, "an old lag would look good"
    assert sample(down, "cached_partitions", **EXECUTOR) == 2
