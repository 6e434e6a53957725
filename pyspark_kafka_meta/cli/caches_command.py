"""`kafkameta caches`: what each metadata cache knows, side by side, and which of it is out of date."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyspark_kafka_meta.cli.events_command import ID_SHOWN, UNKNOWN, joined, order, process_name
from pyspark_kafka_meta.model import NO_LEADER, PartitionMetadata, TopicPartition, is_other_topic
from pyspark_kafka_meta.monitor.console import note, plain, print_json
from pyspark_kafka_meta.monitor.event_sources import EventSource
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.caches_from_events import Event, complete, fold
from pyspark_kafka_meta.tables.cluster_query import ask_cluster
from pyspark_kafka_meta.tables.table_rows import CacheRow
from pyspark_kafka_meta.telemetry.event_folders import default_root
from pyspark_kafka_meta.telemetry.liveness import dead_caches

OLD = "bold red"
LOOK: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
NAME_WIDTH, CACHE_WIDTH = 12, 20
"""What partitions and a cache take of a terminal's columns, about."""

NewestEpochs = dict[tuple[str | None, TopicPartition], int]
"""By topic id, as far as it is known, and partition."""
SeenMs = Mapping[tuple[str | None, TopicPartition], Mapping[int, int]]
"""When a cache first had each leader epoch of a partition, by cluster id, ms since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class KnownCaches:
    """What all caches knew at one moment.

    Attributes:
        rows: what the caches know, by cache and partition.
        seen_ms: which epochs they ever had.
        now_ms: when this was, ms since 1970 UTC.
        why_none: why there are no rows; empty if there are.
    """

    rows: Sequence[CacheRow]
    seen_ms: SeenMs
    now_ms: int
    why_none: str = ""


@dataclass(frozen=True, slots=True)
class StaleRow:
    """A partition in a cache that is behind the live cluster.

    Attributes:
        recreated: whether the cache knows another topic of that name, whose epochs say nothing about this one.
        behind_ms: since another cache had a newer epoch, which is how long at least; None if none has had one, and of
            a recreated topic.
    """

    row: CacheRow
    live: PartitionMetadata
    recreated: bool
    behind_ms: int | None


def known_caches(source: EventSource, since_ms: int, now_ms: int, application_id: str | None = None) -> KnownCaches:
    """What the caches know that had an event since `since_ms`; beside some, notes say how many more there are.

    Spark kills Python workers, whose caches then cannot say that they end; of those on this machine it is known.

    Args:
        application_id: None for all.
    """
    events = list(source.read())
    told = [row for row in fold(events, now_ms) if application_id in (None, row.application_id)]
    dead = dead_caches(default_root())
    rows = [row for row in told if row.cache_id not in dead]
    recent = [row for row in rows if row.last_refresh.timestamp() * 1000 >= since_ms]
    why_none = ""
    if not events:
        why_none = f"no events in {source.name}"
    elif not rows:
        whose = "" if application_id is None else f" of application {application_id}"
        why_none = f"no cache{whose} is alive: run a query and look while it runs; kafkameta events shows what was"
    elif not recent:
        why_none = "no cache had an event since then: --since 1d goes back further"
    else:
        _note_missing(_count(told) - _count(rows), _count(rows) - _count(recent))
    return KnownCaches(recent, _first_seen(events), now_ms, why_none)


def _note_missing(ended: int, silent: int) -> None:
    if ended:
        note(f"caches left out, as their processes on this machine ended: {ended}")
    if silent:
        note(f"caches left out, without an event since then: {silent}; --since 1d goes back further")


def show_caches(known: KnownCaches, console: Console | None) -> None:
    """A row for each partition and a column for each cache; without a console, a JSON line for each row of both."""
    if known.why_none:
        note(known.why_none)
    if console is None:
        for row in known.rows:
            print_json(asdict(row))
        return
    newest = newest_epochs(known.rows)
    per_table = max(1, (console.width - NAME_WIDTH) // CACHE_WIDTH)
    by_topic: dict[str, list[CacheRow]] = {}
    for row in known.rows:
        if row.topic is not None:
            by_topic.setdefault(row.topic, []).append(row)
    for topic, rows in sorted(by_topic.items()):
        caches = sorted({row.cache_id: row for row in rows}.values(), key=_place)
        console.print(plain(f"Topic {topic}", "bold"))
        for start in range(0, len(caches), per_table):
            console.print(_grid(caches[start : start + per_table], rows, newest))
    if any(_is_old(row, newest) for row in known.rows):
        console.print(Text.assemble(("*", OLD), " another cache knows a newer leader epoch"))


def show_stale(known: KnownCaches, client: ClientOptions, console: Console | None) -> bool:
    """Only what is behind the live cluster.

    Returns:
        Whether there was a cache to compare.

    Raises:
        ConnectError: no broker answered.
    """
    if known.why_none:
        note(f"nothing to compare with the cluster: {known.why_none}")
        return False
    topics = {row.topic for row in known.rows if row.topic is not None}
    answer = ask_cluster(client, sorted(topics)).answer
    known = replace(known, rows=[row for row in known.rows if row.cluster_id in (None, answer.cluster_id)])
    if not known.rows:
        note("nothing to compare with the cluster: all known caches are of other clusters")
        return False
    live = {TopicPartition(topic.name, one.partition): one for topic in answer.topics for one in topic.partitions}
    live_ids = {topic.name: str(topic.topic_id) for topic in answer.topics if topic.topic_id is not None}
    rows = list(stale_rows(known, live, live_ids))
    if console is None:
        for row in rows:
            now = {"live_leader_id": row.live.leader_id, "live_leader_epoch": row.live.leader_epoch}
            print_json({**asdict(row.row), **now, "recreated": row.recreated, "behind_ms": row.behind_ms})
    else:
        console.print(_stale_table(rows) if rows else "No cache is behind the cluster.")
    return True


def newest_epochs(rows: Iterable[CacheRow]) -> NewestEpochs:
    """The newest leader epoch of each partition that any cache knows; a recreated topic counts as another one."""
    newest: NewestEpochs = {}
    for row in rows:
        if (partition := row.topic_partition) is not None:
            log = (row.topic_id, partition)
            newest[log] = max(newest.get(log, -1), row.leader_epoch or 0)
    return newest


def stale_rows(
    known: KnownCaches, live: Mapping[TopicPartition, PartitionMetadata], live_ids: Mapping[str, str]
) -> Iterator[StaleRow]:
    """Those of another topic than the live one of that name, where both ids are known, and those whose leader epoch is
    older than the live one."""
    for row in known.rows:
        partition = row.topic_partition
        if partition is None or partition not in live:
            continue
        if is_other_topic(row.topic_id, live_ids.get(partition.topic)):
            yield StaleRow(row, live[partition], recreated=True, behind_ms=None)
        elif (row.leader_epoch or 0) < live[partition].leader_epoch:
            seen = known.seen_ms.get((row.cluster_id, partition), {})
            newer = [at for epoch, at in seen.items() if epoch > (row.leader_epoch or 0)]
            behind_ms = known.now_ms - min(newer) if newer else None
            yield StaleRow(row, live[partition], recreated=False, behind_ms=behind_ms)


def _count(rows: Iterable[CacheRow]) -> int:
    """Number of distinct caches."""
    return len({row.cache_id for row in rows})


def _first_seen(events: Iterable[Event]) -> SeenMs:
    seen: dict[tuple[str | None, TopicPartition], dict[int, int]] = {}
    for event in sorted(events, key=order):
        cluster = event.get("cluster_id")
        for again in complete(event, "topics_recreated"):
            for key in [key for key in seen if (key[0], key[1].topic) == (cluster, again["topic"])]:
                del seen[key]
        learned = [(one, one["leader_epoch"]) for one in complete(event, "partitions_learned")]
        changed = [(one, one["new_epoch"]) for one in complete(event, "leaders_changed")]
        for one, epoch in learned + changed:
            partition = TopicPartition(one["topic"], one["partition"])
            seen.setdefault((cluster, partition), {}).setdefault(epoch, event["time_ms"])
    return seen


def _grid(caches: Sequence[CacheRow], rows: Sequence[CacheRow], newest: NewestEpochs) -> Table:
    """Table for one topic."""
    table = Table("partition", **LOOK)
    for cache in caches:
        table.add_column(Text("\n").join(map(plain, _place(cache))))
    cells = {(row.partition, row.cache_id): _cell(row, newest) for row in rows}
    for partition in sorted({row.partition for row in rows if row.partition is not None}):
        table.add_row(str(partition), *(cells.get((partition, cache.cache_id), Text("-")) for cache in caches))
    return table


def _stale_table(rows: Iterable[StaleRow]) -> Table:
    table = Table("cache", "partition", "knows", "now", "behind for", **LOOK)
    for each in rows:
        now = leader_text(each.live.leader_id, each.live.leader_epoch)
        table.add_row(
            plain(" ".join(_place(each.row))),
            plain(each.row.topic_partition),
            plain(f"{leader_text(each.row.leader_id, each.row.leader_epoch)}*", OLD),
            plain(f"{now}, recreated" if each.recreated else now),
            plain(_behind(each)),
        )
    return table


def _behind(each: StaleRow) -> str:
    if each.behind_ms is not None:
        return f"{each.behind_ms / 1000:.1f} s at least"
    return "" if each.row.age_at_most_ms is None else f"{each.row.age_at_most_ms / 1000:.1f} s at most"


def _cell(row: CacheRow, newest: NewestEpochs) -> Text:
    text = leader_text(row.leader_id, row.leader_epoch)
    return plain(f"{text}*", OLD) if _is_old(row, newest) else plain(text)


def _is_old(row: CacheRow, newest: NewestEpochs) -> bool:
    partition = row.topic_partition
    return partition is not None and (row.leader_epoch or 0) < newest[row.topic_id, partition]


def leader_text(leader_id: int | None, epoch: int | None) -> str:
    """Leader and epoch of a partition: `2@14`."""
    return f"{'none' if leader_id == NO_LEADER else leader_id}@{epoch}"


def _place(row: CacheRow) -> tuple[str, str, str]:
    """The cache and its process, for people; also what caches are sorted by."""
    return joined(row.role, row.executor_id), process_name(row.host, row.pid) or UNKNOWN, row.cache_id[:ID_SHOWN]
