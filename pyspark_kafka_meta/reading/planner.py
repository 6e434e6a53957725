"""`OffsetPlanner`: which offsets a query is to read, asked of the cluster by the process beside the driver.

Whatever cannot be read as planned is said here, before a task starts: unknown topics and partitions, offsets outside
a log, partitions that vanished, topics made again. Follows Spark's `KafkaOffsetReaderAdmin` and
`KafkaMicroBatchStream`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any
from uuid import UUID

from pyspark_kafka_meta.errors import DataLossError, OptionError, UnknownTopicError
from pyspark_kafka_meta.metadata.events import RefreshReason
from pyspark_kafka_meta.metadata.model import TopicPartition
from pyspark_kafka_meta.options import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec, SourceOptions
from pyspark_kafka_meta.options.values import name_partitions
from pyspark_kafka_meta.reading.client import KafkaClient
from pyspark_kafka_meta.reading.offsets import (
    OffsetRange,
    Position,
    SourceOffset,
    advance,
    check_same_partitions,
    limit_offsets,
    lost_starts,
)
from pyspark_kafka_meta.reading.plan import plan_tasks
from pyspark_kafka_meta.wire.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, OffsetAnswer

logger = logging.getLogger(__name__)

HOW_TO_GO_ON = "To go on without the lost records, set the option failOnDataLoss to false"

SMALLER_LATEST_RETRIES = 3
"""A broker that has just become leader may tell a smaller end than the last one for a moment (KAFKA-7703)."""
_by_offset = attrgetter("offset")


class OffsetPlanner:
    """Plans the offsets and tasks of one query, with a client of its own."""

    def __init__(self, client: KafkaClient, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._latest_seen: SourceOffset | None = None

    def partitions(self, expected: Collection[TopicPartition] = ()) -> list[TopicPartition]:
        """The partitions that the query reads now, in order.

        Args:
            expected: partitions that it read before; see `KafkaClient.partitions`.

        Raises:
            UnknownTopicError: a topic, or a partition that `assign` names, does not exist.
        """
        expected = self._options.assigned or expected
        found = self._client.partitions(self._options.topics, self._client.api_deadline(), expected)
        if self._options.assigned is None:
            return found
        missing = set(self._options.assigned) - set(found)
        if missing:
            counts = ", ".join(
                f"{topic} has {sum(partition.topic == topic for partition in found)} partitions"
                for topic in sorted({partition.topic for partition in missing})
            )
            raise UnknownTopicError(f"option assign names {name_partitions(missing)}, and {counts}: correct the option")
        return sorted(self._options.assigned)

    def resolve(
        self, spec: OffsetsSpec, partitions: Collection[TopicPartition], option: str
    ) -> dict[TopicPartition, Position]:
        """The positions that an offsets option means.

        Raises:
            OptionError: it names other partitions than these, or an offset behind the end of a log.
            DataLossError: it names an offset that has aged out, and failOnDataLoss is set.
        """
        if spec.everywhere is not None:
            return self.latest(partitions) if spec.everywhere == LATEST_OFFSET else self.earliest(partitions)
        given = dict(spec.by_partition)
        check_same_partitions(option, given, partitions)
        earliest, latest = self.earliest(partitions), self.latest(partitions)
        named = {EARLIEST_OFFSET: earliest, LATEST_OFFSET: latest}
        # A query may begin behind the start of an open transaction, but a batch cannot end there.
        ends = latest if option == "endingOffsets" else self._latest(partitions, read_committed=False)
        return {
            partition: named[offset][partition]
            if offset in named
            else Position(
                self._within_log(option, partition, offset, earliest[partition].offset, ends[partition].offset)
            )
            for partition, offset in given.items()
        }

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """The start of each log. No epoch: nothing lies before it that a leader could compare."""
        answers = self._list(partitions, EARLIEST_TIMESTAMP, read_committed=False)
        return {partition: Position(answer.offset) for partition, answer in answers.items()}

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """The end of each log: high watermark, or last stable offset under read_committed."""
        return self._latest(partitions, self._options.client.read_committed)

    def available_now(self) -> dict[TopicPartition, Position]:
        """The end of each log as the target of a query that ends there, without what is gone where that is allowed."""
        nothing = SourceOffset({}, {})
        partitions = self.partitions() if self._options.fail_on_data_loss else self._partitions_left(nothing)
        return self.latest(partitions)

    def topic_ids(self, partitions: Collection[TopicPartition]) -> dict[str, UUID | None]:
        """The ids of the topics of `partitions`, as cached."""
        snapshot = self._client.cache.snapshot
        return {topic: snapshot.topic_id(topic) for topic in {partition.topic for partition in partitions}}

    def tasks(self, ranges: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
        """The ranges as tasks, those of one leader together as far as leaders are known."""
        known = {one.partition: self._client.cache.snapshot.leader(one.partition) for one in ranges}
        leaders = {partition: leader.broker.node_id for partition, leader in known.items() if leader is not None}
        return plan_tasks(ranges, leaders, self._options.min_partitions)

    def last_seen_latest(self) -> dict[str, Any] | None:
        """The ends of the logs as of the last micro-batch that was planned, for Spark's progress; no request."""
        return None if self._latest_seen is None else self._latest_seen.as_dict()

    def flush_events(self) -> None:
        """Write the refresh events so far, unless there is no news in them."""
        self._client.publisher.flush_news()

    def close(self) -> None:
        """Write the refresh events and close the connections."""
        self._client.close()

    def batch_ranges(self) -> list[OffsetRange]:
        """What a batch query reads, pinned now, so that a retried task reads the same.

        Raises:
            OptionError, DataLossError, UnknownTopicError: as `resolve` and `partitions`.
        """
        starting, ending = self._options.starting_offsets, self._options.ending_offsets
        assert starting is not None and ending is not None, "for_batch() completes the options"
        partitions = self.partitions()
        starts = self.resolve(starting, partitions, "startingOffsets")
        ends = self.resolve(ending, partitions, "endingOffsets")
        ids = self.topic_ids(partitions)
        for partition in partitions:
            # Only an end that was given can be a mistake: an open transaction may hold the latest one back.
            is_given = dict(ending.by_partition).get(partition, LATEST_OFFSET) >= 0
            if is_given and starts[partition].offset > ends[partition].offset:
                raise OptionError(
                    f"the starting offset {starts[partition].offset} of {partition} is greater than its ending offset "
                    f"{ends[partition].offset}: correct startingOffsets or endingOffsets"
                )
        return [
            OffsetRange(
                partition,
                ids[partition.topic],
                starts[partition].offset,
                max(starts[partition].offset, ends[partition].offset),
                starts[partition].leader_epoch,
            )
            for partition in partitions
        ]

    def initial_offset(self) -> SourceOffset:
        """Where a new streaming query begins."""
        starting = self._options.starting_offsets
        assert starting is not None, "for_stream() completes the options"
        partitions = self.partitions()
        positions = self.resolve(starting, partitions, "startingOffsets")
        return SourceOffset(positions, self.topic_ids(partitions), initial=True)

    def next_offset(
        self, start: SourceOffset, target: Mapping[TopicPartition, Position] | None, max_offsets: int | None
    ) -> SourceOffset:
        """The end of the micro-batch that begins at `start`; the same JSON where there is nothing to read.

        Args:
            target: where the query is to end (Trigger.AvailableNow); None for no end.
            max_offsets: limit of the batch, None for none.

        Raises:
            DataLossError: partitions or offsets of `start` are gone, and failOnDataLoss is set.
        """
        latest_seen = self._latest_confirmed(start)
        if not latest_seen.positions:
            return start  # SPARK-41375: should the topics be seen again, they are not to be read from their start
        self._latest_seen, latest, ids = latest_seen, latest_seen.positions, latest_seen.topic_ids
        begun = self._begin_new([partition for partition in latest if partition not in start.positions])
        begun |= self._begin_after_loss(start, self._latest_seen)
        starts = {**start.positions, **begun}
        if target is not None:
            # The target may be older than the start: Spark asks for it first.
            bounds = {one: max(begin, target.get(one, begin), key=_by_offset) for one, begin in starts.items()}
            latest = {one: min(position, bounds[one], key=_by_offset) for one, position in latest.items()}
        ends = latest if max_offsets is None else limit_offsets(starts, latest, max_offsets)
        return advance(start, SourceOffset(ends, ids), begun)

    def _begin_new(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """New partitions are read from their start, wherever that is by now."""
        begun = self.earliest(partitions)
        late = [partition for partition, position in begun.items() if position.offset > 0]
        if late:
            logger.warning("%s are new, and their first records are gone already", name_partitions(late))
        return begun

    def _partitions_left(self, start: SourceOffset) -> list[TopicPartition]:
        """The partitions there are now. Those of `start` that are not among them are lost."""
        try:
            partitions = self.partitions(start.positions)
        except UnknownTopicError as error:
            if self._options.fail_on_data_loss:
                raise DataLossError(
                    f"a topic or partition that was being read is gone: {error}. {HOW_TO_GO_ON}"
                ) from error
            logger.warning("going on without what is gone, as failOnDataLoss is false: %s", error)
            wanted = self._options.assigned
            snapshot = self._client.cache.snapshot
            found = [partition for topic in self._options.topics for partition in snapshot.partitions(topic)]
            partitions = [partition for partition in sorted(found) if wanted is None or partition in wanted]
        gone = start.positions.keys() - set(partitions)
        if gone and self._options.fail_on_data_loss:
            raise DataLossError(
                f"{name_partitions(gone)} are gone: the topic was deleted or made again. {HOW_TO_GO_ON}"
            )
        return partitions

    def _latest_confirmed(self, start: SourceOffset) -> SourceOffset:
        """The ends and topic ids; asked for again where reading cannot go on from `start`, with new metadata, which
        tells a topic that was made again from a log that became shorter."""
        latest = self._latest_left(start)
        for _ in range(SMALLER_LATEST_RETRIES):
            if not lost_starts(start, latest):
                break
            self._client.cache.refresh(RefreshReason.ON_DEMAND, self._client.api_deadline())
            latest = self._latest_left(start)
        return replace(latest, positions={**latest.positions, **self._held_back(start, latest)})

    def _held_back(self, start: SourceOffset, latest: SourceOffset) -> dict[TopicPartition, Position]:
        """The starts that lie behind an open transaction, not behind the log: where a query has begun, or become,
        read_committed."""
        if not self._options.client.read_committed:
            return {}
        behind = [one for one in lost_starts(start, latest) if not _is_recreated(one, start, latest)]
        marks = self._latest(behind, read_committed=False)
        return {one: start.positions[one] for one in behind if start.positions[one].offset <= marks[one].offset}

    def _latest_left(self, start: SourceOffset) -> SourceOffset:
        """The ends of the partitions there are now, and the ids that go with them."""
        partitions = self._partitions_left(start)
        try:
            latest = self.latest(partitions)
        except UnknownTopicError:  # gone since the cache was refreshed, which has been done again by now
            partitions = self._partitions_left(start)
            latest = self.latest(partitions)
        return SourceOffset(latest, self.topic_ids(partitions))

    def _begin_after_loss(self, start: SourceOffset, latest: SourceOffset) -> dict[TopicPartition, Position]:
        """Where to begin in partitions that cannot be read from `start` on: in a topic that was made again at its
        start, in a log that became shorter at its end."""
        lost = lost_starts(start, latest)
        if not lost:
            return {}
        text = "; ".join(self._explain(partition, start, latest) for partition in lost[:5])
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. {HOW_TO_GO_ON}")
        logger.warning("%s; going on, as failOnDataLoss is false", text)
        for one in lost:
            why = self._explain(one, start, latest)
            self._client.cache.record_loss(one, start.positions[one].offset, None, why)
        recreated = [one for one in lost if _is_recreated(one, start, latest)]
        return {partition: latest.positions[partition] for partition in lost} | self.earliest(recreated)

    @staticmethod
    def _explain(partition: TopicPartition, start: SourceOffset, latest: SourceOffset) -> str:
        old_id, new_id = start.topic_ids[partition.topic], latest.topic_ids[partition.topic]
        if old_id != new_id:
            return f"topic {partition.topic} was deleted and made again (topic id {old_id}, now {new_id})"
        return (
            f"the log of {partition} ends at offset {latest.positions[partition].offset}, before offset "
            f"{start.positions[partition].offset} up to which it was read: it was truncated"
        )

    def _within_log(self, option: str, partition: TopicPartition, offset: int, earliest: int, latest: int) -> int:
        """`offset` if the log holds it; its start if the offset has aged out and that is allowed."""
        if offset > latest:
            raise OptionError(
                f"{option} names offset {offset} of {partition}, and its log ends at {latest}: correct it"
            )
        if offset >= earliest:
            return offset
        text = f"{option} names offset {offset} of {partition}, and its log starts at {earliest}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}: the records before it are gone. {HOW_TO_GO_ON}")
        logger.warning("%s; beginning there, as failOnDataLoss is false", text)
        self._client.cache.record_loss(partition, offset, earliest, text)
        return earliest

    def _latest(self, partitions: Collection[TopicPartition], read_committed: bool) -> dict[TopicPartition, Position]:
        answers = self._list(partitions, LATEST_TIMESTAMP, read_committed)
        return {one: Position(answer.offset, answer.leader_epoch) for one, answer in answers.items()}

    def _list(
        self, partitions: Collection[TopicPartition], timestamp: int, read_committed: bool
    ) -> Mapping[TopicPartition, OffsetAnswer]:
        if not partitions:
            return {}
        timestamps = dict.fromkeys(partitions, timestamp)
        return self._client.list_offsets(timestamps, self._client.api_deadline(), read_committed)


def _is_recreated(partition: TopicPartition, start: SourceOffset, latest: SourceOffset) -> bool:
    return start.topic_ids[partition.topic] != latest.topic_ids[partition.topic]
