"""`PartitionStarts`: where a stream begins in partitions that it cannot read from its checkpoint.

These are new partitions, partitions that return after an absence, and those of recreated topics and truncated logs.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import Position, Positions, TopicPartition, is_other_topic
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import LatestOffset, SourceOffset
from pyspark_kafka_meta.read.planning.data_loss_policy import DataLossPolicy
from pyspark_kafka_meta.read.planning.lost_checkpoint_offsets import (
    cut_at,
    explain_recreated,
    explain_truncated,
    is_recreated,
    lost_starts,
    recreated_text,
)
from pyspark_kafka_meta.read.planning.start_end_offsets import StartEndOffsets


class PartitionStarts:
    """The starts of one query, and where it left off in partitions that are gone."""

    def __init__(self, client: KafkaClient, options: SourceOptions, offsets: StartEndOffsets) -> None:
        self._cache = client.cache
        self._options = options
        self._policy = DataLossPolicy(options)
        self._offsets = offsets
        self._late: set[tuple[TopicPartition, Position]] = set()  # a retried plan does not report them again
        self._left_off: dict[tuple[TopicPartition, UUID | None], Position] = {}  # by partition and topic id

    def of_new(self, start: SourceOffset, latest: SourceOffset) -> dict[TopicPartition, Position]:
        """The starts of partitions that `start` does not have.

        A partition that returns with its old topic id continues where the query left off. New partitions begin at the
        start of their logs, unless newPartitions says otherwise, or onTopicRecreated for those of a recreated topic.
        """
        ends, ids = latest.positions, latest.topic_ids
        new = ends.keys() - start.positions.keys()
        starts = {
            partition: self._left_off[partition, topic_id]
            for partition in new
            if (topic_id := ids[partition.topic]) is not None and (partition, topic_id) in self._left_off
        }
        new -= starts.keys()
        left_ids = {partition.topic: topic_id for partition, topic_id in self._left_off}
        known_ids = {**left_ids, **start.topic_ids}
        recreated = {part for part in new if is_other_topic(known_ids.get(part.topic), ids[part.topic])}
        # A topic in `start` is reported by `after_loss`.
        for topic in sorted({partition.topic for partition in recreated} - start.topic_ids.keys()):
            self._policy.report_recreated(recreated_text(topic, left_ids[topic], ids[topic]))
        at_latest = new - recreated if self._options.new_partitions_at_latest else set()
        at_latest |= recreated if self._options.on_topic_recreated == "latest" else set()
        starts |= {partition: ends[partition] for partition in at_latest}
        return starts | self.earliest_of_new(new - at_latest)

    def earliest_of_new(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        starts = self._offsets.earliest(partitions)
        self._report_late(starts)
        return starts

    def _report_late(self, starts: Positions) -> None:
        """Report records of new partitions that were gone before the query discovered the partition. They are lost, as
        in Spark's `KafkaMicroBatchStream`."""
        late = {part: start for part, start in starts.items() if start.offset > 0 and (part, start) not in self._late}
        texts = {
            partition: f"{partition} is new and its log starts at offset {late[partition].offset}: its first records "
            "aged out or were deleted before the query discovered it"
            for partition in sorted(late)
        }
        if texts:
            self._policy.report_loss("; ".join(list(texts.values())[:5]))
        for partition, text in texts.items():
            self._cache.record_loss(partition, 0, late[partition].offset, text)
        self._late |= late.items()

    def after_loss(self, start: SourceOffset, latest: LatestOffset) -> dict[TopicPartition, Position]:
        """The starts of partitions that cannot be read from `start`: the start of a recreated topic or as
        onTopicRecreated says, the truncation of a truncated log."""
        lost = lost_starts(start, latest)
        recreated = [partition for partition in lost if is_recreated(partition, start, latest)]
        truncated = [partition for partition in lost if partition not in recreated]
        starts = {partition: latest.positions[partition] for partition in recreated}
        starts |= {partition: cut_at(partition, latest) for partition in truncated}
        # First, as it may restart the plan: losses are reported once.
        earliest = {} if self._options.on_topic_recreated == "latest" else self._offsets.earliest(recreated)
        if truncated:
            self._policy.report_loss(explain_truncated(truncated, start, latest))
        if recreated:
            self._policy.report_recreated(explain_recreated(recreated, start, latest))
            self._report_late(earliest)
        for partition in recreated:
            left_off = start.positions[partition]
            if self._left_off.get((partition, start.topic_ids[partition.topic])) != left_off:  # not recorded yet
                cause = explain_recreated([partition], start, latest)
                self._cache.record_loss(partition, left_off.offset, None, cause)
        for partition in truncated:
            cause = explain_truncated([partition], start, latest)
            self._cache.record_loss(partition, starts[partition].offset, start.positions[partition].offset, cause)
        return starts | earliest

    def record_gone(self, start: SourceOffset, latest: SourceOffset) -> None:
        """Record where the query left off in partitions that are gone: an event for each, once for each position."""
        self._left_off = {
            (partition, topic_id): position
            for (partition, topic_id), position in self._left_off.items()
            if partition not in latest.positions or latest.topic_ids[partition.topic] != topic_id
        }
        for partition in sorted(start.positions.keys() - latest.positions.keys()):
            left_off, key = start.positions[partition], (partition, start.topic_ids[partition.topic])
            if self._left_off.get(key) != left_off:
                cause = "the partition is gone: its topic was deleted or recreated with fewer, or is asked for no more"
                self._cache.record_loss(partition, left_off.offset, None, cause)
            self._left_off[key] = left_off
