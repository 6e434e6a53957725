"""Offsets of event files lose and repeat no file, even if writers delete files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.tables.event_file_reader import (
    EventFile,
    EventFolder,
    FilesOffset,
    advance,
    count_deleted,
    files_between,
    next_numbers,
)

A, B = "a" * 32, "b" * 32


def files(**numbers: range) -> list[EventFile]:
    """`files(a=range(3))`: files 0 to 2 of writer a."""
    return [
        EventFile(name * 32, number, f"/{name}/{number}") for name, numbered in numbers.items() for number in numbered
    ]


def test_each_file_is_in_exactly_one_batch() -> None:
    existing = files(a=range(5), b=range(2))
    offset, batches = FilesOffset({}), []
    while (end := advance(offset, existing, 3)) != offset:
        batches.append(files_between(offset, end, existing))
        offset = end

    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert sorted(file for batch in batches for file in batch) == sorted(existing)


def test_writers_take_turns_under_a_limit() -> None:
    assert advance(FilesOffset({A: 7}), files(a=range(9), b=range(9)), 2) == FilesOffset({A: 8, B: 1})


def test_offset_does_not_move_without_new_files() -> None:
    start = FilesOffset({A: 2, B: 1})

    assert advance(start, files(a=range(2)), None) is start
    assert advance(start, [], None) is start, "a missing folder drops no writer"


def test_writer_without_files_is_dropped_when_the_offset_moves() -> None:
    assert advance(FilesOffset({A: 2, B: 1}), files(a=range(3)), None) == FilesOffset({A: 3})


def test_files_deleted_before_the_read_are_counted_and_skipped() -> None:
    start, existing = FilesOffset({A: 2}), files(a=range(5, 7))
    end = advance(start, existing, None)

    assert end == FilesOffset({A: 7})
    assert files_between(start, end, existing) == existing
    assert count_deleted(start, end, existing) == 3


def test_deleted_files_of_an_unknown_writer_are_not_counted() -> None:
    existing = files(b=range(5, 7))
    end = advance(FilesOffset({}), existing, None)

    assert count_deleted(FilesOffset({}), end, existing) == 0


def test_retried_batch_0_reads_the_same_files_even_if_the_initial_offset_changed() -> None:
    existing = files(a=range(2))
    end = advance(FilesOffset(next_numbers(existing), initial=True), existing, None)
    later = files(a=range(4))
    later_start = FilesOffset(next_numbers(later), initial=True)

    assert end == FilesOffset({A: 2}, start={A: 2}), "an empty batch that stores the start of the query"
    assert files_between(later_start, end, later) == []
    assert files_between(end, advance(end, later, None), later) == files(a=range(2, 4))


def test_equal_offsets_are_equal_texts() -> None:
    offset, equal = FilesOffset({A: 1, B: 2}, {B: 0, A: 0}), FilesOffset({B: 2, A: 1}, {A: 0, B: 0})
    text = json.dumps(offset.as_dict())

    assert text == json.dumps(equal.as_dict())
    assert FilesOffset.parse(json.loads(text)) == offset


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
def test_other_offsets_are_refused(value: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="refresh-event files"):
        FilesOffset.parse(value)


def test_folder_lists_complete_event_files_at_any_depth(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "app-1").mkdir()
    (tmp_path / "app-1" / f"events-{A}-00000000.jsonl").write_bytes(b"one\ntwo\n")
    (tmp_path / f"events-{A}-00000001.jsonl").write_bytes(b"three\n")
    (tmp_path / f".events-{A}-00000002.jsonl.tmp").write_bytes(b"unfinished")
    (tmp_path / "events.jsonl").write_bytes(b"something else")
    folder = EventFolder(str(tmp_path))
    existing = folder.files()
    (tmp_path / f"events-{A}-00000001.jsonl").unlink()

    assert [(file.writer_id, file.number) for file in existing] == [(A, 0), (A, 1)]
    assert list(folder.lines(existing)) == [b"one", b"two"]
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["1"]


@pytest.mark.parametrize("uri", ["s3://key:hun/ter2@bucket/events", "fsspec+nonsense://key:hunter2@host/events"])
def test_error_text_contains_no_key_of_the_uri(uri: str) -> None:
    folder = EventFolder(uri)
    for attempt in (folder.files, lambda: list(folder.lines([EventFile(A, 0, "one")]))):
        with pytest.raises(OSError, match="folder of metricsPath: check its URI") as raised:
            attempt()
        assert "ter2" not in str(raised.value)
        assert raised.value.__suppress_context__


def test_missing_folder_has_no_files(tmp_path: Path) -> None:
    assert EventFolder(f"file://{tmp_path}/later").files() == []
