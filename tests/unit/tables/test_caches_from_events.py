"""The caches table shows what each cache knows, according to its events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_kafka_meta.events.event import EventKind, Origin, OtherReason, Outcome, Role
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, PartitionLearned, SnapshotChanges, TopicRecreated
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from tests.unit.written_events import cache_rows, made

NOW_MS = 100_000


def event(sequence: int, changes: SnapshotChanges | None = None, **others: Any) -> dict[str, Any]:
    """The event with this sequence, at that second, after JSON: a successful response unless `others` change it."""
    changed = {} if changes is None else {"changes": changes}
    fields = {"cache": "c", "time_ms": sequence * 1_000, **changed, **others}
    return dict(json.loads(made(sequence=sequence, **fields).to_json()))


def learned(topic: str, *leaders: int, epoch: int = 0) -> tuple[PartitionLearned, ...]:
    return tuple(PartitionLearned(topic, number, leader, epoch) for number, leader in enumerate(leaders))


LEARNED = event(1, SnapshotChanges(topics_added=("t", "u"), partitions_learned=learned("t", 1, 2) + learned("u", 3)))


def leaders(*events: dict[str, Any]) -> dict[str, tuple[int | None, int | None]]:
    return {f"{row.topic}-{row.partition}": (row.leader_id, row.leader_epoch) for row in cache_rows(events, NOW_MS)}


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        pytest.param(SnapshotChanges(), {"t-0": (1, 0), "t-1": (2, 0), "u-0": (3, 0)}, id="nothing"),
        pytest.param(
            SnapshotChanges(leaders_changed=(LeaderChange("t", 0, 1, 2, 0, 1),)),
            {"t-0": (2, 1), "t-1": (2, 0), "u-0": (3, 0)},
            id="leader moved",
        ),
        pytest.param(SnapshotChanges(topics_removed=("t",)), {"u-0": (3, 0)}, id="topic removed"),
        pytest.param(
            SnapshotChanges(
                partitions_added=(TopicPartition("u", 1),), partitions_learned=(PartitionLearned("u", 1, 4, 2),)
            ),
            {"t-0": (1, 0), "t-1": (2, 0), "u-0": (3, 0), "u-1": (4, 2)},
            id="partition added",
        ),
        pytest.param(
            SnapshotChanges(partitions_removed=(TopicPartition("t", 1),)),
            {"t-0": (1, 0), "u-0": (3, 0)},
            id="partition removed",
        ),
        pytest.param(
            SnapshotChanges(
                topics_recreated=(TopicRecreated("t", "old", "new"),), partitions_learned=learned("t", 5, epoch=0)
            ),
            {"t-0": (5, 0), "u-0": (3, 0)},
            id="topic recreated with fewer partitions",
        ),
    ],
)
def test_changes_are_applied(changes: SnapshotChanges, known: dict[str, tuple[int, int]]) -> None:
    assert leaders(LEARNED, event(2, changes)) == known


def test_order_and_repetition_do_not_matter() -> None:
    moved = event(2, SnapshotChanges(leaders_changed=(LeaderChange("t", 0, 1, 2, 0, 1),)))
    back = event(3, SnapshotChanges(leaders_changed=(LeaderChange("t", 0, 2, 1, 1, 2),)))

    assert leaders(back, moved, LEARNED, moved) == leaders(LEARNED, moved, back)
    assert cache_rows([back, moved, LEARNED, moved], NOW_MS)[0].lookups == 30


def test_recreated_topic_has_its_new_id() -> None:
    recreated = SnapshotChanges(
        topics_recreated=(TopicRecreated("t", "old", "new"),), partitions_learned=learned("t", 5)
    )

    assert {row.topic: row.topic_id for row in cache_rows([LEARNED, event(2, recreated)], NOW_MS)} == {
        "t": "new",
        "u": None,
    }


def test_topic_id_is_known_until_the_topic_is_removed() -> None:
    first = event(1, SnapshotChanges(partitions_learned=(PartitionLearned("t", 0, 1, 0, "an id"),)))
    removed, added = SnapshotChanges(topics_removed=("t",)), SnapshotChanges(partitions_learned=learned("t", 5))

    assert [row.topic_id for row in cache_rows([first], NOW_MS)] == ["an id"]
    assert [row.topic_id for row in cache_rows([first, event(2, removed), event(3, added)], NOW_MS)] == [None]


def test_failed_refresh_changes_neither_leaders_nor_the_age() -> None:
    failed = event(
        2, outcome=Outcome.FAILED, reason=RefreshReason.CONNECTION_LOST, generation_before=1, generation_after=1
    )
    first, *_ = rows = cache_rows([LEARNED, failed], NOW_MS)

    assert len(rows) == 3
    assert (first.generation_at_least, first.age_at_most_ms) == (1, NOW_MS - 1_000)
    assert (first.last_reason, first.last_refresh.timestamp()) == ("connection_lost", 2.0)


def test_hint_moves_a_leader_but_does_not_change_the_age() -> None:
    hint = event(
        2,
        SnapshotChanges(leaders_changed=(LeaderChange("t", 0, 1, 2, 0, 1),)),
        kind=EventKind.HINT,
        reason=RefreshReason.LEADER_HINT,
        generation_before=1,
        generation_after=1,
    )
    first, *_ = cache_rows([LEARNED, hint], NOW_MS)

    assert (first.leader_id, first.leader_epoch, first.age_at_most_ms) == (2, 1, NOW_MS - 1_000)


def test_generation_and_age_are_bounds_while_events_are_unwritten() -> None:
    (written, *_), (true, *_) = cache_rows([LEARNED], NOW_MS), cache_rows([LEARNED, event(2), event(3)], NOW_MS)

    assert (written.generation_at_least, written.age_at_most_ms) == (1, NOW_MS - 1_000)
    assert (true.generation_at_least, true.age_at_most_ms) == (3, NOW_MS - 3_000)


@pytest.mark.parametrize(
    ("sequences", "missing"), [((1, 2, 3), 0), ((1, 4), 2), ((5, 6), 4)], ids=["none", "a gap", "the oldest"]
)
def test_missing_events_are_counted(sequences: tuple[int, ...], missing: int) -> None:
    assert {row.events_missing for row in cache_rows([event(sequence) for sequence in sequences], NOW_MS)} == {missing}


def test_empty_cache_has_a_row_without_a_partition() -> None:
    born = event(1, kind=EventKind.BORN, reason=RefreshReason.BOOTSTRAP, generation_before=0, generation_after=0)
    (row,) = cache_rows([born], NOW_MS)

    assert (row.cache_id, row.topic, row.leader_id, row.age_at_most_ms) == ("c", None, None, None)
    assert (row.role, row.executor_id, row.pid) == ("reader", "1", 7)


def test_cache_of_a_worker_that_reads_and_writes_has_the_role_of_its_latest_event() -> None:
    wrote = event(2, origin=Origin(role=Role.WRITER, executor_id="1", query_id="q"))

    assert {(row.role, row.query_id) for row in cache_rows([LEARNED, wrote], NOW_MS)} == {("writer", "q")}
    assert {row.role for row in cache_rows([LEARNED, wrote, event(3)], NOW_MS)} == {"reader"}
    assert leaders(LEARNED, wrote) == leaders(LEARNED)


def test_row_has_the_cluster_id_of_its_cache() -> None:
    responded = {**LEARNED, "cluster_id": "east"}
    old_release = {name: value for name, value in LEARNED.items() if name != "cluster_id"}

    assert {row.cluster_id for row in cache_rows([responded], NOW_MS)} == {"east"}
    assert {row.cluster_id for row in cache_rows([old_release], NOW_MS)} == {None}


def test_each_cache_has_its_own_rows() -> None:
    other = event(1, SnapshotChanges(partitions_learned=learned("t", 9)), cache="d")

    assert [(row.cache_id, row.topic, row.leader_id) for row in cache_rows([other, LEARNED], NOW_MS)] == [
        ("c", "t", 1),
        ("c", "t", 2),
        ("c", "u", 3),
        ("d", "t", 9),
    ]


def test_incomplete_changes_are_ignored() -> None:
    broken = {**event(2), "partitions_learned": [{"topic": "t", "partition": None, "leader_id": 1, "leader_epoch": 1}]}

    assert leaders(LEARNED, broken) == leaders(LEARNED)


def test_closed_and_dead_caches_have_no_rows() -> None:
    born = event(1, cache="other", kind=EventKind.BORN, died_cache_ids=("c",))
    closed = event(2, kind=EventKind.CLOSED, reason=OtherReason.CLOSED)

    assert {row.cache_id for row in cache_rows([LEARNED, event(2)], NOW_MS)} == {"c"}
    assert cache_rows([LEARNED, closed], NOW_MS) == []
    assert {row.cache_id for row in cache_rows([LEARNED, born], NOW_MS)} == {"other"}
