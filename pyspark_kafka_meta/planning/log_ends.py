"""`LogEnds`: which partitions there are and where their logs end, nothing being called lost on one broker's word.

Follows Spark's `KafkaOffsetReaderAdmin`, which asks again where the latest offsets went back (KAFKA-7703).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.errors import UnknownTopicError, UnsupportedBrokerError
from pyspark_kafka_meta.model import NO_EPOCH, Position, Positions, RefreshReason, TopicPartition, is_other_topic
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.planning.checkpoint_offsets import LatestOffset, SourceOffset
from pyspark_kafka_meta.planning.data_loss import DataLossPolicy
from pyspark_kafka_meta.planning.lost_positions import (
    explain_end,
    has_other_id,
    is_shorter,
    lost_ends,
    lost_starts,
)
from pyspark_kafka_meta.planning.start_end_offsets import OffsetResolver
from pyspark_kafka_meta.validators import name_partitions

logger = logging.getLogger(__name__)


class LogEnds:
    """Log ends of the partitions one query reads."""

    def __init__(self, client: KafkaClient, options: SourceOptions, resolver: OffsetResolver) -> None:
        self._client = client
        self._options = options
        self._policy = DataLossPolicy(options)
        self._resolver = resolver
        self._skipped: set[TopicPartition] = set()  # their lost target was reported
        self._reported = ""  # the last loss
        # The positions that leaders have compared with their logs, and the leader epoch that they did it in.
        self._compared: dict[TopicPartition, tuple[Position, int]] = {}

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

    def first_partitions(self, missing_are_lost: bool = False) -> list[TopicPartition]:
        """The partitions that a query begins with, as two brokers know them. One that lags behind may lack some, which
        a run that ends would never read, and a stream that begins at the ends of the logs would read from the start.

        Args:
            missing_are_lost: whether a missing topic is a loss, as failOnDataLoss says, or an UnknownTopicError.
        """
        look = self.accept_gone_partitions if missing_are_lost else self.partitions
        found = look(())
        brokers = {broker.address for broker in self._client.cache.snapshot.brokers.values()}
        if self._options.assigned is not None or len(brokers) == 1:
            return found
        # Whose answer came over another address than a broker's own, such as a load balancer's, is not known.
        is_known = brokers.issuperset(self._client.options.bootstrap_servers)
        for _ in range(1 if is_known else 2):
            self._client.cache.refresh(RefreshReason.ON_DEMAND, self._client.api_deadline())
            found = look(found)
        return found

    def _topics(self, expected: Collection[TopicPartition]) -> Collection[str]:
        """Those that are named, or that match the pattern by now; of the latter those that were read before too."""
        if self._options.topic_pattern is None:
            return self._options.topics
        return {*self._client.cache.snapshot.topics, *(partition.topic for partition in expected)}

    @contextmanager
    def same_topics(self, partitions: Collection[TopicPartition]) -> Iterator[dict[str, UUID | None]]:
        """The ids that belong to the offsets of `partitions` that are asked for within this context.

        Raises:
            UnknownTopicError: a topic is not the same any more, or not known any more, at the end.
        """
        ids = self._topic_ids(partitions)
        yield ids
        if ids != self._topic_ids(partitions):
            raise UnknownTopicError("a topic was deleted, or recreated, while its offsets were asked for: try again")

    def _topic_ids(self, partitions: Collection[TopicPartition]) -> dict[str, UUID | None]:
        """The ids of the topics of `partitions`, as cached."""
        snapshot = self._client.cache.snapshot
        return {topic: snapshot.topic_id(topic) for topic in {partition.topic for partition in partitions}}

    def accept_gone_partitions(
        self, expected: Collection[TopicPartition], start: SourceOffset | None = None
    ) -> list[TopicPartition]:
        """The partitions there are now. An expected one that is missing is lost, unless its topic was recreated since
        `start`: then the partitions of the new topic decide."""
        losses = []
        if forgotten := sorted(one for one in expected if not self._is_asked_for(one)):
            losses.append(
                f"the checkpoint has {name_partitions(forgotten)}, which the query asks for no more: set its topics as "
                "they were, or give it a checkpointLocation of its own"
            )
            expected = set(expected).difference(forgotten)
        try:
            partitions = self.partitions(expected)
        except UnknownTopicError as error:
            losses.append(f"a topic or partition that was being read is gone: {error}")
            self._report(*losses, may_be_recreated=True)
            wanted = self._options.assigned
            snapshot = self._client.cache.snapshot
            found = [one for topic in self._topics(()) for one in snapshot.partitions(topic)]
            return [one for one in sorted(found) if wanted is None or one in wanted]
        gone = set(expected) - set(partitions)
        if start is not None:
            ids = self._topic_ids(gone)
            gone = {one for one in gone if not is_other_topic(start.topic_ids.get(one.topic), ids[one.topic])}
        if gone:
            losses.append(
                f"{name_partitions(gone)} are gone: the topic was deleted or recreated; there are now "
                f"{name_partitions(partitions)}"
            )
        self._report(*losses, may_be_recreated=bool(gone))
        return partitions

    def _is_asked_for(self, partition: TopicPartition) -> bool:
        """By the query's options as they are: its checkpoint may be of others."""
        options = self._options
        if options.assigned is not None:
            return partition in options.assigned
        if options.topic_pattern is not None:
            return re.search(options.topic_pattern, partition.topic) is not None
        return partition.topic in options.topics

    def _report(self, *losses: str, may_be_recreated: bool = False) -> None:
        """Report each loss once until it changes."""
        loss = "; ".join(losses)
        if loss not in ("", self._reported):
            self._policy.report_loss(loss, may_be_recreated)
        self._reported = loss

    def confirmed(self, start: SourceOffset, target: Positions) -> LatestOffset:
        """The ends, topic ids and truncations. If reading cannot go on from `start`, or not up to `target`, leaders are
        asked again with fresh metadata of another broker: the first may lag behind, and only metadata separates a
        recreated topic from a log that became shorter. A lost target is reported once, where losing it is allowed."""
        target = {one: position for one, position in target.items() if one not in self._skipped}
        expected = start.positions.keys() | target.keys()
        latest = self._latest_left(expected, start)
        for _ in range(max(self._options.fetch_offset_retries, 1)):  # what only one broker says is never believed
            if not lost_starts(start, latest) and not lost_ends(target, latest):
                break
            # A broker that has just become leader may report a smaller end than the last one for a moment (KAFKA-7703).
            self._client.sleep(self._options.fetch_offset_retry_interval_ms / 1000)
            self._client.cache.refresh(RefreshReason.ON_DEMAND, self._client.api_deadline())
            latest = self._latest_left(expected, start)
        lost = [one for one in lost_ends(target, latest) if one not in lost_starts(start, latest)]
        if lost:
            self._report(*(explain_end(one, target, latest) for one in lost[:5]))
        for one in lost:
            cut, cause = latest.positions[one].offset, explain_end(one, target, latest)
            self._client.cache.record_loss(one, cut, target[one].offset, cause)
        self._skipped.update(lost_ends(target, latest), target.keys() - latest.positions.keys())
        return latest

    def _held_back(self, start: SourceOffset, latest: LatestOffset) -> dict[TopicPartition, Position]:
        """The starts that lie behind an open transaction, not behind the log: where a query has begun, or become,
        read_committed."""
        if not self._options.client.read_committed:
            return {}
        shared = start.positions.keys() & latest.positions.keys()
        behind = [one for one in shared if is_shorter(one, start, latest) and not has_other_id(one, start, latest)]
        marks = self._resolver.high_watermarks(behind)
        return {one: start.positions[one] for one in behind if start.positions[one].offset <= marks[one].offset}

    def _latest_left(self, expected: Collection[TopicPartition], start: SourceOffset) -> LatestOffset:
        """The ends of the partitions there are now, the ids that go with them, and where they were truncated."""
        partitions = self.accept_gone_partitions(expected, start)
        with self.same_topics(partitions) as ids:
            latest = self._resolver.latest(partitions)
            left = LatestOffset(latest, ids)
            cuts = self._cuts(start, left)
        held_back = {one: position for one, position in self._held_back(start, left).items() if one not in cuts}
        return replace(left, positions={**latest, **held_back}, cuts=cuts)

    def _cuts(self, start: SourceOffset, latest: LatestOffset) -> dict[TopicPartition, Position]:
        """Where logs part from what was read of them. Only a new leader truncates a log, so a leader is asked once in
        its epoch (KIP-320). Follows Kafka's `SubscriptionState.maybeValidatePositionForCurrentLeader`."""
        epochs = {}
        for one in start.positions.keys() & latest.positions.keys():
            old, epoch = start.positions[one], latest.positions[one].leader_epoch
            is_due = NO_EPOCH < old.leader_epoch < epoch and self._compared.get(one) != (old, epoch)
            if is_due and not has_other_id(one, start, latest):
                epochs[one] = old.leader_epoch
        if not epochs:
            return {}
        try:
            ends = self._client.epoch_ends(epochs, self._client.api_deadline())
        except UnsupportedBrokerError as error:  # as Kafka's consumer does, which skips the validation then
            logger.warning("a truncated log is only noticed by its end, as leaders cannot compare epochs: %s", error)
            ends = {}
        cuts = {
            one: Position(end.offset, end.leader_epoch)
            for one, end in ends.items()
            if 0 <= end.offset < start.positions[one].offset
        }
        self._compared |= {
            one: (start.positions[one], latest.positions[one].leader_epoch) for one in epochs.keys() - cuts.keys()
        }
        return cuts
