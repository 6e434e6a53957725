"""`OffsetPlanner`: which offsets a query is to read, asked of the cluster by the process beside the driver.

Whatever cannot be read as planned is said here, before a task starts: unknown topics and partitions, offsets outside
a log, partitions that vanished, topics made again. Follows Spark's `KafkaOffsetReaderAdmin` and
`KafkaMicroBatchStream`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any
from uuid import UUID

from pyspark_kafka_meta.errors import OptionError, UnknownTopicError
from pyspark_kafka_meta.metadata.events import RefreshReason
from pyspark_kafka_meta.metadata.model import TopicPartition
from pyspark_kafka_meta.options import LATEST_OFFSET, SourceOptions
from pyspark_kafka_meta.options.specs import TimesSpec
from pyspark_kafka_meta.options.values import name_partitions
from pyspark_kafka_meta.reading.client import KafkaClient
from pyspark_kafka_meta.reading.limits import backlog, is_put_off, limit_offsets
from pyspark_kafka_meta.reading.offsets import OffsetRange, Position, Positions, SourceOffset, advance
from pyspark_kafka_meta.reading.plan import plan_tasks
from pyspark_kafka_meta.reading.starts import OffsetResolver
from pyspark_kafka_meta.reading.verdicts import (
    accept_loss,
    explain,
    explain_end,
    is_recreated,
    lost_ends,
    lost_starts,
)

logger = logging.getLogger(__name__)

_by_offset = attrgetter("offset")


class OffsetPlanner:
    """Plans the offsets and tasks of one query, with a client of its own."""

    def __init__(
        self,
        client: KafkaClient,
        options: SourceOptions,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._sleep = sleep
        self._clock = clock
        self._planned_at: float | None = None  # the last micro-batch that was not put off
        self._options = options
        self._logs = OffsetResolver(client, options)
        self._latest_seen: SourceOffset | None = None

    def partitions(self, expected: Collection[TopicPartition] = ()) -> list[TopicPartition]:
        """The partitions that the query reads now, in order.

        Args:
            expected: partitions that it read before; see `KafkaClient.partitions`.

        Raises:
            UnknownTopicError: a topic, or a partition that `assign` names, does not exist; or one that is expected,
                under a pattern.
        """
        expected, deadline = self._options.assigned or expected, self._client.api_deadline()
        if self._options.topic_pattern is not None:
            self._client.partitions((), deadline)
        found = self._client.partitions(self._topics(expected), deadline, expected)
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

    def _topics(self, expected: Collection[TopicPartition]) -> Collection[str]:
        """Those that are named, or that match the pattern by now; of the latter those that were read before too."""
        if self._options.topic_pattern is None:
            return self._options.topics
        return {*self._client.cache.snapshot.topics, *(partition.topic for partition in expected)}

    def available_now(self) -> dict[TopicPartition, Position]:
        """The end of each log as the target of a query that ends there, without what is gone where that is allowed."""
        partitions = self.partitions() if self._options.fail_on_data_loss else self._partitions_left(())
        return self._logs.latest(partitions)

    def topic_ids(self, partitions: Collection[TopicPartition]) -> dict[str, UUID | None]:
        """The ids of the topics of `partitions`, as cached."""
        snapshot = self._client.cache.snapshot
        return {topic: snapshot.topic_id(topic) for topic in {partition.topic for partition in partitions}}

    def tasks(self, ranges: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
        """The ranges as tasks, those of one leader together as far as leaders are known."""
        known = {one.partition: self._client.cache.snapshot.leader(one.partition) for one in ranges}
        leaders = {partition: leader.broker.node_id for partition, leader in known.items() if leader is not None}
        options = self._options
        return plan_tasks(ranges, leaders, options.min_partitions, options.max_records_per_partition, options.max_tasks)

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
            OptionError, DataLossError, UnknownTopicError: as `OffsetResolver.resolve` and `partitions`.
        """
        starting, ending = self._options.starting_offsets, self._options.ending_offsets
        assert starting is not None and ending is not None, "for_batch() completes the options"
        partitions = self.partitions()
        starts = self._logs.resolve(starting, partitions, "startingOffsets")
        ends = self._logs.resolve(ending, partitions, "endingOffsets")
        ids = self.topic_ids(partitions)
        for partition in partitions:
            # Only an end that was given can be a mistake: an open transaction may hold the latest one back.
            is_given = isinstance(ending, TimesSpec) or dict(ending.by_partition).get(partition, LATEST_OFFSET) >= 0
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
        positions = self._logs.resolve(starting, partitions, "startingOffsets")
        return SourceOffset(positions, self.topic_ids(partitions), initial=True)

    def next_offset(self, start: SourceOffset, target: Positions | None, limited: bool) -> SourceOffset:
        """The end of the micro-batch that begins at `start`; the same JSON where there is nothing to read.

        Args:
            target: where the query is to end (Trigger.AvailableNow); None for no end.
            limited: whether the rate limits of the options hold.

        Raises:
            DataLossError: partitions or offsets of `start` or `target` are gone, and failOnDataLoss is set.
        """
        latest_seen = self._latest_confirmed(start, target or {})
        if not latest_seen.positions:
            return start  # SPARK-41375: should the topics be seen again, they are not to be read from their start
        self._latest_seen, latest, ids = latest_seen, latest_seen.positions, latest_seen.topic_ids
        begun = self._begin_new([partition for partition in latest if partition not in start.positions])
        begun |= self._begin_after_loss(start, self._latest_seen)
        starts = {**start.positions, **begun}
        if target is None and limited and not begun and self._is_put_off(backlog(starts, latest)):
            return start
        if target is not None:
            # The target may be older than the start: Spark asks for it first.
            bounds = {one: max(begin, target.get(one, begin), key=_by_offset) for one, begin in starts.items()}
            latest = {one: min(position, bounds[one], key=_by_offset) for one, position in latest.items()}
        max_offsets = self._options.max_offsets_per_trigger if limited else None
        ends = latest if max_offsets is None else limit_offsets(starts, latest, max_offsets)
        return advance(start, SourceOffset(ends, ids), begun)

    def _is_put_off(self, offsets: int) -> bool:
        """Whether the micro-batch waits for more. Trigger.AvailableNow never does: it would end."""
        now, fewest = self._clock(), self._options.min_offsets_per_trigger
        waited_ms = None if self._planned_at is None else (now - self._planned_at) * 1000
        if fewest is not None and is_put_off(offsets, fewest, waited_ms, self._options.max_trigger_delay_ms):
            return True
        self._planned_at = now
        return False

    def _begin_new(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """New partitions are read from their start, wherever that is by now."""
        begun = self._logs.earliest(partitions)
        late = [partition for partition, position in begun.items() if position.offset > 0]
        if late:
            logger.warning("%s are new, and their first records are gone already", name_partitions(late))
        return begun

    def _partitions_left(self, expected: Collection[TopicPartition]) -> list[TopicPartition]:
        """The partitions there are now. Those expected that are not among them are lost."""
        try:
            partitions = self.partitions(expected)
        except UnknownTopicError as error:
            self._accept(f"a topic or partition that was being read is gone: {error}")
            wanted = self._options.assigned
            snapshot = self._client.cache.snapshot
            found = [one for topic in self._topics(()) for one in snapshot.partitions(topic)]
            return [one for one in sorted(found) if wanted is None or one in wanted]
        gone = set(expected) - set(partitions)
        if gone:
            self._accept(
                f"{name_partitions(gone)} are gone: the topic was deleted or made again; there are now "
                f"{name_partitions(partitions)}"
            )
        return partitions

    def _accept(self, loss: str) -> None:
        accept_loss(loss, self._options.fail_on_data_loss)

    def _latest_confirmed(self, start: SourceOffset, target: Positions) -> SourceOffset:
        """The ends and topic ids; asked for again where reading cannot go on from `start`, or not up to `target`, with
        new metadata, which tells a topic that was made again from a log that became shorter."""
        expected = start.positions.keys() | target.keys()
        latest = self._latest_left(expected)
        for _ in range(self._options.fetch_offset_retries):
            if not lost_starts(start, latest) and not lost_ends(target, latest):
                break
            # A broker that has just become leader may tell a smaller end than the last one for a moment (KAFKA-7703).
            self._sleep(self._options.fetch_offset_retry_interval_ms / 1000)
            self._client.cache.refresh(RefreshReason.ON_DEMAND, self._client.api_deadline())
            latest = self._latest_left(expected)
        lost = [one for one in lost_ends(target, latest) if one not in lost_starts(start, latest)]
        if lost:
            self._accept("; ".join(explain_end(one, target, latest) for one in lost[:5]))
        return replace(latest, positions={**latest.positions, **self._held_back(start, latest)})

    def _held_back(self, start: SourceOffset, latest: SourceOffset) -> dict[TopicPartition, Position]:
        """The starts that lie behind an open transaction, not behind the log: where a query has begun, or become,
        read_committed."""
        if not self._options.client.read_committed:
            return {}
        behind = [one for one in lost_starts(start, latest) if not is_recreated(one, start, latest)]
        marks = self._logs.high_watermarks(behind)
        return {one: start.positions[one] for one in behind if start.positions[one].offset <= marks[one].offset}

    def _latest_left(self, expected: Collection[TopicPartition]) -> SourceOffset:
        """The ends of the partitions there are now, and the ids that go with them."""
        partitions = self._partitions_left(expected)
        try:
            latest = self._logs.latest(partitions)
        except UnknownTopicError:  # gone since the cache was refreshed, which has been done again by now
            partitions = self._partitions_left(expected)
            latest = self._logs.latest(partitions)
        return SourceOffset(latest, self.topic_ids(partitions))

    def _begin_after_loss(self, start: SourceOffset, latest: SourceOffset) -> dict[TopicPartition, Position]:
        """Where to begin in partitions that cannot be read from `start` on: in a topic that was made again at its
        start, in a log that became shorter at its end."""
        lost = lost_starts(start, latest)
        if not lost:
            return {}
        self._accept("; ".join(explain(partition, start, latest) for partition in lost[:5]))
        for one in lost:
            self._client.cache.record_loss(one, start.positions[one].offset, None, explain(one, start, latest))
        recreated = [one for one in lost if is_recreated(one, start, latest)]
        return {partition: latest.positions[partition] for partition in lost} | self._logs.earliest(recreated)
