"""`kafkameta move-checkpoint` between two clusters of mock brokers: what is proved, refused and written."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from pyspark_kafka_meta.model import Position, TopicGeneration
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset, ranges
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.cli.main import app
from tests.checkpoints import SETTINGS, parsed, write_checkpoint
from tests.partitions import T0, T1

SYNCS = "mm2-offset-syncs.dr.internal"
FIRST_MS = 1_700_000_000_000


def produce(
    cluster: MockCluster, topic: str, numbers: Sequence[int], partition: int = 0, secret: str = "secret"
) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "batch.num.messages": 4})
    for number in numbers:
        header = ("h", bytes([number % 7]))
        producer.produce(topic, f"{secret}{number}", partition=partition, timestamp=FIRST_MS + number, headers=[header])
    assert producer.flush(30) == 0


class Clusters(NamedTuple):
    """Topic t has the same records at the same offsets in both; its copy mm.t has them two offsets later, and u is
    another topic, t in the wrong cluster."""

    first: MockCluster
    other: MockCluster
    wrong: MockCluster


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    with MockCluster(1) as first, MockCluster(1) as other, MockCluster(1) as wrong:
        for cluster in (first, other, wrong):
            cluster.create_topic("t", partitions=2, replication=1)
        for cluster in (first, other):
            produce(cluster, "t", range(40))
            produce(cluster, "t", range(3), partition=1)
        produce(wrong, "t", range(40), secret="other")
        other.create_topic("mm.t", partitions=2, replication=1)
        produce(other, "mm.t", [900, 901, *range(30)])
        other.delete_records("mm.t", 0, 2)
        produce(other, "mm.t", range(3), partition=1)
        first.create_topic(SYNCS, partitions=1, replication=1)
        syncs = Producer({"bootstrap.servers": first.bootstrap_servers})
        for partition, upstream, downstream in ((0, 90, 90), (0, 0, 0), (0, 2, 4), (0, 11, 13), (0, 28, 30), (1, 1, 1)):
            key = struct.pack(">h1si", 1, b"t", partition)
            syncs.produce(SYNCS, struct.pack(">qq", upstream, downstream), key=key)
        syncs.produce(SYNCS, b"no sync", key=b"t")
        assert syncs.flush(30) == 0
        yield Clusters(first, other, wrong)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Micro-batch 8 has read to offsets 20 and 3, and micro-batch 9 is planned to offsets 25 and 3."""
    ids: Mapping[str, UUID | None] = {"t": None}
    ends = {7: 10, 8: 20, 9: 25}
    offsets: dict[int, SourceOffset | str] = {
        batch: SourceOffset({T0: Position(end, 7, 0, 9), T1: Position(3, 7)}, ids) for batch, end in ends.items()
    }
    return Path(write_checkpoint(tmp_path / "old", offsets, finished=8))


def move(checkpoint: Path, to: MockCluster, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["move-checkpoint", str(checkpoint), "--to", to.bootstrap_servers, *arguments])


def rows(done: Any) -> list[list[Any]]:
    names = ("partition", "position", "offset", "new_topic", "new_offset", "result")
    return [[row[name] for name in names] for row in map(json.loads, done.stdout.splitlines()[:4])]


def written(folder: Path, batch: int) -> SourceOffset:
    return parsed((folder / "offsets" / str(batch)).read_text().splitlines()[2])


def commit(checkpoint: Path) -> Path:
    (checkpoint / "commits" / "9").touch()
    return checkpoint


def test_equal_offsets_are_written_without_the_first_one(clusters: Clusters, checkpoint: Path, tmp_path: Path) -> None:
    first = ["--bootstrap-servers", clusters.first.bootstrap_servers]
    shown = move(checkpoint, clusters.other, *first)
    assert rows(shown) == [
        [0, "next", 20, "t", 20, "proved"],
        [1, "next", 3, "t", 3, "proved"],
        [0, "end of batch 9", 25, "t", 25, "proved"],
        [1, "end of batch 9", 3, "t", 3, "proved"],
    ]
    assert (shown.exit_code, shown.stderr) == (0, "kafkameta: nothing is written without --write FOLDER\n")
    assert [folder.name for folder in tmp_path.iterdir()] == ["old"]

    done = move(checkpoint, clusters.other, *first, "--write", str(tmp_path / "new"))
    assert done.stdout.splitlines()[-1] == f"wrote {tmp_path}/new"
    assert sorted(file.name for file in (tmp_path / "new" / "offsets").iterdir()) == ["8", "9"], (
        "of 7 no offset is there"
    )
    before, planned = (written(tmp_path / "new", batch) for batch in (8, 9))
    assert before == SourceOffset({T0: Position(20), T1: Position(3)}, {"t": None})
    assert [(one.partition, one.from_offset, one.until_offset) for one in ranges(before, planned)] == [(T0, 20, 25)]
    assert (tmp_path / "new" / "metadata").read_text() == (checkpoint / "metadata").read_text()
    assert sorted(file.name for file in (checkpoint / "offsets").iterdir()) == ["7", "8", "9"]


def test_offset_syncs_lead_to_exact_offsets_elsewhere(clusters: Clusters, checkpoint: Path, tmp_path: Path) -> None:
    """The nearest syncs are at 11, so that MirrorMaker's translation would be 14 for both."""
    by = ["--by", "offset-syncs", "--offset-syncs-topic", SYNCS, "--topic", "*=mm.*"]
    arguments = ["--bootstrap-servers", clusters.first.bootstrap_servers, *by, "--write", str(tmp_path / "new")]
    done = move(checkpoint, clusters.other, *arguments)
    assert [(row[2], row[4]) for row in rows(done)] == [(20, 22), (3, 3), (25, 27), (3, 3)], done.stderr
    before, planned = (written(tmp_path / "new", batch) for batch in (8, 9))
    assert planned.generations == {"mm.t": TopicGeneration(1, None)}, "later records of changes stay greater"
    assert [(str(one.partition), one.from_offset, one.until_offset) for one in ranges(before, planned)] == [
        ("mm.t-0", 22, 27)
    ]
    elsewhere = move(checkpoint, clusters.other, *arguments[:5], "nowhere")
    assert "neither cluster has the offset-syncs topic nowhere" in elsewhere.stderr


def test_a_topic_that_is_gone_keeps_its_generation(clusters: Clusters, tmp_path: Path) -> None:
    """It may return."""
    known = TopicGeneration(2, UUID(int=1), 3)
    end = SourceOffset({T0: Position(25)}, {"t": None}, generations={"gone": known})
    old = Path(write_checkpoint(tmp_path / "old", {0: end}, 0))
    given = ["--bootstrap-servers", clusters.first.bootstrap_servers, "--write", str(tmp_path / "new")]
    by = ["--by", "offset-syncs", "--offset-syncs-topic", SYNCS, "--topic", "*=mm.*"]
    done = move(old, clusters.other, *given, *by)
    assert done.exit_code == 0, done.stderr
    assert written(tmp_path / "new", 0).generations == {"mm.t": TopicGeneration(1, None), "mm.gone": known}


@pytest.mark.parametrize(("finished", "next_offset"), [(True, 25), (False, 5)])
def test_checkpoint_of_spark_moves_too(clusters: Clusters, tmp_path: Path, finished: bool, next_offset: int) -> None:
    """Of a partition that the planned micro-batch began, the log's start is where it begins."""
    lines = {
        8: f'v1\n{SETTINGS}\n{{"logOffset":4}}\n{{"t":{{"0":5}}}}',
        9: f'v1\n{SETTINGS}\n{{"logOffset":5}}\n{{"t":{{"0":25,"1":3}}}}',
    }
    old = Path(write_checkpoint(tmp_path / "old", lines, 9 if finished else 8))
    first = ["--bootstrap-servers", clusters.first.bootstrap_servers]
    done = move(old, clusters.other, *first, "--write", str(tmp_path / "new"))
    assert done.exit_code == 0, done.stderr
    moved = (tmp_path / "new" / "offsets" / "9").read_text().splitlines()
    assert moved[2] == '{"logOffset":5}'
    last = parsed(moved[3])
    before = parsed((tmp_path / "new" / "offsets" / "8").read_text().splitlines()[3])
    assert last.positions == {T0: Position(25), T1: Position(3)}
    assert before.positions[T0] == Position(next_offset)
    assert last.start == ({} if finished else {T1: Position(0)})


@pytest.mark.parametrize(
    ("end", "cluster", "arguments", "texts"),
    [
        (25, "wrong", [], ["t-0 at offset 25: the records differ", "t-1 at offset 3: the log of the other cluster"]),
        (25, "other", ["--topic", "t=mm.t"], ["t-0 at offset 25: the records differ", "are at offset 27 there"]),
        (
            32,
            "other",
            ["--topic", "t=mm.t", "--by", "offset-syncs", "--offset-syncs-topic", SYNCS],
            ["have the record"],
        ),
        (25, "other", ["--topic", "v=mm.t"], ["--topic names v, which the query does not read"]),
        (25, "other", ["--topic", "t=u"], ["topic u does not exist"]),
        (25, "other", ["--by", "offset-syncs"], ["--by offset-syncs and --offset-syncs-topic need each other"]),
        (99, "other", [], ["the log of the first cluster ends at offset 40: it does not have offset 99"]),
    ],
)
def test_another_or_a_shorter_log_is_refused_and_no_value_is_shown(
    clusters: Clusters, tmp_path: Path, end: int, cluster: str, arguments: list[str], texts: list[str]
) -> None:
    old = Path(
        write_checkpoint(tmp_path / "old", {0: SourceOffset({T0: Position(end), T1: Position(3)}, {"t": None})}, 0)
    )
    given = ["--bootstrap-servers", clusters.first.bootstrap_servers, *arguments]
    done = move(old, getattr(clusters, cluster), *given, "--unproved", "--write", str(tmp_path / "new"))
    assert done.exit_code == 1
    assert all(text in done.stderr for text in texts), done.stderr
    assert "secret" not in done.output and "wrote" not in done.output
    assert not (tmp_path / "new").exists()


def test_a_mirror_that_ends_at_the_position_is_unknown(clusters: Clusters, tmp_path: Path) -> None:
    old = Path(write_checkpoint(tmp_path / "old", {0: SourceOffset({T0: Position(30)}, {"t": None})}, 0))
    by = ["--by", "offset-syncs", "--offset-syncs-topic", SYNCS]
    given = ["--bootstrap-servers", clusters.first.bootstrap_servers, "--topic", "t=mm.t", *by]
    done = move(old, clusters.other, *given)
    assert rows(done) == [[0, "next", 30, "mm.t", 32, "unknown"]]
    assert "does not have the record after it yet; equal: 8 records before, 0 after" in done.stderr
    assert "Wait until the other cluster has all records" in done.stderr


def test_a_sync_of_records_that_the_mirror_has_removed_leads_to_its_start(clusters: Clusters, tmp_path: Path) -> None:
    old = Path(write_checkpoint(tmp_path / "old", {0: SourceOffset({T0: Position(1)}, {"t": None})}, 0))
    by = ["--by", "offset-syncs", "--offset-syncs-topic", SYNCS]
    given = ["--bootstrap-servers", clusters.first.bootstrap_servers, "--topic", "t=mm.t", *by]
    done = move(old, clusters.other, *given)
    assert rows(done) == [[0, "next", 1, "mm.t", 3, "proved"]], done.stderr


def test_a_checkpoint_elsewhere_is_refused(clusters: Clusters) -> None:
    done = move(Path("s3://bucket/checkpoint"), clusters.other)
    assert "is no folder of this machine: correct the path, or copy it here first" in done.stderr


def test_a_topic_that_the_query_has_not_read_is_refused(clusters: Clusters, tmp_path: Path) -> None:
    old = Path(write_checkpoint(tmp_path / "old", {0: SourceOffset({T0: Position(5)}, {"t": UUID(int=1)})}, 0))
    done = move(old, clusters.other, "--bootstrap-servers", clusters.first.bootstrap_servers)
    assert "topic t in the first cluster is not the one that the query has read" in done.stderr


def test_without_the_first_offsets_are_kept_if_told(clusters: Clusters, checkpoint: Path, tmp_path: Path) -> None:
    refused = move(checkpoint, clusters.other, "--write", str(tmp_path / "new"))
    assert [row[5] for row in rows(refused)] == ["unknown"] * 4
    assert "not compared: before it offset 19 (timestamp 1700000000019" in refused.stderr
    assert "add --unproved to go on with what is not known" in refused.stderr
    done = move(checkpoint, clusters.other, "--write", str(tmp_path / "new"), "--unproved")
    assert written(tmp_path / "new", 8).positions == {T0: Position(20), T1: Position(3)}, done.stderr
    by_time = move(checkpoint, clusters.other, "--by", "timestamps")
    assert "--by timestamps needs --bootstrap-servers" in by_time.stderr
