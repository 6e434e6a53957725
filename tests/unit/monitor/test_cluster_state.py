"""What the page keeps of events, and what they tell of the cluster where nobody asks it."""

from __future__ import annotations

from pyspark_kafka_meta.metadata.refresh_events import EventKind, Outcome
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.monitor.cluster_state import KEPT_MS, is_stale, kept, told_by_caches
from pyspark_kafka_meta.tables.caches_from_events import fold
from tests.unit.written_events import learning, made

NOW_MS = 1_800_000_000_000
DEAD, LIVE = "a" * 32, "b" * 32
BORN = {"kind": EventKind.BORN, "reason": RefreshReason.BOOTSTRAP, "broker_id": None, "broker_host": None}


def test_a_cache_that_died_stays_dead_when_the_event_that_told_so_is_forgotten() -> None:
    events = [
        made(DEAD, 1, NOW_MS - 9_000, **learning("t", 1, epoch=9)).to_dict(),
        made(LIVE, 1, NOW_MS - 8_000, **BORN, died_cache_ids=(DEAD,)).to_dict(),
        made(LIVE, 2, NOW_MS - 7_000, **learning("t", 2, epoch=4)).to_dict(),
    ]
    left = kept(kept(events, NOW_MS), NOW_MS + KEPT_MS)
    _, partitions = told_by_caches(left, fold(left, NOW_MS + KEPT_MS))

    assert [(one["cache_id"], one["outcome"]) for one in left] == [(LIVE, Outcome.CHANGED)]
    assert [(row.leader_id, row.leader_epoch) for row in partitions] == [(2, 4)]


def test_of_a_topic_that_was_recreated_the_leader_of_its_new_log_is_told_and_caches_of_the_old_are_stale() -> None:
    events = [
        made(DEAD, 1, NOW_MS - 9_000, **learning("t", 1, epoch=9, topic_id="old")).to_dict(),
        made(LIVE, 1, NOW_MS - 8_000, **learning("t", 2, epoch=0, topic_id="new")).to_dict(),
    ]
    caches = fold(events, NOW_MS)
    _, partitions = told_by_caches(events, caches)

    assert [(row.topic_id, row.leader_id, row.leader_epoch) for row in partitions] == [("new", 2, 0)]
    live = {TopicPartition("t", 0): partitions[0]}
    assert {row.cache_id: is_stale(row, live) for row in caches} == {DEAD: True, LIVE: False}
