"""`LeaderRequests`: the requests of one kind to the leaders of partitions, until their responses, in what Fetch,
Produce and ListOffsets do alike. Follows Kafka's `AbstractFetch` and `Sender`.

A request goes to a broker, and holds members: the partitions that it is for.

| what happens | what follows |
|---|---|
| the broker throttles the client (KIP-219) | no request to it; leaders are looked up every `THROTTLED_CHECK_S` |
| an error names the new leader (KIP-951) | that leader is next, without a wait |
| an error without it, no response, no leader | the partition waits for metadata newer than the request's |
| another retriable error | the partition waits for a backoff |
| the response is overdue | new metadata is requested: the broker may hang. The request goes on |
| and new metadata has other leaders | the caller abandons the request, or the partitions that moved |

Races that callers rely on:

- An overdue broker is asked for its response by itself, at the time of the same look: brokers that always have
  responses would hide a hung broker, and a response that has arrived is no reason to abandon the broker.
- A refresh is requested for the generation of the metadata that the request used. If the metadata is newer by then, the
  partition does not wait: it looks at the newer leader first.
- A wait ends when metadata arrives: it may have moved the partitions of an overdue request.

Coordinators of transactions are no leaders: their requests are in `transaction_coordinators`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.client.next_request import Refresh, RetryPause
from pyspark_kafka_meta.kafka.metadata.cache import failure_reason
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure, Requests
from pyspark_kafka_meta.model import Broker, LeaderHint, RefreshReason

OVERDUE_MS = 2_000
"""A leader whose response is this late may hang: metadata is requested from another broker."""
THROTTLED_CHECK_S = 1.0
"""A broker may throttle for a minute. Meanwhile the leaders of its partitions are looked up this often."""

MemberT = TypeVar("MemberT")
ResponseT = TypeVar("ResponseT", bound="Response")


class Response(Protocol):
    """What is common to the responses of all APIs."""

    @property
    def node_id(self) -> int: ...


class SentRequest(NamedTuple, Generic[MemberT]):
    """A request without a response.

    Attributes:
        generation: of the snapshot that named the broker.
        members: what it is for; without partitions that moved away from a hung broker.
        sent_at, overdue_at: seconds of the client's clock.
    """

    broker: Broker
    generation: int
    members: list[MemberT]
    sent_at: float
    overdue_at: float


class Received(NamedTuple, Generic[MemberT, ResponseT]):
    """A response to one request, or the failure of all requests to a broker, with these requests."""

    response: ResponseT | RequestFailure
    sent: list[SentRequest[MemberT]]


class LeaderRequests(Generic[MemberT, ResponseT]):
    """The requests of one caller. `now` is in seconds of the client's clock."""

    def __init__(self, client: ClientState, requests: Requests[Any, ResponseT]) -> None:
        self._client = client
        self._requests = requests
        self._sent: dict[int, deque[SentRequest[MemberT]]] = {}  # by node id, the oldest request first

    def __bool__(self) -> bool:
        """Whether a request is in flight."""
        return bool(self._sent)

    def __iter__(self) -> Iterator[SentRequest[MemberT]]:
        return (sent for queue in self._sent.values() for sent in queue)

    # --- sending ------------------------------------------------------------------------------------------------------

    def count(self, node_id: int) -> int:
        """The requests in flight to a broker."""
        return len(self._sent.get(node_id, ()))

    def is_throttled(self, waiting: RetryPause, node_id: int, now: float) -> bool:
        """Whether the broker throttles the client: then the partition waits."""
        waiting.wait_until(min(self._client.throttles.until(node_id), now + THROTTLED_CHECK_S))
        return waiting.not_before > now

    def add(
        self, broker: Broker, members: list[MemberT], generation: int, now: float, overdue_ms: float = OVERDUE_MS
    ) -> None:
        """Take a request that was sent now. Its response is overdue after `overdue_ms`."""
        sent = SentRequest(broker, generation, members, now, now + overdue_ms / 1000)
        self._sent.setdefault(broker.node_id, deque()).append(sent)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def wake_up_at(self, waiting: Iterable[RetryPause], now: float) -> float:
        """When there is work without a response: a refresh, a request after a pause, an overdue request."""
        next_update = now + self._client.cache.time_to_next_update_ms() / 1000
        next_look = now + self._client.backoff_s(1)
        pauses = [each.not_before for each in waiting if each.not_before > now]
        return min(next_update, *pauses, max(self.overdue_at(), next_look))

    def receive(self, deadline: float) -> Received[MemberT, ResponseT] | None:
        """The first response or failure; None if there is none by `deadline`, or before it if metadata has arrived.
        Without any request in flight, this sleeps."""
        if not self._sent and not self._client.cache.has_request_in_flight:
            self._client.sleep(max(deadline - self._client.clock(), 0))
        return self.receive_from(self._sent.keys(), deadline)

    def receive_from(self, node_ids: Collection[int], deadline: float) -> Received[MemberT, ResponseT] | None:
        """As `receive`, of these brokers alone, and without sleep."""
        received = self._requests.receive(node_ids, deadline)
        if received is None:
            return None
        if isinstance(received, RequestFailure):
            return Received(received, list(self._sent.pop(received.node_id)))
        queue = self._sent[received.node_id]
        sent = queue.popleft()
        if not queue:
            del self._sent[received.node_id]
        return Received(received, [sent])

    # --- overdue requests ---------------------------------------------------------------------------------------------

    def overdue_at(self) -> float:
        """When the first request is overdue; infinite without a request."""
        return min((queue[0].overdue_at for queue in self._sent.values()), default=math.inf)

    def overdue(self, now: float) -> list[int]:
        """The brokers with an overdue request."""
        return [node_id for node_id, queue in self._sent.items() if now >= queue[0].overdue_at]

    def of(self, node_id: int) -> Sequence[SentRequest[MemberT]]:
        """The requests in flight to a broker."""
        return self._sent[node_id]

    def suspect(self, node_id: int) -> None:
        """Request metadata, from another broker: this one may hang."""
        cache = self._client.cache
        cache.request_update(RefreshReason.REQUEST_TIMEOUT, cache.snapshot.generation, node_id=node_id)

    def abandon(self, node_id: int) -> list[SentRequest[MemberT]]:
        """Forget the requests to a broker; returns them."""
        self._requests.drop(node_id)
        return list(self._sent.pop(node_id))

    def abandon_all(self) -> None:
        for node_id in list(self._sent):
            self.abandon(node_id)

    def postpone_overdue(self, seconds: float) -> None:
        """Do not count time in which nothing is sent or received."""
        for node_id, queue in self._sent.items():
            self._sent[node_id] = deque(sent._replace(overdue_at=sent.overdue_at + seconds) for sent in queue)

    # --- errors -------------------------------------------------------------------------------------------------------

    def refresh(
        self, waiting: RetryPause, refresh: Refresh, sent: SentRequest[MemberT], hint: LeaderHint | None
    ) -> None:
        """After an error of a partition: use the leader that the broker named, or wait for newer metadata."""
        cache, code, node_id = self._client.cache, refresh.error_code, sent.broker.node_id
        self._client.events.count_retry()
        if hint is None or not cache.take_hint(waiting.partition, hint, sent.generation, code, node_id):
            waiting.wait_for_metadata_after(sent.generation)
            cache.request_update(refresh.reason, sent.generation, waiting.partition, code, node_id)

    def refresh_after_failure(self, waiting: RetryPause, sent: SentRequest[MemberT], error: KafkaMetaError) -> None:
        """After a request without a response: wait for newer metadata."""
        waiting.wait_for_metadata_after(sent.generation)
        self._client.cache.request_update(failure_reason(error), sent.generation, node_id=sent.broker.node_id)

    def wait_for_leader(self, waiting: RetryPause, reason: RefreshReason, error_code: int = 0) -> None:
        """Without a leader in the metadata: wait for newer metadata."""
        generation = self._client.cache.snapshot.generation
        waiting.wait_for_metadata_after(generation)
        self._client.cache.request_update(reason, generation, waiting.partition, error_code)

    def back_off(self, waiting: RetryPause) -> None:
        """After a retriable error of a partition: wait, longer after each in a row."""
        self._client.events.count_retry()
        waiting.back_off(self._client.clock(), self._client.backoff_s)
