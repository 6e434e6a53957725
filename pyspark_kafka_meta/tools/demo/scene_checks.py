"""What must be visible in the tables before a scene is over; pure.

Each check describes what it sees in the state in a few words, or returns None while it sees nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pyspark_kafka_meta.events.event import EventKind, Outcome
from pyspark_kafka_meta.kafka.protocol.error_codes import FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, describe
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tools.cluster_state import EXECUTOR_ROLES, ClusterState, requests_by_broker
from pyspark_kafka_meta.tools.formatting import ID_SHOWN, executor_name, recovery_text

Check = Callable[[ClusterState], str | None]

WITHOUT_ERROR = {RefreshReason.BOOTSTRAP, RefreshReason.MAX_AGE, RefreshReason.ON_DEMAND, RefreshReason.NEW_TOPIC}


def all_learned_from_first_response(state: ClusterState) -> str | None:
    """Every partition has a leader, and a cache learned all brokers from its first response."""
    known = {row.node_id for row in state.brokers}
    first = [event for event in state.events if event["reason"] == RefreshReason.BOOTSTRAP]
    learned = [set(event["brokers_added"] or ()) for event in first]
    if not known or known not in learned or any(row.leader_id not in known for row in state.partitions):
        return None
    ids = ", ".join(map(str, sorted(known)))
    return f"{state.brokers[0].answered_by} reported brokers {ids} and {len(state.partitions)} leaders"


def bootstrap_failed_over(state: ClusterState, dead: Collection[str], since_ms: int) -> str | None:
    """A new client tried a dead address (host:port), and another one responded."""
    tried = [event for event in state.since(since_ms, "cli") if event["reason"] == RefreshReason.BOOTSTRAP]
    failed = [event for event in tried if event["outcome"] == Outcome.FAILED and _address(event) in dead]
    responses = [event for event in tried if event["outcome"] == Outcome.CHANGED]
    if not failed or not responses:
        return None
    lost_ms = sum(event["latency_ms"] or 0 for event in failed)
    return f"{len(failed)} attempts at dead addresses took {lost_ms:.1f} ms, then {_address(responses[0])} answered"


def brokers_asked_by_id(state: ClusterState) -> str | None:
    """Caches that know brokers ask them, and no bootstrap address."""
    broker_ids = [
        event["broker_id"]
        for event in state.since(0)
        if event["kind"] == EventKind.REFRESH
        and event["generation_before"] > 0
        and event["reason"] != RefreshReason.REBOOTSTRAP
    ]
    return f"{len(broker_ids)} requests went to brokers by id" if broker_ids and None not in broker_ids else None


def rebootstrapped(state: ClusterState, since_ms: int) -> str | None:
    """While all brokers were gone, the bootstrap addresses were tried again, until one responded."""
    events = list(state.since(since_ms))
    tried = [event for event in events if event["reason"] == RefreshReason.REBOOTSTRAP]
    responses_ms = [event["time_ms"] for event in events if event["outcome"] != Outcome.FAILED]
    by_id = brokers_asked_by_id(state)
    if not tried or by_id is None or max(responses_ms, default=0) < tried[-1]["time_ms"]:
        return None
    return f"{by_id}; with all gone, the bootstrap list was tried {len(tried)} times, {_address(tried[0])} first"


def more_fetches_than_refreshes(state: ClusterState) -> str | None:
    """Executors sent more Fetch requests than Metadata requests."""
    events = list(state.of_executors(0))
    fetches = sum(requests_by_broker(events, "fetches").values())
    refreshes = sum(event["kind"] == EventKind.REFRESH for event in events)
    lookups = sum(event["lookups"] or 0 for event in events)
    if fetches <= refreshes:
        return None
    return f"{fetches} fetches and {lookups} look-ups on {refreshes} metadata requests"


def refreshed_by_age(state: ClusterState, since_ms: int) -> str | None:
    for event in state.of_executors(since_ms):
        if event["reason"] == RefreshReason.MAX_AGE and event["outcome"] != Outcome.FAILED:
            return f"{_executor(event)}'s cache was {event['age_ms'] / 1000:.1f} s old"
    return None


def refreshed_by_error(state: ClusterState, partition: TopicPartition, old: int, since_ms: int) -> str | None:
    """An executor met an error, and learned the new leader of the partition, which broker `old` led."""
    moves = [
        (event, change)
        for event in state.of_executors(since_ms)
        for change in _leader_changes(event, partition)
        if event["reason"] not in WITHOUT_ERROR and change["old_leader_id"] == old
    ]
    return _move_text(*min(moves, key=lambda move: move[0]["recovery_ms"] is None)) if moves else None


def refreshed_on_demand(state: ClusterState, since_ms: int) -> str | None:
    for event in state.since(since_ms):
        if event["reason"] == RefreshReason.ON_DEMAND and event["outcome"] != Outcome.FAILED:
            return f"broker {event['broker_id']} answered in {event['latency_ms']:.1f} ms: {event['outcome']}"
    return None


def one_cache_per_executor(state: ClusterState) -> str | None:
    rows = [row for row in state.cache_rows() if row.role in EXECUTOR_ROLES and row.topic is not None]
    ids = {executor_name(row.executor_id, row.pid): row.cache_id for row in rows}
    if len(ids) < 2:
        return None
    return "; ".join(f"{executor}: cache {cache_id[:ID_SHOWN]}" for executor, cache_id in sorted(ids.items()))


def learned_separately(state: ClusterState, partition: TopicPartition, epoch: int, since_ms: int) -> str | None:
    """Two executors learned a leader epoch newer than `epoch`, each by an event of its own."""
    learned_ms: dict[str, int] = {}
    for event in state.of_executors(since_ms):
        if any(learned > epoch for learned in _epochs(event, partition)):
            learned_ms.setdefault(_executor(event), event["time_ms"])
    if len(learned_ms) < 2:
        return None
    (first, first_ms), (second, second_ms) = sorted(learned_ms.items(), key=lambda item: item[1])[:2]
    return f"{first} knew first; {second} was stale for {(second_ms - first_ms) / 1000:.1f} s more"


def broker_leads_nothing(state: ClusterState, broker_id: int, since_ms: int) -> str | None:
    """The broker leads nothing, and an executor has learned the new leader of a partition."""
    moves = [
        (event, change)
        for event in state.of_executors(since_ms)
        for change in event["leaders_changed"] or ()
        if change["old_leader_id"] == broker_id and change["new_leader_id"] >= 0
    ]
    if not moves or any(row.leader_id == broker_id for row in state.partitions):
        return None
    return _move_text(*moves[0])


def broker_leads_again(state: ClusterState, broker_id: int, since_ms: int) -> str | None:
    changes = (change for event in state.of_executors(since_ms) for change in event["leaders_changed"] or ())
    is_known = any(change["new_leader_id"] == broker_id for change in changes)
    leads = any(row.leader_id == broker_id for row in state.partitions)
    return f"broker {broker_id} leads again" if is_known and leads else None


def old_leader_left(
    state: ClusterState, partition: TopicPartition, old: int, since_ms: int, requests: str = "fetches"
) -> str | None:
    """These `requests`, fetches or produces, go to the new leader: the old one refused one of them, or a plan with a
    newer leader epoch came before any."""
    events = list(state.of_executors(since_ms))
    caused = [event for event in events if event["cause_topic"] == partition.topic]
    refusals = [
        f"broker {old} refused with {describe(event['cause_error_code'])}"
        for event in caused
        if event["cause_node_id"] == old and event["cause_error_code"] in (NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH)
    ]
    told = [
        f"a plan with a newer leader epoch came before a request to broker {old}"
        for event in caused
        if event["reason"] == RefreshReason.REPLACED_LEADER and event["cause_partition"] == partition.partition
    ]
    counts = requests_by_broker(events, requests)
    leader = state.leader_of(partition)
    if not (refusals or told) or leader == old or not counts[leader]:
        return None
    by_broker = ", ".join(f"broker {node_id}: {count}" for node_id, count in sorted(counts.items()))
    return f"{(refusals or told)[0]}; {requests} at {by_broker}"


def new_partition_read(state: ClusterState, partition: TopicPartition, since_ms: int) -> str | None:
    """A cache learned the partition, and the query reads it from its start."""
    learned = [event for event in state.since(since_ms) if _epochs(event, partition)]
    position = state.positions.get(partition)
    if not learned or position is None or not position.offset:
        return None
    return f"learned by {learned[0]['reason']}; {partition} read from offset 0 to {position.offset}"


def records_written(state: ClusterState, partition: TopicPartition, from_offset: int) -> str | None:
    end_offset = state.end_offset_of(partition)
    return f"{partition} written from offset {from_offset} to {end_offset}" if end_offset > from_offset else None


def one_key_read(state: ClusterState, ends: Collection[Mapping[TopicPartition, int]]) -> str | None:
    """Every write went to the same partition, and the query has read up to its end."""
    (partition, *others) = {partition for end in ends for partition in end}
    position, end_offset = state.positions.get(partition), max(end[partition] for end in ends if partition in end)
    if others or position is None or position.offset < end_offset:
        return None
    return f"{len(ends)} writes of one key went to {partition}; the query has read up to offset {position.offset}"


def both(first: Check, second: Check) -> Check:

    def check(state: ClusterState) -> str | None:
        seen = first(state), second(state)
        return None if None in seen else "; ".join(map(str, seen))

    return check


def _leader_changes(event: EventRow, partition: TopicPartition) -> list[EventRow]:
    return [change for change in event["leaders_changed"] or () if _partition(change) == partition]


def _epochs(event: EventRow, partition: TopicPartition) -> list[int]:
    """The leader epochs of the partition that the event brought."""
    learned = [change for change in event["partitions_learned"] or () if _partition(change) == partition]
    changed = _leader_changes(event, partition)
    return [change["leader_epoch"] for change in learned] + [change["new_epoch"] for change in changed]


def _partition(change: EventRow) -> TopicPartition:
    return TopicPartition(change["topic"], change["partition"])


def _move_text(event: EventRow, change: EventRow) -> str:
    move = f"{_partition(change)} from {change['old_leader_id']} to {change['new_leader_id']}"
    return f"{_executor(event)}: {event['reason']}, {move}{recovery_text(event)}"


def _address(event: EventRow) -> str:
    return f"{event['broker_host']}:{event['broker_port']}"


def _executor(event: EventRow) -> str:
    return executor_name(event["executor_id"], event["pid"])
