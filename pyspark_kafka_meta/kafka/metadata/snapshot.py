"""`MetadataSnapshot`: the immutable metadata of a cluster, how a response or a hint makes the next, and the changes.

Within one topic id, leader epochs alone order responses (KIP-320, KIP-516): a broker that lags behind must not bring
back a replaced leader. A leader that was replaced may not know it: a broker that is cut off from the cluster, but not
from its clients, goes on responding. So a leader counts as unknown if a higher epoch is known, from a response, a hint,
or a plan (`with_epochs`). `EpochRewind` is the exception: lower epochs are accepted if the cluster lost its metadata.
Follows Kafka's `MetadataSnapshot` and `Metadata.updateLatestMetadata`, and franz-go's `mergeTopicPartitions`, which
accepts lower epochs after as many responses; here several brokers must agree too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from pyspark_kafka_meta.kafka.protocol.error_codes import TOPIC_MISSING
from pyspark_kafka_meta.model import (
    NO_EPOCH,
    NO_LEADER,
    Broker,
    LeaderAndEpoch,
    LeaderHint,
    MetadataResponse,
    PartitionMetadata,
    TopicEpoch,
    TopicMetadata,
    TopicPartition,
    is_other_topic,
)

IGNORED_RESPONSES = 5
"""Consecutive responses with the same lower epoch that are ignored. The next one is accepted if brokers agree."""
REQUIRED_BROKERS = 3
"""Brokers that must have reported the lower epoch, or all brokers if there are fewer: two may be cut off together."""


# --- changes, as in events ------------------------------------------------------------------------------------


class LeaderChange(NamedTuple):
    """Leader or epoch of a partition changed. -1: no leader, or no epoch."""

    topic: str
    partition: int
    old_leader_id: int
    new_leader_id: int
    old_epoch: int
    new_epoch: int


class TopicRecreated(NamedTuple):
    """A topic was recreated under its name: its log is a new one (KIP-516)."""

    topic: str
    old_id: str
    new_id: str


class PartitionLearned(NamedTuple):
    """Leader of a partition that is new or belongs to a new log. -1: no leader or epoch. None: no topic id."""

    topic: str
    partition: int
    leader_id: int
    leader_epoch: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotChanges:
    """The metadata changes of one response or hint, ordered by id or name. Applied in sequence, the changes of all
    events of a cache yield its metadata.

    Attributes:
        brokers_moved: with a new host or port.
        topics_recreated: with a new topic id.
        partitions_added: of known topics.
        partitions_removed: that a recreated topic lost.
        partitions_learned: leaders in topics_added, topics_recreated and partitions_added.
        leaders_changed: known partitions with a new leader or epoch.
        stale_ignored: partitions with an older epoch in the response, or none.
    """

    brokers_added: tuple[int, ...] = ()
    brokers_removed: tuple[int, ...] = ()
    brokers_moved: tuple[int, ...] = ()
    topics_added: tuple[str, ...] = ()
    topics_removed: tuple[str, ...] = ()
    topics_recreated: tuple[TopicRecreated, ...] = ()
    partitions_added: tuple[TopicPartition, ...] = ()
    partitions_removed: tuple[TopicPartition, ...] = ()
    partitions_learned: tuple[PartitionLearned, ...] = ()
    leaders_changed: tuple[LeaderChange, ...] = ()
    stale_ignored: int = 0

    def __bool__(self) -> bool:
        """Whether anything changed; an ignored response changes nothing."""
        return replace(self, stale_ignored=0) != SnapshotChanges()

    def gives_leader(self, partition: TopicPartition) -> bool:
        """Whether a new leader of `partition` is known."""
        news = [(change.topic, change.partition, change.new_leader_id) for change in self.leaders_changed]
        news += [(learned.topic, learned.partition, learned.leader_id) for learned in self.partitions_learned]
        return any((topic, number) == partition and leader != NO_LEADER for topic, number, leader in news)


# --- snapshots --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EpochRewind:
    """A lower epoch of one partition in consecutive responses, ignored so far.

    Attributes:
        responses: number of these responses.
        broker_ids: brokers that reported the epoch, as far as known.
    """

    leader_epoch: int
    responses: int = 0
    broker_ids: frozenset[int] = frozenset()

    def reported_again(self, leader_epoch: int, broker_id: int | None) -> EpochRewind:
        """After one more response. A different lower epoch restarts the count."""
        before = self if leader_epoch == self.leader_epoch else EpochRewind(leader_epoch)
        broker_ids = before.broker_ids if broker_id is None else before.broker_ids | {broker_id}
        return EpochRewind(leader_epoch, before.responses + 1, broker_ids)

    def is_confirmed(self, broker_count: int) -> bool:
        """Whether the epoch is accepted in a cluster of `broker_count` brokers. One stale broker among several never
        suffices, however often it responds."""
        return self.responses > IGNORED_RESPONSES and len(self.broker_ids) >= min(REQUIRED_BROKERS, broker_count)


@dataclass(frozen=True, slots=True)
class TopicView:
    """The metadata of one topic.

    Attributes:
        topic_id: None if brokers do not report it.
        partitions: by number.
        epochs: highest known leader epoch by partition number; kept if a response has no epoch. Higher than the epoch
            in `partitions` if no response has named the leader of this epoch yet.
        rewinds: lower epochs in the last responses by partition number.
    """

    topic_id: UUID | None
    partitions: Mapping[int, PartitionMetadata]
    epochs: Mapping[int, int]
    rewinds: Mapping[int, EpochRewind] = field(default_factory=dict)


@dataclass(frozen=True)
class MetadataSnapshot:
    """The metadata of a cache at one time. Empty before the first response.

    Attributes:
        generation: number of successful refreshes. Errors of requests that used an older generation need no refresh.
        cluster_id: None if brokers do not report it.
        brokers: by node id.
        topics: by name, as last reported without an error.
        missing_topics: by name, topics that the last response reported missing. A topic that returns with its old id is
            the same topic: a broker that is starting up may miss it.
        topic_errors: Kafka's error code in the last response, by topic.
        fetched_at: seconds of the cache's clock at the last successful refresh.
        reported_by: node id of the broker that responded to the last successful refresh, None if unknown.
    """

    generation: int = 0
    cluster_id: str | None = None
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    missing_topics: Mapping[str, TopicView] = field(default_factory=dict)
    topic_errors: Mapping[str, int] = field(default_factory=dict)
    fetched_at: float = 0.0
    reported_by: int | None = None

    def leader(self, partition: TopicPartition) -> LeaderAndEpoch | None:
        """The broker to fetch from; None if the partition, its leader or the leader's address is unknown, or the leader
        was replaced."""
        topic, number = partition
        view = self.topics.get(topic)
        if view is None or (known := view.partitions.get(number)) is None or _is_replaced(known, view.epochs[number]):
            return None
        broker = self.brokers.get(known.leader_id)
        return None if broker is None else LeaderAndEpoch(broker, known.leader_epoch)

    def replaced_leader(self, partition: TopicPartition) -> str | None:
        """Why the leader that brokers name does not count, for an error; None if it counts, or brokers name none."""
        known = self._known(partition)
        if known is None or not _is_replaced(known, epoch := self.topics[partition.topic].epochs[partition.partition]):
            return None
        return (
            f"brokers name a leader of {partition} in epoch {known.leader_epoch}, and a leader in epoch {epoch} has "
            "replaced it: they lag behind or are cut off from the cluster, and this host cannot reach the other brokers"
        )

    def is_leader_confirmed(self, partition: TopicPartition) -> bool:
        """Whether the last response came from another broker than the leader, and names this leader too; or all other
        brokers name leaders of lower epochs: they are cut off, or there are none."""
        leader = self.leader(partition)
        if leader is None or partition.topic in self.topic_errors:
            return False
        rewind = self.topics[partition.topic].rewinds.get(partition.partition, EpochRewind(NO_EPOCH))
        if self.brokers.keys() - {leader.broker.node_id} <= rewind.broker_ids:
            return True
        return self.reported_by not in (None, leader.broker.node_id) and rewind.responses == 0

    def is_agreed(self, reporters: Collection[int | None]) -> bool:
        """Whether these brokers suffice for what nobody can check, such as that a topic is gone: two, or the only one.
        One may lag behind, or be cut off from the cluster. None is an unknown broker, perhaps one of the others."""
        return len(set(reporters) - {None}) >= min(2, len(self.brokers))

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """The partitions of `topic` in order, with and without leader; empty if the topic is unknown. Made
        once, as a planner asks several times for ten thousand partitions."""
        if topic not in self._partitions and topic in self.topics:
            numbers = sorted(self.topics[topic].partitions)
            self._partitions[topic] = tuple(TopicPartition(topic, number) for number in numbers)
        return self._partitions.get(topic, ())

    @cached_property
    def _partitions(self) -> dict[str, tuple[TopicPartition, ...]]:
        """By topic, as far as they were asked for."""
        return {}

    def topic_id(self, topic: str) -> UUID | None:
        view = self.topics.get(topic)
        return None if view is None else view.topic_id

    def merge(
        self, response: MetadataResponse, now: float, broker_id: int | None = None
    ) -> tuple[MetadataSnapshot, SnapshotChanges]:
        """The next generation. Topics that the response does not name stay; its brokers replace all brokers.

        Args:
            broker_id: node id of the broker that responded, None if unknown.
        """
        topics, missing, stale = dict(self.topics), {}, 0
        for topic in response.topics:
            known = self.topics.get(topic.name) or self.missing_topics.get(topic.name)
            if topic.error_code in TOPIC_MISSING:
                topics.pop(topic.name, None)
            elif topic.error_code == 0:
                topics[topic.name], ignored = _merge_topic(known, topic, len(response.brokers), broker_id)
                stale += ignored
            if topic.name not in topics and known is not None and known.topic_id is not None:
                missing[topic.name] = known
        merged = MetadataSnapshot(
            generation=self.generation + 1,
            cluster_id=response.cluster_id,
            brokers={broker.node_id: broker for broker in response.brokers},
            topics=topics,
            missing_topics=missing,
            topic_errors={topic.name: topic.error_code for topic in response.topics if topic.error_code != 0},
            fetched_at=now,
            reported_by=broker_id,
        )
        return merged, _difference(self, merged, self.topics.keys() & topics.keys(), stale)

    def with_epochs(self, epochs: Mapping[TopicPartition, TopicEpoch]) -> MetadataSnapshot:
        """The same generation, in which leaders of lower epochs count as replaced. Unknown partitions, and topics with
        another id, stay as they are. Follows Kafka's `Metadata.updateLastSeenEpochIfNewer`."""
        raised: dict[str, dict[int, int]] = {}
        for (topic, number), (topic_id, epoch) in epochs.items():
            view = self.topics.get(topic)
            if view is not None and view.topic_id == topic_id and view.epochs.get(number, epoch) < epoch:
                raised.setdefault(topic, {})[number] = epoch
        views = {
            name: replace(view, epochs={**view.epochs, **raised[name]})
            for name, view in self.topics.items()
            if name in raised
        }
        return replace(self, topics={**self.topics, **views}) if views else self

    def with_leader_hint(
        self, partition: TopicPartition, hint: LeaderHint
    ) -> tuple[MetadataSnapshot, SnapshotChanges] | None:
        """The same generation with the leader and endpoint of the hint (KIP-951). None if the hint must be ignored: its
        epoch is lower than a known one, or that of the known leader, or the partition or the leader's address is
        unknown."""
        known = self._known(partition)
        leader = hint.broker or self.brokers.get(hint.leader_id)
        if known is None or leader is None:
            return None
        view, number = self.topics[partition.topic], partition.partition
        if hint.leader_epoch < view.epochs[number] or hint.leader_epoch <= known.leader_epoch:
            return None
        with_leader = replace(known, leader_id=hint.leader_id, leader_epoch=hint.leader_epoch, error_code=0)
        rewinds = {other: rewind for other, rewind in view.rewinds.items() if other != number}
        hinted = replace(
            view,
            partitions={**view.partitions, number: with_leader},
            epochs={**view.epochs, number: hint.leader_epoch},
            rewinds=rewinds,
        )
        after = replace(
            self, brokers={**self.brokers, hint.leader_id: leader}, topics={**self.topics, partition.topic: hinted}
        )
        return after, _difference(self, after, {partition.topic})

    def _known(self, partition: TopicPartition) -> PartitionMetadata | None:
        view = self.topics.get(partition.topic)
        return None if view is None else view.partitions.get(partition.partition)


def _is_replaced(known: PartitionMetadata, epoch: int) -> bool:
    """Whether its leader is of a lower epoch than the highest known epoch."""
    return NO_EPOCH < known.leader_epoch < epoch


def _merge_topic(
    known: TopicView | None, reported: TopicMetadata, broker_count: int, broker_id: int | None
) -> tuple[TopicView, int]:
    """The new view of a topic, and the number of partitions for which the response is ignored."""
    if known is None or (reported.topic_id is not None and reported.topic_id != known.topic_id):
        known = TopicView(reported.topic_id, {}, {})
    # Kafka never removes partitions of a topic: a broker that misses some lags behind. Without topic ids, the topic may
    # have been recreated with fewer.
    partitions = dict(known.partitions) if known.topic_id is not None else {}
    epochs = {number: known.epochs[number] for number in partitions}
    rewinds: dict[int, EpochRewind] = {}
    missing_count = len(partitions.keys() - {partition.partition for partition in reported.partitions})
    for partition in reported.partitions:
        number = partition.partition
        old, highest = known.partitions.get(number), known.epochs.get(number, NO_EPOCH)
        rewind = _rewind(known, partition, broker_id)
        if old is None:
            partitions[number], epochs[number] = partition, partition.leader_epoch
        elif rewind is not None and not rewind.is_confirmed(broker_count):
            partitions[number], epochs[number], rewinds[number] = old, highest, rewind
        else:
            partitions[number] = _with_known_epoch(partition, old)
            epochs[number] = partition.leader_epoch if rewind is not None else max(highest, partition.leader_epoch)
    return TopicView(known.topic_id, partitions, epochs, rewinds), missing_count + len(rewinds)


def _rewind(known: TopicView, reported: PartitionMetadata, broker_id: int | None) -> EpochRewind | None:
    """The lower epoch in the response, with the brokers that reported it lately; None if the epoch is not lower."""
    number, epoch = reported.partition, reported.leader_epoch
    if epoch == NO_EPOCH or epoch >= known.epochs.get(number, NO_EPOCH):
        return None
    return known.rewinds.get(number, EpochRewind(epoch)).reported_again(epoch, broker_id)


def _with_known_epoch(reported: PartitionMetadata, old: PartitionMetadata) -> PartitionMetadata:
    """Keeps the known epoch of an unchanged leader if the response has no epoch."""
    if reported.leader_epoch == NO_EPOCH and reported.leader_id == old.leader_id:
        return replace(reported, leader_epoch=old.leader_epoch)
    return reported


def _difference(
    before: MetadataSnapshot, after: MetadataSnapshot, topics: Collection[str], stale_ignored: int = 0
) -> SnapshotChanges:
    """The changes between two snapshots. Leaders, partitions and ids are compared in `topics`, which both have."""
    common = sorted(topics)
    old = {partition for topic in common for partition in before.partitions(topic)}
    new = {partition for topic in common for partition in after.partitions(topic)}
    moved = [
        node_id
        for node_id in before.brokers.keys() & after.brokers.keys()
        if before.brokers[node_id].address != after.brokers[node_id].address
    ]
    topics_added = sorted(after.topics.keys() - before.topics.keys())
    ids = [(topic, before.topics[topic].topic_id, after.topics[topic].topic_id) for topic in common]
    recreated = tuple(TopicRecreated(topic, str(of), str(to)) for topic, of, to in ids if is_other_topic(of, to))
    new_logs = [*topics_added, *(topic.topic for topic in recreated)]
    learned = {partition for topic in new_logs for partition in after.partitions(topic)} | (new - old)
    return SnapshotChanges(
        brokers_added=tuple(sorted(after.brokers.keys() - before.brokers.keys())),
        brokers_removed=tuple(sorted(before.brokers.keys() - after.brokers.keys())),
        brokers_moved=tuple(sorted(moved)),
        topics_added=tuple(topics_added),
        topics_removed=tuple(sorted(before.topics.keys() - after.topics.keys())),
        topics_recreated=recreated,
        partitions_added=tuple(sorted(new - old)),
        partitions_removed=tuple(sorted(old - new)),
        partitions_learned=tuple(_learned(after, partition) for partition in sorted(learned)),
        leaders_changed=tuple(_leader_changes(before, after, sorted(old & new))),
        stale_ignored=stale_ignored,
    )


def _learned(after: MetadataSnapshot, partition: TopicPartition) -> PartitionLearned:
    view = after.topics[partition.topic]
    known, topic_id = view.partitions[partition.partition], None if view.topic_id is None else str(view.topic_id)
    return PartitionLearned(partition.topic, partition.partition, known.leader_id, known.leader_epoch, topic_id)


def _leader_changes(
    before: MetadataSnapshot, after: MetadataSnapshot, partitions: Iterable[TopicPartition]
) -> Iterator[LeaderChange]:
    for topic, number in partitions:
        old, new = before.topics[topic].partitions[number], after.topics[topic].partitions[number]
        if (old.leader_id, old.leader_epoch) != (new.leader_id, new.leader_epoch):
            yield LeaderChange(topic, number, old.leader_id, new.leader_id, old.leader_epoch, new.leader_epoch)
