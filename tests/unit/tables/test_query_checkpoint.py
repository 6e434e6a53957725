"""The progress of a query, by its checkpoint."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.model import Position, Positions
from pyspark_kafka_meta.options import EARLIEST_OFFSET
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.lag import read_checkpoint
from tests.checkpoints import SETTINGS, text, write_checkpoint
from tests.partitions import T0, T1, U0

IDS = {"t": UUID(int=1), "u": None}
FIRST = SourceOffset({T0: Position(5, 2)}, {"t": IDS["t"]}, start={T0: Position(2, 1)})
SECOND = SourceOffset({T0: Position(9, 2), T1: Position(7)}, {"t": IDS["t"]}, start={T1: Position(1)})
MIGRATED = SourceOffset(SECOND.positions, SECOND.topic_ids, start={T1: Position(EARLIEST_OFFSET)})


@pytest.mark.parametrize(
    ("finished", "second", "positions"),
    [
        pytest.param(None, None, {T0: Position(2, 1)}, id="the first batch runs, from its start"),
        pytest.param(0, None, {T0: Position(5, 2)}, id="finished"),
        pytest.param(0, SECOND, {T0: Position(5, 2), T1: Position(1)}, id="a batch runs, with a new partition"),
        pytest.param(0, MIGRATED, {T0: Position(5, 2)}, id="the start of a new partition is unknown"),
        pytest.param(1, SECOND, SECOND.positions, id="both finished"),
    ],
)
def test_a_batch_counts_once_it_is_finished(
    finished: int | None, second: SourceOffset | None, positions: Positions, tmp_path: Path
) -> None:
    batches = {0: FIRST} if second is None else {0: FIRST, 1: second}
    progress = read_checkpoint(write_checkpoint(tmp_path / "c", batches, finished))

    assert (progress.query_id, progress.batch_id) == ("query-1", finished)
    assert [offset.positions for offset in progress.offsets] == [positions]
    assert [offset.topic_ids for offset in progress.offsets] == [{"t": IDS["t"]}]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_each_source_of_kafkameta_has_an_offset(version: str, tmp_path: Path) -> None:
    other = SourceOffset({U0: Position(3)}, {"u": None})
    lines = [text(FIRST), '{"t":{"0":23}}', "-", text(other)]
    named = [f"{number}:{line}" for number, line in enumerate(lines)]
    content = "\n".join([version, SETTINGS, *(lines if version == "v1" else named)])
    progress = read_checkpoint(write_checkpoint(tmp_path / "c", {0: content}, 0))

    assert [offset.positions for offset in progress.offsets] == [FIRST.positions, other.positions]


def test_the_batch_with_the_largest_number_is_the_last(tmp_path: Path) -> None:
    batches = {number: SourceOffset({T0: Position(number)}, {"t": None}) for number in range(8, 12)}
    location = write_checkpoint(tmp_path / "c", batches, 10)
    (tmp_path / "c" / "offsets" / ".11.crc").write_text("")
    progress = read_checkpoint(location)

    assert (progress.batch_id, progress.offsets[0].positions) == (10, {T0: Position(10)})


def test_a_location_may_be_a_uri(tmp_path: Path) -> None:
    location = write_checkpoint(tmp_path / "c", {0: FIRST}, 0)

    assert read_checkpoint(f"file://{location}/") == read_checkpoint(location)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_that_cannot_be_read_is_an_error(scheme: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"the checkpoint cannot be read .*: correct its location"):
        read_checkpoint(f"{scheme}{tmp_path}/typo")


@pytest.mark.parametrize(
    ("content", "metadata", "problem"),
    [
        ("v1\n{}\n-", '{"id":"q"}', "no offsets of kafkameta yet"),
        (f"v3\n{{}}\n{text(FIRST)}", '{"id":"q"}', "offsets of v3: this release reads v1 and v2"),
        (f"v1\n{{}}\n{text(FIRST)}", "{}", "no query id"),
        (f"v1\n{{}}\n{text(FIRST)}", "[]", "no query id"),
        (f"v1\n{{}}\n{text(FIRST)}", "", "no query id"),
    ],
)
def test_folder_of_no_kafkameta_query_is_an_error(content: str, metadata: str, problem: str, tmp_path: Path) -> None:
    location = write_checkpoint(tmp_path / "c", {0: content}, 0)
    (tmp_path / "c" / "metadata").write_text(metadata)
    with pytest.raises(CheckpointError, match=problem):
        read_checkpoint(location)


def test_a_query_that_has_not_begun_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no offsets of kafkameta yet"):
        read_checkpoint(write_checkpoint(tmp_path / "c", {}, None))
