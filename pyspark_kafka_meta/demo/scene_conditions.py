"""What must be seen in the tables before a scene is over, as functions of the state; pure.

Each returns the figures in a few words, or None while it is not to be seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from pyspark_kafka_meta.cli.events_command import ID_SHOWN
from pyspark_kafka_meta.kafka_errors import FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, describe
from pyspark_kafka_meta.metadata.refresh_events import EventKind, Outcome
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.monitor.cluster_state import State, executor_name
from pyspark_kafka_meta.tables.caches_from_events import Event

Condition = Callable[[State], str | None]

LEADER_MOVED = {NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH}
NOT_BY_ERROR = {RefreshReason.BOOTSTRAP, RefreshReason.MAX_AGE, RefreshReason.ON_DEMAND, RefreshReason.NEW_TOPIC}


def one_told_all(state: State) -> str | None:
    """Every partition has a leader, and a cache learned all brokers from its first answer."""
    known = {row.node_id for row in state.brokers}
    told = [set(one["brokers_added"] or ()) for one in state.events if one["reason"] == RefreshReason.BOOTSTRAP]
    if not known or known not in told or any(row.leader_id not in known for row in state.partitions):
        return None
    ids = ", ".join(map(str, sorted(known)))
    return f"{state.brokers[0].answered_by} told of brokers {ids} and of {len(state.partitions)} leaders"


def failed_over(dead: Collection[str], since_ms: int) -> Condition:
    """A new client was refused by a dead address (host:port), and answered by another."""

    def seen(state: State) -> str | None:
        tried = [one for one in state.since(since_ms, "cli") if one["reason"] == RefreshReason.BOOTSTRAP]
        failed = [one for one in tried if one["outcome"] == Outcome.FAILED and _address(one) in dead]
        answered = [one for one in tried if one["outcome"] == Outcome.CHANGED]
        if not failed or not answered:
            return None
        lost_ms = sum(one["latency_ms"] or 0 for one in failed)
        return f"{len(failed)} tries at dead addresses cost {lost_ms:.1f} ms, then {_address(answered[0])} answered"

    return seen


def asked_by_id(state: State) -> str | None:
    """Once they know brokers, caches ask these and no bootstrap address."""
    asked = [
        one["broker_id"]
        for one in state.since(0)
        if one["kind"] == EventKind.REFRESH
        and one["generation_before"] > 0
        and one["reason"] != RefreshReason.REBOOTSTRAP
    ]
    return f"{len(asked)} requests went to brokers by id" if asked and None not in asked else None


def rebootstrapped(since_ms: int) -> Condition:
    """When all brokers were gone, the bootstrap list was used again, until one answered."""

    def seen(state: State) -> str | None:
        events = list(state.since(since_ms))
        tried = [one for one in events if one["reason"] == RefreshReason.REBOOTSTRAP]
        answers = [one["time_ms"] for one in events if one["outcome"] != Outcome.FAILED]
        known = asked_by_id(state)
        if not tried or known is None or max(answers, default=0) < tried[-1]["time_ms"]:
            return None
        return f"{known}; with all gone, the bootstrap list was tried {len(tried)} times, {_address(tried[0])} first"

    return seen


def fetched_without_asking(state: State) -> str | None:
    """Executors fetched more often than they asked for metadata."""
    events = list(state.since(0, "reader"))
    fetches = sum(_fetches(events).values())
    asked = sum(one["kind"] == EventKind.REFRESH for one in events)
    lookups = sum(one["lookups"] or 0 for one in events)
    if fetches <= asked:
        return None
    return f"{fetches} fetches and {lookups} look-ups on {asked} metadata requests"


def aged(since_ms: int) -> Condition:
    """An executor refreshed a cache that was old enough, though all was well."""

    def seen(state: State) -> str | None:
        for one in state.since(since_ms, "reader"):
            if one["reason"] == RefreshReason.MAX_AGE and one["outcome"] != Outcome.FAILED:
                return f"{_who(one)}'s cache was {one['age_ms'] / 1000:.1f} s old"
        return None

    return seen


def healed(partition: TopicPartition, old: int, since_ms: int) -> Condition:
    """An executor met an error, and learned the new leader of the partition by it."""

    def seen(state: State) -> str | None:
        found = [
            (one, move)
            for one in state.since(since_ms, "reader")
            for move in _moves(one, partition)
            if one["reason"] not in NOT_BY_ERROR and move["old_leader_id"] == old
        ]
        if not found:
            return None
        one, move = min(found, key=lambda pair: pair[0]["recovery_ms"] is None)
        return f"{_who(one)}: {one['reason']}, {partition} from {old} to {move['new_leader_id']}" + _ms(one)

    return seen


def demanded(since_ms: int) -> Condition:
    """A cache was refreshed because somebody asked for it."""

    def seen(state: State) -> str | None:
        for one in state.since(since_ms):
            if one["reason"] == RefreshReason.ON_DEMAND and one["outcome"] != Outcome.FAILED:
                return f"broker {one['broker_id']} answered in {one['latency_ms']:.1f} ms: {one['outcome']}"
        return None

    return seen


def side_by_side(state: State) -> str | None:
    """Two executors have a cache each."""
    readers = [row for row in state.caches if row.role == "reader" and row.topic is not None]
    ids = {executor_name(row.executor_id, row.pid): row.cache_id for row in readers}
    if len(ids) < 2:
        return None
    return "; ".join(f"{executor}: cache {cache_id[:ID_SHOWN]}" for executor, cache_id in sorted(ids.items()))


def learned_apart(partition: TopicPartition, epoch: int, since_ms: int) -> Condition:
    """Two executors learned of a leader epoch newer than `epoch`, each by an event of its own."""

    def seen(state: State) -> str | None:
        at_ms: dict[str, int] = {}
        for one in state.since(since_ms, "reader"):
            if any(learned > epoch for learned in _epochs(one, partition)):
                at_ms.setdefault(_who(one), one["time_ms"])
        if len(at_ms) < 2:
            return None
        first, second = sorted(at_ms, key=lambda each: at_ms[each])[:2]
        apart_s = (at_ms[second] - at_ms[first]) / 1000
        return f"{first} knew first; {second} was stale for {apart_s:.1f} s more"

    return seen


def left(broker_id: int, since_ms: int) -> Condition:
    """The broker leads nothing, and an executor has learned the new leader."""

    def seen(state: State) -> str | None:
        moved = [
            (one, move)
            for one in state.since(since_ms, "reader")
            for move in one["leaders_changed"] or ()
            if move["old_leader_id"] == broker_id and move["new_leader_id"] >= 0
        ]
        if not moved or any(row.leader_id == broker_id for row in state.partitions):
            return None
        one, move = moved[0]
        where = f"{move['topic']}-{move['partition']}"
        return f"{_who(one)}: {one['reason']}, {where} from {broker_id} to {move['new_leader_id']}" + _ms(one)

    return seen


def led_again(broker_id: int, since_ms: int) -> Condition:
    """The broker leads, and an executor knows."""

    def seen(state: State) -> str | None:
        moves = (move for one in state.since(since_ms, "reader") for move in one["leaders_changed"] or ())
        knows = any(move["new_leader_id"] == broker_id for move in moves)
        leads = any(row.leader_id == broker_id for row in state.partitions)
        return f"broker {broker_id} leads again" if knows and leads else None

    return seen


def refused(partition: TopicPartition, old: int, since_ms: int) -> Condition:
    """The broker that leads no more refused a fetch, and fetches went on elsewhere."""

    def seen(state: State) -> str | None:
        events = list(state.since(since_ms, "reader"))
        codes = [one["cause_error_code"] for one in events if one["cause_node_id"] == old]
        codes = [code for code in codes if code in LEADER_MOVED]
        counts = _fetches(events)
        leader = state.leader_of(partition)
        if not codes or leader == old or not counts[leader]:
            return None
        by_broker = ", ".join(f"broker {node_id}: {count}" for node_id, count in sorted(counts.items()))
        return f"broker {old} refused with {describe(codes[0])}; fetches at {by_broker}"

    return seen


def grew(partition: TopicPartition, since_ms: int) -> Condition:
    """A cache learned the partition, and the query reads it from its start."""

    def seen(state: State) -> str | None:
        told = [one for one in state.since(since_ms) if _epochs(one, partition)]
        position = state.positions.get(partition)
        if not told or position is None or not position.offset:
            return None
        return f"learned by {told[0]['reason']}; {partition} read from offset 0 to {position.offset}"

    return seen


def _moves(event: Event, partition: TopicPartition) -> list[Event]:
    return [one for one in event["leaders_changed"] or () if _is(one, partition)]


def _epochs(event: Event, partition: TopicPartition) -> list[int]:
    """The leader epochs of the partition that the event brought."""
    learned = [one["leader_epoch"] for one in event["partitions_learned"] or () if _is(one, partition)]
    return learned + [one["new_epoch"] for one in _moves(event, partition)]


def _is(change: Event, partition: TopicPartition) -> bool:
    return (change["topic"], change["partition"]) == (partition.topic, partition.partition)


def _fetches(events: Iterable[Event]) -> Counter[int]:
    """Fetch requests by broker."""
    counts: Counter[int] = Counter()
    for event in events:
        for one in event["fetches"] or ():
            counts[one["broker_id"]] += one["requests"]
    return counts


def _address(event: Event) -> str:
    return f"{event['broker_host']}:{event['broker_port']}"


def _who(event: Event) -> str:
    return executor_name(event["executor_id"], event["pid"])


def _ms(event: Event) -> str:
    return "" if event["recovery_ms"] is None else f", healed in {event['recovery_ms']:.0f} ms"
