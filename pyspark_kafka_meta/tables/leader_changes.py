"""From refresh events to the leader changes of partitions: which caches learned each, when and why, and which have not;
pure.

In one topic id, a leader epoch has one leader (KIP-320, KIP-516): what caches learned of the same epoch is one change,
however each of them learned it. A cache that was away may learn several changes as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import chain
from statistics import median_low
from typing import NamedTuple

from pyspark_kafka_meta.tables.caches_from_events import CacheContents, EventRow, Leader, by_cache, leaders_in
from pyspark_kafka_meta.tables.rows import LeaderChangeRow

MAX_STALE_IDS = 10


class Log(NamedTuple):
    """A partition of one topic id."""

    cluster_id: str | None
    topic: str
    topic_id: str | None
    partition: int


class Change(NamedTuple):
    """What began with an epoch. The leader tells changes apart where brokers report no epochs."""

    log: Log
    leader_epoch: int
    leader_id: int


class Seen(NamedTuple):
    """When a cache knew, and the reason of its event."""

    time_ms: int
    cache_id: str
    reason: str


class Learned(NamedTuple):
    """How a cache that knew another leader learned of a change."""

    seen: Seen
    before: Leader
    recovery_ms: float | None
    retries: int


def leader_change_rows(events: Iterable[EventRow]) -> list[LeaderChangeRow]:
    """The changes of all caches, in the order in which the first cache knew. `events` may have any order and
    duplicates."""
    first: dict[Change, Seen] = {}
    learned: dict[Change, list[Learned]] = defaultdict(list)
    known: dict[Log, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for of_cache, has_ended in by_cache(events):
        contents, cluster_id, cache_id = CacheContents(), None, ""
        for event in of_cache:
            contents.apply(event)
            cluster_id, cache_id = event.get("cluster_id") or cluster_id, event["cache_id"]
            seen = Seen(event["time_ms"], cache_id, event.get("reason") or "")
            for (topic, partition), (leader_id, epoch), before, _ in leaders_in(event):
                change = Change(Log(cluster_id, topic, contents.topic_ids.get(topic), partition), epoch, leader_id)
                first[change] = min(seen, first.get(change, seen))
                if before is not None:
                    cost = event.get("recovery_ms"), event.get("retries") or 0
                    learned[change].append(Learned(seen, before, *cost))
        for (topic, partition), (_, epoch) in () if has_ended else contents.leaders.items():
            known[Log(cluster_id, topic, contents.topic_ids.get(topic), partition)][epoch].append(cache_id)
    rows = [_row(change, first[change], caches, known.get(change.log, {})) for change, caches in learned.items()]
    return sorted(rows, key=lambda row: (row.first_seen, row.topic, row.partition, row.leader_epoch))


def _row(change: Change, first: Seen, learned: list[Learned], known: Mapping[int, list[str]]) -> LeaderChangeRow:
    """
    Args:
        known: ids of the caches that have not ended, by the epoch that they know.
    """
    is_older = (cache_ids for epoch, cache_ids in known.items() if epoch < change.leader_epoch)
    stale = sorted(chain.from_iterable(is_older))
    times_ms = [each.seen.time_ms for each in learned]
    return LeaderChangeRow(
        **change.log._asdict(),
        from_leader_id=max((each.before for each in learned), key=lambda leader: leader[1])[0],
        to_leader_id=change.leader_id,
        leader_epoch=change.leader_epoch,
        first_seen=_time(first.time_ms),
        first_cache_id=first.cache_id,
        first_reason=first.reason,
        caches=len({each.seen.cache_id for each in learned}),
        median_ms=median_low(times_ms) - first.time_ms,
        last_seen=_time(max(times_ms)),
        longest_recovery_ms=max((each.recovery_ms for each in learned if each.recovery_ms is not None), default=None),
        retries=sum(each.retries for each in learned),
        stale_caches=len(stale),
        stale_cache_ids=tuple(stale[:MAX_STALE_IDS]),
    )


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)
