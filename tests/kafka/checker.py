"""Checks what a stream read and what a task wrote against the acknowledged records, and refresh events against a cache.

Nothing acknowledged is lost, and both have each record once and in order within a partition. The checks of records that
a stream read have the names of Jepsen's Kafka checks (`jepsen.tests.kafka`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pyspark_kafka_meta.kafka.metadata.cache import MetadataCache
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.tables.rows import by_partition
from pyspark_kafka_meta.write.partition_queue import UNKNOWN_OFFSET, AcknowledgedRange, TaskOutput
from tests.unit.written_events import cache_rows

REFRESHES_PER_SECOND = 12
"""Limit of Metadata requests per cache: a round over all addresses and the requests between the first backoffs."""

VALUE_BYTES = 100
"""Size of the values that a task writes."""

EventRow = Mapping[str, Any]


class Record(NamedTuple):
    """An acknowledged record, or a row that a stream read.

    Attributes:
        offset: `UNKNOWN_OFFSET` of an acknowledged record that the broker already had (DUPLICATE_SEQUENCE_NUMBER).
    """

    log: TopicPartition
    offset: int
    value: str


class Row(NamedTuple):
    """A row that a task wrote, by the number of its attempt, and its number in the attempt."""

    attempt: int
    number: int

    def value(self) -> bytes:
        return f"{self.attempt}:{self.number}:".encode().ljust(VALUE_BYTES, b"x")

    @classmethod
    def parse(cls, value: bytes) -> Row:
        attempt, number, _ = value.split(b":")
        return cls(int(attempt), int(number))


Log = Sequence[Row]
"""The rows of a partition; a row's index is its offset, for the topics of these tests keep all records."""


# --- what a stream read -----------------------------------------------------------------------------------------------


def assert_all_read(acked: Sequence[Record], rows: Sequence[Record]) -> None:
    """Each acknowledged record was read once, in order and unchanged."""
    assert lost_writes(acked, rows) == []
    assert_order(acked, rows)


def assert_order(acked: Sequence[Record], rows: Sequence[Record]) -> None:
    assert duplicates(rows) == []
    assert inconsistent_offsets([*acked, *rows]) == []
    assert nonmonotonic(rows) == []
    assert skipped(rows) == []


def lost_writes(acked: Sequence[Record], rows: Sequence[Record]) -> list[Record]:
    """Acknowledged records that were not read, or were read at another offset."""
    anywhere = {row._replace(offset=UNKNOWN_OFFSET) for row in rows}
    return sorted(set(acked) - set(rows) - anywhere)


def duplicates(rows: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
    """Offsets that were read more than once."""
    return [place for place, count in Counter((row.log, row.offset) for row in rows).items() if count > 1]


def inconsistent_offsets(records: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
    """Offsets with two values: of an acknowledgement and a row, or of two rows."""
    known = (record for record in set(records) if record.offset != UNKNOWN_OFFSET)
    counts = Counter((record.log, record.offset) for record in known)
    return [place for place, count in counts.items() if count > 1]


def nonmonotonic(rows: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Neighbouring rows of a log, in the order of reading, whose offsets do not grow."""
    return [(row, following) for row, following in _neighbours(rows) if row.offset >= following.offset]


def skipped(rows: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Neighbouring rows of a log with missing offsets between them. The topics of these tests are neither compacted nor
    transactional, so every offset holds a record."""
    return [(row, following) for row, following in _neighbours(rows) if row.offset + 1 < following.offset]


def _neighbours(rows: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    by_log: dict[TopicPartition, list[Record]] = {}
    for row in rows:
        by_log.setdefault(row.log, []).append(row)
    for log_rows in by_log.values():
        yield from pairwise(log_rows)


# --- what a task wrote ------------------------------------------------------------------------------------------------


def written_rows(written: TaskOutput) -> int:
    return sum(offsets.records for offsets in written.values())


def anomalies(logs: Mapping[TopicPartition, Log], attempt: int, written: TaskOutput) -> list[str]:
    """What contradicts that this attempt wrote its rows once and in order, to the offsets that it reported."""
    found = []
    for partition in logs.keys() | written.keys():
        log = logs.get(partition, ())
        rows = [row for row in log if row.attempt == attempt]
        if rows != sorted(set(rows)):
            found.append(f"{partition} repeats or reorders rows")
        from_offset, until_offset, records = written.get(partition, AcknowledgedRange())
        if len(rows) < records:
            found.append(f"{partition} has {len(rows)} rows, and acknowledged {records}")
        elif from_offset != UNKNOWN_OFFSET:
            inside, is_dense = list(log[from_offset:until_offset]), until_offset - from_offset == records
            # If not, others have written rows between them, or offsets at an end are unknown.
            is_right = (
                inside == rows[:records] if is_dense else {row.attempt for row in inside[:1] + inside[-1:]} == {attempt}
            )
            if len(inside) < until_offset - from_offset or not is_right:
                found.append(f"{partition} has other rows at offsets {from_offset} to {until_offset - 1}")
    return found


def missing_rows(logs: Mapping[TopicPartition, Log], attempt: int, count: int) -> list[int]:
    """The rows of an attempt with `count` rows that are in no log."""
    held = {row.number for log in logs.values() for row in log if row.attempt == attempt}
    return sorted(set(range(count)) - held)


# --- refresh events ---------------------------------------------------------------------------------------------------


def assert_events_complete(events: Sequence[EventRow], cache: MetadataCache) -> None:
    """`events` contain every refresh and leader change of `cache`, and the request rate stayed below its limit."""
    sequence = range(2, len(events) + 2)  # event 1 is the birth of the cache
    assert [event["sequence"] for event in events] == list(sequence)
    assert unreported_changes(events, cache) == []
    assert busiest_second(events) <= REFRESHES_PER_SECOND


def unreported_changes(events: Sequence[EventRow], cache: MetadataCache) -> list[str]:
    """Leader changes without an event: the old leader of an event differs from the leader of the previous event, or the
    partitions, leaders and epochs of the cache differ from those of its events."""
    wrong = []
    leaders: dict[TopicPartition, int] = {}
    for event in events:
        for learned in event["partitions_learned"]:
            leaders[TopicPartition(learned["topic"], learned["partition"])] = learned["leader_id"]
        for change in event["leaders_changed"]:
            partition = TopicPartition(change["topic"], change["partition"])
            if leaders.get(partition) != change["old_leader_id"]:
                wrong.append(f"{partition}: {event}")
            leaders[partition] = change["new_leader_id"]
    open_events = [event for event in events if event["kind"] != "closed"]
    rows = by_partition(cache_rows(open_events, now_ms=0))
    reported = {partition: (row.leader_id, row.leader_epoch) for partition, row in rows.items()}
    known = {
        TopicPartition(topic, number): (partition.leader_id, partition.leader_epoch)
        for topic, view in cache.snapshot.topics.items()
        for number, partition in view.partitions.items()
    }
    different = dict(reported.items() ^ known.items())
    return wrong + [f"{log}: {known.get(log)} in the cache, {reported.get(log)} in its events" for log in different]


def busiest_second(events: Sequence[EventRow]) -> int:
    """Largest number of Metadata requests within a second."""
    times_ms = [event["time_ms"] for event in events if event["kind"] == "refresh"]
    return max((sum(begin <= time < begin + 1000 for time in times_ms) for begin in times_ms), default=0)


def leaders_learned(events: Iterable[EventRow], log: TopicPartition) -> list[tuple[str, int]]:
    """Reason and new leader of each leader change of `log`, in order."""
    return [
        (event["reason"], change["new_leader_id"])
        for event in events
        for change in event["leaders_changed"]
        if TopicPartition(change["topic"], change["partition"]) == log
        and change["new_leader_id"] != change["old_leader_id"]
    ]
