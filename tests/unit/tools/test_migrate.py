"""Checkpoints of Spark's own Kafka source, made by hand: what `kafkameta migrate-checkpoint` makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.options import EARLIEST_OFFSET
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset, ranges
from pyspark_kafka_meta.tools.checkpoints import starting_offsets, write_checkpoint
from pyspark_kafka_meta.tools.cli.main import app

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'


def make(folder: Path, batches: dict[int, list[str]], committed: int, initial: str | None = None) -> Path:
    """A checkpoint with these lines of sources by batch, committed up to one; `initial` is source 0's."""
    for name in ("offsets", "commits", "sources/0"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"1f0c"}')
    for batch, lines in batches.items():
        (folder / "offsets" / str(batch)).write_text("\n".join(["v1", SETTINGS, *lines]))
        (folder / "offsets" / f".{batch}.crc").write_bytes(b"checksum")
        if batch <= committed:
            (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    if initial is not None:
        (folder / "sources" / "0" / "0").write_text(f"\0v1\n{initial}")
    return folder


def logged(checkpoint: Path, batch: int, source: int = 0) -> SourceOffset:
    return SourceOffset.parse(json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2 + source]))


@pytest.mark.parametrize(
    ("batches", "committed", "expected", "pending"),
    [
        ({8: ['{"t":{"0":5}}'], 9: ['{"t":{"1":3,"0":7}}']}, 9, ['{"t": {"0": 7, "1": 3}}'], None),
        ({8: ['{"t":{"0":5}}'], 9: ['{"t":{"0":7}}']}, 8, ['{"t": {"0": 5}}'], 9),
        ({9: ['{"t":{"0":5}}'], 10: ['{"t":{"0":7}}']}, 10, ['{"t": {"0": 7}}'], None),
        ({0: ['{"t":{"0":5}}']}, -1, ['{"t": {"0": 2}}'], 0),
        ({3: ['{"log":4}', '{"t":{"0":5}}', "-", '{"u":{"0":6}}']}, 3, ['{"t": {"0": 5}}', '{"u": {"0": 6}}'], None),
    ],
    ids=["committed", "planned and not committed", "two digits", "batch 0 not committed", "several sources"],
)
def test_reading_goes_on_after_the_last_committed_batch(
    batches: dict[int, list[str]], committed: int, expected: list[str], pending: int | None, tmp_path: Path
) -> None:
    checkpoint = make(tmp_path / "old", batches, committed, initial='{"t":{"0":2}}')
    assert starting_offsets(checkpoint) == (expected, pending)


def test_the_copy_plans_a_batch_that_was_not_committed_as_it_was(tmp_path: Path) -> None:
    lines = {7: ['{"t":{"0":4}}'], 8: ['{"t":{"0":5}}'], 9: ['{"t":{"0":7,"1":3}}']}
    checkpoint = make(tmp_path / "old", lines, committed=8)
    write_checkpoint(checkpoint, tmp_path / "new")
    planned = ranges(logged(tmp_path / "new", 8), logged(tmp_path / "new", 9))
    assert [(str(one.partition), one.from_offset, one.until_offset) for one in planned] == [
        ("t-0", 5, 7),
        ("t-1", EARLIEST_OFFSET, 3),
    ], "the planner asks where the log of a new partition starts"
    checkpoint = make(tmp_path / "begun", {0: ['{"t":{"0":5}}']}, committed=-1, initial='{"t":{"0":2}}')
    write_checkpoint(checkpoint, tmp_path / "first")
    planned = ranges(SourceOffset(positions={}, topic_ids={}), logged(tmp_path / "first", 0))
    assert [(one.from_offset, one.until_offset) for one in planned] == [(2, 5)], "where the query began"


def test_the_copy_keeps_everything_else_and_the_checkpoint_stays_as_it_was(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "old", {3: ['{"logOffset":4}', '{"t":{"0":5}}']}, committed=3)
    before = {file: file.read_bytes() for file in checkpoint.rglob("*") if file.is_file()}
    write_checkpoint(checkpoint, tmp_path / "new")
    assert {file: file.read_bytes() for file in checkpoint.rglob("*") if file.is_file()} == before
    assert (tmp_path / "new" / "metadata").read_text() == '{"id":"1f0c"}'
    assert (tmp_path / "new" / "commits" / "3").exists()
    assert (tmp_path / "new" / "offsets" / "3").read_text().splitlines()[:3] == ["v1", SETTINGS, '{"logOffset":4}']
    assert not (tmp_path / "new" / "offsets" / ".3.crc").exists(), "a checksum of what is no more"


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ({}, "has no offsets: name the checkpointLocation"),
        ({2: ['{"logOffset":4}']}, "is Spark's own Kafka source: nothing to migrate"),
        ({2: ['{"topics":{},"version":1}']}, "is Spark's own Kafka source: nothing to migrate"),
    ],
)
def test_checkpoints_of_other_sources_are_refused(batches: dict[int, list[str]], text: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=text):
        starting_offsets(make(tmp_path / "old", batches, committed=2))
    for path in ("typo", "s3://bucket/old"):
        with pytest.raises(CheckpointError, match="is no folder of this machine: correct the path, or copy it here"):
            starting_offsets(Path(path))


def test_another_format_a_missing_batch_and_a_target_that_exists_are_refused(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "old", {2: ['{"t":{"0":5}}']}, committed=2)
    with pytest.raises(CheckpointError, match="exists: name a new folder"):
        write_checkpoint(checkpoint, tmp_path)
    with pytest.raises(CheckpointError, match="File name too long"):
        write_checkpoint(checkpoint, tmp_path / ("x" * 300))
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"old cannot be copied to .*file/new \(.*(Not a directory|File exists)"):
        write_checkpoint(checkpoint, tmp_path / "file" / "new")
    with pytest.raises(CheckpointError, match="in the checkpoint itself"):
        write_checkpoint(checkpoint, checkpoint / "new")
    with pytest.raises(CheckpointError, match="is no folder of this machine: name one, and copy it from there"):
        write_checkpoint(checkpoint, Path("s3://bucket/new"))
    (checkpoint / "commits" / "2").unlink()
    with pytest.raises(CheckpointError, match="offsets/1 is missing"):
        starting_offsets(checkpoint)
    (checkpoint / "offsets" / "2").write_text("v2\n{}\n{}")
    (checkpoint / "commits" / "2").touch()
    with pytest.raises(CheckpointError, match="does not have format v1"):
        starting_offsets(checkpoint)


def test_the_command_prints_offsets_alone_and_says_what_is_read_again(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "old", {8: ['{"t":{"0":5}}'], 9: ['{"t":{"0":7}}']}, committed=8)
    printed = CliRunner().invoke(app, ["migrate-checkpoint", str(checkpoint)])
    assert printed.stdout == '{"t": {"0": 5}}\n'
    assert "batch 9 was planned but not committed" in printed.stderr
    refused = CliRunner().invoke(app, ["migrate-checkpoint", str(tmp_path)])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("kafkameta: ")


def test_the_command_says_where_it_wrote_and_no_offsets_that_might_be_set_again(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "old", {8: ['{"t":{"0":5}}'], 9: ['{"t":{"0":7}}']}, committed=8)
    done = CliRunner().invoke(app, ["migrate-checkpoint", str(checkpoint), "--write", str(tmp_path / "new")])

    assert (done.exit_code, done.stdout, done.stderr) == (0, f"wrote {tmp_path}/new\n", "")
    assert logged(tmp_path / "new", 9).positions == {TopicPartition("t", 0): Position(7)}


@pytest.mark.parametrize("damage", ["no text", "no file", "a link to nowhere"])
def test_what_files_do_not_give_is_one_line_and_no_checkpoint_is_made(damage: str, tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "old", {2: ['{"t":{"0":5}}']}, committed=2)
    logged = checkpoint / "offsets" / "2"
    if damage == "a link to nowhere":
        (checkpoint / "state").symlink_to(tmp_path / "nowhere")
    else:
        logged.unlink()
        logged.mkdir() if damage == "no file" else logged.write_bytes(b"v1\n\xff\n{}")
    refused = CliRunner().invoke(app, ["migrate-checkpoint", str(checkpoint), "--write", str(tmp_path / "new")])

    assert (refused.exit_code, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
    assert f"{checkpoint} cannot be {'copied to' if damage == 'a link to nowhere' else 'read'}" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_an_interrupted_copy_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = make(tmp_path / "old", {2: ['{"t":{"0":5}}']}, committed=2)

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(checkpoint, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
