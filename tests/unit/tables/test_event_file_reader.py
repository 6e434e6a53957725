"""Offsets of event files lose and repeat no file, even if writers delete files."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.tables.event_file_reader import (
    EventFile,
    EventFolder,
    FilesOffset,
    advance,
    by_latest_writer,
    count_deleted,
    files_between,
    latest_offset,
    next_numbers,
)

A, B = "a" * 32, "b" * 32
NOW_MS = 0  # no file is old
DAY_MS = 24 * 3600 * 1000


def written(writer_id: str, number: int, days: float) -> EventFile:
    """A file that was modified after this many days."""
    return EventFile(writer_id, number, f"/{writer_id}/{number}", round(days * DAY_MS))


def files(**numbers: range) -> list[EventFile]:
    """`files(a=range(3))`: files 0 to 2 of writer a."""
    return [
        EventFile(name * 32, number, f"/{name}/{number}") for name, numbered in numbers.items() for number in numbered
    ]


def test_each_file_is_in_exactly_one_batch() -> None:
    existing = files(a=range(5), b=range(2))
    offset, batches = FilesOffset({}), []
    while (end := advance(offset, existing, 3, NOW_MS)) != offset:
        batches.append(files_between(offset, end, existing))
        offset = end

    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert sorted(file for batch in batches for file in batch) == sorted(existing)


def test_writers_take_turns_under_a_limit() -> None:
    assert advance(FilesOffset({A: 7}), files(a=range(9), b=range(9)), 2, NOW_MS) == FilesOffset({A: 8, B: 1})


def test_the_cache_with_the_newest_file_comes_first_and_its_files_in_order() -> None:
    """A writer that failed has a successor, whose id begins as its own."""
    successor = A[:16] + "0" * 16
    old = [written(A, number, days=number) for number in range(3)] + [written(successor, 0, days=9)]
    newest_first = by_latest_writer([*files(c=range(1)), written(B, 0, days=5), *reversed(old)])

    assert [(file.writer_id, file.number) for file in newest_first] == [
        ("c" * 32, 0),
        (successor, 0),
        *((A, number) for number in range(3)),
        (B, 0),
    ]


def test_offset_does_not_move_without_new_files() -> None:
    start = FilesOffset({A: 2, B: 1})

    assert advance(start, files(a=range(2)), None, NOW_MS) is start
    assert advance(start, [], None, NOW_MS) is start, "a missing folder drops no writer"


def test_writer_without_files_is_dropped_when_the_offset_moves() -> None:
    assert advance(FilesOffset({A: 2, B: 1}), files(a=range(3)), None, NOW_MS) == FilesOffset({A: 3})


def test_files_deleted_before_the_read_are_counted_and_skipped() -> None:
    start, existing = FilesOffset({A: 2}), files(a=range(5, 7))
    end = advance(start, existing, None, NOW_MS)

    assert end == FilesOffset({A: 7})
    assert files_between(start, end, existing) == existing
    assert count_deleted(start, end, existing) == 3


def test_deleted_files_of_an_unknown_writer_are_not_counted() -> None:
    existing = files(b=range(5, 7))
    end = advance(FilesOffset({}), existing, None, NOW_MS)

    assert count_deleted(FilesOffset({}), end, existing) == 0


def test_retried_batch_0_reads_the_same_files_even_if_the_initial_offset_changed() -> None:
    existing = files(a=range(2))
    end = advance(FilesOffset(next_numbers(existing), initial=True), existing, None, NOW_MS)
    later = files(a=range(4))
    later_start = FilesOffset(next_numbers(later), initial=True)

    assert end == FilesOffset({A: 2}, start=FilesOffset({A: 2})), "an empty batch that stores the start of the query"
    assert files_between(later_start, end, later) == []
    assert files_between(end, advance(end, later, None, NOW_MS), later) == files(a=range(2, 4))


def test_equal_offsets_are_equal_texts() -> None:
    offset = FilesOffset({A: 1, B: 2}, 5, FilesOffset({B: 0, A: 0}, 4))
    equal = FilesOffset({B: 2, A: 1}, 5, FilesOffset({A: 0, B: 0}, 4))
    text = json.dumps(offset.as_dict())

    assert text == json.dumps(equal.as_dict())
    assert FilesOffset.parse(json.loads(text)) == offset


def test_offset_forgets_a_writer_whose_files_are_old_and_reads_its_next_file_once() -> None:
    old = [written(A, 0, days=1), written(A, 1, days=2)]
    first = advance(FilesOffset({}), old, None, 2 * DAY_MS)
    existing = [*old, written(B, 0, days=3.5)]
    second = advance(first, existing, None, 4 * DAY_MS)
    assert (first.writers, second.writers) == ({A: 2}, {B: 1})
    assert advance(second, existing, None, 9 * DAY_MS) is second

    existing.append(written(A, 2, days=5))
    third = advance(second, existing, None, 6 * DAY_MS)
    assert third.writers == {A: 3}
    assert files_between(second, third, existing) == existing[-1:]
    assert count_deleted(second, third, existing) == 0


def test_files_that_a_limit_left_are_read_however_old_they_are() -> None:
    existing = [*(written(A, number, days=1) for number in range(3)), written(B, 0, days=9)]
    offset, batches = FilesOffset({}), []
    while (end := advance(offset, existing, 1, 10 * DAY_MS)) != offset:
        batches += files_between(offset, end, existing)
        offset = end

    assert sorted(batches) == existing
    assert offset.writers.keys() <= {A, B}


def test_file_from_the_future_makes_no_other_file_old() -> None:
    start = advance(FilesOffset({}), [written(A, 0, days=400)], None, 10 * DAY_MS)
    late = [written(A, 0, days=400), written(B, 0, days=9.5)]

    assert files_between(start, advance(start, late, None, 10 * DAY_MS), late) == late[1:]


def test_latest_offset_names_writers_of_the_last_day_alone() -> None:
    existing = [written(A, 6, days=8.9), written(B, 3, days=10)]

    assert latest_offset(existing, 11 * DAY_MS) == FilesOffset({B: 4}, 9 * DAY_MS, initial=True)
    assert not any(map(latest_offset(existing, 11 * DAY_MS).is_new, existing))


@pytest.mark.parametrize("seed", range(20))
def test_each_file_is_read_once_in_random_histories(seed: int) -> None:
    """Writers begin, write, pause for days and lose their oldest files. The query takes limited batches, and repeats
    batches after a restart."""
    rng = random.Random(seed)
    numbers: dict[str, int] = {}
    existing: list[EventFile] = []
    read: list[EventFile] = []
    offset, days = FilesOffset({}, initial=True), 1.0
    for _ in range(60):
        days += rng.choice((0.0, 0.001, 0.3, 2.0))
        for writer_id in [*rng.sample(sorted(numbers), min(len(numbers), 2)), f"{rng.getrandbits(128):032x}"]:
            numbers[writer_id] = numbers.get(writer_id, 0) + 1
            existing.append(written(writer_id, numbers[writer_id] - 1, days))
        end = advance(offset, existing, rng.choice((1, 5, None)), round(days * DAY_MS))
        parsed = FilesOffset.parse(json.loads(json.dumps(end.as_dict())))
        assert parsed == end
        batch = files_between(offset, end, existing)
        assert files_between(offset, parsed, [*existing, written(A, 0, days)]) == batch, "a repeated batch is the same"
        recent = [file for file in existing if file.modified_ms > end.read_until_ms]
        assert end.writers.keys() <= {file.writer_id for file in recent + batch}
        read += batch
        offset = end
        gone = set(rng.sample(read, min(len(read), 2)))
        existing = [file for file in existing if file not in gone or rng.random() < 0.5]
    read += files_between(offset, advance(offset, existing, None, round(days * DAY_MS)), existing)

    assert len(read) == len(set(read))
    assert len(read) == sum(numbers.values())


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"version": 2, "writers": {}},
        {"version": 3, "writers": {}, "read_until_ms": 0},
        {"version": 2, "writers": {}, "read_until_ms": -1},
        {"version": 2, "writers": {}, "read_until_ms": 0, "start": {A: 1}},
        {"version": 1, "writers": {}, "read_until_ms": 0},
        {"version": 2, "writers": {A: -1}, "read_until_ms": 0},
        {"version": 2, "writers": [], "read_until_ms": 0},
        {"version": 2, "topics": {}, "read_until_ms": 0},
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
        with pytest.raises(OSError, match="folder of eventsPath: check its URI") as raised:
            attempt()
        assert "ter2" not in str(raised.value)
        assert raised.value.__suppress_context__


def test_missing_folder_has_no_files(tmp_path: Path) -> None:
    assert EventFolder(f"file://{tmp_path}/later").files() == []
