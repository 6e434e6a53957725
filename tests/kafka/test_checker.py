"""The checker finds each kind of anomaly, and no anomaly in a correct history or log."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pyspark_kafka_meta.kafka.metadata.cache import MetadataCache
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.write.partition_queue import UNKNOWN_OFFSET, AcknowledgedRange, TaskOutput
from tests.kafka.checker import (
    EventRow,
    Record,
    Row,
    anomalies,
    assert_all_read,
    assert_events_complete,
    busiest_second,
    duplicates,
    inconsistent_offsets,
    lost_writes,
    missing_rows,
    nonmonotonic,
    skipped,
)
from tests.kafka.harness import SteadyProducer
from tests.unit.scene import Scene

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
A0, A1, A2 = (Record(A, offset, f"a{offset}") for offset in range(3))
B0 = Record(B, 0, "b0")
ACKED = [A0, B0, A1, A2]
A1_SOMEWHERE = A1._replace(offset=UNKNOWN_OFFSET)
PRODUCE = 0
DUPLICATE_SEQUENCE_NUMBER = 46

ANOMALIES = {
    "lost-write": [A0, B0, A1],
    "duplicate": [A0, B0, A1, A2, A2],
    "inconsistent-offsets": [A0, B0, A1, A2._replace(value="other")],
    "nonmonotonic": [A1, A0, A2, B0],
    "skipped": [A0, A2, B0],
}


def found(rows: list[Record]) -> set[str]:
    return {
        name
        for name, places in {
            "lost-write": lost_writes(ACKED, rows),
            "duplicate": duplicates(rows),
            "inconsistent-offsets": inconsistent_offsets([*ACKED, *rows]),
            "nonmonotonic": nonmonotonic(rows),
            "skipped": skipped(rows),
        }.items()
        if places
    }


@pytest.mark.parametrize("name", ANOMALIES)
def test_anomaly_is_found(name: str) -> None:
    assert name in found(ANOMALIES[name])
    with pytest.raises(AssertionError):
        assert_all_read(ACKED, ANOMALIES[name])


def test_record_without_a_reported_offset_is_lost_only_if_it_was_not_read() -> None:
    assert_all_read([A0, A1_SOMEWHERE, A2], [A0, A1, A2])
    assert lost_writes([A0, A1_SOMEWHERE], [A0]) == [A1_SOMEWHERE]


def test_offset_that_no_broker_reported_is_unknown(
    mock_cluster: MockCluster, wait_for: Callable[[Callable[[], object]], object]
) -> None:
    mock_cluster.create_topic("t")
    with SteadyProducer(mock_cluster.bootstrap_servers, "t", 1) as producer:
        wait_for(lambda: len(producer.acked) > 50)
        mock_cluster.push_partition_errors("t", 0, PRODUCE, DUPLICATE_SEQUENCE_NUMBER)
        wait_for(lambda: any(record.offset == UNKNOWN_OFFSET for record in producer.acked))
        written = len(producer.acked)
        wait_for(lambda: len(producer.acked) > written + 50)
    offsets = [record.offset for record in producer.acked if record.offset != UNKNOWN_OFFSET]

    assert offsets == list(range(len(offsets)))
    assert [int(record.value) for record in producer.acked] == list(range(len(producer.acked)))


def test_complete_history_has_no_anomaly_in_any_order_of_its_logs() -> None:
    assert found([B0, A0, A1, A2]) == found([A0, A1, B0, A2]) == set()
    assert_all_read(ACKED, [A0, A1, A2, B0])


OLD = Row(0, 0)
ROW_0, ROW_2, ROW_4, ROW_1 = Row(1, 0), Row(1, 2), Row(1, 4), Row(1, 1)
WRITTEN: TaskOutput = {A: AcknowledgedRange(1, 4, 3), B: AcknowledgedRange(0, 1, 1)}
ONE_UNKNOWN: TaskOutput = {A: AcknowledgedRange(1, 3, 3)}
WRONG_LOGS = {
    "lost": [OLD, ROW_0, ROW_2],
    "all lost": [],
    "lost, another attempt's row in its place": [OLD, ROW_0, ROW_2, Row(2, 4)],
    "repeated": [OLD, ROW_0, ROW_2, ROW_4, ROW_4],
    "reordered": [OLD, ROW_0, ROW_4, ROW_2],
    "at other offsets": [ROW_0, ROW_2, OLD, ROW_4],
}


@pytest.mark.parametrize("name", WRONG_LOGS)
@pytest.mark.parametrize("written", [WRITTEN, ONE_UNKNOWN], ids=["offsets", "one unknown offset"])
def test_anomaly_of_an_attempt_is_found(name: str, written: TaskOutput) -> None:
    log = WRONG_LOGS[name]
    assert anomalies({A: log, B: [ROW_1]} if log else {B: [ROW_1]}, 1, written) != []


@pytest.mark.parametrize("written", [WRITTEN, ONE_UNKNOWN, {}], ids=["offsets", "one unknown offset", "nothing"])
def test_rows_once_and_in_order_are_no_anomaly(written: TaskOutput) -> None:
    assert anomalies({A: [OLD, ROW_0, ROW_2, ROW_4, OLD], B: [ROW_1]}, 1, written) == []


def test_missing_rows_are_those_of_no_log() -> None:
    assert missing_rows({A: [OLD, ROW_0, ROW_2], B: [ROW_1]}, 1, 5) == [3, 4]
    assert Row.parse(ROW_2.value()) == ROW_2


@pytest.fixture
def moved_twice(monkeypatch: pytest.MonkeyPatch) -> tuple[list[EventRow], MetadataCache]:
    """The events of a cache that learned topic t and then two leader changes of t-0."""
    scene = Scene(monkeypatch)
    client = scene.client()
    client.partitions(["t"], scene.clock() + 60)
    for leader in (2, 3):
        scene.clock.sleep(10)
        scene.cluster.move_leader(A, leader)
        client.cache.refresh(RefreshReason.NOT_LEADER, scene.clock() + 60)
    return [json.loads(event.to_json()) for event in scene.events[1:]], client.cache


def test_complete_events_pass(moved_twice: tuple[list[EventRow], MetadataCache]) -> None:
    assert_events_complete(*moved_twice)


HIDDEN: dict[str, Callable[[list[EventRow]], list[EventRow]]] = {
    "an event is missing": lambda events: [events[0], *events[2:]],
    "the last event is missing": lambda events: events[:-1],
    "a change is missing": lambda events: [events[0], {**events[1], "leaders_changed": []}, events[2]],
    "the last change is missing": lambda events: [*events[:2], {**events[2], "leaders_changed": []}],
    "all changes of a partition are missing": lambda events: [{**event, "leaders_changed": []} for event in events],
    "another old leader": lambda events: [
        *events[:2],
        {**events[2], "leaders_changed": [{**events[2]["leaders_changed"][0], "old_leader_id": 1}]},
    ],
    "a partition is missing": lambda events: [
        {**events[0], "partitions_learned": events[0]["partitions_learned"][:1]},
        *events[1:],
    ],
}


@pytest.mark.parametrize("hide", HIDDEN.values(), ids=HIDDEN.keys())
def test_change_without_an_event_is_found(
    hide: Callable[[list[EventRow]], list[EventRow]], moved_twice: tuple[list[EventRow], MetadataCache]
) -> None:
    events, cache = moved_twice
    with pytest.raises(AssertionError):
        assert_events_complete(hide(events), cache)


def test_busiest_second_counts_requests_but_no_hints() -> None:
    times_ms = [0, 900, 1_100, 1_899, 1_900, 5_000]
    events = [{"kind": "refresh", "time_ms": time_ms} for time_ms in times_ms]
    events.append({"kind": "hint", "time_ms": 1_000})

    assert busiest_second(events) == 3
    assert busiest_second([]) == 0
