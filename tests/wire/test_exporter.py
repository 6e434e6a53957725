"""The exporter beside a cluster: the figures of a scrape are those of the tables and commands."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyspark_kafka_meta.events.event import BrokerFetches, Outcome
from pyspark_kafka_meta.kafka.metadata.snapshot import PartitionLearned, SnapshotChanges
from pyspark_kafka_meta.model import Position
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.cluster_query import describe_cluster
from pyspark_kafka_meta.tables.lag import query_lag, read_checkpoint
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.cluster_state import live_leaders
from pyspark_kafka_meta.tools.exporter.server import Poller, PollTargets, serve
from pyspark_kafka_meta.tools.sources import FolderEvents
from tests.checkpoints import write_checkpoint
from tests.partitions import T0, T1
from tests.unit.written_events import made, write

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
    with closing(serve(lambda: poller.readings, "127.0.0.1", 0)) as server:
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
