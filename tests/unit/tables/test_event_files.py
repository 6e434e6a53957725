"""Offsets of event files: nothing lost, nothing repeated, whatever writers delete meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.tables.event_files import (
    EventFile,
    EventFolder,
    FilesOffset,
    advance,
    between,
    count_deleted,
    latest,
)

A, B = "a" * 32, "b" * 32


def files(**numbers: range) -> list[EventFile]:
    """`files(a=range(3))`: files 0 to 2 of writer a."""
    return [EventFile(name * 32, number, f"/{name}/{number}") for name, span in numbers.items() for number in span]


def test_each_file_is_in_exactly_one_batch() -> None:
    there = files(a=range(5), b=range(2))
    offset, seen = FilesOffset({}), []
    while (end := advance(offset, there, 3)) != offset:
        seen.append(between(offset, end, there))
        offset = end

    assert [len(batch) for batch in seen] == [3, 3, 1]
    assert sorted(file for batch in seen for file in batch) == sorted(there)


def test_writers_take_turns_under_a_limit() -> None:
    assert advance(FilesOffset({A: 7}), files(a=range(9), b=range(9)), 2) == FilesOffset({A: 8, B: 1})


def test_nothing_new_leaves_the_offset_as_it_is() -> None:
    start = FilesOffset({A: 2, B: 1})

    assert advance(start, files(a=range(2)), None) is start
    assert advance(start, [], None) is start, "a folder that is away for a moment is no reason to forget"


def test_a_writer_whose_files_are_all_gone_is_forgotten_when_the_offset_moves() -> None:
    assert advance(FilesOffset({A: 2, B: 1}), files(a=range(3)), None) == FilesOffset({A: 3})


def test_files_deleted_before_they_were_read_are_counted_and_passed_over() -> None:
    start, there = FilesOffset({A: 2}), files(a=range(5, 7))
    end = advance(start, there, None)

    assert end == FilesOffset({A: 7})
    assert between(start, end, there) == there
    assert count_deleted(start, end, there) == 3


def test_what_a_new_writer_deleted_before_the_query_knew_it_is_no_loss() -> None:
    there = files(b=range(5, 7))
    end = advance(FilesOffset({}), there, None)

    assert count_deleted(FilesOffset({}), end, there) == 0


def test_batch_0_is_read_again_as_planned_though_the_initial_offset_moved_on() -> None:
    there = files(a=range(2))
    end = advance(FilesOffset(latest(there), initial=True), there, None)
    later = files(a=range(4))
    moved_on = FilesOffset(latest(later), initial=True)

    assert end == FilesOffset({A: 2}, start={A: 2}), "an empty batch that pins where the query began"
    assert between(moved_on, end, later) == []
    assert between(end, advance(end, later, None), later) == files(a=range(2, 4))


def test_equal_offsets_are_equal_texts() -> None:
    one, other = FilesOffset({A: 1, B: 2}, {B: 0, A: 0}), FilesOffset({B: 2, A: 1}, {A: 0, B: 0})
    text = json.dumps(one.as_dict())

    assert text == json.dumps(other.as_dict())
    assert FilesOffset.parse(json.loads(text)) == one


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"version": 2, "writers": {}},
        {"version": 1, "writers": {A: -1}},
        {"version": 1, "writers": []},
        {"version": 1, "topics": {}},
    ],
)
def test_an_offset_of_something_else_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="refresh-event files"):
        FilesOffset.parse(value)


def test_a_folder_gives_complete_event_files_at_any_depth(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "app-1").mkdir()
    (tmp_path / "app-1" / f"events-{A}-00000000.jsonl").write_bytes(b"one\ntwo\n")
    (tmp_path / f"events-{A}-00000001.jsonl").write_bytes(b"three\n")
    (tmp_path / f".events-{A}-00000002.jsonl.tmp").write_bytes(b"unfinished")
    (tmp_path / "events.jsonl").write_bytes(b"something else")
    folder = EventFolder(str(tmp_path))
    there = folder.files()
    (tmp_path / f"events-{A}-00000001.jsonl").unlink()

    assert [(file.writer_id, file.number) for file in there] == [(A, 0), (A, 1)]
    assert list(folder.lines(there)) == [b"one", b"two"]
    assert caplog.messages == ["files of refresh events that their writers deleted before they were read: 1"]


@pytest.mark.parametrize("uri", ["s3://key:hun/ter2@bucket/events", "fsspec+nonsense://key:hunter2@host/events"])
def test_a_uri_that_cannot_be_read_is_told_of_without_its_keys(uri: str) -> None:
    folder = EventFolder(uri)
    for attempt in (folder.files, lambda: list(folder.lines([EventFile(A, 0, "one")]))):
        with pytest.raises(OSError, match="folder of metricsPath: check its URI") as raised:
            attempt()
        assert "ter2" not in str(raised.value)
        assert raised.value.__suppress_context__


def test_a_uri_and_a_folder_still_to_come_are_fine(tmp_path: Path) -> None:
    assert EventFolder(f"file://{tmp_path}/later").files() == []
