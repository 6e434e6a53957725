"""Which events are kept, and what caches show of a cluster that is not asked."""

from __future__ import annotations

from pyspark_kafka_meta.metadata.refresh_events import EventKind, Outcome
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.monitor.staleness import is_stale, newest_leaders
from pyspark_kafka_meta.monitor.watcher import KEEP_EVENTS_MS, without_old_events
from pyspark_kafka_meta.tables.caches_from_events import cache_rows
from tests.unit.written_events import learning, made

NOW_MS = 1_800_000_000_000
DEAD, LIVE = "a" * 32, "b" * 32
BORN = {"kind": EventKind.BORN, "reason": RefreshReason.BOOTSTRAP, "broker_id": None, "broker_host": None}


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


def test_entries_of_a_recreated_topic_are_stale_beside_those_of_the_new_topic() -> None:
    events = [
        made(DEAD, 1, NOW_MS - 9_000, **learning("t", 1, epoch=9, topic_id="old")).to_dict(),
        made(LIVE, 1, NOW_MS - 8_000, **learning("t", 2, epoch=0, topic_id="new")).to_dict(),
    ]
    caches = cache_rows(events, NOW_MS)
    leaders = newest_leaders(caches)

    assert [(row.topic_id, row.leader_id, row.leader_epoch) for row in leaders.values()] == [("new", 2, 0)]
    assert {row.cache_id: is_stale(row, leaders) for row in caches} == {DEAD: True, LIVE: False}
