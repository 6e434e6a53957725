"""`MetadataSnapshot`: what a cache knows of the cluster, immutable, and how an answer or a hint makes the next one.

Answers are ordered by leader epoch alone, within one topic id (KIP-320, KIP-516): a broker that lags behind must not
lead back to a leader that was replaced; `rewinds` has the one exception. Follows Kafka's `MetadataSnapshot` and
`Metadata.updateLatestMetadata`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from pyspark_kafka_meta.kafka_errors import TOPIC_MISSING
from pyspark_kafka_meta.metadata.epoch_rewinds import Rewind
from pyspark_kafka_meta.metadata.snapshot_changes import LeaderChange, PartitionLearned, SnapshotChanges, TopicRecreated
from pyspark_kafka_meta.model import (
    NO_EPOCH,
    Broker,
    LeaderAndEpoch,
    LeaderHint,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
    is_other_topic,
)


@dataclass(frozen=True, slots=True)
class TopicView:
    """What is known of one topic.

    Attributes:
        topic_id: None where brokers do not report it.
        partitions: by number.
        epochs: highest leader epoch seen, by partition number; it outlives answers that bring none.
        rewinds: lower epochs in the last answers, by partition number.
    """

    topic_id: UUID | None
    partitions: Mapping[int, PartitionMetadata]
    epochs: Mapping[int, int]
    rewinds: Mapping[int, Rewind] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """What the cache knew at one time. Empty before the first answer.

    Attributes:
        generation: number of good answers so far. Requests name it, so that trouble with an older one is known to be
            answered already.
        cluster_id: None where brokers do not report it.
        brokers: by node id.
        topics: by name, the last good view of each.
        topics_gone: by name, the last good view of each that the last answer had not. One that comes back under its id
            is no other for having been away, as a broker that is starting up may say.
        topic_errors: Kafka's error code of the last answer, by topic; callers judge them.
        fetched_at: seconds of the cache's clock when the last good answer came.
    """

    generation: int = 0
    cluster_id: str | None = None
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    topics_gone: Mapping[str, TopicView] = field(default_factory=dict)
    topic_errors: Mapping[str, int] = field(default_factory=dict)
    fetched_at: float = 0.0

    def leader(self, partition: TopicPartition) -> LeaderAndEpoch | None:
        """The broker to fetch from; None if the partition is unknown, has no leader, or one that is no known broker."""
        known = self._known(partition)
        broker = self.brokers.get(known.leader_id) if known is not None else None
        return None if known is None or broker is None else LeaderAndEpoch(broker, known.leader_epoch)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of `topic` in order, those without a leader too; empty if the topic is not known."""
        view = self.topics.get(topic)
        return [] if view is None else [TopicPartition(topic, number) for number in sorted(view.partitions)]

    def topic_id(self, topic: str) -> UUID | None:
        view = self.topics.get(topic)
        return None if view is None else view.topic_id

    def merge(
        self, answer: MetadataResponse, now: float, told_by: int | None = None
    ) -> tuple[MetadataSnapshot, SnapshotChanges]:
        """The next generation. What `answer` does not mention stays, except brokers: it names all of them.

        Args:
            told_by: node id of the broker that answered, None if the address asked is no known broker's.
        """
        topics, gone, stale = dict(self.topics), {}, 0
        for told in answer.topics:
            known = self.topics.get(told.name) or self.topics_gone.get(told.name)
            if told.error_code in TOPIC_MISSING:
                topics.pop(told.name, None)
            elif told.error_code == 0:
                topics[told.name], refused = _merge_topic(known, told, len(answer.brokers), told_by)
                stale += refused
            if told.name not in topics and known is not None and known.topic_id is not None:
                gone[told.name] = known
        merged = MetadataSnapshot(
            generation=self.generation + 1,
            cluster_id=answer.cluster_id,
            brokers={broker.node_id: broker for broker in answer.brokers},
            topics=topics,
            topics_gone=gone,
            topic_errors={told.name: told.error_code for told in answer.topics if told.error_code != 0},
            fetched_at=now,
        )
        return merged, _difference(self, merged, self.topics.keys() & topics.keys(), stale)

    def with_leader_hint(
        self, partition: TopicPartition, hint: LeaderHint
    ) -> tuple[MetadataSnapshot, SnapshotChanges] | None:
        """The same generation with the leader that a broker named (KIP-951), at the endpoint that came along.

        Returns:
            None where the hint must not be taken: its epoch is not strictly newer than any seen, the partition is
            unknown, or the leader's address is.
        """
        known = self._known(partition)
        leader = hint.broker or self.brokers.get(hint.leader_id)
        if known is None or leader is None:
            return None
        view, number = self.topics[partition.topic], partition.partition
        if hint.leader_epoch <= view.epochs[number]:
            return None
        led = replace(known, leader_id=hint.leader_id, leader_epoch=hint.leader_epoch, error_code=0)
        rewinds = {other: rewind for other, rewind in view.rewinds.items() if other != number}
        hinted = replace(
            view,
            partitions={**view.partitions, number: led},
            epochs={**view.epochs, number: hint.leader_epoch},
            rewinds=rewinds,
        )
        taken = replace(
            self, brokers={**self.brokers, hint.leader_id: leader}, topics={**self.topics, partition.topic: hinted}
        )
        return taken, _difference(self, taken, {partition.topic})

    def _known(self, partition: TopicPartition) -> PartitionMetadata | None:
        view = self.topics.get(partition.topic)
        return None if view is None else view.partitions.get(partition.partition)


def _merge_topic(
    known: TopicView | None, told: TopicMetadata, brokers: int, told_by: int | None
) -> tuple[TopicView, int]:
    """The new view of a topic that came without an error, and the number of partitions where the old one stays."""
    if known is None or (told.topic_id is not None and told.topic_id != known.topic_id):
        known = TopicView(told.topic_id, {}, {})
    # Partitions of a topic are never taken away: a broker that lacks some lags behind. Without an id, the topic may
    # have been recreated with fewer.
    partitions = dict(known.partitions) if known.topic_id is not None else {}
    epochs = {number: known.epochs[number] for number in partitions}
    rewinds: dict[int, Rewind] = {}
    lacking = len(partitions.keys() - {one.partition for one in told.partitions})
    for one in told.partitions:
        number = one.partition
        old, seen = known.partitions.get(number), known.epochs.get(number, NO_EPOCH)
        rewind = _rewind(known, one, told_by)
        if old is None:
            partitions[number], epochs[number] = one, one.leader_epoch
        elif rewind is not None and not rewind.is_believed(brokers):
            partitions[number], epochs[number], rewinds[number] = old, seen, rewind
        else:
            partitions[number] = _with_epoch_kept(one, old)
            epochs[number] = one.leader_epoch if rewind is not None else max(seen, one.leader_epoch)
    return TopicView(known.topic_id, partitions, epochs, rewinds), lacking + len(rewinds)


def _rewind(known: TopicView, told: PartitionMetadata, told_by: int | None) -> Rewind | None:
    """The lower epoch in the answer, with all brokers that reported it lately; None where the epoch is not lower."""
    if told.leader_epoch == NO_EPOCH or told.leader_epoch >= known.epochs.get(told.partition, NO_EPOCH):
        return None
    return known.rewinds.get(told.partition, Rewind(told.leader_epoch)).told_again(told.leader_epoch, told_by)


def _with_epoch_kept(told: PartitionMetadata, old: PartitionMetadata) -> PartitionMetadata:
    """An answer without an epoch is no reason to forget that of a leader that stays."""
    same_leader = told.leader_id == old.leader_id
    return replace(told, leader_epoch=old.leader_epoch) if told.leader_epoch == NO_EPOCH and same_leader else told


def _difference(
    before: MetadataSnapshot, after: MetadataSnapshot, topics: Collection[str], stale_ignored: int = 0
) -> SnapshotChanges:
    """What differs; leaders, partitions and ids are compared in `topics` alone, which both know."""
    lasting = sorted(topics)
    old = {partition for topic in lasting for partition in before.partitions(topic)}
    new = {partition for topic in lasting for partition in after.partitions(topic)}
    moved = [
        node_id
        for node_id in before.brokers.keys() & after.brokers.keys()
        if before.brokers[node_id].address != after.brokers[node_id].address
    ]
    topics_added = sorted(after.topics.keys() - before.topics.keys())
    recreated = tuple(_recreations(before, after, lasting))
    new_logs = [*topics_added, *(one.topic for one in recreated)]
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
        partitions_learned=tuple(_learned(after, one) for one in sorted(learned)),
        leaders_changed=tuple(_leader_changes(before, after, sorted(old & new))),
        stale_ignored=stale_ignored,
    )


def _learned(after: MetadataSnapshot, partition: TopicPartition) -> PartitionLearned:
    view = after.topics[partition.topic]
    known, topic_id = view.partitions[partition.partition], None if view.topic_id is None else str(view.topic_id)
    return PartitionLearned(partition.topic, partition.partition, known.leader_id, known.leader_epoch, topic_id)


def _recreations(before: MetadataSnapshot, after: MetadataSnapshot, topics: Iterable[str]) -> Iterator[TopicRecreated]:
    for topic in topics:
        old_id, new_id = before.topics[topic].topic_id, after.topics[topic].topic_id
        if is_other_topic(old_id, new_id):
            yield TopicRecreated(topic, str(old_id), str(new_id))


def _leader_changes(
    before: MetadataSnapshot, after: MetadataSnapshot, partitions: Iterable[TopicPartition]
) -> Iterator[LeaderChange]:
    for topic, number in ((one.topic, one.partition) for one in partitions):
        old, new = before.topics[topic].partitions[number], after.topics[topic].partitions[number]
        if (old.leader_id, old.leader_epoch) != (new.leader_id, new.leader_epoch):
            yield LeaderChange(topic, number, old.leader_id, new.leader_id, old.leader_epoch, new.leader_epoch)
