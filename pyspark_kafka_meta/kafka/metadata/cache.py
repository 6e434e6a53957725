"""`MetadataCache`: one client's metadata, refreshed by one request at a time.

A partition is read and written at its leader. Each broker can report the leaders of all partitions, in a Metadata
response. But brokers learn of an election at different times, and do not tell clients of it. A client notices that a
leader has moved when a request fails or gets no response, or by chance at the next refresh. So the cache keeps what it
knows as an immutable snapshot, and replaces it after such a failure, for a new topic, and at a maximum age.

This module sends the requests. Its base class `CacheState` has the contents, `RefreshPolicy` says when a refresh is
due, and `BrokerChoice` from which broker. The cache has no thread: the loops of its callers call `refresh_if_due`,
which sends a request that is due, and takes the response if it arrives by `until`. A caller that cannot go on without
newer metadata calls `refresh`. Follows Kafka's `Metadata`, and rskafka's `MetadataCache` for the generation that a
report names.

| state | meaning | what ends it |
|---|---|---|
| idle | no refresh is requested | `request_update`, `track`, `take_hint`, or the maximum age |
| backing off | a refresh is requested, too soon after the last | the end of the backoff |
| due | `time_to_next_update_ms` is 0, as in a new cache | `refresh_if_due`, which sends a request |
| in flight | `_attempt` is set; `leader` uses the old snapshot | the response, or a failure |

After a response the cache is idle, unless callers needed more meanwhile (`cache_state`). After a failure the snapshot
stays, and the cache is due: another broker is asked. Once all addresses have failed, it is backing off.

Races, and their guards:

- A broker hangs. 1. It gets the request, and does not respond. 2. A caller that waited for it would not read the
  partitions whose leaders are known. Guards: `refresh_if_due` leaves the request in flight after `until`; `_send` gives
  each attempt a deadline of its own, after which another broker is asked.
- A response is older than a doubt. 1. A request is in flight. 2. A caller doubts the metadata, and calls `refresh`. 3.
  The broker may have sent its response before. Guard: `refresh` takes it, and then sends a request of its own.
- A response is older than an error. 1. A request is in flight. 2. A Fetch fails, and its caller calls `request_update`.
  3. The response counts as the refresh, although it may be older than the error. Nothing guards against this, as it
  costs one request more: if the next Fetch fails too, its report names the new generation.

`cache_state` has the races between a response and what callers reported since its request.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.kafka.metadata.cache_state import Attempt, CacheFact, CacheState
from pyspark_kafka_meta.kafka.metadata.refresh_policy import attempt_timeout_ms
from pyspark_kafka_meta.kafka.metadata.snapshot import MetadataSnapshot
from pyspark_kafka_meta.kafka.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from pyspark_kafka_meta.model import Address, MetadataResponse, RefreshReason, TopicMetadata
from pyspark_kafka_meta.options import ClientOptions


def failure_reason(error: KafkaMetaError) -> RefreshReason:
    """The reason of a refresh after a request without a response."""
    timed_out = isinstance(error, RequestTimeoutError)
    return RefreshReason.REQUEST_TIMEOUT if timed_out else RefreshReason.CONNECTION_LOST


class MetadataNetwork(Protocol):
    """The part of `kafka.protocol.network_interface.Network` that a cache needs."""

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None: ...

    def receive_metadata(self, deadline: float) -> MetadataResponse | None: ...


class MetadataCache(CacheState):
    """The metadata of one client. Not thread-safe. The methods of `CacheState` send no request."""

    def __init__(
        self,
        network: MetadataNetwork,
        options: ClientOptions,
        observe: Callable[[CacheFact], None],
        topic_filter: Callable[[str], bool] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """
        Args:
            observe: takes what happens in this cache.
            topic_filter: the cache discovers all topics for which it is true. Follows Spark's `ConsumerStrategy`, which
                matches a part of a name, unlike Kafka's consumer.
            clock: monotonic seconds; deadlines use this clock.
        """
        super().__init__(observe, options, clock, rng or random.Random())
        self._network = network
        self._topic_filter = topic_filter
        self._sleep = sleep

    def close(self) -> None:
        """Give up a request in flight."""
        if (attempt := self._attempt) is not None:
            error = RequestTimeoutError(f"{attempt.address} did not respond before the cache was closed")
            self._report_refresh(attempt, self._clock(), error=str(error))

    def refresh_if_due(self, deadline: float, until: float | None = None) -> bool:
        """Send a Metadata request if a refresh is due, and wait for the response of the request in flight; never sleep.
        A failure is reported, and the refresh stays due: at another broker at once, or after a backoff if all failed.
        Returns whether the metadata was refreshed.

        Args:
            deadline: of a new request.
            until: end of the wait, by default `deadline`; the current time takes only a response that has arrived. A
                request without a response stays in flight.

        Raises:
            KafkaMetaError: an error that is not retriable, such as AuthenticationError (`CacheState._handle_failure`).
            OtherClusterError: all addresses failed, and brokers of another cluster responded.
        """
        if self.time_to_next_update_ms() == 0 and self._clock() < deadline:
            self._attempt = self._send(deadline)
        return self._attempt is not None and self._receive(self._attempt, deadline if until is None else until)

    def refresh(self, reason: RefreshReason, deadline: float, node_id: int | None = None) -> MetadataSnapshot:
        """Refresh the metadata: at once, then with retries at one broker after the other.

        Args:
            node_id: the first broker to ask, if it is known; by default as `BrokerChoice` decides.

        Raises:
            ConnectError: no broker responded before `CacheState._retry_deadline`; the message has the failure of each
                address.
            KafkaMetaError: as `refresh_if_due`.
        """
        began = self._clock()
        if self._attempt is not None:
            self._receive(self._attempt, deadline)
        generation = self.snapshot.generation
        self.request_update(reason, generation, at_once=True)
        if node_id is not None and (first := self.snapshot.brokers.get(node_id)) is not None:
            self._choice.prefer(first.address)
        while self.snapshot.generation == generation:
            pause_s = self.time_to_next_update_ms() / 1000
            if self._clock() + pause_s >= self._retry_deadline(reason, began, deadline):
                failures = self._failure_texts() or "no time was left"
                raise ConnectError(
                    f"no broker responded to a Metadata request in time ({failures}): check kafka.bootstrap.servers, "
                    "that the brokers are up, and that this host can reach them"
                )
            self._sleep(pause_s)
            self.refresh_if_due(deadline)
        return self.snapshot

    def topic_names(self, deadline: float) -> list[str]:
        """The topics that this user may list, from one broker, for messages: no refresh, and the snapshot stays. Empty
        if the broker does not respond, or another request is in flight."""
        broker = next(iter(self.snapshot.brokers.values()), None)
        if broker is None or self.has_request_in_flight:
            return []
        self._network.send_metadata(broker.address, None, deadline)
        with suppress(KafkaMetaError):
            response = self._network.receive_metadata(deadline)
            if response is not None:
                return [topic.name for topic in response.topics if not topic.is_internal]
        return []

    def _send(self, deadline: float) -> Attempt:
        attempt = self._begin(deadline)
        timeout_ms = attempt_timeout_ms(attempt.slow_before, self._options.request_timeout_ms)
        topics = attempt.topics if self._topic_filter is None else None
        self._network.send_metadata(attempt.address, topics, min(deadline, attempt.began + timeout_ms / 1000))
        return attempt

    def _receive(self, attempt: Attempt, until: float) -> bool:
        """Whether the attempt refreshed the metadata."""
        self._attempt = None  # also if it ends with an unexpected exception
        try:
            response = self._network.receive_metadata(until)
        except KafkaMetaError as error:
            self._handle_failure(attempt, error)
        else:
            if response is None:
                self._attempt = attempt
                return False
            if self._topic_filter is not None:
                response = _matching(response, self._topic_filter, attempt.topics)
            if self._handle_response(attempt, response):
                return True
        if self.fatal_error is not None:
            raise self.fatal_error from None
        return False


def _matching(response: MetadataResponse, matches: Callable[[str], bool], asked: Collection[str]) -> MetadataResponse:
    """The topics that match. Those that were asked for and are missing are unknown, as in a request by name."""
    found = tuple(topic for topic in response.topics if not topic.is_internal and matches(topic.name))
    missing = sorted(set(asked) - {topic.name for topic in found})
    unknown = tuple(TopicMetadata(name, None, (), UNKNOWN_TOPIC_OR_PARTITION) for name in missing)
    return replace(response, topics=found + unknown)
