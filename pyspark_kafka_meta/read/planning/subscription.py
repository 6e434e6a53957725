"""`Subscription`: the partitions that a query reads, by its topics, pattern or assignment, as brokers report them.

Follows Spark's `ConsumerStrategy` and `KafkaOffsetReaderAdmin`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from uuid import UUID

from pyspark_kafka_meta.errors import UnknownTopicError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import RefreshReason, TopicPartition, is_other_topic, name_partitions
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.read.planning.data_loss import LossReporter

logger = logging.getLogger(__name__)


class Subscription:
    """The partitions of one query."""

    def __init__(self, client: KafkaClient, options: SourceOptions, losses: LossReporter) -> None:
        self._client = client
        self._options = options
        self._losses = losses
        self._assigned = None if options.assigned is None else frozenset(options.assigned)
        self._topic_filter = options.topic_filter or frozenset(options.topics).__contains__

    def partitions(self, expected: Collection[TopicPartition] = ()) -> list[TopicPartition]:
        """The partitions that the query reads now, sorted. Raises UnknownTopicError: a topic, or a partition in option
        assign, does not exist; or, under a pattern, an expected partition.

        Args:
            expected: partitions that it read before; see `KafkaClient.partitions`.
        """
        expected, deadline = self._options.assigned or expected, self._client.api_deadline()
        if self._options.topic_pattern is not None:
            self._client.partitions((), deadline)
        found = self._client.partitions(self._topics(expected), deadline, expected)
        if self._assigned is None:
            return found
        if missing := self._assigned.difference(found):
            counts = ", ".join(
                f"{topic} has {sum(partition.topic == topic for partition in found)} partitions"
                for topic in sorted({partition.topic for partition in missing})
            )
            raise UnknownTopicError(f"option assign names {name_partitions(missing)}, and {counts}: correct the option")
        return sorted(self._assigned)

    def first_partitions(self, missing_are_lost: bool = False) -> list[TopicPartition]:
        """The partitions that a query begins with, from two brokers. A broker that lags behind may lack some: a run
        that ends would never read them, and a stream that begins at latest would read them from the start.

        Args:
            missing_are_lost: whether a missing topic is a loss for failOnDataLoss, or an UnknownTopicError.
        """
        list_partitions = self.existing_partitions if missing_are_lost else self.partitions
        found = list_partitions(())
        brokers = {broker.address for broker in self._client.cache.snapshot.brokers.values()}
        if self._assigned is not None or len(brokers) == 1:
            return found
        # Behind another address than a broker's own, such as a load balancer's, any broker may have responded.
        is_known = brokers.issuperset(self._client.options.bootstrap_servers)
        for _ in range(1 if is_known else 2):
            self._client.cache.refresh(RefreshReason.ON_DEMAND, self._client.api_deadline())
            found = list_partitions(found)
        return found

    def existing_partitions(
        self, expected: Collection[TopicPartition], start: SourceOffset | None = None
    ) -> list[TopicPartition]:
        """The partitions that exist now. A missing expected partition is lost, unless its topic was recreated since
        `start`: then the partitions of the new topic decide."""
        losses = []
        forgotten = self._forgotten(expected)
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
            self._losses.report_missing("; ".join(losses), may_be_recreated=True)
            snapshot = self._client.cache.snapshot
            found = {partition for topic in self._topics(()) for partition in snapshot.partitions(topic)}
            return sorted(found if self._assigned is None else found & self._assigned)
        gone = expected.difference(partitions)
        if gone and start is not None:
            ids, old_ids = self._topic_ids(gone), start.topic_ids
            gone = {part for part in gone if not is_other_topic(old_ids.get(part.topic), ids[part.topic])}
        if gone:
            losses.append(
                f"{name_partitions(gone)} are gone: the topic was deleted or recreated; there are now "
                f"{name_partitions(partitions)}"
            )
        self._losses.report_missing("; ".join(losses), may_be_recreated=bool(gone))
        return partitions

    @contextmanager
    def same_topics(self, partitions: Collection[TopicPartition]) -> Iterator[dict[str, UUID | None]]:
        """The topic ids that belong to the offsets of `partitions` that are listed within this context. Raises
        UnknownTopicError: at the end, a topic was recreated or is unknown."""
        ids = self._topic_ids(partitions)
        yield ids
        if ids != self._topic_ids(partitions):
            raise UnknownTopicError("a topic was deleted, or recreated, while its offsets were listed: try again")

    def _topic_ids(self, partitions: Collection[TopicPartition]) -> dict[str, UUID | None]:
        """The cached ids of the topics of `partitions`."""
        snapshot = self._client.cache.snapshot
        return {topic: snapshot.topic_id(topic) for topic in {partition.topic for partition in partitions}}

    def _topics(self, expected: Collection[TopicPartition]) -> Collection[str]:
        """The subscribed topics, or all that match the pattern with those of `expected`."""
        if self._options.topic_pattern is None:
            return self._options.topics
        return {*self._client.cache.snapshot.topics, *(partition.topic for partition in expected)}

    def _forgotten(self, expected: Collection[TopicPartition]) -> list[TopicPartition]:
        """The members of `expected` that the query's options exclude: its checkpoint may be of other options."""
        if self._assigned is not None:
            return sorted(set(expected) - self._assigned)
        topics = {topic for topic in {partition.topic for partition in expected} if not self._topic_filter(topic)}
        return sorted(partition for partition in expected if partition.topic in topics) if topics else []

    def _without_own_topics(self, forgotten: Collection[TopicPartition]) -> list[TopicPartition]:
        """`forgotten` without topics that the pattern would match if queries did not write them for themselves. Their
        unread records are no loss: an earlier release read them, or eventsTopic or decisionsTopic is a new option."""
        pattern = self._options.topic_pattern
        own = [part for part in forgotten if pattern is not None and re.search(pattern, part.topic)]
        if own:
            logger.warning(
                "%s: read no more, because queries write these topics for themselves. To read them, name them in "
                "option subscribe of another query",
                name_partitions(own),
            )
        return [partition for partition in forgotten if partition not in own]
