"""`InFlightProduces`: the Produce requests of a task that have no response yet, several to each broker.

A request has at most one batch of each partition. `ProduceResponses` gives the partitions of each response to their
queues, and carries out what they want. A leader that a broker names along with an error is used at once (KIP-951);
without it, queues wait for newer metadata. Follows Kafka's `Sender.sendProduceRequests`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable
from functools import partial
from typing import NamedTuple, TypeAlias

from pyspark_kafka_meta.errors import ProtocolError, RequestTimeoutError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.client.leader_offsets import OVERDUE_MS
from pyspark_kafka_meta.kafka.client.next_request import UNKNOWN_GRACE_MS
from pyspark_kafka_meta.kafka.metadata.cache import failure_reason
from pyspark_kafka_meta.kafka.metadata.cache_state import RETRIABLE_ERRORS
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    LEADER_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    Action,
    broker_error,
    describe,
    refresh_reason,
    unknown_partition_error,
    write_action,
)
from pyspark_kafka_meta.kafka.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.model import Broker, LeaderAndEpoch, RefreshReason, TopicPartition, TransactionVersion
from pyspark_kafka_meta.options import ProducerOptions
from pyspark_kafka_meta.write.partition_queue import BackOff, Fail, Instruction, PartitionQueue, QueuedBatch, Refresh
from pyspark_kafka_meta.write.transactional_producer import TransactionalProducer

THROTTLED_CHECK_S = 1.0
"""A broker may throttle for a minute. Meanwhile the leaders of its partitions are looked up this often."""


class InFlightProduce(NamedTuple):
    """A Produce request that was sent.

    Attributes:
        generation: of the snapshot that named the broker.
        sent_at, overdue_at: seconds of the client's clock.
    """

    broker: Broker
    generation: int
    batches: list[tuple[PartitionQueue, QueuedBatch]]
    sent_at: float
    overdue_at: float


Received: TypeAlias = tuple[ProduceResponse | RequestFailure, list[InFlightProduce]]
"""A response to one request, or the failure of all requests to a broker."""


class InFlightProduces:
    """The Produce requests of one task."""

    def __init__(
        self, client: KafkaClient, options: ProducerOptions, transaction: TransactionalProducer | None = None
    ) -> None:
        self._client = client
        self._options = options
        self._transactional_id = None if transaction is None else transaction.transactional_id
        self._version = TransactionVersion.V2 if transaction is None else transaction.version
        self._requests: dict[int, deque[InFlightProduce]] = {}  # by node id, the oldest request first
        self._unknown_since: dict[TopicPartition, float] = {}

    def send(self, queues: Collection[PartitionQueue], now: float) -> None:
        """Send the batches that can be sent, while their leaders have fewer requests in flight than allowed.

        Raises:
            BrokerError: a partition may not be written.
            UnknownTopicError: a partition does not exist any more.
            DataLossError: the topic was recreated after it had acknowledged records.
        """
        generation = self._client.cache.snapshot.generation
        ready: dict[Broker, list[PartitionQueue]] = {}
        for queue in queues:
            leader = self._leader(queue, now) if queue.next_batch(generation, now) is not None else None
            if leader is not None and queue.can_go_to(leader.broker.node_id):
                queue.wait_until(min(self._client.throttles.until(leader.broker.node_id), now + THROTTLED_CHECK_S))
                if queue.not_before <= now:
                    ready.setdefault(leader.broker, []).append(queue)
        for broker, members in ready.items():
            members.sort(key=lambda queue: (queue.deadline, queue.in_flight))  # the oldest rows first
            while members and len(self._requests.get(broker.node_id, ())) < self._options.max_in_flight:
                members = self._send(broker, members, generation, now)

    def receive(self, deadline: float) -> Received | None:
        """The first response with its request, or a failure with all requests to its broker; None if there is none by
        `deadline`, or before it if metadata has arrived. Without any request in flight, this sleeps."""
        if not self._requests and not self._client.cache.has_request_in_flight:
            self._client.sleep(max(deadline - self._client.clock(), 0))
        return self._receive(self._requests.keys(), deadline)

    def receive_overdue(self, now: float) -> Received | None:
        """As `receive`, of the overdue requests whose response has arrived. If it has not, all requests to a broker are
        abandoned, as failed, if one of its partitions has another leader by now. Metadata is requested if not: a leader
        may just wait for its replicas."""
        cache = self._client.cache
        for node_id in [node_id for node_id, requests in self._requests.items() if now >= requests[0].overdue_at]:
            received = self._receive([node_id], now)
            if received is not None:
                return received
            if self._leads_all(node_id):
                cache.request_update(RefreshReason.REQUEST_TIMEOUT, cache.snapshot.generation, node_id=node_id)
            else:
                self._client.wire.produce.drop(node_id)
                error = RequestTimeoutError("a broker that led it before did not answer")
                return RequestFailure(node_id, error), list(self._requests.pop(node_id))
        return None

    def postpone_overdue(self, seconds: float) -> None:
        """Do not count time in which nothing is sent or received."""
        for node_id, requests in self._requests.items():
            postponed = (sent._replace(overdue_at=sent.overdue_at + seconds) for sent in requests)
            self._requests[node_id] = deque(postponed)

    def _receive(self, node_ids: Collection[int], deadline: float) -> Received | None:
        received = self._client.wire.produce.receive(node_ids, deadline)
        if received is None:
            return None
        if isinstance(received, RequestFailure):
            return received, list(self._requests.pop(received.node_id))
        requests = self._requests[received.node_id]
        request = requests.popleft()
        if not requests:
            del self._requests[received.node_id]
        return received, [request]

    def overdue_at(self) -> float:
        """When the first request is overdue; infinite without a request."""
        return min((requests[0].overdue_at for requests in self._requests.values()), default=math.inf)

    def _leads_all(self, node_id: int) -> bool:
        """Whether no partition of the requests to this broker has another leader."""
        partitions = {queue.partition for request in self._requests[node_id] for queue, _ in request.batches}
        leaders = map(self._client.cache.snapshot.leader, partitions)
        return all(leader is None or leader.broker.node_id == node_id for leader in leaders)

    def drop(self) -> None:
        """Abandon all requests."""
        for node_id in self._requests:
            self._client.wire.produce.drop(node_id)
        self._requests.clear()

    def _send(self, broker: Broker, ready: list[PartitionQueue], generation: int, now: float) -> list[PartitionQueue]:
        """Send one request. Returns the queues that can send more, those without a batch in it first."""
        batches: list[tuple[PartitionQueue, QueuedBatch]] = []
        parts: list[ProducePartition] = []
        size_bytes = 0
        for queue in ready:
            queued = queue.next_batch(generation, now)
            assert queued is not None
            size_bytes += queued.batch.size_bytes
            if batches and size_bytes > self._options.max_request_bytes:
                break
            records = queue.send(queued, broker.node_id)
            batches.append((queue, queued))
            parts.append(ProducePartition(queue.partition, queue.topic_id, records))
        timeout_ms = self._client.options.request_timeout_ms
        request = ProduceRequest(tuple(parts), self._options.acks, timeout_ms, self._transactional_id, self._version)
        self._client.wire.produce.send(broker, request, now + timeout_ms / 1000)
        sent = InFlightProduce(broker, generation, batches, now, now + OVERDUE_MS / 1000)
        self._requests.setdefault(broker.node_id, deque()).append(sent)
        served = [queue for queue, _ in batches if queue.next_batch(generation, now) is not None]
        return ready[len(batches) :] + served

    def _leader(self, queue: PartitionQueue, now: float) -> LeaderAndEpoch | None:
        """The cached leader; if None, a metadata refresh was requested, and the queue waits for it."""
        cache, partition = self._client.cache, queue.partition
        snapshot = cache.snapshot
        topic_id = snapshot.topic_id(partition.topic)
        match queue.on_topic_id(topic_id, snapshot.reported_by, len(snapshot.brokers)):
            case Fail(error):
                raise error
            case Refresh(reason):
                request_update = partial(cache.request_update, reason, partition=partition)
                queue.wait_for_metadata_after(snapshot.generation, request_update)
                return None
        leader = cache.leader(partition)
        if leader is not None:
            self._unknown_since.pop(partition, None)
            return leader
        is_known = partition in snapshot.partitions(partition.topic)
        code = snapshot.topic_errors.get(partition.topic) or LEADER_NOT_AVAILABLE
        code = code if is_known or code != LEADER_NOT_AVAILABLE else UNKNOWN_TOPIC_OR_PARTITION
        if write_action(code) is Action.FAIL:
            raise broker_error(f"{partition} cannot be written", code, partition.topic, "WRITE")
        unknown_since = now if is_known else self._unknown_since.setdefault(partition, now)
        if now >= unknown_since + UNKNOWN_GRACE_MS / 1000:
            raise unknown_partition_error(partition)
        queue.last_error = describe(code)
        reason = refresh_reason(code) if write_action(code) is Action.REFRESH else RefreshReason.NO_LEADER
        request_update = partial(cache.request_update, reason, partition=partition, error_code=code)
        queue.wait_for_metadata_after(snapshot.generation, request_update)
        return None


class ProduceResponses:
    """Handles the Produce responses of one task."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client

    def handle(self, received: ProduceResponse | RequestFailure, requests: list[InFlightProduce]) -> None:
        """Take a response to one request, or the failure of all requests to a broker.

        Raises:
            KafkaMetaError: an error that is not retriable.
        """
        if isinstance(received, RequestFailure):
            if not isinstance(received.error, RETRIABLE_ERRORS):
                raise received.error
            self._give_back(requests, received)
            return
        self._client.events.count_produce(received.node_id, received.request_bytes, received.throttle_ms)
        if received.throttle_ms > 0:
            self._client.throttles.throttle(received.node_id, received.throttle_ms, self._client.clock())
        (request,) = requests
        results = {produced.partition: produced for produced in received.partitions}
        for queue, queued in request.batches:
            produced = results.get(queue.partition)
            if produced is None:
                error = ProtocolError(f"{request.broker.address} answered without {queue.partition}")
                self._client.cache.report_failure(error, request.generation, received.node_id)
                queue.on_request_failed(queued, str(error))
            else:
                self._carry_out(queue, queue.on_response(queued, produced), request, produced)

    def _give_back(self, requests: Iterable[InFlightProduce], failure: RequestFailure) -> None:
        """Have the batches of requests without a response sent again, once metadata is newer than the request's."""
        cache = self._client.cache
        self._client.events.count_retry()
        request_update = partial(cache.request_update, failure_reason(failure.error), node_id=failure.node_id)
        for request in requests:
            for queue, queued in request.batches:
                queue.on_request_failed(queued, str(failure.error))
                queue.wait_for_metadata_after(request.generation, request_update)

    def _carry_out(
        self, queue: PartitionQueue, instruction: Instruction, request: InFlightProduce, produced: ProducedPartition
    ) -> None:
        cache, node_id = self._client.cache, request.broker.node_id
        match instruction:
            case Refresh(reason, code):
                self._client.events.count_retry()
                hint = produced.leader_hint
                if hint is None or not cache.take_hint(queue.partition, hint, request.generation, code, node_id):
                    request_update = partial(
                        cache.request_update, reason, partition=queue.partition, error_code=code, node_id=node_id
                    )
                    queue.wait_for_metadata_after(request.generation, request_update)
            case BackOff():
                self._client.events.count_retry()
                queue.back_off(self._client.clock(), self._client.backoff_s)
            case Fail(error):
                raise error
