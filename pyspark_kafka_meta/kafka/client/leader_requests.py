"""`LeaderRequests`: requests of one kind to the leaders of partitions: what Fetch, Produce and ListOffsets do alike.

A request goes to the leader of a partition according to the metadata cache (a Fetch perhaps to a replica). It has
several members: the partitions, or batches of partitions, that it is for. Leaders move. A former leader refuses the
request, or is gone, or hangs. So each error must lead a partition to its next leader soon, and yet thousands of clients
must not flood brokers with requests that fail again. Hence a partition that failed waits, for newer metadata or for a
backoff.

| state of a partition | meaning | ends with |
|---|---|---|
| ready | its leader may get a request | the next request to the leader |
| in a request | the request has no response | the response, the failure, or `abandon` |
| throttled | its leader has asked the client to wait (KIP-219) | the throttle time, or another leader |
| waits for metadata | the leader is wrong or unknown in the metadata that was used | newer metadata |
| backs off | the leader may accept the request later | the backoff, which grows with each error in a row |

The three last states are in the partition's `RetryPause`. A throttled partition looks for another leader every
`THROTTLED_CHECK_S`.

| what happens to a request | what follows |
|---|---|
| an error names the new leader (KIP-951) | its partition is ready at once, if the cache takes the hint |
| another error of a stale leader, no response, no leader | the partition waits for metadata |
| another retriable error | the partition backs off |
| no response by `overdue_at` | the leader may hang: metadata is requested (`suspect`), the request stays in flight |
| new metadata has other leaders for an overdue request | the caller abandons it, or the partitions that moved |

`LeaderOffsets` (ListOffsets, OffsetForLeaderEpoch) sends each request once, and its caller repeats it: its partitions
have no `RetryPause`.

Races: what happens without a guard, and the guard.

1. A hung broker among busy brokers. (1) Broker 1 hangs, the others always have a response. (2) Each turn of the
   caller's loop takes one of their responses, and nobody notices broker 1. Guard: in each turn, Fetch and Produce first
   receive from each `overdue` broker alone, without a wait (`receive_from`). Without a response, they suspect or
   abandon it.
2. A response that was not read yet. (1) A leader responds in time, but the caller is busy with rows. (2) Its partition
   moves. (3) By the clock the request is overdue and its partition has moved: it would be abandoned, and sent again.
   Guards: the turn of race 1 takes a response that has arrived before it abandons anything. Produce does not count the
   time in which Spark computes rows (`postpone_overdue`).
3. An old error. The cache counts its snapshots: the generation. (1) A request uses metadata of generation 5. (2)
   Generation 6 arrives, with another leader. (3) The old leader refuses the request, or fails. The partition would wait
   for generation 7, or go back to the leader that the error names. Guard: `SentRequest.generation`. If the cache has a
   newer generation, no metadata is requested, the partition does not wait, and a hint is ignored.
4. A wait without a request. (1) A partition waits for newer metadata. (2) Nobody requests it, so that the wait lasts
   until kafka.metadata.max.age.ms. Guard: the methods that let a partition wait for newer metadata request it.
5. Metadata during a wait. (1) A leader hangs; metadata is requested. (2) It arrives while the caller waits for the
   leader's response. (3) The caller waits on, although the partition has moved. Guard: metadata ends `receive`.

Follows Kafka's `AbstractFetch` and `Sender`. Coordinators of transactions are no leaders: their requests are in
`coordinators`.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pyspark_kafka_meta.errors import RETRIABLE_ERRORS, KafkaMetaError
from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.client.next_request import Refresh, RetryPause
from pyspark_kafka_meta.kafka.metadata.cache import failure_reason
from pyspark_kafka_meta.kafka.metadata.refresh_policy import attempt_timeout_ms
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_SERVER_ERROR,
    Action,
    broker_error,
    describe,
    read_action,
    refresh_reason,
)
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetQuery, OffsetsRequest, OffsetsResponse, PartitionOffset
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure, Requests
from pyspark_kafka_meta.model import Broker, LeaderHint, RefreshReason, TopicPartition

OVERDUE_MS = 2_000
"""A leader whose response is this late may hang: metadata is requested from another broker."""
THROTTLED_CHECK_S = 1.0
"""A broker may throttle the client for a minute, and lose partitions meanwhile."""

MemberT = TypeVar("MemberT")
ResponseT = TypeVar("ResponseT", bound="Response")


class Response(Protocol):
    """What is common to the responses of all APIs."""

    @property
    def node_id(self) -> int: ...


class SentRequest(NamedTuple, Generic[MemberT]):
    """A request without a response.

    Attributes:
        generation: of the snapshot that named the leader.
        members: the partitions, or batches of partitions, that the request is for. A caller removes partitions that
            have moved away from a hung broker.
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
        """Whether the broker throttles the client. If so, the partition waits, for at most `THROTTLED_CHECK_S`."""
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
        """When there is work without a response: a refresh is due, the pause of a partition ends, or a request is
        overdue. An overdue request is looked at once per backoff."""
        next_update = now + self._client.cache.time_to_next_update_ms() / 1000
        next_look = now + self._client.backoff_s(1)
        pauses = [each.not_before for each in waiting if each.not_before > now]
        return min(next_update, *pauses, max(self.overdue_at(), next_look))

    def receive(self, deadline: float) -> Received[MemberT, ResponseT] | None:
        """The first response or failure; None if there is none by `deadline`, or once metadata has arrived (race 5).
        Without any request in flight, also of metadata, this sleeps until `deadline`."""
        if not self._sent and not self._client.cache.has_request_in_flight:
            self._client.sleep(max(deadline - self._client.clock(), 0))
        return self.receive_from(self._sent.keys(), deadline)

    def receive_from(self, node_ids: Collection[int], deadline: float) -> Received[MemberT, ResponseT] | None:
        """As `receive`, of these brokers alone, and without sleep. A `deadline` that has passed takes only a response
        that has arrived."""
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

    def receive_overdue(self, now: float) -> Received[MemberT, ResponseT] | None:
        """As `receive_from`, of each broker with an overdue request whose response has arrived (races 1 and 2). What
        becomes of the others, `_give_up` decides."""
        for node_id in self.overdue(now):
            received = self.receive_from([node_id], now) or self._give_up(node_id, now)
            if received is not None:
                return received
        return None

    def _give_up(self, node_id: int, now: float) -> Received[MemberT, ResponseT] | None:
        """Abandon overdue requests to a broker that lost its partitions, else `suspect` it. Returns the failure if the
        caller is to handle one."""
        raise NotImplementedError

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
        """Drop the requests to a broker, and close their connection; returns them."""
        self._requests.drop(node_id)
        return list(self._sent.pop(node_id))

    def abandon_all(self) -> None:
        for node_id in list(self._sent):
            self.abandon(node_id)

    def postpone_overdue(self, seconds: float) -> None:
        """Do not count time in which the caller neither sends nor receives (race 2)."""
        for node_id, queue in self._sent.items():
            self._sent[node_id] = deque(sent._replace(overdue_at=sent.overdue_at + seconds) for sent in queue)

    # --- errors -------------------------------------------------------------------------------------------------------

    def refresh(
        self, waiting: RetryPause, refresh: Refresh, sent: SentRequest[MemberT], hint: LeaderHint | None
    ) -> None:
        """After an error of a partition: use the leader that the broker named, or wait for newer metadata."""
        cache, code, node_id = self._client.cache, refresh.error_code, sent.broker.node_id
        self._client.traffic.retries += 1
        if hint is None or not cache.take_hint(waiting.partition, hint, sent.generation, code, node_id):
            waiting.wait_for_metadata_after(sent.generation)
            cache.request_update(refresh.reason, sent.generation, waiting.partition, code, node_id)

    def refresh_after_failure(self, waiting: RetryPause, sent: SentRequest[MemberT], error: KafkaMetaError) -> None:
        """After a request without a response: let a partition of it wait for newer metadata."""
        waiting.wait_for_metadata_after(sent.generation)
        self._client.cache.request_update(failure_reason(error), sent.generation, node_id=sent.broker.node_id)

    def wait_for_leader(self, waiting: RetryPause, reason: RefreshReason, error_code: int = 0) -> None:
        """Let a partition without a leader in the metadata wait for newer metadata."""
        generation = self._client.cache.snapshot.generation
        waiting.wait_for_metadata_after(generation)
        self._client.cache.request_update(reason, generation, waiting.partition, error_code)

    def back_off(self, waiting: RetryPause) -> None:
        """After another retriable error of a partition: let it back off."""
        self._client.traffic.retries += 1
        waiting.back_off(self._client.clock(), self._client.backoff_s)


class LeaderOffsets(LeaderRequests[TopicPartition, OffsetsResponse]):
    """The offsets for one caller, by its deadline, of all leaders at the same time. One that does not respond does not
    delay the others: its request is abandoned once it lost one of its partitions. Errors are reported to the cache.

    Attributes:
        errors: why a partition has no offset yet.
    """

    def __init__(self, client: ClientState, template: OffsetsRequest, deadline: float) -> None:
        """`template` is a request without queries; each leader gets it with the queries for its partitions."""
        super().__init__(client, client.network.offsets)
        self.errors: dict[TopicPartition, str] = {}
        self._template = template
        self._deadline = deadline
        # In a row, by node id. A later caller begins anew: a broker that failed long ago is not suspected sooner.
        self._failures: Counter[int] = Counter()

    def ask(self, queries: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionOffset]:
        """The offsets from one request to each leader, without partitions that failed. Raises BrokerError: an error
        that is not retriable.

        Args:
            queries: `OffsetQuery.wanted` of each partition.
        """
        offsets: dict[TopicPartition, PartitionOffset] = {}
        try:
            self._send(queries)
            while self:
                received = self.receive(min(self.wake_up_at((), self._client.clock()), self._deadline))
                if received is not None:
                    offsets |= self._on_response(received.response, *received.sent)
                elif (now := self._client.clock()) < self._deadline:
                    self._client.cache.refresh_if_due(self._deadline, until=now)
                    for node_id in self.overdue(now):
                        self._give_up(node_id, now)
                else:
                    break
        finally:
            for sent in list(self):
                self._abandon(sent.broker.node_id, "did not report offsets in time")
        return offsets

    def _send(self, queries: Mapping[TopicPartition, int]) -> None:
        cache, options = self._client.cache, self._client.options
        generation = cache.snapshot.generation
        groups: dict[int, tuple[Broker, list[OffsetQuery]]] = {}  # by node id, which has a faster hash than a broker
        for partition in sorted(queries):
            leader = cache.leader(partition)
            if leader is None:
                replaced = cache.snapshot.replaced_leader(partition)
                self.errors[partition] = replaced or "it has no leader"
                reason = RefreshReason.REPLACED_LEADER if replaced else RefreshReason.NO_LEADER
                cache.request_update(reason, generation, partition)
                continue
            broker, leader_epoch = leader
            _, members = groups.setdefault(broker.node_id, (broker, []))
            members.append(OffsetQuery(partition, queries[partition], leader_epoch))
        now = self._client.clock()
        for broker, members in groups.values():
            failures = self._failures[broker.node_id]
            timeout_ms = attempt_timeout_ms(failures, options.request_timeout_ms)
            request = replace(self._template, queries=tuple(members))
            # A throttling broker may respond later. Its leadership is checked no later: it may hang as well.
            sent_at = max(now, self._client.throttles.until(broker.node_id))
            self._requests.send(broker, request, min(self._deadline, sent_at + timeout_ms / 1000))
            # A broker that failed to respond before is suspected sooner.
            overdue_ms = max(OVERDUE_MS / 2**failures, options.retry_backoff_ms)
            self.add(broker, [query.partition for query in members], generation, now, overdue_ms)

    def _give_up(self, node_id: int, now: float) -> None:
        (sent,) = self.of(node_id)
        leaders = map(self._client.cache.snapshot.leader, sent.members)
        if all(leader is not None and leader.broker == sent.broker for leader in leaders):
            self.suspect(node_id)
        else:
            self._abandon(node_id, "did not report offsets, and lost partitions")

    def _abandon(self, node_id: int, why: str) -> None:
        for sent in self.abandon(node_id):
            self.errors.update(dict.fromkeys(sent.members, f"{sent.broker.address} {why}"))

    def _on_response(
        self, received: OffsetsResponse | RequestFailure, sent: SentRequest[TopicPartition]
    ) -> dict[TopicPartition, PartitionOffset]:
        node_id = received.node_id
        if isinstance(received, RequestFailure):
            if not isinstance(received.error, RETRIABLE_ERRORS):
                raise received.error
            self._failures[node_id] += 1
            self._client.report_failure(received.error, sent.generation, node_id)
            self.errors.update(dict.fromkeys(sent.members, str(received.error)))
            return {}
        del self._failures[node_id]
        self._client.take_throttle(node_id, received.throttle_ms)
        offsets: dict[TopicPartition, PartitionOffset] = {}
        for partition in sent.members:
            result = received.result.get(partition)
            if result is not None and result.error_code == 0:
                offsets[partition] = result
            else:
                code = UNKNOWN_SERVER_ERROR if result is None else result.error_code
                self.errors[partition] = describe(code)
                self._report_error(partition, code, sent.generation, node_id)
        return offsets

    def _report_error(self, partition: TopicPartition, code: int, generation: int, node_id: int) -> None:
        action = read_action(code)
        if action is Action.FAIL:
            raise broker_error(f"the offsets of {partition} were refused", code, partition.topic, "DESCRIBE")
        self._client.traffic.retries += 1
        if action is Action.REFRESH or code == UNKNOWN_LEADER_EPOCH:
            self._client.cache.request_update(refresh_reason(code), generation, partition, code, node_id)
