"""`OffsetResolver`: resolves startingOffsets and endingOffsets to offsets of the logs, by ListOffsets.

Follows Spark's `KafkaOffsetReaderAdmin`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, PartitionOffset
from pyspark_kafka_meta.model import Position, TopicPartition, name_first, name_partitions
from pyspark_kafka_meta.options import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec, SourceOptions
from pyspark_kafka_meta.options.offsets import (
    GroupSpec,
    LastDurationSpec,
    LastOffsetsSpec,
    LatestByKeySpec,
    StartSpec,
    TimestampsSpec,
)
from pyspark_kafka_meta.read.planning.checkpoint_offsets import check_same_partitions
from pyspark_kafka_meta.read.planning.data_loss import Loss, LossKind, LossReporter
from pyspark_kafka_meta.value_checks import INT64_MAX

logger = logging.getLogger(__name__)


class OffsetResolver:
    """Resolves the offsets of one query."""

    def __init__(
        self,
        client: KafkaClient,
        options: SourceOptions,
        losses: LossReporter,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._options = options
        self._losses = losses
        self._wall_clock = wall_clock

    def resolve(
        self, spec: StartSpec, partitions: Collection[TopicPartition], option: str, is_end: bool = False
    ) -> dict[TopicPartition, Position]:
        """The positions that `spec` means.

        Args:
            option: startingOffsets or endingOffsets, for errors.
            is_end: whether a batch ends there.

        Raises:
            OptionError: it names other partitions than these, an offset after the end of a log, or a time later than
                all records.
            DataLossError: it names an offset that has aged out, and failOnDataLoss is true.
        """
        match spec:
            case TimestampsSpec():
                return self._at_times(spec, partitions, f"{option}ByTimestamp")
            case LastDurationSpec(ms):
                since_ms = max(0, int(self._wall_clock() * 1000) - ms)
                return self._at_times(TimestampsSpec(since_ms, or_latest=True), partitions, option)
            case LatestByKeySpec():
                return self.earliest(partitions)
            case LastOffsetsSpec(offsets):
                return self._before_end(offsets, partitions)
            case GroupSpec(group):
                return self._of_group(group, partitions)
            case OffsetsSpec(None):
                return self._at_offsets(spec, partitions, option, is_end)
            case OffsetsSpec(everywhere):
                return self.latest(partitions) if everywhere == LATEST_OFFSET else self.earliest(partitions)

    def _at_times(
        self, spec: TimestampsSpec, partitions: Collection[TopicPartition], option: str
    ) -> dict[TopicPartition, Position]:
        """The ends are listed first. A partition without so late a record starts at its end before the times were
        listed: records written meanwhile must not be skipped, nor read by two batches with adjoining times. No epochs:
        those in the responses belong to the records there, not to the records before."""
        times = dict(spec.by_partition)
        if spec.everywhere_ms is not None:
            times = dict.fromkeys(partitions, spec.everywhere_ms)
        check_same_partitions(option, times, partitions)
        latest = self.latest(times)
        listed = self._list(times, self._options.fetch.read_committed)
        unmatched = [partition for partition, result in listed.items() if result.offset < 0]
        if unmatched and not spec.or_latest:
            raise OptionError(
                f"No offset matched from request of topic-partition {unmatched[0]} and timestamp "
                f"{times[unmatched[0]]}. Set startingOffsetsByTimestampStrategy to latest to begin at the end there"
            )
        matched = {
            partition: Position(result.offset, reported_epoch=latest[partition].leader_epoch)
            for partition, result in listed.items()
        }
        return matched | {partition: latest[partition] for partition in unmatched}

    def since(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition with this timestamp or a later one; without such a record
        the largest offset there can be."""
        listed = self._list(times_ms, self._options.fetch.read_committed)
        return {part: result.offset if result.offset >= 0 else INT64_MAX for part, result in listed.items()}

    def _before_end(self, offsets: int, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        earliest, latest = self.earliest(partitions), self.latest(partitions)
        return {
            part: Position(max(earliest[part].offset, end.offset - offsets), reported_epoch=end.leader_epoch)
            for part, end in latest.items()
        }

    def _of_group(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        committed = self._client.groups.committed(group, partitions)
        without = set(partitions) - committed.keys()
        if without:
            logger.warning(
                "consumer group %s has committed no offset of %s: beginning at their start",
                group,
                name_partitions(without),
            )
        place = f"the commit of consumer group {group}"
        gone = self._after_log_end(committed, place)
        offsets = {**committed, **dict.fromkeys(without | gone, EARLIEST_OFFSET)}
        spec = OffsetsSpec(by_partition=tuple(sorted(offsets.items())))
        return self._at_offsets(spec, partitions, place, is_end=False)

    def _after_log_end(self, committed: Mapping[TopicPartition, int], place: str) -> set[TopicPartition]:
        """Partitions whose log ends before the group's offset, because it was truncated or recreated. The query starts
        at their start: nobody can correct the offset for a group that is gone."""
        ends = self.high_watermarks(committed)
        gone = {partition for partition, offset in committed.items() if offset > ends[partition].offset}
        for partition in sorted(gone):
            offset, end = committed[partition], ends[partition].offset
            cause = f"{place} names offset {offset} of {partition}, and its log ends at {end}"
            self._losses.report([Loss(LossKind.AFTER_LOG_END, partition, end, offset, cause)])
        return gone

    def _at_offsets(
        self, spec: OffsetsSpec, partitions: Collection[TopicPartition], option: str, is_end: bool
    ) -> dict[TopicPartition, Position]:
        by_topic = dict(spec.by_topic)
        given = {part: by_topic[part.topic] for part in partitions if part.topic in by_topic} | dict(spec.by_partition)
        unread = sorted(by_topic.keys() - {partition.topic for partition in partitions})
        if unread:
            raise OptionError(f"{option} names topic {name_first(unread)}, which is not read: correct it")
        check_same_partitions(option, given, partitions)
        earliest, latest = self.earliest(partitions), self.latest(partitions)
        named = {EARLIEST_OFFSET: earliest, LATEST_OFFSET: latest}
        # A query may begin after the start of an open transaction, but a batch cannot end there.
        ends = latest if is_end else self.high_watermarks(partitions)
        return {
            partition: named[offset][partition]
            if offset in named
            else self._within_log(option, partition, offset, earliest[partition].offset, ends[partition], is_end)
            for partition, offset in given.items()
        }

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """The start of each log. No epoch: a leader has nothing to compare before it."""
        listed = self._list(dict.fromkeys(partitions, EARLIEST_TIMESTAMP), read_committed=False)
        return {partition: Position(result.offset) for partition, result in listed.items()}

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """The end of each log: high watermark, or last stable offset under read_committed."""
        return self._latest(partitions, self._options.fetch.read_committed)

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """The end of each log, open transactions included."""
        return self._latest(partitions, read_committed=False)

    def _latest(self, partitions: Collection[TopicPartition], read_committed: bool) -> dict[TopicPartition, Position]:
        listed = self._list(dict.fromkeys(partitions, LATEST_TIMESTAMP), read_committed)
        return {partition: Position(offset, leader_epoch) for partition, _, offset, leader_epoch in listed.values()}

    def _list(
        self, timestamps: Mapping[TopicPartition, int], read_committed: bool
    ) -> Mapping[TopicPartition, PartitionOffset]:
        if not timestamps:
            return {}
        return self._client.list_offsets(timestamps, self._client.api_deadline(), read_committed)

    def _within_log(
        self, option: str, partition: TopicPartition, offset: int, earliest: int, end: Position, is_end: bool
    ) -> Position:
        """`offset` if the log holds it; the start of the log if it has aged out and failOnDataLoss is false."""
        if offset > end.offset:
            raise OptionError(
                f"{option} names offset {offset} of {partition}, and its log ends at {end.offset}: correct it"
            )
        if offset < earliest:
            cause = f"{option} names offset {offset} of {partition}, and its log starts at {earliest}"
            from_offset = None if is_end else offset  # records after an end were not to be read
            self._losses.report([Loss(LossKind.BEFORE_LOG_START, partition, from_offset, earliest, cause)])
        return Position(max(offset, earliest), reported_epoch=end.leader_epoch)
