"""`KafkaClient`: what a process shares between its reads, the wire and the metadata cache, and questions that need
both.

A Python worker lives across tasks and micro-batches; so do its connections and its cache (`workers`).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from pyspark_kafka_meta.client.leader_offsets import LeaderOffsets
from pyspark_kafka_meta.client.read_replicas import ReadReplicas
from pyspark_kafka_meta.client.throttling import Throttles
from pyspark_kafka_meta.client.topic_pattern import MatchingWire
from pyspark_kafka_meta.errors import NoLeaderError, UnknownTopicError
from pyspark_kafka_meta.kafka_errors import UNKNOWN_TOPIC_OR_PARTITION, Action, broker_error, read_action
from pyspark_kafka_meta.metadata.cache import MetadataCache
from pyspark_kafka_meta.metadata.refresh_policy import PolicySettings, backoff_s
from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.telemetry.event_publisher import EventPublisher
from pyspark_kafka_meta.validators import name_partitions
from pyspark_kafka_meta.wire.connection import ConnectionSettings
from pyspark_kafka_meta.wire.kafka_wire import KafkaWire
from pyspark_kafka_meta.wire.messages import OffsetsRequest, PartitionOffset, Wire

UNKNOWN_GRACE_MS = 3_000
"""A topic or partition made a moment ago is not known to every broker yet; this long it is asked for again."""


class KafkaClient:
    """One wire, one cache, one publisher of its events; and what brokers said about where and when to fetch."""

    def __init__(
        self,
        options: ClientOptions,
        publisher: EventPublisher,
        topic_pattern: str | None = None,
        *,
        wire: Wire | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """
        Args:
            topic_pattern: the cache knows only topics whose names it matches.
            wire: to the brokers, by sockets unless given.
            clock: seconds that never go back; all deadlines are of this clock.
        """
        self.options = options
        self.publisher = publisher
        self.clock = clock
        self.sleep = sleep
        self.replicas = ReadReplicas(options.metadata_max_age_ms)
        self.throttles = Throttles()
        self.wire: Wire = KafkaWire(ConnectionSettings.of(options)) if wire is None else wire
        self._rng = rng or random.Random()
        self._settings = PolicySettings(
            metadata_max_age_ms=options.metadata_max_age_ms,
            retry_backoff_ms=options.retry_backoff_ms,
            retry_backoff_max_ms=options.retry_backoff_max_ms,
        )
        self.cache = MetadataCache(
            self.wire if topic_pattern is None else MatchingWire(self.wire, topic_pattern),
            options.bootstrap_servers,
            self._settings,
            request_timeout_ms=options.request_timeout_ms,
            publish=self.publisher.publish,
            clock=clock,
            sleep=sleep,
            rng=self._rng,
        )
        self._unanswered: Counter[int] = Counter()  # ListOffsets in a row, by node id
        self._given_up: set[str | TopicPartition] = set()  # what was unknown for the whole grace period

    def api_deadline(self) -> float:
        """By when a question to the cluster must be answered, retries included."""
        return self.options.api_deadline(self.clock())

    def backoff_s(self, failures: int) -> float:
        """The pause, in seconds, before a request that failed `failures` times in a row is retried."""
        return backoff_s(self._settings, failures, self._rng)

    def close(self) -> None:
        self.cache.close()
        self.publisher.close()
        self.wire.close()

    def partitions(
        self, topics: Collection[str], deadline: float, expected: Collection[TopicPartition] = ()
    ) -> list[TopicPartition]:
        """All partitions of `topics`, as new as the cache's max age asks for.

        Args:
            expected: partitions of `topics` that there must be, as far as the caller knows. A broker that lacks some
                may lag behind: others are asked before this returns without them.

        Raises:
            UnknownTopicError: a topic does not exist.
            BrokerError: a topic may not be read.
            ConnectError: no broker answered by `deadline`.
        """
        self.cache.track(topics)
        if self.cache.snapshot.generation == 0:
            self.cache.refresh(RefreshReason.BOOTSTRAP, deadline)
        elif self.cache.is_asking:  # since the last plan, which may be long ago
            self.cache.refresh(RefreshReason.MAX_AGE, deadline)
        else:
            self.cache.refresh_if_due(deadline)
        grace_ends = min(deadline, self.clock() + UNKNOWN_GRACE_MS / 1000)
        wanted = {one for one in expected if one.topic in topics}
        while not self._missing(topics, wanted) <= self._given_up and self.clock() < grace_ends:
            generation = self.cache.snapshot.generation
            self.cache.request_update(RefreshReason.UNKNOWN_TOPIC, generation, error_code=UNKNOWN_TOPIC_OR_PARTITION)
            self._pause(generation, grace_ends, deadline)
        self._given_up = self._given_up.difference(topics, wanted) | self._missing(topics, wanted)
        if unknown := self._unknown(topics):
            raise UnknownTopicError(
                f"topic {', '.join(unknown)} does not exist in the cluster at {self._servers()}: "
                "check the name, or create the topic first"
            )
        return [partition for topic in sorted(topics) for partition in self.cache.snapshot.partitions(topic)]

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], deadline: float, read_committed: bool = False
    ) -> dict[TopicPartition, PartitionOffset]:
        """ListOffsets for each partition, from its leader, through leader changes and lost connections.

        Args:
            timestamps: ms since the epoch, or one of the `..._TIMESTAMP` names of `wire.messages`, by partition.
            read_committed: whether the latest offset is the last stable one, or the high watermark.

        Raises:
            BrokerError: a broker refused for good.
            UnknownTopicError: a topic or partition does not exist, or not any more.
            NoLeaderError: a partition had no leader that answered by `deadline`.
        """
        return self._ask_leaders(OffsetsRequest((), read_committed), timestamps, deadline)

    def epoch_end_offsets(
        self, epochs: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, PartitionOffset]:
        """OffsetForLeaderEpoch for each partition (KIP-320): where the log of its leader ends that epoch.

        Raises:
            BrokerError, UnknownTopicError, NoLeaderError: as `list_offsets`.
        """
        return self._ask_leaders(OffsetsRequest((), by_epoch=True), epochs, deadline)

    def _ask_leaders(
        self, kind: OffsetsRequest, wanted: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, PartitionOffset]:
        answers: dict[TopicPartition, PartitionOffset] = {}
        failures = 0
        all_known_at = self.clock()
        question = LeaderOffsets(
            self.wire, self.cache, self.options, self._unanswered, self.throttles, kind, deadline, self.clock
        )
        while True:
            generation = self.cache.snapshot.generation
            answers.update(question.ask({one: wanted[one] for one in wanted if one not in answers}))
            if len(answers) == len(wanted):
                return answers
            gone = self._not_there(wanted.keys() - answers.keys())
            if not gone:
                all_known_at = self.clock()
            elif self.clock() >= all_known_at + UNKNOWN_GRACE_MS / 1000:
                self._given_up |= self._missing({partition.topic for partition in gone}, gone)
                raise UnknownTopicError(f"{name_partitions(gone)} does not exist in the cluster at {self._servers()}")
            if self.clock() >= deadline:
                missing = sorted(wanted.keys() - answers.keys())
                raise NoLeaderError(
                    f"no offsets of {name_partitions(missing)} in {self.options.default_api_timeout_ms} ms: "
                    f"{question.troubles.get(missing[0], 'no leader is known')}"
                )
            failures += 1
            self._pause(generation, min(self.clock() + self.backoff_s(failures), deadline), deadline)

    def _unknown(self, topics: Collection[str]) -> list[str]:
        unknown = []
        for topic in sorted(topics):
            code = self.cache.snapshot.topic_errors.get(topic)
            if code is not None and read_action(code) is Action.FAIL:
                raise broker_error(f"topic {topic} cannot be read", code, topic, "DESCRIBE")
            if not self.cache.snapshot.partitions(topic):
                unknown.append(topic)
        return unknown

    def _missing(self, topics: Collection[str], wanted: Collection[TopicPartition]) -> set[str | TopicPartition]:
        """The topics that are unknown, and of the others those of their partitions `wanted` that are."""
        unknown = self._unknown(topics)
        return {*unknown, *self._not_there([partition for partition in wanted if partition.topic not in unknown])}

    def _not_there(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those of `partitions` that the last answer of the brokers does not have."""
        known = {each for topic in {one.topic for one in partitions} for each in self.cache.snapshot.partitions(topic)}
        return sorted(set(partitions) - known)

    def _pause(self, generation: int, until: float, deadline: float) -> None:
        """Wait, refreshing the cache as it is due: metadata newer than this ends the wait early."""
        while self.cache.snapshot.generation == generation and (left_s := until - self.clock()) > 0:
            if not self.cache.is_asking:
                self.sleep(min(self.cache.time_to_next_update_ms() / 1000, left_s))
            self.cache.refresh_if_due(deadline, until)

    def _servers(self) -> str:
        return ", ".join(map(str, self.options.bootstrap_servers))
