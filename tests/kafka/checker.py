"""What must hold of records that were acknowledged and rows that were read, and of the refresh events meanwhile.

The predicates about records bear the names of Jepsen's for Kafka (`jepsen.tests.kafka`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pyspark_kafka_meta.metadata.cache import MetadataCache
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.tables.caches_from_events import fold
from pyspark_kafka_meta.tables.table_rows import by_partition

REFRESHES_PER_SECOND = 12
"""No cache may send more Metadata requests: a round over all addresses, and those between the first, short pauses."""

UNKNOWN_OFFSET = -1
"""Of an acknowledged record: the broker had it already, and did not tell where (DUPLICATE_SEQUENCE_NUMBER)."""

Event = Mapping[str, Any]


class Record(NamedTuple):
    log: TopicPartition
    offset: int
    value: str


def assert_all_read(acked: Sequence[Record], rows: Sequence[Record]) -> None:
    """Each acknowledged record came once, in order and as it was written."""
    assert lost_writes(acked, rows) == []
    assert_order(acked, rows)


def assert_order(acked: Sequence[Record], rows: Sequence[Record]) -> None:
    assert duplicates(rows) == []
    assert inconsistent_offsets([*acked, *rows]) == []
    assert nonmonotonic(rows) == []
    assert skipped(rows) == []


def assert_tells_all(events: Sequence[Event], cache: MetadataCache) -> None:
    """No refresh and no leader change of `cache` is missing among its `events`, and it asked no more than it may."""
    told = range(2, len(events) + 2)  # the first is the birth of the cache
    assert [event["sequence"] for event in events] == list(told)
    assert unreported_changes(events, cache) == []
    assert busiest_second(events) <= REFRESHES_PER_SECOND


def lost_writes(acked: Sequence[Record], rows: Sequence[Record]) -> list[Record]:
    """Acknowledged records that were not read, or at another offset."""
    anywhere = {row._replace(offset=UNKNOWN_OFFSET) for row in rows}
    return sorted(set(acked) - set(rows) - anywhere)


def duplicates(rows: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
    """Offsets that were read more than once."""
    return [where for where, count in Counter((row.log, row.offset) for row in rows).items() if count > 1]


def inconsistent_offsets(records: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
    """Offsets of which two values are told, by the acknowledgement and by a row, or by two rows."""
    counts = Counter((one.log, one.offset) for one in set(records) if one.offset != UNKNOWN_OFFSET)
    return [where for where, count in counts.items() if count > 1]


def nonmonotonic(rows: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Neighbours in a log, in the order of reading, whose offsets do not grow."""
    return [(one, other) for one, other in _neighbours(rows) if one.offset >= other.offset]


def skipped(rows: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Neighbours in a log between which offsets are missing. The topics here are neither compacted nor written in
    transactions, so that every offset holds a record."""
    return [(one, other) for one, other in _neighbours(rows) if one.offset + 1 < other.offset]


def unreported_changes(events: Sequence[Event], cache: MetadataCache) -> list[str]:
    """Leaders that changed without an event that says so: an event names another old leader than the one before gave,
    or the cache knows another leader and epoch, or another partition, than its events say in the end."""
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
    lived = [event for event in events if event["kind"] != "closed"]
    rows = by_partition(fold(lived, now_ms=0))
    told = {partition: (row.leader_id, row.leader_epoch) for partition, row in rows.items()}
    known = {
        TopicPartition(topic, number): (one.leader_id, one.leader_epoch)
        for topic, view in cache.snapshot.topics.items()
        for number, one in view.partitions.items()
    }
    different = dict(told.items() ^ known.items())
    return wrong + [f"{one}: {known.get(one)} in the cache, {told.get(one)} by its events" for one in different]


def busiest_second(events: Sequence[Event]) -> int:
    """The greatest number of Metadata requests within a second."""
    times = [event["time_ms"] for event in events if event["kind"] == "refresh"]
    return max((sum(begin <= one < begin + 1000 for one in times) for begin in times), default=0)


def leaders_given(events: Iterable[Event], log: TopicPartition) -> list[tuple[str, int]]:
    """Reason and new leader of each event that gave `log` another leader, in order."""
    return [
        (event["reason"], change["new_leader_id"])
        for event in events
        for change in event["leaders_changed"]
        if TopicPartition(change["topic"], change["partition"]) == log
        and change["new_leader_id"] != change["old_leader_id"]
    ]


def _neighbours(rows: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    by_log: dict[TopicPartition, list[Record]] = {}
    for row in rows:
        by_log.setdefault(row.log, []).append(row)
    for of_log in by_log.values():
        yield from pairwise(of_log)
