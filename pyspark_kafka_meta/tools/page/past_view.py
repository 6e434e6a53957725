"""What the page of the past shows, ready for a template: the incidents, and a moment in the time line of one; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup, escape

from pyspark_kafka_meta.model import NO_LEADER, TopicPartition
from pyspark_kafka_meta.tables.rows import LeaderChangeRow
from pyspark_kafka_meta.tools.formatting import Column, View, leader_text
from pyspark_kafka_meta.tools.incidents import Incident, incidents_view, seconds_text
from pyspark_kafka_meta.tools.page.history import History, Past, Stale, during
from pyspark_kafka_meta.tools.page.view_model import BrokerCard, LedPartition

MARGIN_MS = 10_000
"""A time line begins so long before its incident, and ends so long after it."""
LATE_MS = 600_000
"""It ends at most so long after the last change: a cache without requests may learn of it the next day."""
BUCKETS_MS = [seconds * 1000 for seconds in (1, 2, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 86_400)]
MAX_BUCKETS = 120
MOVED_BUCKETS = 5
"""A new leader is marked for so long."""
STALE_SHOWN = 20
ENTRIES_SHOWN = 3
"""Stale entries of each cache."""
CHANGES_SHOWN = 50


class TimeLine(NamedTuple):
    """What a slider goes through; the plot has a bar for each bucket."""

    from_ms: int
    until_ms: int
    bucket_ms: int

    def buckets(self) -> range:
        """The begins of the buckets."""
        return range(self.from_ms, self.until_ms, self.bucket_ms)

    def bucket_text(self) -> str:
        return f"{self.bucket_ms // 1000:,} s"


def time_line(incident: Incident, changes: Sequence[LeaderChangeRow]) -> TimeLine:
    """Of an incident with these changes, with whole buckets."""
    last_ms = max(epoch_ms(row.first_seen) for row in changes)
    from_ms = epoch_ms(incident.began) - MARGIN_MS
    until_ms = min(epoch_ms(incident.ended), last_ms + LATE_MS) + MARGIN_MS
    fits = (bucket_ms for bucket_ms in BUCKETS_MS if until_ms - from_ms <= MAX_BUCKETS * bucket_ms)
    bucket_ms = next(fits, BUCKETS_MS[-1])
    return TimeLine(from_ms // bucket_ms * bucket_ms, -(-until_ms // bucket_ms) * bucket_ms, bucket_ms)


def incident_at(past: Past, time_ms: int, cluster_id: str) -> tuple[Incident, Sequence[LeaderChangeRow]] | None:
    """The latest incident that had begun at this moment, and its changes; before an incident the first of those with
    this moment in their time lines.

    Args:
        cluster_id: empty for any cluster.
    """
    found = []
    for incident, changes in past.incidents:
        line = time_line(incident, changes)
        if line.from_ms <= time_ms <= line.until_ms and cluster_id in ("", incident.cluster_id):
            found.append((incident, changes))
    begun = [pair for pair in found if epoch_ms(pair[0].began) <= time_ms]
    return begun[-1] if begun else next(iter(found), None)


def epoch_ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def moment_text(time_ms: int) -> str:
    """The local time as links have it; `epoch_ms` of it is its inverse. In the hour that is repeated when summer time
    ends, the second time has its UTC offset."""
    local = datetime.fromtimestamp(time_ms / 1000)
    local = local.astimezone() if local.fold else local
    return local.isoformat(timespec="milliseconds" if time_ms % 1000 else "seconds")


def link(past: Past, time_ms: int, cluster_id: str | None) -> str:
    """The address of a moment on the page; it names the cluster if there are several."""
    cluster = {"cluster": cluster_id} if cluster_id is not None and len(past.histories) > 1 else {}
    return f"/?{urlencode({'at': moment_text(time_ms), **cluster}, safe=':')}"


class Moment(NamedTuple):
    """One moment of a cluster.

    Attributes:
        brokers: as leaders tell: a broker may be alive and lead nothing.
        caches: how many lived.
        stale_caches: how many of them knew an older leader than another cache.
        stale: these caches, of the longest time first.
        refreshes: by reason, in the time of one bucket up to now, as text.
    """

    brokers: Sequence[BrokerCard]
    leaderless: Sequence[TopicPartition]
    caches: int
    stale_caches: int
    stale: View
    refreshes: str


def moment_of(history: History, at_ms: int, bucket_ms: int) -> Moment:
    led = sorted(during(history.led, at_ms, at_ms), key=lambda led: led.partition)
    moved_ms = at_ms - MOVED_BUCKETS * bucket_ms
    leads: dict[int, list[LedPartition]] = defaultdict(list)
    for each in led:
        moved_from = each.old_leader_id if each.from_ms > moved_ms and each.old_leader_id != each.leader[0] else None
        leads[each.leader[0]].append(LedPartition(each.partition, moved_from))
    broker_ids = {*history.addresses, *(each.leader[0] for each in history.led)} - {NO_LEADER}
    stale_by_cache: dict[str, list[Stale]] = defaultdict(list)
    for entry in during(history.stale, at_ms, at_ms):
        stale_by_cache[entry.cache_id].append(entry)
    return Moment(
        brokers=[
            BrokerCard.of(broker_id, history.addresses.get(broker_id, ""), None, leads[broker_id])
            for broker_id in sorted(broker_ids)
        ],
        leaderless=[each.partition for each in led if each.leader[0] == NO_LEADER],
        caches=len(during(history.lives.values(), at_ms, at_ms)),
        stale_caches=len(stale_by_cache),
        stale=_stale_view(history, stale_by_cache, {each.partition: leader_text(*each.leader) for each in led}, at_ms),
        refreshes=_refreshes_text(history, at_ms, bucket_ms),
    )


def _stale_view(
    history: History, by_cache: dict[str, list[Stale]], leaders: dict[TopicPartition, str], at_ms: int
) -> View:
    longest = sorted(by_cache.items(), key=lambda item: (min(entry.from_ms for entry in item[1]), item[0]))
    rows = [
        (
            history.lives[cache_id].name,
            history.lives[cache_id].process,
            f"{len(entries):,}",
            "; ".join(_entry_texts(sorted(entries), leaders)),
            seconds_text(at_ms - min(entry.from_ms for entry in entries)),
        )
        for cache_id, entries in longest[:STALE_SHOWN]
    ]
    columns = [Column("Cache"), Column("Process"), Column("Stale", True), Column("Knows"), Column("For", True)]
    return View("Stale caches", columns, rows, len(longest) - len(rows))


def _entry_texts(entries: Sequence[Stale], leaders: dict[TopicPartition, str]) -> Iterator[str]:
    for entry in entries[:ENTRIES_SHOWN]:
        yield f"{entry.partition}: {leader_text(*entry.leader)}, now {leaders[entry.partition]}"
    if len(entries) > ENTRIES_SHOWN:
        yield f"and {len(entries) - ENTRIES_SHOWN:,} more"


def _refreshes_text(history: History, at_ms: int, bucket_ms: int) -> str:
    counts = history.refreshes_between(at_ms - bucket_ms, at_ms)
    texts = (f"{reason} {count:,}{' failed' * is_failed}" for (reason, is_failed), count in sorted(counts.items()))
    return ", ".join(texts) or "none"


def linked_incidents(past: Past) -> View:
    """The list of incidents, each with a link to its begin; the latest first."""
    found = [incident for incident, _ in reversed(past.incidents)]
    view = incidents_view(found)
    links = [link(past, epoch_ms(incident.began), incident.cluster_id) for incident in found]
    return view._replace(rows=[(_anchor(to, row[0]), *row[1:]) for to, row in zip(links, view.rows, strict=True)])


def changes_view(past: Past, changes: Sequence[LeaderChangeRow]) -> View:
    """The leader changes of an incident, of many those that the slowest cache learned last."""
    slowest = sorted(changes, key=lambda row: (row.stale_caches, row.last_seen - row.first_seen), reverse=True)
    shown = sorted(slowest[:CHANGES_SHOWN], key=lambda row: (row.first_seen, row.topic, row.partition))
    rows = [
        (
            _anchor(
                link(past, epoch_ms(row.first_seen), row.cluster_id),
                row.first_seen.astimezone().time().isoformat("milliseconds"),
            ),
            str(TopicPartition(row.topic, row.partition)),
            f"{'none' if row.from_leader_id == NO_LEADER else row.from_leader_id} to "
            f"{leader_text(row.to_leader_id, row.leader_epoch)}",
            row.first_reason or "-",
            f"{row.caches:,}",
            seconds_text(epoch_ms(row.last_seen) - epoch_ms(row.first_seen)),
            seconds_text(row.longest_recovery_ms),
            f"{row.retries:,}",
            f"{row.stale_caches:,}",
        )
        for row in shown
    ]
    numbers = ("Caches", "Slowest", "Recovery", "Retries", "Stale")
    columns = [*map(Column, ("First seen", "Partition", "Leader", "By")), *(Column(title, True) for title in numbers)]
    return View("Leader changes", columns, rows, len(changes) - len(rows))


def _anchor(address: str, text: str) -> Markup:
    return Markup(f'<a href="{escape(address)}">{escape(text)}</a>')


def stale_counts(stale: Sequence[Stale], line: TimeLine) -> list[int]:
    """How many caches were stale at some moment of each bucket."""
    spans = {
        (
            span.cache_id,
            (max(span.from_ms, line.from_ms) - line.from_ms) // line.bucket_ms,
            (min(span.until_ms, line.until_ms) - 1 - line.from_ms) // line.bucket_ms,
        )
        for span in during(stale, line.from_ms, line.until_ms - 1)
    }
    buckets = {(cache_id, bucket) for cache_id, first, last in spans for bucket in range(first, last + 1)}
    counts = Counter(bucket for _, bucket in buckets)
    return [counts[bucket] for bucket in range(len(line.buckets()))]


def news_between(history: History, line: TimeLine) -> list[int]:
    """When leaders or stale caches changed, in order, ms since 1970 UTC."""
    led = during(history.led, line.from_ms, line.until_ms)
    stale = during(history.stale, line.from_ms, line.until_ms)
    times = {time_ms for spans in (led, stale) for span in spans for time_ms in span[:2]}
    return sorted(time_ms for time_ms in times if line.from_ms <= time_ms <= line.until_ms)
