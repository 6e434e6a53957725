"""`LogEnds`: the partitions of a query and the ends of their logs. No loss is believed on the word of one broker.

Follows Spark's `KafkaOffsetReaderAdmin`, which lists the latest offsets again if they went back (KAFKA-7703).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

from pyspark_kafka_meta.errors import UnknownTopicError, UnsupportedBrokerError
from pyspark_kafka_meta.kafka.client.kafka_client import COMPACT, KafkaClient
from pyspark_kafka_meta.kafka.protocol.list_offsets import PartitionOffset
from pyspark_kafka_meta.model import (
    NO_EPOCH,
    Position,
    Positions,
    RefreshReason,
    TopicPartition,
    is_other_topic,
    name_partitions,
)
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import LatestOffset, SourceOffset
from pyspark_kafka_meta.read.planning.data_loss_policy import DataLossPolicy
from pyspark_kafka_meta.read.planning.lost_checkpoint_offsets import (
    explain_end,
    has_other_id,
    is_shorter,
    lost_ends,
    lost_starts,
)
from pyspark_kafka_meta.read.planning.start_end_offsets import StartEndOffsets

logger = logging.getLogger(__name__)

MAX_EPOCHS_BACK = 2
"""The leader's epoch and the epoch before are looked at for the record before a log end: a leader that wrote nothing
keeps no other epoch without records (Kafka `LeaderEpochFileCache`)."""


class LogEnds:
    """The log ends of one query."""

    def __init__(self, client: KafkaClient, options: SourceOptions, offsets: StartEndOffsets) -> None:
        self._client = client
        self._options = options
        self._policy = DataLossPolicy(options)
        self._offsets = offsets
        self._topic_filter = options.topic_filter
        self._skipped: set[TopicPartition] = set()  # their lost target was reported
        self._reported = ""  # the last loss
        # The positions that leaders have compared with their logs, and in which leader epoch.
        self._compared: dict[TopicPartition, tuple[Position, int]] = {}
        # The epoch before, and its end, where this epoch starts, by topic id and epoch.
        self._epochs_before: dict[TopicPartition, dict[tuple[UUID | None, int], PartitionOffset]] = {}
        self._warned = False  # that leaders cannot compare epochs

    def partitions(self, expected: Collection[TopicPartition] = ()) -> list[TopicPartition]:
        """The partitions that the query reads now, sorted.

        Args:
            expected: partitions that it read before; see `KafkaClient.partitions`.

        Raises:
            UnknownTopicError: a topic, or a partition in option assign, does not exist; or, under a pattern, an
                expected partition.
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

    def first_partitions(self, missing_are_lost: bool = False) -> list[TopicPartition]:
        """The partitions that a query begins with, from two brokers. A broker that lags behind may lack some: a run
        that ends would never read them, and a stream that begins at latest would read them from the start.

        Args:
            missing_are_lost: whether a missing topic is a loss for failOnDataLoss, or an UnknownTopicError.
        """
        list_partitions = self.existing_partitions if missing_are_lost else self.partitions
        found = list_partitions(())
        brokers = {broker.address for broker in self._client.cache.snapshot.brokers.values()}
        if self._options.assigned is not None or len(brokers) == 1:
            return found
        # Behind another address than a broker's own, such as a load balancer's, any broker may have responded.
        is_known = brokers.issuperset(self._client.options.bootstrap_servers)
        for _ in range(1 if is_known else 2):
            self._client.cache.refresh(RefreshReason.ON_DEMAND, self._client.api_deadline())
            found = list_partitions(found)
        return found

    def _topics(self, expected: Collection[TopicPartition]) -> Collection[str]:
        """The subscribed topics, or all that match the pattern with those of `expected`."""
        if self._options.topic_pattern is None:
            return self._options.topics
        return {*self._client.cache.snapshot.topics, *(partition.topic for partition in expected)}

    @contextmanager
    def same_topics(self, partitions: Collection[TopicPartition]) -> Iterator[dict[str, UUID | None]]:
        """The topic ids that belong to the offsets of `partitions` that are listed within this context.

        Raises:
            UnknownTopicError: at the end, a topic was recreated or is unknown.
        """
        ids = self._topic_ids(partitions)
        yield ids
        if ids != self._topic_ids(partitions):
            raise UnknownTopicError("a topic was deleted, or recreated, while its offsets were listed: try again")

    def _topic_ids(self, partitions: Collection[TopicPartition]) -> dict[str, UUID | None]:
        """The cached ids of the topics of `partitions`."""
        snapshot = self._client.cache.snapshot
        return {topic: snapshot.topic_id(topic) for topic in {partition.topic for partition in partitions}}

    def existing_partitions(
        self, expected: Collection[TopicPartition], start: SourceOffset | None = None
    ) -> list[TopicPartition]:
        """The partitions that exist now. A missing expected partition is lost, unless its topic was recreated since
        `start`: then the partitions of the new topic decide."""
        losses = []
        forgotten = sorted(partition for partition in expected if not self._is_subscribed(partition))
        expected = set(expected).difference(forgotten)
        if others := self._without_own_topics(forgotten):
            losses.append(
                f"the checkpoint has {name_partitions(others)}, which the query asks for no more: set its topics as "
                "they were, or give it a checkpointLocation of its own"
            )
        try:
            partitions = self.partitions(expected)
        except UnknownTopicError as error:
            losses.append(f"a topic or partition that was being read is gone: {error}")
            self._report(*losses, may_be_recreated=True)
            assigned, snapshot = self._options.assigned, self._client.cache.snapshot
            found = [partition for topic in self._topics(()) for partition in snapshot.partitions(topic)]
            return [partition for partition in sorted(found) if assigned is None or partition in assigned]
        gone = set(expected) - set(partitions)
        if start is not None:
            ids, old_ids = self._topic_ids(gone), start.topic_ids
            gone = {part for part in gone if not is_other_topic(old_ids.get(part.topic), ids[part.topic])}
        if gone:
            losses.append(
                f"{name_partitions(gone)} are gone: the topic was deleted or recreated; there are now "
                f"{name_partitions(partitions)}"
            )
        self._report(*losses, may_be_recreated=bool(gone))
        return partitions

    def _without_own_topics(self, forgotten: Collection[TopicPartition]) -> list[TopicPartition]:
        """`forgotten` without topics that the pattern would match if queries did not write them for themselves. Their
        unread records are no loss: an earlier release read them, or metricsTopic or decisionsTopic is a new option."""
        pattern = self._options.topic_pattern
        own = [part for part in forgotten if pattern is not None and re.search(pattern, part.topic)]
        if own:
            logger.warning(
                "%s: read no more, because queries write these topics for themselves. To read them, name them in "
                "option subscribe of another query",
                name_partitions(own),
            )
        return [partition for partition in forgotten if partition not in own]

    def _is_subscribed(self, partition: TopicPartition) -> bool:
        """Whether the query's options include it: its checkpoint may be of other options."""
        if self._options.assigned is not None:
            return partition in self._options.assigned
        if self._topic_filter is not None:
            return self._topic_filter(partition.topic)
        return partition.topic in self._options.topics

    def _report(self, *losses: str, may_be_recreated: bool = False) -> None:
        """Report each loss once until it changes."""
        loss = "; ".join(losses)
        if loss not in ("", self._reported):
            self._policy.report_loss(loss, may_be_recreated)
        self._reported = loss

    def confirmed(self, start: SourceOffset, target: Positions) -> LatestOffset:
        """The log ends, topic ids and truncations. If reading cannot continue from `start`, or not up to `target`,
        leaders are asked again with metadata of another broker: the first may lag behind, and only metadata
        distinguishes a recreated topic from a shorter log. A lost target is reported once if the loss is allowed."""
        target = {partition: position for partition, position in target.items() if partition not in self._skipped}
        expected = start.positions.keys() | target.keys()
        latest = self._latest(expected, start)
        for _ in range(max(self._options.fetch_offset_retries, 1)):  # never believe one broker alone
            if not lost_starts(start, latest) and not lost_ends(target, latest):
                break
            # A new leader may report a smaller end than the old one for a moment (KAFKA-7703).
            self._client.sleep(self._options.fetch_offset_retry_interval_ms / 1000)
            self._client.cache.refresh(RefreshReason.ON_DEMAND, self._client.api_deadline())
            latest = self._latest(expected, start)
        lost = [partition for partition in lost_ends(target, latest) if partition not in lost_starts(start, latest)]
        if lost:
            self._report(*(explain_end(partition, target, latest) for partition in lost[:5]))
        for partition in lost:
            end, cause = latest.positions[partition].offset, explain_end(partition, target, latest)
            self._client.cache.record_loss(partition, end, target[partition].offset, cause)
        self._skipped.update(lost_ends(target, latest), target.keys() - latest.positions.keys())
        return latest

    def _latest(self, expected: Collection[TopicPartition], start: SourceOffset) -> LatestOffset:
        """The ends of the existing partitions, their topic ids, and where they were truncated."""
        partitions = self.existing_partitions(expected, start)
        with self.same_topics(partitions) as ids:
            latest = LatestOffset(self._offsets.latest(partitions), ids)
            cuts = self._cuts(start, latest)
        held_back = {part: position for part, position in self._held_back(start, latest).items() if part not in cuts}
        return replace(latest, positions={**latest.positions, **held_back}, cuts=cuts)

    def _held_back(self, start: SourceOffset, latest: LatestOffset) -> dict[TopicPartition, Position]:
        """The starts that lie behind an open transaction, but within the log: the query began there, or was
        read_uncommitted before."""
        if not self._options.fetch.read_committed:
            return {}
        behind = [
            partition
            for partition in start.positions.keys() & latest.positions.keys()
            if is_shorter(partition, start, latest) and not has_other_id(partition, start, latest)
        ]
        marks = self._offsets.high_watermarks(behind)
        starts = {partition: start.positions[partition] for partition in behind}
        return {partition: begin for partition, begin in starts.items() if begin.offset <= marks[partition].offset}

    def _cuts(self, start: SourceOffset, latest: LatestOffset) -> dict[TopicPartition, Position]:
        """Where logs diverge from what was read of them. Only a new leader truncates a log, so each leader epoch is
        compared once (KIP-320). Follows Kafka's `SubscriptionState.maybeValidatePositionForCurrentLeader`."""
        epochs = {}
        for partition in start.positions.keys() & latest.positions.keys():
            old, epoch = start.positions[partition], latest.positions[partition].leader_epoch
            is_due = NO_EPOCH < old.leader_epoch < epoch and self._compared.get(partition) != (old, epoch)
            if is_due and not has_other_id(partition, start, latest):
                epochs[partition] = old.leader_epoch
        ends = self._epoch_ends(epochs)
        cuts = {
            partition: Position(kept_until, end.leader_epoch)
            for partition, end in ends.items()
            for kept_until in [self._kept_until(partition, start.positions[partition], end)]
            if 0 <= kept_until < start.positions[partition].offset
        }
        self._compared |= {
            partition: (start.positions[partition], latest.positions[partition].leader_epoch)
            for partition in epochs.keys() - cuts.keys()
        }
        return cuts

    def _kept_until(self, partition: TopicPartition, read: Position, end: PartitionOffset) -> int:
        kept_until = read.kept_until(end.leader_epoch, end.offset)
        if kept_until < read.offset <= end.offset and COMPACT in (self._client.cleanup_policy(partition.topic) or ""):
            # A replica that was built after compaction had removed all records of an epoch never knew this epoch.
            logger.warning(
                "the log of %s has no records of leader epoch %d, which were read from offset %d on: compaction has "
                "removed them, or an unclean leader election has replaced them",
                partition,
                read.leader_epoch,
                read.epoch_start,
            )
            return end.offset
        return kept_until

    def with_epoch_starts(self, starts: Positions, end: SourceOffset) -> SourceOffset:
        """`end`, where each position that moved since `starts` has the epoch of the record before it, and the start of
        this epoch, as far as its leader says. The leader's own epoch may have no records (see `Position`)."""
        epochs = {
            partition: position.leader_epoch
            for partition, position in end.positions.items()
            if position.offset != starts[partition].offset
        }
        found: dict[TopicPartition, Position] = {}
        for _ in range(MAX_EPOCHS_BACK):
            before = self._ends_before(epochs, end.topic_ids)
            found |= {
                partition: Position(offset, epochs[partition], epoch_end.offset)
                for partition, epoch_end in before.items()
                for offset in [end.positions[partition].offset]
                if 0 <= epoch_end.offset < offset
            }
            epochs = {part: epoch_end.leader_epoch for part, epoch_end in before.items() if part not in found}
        return replace(end, positions={**end.positions, **found})

    def _ends_before(
        self, epochs: Mapping[TopicPartition, int], ids: Mapping[str, UUID | None]
    ) -> dict[TopicPartition, PartitionOffset]:
        """The epoch before each of `epochs`, and its end. Leaders are asked once about an epoch. Epoch 0 has none
        before."""
        keys = {partition: (ids[partition.topic], epoch) for partition, epoch in epochs.items() if epoch > 0}
        known = self._epochs_before
        unknown = {part: epoch - 1 for part, (_, epoch) in keys.items() if keys[part] not in known.get(part, {})}
        for partition, epoch_end in self._epoch_ends(unknown).items():
            latest = list(known.get(partition, {}).items())[1 - MAX_EPOCHS_BACK :]
            known[partition] = {**dict(latest), keys[partition]: epoch_end}
        return {part: known[part][key] for part, key in keys.items() if key in known.get(part, {})}

    def _epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, PartitionOffset]:
        if not epochs:
            return {}
        try:
            return self._client.epoch_end_offsets(epochs, self._client.api_deadline())
        except UnsupportedBrokerError as error:  # Kafka's consumer skips the validation too
            if not self._warned:
                text = "a truncated log is only noticed by its end, as leaders cannot compare epochs: %s"
                logger.warning(text, error)
            self._warned = True
            return {}
