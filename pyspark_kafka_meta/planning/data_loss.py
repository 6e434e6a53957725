"""Verdicts on lost records at planning: which partitions cannot be read on from where a query is, why, and what then.

Follows the data-loss rules of Spark's `KafkaMicroBatchStream`, with topic ids (KIP-516) and leader epochs (KIP-320) to
tell a recreated topic from a truncated log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from uuid import UUID

from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.model import NO_EPOCH, Position, Positions, TopicPartition, is_other_topic
from pyspark_kafka_meta.planning.checkpoint_offsets import LatestOffset, SourceOffset

logger = logging.getLogger(__name__)

HOW_TO_FOLLOW = "To go on with the new topic, set the option onTopicRecreated to earliest or latest"
HOW_TO_GO_ON = "To go on without the lost records, set the option failOnDataLoss to false"
OR_RECREATED = ", or its topic was recreated: the brokers report no topic ids"
IF_RECREATED = ", and onTopicRecreated, which is fail, to earliest or latest: the topic may be recreated"


def accept_loss(text: str, fails: bool, policy: str | None = None) -> None:
    """Go on with a warning that says `text`, what was lost, and that failOnDataLoss allows it.

    Args:
        policy: onTopicRecreated, where the loss may be the first sign of a recreated topic.

    Raises:
        DataLossError: failOnDataLoss does not allow it.
    """
    if fails:
        raise DataLossError(f"{text}. {HOW_TO_GO_ON}{IF_RECREATED if policy == 'fail' else ''}")
    logger.warning("%s; going on, as failOnDataLoss says", text)


def accept_new_topic(text: str, policy: str | None, fails: bool) -> None:
    """Go on in a recreated topic, as onTopicRecreated says, or failOnDataLoss where that is not set.

    Raises:
        DataLossError: neither allows it.
    """
    if policy == "fail" or (policy is None and fails):
        raise DataLossError(f"{text}. {HOW_TO_FOLLOW}")
    logger.warning("%s; going on, as %s says", text, "onTopicRecreated" if policy else "failOnDataLoss")


def lost_starts(start: SourceOffset, latest: LatestOffset) -> list[TopicPartition]:
    """The partitions of both in which reading cannot go on from `start`, sorted: the log was truncated or ends before
    it, or belongs to a recreated topic. Whether that ends the query (failOnDataLoss) is for the caller to say."""
    both = start.positions.keys() & latest.positions.keys()
    return sorted(
        one for one in both if one in latest.cuts or is_recreated(one, start, latest) or is_shorter(one, start, latest)
    )


def is_recreated(partition: TopicPartition, start: SourceOffset, latest: SourceOffset) -> bool:
    """Whether the topic was deleted and recreated under its name.

    Without topic ids (before Kafka 2.8) leader epochs may show that: within a log they never go back, and only a new
    leader truncates a log.
    """
    old, new = start.positions[partition], latest.positions[partition]
    has_ids = None not in (start.topic_ids[partition.topic], latest.topic_ids[partition.topic])
    if has_ids or NO_EPOCH in (old.leader_epoch, new.leader_epoch):
        return has_other_id(partition, start, latest)
    went_back = new.leader_epoch < old.leader_epoch
    return went_back or (new.leader_epoch == old.leader_epoch and new.offset < old.offset)


def has_other_id(partition: TopicPartition, start: SourceOffset, latest: SourceOffset) -> bool:
    return is_other_topic(start.topic_ids[partition.topic], latest.topic_ids[partition.topic])


def is_shorter(partition: TopicPartition, start: SourceOffset, latest: SourceOffset) -> bool:
    return latest.positions[partition].offset < start.positions[partition].offset


def lost_ends(target: Positions, latest: SourceOffset) -> list[TopicPartition]:
    """The partitions of both whose logs end before `target`, where a query is to end, sorted."""
    both = target.keys() & latest.positions.keys()
    return sorted(one for one in both if latest.positions[one].offset < target[one].offset)


def explain_end(partition: TopicPartition, target: Positions, latest: SourceOffset) -> str:
    """Why the partition cannot be read up to `target`."""
    return (
        f"the log of {partition} ends at offset {latest.positions[partition].offset}, before offset "
        f"{target[partition].offset} at which the query is to end: it was truncated, or its topic recreated "
        f"(topic id now {latest.topic_ids[partition.topic]})"
    )


def explain_recreated(partitions: Sequence[TopicPartition], start: SourceOffset, latest: SourceOffset) -> str:
    """What was read of recreated topics: the first five of `partitions`, which are sorted."""
    texts = []
    for topic, found in groupby(partitions[:5], lambda one: one.topic):
        logs = (
            f"{one} was read up to offset {start.positions[one].offset}, and its new log ends at "
            f"{latest.positions[one].offset}"
            for one in found
        )
        texts.append(f"{recreated_text(topic, start.topic_ids[topic], latest.topic_ids[topic])}: {'; '.join(logs)}")
    return "; ".join(texts)


def explain_truncated(partitions: Sequence[TopicPartition], start: SourceOffset, latest: LatestOffset) -> str:
    """Which logs were truncated before the offsets up to which they were read: the first five."""
    return "; ".join(
        f"the log of {one} was truncated to offset {cut} (leader epoch {old.leader_epoch}, now {new.leader_epoch})"
        f"{OR_RECREATED if latest.topic_ids[one.topic] is None else ''}: records planned or read at offsets {cut} "
        f"to {old.offset - 1} are gone, and reading can continue only at offset {cut}"
        for one in partitions[:5]
        for old, new, cut in [(start.positions[one], latest.positions[one], cut_at(one, latest).offset)]
    )


def cut_at(partition: TopicPartition, latest: LatestOffset) -> Position:
    """Where reading can continue in a truncated log: where the leader's log parts from what was read, or at its end
    where no leader epoch shows that."""
    return latest.cuts.get(partition, latest.positions[partition])


def recreated_text(topic: str, old_id: UUID | None, new_id: UUID | None) -> str:
    evidence = f"topic id {old_id}, now {new_id}"
    if old_id is None or new_id is None:
        evidence = "leader epochs show it; the brokers report no topic ids"
    return f"topic {topic} was deleted and recreated ({evidence})"
