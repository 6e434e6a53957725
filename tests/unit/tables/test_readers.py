"""Readers of event files, called as Spark calls them, but without Spark."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.events.sinks import FolderSink, LocalFolder
from pyspark_kafka_meta.options import EventTableOptions, Table
from pyspark_kafka_meta.tables.event_file_reader import EventFolder
from pyspark_kafka_meta.tables.readers import EventFilesStreamReader, batch_reader
from tests.unit.written_events import made


class Writer:
    """Writes events 1, 2, 3 ... of one cache, each to its own file."""

    def __init__(self, folder: Path) -> None:
        self.sink = FolderSink(LocalFolder(folder))
        self.sequence = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self.sequence += 1
            self.sink.write([made("c", self.sequence)])


def stream(folder: Path, **options: Any) -> EventFilesStreamReader:
    return EventFilesStreamReader(EventTableOptions(path=str(folder), **options), {"sequence": "sequence"})


def sequences(reader: Any, tasks: Sequence[Any]) -> list[int]:
    return [row["sequence"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def test_stream_reads_the_files_since_the_last_offset(tmp_path: Path) -> None:
    writer, reader = Writer(tmp_path), stream(tmp_path)
    writer.write(2)
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    writer.write(3)
    second = reader.latestOffset(first, ReadMaxFiles(2))

    assert sequences(reader, reader.partitions(reader.initialOffset(), first)) == [1, 2]
    assert sequences(reader, reader.partitions(first, second)) == [3, 4]
    assert sequences(stream(tmp_path), stream(tmp_path).partitions(first, second)) == [3, 4], "also after a restart"


def test_stream_from_latest_starts_with_the_next_file(tmp_path: Path) -> None:
    writer, reader = Writer(tmp_path), stream(tmp_path, starts_latest=True)
    writer.write(2)
    start = reader.initialOffset()
    writer.write(1)

    assert sequences(reader, reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))) == [3]


def test_available_now_ends_with_the_existing_files(tmp_path: Path) -> None:
    writer, reader = Writer(tmp_path), stream(tmp_path)
    writer.write(2)
    reader.prepareForTriggerAvailableNow()
    writer.write(2)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    assert sequences(reader, reader.partitions(reader.initialOffset(), end)) == [1, 2]
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_deleted_files_are_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer, reader = Writer(tmp_path), stream(tmp_path)
    writer.write(1)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    writer.write(3)
    second, third, fourth = sorted(tmp_path.glob("*.jsonl"))[1:]
    second.unlink()
    end = reader.latestOffset(start, ReadAllAvailable())
    tasks = reader.partitions(start, end)
    third.unlink()

    with caplog.at_level(logging.WARNING):
        assert sequences(reader, tasks) == [4]
    assert fourth.exists()
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["1", "1"]


def test_plan_lists_the_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listings, get_listing = [], EventFolder._list
    monkeypatch.setattr(EventFolder, "_list", lambda folder: listings.append(folder) or get_listing(folder))
    writer, reader = Writer(tmp_path), stream(tmp_path)
    writer.write(3)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    sorted(tmp_path.glob("*.jsonl"))[1].unlink()  # leaves a gap, but before the start
    writer.write(2)
    listings.clear()
    end = reader.latestOffset(start, ReadAllAvailable())

    assert sequences(reader, reader.partitions(start, end)) == [4, 5]
    assert len(listings) == 1
    assert sequences(reader, reader.partitions(start, end)) == [4, 5], "after a restart too"
    assert len(pickle.dumps(reader)) < 2_000


def test_batch_reads_all_files_or_none(tmp_path: Path) -> None:
    Writer(tmp_path / "events").write(3)
    reader = batch_reader(Table.REFRESH_EVENTS, EventTableOptions(path=str(tmp_path)), {"sequence": "sequence"})
    empty = batch_reader(Table.REFRESH_EVENTS, EventTableOptions(path=str(tmp_path / "none")), {"sequence": "sequence"})

    assert sequences(reader, reader.partitions()) == [1, 2, 3]
    assert (empty.partitions(), sequences(empty, [None])) == ([], [])


def test_caches_table_is_computed_in_one_task(tmp_path: Path) -> None:
    Writer(tmp_path).write(3)
    columns = {name: name for name in ("cache_id", "generation_at_least", "events_missing")}
    reader = batch_reader(Table.CACHES, EventTableOptions(path=str(tmp_path)), columns)
    (task,) = reader.partitions()
    batches: Any = reader.read(task)

    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"cache_id": "c", "generation_at_least": 3, "events_missing": 0}
    ]


def test_batch_cannot_start_at_latest(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="can't be latest for batch"):
        batch_reader(
            Table.REFRESH_EVENTS, EventTableOptions(path=str(tmp_path), starts_latest=True), {"sequence": "sequence"}
        )
