"""`KafkaClient`: connections, metadata cache and events of a process, and the requests to leaders that need them.

A Python worker lives across tasks and micro-batches, and so does its client (`client_pool`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import ConnectError, NoLeaderError, UnknownTopicError
from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.client.leader_requests import LeaderOffsets
from pyspark_kafka_meta.kafka.client.next_request import UNKNOWN_GRACE_MS
from pyspark_kafka_meta.kafka.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION, Action, broker_error, read_action
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetsRequest, PartitionOffset
from pyspark_kafka_meta.model import RefreshReason, TopicPartition, name_first, name_partitions, shortened
from pyspark_kafka_meta.options.unknown_options import closest

if TYPE_CHECKING:
    from pyspark_kafka_meta.kafka.client.consumer_groups import ConsumerGroups
    from pyspark_kafka_meta.kafka.client.transactions import TransactionCoordinators

NAMES_TIMEOUT_S = 2.0
COMPACT = "compact"
"""In the cleanup.policy of a topic."""
POLICY_AGE_S = 60.0
"""Shorter than kafkaConsumer.pollTimeoutMs, so that a task that waits at a gap notices a policy with "compact"."""


class KafkaClient(ClientState):
    """A client of one cluster. Not thread-safe."""

    @cached_property
    def coordinators(self) -> TransactionCoordinators:
        """Producer ids and transactions."""
        # Readers start sooner without it.
        from pyspark_kafka_meta.kafka.client.transactions import TransactionCoordinators

        return TransactionCoordinators(self)

    @cached_property
    def groups(self) -> ConsumerGroups:
        """The offsets of consumer groups."""
        from pyspark_kafka_meta.kafka.client.consumer_groups import ConsumerGroups  # as above

        return ConsumerGroups(self)

    def partitions(
        self, topics: Collection[str], deadline: float, expected: Collection[TopicPartition] = ()
    ) -> list[TopicPartition]:
        """All partitions of `topics`, from metadata no older than metadata.max.age.ms. One request, which does not wait
        for a backoff, is for all topics that the cache sees for the first time.

        Args:
            expected: partitions that the caller knows. A broker that lacks some may lag behind, or be cut off from the
                cluster: two brokers lack them before this returns without them.

        Raises:
            UnknownTopicError: a topic does not exist.
            BrokerError: a topic may not be read.
            ConnectError: no broker responded by `deadline`, or one alone, which lacks expected partitions.
        """
        new = self.cache.track(topics)
        if self.cache.snapshot.generation == 0:
            self.cache.refresh(RefreshReason.BOOTSTRAP, deadline)
        elif not self.cache.snapshot.topics.keys() >= new:
            self.cache.refresh(RefreshReason.NEW_TOPIC, deadline)
        elif self.cache.has_request_in_flight:  # perhaps since the last plan, long ago
            self.cache.refresh(RefreshReason.ON_DEMAND, deadline)
        else:
            self.cache.refresh_if_due(deadline)
        expected = {partition for partition in expected if partition.topic in topics}
        missing = self._wait_for(topics, expected, deadline)
        reported = self.cache.snapshot.topics.keys() | self.cache.snapshot.topic_errors.keys()
        given_up = self._given_up.difference(topics, expected) | missing
        # The cache requests a topic that nobody looks up any more for some minutes: then it is forgotten here too.
        self._given_up = {each for each in given_up if (each if isinstance(each, str) else each.topic) in reported}
        if unknown := self._unknown_topics(topics):
            raise UnknownTopicError(
                f"topic {name_first(unknown)} does not exist in the cluster at {self._servers()}: "
                f"check the name{self._similar_name(unknown[0])}, or create the topic first"
            )
        return [partition for topic in sorted(topics) for partition in self.cache.snapshot.partitions(topic)]

    def _wait_for(
        self, topics: Collection[str], expected: Collection[TopicPartition], deadline: float
    ) -> set[str | TopicPartition]:
        """Ask again until all are known, or for the grace period none becomes known. Returns what is missing."""
        missing, reporters = self._missing(topics, expected), {self.cache.snapshot.reported_by}
        grace_ends = min(deadline, self.clock() + UNKNOWN_GRACE_MS / 1000)
        while not missing <= self._given_up:
            snapshot, now = self.cache.snapshot, self.clock()
            is_doubtful = bool(expected) and not snapshot.is_agreed(reporters)
            if now >= grace_ends and not is_doubtful:
                break
            if now >= deadline:
                names = name_first(sorted(map(str, missing)))
                raise ConnectError(
                    f"broker {snapshot.reported_by} alone responds, and does not know {names}: it may be cut off from "
                    "the cluster. Check that this host can reach the other brokers"
                )
            until = deadline if now >= grace_ends else grace_ends
            self.cache.request_update(
                RefreshReason.UNKNOWN_TOPIC, snapshot.generation, error_code=UNKNOWN_TOPIC_OR_PARTITION
            )
            self._pause(snapshot.generation, until, deadline)
            before, missing = missing, self._missing(topics, expected)
            reporters.add(self.cache.snapshot.reported_by)
            if len(missing) < len(before):
                grace_ends = min(deadline, self.clock() + UNKNOWN_GRACE_MS / 1000)
                reporters = {self.cache.snapshot.reported_by}
        return missing

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], deadline: float, read_committed: bool = False
    ) -> dict[TopicPartition, PartitionOffset]:
        """ListOffsets for each partition, from its leader, through leader changes and lost connections.

        Args:
            timestamps: ms since the epoch, or a `..._TIMESTAMP` of `kafka.protocol.list_offsets`.
            read_committed: whether the latest offset is the last stable one, or the high watermark.

        Raises:
            BrokerError: an error that is not retriable.
            UnknownTopicError: a topic or partition does not exist.
            NoLeaderError: no leader of a partition responded by `deadline`.
        """
        return self._ask_leaders(OffsetsRequest((), read_committed), timestamps, deadline)

    def epoch_end_offsets(
        self, epochs: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, PartitionOffset]:
        """OffsetForLeaderEpoch for each partition (KIP-320): the end offset of the epoch in the leader's log. Raises
        BrokerError, UnknownTopicError, NoLeaderError: as `list_offsets`."""
        return self._ask_leaders(OffsetsRequest((), by_epoch=True), epochs, deadline)

    def cleanup_policy(self, topic: str) -> str | None:
        """The cleanup.policy of a topic, such as "compact,delete"; None if this user may not ask for it, or no response
        comes in seconds. A policy with "compact" is kept: what compaction has removed stays removed. Any other is asked
        for again after `POLICY_AGE_S`."""
        policy, asked_at = self._cleanup_policies.get(topic, (None, float("-inf")))
        if COMPACT not in (policy or "") and self.clock() >= asked_at + POLICY_AGE_S:
            from pyspark_kafka_meta.kafka.client.cluster_admin import ClusterAdmin  # as above

            policy = ClusterAdmin(self).topic_config(topic).get("cleanup.policy", policy)
            known = self.cache.snapshot.topics
            self._cleanup_policies = {each: kept for each, kept in self._cleanup_policies.items() if each in known}
            self._cleanup_policies[topic] = policy, self.clock()
        return policy

    def _ask_leaders(
        self, template: OffsetsRequest, queries: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, PartitionOffset]:
        offsets: dict[TopicPartition, PartitionOffset] = {}
        failures = 0
        all_known_at, first_generation = self.clock(), self.cache.snapshot.generation
        leaders = LeaderOffsets(self, template, deadline)
        while True:
            generation = self.cache.snapshot.generation
            offsets |= leaders.ask({part: wanted for part, wanted in queries.items() if part not in offsets})
            if len(offsets) == len(queries):
                return offsets
            gone = self._unknown_partitions(queries.keys() - offsets.keys())
            if not gone or self.cache.snapshot.generation == first_generation:  # no broker has denied any since
                all_known_at = self.clock()
            elif self.clock() >= all_known_at + UNKNOWN_GRACE_MS / 1000:
                self._given_up |= self._missing({partition.topic for partition in gone}, gone)
                raise UnknownTopicError(f"{name_partitions(gone)} does not exist in the cluster at {self._servers()}")
            if self.clock() >= deadline:
                missing = sorted(queries.keys() - offsets.keys())
                raise NoLeaderError(
                    f"no offsets of {name_partitions(missing)} in {self.options.default_api_timeout_ms} ms: "
                    f"{leaders.errors.get(missing[0], 'no leader is known')}"
                )
            failures += 1
            self._pause(generation, min(self.clock() + self.backoff_s(failures), deadline), deadline)

    def _unknown_topics(self, topics: Collection[str]) -> list[str]:
        unknown = []
        for topic in sorted(topics):
            code = self.cache.snapshot.topic_errors.get(topic)
            if code is not None and read_action(code) is Action.FAIL:
                raise broker_error(f"topic {shortened(topic)} cannot be read", code, topic, "DESCRIBE")
            if not self.cache.snapshot.partitions(topic):
                unknown.append(topic)
        return unknown

    def _missing(self, topics: Collection[str], partitions: Collection[TopicPartition]) -> set[str | TopicPartition]:
        """The unknown topics, and the unknown partitions of the other topics."""
        unknown = self._unknown_topics(topics)
        return {*unknown, *self._unknown_partitions([part for part in partitions if part.topic not in unknown])}

    def _unknown_partitions(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """The members of `partitions` that the cached metadata does not have."""
        topics = {partition.topic for partition in partitions}
        return sorted(set(partitions).difference(*map(self.cache.snapshot.partitions, topics)))

    def _similar_name(self, topic: str) -> str:
        """A part of a message: the existing topic whose name is most similar, if any. The cluster is asked once."""
        if topic not in self._similar_names:
            names = self.cache.topic_names(self.clock() + NAMES_TIMEOUT_S)
            self._similar_names[topic] = "".join(f" (there is {near})" for near in closest(topic, names, count=1))
        return self._similar_names[topic]

    def _pause(self, generation: int, until: float, deadline: float) -> None:
        """Wait, with refreshes as they are due; metadata newer than `generation` ends the wait."""
        while self.cache.snapshot.generation == generation and (left_s := until - self.clock()) > 0:
            if not self.cache.has_request_in_flight:
                self.sleep(min(self.cache.time_to_next_update_ms() / 1000, left_s))
            self.cache.refresh_if_due(deadline, until)

    def _servers(self) -> str:
        return ", ".join(map(str, self.options.bootstrap_servers))
