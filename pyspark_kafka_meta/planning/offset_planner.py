"""`OffsetPlanner`: which offsets a query is to read, asked of the cluster by the process beside the driver.

Whatever cannot be read as planned is said here, before a task starts: unknown topics and partitions, offsets outside
a log, partitions that vanished, recreated topics. Follows Spark's `KafkaOffsetReaderAdmin` and
`KafkaMicroBatchStream`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.errors import OptionError, UnknownTopicError
from pyspark_kafka_meta.model import OffsetRange, Position, Positions, TopicPartition, is_other_topic
from pyspark_kafka_meta.options import EARLIEST_OFFSET, LATEST_OFFSET, ClientOptions, SourceOptions
from pyspark_kafka_meta.options.start_specs import TimesSpec
from pyspark_kafka_meta.planning.checkpoint_offsets import BEGINNING, LatestOffset, SourceOffset, advance, ranges
from pyspark_kafka_meta.planning.data_loss import DataLossPolicy
from pyspark_kafka_meta.planning.log_ends import LogEnds
from pyspark_kafka_meta.planning.lost_positions import (
    cut_at,
    explain_recreated,
    explain_truncated,
    is_recreated,
    lost_starts,
    recreated_text,
)
from pyspark_kafka_meta.planning.rate_limit import backlog, draw_in, is_put_off, limit_offsets
from pyspark_kafka_meta.planning.start_end_offsets import OffsetResolver
from pyspark_kafka_meta.planning.task_plan import plan_tasks
from pyspark_kafka_meta.validators import name_partitions

logger = logging.getLogger(__name__)

PLANNER_MAX_AGE_MS = 5_000
"""A stream's planner looks for new topics and partitions at least this often: their records are read from the start."""

MAX_LOOKS = 5
"""How often the cluster is looked at for one plan, if a topic goes away in the middle of each look."""


def stream_planner_options(options: ClientOptions) -> ClientOptions:
    """The options of the client that plans a stream."""
    return replace(options, metadata_max_age_ms=min(options.metadata_max_age_ms, PLANNER_MAX_AGE_MS))


P = ParamSpec("P")
T = TypeVar("T")


def looks_again(plan: Callable[P, T]) -> Callable[P, T]:
    """Plan again if a topic went away while its offsets were asked for. The next look knows, and says what follows."""

    @wraps(plan)
    def planned(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(MAX_LOOKS - 1):
            with suppress(UnknownTopicError):
                return plan(*args, **kwargs)
        return plan(*args, **kwargs)

    return planned


class OffsetPlanner:
    """Plans the offsets and tasks of one query, with a client of its own."""

    def __init__(self, client: KafkaClient, options: SourceOptions) -> None:
        self._client = client
        self._planned_at: float | None = None  # the last micro-batch that was not put off
        self._options = options
        self._policy = DataLossPolicy(options)
        self._resolver = OffsetResolver(client, options)
        self._ends = LogEnds(client, options, self._resolver)
        self._latest_seen: SourceOffset | None = None
        self._left_off: dict[tuple[TopicPartition, UUID | None], Position] = {}  # of what is gone

    @looks_again
    def available_now(self) -> dict[TopicPartition, Position]:
        """The end of each log as the target of a query that ends there, without what is gone where that is allowed."""
        missing_are_lost = not self._options.fail_on_data_loss
        return self._resolver.latest(self._ends.first_partitions(missing_are_lost))

    @looks_again
    def ranges(self, start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
        """What the batch between two logged offsets reads, as `offsets.ranges`."""
        unknown = [one for one, position in end.start.items() if position.offset == EARLIEST_OFFSET]
        return ranges(start, replace(end, start={**end.start, **self._starts_of_new(unknown)}))

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

    @looks_again
    def batch_ranges(self) -> list[OffsetRange]:
        """What a batch query reads, pinned now, so that a retried task reads the same.

        Raises:
            OptionError, DataLossError, UnknownTopicError: as `OffsetResolver.resolve` and `LogEnds.partitions`.
        """
        starting, ending = self._options.starting_offsets, self._options.ending_offsets
        assert starting is not None and ending is not None, "for_batch() completes the options"
        partitions = self._first_partitions()
        with self._ends.same_topics(partitions) as ids:
            starts = self._resolver.resolve(starting, partitions, "startingOffsets")
            ends = self._resolver.resolve(ending, partitions, "endingOffsets", is_end=True)
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

    def _initial_offset(self) -> SourceOffset:
        """Where a streaming query that begins now does so."""
        starting = self._options.starting_offsets
        assert starting is not None, "for_stream() completes the options"
        partitions = self._first_partitions()
        with self._ends.same_topics(partitions) as ids:
            positions = self._resolver.resolve(starting, partitions, "startingOffsets")
        return SourceOffset(positions, ids, initial=True)

    def _first_partitions(self) -> list[TopicPartition]:
        partitions = self._ends.first_partitions()
        if not partitions and self._options.topic_pattern is not None:
            logger.warning(
                "subscribePattern %s matches no topic that this user may see: correct it, or allow DESCRIBE on the "
                "topic. A stream goes on looking",
                self._options.topic_pattern,
            )
        return partitions

    @looks_again
    def next_offset(self, start: SourceOffset, target: Positions | None, limited: bool) -> SourceOffset:
        """The end of the micro-batch that begins at `start`; the same JSON where there is nothing to read.

        Args:
            start: `BEGINNING` for a new query, which begins where its options say.
            target: where the query is to end (Trigger.AvailableNow); None for no end.
            limited: whether the rate limits of the options hold.

        Raises:
            DataLossError: partitions or offsets of `start` or `target` are gone, and failOnDataLoss is set.
        """
        if start == BEGINNING:
            start = self._initial_offset()
        latest_seen = self._ends.confirmed(start, target or {})
        if start.initial and (
            latest_seen.cuts or any(is_recreated(one, start, latest_seen) for one in lost_starts(start, latest_seen))
        ):
            # Nothing was read yet, so nothing is lost: the next look begins in the log as it is now.
            raise UnknownTopicError("a topic was recreated or truncated while its offsets were asked for: try again")
        if not latest_seen.positions:
            self._record_gone(start, latest_seen)
            # SPARK-41375: should the topics be seen again, they are not to be read from their start. A new query that
            # found none has begun: those to come are new.
            return SourceOffset({}, {}) if start.initial else start
        if self._latest_seen is None:
            self._warn_without_ids(latest_seen)
        self._latest_seen, latest, ids = latest_seen, latest_seen.positions, latest_seen.topic_ids
        begun = self._begin_new(start, latest_seen)
        begun |= self._begin_after_loss(start, latest_seen)
        self._record_gone(start, latest_seen)
        starts = {**start.positions, **begun}
        # What is back may end before where the query left off: it waits there, and the next look says what that means.
        latest = {**latest, **{one: max(latest[one], position) for one, position in begun.items()}}
        for bound in (target, self._ending()):
            latest = latest if bound is None else draw_in(starts, latest, bound)
        if target is None and limited and self._is_put_off(backlog(starts, latest), at_once=bool(begun)):
            return start
        max_offsets = self._options.max_offsets_per_trigger if limited else None
        ends = latest if max_offsets is None else limit_offsets(starts, latest, max_offsets)
        return advance(start, SourceOffset(ends, ids), begun)

    def _warn_without_ids(self, latest: SourceOffset) -> None:
        without = sorted(topic for topic, topic_id in latest.topic_ids.items() if topic_id is None)
        if without:
            logger.warning(
                "the brokers report no ids of %s (Kafka before 2.8, or inter.broker.protocol.version): a topic that is "
                "deleted and recreated is only noticed by its leader epochs or a shorter log, and its records may be "
                "lost without an error. Do not recreate these topics while a query reads them, or upgrade the brokers",
                ", ".join(without[:5]),
            )

    def _ending(self) -> Positions | None:
        """Where the stream ends, if it does."""
        ending = self._options.ending_offsets
        return {one: Position(offset) for one, offset in ending.by_partition} if ending is not None else None

    def _is_put_off(self, offsets: int, at_once: bool) -> bool:
        """Whether the micro-batch waits for more. Trigger.AvailableNow never does: it would end."""
        now, fewest = self._client.clock(), self._options.min_offsets_per_trigger
        waited_ms = None if self._planned_at is None else (now - self._planned_at) * 1000
        if (
            not at_once
            and fewest is not None
            and is_put_off(offsets, fewest, waited_ms, self._options.max_trigger_delay_ms)
        ):
            return True
        self._planned_at = now
        return False

    def _record_gone(self, start: SourceOffset, latest: SourceOffset) -> None:
        """An event for each partition that the query goes on without, once for where it left off there."""
        back = {
            key for key in self._left_off if key[0] in latest.positions and latest.topic_ids[key[0].topic] == key[1]
        }
        self._left_off = {key: position for key, position in self._left_off.items() if key not in back}
        for one in sorted(start.positions.keys() - latest.positions.keys()):
            left_off, key = start.positions[one], (one, start.topic_ids[one.topic])
            if self._left_off.get(key) != left_off:
                why = "the partition is gone: its topic was deleted or recreated with fewer, or is asked for no more"
                self._client.cache.record_loss(one, left_off.offset, None, why)
            self._left_off[key] = left_off

    def _begin_new(self, start: SourceOffset, latest: SourceOffset) -> dict[TopicPartition, Position]:
        """New partitions are read from their start, wherever that is by now, unless newPartitions says otherwise, or
        onTopicRecreated if their topic was recreated; those that were only not seen for a while, by their topic's id,
        from where the query left off."""
        ends, ids = latest.positions, latest.topic_ids
        new = ends.keys() - start.positions.keys()
        back = {
            one: self._left_off[one, topic_id]
            for one in new
            if (topic_id := ids[one.topic]) is not None and (one, topic_id) in self._left_off
        }
        new -= back.keys()
        left_ids = {one.topic: topic_id for one, topic_id in self._left_off}
        known_ids = {**left_ids, **start.topic_ids}
        recreated = {one for one in new if is_other_topic(known_ids.get(one.topic), ids[one.topic])}
        policy = self._options.on_topic_recreated
        for topic in sorted({one.topic for one in recreated} - start.topic_ids.keys()):  # not seen for a while, too
            self._policy.report_recreated(recreated_text(topic, left_ids[topic], ids[topic]))
        at_latest = {
            one for one in new if (policy == "latest" if one in recreated else self._options.new_partitions_at_latest)
        }
        back |= {partition: ends[partition] for partition in at_latest}
        return back | self._starts_of_new(new - at_latest)

    def _starts_of_new(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        begun = self._resolver.earliest(partitions)
        late = [partition for partition, position in begun.items() if position.offset > 0]
        if late:
            logger.warning("%s are new, and their first records are gone already", name_partitions(late))
        return begun

    def _begin_after_loss(self, start: SourceOffset, latest: LatestOffset) -> dict[TopicPartition, Position]:
        """Where to begin in partitions that cannot be read from `start` on: in a recreated topic at its
        start or as onTopicRecreated says, in a truncated log where it was cut."""
        lost = lost_starts(start, latest)
        recreated = [one for one in lost if is_recreated(one, start, latest)]
        begun = {one: latest.positions[one] if one in recreated else cut_at(one, latest) for one in lost}
        if self._options.on_topic_recreated != "latest":
            begun |= self._resolver.earliest(recreated)  # which may start a new look: the loss is reported after it
        truncated = [one for one in lost if one not in recreated]
        if truncated:
            self._policy.report_loss(explain_truncated(truncated, start, latest))
        if recreated:
            self._policy.report_recreated(explain_recreated(recreated, start, latest))
        for one in recreated:
            left_off = start.positions[one]
            if self._left_off.get((one, start.topic_ids[one.topic])) != left_off:  # else the loss has its event
                cause = explain_recreated([one], start, latest)
                self._client.cache.record_loss(one, left_off.offset, None, cause)
        for one in truncated:
            cause = explain_truncated([one], start, latest)
            self._client.cache.record_loss(one, begun[one].offset, start.positions[one].offset, cause)
        return begun
