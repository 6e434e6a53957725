"""Refresh events for tests of readers of events, and files of such events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark_kafka_meta.client_facts import (
    Closed,
    Ending,
    LookupReason,
    MalformedRecords,
    Opened,
    RecordsLost,
    SchemaLookup,
    TransactionsEnded,
)
from pyspark_kafka_meta.events.event import Event, EventKind, Fact, Origin, Outcome, Role
from pyspark_kafka_meta.events.sinks import FolderSink, LocalFolder
from pyspark_kafka_meta.kafka.metadata.cache_state import LeaderHinted, Refreshed
from pyspark_kafka_meta.kafka.metadata.refresh_policy import RefreshCause
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, PartitionLearned, SnapshotChanges
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.tables.caches_from_events import EventRow, KnownCaches
from pyspark_kafka_meta.tables.rows import CacheRow
from tests.partitions import T0

REFRESHED = Refreshed(RefreshCause(RefreshReason.MAX_AGE), 0.0, 0, 0.0, 1, "broker-1", 9092, 2.5, 0)
ENDED = TransactionsEnded(Ending.COMMITTED, "orders", 1, 2.5)
FACTS: Mapping[EventKind, Fact] = {
    EventKind.BORN: Opened(),
    EventKind.CLOSED: Closed(),
    EventKind.REFRESH: REFRESHED,
    EventKind.HINT: LeaderHinted(RefreshCause(RefreshReason.LEADER_HINT), 0.0, SnapshotChanges()),
    EventKind.DATA_LOSS: RecordsLost(T0, 0, None, "lost"),
    EventKind.TRANSACTIONS_COMMITTED: ENDED,
    EventKind.TRANSACTIONS_ABORTED: ENDED._replace(ending=Ending.ABORTED),
    EventKind.TRANSACTIONS_RECOVERED: ENDED._replace(ending=Ending.RECOVERED),
    EventKind.SCHEMA_LOOKUP: SchemaLookup(LookupReason.QUERY_SCHEMA, 2.5, None, None, None, None),
    EventKind.MALFORMED_RECORDS: MalformedRecords(T0, "truncated", 7, "value", 1),
}
"""The fact of each kind, with values that tests do without."""


def made(cache: str, sequence: int, time_ms: int = 1_700_000_000_000, **others: Any) -> Event:
    """An event of a reader's cache: by default a response of broker 1 without changes."""
    given: dict[str, Any] = {
        "cache_id": cache,
        "sequence": sequence,
        "time_ms": time_ms,
        "kind": EventKind.REFRESH,
        "reason": RefreshReason.MAX_AGE,
        "age_ms": None,
        "idle_ms": None,
        "outcome": Outcome.UNCHANGED,
        "generation_before": sequence - 1,
        "generation_after": sequence,
        "lookups": 10,
        "origin": Origin(role=Role.READER, executor_id="1", host="worker", pid=7),
    }
    given |= others
    fact = FACTS[given["kind"]]
    of_fact = {name: given.pop(name) for name in fact._fields if name in given.keys() - Event.__dataclass_fields__}
    return Event(**given, details=fact._replace(**of_fact))


def learning(topic: str, *leaders: int, epoch: int = 0, topic_id: str | None = None) -> dict[str, Any]:
    """Fields of a first response: partitions 0, 1 ... of `topic` have these leaders."""
    learned = tuple(PartitionLearned(topic, number, leader, epoch, topic_id) for number, leader in enumerate(leaders))
    changes = SnapshotChanges(topics_added=(topic,), partitions_learned=learned)
    return {"reason": RefreshReason.BOOTSTRAP, "outcome": Outcome.CHANGED, "changes": changes}


def moving(topic: str, partition: int, leaders: tuple[int, int], epochs: tuple[int, int]) -> dict[str, Any]:
    """Fields of a response after NOT_LEADER_OR_FOLLOWER: old and new leader, old and new epoch."""
    return {
        "reason": RefreshReason.NOT_LEADER,
        "cause_error_code": 6,
        "cause_topic": topic,
        "cause_partition": partition,
        "cause_node_id": leaders[0],
        "outcome": Outcome.CHANGED,
        "recovery_ms": 120.0,
        "changes": SnapshotChanges(leaders_changed=(LeaderChange(topic, partition, *leaders, *epochs),)),
    }


def cache_rows(events: Iterable[EventRow], now_ms: int) -> list[CacheRow]:
    """The rows of the caches that have not ended, by cache and partition; `events` may have any order."""
    in_order = sorted(events, key=lambda event: (event["cache_id"], event["sequence"]))
    return [row for contents in KnownCaches.of(in_order).living() for row in contents.rows(now_ms)]


def sequences(printed: str) -> list[int]:
    """Sequences of the events that a command printed as JSON lines."""
    return [json.loads(line)["sequence"] for line in printed.splitlines()]


def write(folder: Path, *events: Event) -> None:
    """Write one file."""
    FolderSink(LocalFolder(folder)).write(events)


def events_in(folder: Path) -> list[dict[str, Any]]:
    """The events of all files, ordered by file name."""
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
