"""`kafkameta lag`: records and seconds between a checkpoint and the ends of the logs."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

import pyspark_kafka_meta as kafkameta
from pyspark_kafka_meta.model import Position
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.cli.main import app
from tests.checkpoints import write_checkpoint
from tests.partitions import T0, T1

AGE_S = 60
TERMINAL = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "120"}


class Scene:
    """Three records of topic t in partition 0, a minute old, of which the query has read one."""

    def __init__(self, cluster: MockCluster, folder: Path) -> None:
        self.cluster = cluster
        self.cluster.create_topic("t", partitions=2)
        self.produce(3)
        end = SourceOffset({T0: Position(1), T1: Position(0)}, {"t": None})
        self.checkpoint = write_checkpoint(folder / "checkpoint", {0: end}, 0)

    def produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap_servers})
        for _ in range(count):
            producer.produce("t", b"v", partition=0, timestamp=int((time.time() - AGE_S) * 1000))
        assert producer.flush(30) == 0

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> Any:
        servers = ["--bootstrap-servers", self.cluster.bootstrap_servers]
        return CliRunner().invoke(app, ["lag", self.checkpoint, *servers, *arguments], env=env)


@pytest.fixture
def scene(mock_cluster: MockCluster, tmp_path: Path) -> Scene:
    return Scene(mock_cluster, tmp_path)


def test_each_partition_is_a_line_of_json(scene: Scene) -> None:
    first, second = map(json.loads, scene.run().stdout.splitlines())

    assert AGE_S <= first.pop("seconds_behind") < AGE_S + 60
    common = {"query_id": "query-1", "batch_id": 0, "topic": "t"}
    assert first == {**common, "partition": 0, "next_offset": 1, "end_offset": 3, "records_behind": 2}
    idle = {"next_offset": 0, "end_offset": 0, "records_behind": 0, "seconds_behind": 0.0}
    assert second == {**common, "partition": 1, **idle}
    spark: Any = SimpleNamespace(createDataFrame=lambda rows, _: rows)
    servers = {"kafka.bootstrap.servers": scene.cluster.bootstrap_servers}
    rows: Any = kafkameta.lag(spark, scene.checkpoint, **servers)
    assert [(row[0], row[1], row[4]) for row in rows] == [("t", 0, 2), ("t", 1, 0)], "the function has them too"


def test_a_person_sees_a_table_and_the_total(scene: Scene) -> None:
    text = scene.run(env=TERMINAL).stdout

    assert "Query query-1, after micro-batch 0" in text
    assert "2 records behind, at most 6" in text
    rows = [line.split()[:4] for line in text.splitlines() if " t-" in line]
    assert rows == [["t-0", "1", "3", "2"], ["t-1", "0", "0", "0"]]
    scene.cluster.move_leader("t", 1, -1)
    some = " ".join(scene.run(env=TERMINAL).stdout.split())
    scene.cluster.set_topic_error("t", 3)  # UNKNOWN_TOPIC_OR_PARTITION
    none = " ".join(scene.run(env=TERMINAL).stdout.split())
    assert re.search(r": 2 records behind, at least \d+\.\d s, 1 partitions without an end", some)
    assert ": 0 records behind, 2 partitions without an end" in none


def test_large_backlogs_are_not_fetched(scene: Scene) -> None:
    """Of many partitions that lag, only the next record is needed."""
    producer = Producer({"bootstrap.servers": scene.cluster.bootstrap_servers, "linger.ms": 0, "batch.size": 20_000})
    for _ in range(200):
        producer.produce("t", bytes(10_000), partition=1)
    assert producer.flush(30) == 0
    lines = map(json.loads, scene.run().stdout.splitlines())

    assert [(line["records_behind"], line["seconds_behind"] is None) for line in lines] == [(2, False), (200, False)]
