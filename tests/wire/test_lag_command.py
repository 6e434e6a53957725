"""`kafkameta lag`: records and seconds between a checkpoint and the ends of the logs; and what `kafkameta
migrate-checkpoint` checks of a checkpoint for a mirror of its cluster with equal offsets."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

import pyspark_kafka_meta as kafkameta
from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset, ranges
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.checkpoints import write_for_mirror
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


PARTITION = TopicPartition("t", 0)


@pytest.fixture(scope="module")
def mirror() -> Iterator[MockCluster]:
    """Its t-0 has offsets 2 to 9."""
    with MockCluster(1) as cluster:
        cluster.create_topic("t", partitions=1, replication=1)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0})
        for number in range(10):
            producer.produce("t", str(number), partition=0)
            producer.flush()
        cluster.delete_records("t", 0, 2)
        yield cluster


def make(folder: Path, finished: int, planned: int, topic: str = "t") -> Path:
    """The checkpoint of a query with these next offsets of partition 0; its second batch is not committed."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"1f0c"}')
    (folder / "commits" / "0").touch()
    partition = TopicPartition(topic, 0)
    for batch, offset in enumerate((finished, planned)):
        end = SourceOffset({partition: Position(offset, 7, 0, 9)}, {topic: UUID(int=1)}, {partition: Position(0, 7)})
        end = end if batch == 0 else SourceOffset(end.positions, end.topic_ids)
        (folder / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", json.dumps(end.as_dict()), "-"]))
    return folder


def test_the_copy_keeps_offsets_and_batches_and_forgets_the_first_cluster(mirror: MockCluster, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": mirror.bootstrap_servers}
    lag = write_for_mirror(make(tmp_path / "old", 4, 6), tmp_path / "new", options)

    assert [(row.next_offset, row.end_offset, row.seconds_behind is not None) for row in lag.rows] == [(4, 10, True)]
    lines = [(tmp_path / "new" / "offsets" / batch).read_text().splitlines() for batch in "01"]
    first, second = (SourceOffset.parse(json.loads(line[2])) for line in lines)
    assert second == SourceOffset({PARTITION: Position(6)}, {"t": None})
    assert first.start == {PARTITION: Position(0)}
    assert [(part.from_offset, part.until_offset) for part in ranges(first, second)] == [(4, 6)]
    assert [line[3] for line in lines] == ["-", "-"]


@pytest.mark.parametrize(
    ("finished", "planned", "topic", "text"),
    [
        (4, 11, "t", "the log of t-0 ends at offset 10 there, before offset 11: the query would lose"),
        (1, 6, "t", "the log of t-0 begins at offset 2 there, after offset 1: the query would lose"),
        (4, 6, "u", "u-0 has no log there"),
    ],
)
def test_a_log_that_lacks_what_the_query_has_read_or_reads_next_is_refused(
    mirror: MockCluster, finished: int, planned: int, topic: str, text: str, tmp_path: Path
) -> None:
    checkpoint = make(tmp_path / "old", finished, planned, topic)
    with pytest.raises(CheckpointError, match=text):
        write_for_mirror(checkpoint, tmp_path / "new", {"kafka.bootstrap.servers": mirror.bootstrap_servers})
    assert not (tmp_path / "new").exists()


def test_the_command_prints_the_lag_and_needs_a_folder(mirror: MockCluster, tmp_path: Path) -> None:
    command = ["migrate-checkpoint", str(make(tmp_path / "old", 4, 6)), "--bootstrap-servers", mirror.bootstrap_servers]
    refused = CliRunner().invoke(app, command)
    assert "A checkpoint for another cluster needs --write FOLDER" in refused.stderr
    done = CliRunner().invoke(app, [*command, "--write", str(tmp_path / "new")])
    first, last = done.stdout.splitlines()
    assert (json.loads(first)["records_behind"], last) == (6, f"wrote {tmp_path}/new")
