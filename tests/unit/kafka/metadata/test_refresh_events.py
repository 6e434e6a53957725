"""A refresh event as a row: documented fields, flat, in a fixed order, ready for JSON."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, fields, replace
from typing import get_args

import pytest

from pyspark_kafka_meta.kafka.metadata.refresh_events import (
    COLUMNS,
    Details,
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
    column_types,
)
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, SnapshotChanges, TopicRecreated
from pyspark_kafka_meta.model import RefreshReason, TopicPartition

EVENT = RefreshEvent(
    cache_id="c0ffee",
    sequence=3,
    time_ms=1_700_000_000_000,
    kind=EventKind.REFRESH,
    reason=RefreshReason.NOT_LEADER,
    cause_error_code=6,
    cause_topic="t",
    cause_partition=0,
    cause_node_id=1,
    outcome=Outcome.CHANGED,
    generation_before=1,
    generation_after=2,
    age_ms=12.5,
    idle_ms=3.0,
    lookups=7,
    details=RefreshDetails(
        broker_id=2,
        broker_host="broker-2",
        broker_port=9092,
        latency_ms=1.5,
        attempt=1,
        changes=SnapshotChanges(
            topics_recreated=(TopicRecreated("u", "old", "new"),),
            partitions_added=(TopicPartition("t", 1),),
            partitions_removed=(TopicPartition("u", 2),),
            leaders_changed=(LeaderChange("t", 0, 1, 2, 5, 6),),
        ),
    ),
    origin=Origin(role=Role.READER, executor_id="1"),
)


DETAILS = (
    None,
    HintDetails(recovery_ms=0.0, changes=SnapshotChanges(brokers_added=(4,))),
    LossDetails(error="they aged out", lost_from_offset=3, lost_until_offset=None),
    TransactionDetails(transactional_id="orders", transactions=3, transactions_ms=12.5, copied_records=0),
    LookupDetails(latency_ms=3.5, error=None, schema_id=None, schema_guid=None, schema_subject="t-value"),
    MalformedDetails(error="truncated", schema_id=7, malformed_column="value", malformed_records=3),
)


@pytest.mark.parametrize("described", [RefreshEvent, *get_args(Details), SnapshotChanges, Origin])
def test_every_field_is_documented(described: type) -> None:
    assert described.__doc__ is not None
    assert [field.name for field in fields(described) if f"        {field.name}: " not in described.__doc__] == []


def test_row_is_flat_and_can_be_json() -> None:
    row = json.loads(EVENT.to_json())

    assert (row["kind"], row["reason"], row["outcome"]) == ("refresh", "not_leader", "changed")
    assert (row["role"], row["executor_id"], row["query_id"]) == ("reader", "1", None)
    assert row["leaders_changed"] == [
        {"topic": "t", "partition": 0, "old_leader_id": 1, "new_leader_id": 2, "old_epoch": 5, "new_epoch": 6}
    ]
    assert row["topics_recreated"] == [{"topic": "u", "old_id": "old", "new_id": "new"}]
    assert row["partitions_added"] == [{"topic": "t", "partition": 1}]
    assert row["partitions_removed"] == [{"topic": "u", "partition": 2}]


def test_columns_are_all_fields_once() -> None:
    parts = [
        field.name for part in (RefreshEvent, *get_args(Details), SnapshotChanges, Origin) for field in fields(part)
    ]

    assert set(COLUMNS) == set(parts) - {"details", "changes", "origin"}
    assert len(set(COLUMNS)) == len(COLUMNS)


@pytest.mark.parametrize("details", [EVENT.details, *DETAILS])
@pytest.mark.parametrize("origin", [EVENT.origin, None])
def test_columns_depend_neither_on_the_details_nor_on_the_origin(
    details: Details | None, origin: Origin | None
) -> None:
    row = replace(EVENT, details=details, origin=origin).to_dict()

    assert tuple(row) == tuple(column_types()) == COLUMNS
    if details is not None:
        assert {name: row[name] for name in asdict(details) if name != "changes"} == {
            name: value for name, value in asdict(details).items() if name != "changes"
        }


def test_event_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(EVENT)) == EVENT
