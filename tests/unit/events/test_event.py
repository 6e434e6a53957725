"""An event of each fact: its head, what the client counted since the last one, and its row."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import pytest

from pyspark_kafka_meta.client_facts import Ending, LookupReason, RecordsLost, SchemaLookup, TransactionsEnded
from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.events.event import (
    COLUMNS,
    BrokerFetches,
    BrokerProduces,
    Cause,
    Event,
    EventKind,
    Fact,
    FilteredRecords,
    Origin,
    OtherReason,
    Outcome,
    Role,
    TableChanges,
    column_types,
    head_of,
)
from pyspark_kafka_meta.events.publisher import EventPublisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.metadata.cache_state import LeaderHinted
from pyspark_kafka_meta.kafka.metadata.refresh_policy import RefreshCause
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, SnapshotChanges, TopicRecreated
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from tests.partitions import T0, T1
from tests.unit.fake_network import about_ms
from tests.unit.scene import Scene
from tests.unit.written_events import FACTS, REFRESHED, made


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


@pytest.fixture
def client(scene: Scene) -> KafkaClient:
    return scene.client()


def report(scene: Scene, client: KafkaClient) -> Any:
    """The next event."""
    client.report(RecordsLost(T1, 3, 12, "they aged out"))
    return scene.events[-1]


# --- rows -------------------------------------------------------------------------------------------------------------


def test_columns_are_all_fields_once() -> None:
    assert len(set(COLUMNS)) == len(COLUMNS)
    of_all = {field.name for part in (Event, SnapshotChanges, Origin) for field in fields(part)}
    assert of_all - {*COLUMNS} == {"details", "origin"}
    of_facts = {name for fact in get_args(Fact) for name in fact._fields}
    assert of_facts - {*COLUMNS} == {"cause", "began", "fetched_before", "changes", "partition", "ending"}


@pytest.mark.parametrize("kind", EventKind)
def test_row_has_all_columns_and_the_fields_of_its_fact(kind: EventKind) -> None:
    fact = FACTS[kind]
    row = made("c0ffee", 3, kind=kind, origin=Origin(role=Role.PLANNER, executor_id="driver")).to_dict()

    assert tuple(row) == tuple(column_types()) == COLUMNS
    of_head = Event.__dataclass_fields__.keys()
    of_fact = {name: value for name, value in fact._asdict().items() if name in {*COLUMNS} - of_head}
    assert {name: row[name] for name in of_fact} == of_fact
    assert head_of(fact)[0] is kind
    others = {"broker_host", "lost_from_offset", "transactional_id", "malformed_column"} - of_fact.keys()
    assert {row[name] for name in others} == {None}
    assert (row["attempt"], row["stale_ignored"], row["brokers_added"]) == (0, 0, [])
    assert (row["role"], row["executor_id"], row["query_id"]) == ("planner", "driver", None)


def test_row_is_flat_and_can_be_json() -> None:
    changes = SnapshotChanges(
        topics_recreated=(TopicRecreated("u", "old", "new"),),
        partitions_added=(TopicPartition("t", 1),),
        leaders_changed=(LeaderChange("t", 0, 1, 2, 5, 6),),
    )
    event = made("c0ffee", 1, reason=RefreshReason.NOT_LEADER, latency_ms=12.34567, age_ms=0.00049, changes=changes)
    row = json.loads(event.to_json())

    assert (row["kind"], row["reason"], row["outcome"]) == ("refresh", "not_leader", "unchanged")
    assert (row["latency_ms"], row["age_ms"]) == (12.346, 0.0)
    assert row["leaders_changed"] == [
        {"topic": "t", "partition": 0, "old_leader_id": 1, "new_leader_id": 2, "old_epoch": 5, "new_epoch": 6}
    ]
    assert row["topics_recreated"] == [{"topic": "u", "old_id": "old", "new_id": "new"}]
    assert row["partitions_added"] == [{"topic": "t", "partition": 1}]


# --- heads ------------------------------------------------------------------------------------------------------------


def lookup(error: str | None) -> SchemaLookup:
    return SchemaLookup(LookupReason.NEW_VERSIONS, 2.5, error, None, None, "t-value")


HINTED = LeaderHinted(
    RefreshCause(RefreshReason.LEADER_HINT, 6, T0, 1),
    0.0,
    SnapshotChanges(leaders_changed=(LeaderChange("t", 0, 1, 2, 5, 6),)),
)
MAX_AGE, NEW_VERSIONS = Cause(RefreshReason.MAX_AGE), Cause(LookupReason.NEW_VERSIONS)


@pytest.mark.parametrize(
    ("fact", "kind", "cause", "outcome"),
    [
        (
            RecordsLost(T1, 3, 12, "they aged out"),
            EventKind.DATA_LOSS,
            Cause(OtherReason.DATA_LOSS, partition=T1),
            Outcome.UNCHANGED,
        ),
        (
            TransactionsEnded(Ending.RECOVERED, "orders", 3, 12.3, 40),
            EventKind.TRANSACTIONS_RECOVERED,
            Cause(OtherReason.TRANSACTION),
            Outcome.UNCHANGED,
        ),
        (lookup(None), EventKind.SCHEMA_LOOKUP, NEW_VERSIONS, Outcome.UNCHANGED),
        (lookup("no response"), EventKind.SCHEMA_LOOKUP, NEW_VERSIONS, Outcome.FAILED),
        (
            FACTS[EventKind.MALFORMED_RECORDS],
            EventKind.MALFORMED_RECORDS,
            Cause(OtherReason.MALFORMED, partition=T0),
            Outcome.UNCHANGED,
        ),
        (REFRESHED, EventKind.REFRESH, MAX_AGE, Outcome.UNCHANGED),
        (REFRESHED._replace(error="no response"), EventKind.REFRESH, MAX_AGE, Outcome.FAILED),
        (REFRESHED._replace(changes=SnapshotChanges(brokers_added=(4,))), EventKind.REFRESH, MAX_AGE, Outcome.CHANGED),
        (HINTED, EventKind.HINT, Cause(RefreshReason.LEADER_HINT, 6, T0, 1), Outcome.CHANGED),
    ],
)
def test_fact_has_a_kind_a_cause_and_an_outcome(
    scene: Scene, client: KafkaClient, fact: Fact, kind: EventKind, cause: Cause, outcome: Outcome
) -> None:
    client.report(fact)
    event = scene.events[-1]

    assert (event.kind, event.reason, event.outcome, event.details) == (kind, cause.reason, outcome, fact)
    assert (event.cause_error_code, event.cause_node_id) == (cause.error_code, cause.node_id)
    assert (event.cause_topic, event.cause_partition) == (cause.partition or (None, None))
    assert (event.generation_before, event.generation_after, event.sequence) == (0, 0, 2)
    assert scene.network.requests == []


def test_events_of_a_client_are_numbered_and_follow_its_cache(scene: Scene, client: KafkaClient) -> None:
    client.partitions(["t"], scene.clock() + 60)
    client.cache.leader(T0)
    scene.clock.sleep(3)
    client.cache.request_update(RefreshReason.NOT_LEADER, 1, T0, error_code=6, node_id=1)
    client.cache.refresh_if_due(scene.clock() + 60)
    scene.clock.sleep(2)
    client.publisher.origin = Origin(role=Role.PLANNER)
    client.close()
    born, first, second, closed = scene.events

    assert [event.kind for event in scene.events] == [EventKind.BORN, *[EventKind.REFRESH] * 2, EventKind.CLOSED]
    assert [event.sequence for event in scene.events] == [1, 2, 3, 4]
    assert {event.cache_id for event in scene.events} == {client.cache_id}
    assert [event.origin.role for event in scene.events] == [*[Role.READER] * 3, Role.PLANNER]
    assert [event.cluster_id for event in scene.events] == [None, *["fake-cluster"] * 3]
    assert [(event.generation_before, event.generation_after) for event in scene.events] == [
        (0, 0),
        (0, 1),
        (1, 2),
        (2, 2),
    ]
    assert [event.age_ms for event in scene.events] == [None, None, about_ms(3_000), about_ms(2_000)]
    assert [event.idle_ms for event in scene.events] == [None, None, about_ms(3_000), about_ms(5_000)]
    assert [event.lookups for event in scene.events] == [0, 0, 1, 0]
    assert (second.cause_error_code, second.cause_topic, second.cause_partition, second.cause_node_id) == (6, "t", 0, 1)
    assert (born.reason, first.reason, closed.reason) == (
        RefreshReason.BOOTSTRAP,
        RefreshReason.BOOTSTRAP,
        OtherReason.CLOSED,
    )


def test_request_in_flight_at_close_has_the_last_event_but_one(scene: Scene, client: KafkaClient) -> None:
    scene.network.hung_metadata.add(1)
    client.cache.refresh_if_due(scene.clock() + 60, until=scene.clock())
    client.close()

    assert [(event.sequence, event.kind, event.outcome) for event in scene.events] == [
        (1, EventKind.BORN, Outcome.UNCHANGED),
        (2, EventKind.REFRESH, Outcome.FAILED),
        (3, EventKind.CLOSED, Outcome.UNCHANGED),
    ]


def test_what_a_client_counts_is_in_the_next_event_only(scene: Scene, client: KafkaClient) -> None:
    for node_id, size_bytes, throttle_ms in ((2, 100, 30), (1, 7, 0), (2, 50, 12)):
        client.traffic.count_fetch(node_id, size_bytes, throttle_ms)
        client.traffic.count_produce(node_id, 10 * size_bytes, 10 * throttle_ms)
    client.traffic.retries += 2
    client.traffic.transactions_begun += 1
    client.count_changes("t", "c", 2)
    client.count_changes("t", "c", 3)
    client.traffic.filtered.update({T1: 3, T0: 2})
    client.report_failure(ConnectError("gone"), 0, 1)
    event, next_event = report(scene, client), report(scene, client)

    assert (event.fetches, event.fetch_throttle_ms) == ((BrokerFetches(1, 1, 7), BrokerFetches(2, 2, 150)), 42)
    assert (event.produces, event.produce_throttle_ms) == ((BrokerProduces(1, 1, 70), BrokerProduces(2, 2, 1500)), 420)
    assert (event.retries, event.transactions_begun) == (3, 1)
    assert event.table_changes == (TableChanges("t", "c", 5),)
    assert event.filtered == (FilteredRecords("t", 0, 2), FilteredRecords("t", 1, 3))
    assert (next_event.fetches, next_event.produces, next_event.table_changes, next_event.filtered) == ((), (), (), ())
    assert (next_event.retries, next_event.transactions_begun) == (0, 0)
    assert (next_event.fetch_throttle_ms, next_event.produce_throttle_ms) == (0, 0)


def test_failing_publisher_does_not_fail_a_refresh(
    client: KafkaClient, scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def publish(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(EventPublisher, "publish", publish)
    client.cache.refresh(RefreshReason.BOOTSTRAP, scene.clock() + 60)

    assert client.cache.snapshot.generation == 1
    assert "event 2 was not published" in caplog.text
