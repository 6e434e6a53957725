"""Which events are kept, and what caches show of a cluster that is not asked."""

from __future__ import annotations

from pyspark_kafka_meta.events.event import EventKind, Origin, OtherReason, Outcome, Role
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.tables.caches_from_events import cache_rows
from pyspark_kafka_meta.tools.cluster_state import caches_by_process, newest_leaders
from pyspark_kafka_meta.tools.sources import KEEP_EVENTS_MS, without_old_events
from tests.partitions import T1
from tests.unit.tools.states import EXECUTOR_2, FIRST, FIRST_IS_STALE, NOW_MS, SECOND, WRITER, state
from tests.unit.written_events import learning, made, moving

DEAD, LIVE = "a" * 32, "b" * 32
BORN = {"kind": EventKind.BORN, "reason": RefreshReason.BOOTSTRAP}


def test_a_dead_cache_stays_dead_when_the_event_that_reported_it_is_old() -> None:
    events = [
        made(DEAD, 1, NOW_MS - 9_000, **learning("t", 1, epoch=9)).to_dict(),
        made(LIVE, 1, NOW_MS - 8_000, **BORN, died_cache_ids=(DEAD,)).to_dict(),
        made(LIVE, 2, NOW_MS - 7_000, **learning("t", 2, epoch=4)).to_dict(),
    ]
    later_ms = NOW_MS + KEEP_EVENTS_MS
    kept = without_old_events(without_old_events(events, NOW_MS), later_ms)
    leaders = newest_leaders(cache_rows(kept, later_ms)).values()

    assert [(event["cache_id"], event["outcome"]) for event in kept] == [(LIVE, Outcome.CHANGED)]
    assert [(row.leader_id, row.leader_epoch) for row in leaders] == [(2, 4)]


def test_old_events_are_forgotten_but_for_what_live_caches_know() -> None:
    third = made("c" * 32, 1, NOW_MS - 9_000, **learning("t", 1))
    ended = made("c" * 32, 2, NOW_MS - 9_000, kind=EventKind.CLOSED, reason=OtherReason.CLOSED)
    events = state(*FIRST_IS_STALE, made(SECOND, 3, NOW_MS - 7_000, **EXECUTOR_2), third, ended).events
    left = without_old_events(events, NOW_MS + KEEP_EVENTS_MS)

    assert without_old_events(events, NOW_MS) == events
    assert {(one["cache_id"], one["outcome"]) for one in left} == {(FIRST, Outcome.CHANGED), (SECOND, Outcome.CHANGED)}


def test_an_executor_has_one_cache_whether_it_read_or_wrote_last() -> None:
    planner = made("c" * 32, 1, NOW_MS, **learning("t", 1), origin=Origin(role=Role.PLANNER, executor_id="driver"))
    wrote = made(FIRST, 2, NOW_MS - 7_000, **moving("t", 1, (2, 3), (4, 5)), **WRITER)
    before, after = (
        caches_by_process(state(*events, planner).caches) for events in (FIRST_IS_STALE, (*FIRST_IS_STALE, wrote))
    )

    assert list(before) == list(after) == ["planner", "executor 1", "executor 2"]
    assert [caches["executor 1"][T1].leader_epoch for caches in (before, after)] == [4, 5]


def test_events_of_executors_are_those_of_readers_and_writers() -> None:
    seen = state(
        made(FIRST, 1, NOW_MS - 1),
        made(FIRST, 2, NOW_MS),
        made(FIRST, 3, NOW_MS + 1, **WRITER),
        made(SECOND, 1, NOW_MS, origin=Origin(role=Role.PLANNER)),
    )

    assert [event["sequence"] for event in seen.of_executors(NOW_MS)] == [2, 3]
