"""The changes of a metadata snapshot by one response or hint, as in refresh events."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark_kafka_meta.model import NO_LEADER, TopicPartition


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """Leader or epoch of a partition changed. -1: no leader, or no epoch."""

    topic: str
    partition: int
    old_leader_id: int
    new_leader_id: int
    old_epoch: int
    new_epoch: int


@dataclass(frozen=True, slots=True)
class TopicRecreated:
    """A topic was recreated under its name: its log is a new one (KIP-516)."""

    topic: str
    old_id: str
    new_id: str


@dataclass(frozen=True, slots=True)
class PartitionLearned:
    """Leader of a partition that is new or belongs to a new log. -1: no leader, or no epoch."""

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
        brokers_added: node ids.
        brokers_removed: node ids.
        brokers_moved: node ids with a new host or port.
        topics_added: topic names; partitions_learned has their partitions.
        topics_removed: topic names.
        topics_recreated: topics with a new topic id.
        partitions_added: new partitions of known topics.
        partitions_removed: partitions that a recreated topic lost.
        partitions_learned: leaders in topics_added, topics_recreated and partitions_added; topic_id is None if brokers
            report none.
        leaders_changed: known partitions with a new leader or epoch.
        stale_ignored: number of partitions for which the response was ignored: an older epoch, or missing.
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
