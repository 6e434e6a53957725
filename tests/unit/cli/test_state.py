"""What the page keeps of events, and what they tell of the cluster where nobody asks it."""

from __future__ import annotations

from written_events import learning, made

from pyspark_kafka_meta.cli.demo.state import KEPT_MS, kept, told_by_caches
from pyspark_kafka_meta.metadata.events import EventKind, Outcome, RefreshReason
from pyspark_kafka_meta.tables.folding import fold

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
