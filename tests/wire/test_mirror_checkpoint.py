"""A query's checkpoint for a mirror of its cluster with equal offsets: what `kafkameta migrate-checkpoint` checks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset, ranges
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.checkpoints import write_for_mirror
from pyspark_kafka_meta.tools.cli.main import app

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
