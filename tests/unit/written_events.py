"""Refresh events for tests of readers of events, and files of such events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pyspark_kafka_meta.events.folder_sink import FolderSink, LocalFolder
from pyspark_kafka_meta.kafka.metadata.refresh_events import (
    EventKind,
    HintDetails,
    LookupDetails,
    LossDetails,
    MalformedDetails,
    Origin,
    Outcome,
    RefreshDetails,
    RefreshEvent,
    Role,
    TransactionDetails,
)
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, PartitionLearned, SnapshotChanges
from pyspark_kafka_meta.model import RefreshReason

ENDED = {"transactional_id": "orders", "transactions": 1, "transactions_ms": 2.5, "copied_records": 0}
DETAILS: Mapping[EventKind, tuple[Any, Mapping[str, Any]]] = {
    EventKind.REFRESH: (
        RefreshDetails,
        {"broker_id": 1, "broker_host": "broker-1", "broker_port": 9092, "latency_ms": 2.5, "attempt": 0},
    ),
    EventKind.HINT: (HintDetails, {"recovery_ms": 0.0, "changes": SnapshotChanges()}),
    EventKind.DATA_LOSS: (LossDetails, {"error": "lost", "lost_from_offset": 0, "lost_until_offset": None}),
    EventKind.TRANSACTIONS_COMMITTED: (TransactionDetails, ENDED),
    EventKind.TRANSACTIONS_ABORTED: (TransactionDetails, ENDED),
    EventKind.TRANSACTIONS_RECOVERED: (TransactionDetails, ENDED),
    EventKind.SCHEMA_LOOKUP: (
        LookupDetails,
        {"latency_ms": 2.5, "error": None, "schema_id": None, "schema_guid": None, "schema_subject": None},
    ),
    EventKind.MALFORMED_RECORDS: (
        MalformedDetails,
        {"error": "truncated", "schema_id": 7, "malformed_column": "value", "malformed_records": 1},
    ),
}
"""The details of each kind, and the values that tests do without."""


def made(cache: str, sequence: int, time_ms: int = 1_700_000_000_000, **others: Any) -> RefreshEvent:
    """An event of a reader's cache: by default a response of broker 1 without changes."""
    given: dict[str, Any] = {
        "cache_id": cache,
        "sequence": sequence,
        "time_ms": time_ms,
        "kind": EventKind.REFRESH,
        "reason": RefreshReason.MAX_AGE,
        "cause_error_code": 0,
        **dict.fromkeys(("cause_topic", "cause_partition", "cause_node_id", "age_ms", "idle_ms")),
        "outcome": Outcome.UNCHANGED,
        "generation_before": sequence - 1,
        "generation_after": sequence,
        "lookups": 10,
        "origin": Origin(role=Role.READER, executor_id="1", host="worker", pid=7),
    }
    given |= others
    if given["kind"] in DETAILS:
        details, defaults = DETAILS[given["kind"]]
        of_kind = {field.name: given.pop(field.name) for field in fields(details) if field.name in given}
        given["details"] = details(**{**defaults, **of_kind})
    return RefreshEvent(**given)


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


def sequences(printed: str) -> list[int]:
    """Sequences of the events that a command printed as JSON lines."""
    return [json.loads(line)["sequence"] for line in printed.splitlines()]


def write(folder: Path, *events: RefreshEvent) -> None:
    """Write one file."""
    FolderSink(LocalFolder(folder)).write(events)


def events_in(folder: Path) -> list[dict[str, Any]]:
    """The events of all files, ordered by file name."""
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
