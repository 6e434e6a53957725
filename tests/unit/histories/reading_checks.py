"""The invariants of a finished `ReadingHistory`; its docstring names them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import filterfalse, pairwise

from pyspark_kafka_meta.client_facts import RecordsLost
from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.events.event import Event
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.tables.caches_from_events import CacheContents
from pyspark_kafka_meta.tables.parsed_events import parse_events
from tests.unit.histories.reading_history import ReadingHistory
from tests.unit.histories.stored_records import Record

WINDOW_S = 5.0
METADATA_REQUESTS, EMPTY_FETCHES, FAILED_FETCHES = 150, 60, 150
"""Of one client within the window; empty Fetches for each partition."""


def violations(history: ReadingHistory) -> list[str]:
    read = [record for task in history.tasks for record in task]
    return [
        *history.violations,
        *_unordered(history),
        *_wrong(history, read),
        *_repeated(history, read),
        *_mixed(history),
        *_missing(history, read),
        *_false_alarms(history),
        *_requests(history),
        *_caches(history),
    ]


def _unordered(history: ReadingHistory) -> Iterator[str]:
    truncated = _truncated(history)
    for task in history.tasks:
        by_partition: dict[TopicPartition, list[int]] = {}
        for record in filterfalse(history.doubtful.__contains__, task):
            by_partition.setdefault(record.partition, []).append(record.offset)
        for partition, offsets in by_partition.items():
            if partition not in truncated and any(last >= offset for last, offset in pairwise(offsets)):
                yield f"a task read {partition} in the order {offsets}"


def _wrong(history: ReadingHistory, read: list[Record]) -> Iterator[str]:
    if wrong := set(read) - set(history.stored.all()) - history.doubtful:
        yield f"no log had {_first(wrong)}"
    if history.isolation_levels == {True} and (aborted := set(read) & _aborted(history)):
        yield f"aborted {_first(aborted)}"


def _aborted(history: ReadingHistory) -> set[Record]:
    return {
        record
        for partition in history.faults.partitions()
        for record in history.stored.of(history.cluster.aborted_batches(partition))
    }


def _repeated(history: ReadingHistory, read: list[Record]) -> Iterator[str]:
    truncated = _truncated(history)
    repeated = [record for record, count in Counter(read).items() if count > 1 and record.partition not in truncated]
    if repeated:
        yield f"repeated {_first(repeated)}"


def _mixed(history: ReadingHistory) -> Iterator[str]:
    gone = [lost[1:] for lost in history.of_logs.lost if lost.kind == "compact"]
    # As Kafka's consumer, a reader that skips what retention deleted knows no epoch there, and may miss a truncation.
    retained = {lost.partition for lost in history.of_logs.lost if lost.kind == "retain"}
    for task, told in zip(history.tasks, history.told, strict=True):
        for partition in {record.partition for record in task} - retained:
            read = [record for record in task if record.partition == partition]
            if not history.stored.has_log(read):
                spans = [*gone, *_losses(history.events[:told])]
                left = [record for record in read if not _is_in(record, spans)]
                if not history.stored.has_log(left):
                    yield f"a task mixed logs: {_first(left)}"


def _is_in(record: Record, spans: Iterable[tuple[TopicPartition, int, float]]) -> bool:
    return any(record.partition == partition and first <= record.offset < until for partition, first, until in spans)


def _truncated(history: ReadingHistory) -> set[TopicPartition]:
    """Their offsets are read again, with other records."""
    return {lost.partition for lost in history.of_logs.lost if lost.kind == "truncate"}


def _missing(history: ReadingHistory, read: list[Record]) -> Iterator[str]:
    """Of a query that did not fail."""
    if any(isinstance(error, DataLossError) for error in history.failures):
        return
    due = set(history.stored.current())
    if True in history.isolation_levels:
        due -= _aborted(history)
    reported = list(_losses(history.events))
    missing = [record for record in due - set(read) if not _is_in(record, reported)]
    if missing:
        yield f"missing without a report {_first(missing)}"


def _losses(events: Iterable[Event]) -> Iterator[tuple[TopicPartition, int, float]]:
    """The partition, first and end offset in each event."""
    for event in events:
        if isinstance(lost := event.details, RecordsLost):
            until = math.inf if lost.lost_until_offset is None else lost.lost_until_offset
            yield TopicPartition(str(event.cause_topic), event.cause_partition or 0), lost.lost_from_offset, until


def _false_alarms(history: ReadingHistory) -> Iterator[str]:
    lost = history.of_logs.lost
    for partition, first, until in _losses(history.events):
        if partition.topic not in history.unnoticed and not any(
            (each.partition == partition and each.from_offset < until and first < each.until_offset)
            or (each.kind == "recreate" and each.partition == partition and until == math.inf)
            for each in lost
        ):
            yield f"offsets {first} to {until} of {partition} were not lost, but there is an event"
    for error in history.failures:
        text = str(error)
        if isinstance(error, DataLossError) and not any(
            str(each.partition) in text or (each.kind == "recreate" and each.partition.topic in text) for each in lost
        ):
            yield f"nothing was lost: {error}"


def _requests(history: ReadingHistory) -> Iterator[str]:
    partitions = max(len(history.faults.partitions()), 1)
    for client in history.network.clients:
        for name, times, bound in (
            ("Metadata requests", client.metadata_sent, METADATA_REQUESTS),
            ("Fetches without records", client.empty_fetches, EMPTY_FETCHES * partitions),
            ("Fetches with errors", client.failed_fetches, FAILED_FETCHES),
        ):
            most = most_within(WINDOW_S, times)
            if most > bound:
                yield f"a client sent {most} {name} in {WINDOW_S} s"


def _caches(history: ReadingHistory) -> Iterator[str]:
    """Events tell what a cache knows."""
    by_cache: dict[str, list[bytes]] = {}
    for event in history.events:
        by_cache.setdefault(event.cache_id, []).append(event.to_json().encode())
    for client in history.clients:
        told, snapshot = CacheContents(), client.cache.snapshot
        for parsed in parse_events(by_cache.get(client.cache_id, [])):
            told.apply(parsed)
        leaders = {
            TopicPartition(topic, number): (known.leader_id, known.leader_epoch)
            for topic, view in snapshot.topics.items()
            for number, known in view.partitions.items()
        }
        if told.leaders != leaders or told.events_missing():
            yield f"a cache knows {leaders}; its events, {told.events_missing()} missing, tell {dict(told.leaders)}"


def most_within(window_s: float, times: Sequence[float]) -> int:
    """The most of these times in a window."""
    ends = [bisect_left(times, at + window_s) for at in times]
    return max((end - begin for begin, end in enumerate(ends)), default=0)


def _first(records: Iterable[Record]) -> str:
    found = sorted(records, key=lambda record: (record.partition, record.offset))
    return f"{len(found)} records: {', '.join(map(str, found[:5]))}"
