"""`ClientState`: what the requests of a client share: network, metadata cache, publisher, throttling, producer id."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from pyspark_kafka_meta.client_facts import ClientFact, Closed, Opened
from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.client.next_request import ReadReplicas, Throttles
from pyspark_kafka_meta.kafka.client.producer_state import ProducerState
from pyspark_kafka_meta.kafka.metadata.cache import MetadataCache, failure_reason
from pyspark_kafka_meta.kafka.metadata.cache_state import CacheFact
from pyspark_kafka_meta.kafka.metadata.refresh_policy import backoff_s
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.network_interface import Network
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import ClientOptions

RequestCounts = dict[int, tuple[int, int]]
"""Number of requests and their bytes, by node id."""


@dataclass(slots=True)
class Traffic:
    """What a client counts for the next event.

    Attributes:
        fetches: Fetch responses and their bytes.
        produces: Produce responses and the bytes of their requests.
        fetch_throttle_ms, produce_throttle_ms: throttle time of the responses (KIP-219).
        retries: failed requests, and retriable errors of partitions in responses.
        transactions_begun: by tasks: an event for each would push the others out of their folder.
        table_changes: records of topics of changes, by topic and op.
        filtered: records that `where` dropped.
    """

    fetches: RequestCounts = field(default_factory=dict)
    fetch_throttle_ms: int = 0
    produces: RequestCounts = field(default_factory=dict)
    produce_throttle_ms: int = 0
    retries: int = 0
    transactions_begun: int = 0
    table_changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    filtered: Counter[TopicPartition] = field(default_factory=Counter)

    def count_fetch(self, node_id: int, response_bytes: int, throttle_ms: int) -> None:
        _count(self.fetches, node_id, response_bytes)
        self.fetch_throttle_ms += throttle_ms

    def count_produce(self, node_id: int, request_bytes: int, throttle_ms: int) -> None:
        _count(self.produces, node_id, request_bytes)
        self.produce_throttle_ms += throttle_ms


def _count(counts: RequestCounts, node_id: int, size_bytes: int) -> None:
    requests, total_bytes = counts.get(node_id, (0, 0))
    counts[node_id] = (requests + 1, total_bytes + size_bytes)


class Publisher(Protocol):
    """Makes events of what a client reports, and publishes them: `events.publisher.EventPublisher`.

    Attributes:
        origin: of the next events, the Spark context.
    """

    origin: Any

    def observe(self, fact: CacheFact | ClientFact, client: ClientState) -> None:
        """Take a fact, and `ClientState.traffic`. Never blocks or raises."""

    def flush(self) -> None:
        """Deliver the events that were made."""

    def flush_news(self) -> None:
        """`flush`, unless they are all routine."""

    def close(self) -> None:
        """`flush` for the last time."""


class ClientState:
    """The state of one client. Not thread-safe.

    Attributes:
        cache_id: random; in every event.
        network: sends requests to brokers. `cache` says to which.
        traffic: since the last event.
        replicas: preferred read replicas, by rack: queries with different racks share a client.
        producer: sequence numbers of idempotent writes.
        clock, sleep: seconds; all deadlines are of this clock, which never goes back.
        rng: of backoffs and of the choice of brokers.
    """

    def __init__(
        self,
        options: ClientOptions,
        publisher: Publisher,
        topic_filter: Callable[[str], bool] | None = None,
        *,
        network: Network | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """
        Args:
            topic_filter: as of `MetadataCache`.
            network: sockets by default.
        """
        self.options = options
        self.cache_id = uuid.uuid4().hex
        self.traffic = Traffic()
        self.publisher = publisher
        self.clock = clock
        self.sleep = sleep
        self.rng = rng or random.Random()
        self.throttles = Throttles()
        self.replicas = defaultdict[str, ReadReplicas](partial(ReadReplicas, options.metadata_max_age_ms))
        self.producer = ProducerState()
        self.network: Network = KafkaNetwork(ConnectionSettings.of(options)) if network is None else network
        self.cache = MetadataCache(
            self.network, options, self.report, topic_filter, clock=clock, sleep=sleep, rng=self.rng
        )
        self._similar_names: dict[str, str] = {}  # by unknown topic
        self._cleanup_policies: dict[str, tuple[str | None, float]] = {}  # by topic, with the time of the request
        self._given_up: set[str | TopicPartition] = set()  # unknown for the whole grace period
        self.report(Opened())

    def api_deadline(self) -> float:
        """The deadline of a request that is sent now, retries included (default.api.timeout.ms)."""
        return self.options.api_deadline(self.clock())

    def backoff_s(self, failures: int) -> float:
        """Seconds to wait before the retry of a request that failed `failures` times in a row."""
        return backoff_s(self.options, failures, self.rng)

    def take_throttle(self, node_id: int, throttle_ms: int) -> None:
        """Take the throttle time of a response (KIP-219), which is mostly 0."""
        if throttle_ms > 0:
            self.throttles.throttle(node_id, throttle_ms, self.clock())

    def report(self, fact: CacheFact | ClientFact) -> None:
        self.publisher.observe(fact, self)

    def count_changes(self, topic: str, op: str, records: int) -> None:
        self.traffic.table_changes[topic, op] += records

    def report_failure(self, error: KafkaMetaError, generation: int, node_id: int) -> None:
        """A request to `node_id` failed without a response: its partitions may have moved to other leaders.
        `generation` as in `MetadataCache.request_update`."""
        self.traffic.retries += 1
        self.cache.request_update(failure_reason(error), generation, node_id=node_id)

    def close(self) -> None:
        self.cache.close()
        self.report(Closed())
        self.publisher.close()
        self.network.close()
