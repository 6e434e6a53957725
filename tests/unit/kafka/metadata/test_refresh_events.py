"""A refresh event as a row: documented fields, flat, in a fixed order, ready for JSON."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace

import pytest

from pyspark_kafka_meta.kafka.metadata.refresh_events import EventKind, Origin, Outcome, RefreshEvent, Role
from pyspark_kafka_meta.kafka.metadata.snapshot_changes import LeaderChange, SnapshotChanges, TopicRecreated
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
    changes=SnapshotChanges(
        topics_recreated=(TopicRecreated("u", "old", "new"),),
        partitions_added=(TopicPartition("t", 1),),
        partitions_removed=(TopicPartition("u", 2),),
        leaders_changed=(LeaderChange("t", 0, 1, 2, 5, 6),),
    ),
    origin=Origin(role=Role.READER, executor_id="1"),
)


@pytest.mark.parametrize("described", [RefreshEvent, SnapshotChanges, Origin])
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


def test_columns_do_not_depend_on_the_origin() -> None:
    names = [
        *(field.name for field in fields(RefreshEvent) if field.name not in ("changes", "origin")),
        *(field.name for field in fields(SnapshotChanges)),
        *(field.name for field in fields(Origin)),
    ]

    assert list(EVENT.to_dict()) == names
    assert list(replace(EVENT, origin=None, changes=SnapshotChanges()).to_dict()) == names
    assert len(set(names)) == len(names)


def test_event_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(EVENT)) == EVENT
