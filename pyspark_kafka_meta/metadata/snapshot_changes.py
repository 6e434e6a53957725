"""What one answer or hint changed in a metadata snapshot: plain frozen values, which the refresh events carry."""

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
    """A topic was recreated under its name: what was read belongs to another log (KIP-516)."""

    topic: str
    old_id: str
    new_id: str


@dataclass(frozen=True, slots=True)
class PartitionLearned:
    """Who leads a partition that was not known before, or belongs to another log now. -1: no leader, or no epoch;
    None: brokers report no topic id."""

    topic: str
    partition: int
    leader_id: int
    leader_epoch: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotChanges:
    """The difference that one answer or hint made. All of it in order, by id or name. Those of all events of a cache,
    one after the other, give what it knows: partitions are learned, their leaders change, they and topics are removed.

    Attributes:
        brokers_added: node ids.
        brokers_removed: node ids.
        brokers_moved: node ids whose host or port changed.
        topics_added: names; their partitions are in partitions_learned.
        topics_removed: names, likewise.
        topics_recreated: topics whose id changed.
        partitions_added: of topics known before.
        partitions_removed: of topics that were recreated with fewer.
        partitions_learned: those of topics_added, topics_recreated and partitions_added, with their leaders; topic_id
            is None where brokers report none.
        leaders_changed: partitions known before whose leader or epoch changed.
        stale_ignored: number of partitions for which the answer was refused: its epoch is older, or it lacks them.
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
        """Whether anything changed; an answer that was refused changes nothing."""
        return replace(self, stale_ignored=0) != SnapshotChanges()

    def gives_leader(self, partition: TopicPartition) -> bool:
        """Whether a new leader of `partition` is known; that it has none does not count."""
        news = [(one.topic, one.partition, one.new_leader_id) for one in self.leaders_changed]
        news += [(one.topic, one.partition, one.leader_id) for one in self.partitions_learned]
        return any((topic, number) == partition and leader != NO_LEADER for topic, number, leader in news)
