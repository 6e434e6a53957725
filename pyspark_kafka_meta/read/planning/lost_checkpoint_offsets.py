"""Which positions of a checkpoint the logs no longer hold, and why.

Follows the data-loss rules of Spark's `KafkaMicroBatchStream`. Topic ids (KIP-516) and leader epochs (KIP-320)
distinguish a recreated topic from a truncated log.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from uuid import UUID

from pyspark_kafka_meta.model import NO_EPOCH, Position, Positions, TopicPartition, is_other_topic
from pyspark_kafka_meta.read.planning.checkpoint_offsets import LatestOffset, SourceOffset

OR_RECREATED = ", or its topic was recreated: the brokers report no topic ids"


def lost_starts(start: SourceOffset, latest: LatestOffset) -> list[TopicPartition]:
    """The partitions of both offsets that cannot be read from `start`, sorted: the log was truncated, ends before
    `start`, or belongs to a recreated topic."""
    return sorted(
        partition
        for partition in start.positions.keys() & latest.positions.keys()
        if partition in latest.cuts or is_recreated(partition, start, latest) or is_shorter(partition, start, latest)
    )


def is_recreated(partition: TopicPartition, start: SourceOffset, latest: SourceOffset) -> bool:
    """Whether the topic was deleted and recreated under its name.

    Without topic ids (before Kafka 2.8) leader epochs may show this: within a log they never decrease, and only a new
    leader truncates a log.
    """
    old, new = start.positions[partition], latest.positions[partition]
    has_ids = None not in (start.topic_ids[partition.topic], latest.topic_ids[partition.topic])
    if has_ids or NO_EPOCH in (old.leader_epoch, new.leader_epoch):
        return has_other_id(partition, start, latest)
    is_older = new.leader_epoch < old.leader_epoch
    return is_older or (new.leader_epoch == old.leader_epoch and new.offset < old.offset)


def has_other_id(partition: TopicPartition, start: SourceOffset, latest: SourceOffset) -> bool:
    return is_other_topic(start.topic_ids[partition.topic], latest.topic_ids[partition.topic])


def is_shorter(partition: TopicPartition, start: SourceOffset, latest: SourceOffset) -> bool:
    return latest.positions[partition].offset < start.positions[partition].offset


def lost_ends(target: Positions, latest: SourceOffset) -> list[TopicPartition]:
    """The partitions of both whose logs end before `target`, where a query is to end, sorted."""
    return sorted(
        partition
        for partition in target.keys() & latest.positions.keys()
        if latest.positions[partition].offset < target[partition].offset
    )


def explain_end(partition: TopicPartition, target: Positions, latest: SourceOffset) -> str:
    """Why the partition cannot be read up to `target`."""
    return (
        f"the log of {partition} ends at offset {latest.positions[partition].offset}, before offset "
        f"{target[partition].offset} at which the query is to end: it was truncated, or its topic recreated "
        f"(topic id now {latest.topic_ids[partition.topic]})"
    )


def explain_recreated(partitions: Sequence[TopicPartition], start: SourceOffset, latest: SourceOffset) -> str:
    """How far recreated topics had been read: the first five of `partitions`, which are sorted."""
    texts = []
    for topic, members in groupby(partitions[:5], lambda partition: partition.topic):
        logs = (
            f"{partition} was read up to offset {start.positions[partition].offset}, and its new log ends at "
            f"{latest.positions[partition].offset}"
            for partition in members
        )
        texts.append(f"{recreated_text(topic, start.topic_ids[topic], latest.topic_ids[topic])}: {'; '.join(logs)}")
    return "; ".join(texts)


def explain_truncated(partitions: Sequence[TopicPartition], start: SourceOffset, latest: LatestOffset) -> str:
    """Where logs were truncated: the first five of `partitions`."""
    return "; ".join(
        f"the log of {partition} was truncated to offset {cut} (leader epoch {old.leader_epoch}, now "
        f"{new.leader_epoch}){OR_RECREATED if latest.topic_ids[partition.topic] is None else ''}: records planned or "
        f"read at offsets {cut} to {old.offset - 1} are gone, and reading can continue only at offset {cut}"
        for partition in partitions[:5]
        for old, new in [(start.positions[partition], latest.positions[partition])]
        for cut in [cut_at(partition, latest).offset]
    )


def cut_at(partition: TopicPartition, latest: LatestOffset) -> Position:
    """Where reading can continue in a truncated log: where it diverges from what was read, or its end if no leader
    epoch shows the divergence."""
    return latest.cuts.get(partition, latest.positions[partition])


def recreated_text(topic: str, old_id: UUID | None, new_id: UUID | None) -> str:
    evidence = f"topic id {old_id}, now {new_id}"
    if old_id is None or new_id is None:
        evidence = "leader epochs show it; the brokers report no topic ids"
    return f"topic {topic} was deleted and recreated ({evidence})"
