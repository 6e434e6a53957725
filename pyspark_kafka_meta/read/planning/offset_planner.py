"""`OffsetPlanner`: plans which offsets a query reads, in the process beside the driver.

A stream reads micro-batches. A micro-batch has a start and an end offset in each partition, and starts where the
previous micro-batch ended. Spark gets the end from `next_offset`, writes it to the checkpoint, and then gets the work
from `ranges` and `tasks`. A batch query gets all from `batch_ranges`. Records are repeated or missed if an offset is
planned from a log that is not the log that was read before. So the plan of a micro-batch first compares the checkpoint
with the logs; `data_loss` says how. Every planning error is raised before a task starts: unknown topics and partitions,
offsets outside a log, missing partitions, recreated topics. Follows Spark's `KafkaOffsetReaderAdmin` and
`KafkaMicroBatchStream`.

One micro-batch is planned in these steps, each a value for the next:

| step | value |
|---|---|
| compare checkpoint and logs (`_compare`) | the log ends, and a `Loss` for each position that is lost |
| choose starts (`NewPartitions.begin`) | where new, returned and lost partitions begin, and their losses |
| report (`LossReporter.report`) | an error, or warnings and events: each loss once |
| limit (`batch_plan`, `byte_limit`) | how far the micro-batch reads |
| name the epochs of the ends (`LeaderEpochs`) | what the next comparison needs to notice a truncated log |
| advance (`checkpoint_offsets.advance`) | the offset that Spark stores |

Each partition is in one of these states:

| state | how a plan knows it | where the micro-batch begins | until |
|---|---|---|---|
| continued | its log has the checkpoint's position | at this position | |
| new | the checkpoint lacks it | at the log's start, or its end (newPartitions) | the next plan |
| gone | brokers do not know it, or options exclude it | nowhere; `NewPartitions` keeps its position | it returns |
| returned | it was gone, and the topic id is the same | where the query left off | the next plan |
| recreated | topic ids, or leader epochs, show it | at the log's start, or its end (onTopicRecreated) | the next plan |
| truncated | leader epochs, or its end, show it | where its log diverges, else at its end | the next plan |
| held back | a transaction began before the position | at this position, and ends there | the transaction ends |

Races, and their guards:

- A topic is recreated during a plan. 1. The plan takes the topic's id from the cache. 2. The topic is recreated, and
  the ends of its new log are listed. 3. Stored with the old id, they would look recreated to the next plan, which would
  fail or begin again. Guard: `Subscription.same_topics` compares the cached ids before and after.
- A plan is made again after it reported a loss. 1. An attempt reports a loss, or continues a returned partition. 2. A
  later request finds that a topic is gone. 3. The next attempt finds the same loss, and the same partition. Guards:
  `LossReporter` reports a loss once; `NewPartitions` remembers a partition until the checkpoint has it again.
- A leader that was just elected (KAFKA-7703). 1. It has all records, and reports a smaller end for a moment. 2. Its log
  looks truncated: the query would fail, or go back and repeat records. Guard: `_compare` asks again after a pause.
- A leader that was replaced and does not know it. 1. A restart asks it first: its log ends before the checkpoint, and
  looks truncated. 2. Its epoch is lower than the checkpoint's. Guard: the first plan raises the epochs in the cache.
  Tasks get the epoch of the leader that reported the end of their range for the same reason.
- A broker that lags behind. 1. A topic was recreated, and the checkpoint has its new id. 2. The broker reports the old
  id, as if the topic had been recreated again. Guard: `_compare` refreshes the metadata from another broker.
- A log that is truncated and grows. 1. An unclean election removes records that were read. 2. New records take their
  offsets, and more, before the next plan: the end of the log shows nothing. Guard: `LeaderEpochs.truncations`.
- An idle leader. 1. ListOffsets reports epoch 5, in which the leader writes nothing. 2. The next leader's log has no
  trace of epoch 5, as if its records had been replaced. Guard: `LeaderEpochs.with_epoch_starts` stores the epoch of the
  last record, and where it starts. An epoch without a known start may be missing (`Position.kept_until`).
- A new query. 1. `_initial_offset` lists the starts. 2. A topic is recreated or truncated: a loss, although nothing was
  read. Guard: `next_offset` raises UnknownTopicError if `Comparison.is_changed`, so that the plan is made again.
- A new partition. 1. The broker that a new query asks does not know it yet. 2. A batch would never read it; a stream
  from the latest offsets would read it from its start. Guard: `Subscription.first_partitions` asks a second broker.
- An open transaction. 1. A query read its records, or began among them. 2. Under read_committed the log ends where the
  transaction begins, before the position, as if it were truncated. Guard: `_held_back` asks for the high watermark.
- A partition that returns with a smaller end for a moment. 1. The checkpoint lacks it, so it is not compared. 2. Its
  end is before its start. Guard: `next_offset` plans its start as its end, and the next plan compares it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pyspark_kafka_meta.errors import ConnectError, OptionError, UnknownTopicError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import (
    OffsetRange,
    Position,
    Positions,
    RefreshReason,
    TopicPartition,
    is_other_topic,
    name_first,
    shortened,
)
from pyspark_kafka_meta.options import EARLIEST_OFFSET, LATEST_OFFSET, ClientOptions, SourceOptions
from pyspark_kafka_meta.options.offsets import LatestByKeySpec, TimestampsSpec
from pyspark_kafka_meta.read.planning.batch_plan import (
    backlog,
    cap_offsets,
    is_delayed,
    limit_offsets,
    narrowed,
    plan_tasks,
)
from pyspark_kafka_meta.read.planning.byte_limit import ByteLimit
from pyspark_kafka_meta.read.planning.checkpoint_offsets import (
    BEGINNING,
    RecentOffsets,
    SourceOffset,
    advance,
    ranges,
    with_generations,
)
from pyspark_kafka_meta.read.planning.data_loss import LOST_STARTS, Comparison, LossReporter, compare, describe
from pyspark_kafka_meta.read.planning.group_commits import GroupCommits
from pyspark_kafka_meta.read.planning.leader_epochs import LeaderEpochs
from pyspark_kafka_meta.read.planning.new_partitions import NewPartitions, aged_out
from pyspark_kafka_meta.read.planning.offset_resolver import OffsetResolver
from pyspark_kafka_meta.read.planning.subscription import Subscription

logger = logging.getLogger(__name__)

PLANNER_MAX_AGE_MS = 5_000
"""Upper bound of a stream planner's metadata.max.age.ms: it discovers new topics and partitions this soon. Their
records are read from the start."""

MAX_PLAN_ATTEMPTS = 5
"""Attempts at one plan, if topics keep changing while their offsets are listed."""


def stream_planner_options(options: ClientOptions) -> ClientOptions:
    """The options of the client that plans a stream."""
    return replace(options, metadata_max_age_ms=min(options.metadata_max_age_ms, PLANNER_MAX_AGE_MS))


P = ParamSpec("P")
T = TypeVar("T")


def retried(plan: Callable[P, T]) -> Callable[P, T]:
    """Make the plan again after an UnknownTopicError, in `MAX_PLAN_ATTEMPTS` attempts at most: a topic may have been
    deleted or recreated while its offsets were listed. The next attempt sees this in the metadata, and decides whether
    it is a loss."""

    @wraps(plan)
    def planned(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(MAX_PLAN_ATTEMPTS - 1):
            with suppress(UnknownTopicError):
                return plan(*args, **kwargs)
        return plan(*args, **kwargs)

    return planned


class OffsetPlanner:
    """Plans the offsets and tasks of one query, with a client of its own.

    Attributes:
        recent: the last offsets as JSON objects.
        report: takes facts of its client.
    """

    def __init__(self, client: KafkaClient, options: SourceOptions, byte_limit: ByteLimit | None = None) -> None:
        """`byte_limit` is by maxBytesPerTrigger."""
        self.recent = RecentOffsets()
        self.report = client.report
        self._client = client
        self._options = options
        self._losses = LossReporter(options, client.report)
        self._subscription = Subscription(client, options, self._losses)
        self._offsets = OffsetResolver(client, options, self._losses)
        self._epochs = LeaderEpochs(client)
        self._starts = NewPartitions(options, self._offsets.earliest)
        group = options.commit_group
        self._commits = None if group is None else GroupCommits(client, group)
        self._byte_limit = byte_limit
        self._unreachable: set[TopicPartition] = set()  # their target is lost, reported, and compared no more
        self._planned_at: float | None = None  # time of the last micro-batch that was not delayed
        self._latest_seen: SourceOffset | None = None

    @retried
    def available_now(self) -> dict[TopicPartition, Position]:
        """The end of each log, where a Trigger.AvailableNow query ends, without missing topics if failOnDataLoss is
        false."""
        missing_are_lost = not self._options.fail_on_data_loss
        return self._offsets.latest(self._subscription.first_partitions(missing_are_lost))

    @retried
    def ranges(self, start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
        """The ranges of the batch between two logged offsets; see `checkpoint_offsets.ranges`."""
        unknown = [partition for partition, position in end.start.items() if position.offset == EARLIEST_OFFSET]
        earliest = self._offsets.earliest(unknown)
        self._losses.report(aged_out(earliest))
        return ranges(start, replace(end, start={**end.start, **earliest}))

    def tasks(self, ranges: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
        """The ranges as tasks, those of one cached leader together, without offsets that the condition of `where`
        excludes."""
        if self._options.where is not None:
            ranges = narrowed(ranges, *self._spans(ranges, "offset"))
        snapshot = self._client.cache.snapshot
        known = {planned.partition: snapshot.leader(planned.partition) for planned in ranges}
        leaders = {partition: leader.broker.node_id for partition, leader in known.items() if leader is not None}
        options = self._options
        return plan_tasks(ranges, leaders, options.min_partitions, options.max_records_per_partition, options.max_tasks)

    def last_seen_latest(self) -> dict[str, Any] | None:
        """The log ends of the last planned micro-batch, for Spark's progress; sends no request."""
        return None if self._latest_seen is None else self.recent.as_dict(self._latest_seen)

    def commit_to_group(self, finished: SourceOffset, *, is_last: bool = False) -> None:
        """Commit the end of the finished micro-batches to the group of commitOffsetsToGroup, if it is set."""
        if self._commits is not None:
            self._commits.commit(finished.positions, is_last=is_last)

    def flush_events(self) -> None:
        """Write the refresh events so far, unless they hold no news."""
        self._client.publisher.flush_news()

    def close(self) -> None:
        """Write the refresh events and close the connections."""
        self._client.close()

    @retried
    def batch_ranges(self) -> list[OffsetRange]:
        """The ranges of a batch query, pinned now, so that a retried task reads the same. Raises OptionError,
        DataLossError, UnknownTopicError: as `OffsetResolver.resolve` and `Subscription.partitions`."""
        starting, ending = self._options.starting_offsets, self._options.ending_offsets
        assert starting is not None and ending is not None, "for_batch() completes the options"
        partitions = self._first_partitions()
        with self._subscription.same_topics(partitions) as ids:
            starts = self._offsets.resolve(starting, partitions, "startingOffsets")
            ends = self._offsets.resolve(ending, partitions, "endingOffsets", is_end=True)
        planned = []
        for partition in partitions:
            begin, end = starts[partition], ends[partition]
            # Only an explicit end can be a mistake: an open transaction may hold the latest offset back.
            is_explicit = (
                isinstance(ending, TimestampsSpec) or dict(ending.by_partition).get(partition, LATEST_OFFSET) >= 0
            )
            if is_explicit and begin.offset > end.offset:
                raise OptionError(
                    f"the starting offset {begin.offset} of {partition} is greater than its ending offset "
                    f"{end.offset}: correct startingOffsets or endingOffsets"
                )
            planned.append(
                OffsetRange(
                    partition,
                    ids[partition.topic],
                    begin.offset,
                    max(begin.offset, end.offset),
                    begin.leader_epoch,
                    end.known_epoch,
                    latest_by_key=isinstance(starting, LatestByKeySpec),
                )
            )
        return planned if self._options.where is None else self._wanted(planned)

    def _spans(self, ranges: Sequence[OffsetRange], column: str) -> tuple[list[int], list[int]]:
        from pyspark_kafka_meta.where.bounds import spans

        assert self._options.where is not None
        firsts, lasts = spans(self._options.where, column, [planned.partition for planned in ranges])
        return firsts.tolist(), lasts.tolist()

    def _wanted(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """The ranges without offsets that the condition of `where` excludes: by themselves, or because the first record
        that is late enough comes later. Brokers do not find the last record that is early enough: producers choose
        timestamps, which need not rise."""
        times_ms = {
            planned.partition: -(-first // 1000)
            for planned, first, last in zip(ranges, *self._spans(ranges, "timestamp"), strict=True)
            if 0 < first <= last and not planned.latest_by_key
        }
        since = self._offsets.since(times_ms)
        firsts, lasts = self._spans(ranges, "offset")
        firsts = [max(since.get(each.partition, first), first) for each, first in zip(ranges, firsts, strict=True)]
        return narrowed(ranges, firsts, lasts)

    def _initial_offset(self) -> SourceOffset:
        """Where a new streaming query begins."""
        starting = self._options.starting_offsets
        assert starting is not None, "for_stream() completes the options"
        partitions = self._first_partitions()
        with self._subscription.same_topics(partitions) as ids:
            positions = self._offsets.resolve(starting, partitions, "startingOffsets")
        return SourceOffset(positions, ids, initial=True)

    def _first_partitions(self) -> list[TopicPartition]:
        partitions = self._subscription.first_partitions()
        if not partitions and self._options.topic_pattern is not None:
            logger.warning(
                "subscribePattern %s matches no topic that this user may see, or only topics that queries write for "
                "themselves: correct it, or allow DESCRIBE on the topic. A stream continues and looks for new topics",
                shortened(self._options.topic_pattern),
            )
        return partitions

    @retried
    def next_offset(self, start: SourceOffset, target: Positions | None, limited: bool) -> SourceOffset:
        """The end of the micro-batch that begins at `start`; the same JSON if there is nothing to read.

        Args:
            start: `BEGINNING` for a new query, which begins where its options say.
            target: where the query ends (Trigger.AvailableNow); None for no end.
            limited: whether the rate limits of the options apply.

        Raises:
            DataLossError: partitions or offsets of `start` or `target` are lost, and failOnDataLoss is true.
            PartitionsAddedError: as `NewPartitions.begin`.
        """
        self._losses.begin_plan(start)
        if self._latest_seen is None:  # later, this client has reported the epochs of `start` itself
            self._client.cache.raise_epochs(start.topic_epochs())
        if start == BEGINNING:
            start = self._initial_offset()
        by_key = start.initial and isinstance(self._options.starting_offsets, LatestByKeySpec)
        limited = limited and not by_key  # the latest record of a key may be anywhere
        logs = self._compare(start, target or {})
        if start.initial and logs.is_changed:
            # Nothing was read yet, so nothing is lost: the next attempt begins in the log as it is now.
            raise UnknownTopicError("a topic was recreated or truncated while its offsets were listed: try again")
        if self._latest_seen is None:
            self._warn_without_ids(logs.latest)
        begun, losses = self._starts.begin(start, logs, self._client.clock())
        self._losses.report([*logs.lost_targets(), *losses])
        self._unreachable |= logs.lost_ends.keys() | (target or {}).keys() - logs.latest.positions.keys()
        if not logs.latest.positions:
            # SPARK-41375: topics that return must not be read from their start. A new query without any topic has
            # begun: later topics are new.
            return SourceOffset({}, {}) if start.initial else start
        self._latest_seen = logs.latest
        starts, ends = {**start.positions, **begun}, logs.latest.positions
        # A partition that returned may end before its start: it waits there, and the next plan detects the loss.
        ends = {**ends, **{partition: max(ends[partition], position) for partition, position in begun.items()}}
        ends = self._capped(starts, ends, target)
        if target is None and limited and self._is_delayed(backlog(starts, ends), at_once=bool(begun) or start.initial):
            return start
        if limited:
            ends = self._limited(starts, ends)
        ends = self._epochs.with_epoch_starts(starts, ends, logs.latest.topic_ids)
        end = advance(start, replace(logs.latest, positions=ends), begun)
        if by_key:
            end = replace(end, latest_by_key=True)
        if self._options.changes is None:
            return end
        return with_generations(start, end, {loss.partition.topic for loss in losses if loss.kind in LOST_STARTS})

    def _limited(self, starts: Positions, ends: Positions) -> Positions:
        """`ends`, as far as maxOffsetsPerTrigger and maxBytesPerTrigger allow."""
        most = self._options.max_offsets_per_trigger
        ends = ends if most is None else limit_offsets(starts, ends, most)
        return (
            ends
            if self._byte_limit is None
            else limit_offsets(starts, ends, self._byte_limit.max_offsets(starts, ends))
        )

    def _capped(self, starts: Positions, ends: Positions, target: Positions | None) -> Positions:
        """`ends`, but not after the end of the query or of the stream."""
        if target is not None:
            ends = cap_offsets(starts, ends, target)
        if self._options.ending_offsets is not None:
            ending = self._options.ending_offsets.by_partition
            ends = cap_offsets(starts, ends, {partition: Position(offset) for partition, offset in ending})
        return ends

    def _compare(self, start: SourceOffset, target: Positions) -> Comparison:
        """Compare `start` and `target` with the logs. While something is lost, leaders are asked again after a pause,
        with metadata of another broker: up to fetchOffset.numRetries times, and until two brokers agree. Raises
        ConnectError: one broker alone responded by the deadline."""
        target = {partition: position for partition, position in target.items() if partition not in self._unreachable}
        cache, deadline, pauses = self._client.cache, self._client.api_deadline(), 0
        logs, reporters = self._compare_once(start, target), {cache.snapshot.reported_by}
        while logs.lost_starts or logs.lost_ends:
            is_agreed = start.initial or cache.snapshot.is_agreed(reporters)  # of a new query nothing is lost
            if pauses >= max(self._options.fetch_offset_retries, 1) and is_agreed:
                break
            if self._client.clock() >= deadline and not is_agreed:
                found = describe([*logs.lost_starts.values(), *logs.lost_targets()])
                raise ConnectError(
                    f"broker {cache.snapshot.reported_by} alone responds, and may be cut off from the cluster. By its "
                    f"metadata, {found}. Check that this host can reach the other brokers"
                )
            pauses += 1
            retry_s = self._options.fetch_offset_retry_interval_ms / 1000
            self._client.sleep(retry_s if is_agreed else max(retry_s, self._client.backoff_s(pauses)))
            cache.refresh(RefreshReason.ON_DEMAND, self._client.api_deadline())
            logs = self._compare_once(start, target)
            reporters.add(cache.snapshot.reported_by)
        return logs

    def _compare_once(self, start: SourceOffset, target: Positions) -> Comparison:
        partitions = self._subscription.existing_partitions(start.positions.keys() | target.keys(), start)
        with self._subscription.same_topics(partitions) as ids:
            latest = SourceOffset(self._offsets.latest(partitions), ids)
            truncations = self._epochs.truncations(start, latest)
        positions = {**latest.positions, **self._held_back(start, latest, truncations)}
        return compare(start, target, replace(latest, positions=positions), truncations)

    def _held_back(
        self, start: SourceOffset, latest: SourceOffset, truncations: Positions
    ) -> dict[TopicPartition, Position]:
        """The positions of `start` after the last stable offset and within the high watermark: an open transaction, not
        a truncation, is why the log ends before them. The query began there, or was read_uncommitted before."""
        if not self._options.fetch.read_committed:
            return {}
        held_back = {
            partition: begin
            for partition, begin in start.positions.items()
            if (end := latest.positions.get(partition)) is not None
            and end.offset < begin.offset
            and partition not in truncations
            and not is_other_topic(start.topic_ids[partition.topic], latest.topic_ids[partition.topic])
        }
        marks = self._offsets.high_watermarks(held_back)
        return {part: begin for part, begin in held_back.items() if begin.offset <= marks[part].offset}

    def _warn_without_ids(self, latest: SourceOffset) -> None:
        without = sorted(topic for topic, topic_id in latest.topic_ids.items() if topic_id is None)
        if without:
            logger.warning(
                "the brokers report no ids of %s (Kafka before 2.8, or inter.broker.protocol.version): a topic that is "
                "deleted and recreated is only noticed by its leader epochs or a shorter log, and its records may be "
                "lost without an error. Do not recreate these topics while a query reads them, or upgrade the brokers",
                name_first(without),
            )

    def _is_delayed(self, offsets: int, at_once: bool) -> bool:
        """Whether the micro-batch waits for more records. Not for Trigger.AvailableNow: the query would end."""
        now, min_offsets = self._client.clock(), self._options.min_offsets_per_trigger
        waited_ms = None if self._planned_at is None else (now - self._planned_at) * 1000
        max_delay_ms = self._options.max_trigger_delay_ms
        if not at_once and min_offsets is not None and is_delayed(offsets, min_offsets, waited_ms, max_delay_ms):
            return True
        self._planned_at = now
        return False
