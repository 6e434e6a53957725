"""Event files from the writer's end to the reader's, as Spark drives it, but without Spark."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import EventsOptions, Table
from pyspark_kafka_meta.tables.event_streams import EventFilesStreamReader
from pyspark_kafka_meta.tables.table_readers import batch_reader
from pyspark_kafka_meta.telemetry.folder_sink import FolderSink, LocalFolder
from tests.unit.written_events import made


class Writer:
    """Writes events 1, 2, 3 ... of one cache, each into a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.sink = FolderSink(LocalFolder(folder))
        self.sequence = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self.sequence += 1
            self.sink.write([made("c", self.sequence)])


def stream(folder: Path, **options: Any) -> EventFilesStreamReader:
    return EventFilesStreamReader(EventsOptions(path=str(folder), **options), {"sequence": "sequence"})


def sequences(reader: Any, tasks: Sequence[Any]) -> list[int]:
    return [row["sequence"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def test_a_stream_reads_what_came_since_the_offset_before(tmp_path: Path) -> None:
    writer, reader = Writer(tmp_path), stream(tmp_path)
    writer.write(2)
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    writer.write(3)
    second = reader.latestOffset(first, ReadMaxFiles(2))

    assert sequences(reader, reader.partitions(reader.initialOffset(), first)) == [1, 2]
    assert sequences(reader, reader.partitions(first, second)) == [3, 4]
    assert sequences(stream(tmp_path), stream(tmp_path).partitions(first, second)) == [3, 4], "and again when restarted"


def test_a_stream_from_latest_begins_with_the_next_file(tmp_path: Path) -> None:
    writer, reader = Writer(tmp_path), stream(tmp_path, starts_latest=True)
    writer.write(2)
    start = reader.initialOffset()
    writer.write(1)

    assert sequences(reader, reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))) == [3]


def test_a_stream_of_what_is_there_ends_with_it(tmp_path: Path) -> None:
    writer, reader = Writer(tmp_path), stream(tmp_path)
    writer.write(2)
    reader.prepareForTriggerAvailableNow()
    writer.write(2)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    assert sequences(reader, reader.partitions(reader.initialOffset(), end)) == [1, 2]
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_files_that_their_writer_deleted_are_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    gone = "files of refresh events that their writers deleted before they were read: 1"
    assert caplog.messages == [gone] * 2


def test_a_batch_reads_all_there_are_and_nothing_where_there_is_nothing(tmp_path: Path) -> None:
    Writer(tmp_path / "events").write(3)
    there = batch_reader(Table.REFRESH_EVENTS, EventsOptions(path=str(tmp_path)), {"sequence": "sequence"})
    nothing = batch_reader(Table.REFRESH_EVENTS, EventsOptions(path=str(tmp_path / "none")), {"sequence": "sequence"})

    assert sequences(there, there.partitions()) == [1, 2, 3]
    assert (nothing.partitions(), sequences(nothing, [None])) == ([], [])


def test_caches_are_folded_out_of_all_files_in_one_task(tmp_path: Path) -> None:
    Writer(tmp_path).write(3)
    columns = {name: name for name in ("cache_id", "generation_at_least", "events_missing")}
    reader = batch_reader(Table.CACHES, EventsOptions(path=str(tmp_path)), columns)
    (task,) = reader.partitions()
    batches: Any = reader.read(task)

    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"cache_id": "c", "generation_at_least": 3, "events_missing": 0}
    ]


def test_a_batch_cannot_begin_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="can't be latest for batch"):
        batch_reader(
            Table.REFRESH_EVENTS, EventsOptions(path=str(tmp_path), starts_latest=True), {"sequence": "sequence"}
        )


def test_batches_need_no_pyspark_that_has_read_limits() -> None:
    code = """
import sys
import pyspark.sql.datasource  # which imports them itself where they are
sys.modules["pyspark.sql.streaming.datasource"] = None  # as in pyspark 4.0 and 4.1
from pyspark_kafka_meta import DefaultSource
source = DefaultSource({"table": "caches", "metricsPath": "/no/such/folder"})
print(type(source.reader(source.schema())).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.returncode) == ("CachesReader\n", 0), done.stderr
