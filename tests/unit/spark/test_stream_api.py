"""`TrackedStartReader` in each order in which pyspark 4.0 and 4.1 call a stream reader, and the classes they lack."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import MagicMock, call

import pytest
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.model import Position
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import RecentOffsets, SourceOffset
from pyspark_kafka_meta.spark.stream_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
    TrackedStartReader,
)
from pyspark_kafka_meta.spark.stream_reader import KafkaMetaStreamReader
from tests.partitions import T0

Offset = dict[str, Any]
INITIAL: Offset = {"end": 0, "initial": 1}


class Reader(DataSourceStreamReader):
    """A reader for pyspark 4.2 of a log with `available` records. Each call of `initialOffset` returns another offset,
    as if the log grew."""

    def __init__(self, available: int = 10, limit: ReadLimit | None = None) -> None:
        self.available, self.limit = available, limit or ReadAllAvailable()
        self.initial_offsets = 0
        self.starts: list[tuple[Offset, ReadLimit]] = []
        self.planned: list[tuple[Offset, Offset]] = []
        self.is_stopped = False

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return self.limit

    def initialOffset(self) -> Offset:  # noqa: N802
        self.initial_offsets += 1
        return {"end": 0, "initial": self.initial_offsets}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        self.starts.append((start, limit))
        return {"end": self.available}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self.planned.append((start, end))
        return [InputPartition((start["end"], end["end"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        yield (partition.value,)

    def stop(self) -> None:
        self.is_stopped = True


def as_spark(offset: Offset) -> Offset:
    """The offset as Spark gives it back, after JSON."""
    return dict(json.loads(json.dumps(offset)))


def at(end: int) -> Offset:
    return {"end": end}


def starts(reader: Reader) -> list[Offset]:
    return [start for start, _ in reader.starts]


Call = int | tuple[Offset, Offset] | None
"""`latestOffset` with so many records available; `partitions`, or the announcement of an offset; `initialOffset`."""
CALLS: dict[str, tuple[list[Call], list[Offset]]] = {
    "a new query starts at its initial offset, then at its end": ([10, None, (INITIAL, at(10)), 15], [INITIAL, at(10)]),
    "an idle query without partitions to plan keeps its start": ([10, 10, 10, 12], [INITIAL, at(10), at(10), at(10)]),
    "a restarted query starts at the announced offset": ([(at(7), at(7)), 10], [at(7)]),
    "an unfinished batch is replayed and the next starts at its end": ([(at(7), at(7)), (at(3), at(7)), 10], [at(7)]),
    "an unfinished first batch is replayed from the initial one": (
        [(at(7), at(7)), None, (INITIAL, at(7)), 10],
        [at(7)],
    ),
    # By `foreachBatch` that keeps its DataFrame.
    "a batch that is read again later moves no start": ([10, 15, (INITIAL, at(10)), 15], [INITIAL, at(10), at(15)]),
}


@pytest.mark.parametrize(("calls", "expected"), CALLS.values(), ids=CALLS)
def test_starts_follow_from_the_calls_of_spark(calls: list[Call], expected: list[Offset]) -> None:
    reader = Reader()
    tracked = TrackedStartReader(reader, {})
    planned = []
    for each in calls:
        if each is None:
            assert as_spark(tracked.initialOffset()) == INITIAL
        elif isinstance(each, int):
            reader.available = each
            assert as_spark(tracked.latestOffset()) == at(each)
        else:
            start, end = each
            planned += [each] * (start != end)
            tasks = [(start["end"], end["end"])] if start != end else []
            assert [task.value for task in tracked.partitions(start, end)] == tasks, "nothing for an announcement"

    assert (starts(reader), reader.planned) == (expected, planned)
    assert reader.initial_offsets <= (INITIAL in expected or None in calls)


def test_a_micro_batch_that_failed_after_planning_is_planned_again_by_the_next_reader() -> None:
    failed, restarted = Reader(available=10), Reader(available=15)

    tracked = TrackedStartReader(failed, {})
    end = as_spark(tracked.latestOffset())
    tracked.partitions(as_spark(tracked.initialOffset()), end)
    tracked = TrackedStartReader(restarted, {})
    tracked.partitions(end, end)
    tracked.partitions(as_spark(tracked.initialOffset()), end)
    tracked.latestOffset()

    assert restarted.planned == failed.planned == [(INITIAL, end)]
    assert starts(restarted) == [end]


def test_a_source_without_new_records_keeps_its_start_beside_another() -> None:
    """Spark plans partitions only for the sources whose offset changed, also in a replay."""
    readers = Reader(available=7), Reader(available=4)
    busy, idle = (TrackedStartReader(reader, {}) for reader in readers)

    for tracked, end in ((busy, {"end": 5}), (idle, {"end": 4})):
        tracked.partitions(end, end)
    busy.partitions({"end": 2}, {"end": 5})
    for _ in range(2):
        for tracked in (busy, idle):
            tracked.latestOffset()

    assert [starts(reader) for reader in readers] == [[{"end": 5}, {"end": 7}], [{"end": 4}, {"end": 4}]]
    assert [reader.planned for reader in readers] == [[({"end": 2}, {"end": 5})], []]


@pytest.mark.parametrize("announced", [7, 10])
def test_available_now_that_plans_before_the_announcement_is_refused(announced: int) -> None:
    """By `spark.sql.streaming.triggerAvailableNowWrapper.enabled`. A rate limit can make both offsets equal: the query
    would end, although more records follow."""
    tracked = TrackedStartReader(Reader(available=10), {})

    tracked.latestOffset()
    with pytest.raises(OptionError, match=r"^set spark\.sql\.streaming\.triggerAvailableNowWrapper\.enabled to false"):
        tracked.partitions({"end": announced}, {"end": announced})


@pytest.mark.parametrize(
    ("limit", "option"),
    [
        (ReadMaxRows(5), "maxOffsetsPerTrigger"),
        (ReadMaxBytes(5), "maxBytesPerTrigger"),
        (ReadMaxFiles(5), "maxFilesPerTrigger"),
    ],
)
def test_limit_of_the_options_is_told_once(limit: ReadLimit, option: str, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(limit=limit)
    tracked = TrackedStartReader(reader, {option.lower(): "5"})

    tracked.partitions({"end": 7}, {"end": 7})
    assert caplog.messages == []
    for _ in range(2):
        tracked.latestOffset()

    assert [given for _, given in reader.starts] == [limit, limit]
    (warning,) = caplog.messages
    assert "ends after one micro-batch, which " + option + " limits: raise the limit" in warning


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMinRows(5), ReadMaxFiles(1000)])
def test_limits_without_effect_are_not_warned_of(limit: ReadLimit, caplog: pytest.LogCaptureFixture) -> None:
    """The first micro-batch does not wait for minOffsetsPerTrigger."""
    tracked = TrackedStartReader(Reader(limit=limit), {"minOffsetsPerTrigger": "5"})
    tracked.latestOffset()
    assert caplog.messages == []


def test_a_pickled_reader_reads_and_the_planning_reader_is_stopped() -> None:
    reader = Reader()
    tracked = TrackedStartReader(reader, {})

    tasks = tracked.partitions(INITIAL, {"end": 3})
    assert [list(pickle.loads(pickle.dumps(tracked)).read(task)) for task in tasks] == [[((0, 3),)]]
    tracked.stop()
    assert reader.is_stopped


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "9"}, ReadMaxRows(9)),
        ({"minOffsetsPerTrigger": "3", "maxBytesPerTrigger": "9"}, ReadMaxBytes(9)),
        ({"maxOffsetsPerTrigger": "3", "maxBytesPerTrigger": "9"}, ReadMaxRows(3)),
    ],
)
def test_the_default_limit_says_whether_options_limit_micro_batches(options: dict[str, str], limit: ReadLimit) -> None:
    given = SourceOptions.parse({"kafka.bootstrap.servers": "localhost:1", "subscribe": "t", **options})
    assert KafkaMetaStreamReader(given.for_stream(), {"value": "value"}).getDefaultReadLimit() == limit


READ, MORE = (SourceOffset({T0: Position(offset, 0)}, {"t": None}) for offset in (5, 9))


@pytest.mark.parametrize(
    ("is_available_now", "end", "commits"),
    [(False, READ, [call(READ)]), (True, MORE, [call(READ)]), (True, READ, [call(READ), call(READ, is_last=True)])],
)
def test_a_group_gets_the_end_of_each_micro_batch_and_surely_of_the_last_of_a_run(
    is_available_now: bool, end: SourceOffset, commits: list[Any]
) -> None:
    options = SourceOptions.parse({"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}).for_stream()
    reader, planner = KafkaMetaStreamReader(options, {"value": "value"}), MagicMock(recent=RecentOffsets())
    planner.available_now.return_value, planner.next_offset.return_value = MORE.positions, end
    reader._opened = planner
    if is_available_now:
        reader.prepareForTriggerAvailableNow()
    reader.latestOffset(READ.as_dict(), ReadAllAvailable())

    assert planner.commit_to_group.call_args_list == commits
    planner.next_offset.assert_called_once_with(READ, MORE.positions if is_available_now else None, False)


OLDER_RELEASE = """
import sys
from pyspark.sql import datasource
from pyspark.sql.types import StringType, StructField, StructType
sys.modules["pyspark.sql.streaming.datasource"] = None  # as in pyspark 4.0 and 4.1
vars(datasource).pop("DataSourceStreamArrowWriter", None)  # as in pyspark 4.0
from pyspark_kafka_meta import DefaultSource

topic = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
events = {"table": "refresh_events", "eventsPath": "/no/such/folder"}
events_topic = {"table": "refresh_events", "eventsTopic": "t", "kafka.bootstrap.servers": "localhost:1"}
for options in (topic, events, events_topic):
    source = DefaultSource(options)
    source.reader(source.schema())
    stream = source.streamReader(source.schema())
    print(type(stream).__name__, type(stream._reader).__name__)
sink = DefaultSource({"kafka.bootstrap.servers": "localhost:1"})
rows = StructType([StructField("topic", StringType()), StructField("value", StringType())])
writer = sink.streamWriter(rows, overwrite=False)
print(isinstance(writer, datasource.DataSourceStreamWriter), isinstance(writer, datasource.DataSourceArrowWriter))
"""


def test_streams_need_no_class_that_pyspark_4_0_lacks() -> None:
    process = subprocess.run([sys.executable, "-c", OLDER_RELEASE], capture_output=True, text=True, timeout=200)

    assert process.stdout.splitlines() == [
        "TrackedStartReader KafkaMetaStreamReader",
        "TrackedStartReader EventFilesStreamReader",
        "TrackedStartReader EventTopicStreamReader",
        "True True",
    ], process.stderr
