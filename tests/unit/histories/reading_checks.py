"""The invariants of a finished `ReadingHistory`; its docstring names them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.kafka.metadata.refresh_events import EventKind, LossDetails
from pyspark_kafka_meta.model import TopicPartition
from tests.unit.histories.reading_history import ReadingHistory
from tests.unit.histories.stored_records import Record

WINDOW_S = 5.0
METADATA_REQUESTS, EMPTY_FETCHES, FAILED_FETCHES = 150, 60, 150
"""Of one client within the window."""


def violations(history: ReadingHistory) -> list[str]:
    read = [record for task in history.tasks for record in task]
    return [
        *history.violations,
        *_unordered(history),
        *_wrong(history, read),
        *_repeated(history, read),
        *_missing(history, read),
        *_false_alarms(history),
        *_requests(history),
    ]


def _unordered(history: ReadingHistory) -> Iterator[str]:
    truncated = _truncated(history)
    for task in history.tasks:
        by_partition: dict[TopicPartition, list[int]] = {}
        for record in task:
            by_partition.setdefault(record.partition, []).append(record.offset)
        for partition, offsets in by_partition.items():
            if partition not in truncated and any(last >= offset for last, offset in pairwise(offsets)):
                yield f"a task read {partition} in the order {offsets}"


def _wrong(history: ReadingHistory, read: list[Record]) -> Iterator[str]:
    if wrong := set(read) - set(history.stored.all()):
        yield f"no log had {_first(wrong)}"


def _repeated(history: ReadingHistory, read: list[Record]) -> Iterator[str]:
    truncated = _truncated(history)
    repeated = [record for record, count in Counter(read).items() if count > 1 and record.partition not in truncated]
    if repeated:
        yield f"repeated {_first(repeated)}"


def _truncated(history: ReadingHistory) -> set[TopicPartition]:
    """Their offsets are read again, with other records."""
    return {partition for loss, partition in history.of_logs.lost if loss == "truncate"}


def _missing(history: ReadingHistory, read: list[Record]) -> Iterator[str]:
    """Of a query that did not fail."""
    if any(isinstance(error, DataLossError) for error in history.failures):
        return
    spans = [
        (TopicPartition(str(e.cause_topic), e.cause_partition or 0), lost.lost_from_offset, lost.lost_until_offset)
        for e in history.events
        if isinstance(lost := e.details, LossDetails)
    ]

    def is_reported(record: Record) -> bool:
        return any(
            record.partition == partition and first <= record.offset and (until is None or record.offset < until)
            for partition, first, until in spans
        )

    missing = [record for record in set(history.stored.current()) - set(read) if not is_reported(record)]
    if missing:
        yield f"missing without a report {_first(missing)}"


def _false_alarms(history: ReadingHistory) -> Iterator[str]:
    if history.of_logs.lost:
        return
    events = [event for event in history.events if event.kind is EventKind.DATA_LOSS]
    if events:
        yield f"nothing was lost, but there are events: {events[:2]}"
    for error in history.failures:
        if isinstance(error, DataLossError):
            yield f"nothing was lost: {error}"


def _requests(history: ReadingHistory) -> Iterator[str]:
    for client in history.network.clients:
        for name, times, bound in (
            ("Metadata requests", client.metadata_sent, METADATA_REQUESTS),
            ("Fetches without records", client.empty_fetches, EMPTY_FETCHES),
            ("Fetches with errors", client.failed_fetches, FAILED_FETCHES),
        ):
            most = most_within(WINDOW_S, times)
            if most > bound:
                yield f"a client sent {most} {name} in {WINDOW_S} s"


def most_within(window_s: float, times: Sequence[float]) -> int:
    """The most of these times in a window."""
    ends = [bisect_left(times, at + window_s) for at in times]
    return max((end - begin for begin, end in enumerate(ends)), default=0)


def _first(records: Iterable[Record]) -> str:
    found = sorted(records, key=lambda record: (record.partition, record.offset))
    return f"{len(found)} records: {', '.join(map(str, found[:5]))}"
