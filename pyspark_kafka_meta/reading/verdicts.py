"""Verdicts on lost records at planning: which partitions cannot be read on from where a query is, why, and what then.

Follows the data-loss rules of Spark's `KafkaMicroBatchStream`, with topic ids (KIP-516) to tell a recreated topic from
a log that became shorter.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from uuid import UUID

from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.metadata.model import TopicPartition, is_other_topic
from pyspark_kafka_meta.reading.offsets import Positions, SourceOffset

logger = logging.getLogger(__name__)

HOW_TO_FOLLOW = "To go on with the new topic, set the option onTopicRecreated to earliest or latest"
HOW_TO_GO_ON = "To go on without the lost records, set the option failOnDataLoss to false"


def accept_loss(text: str, fails: bool) -> None:
    """Go on with a warning that says `text`, what was lost, and that failOnDataLoss allows it.

    Raises:
        DataLossError: it does not.
    """
    if fails:
        raise DataLossError(f"{text}. {HOW_TO_GO_ON}")
    logger.warning("%s; going on, as failOnDataLoss says", text)


def accept_new_topic(text: str, policy: str | None, fails: bool) -> None:
    """Go on in a recreated topic, as onTopicRecreated says, or failOnDataLoss where that is not set.

    Raises:
        DataLossError: neither allows it.
    """
    if policy == "fail" or (policy is None and fails):
        raise DataLossError(f"{text}. {HOW_TO_FOLLOW}")
    logger.warning("%s; going on, as %s says", text, "onTopicRecreated" if policy else "failOnDataLoss")


def lost_starts(start: SourceOffset, latest: SourceOffset) -> list[TopicPartition]:
    """The partitions of both in which reading cannot go on from `start`, sorted: `latest` lies before it, or in another
    topic made under the same name. Whether that ends the query (failOnDataLoss) is for the caller to say."""
    both = start.positions.keys() & latest.positions.keys()
    return sorted(one for one in both if is_recreated(one, start, latest) or is_shorter(one, start, latest))


def is_recreated(partition: TopicPartition, start: SourceOffset, latest: SourceOffset) -> bool:
    """Whether the topic is another one under the same name."""
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


def explain_truncated(partitions: Sequence[TopicPartition], start: SourceOffset, latest: SourceOffset) -> str:
    """Which logs became shorter than what was read of them: the first five."""
    return "; ".join(
        f"the log of {one} ends at offset {new.offset}, before offset {old.offset} up to which it was read: it "
        f"was truncated (leader epoch {old.leader_epoch}, now {new.leader_epoch})"
        for one in partitions[:5]
        for old, new in [(start.positions[one], latest.positions[one])]
    )


def recreated_text(topic: str, old_id: UUID | None, new_id: UUID | None) -> str:
    return f"topic {topic} was deleted and recreated (topic id {old_id}, now {new_id})"
