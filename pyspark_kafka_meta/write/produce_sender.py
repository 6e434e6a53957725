"""`ProduceSender`: sends the record batches of a task, several Produce requests in flight to each broker.

A request has at most one batch of each partition. Its response goes to their queues, and what they want is carried
out. Follows Kafka's `Sender.sendProduceRequests`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias

from pyspark_kafka_meta.errors import RETRIABLE_ERRORS, KafkaMetaError, ProtocolError, RequestTimeoutError
from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.client.leader_requests import LeaderRequests, Received, SentRequest
from pyspark_kafka_meta.kafka.client.next_request import UNKNOWN_GRACE_MS, BackOff, Fail, Refresh
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
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.kafka.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from pyspark_kafka_meta.model import Broker, LeaderAndEpoch, RefreshReason, TopicPartition, TransactionVersion
from pyspark_kafka_meta.options import ProducerOptions
from pyspark_kafka_meta.write.partition_queue import Instruction, PartitionQueue, QueuedBatch
from pyspark_kafka_meta.write.transactional_producer import TransactionalProducer

SentBatch: TypeAlias = tuple[PartitionQueue, QueuedBatch]


class ProduceSender(LeaderRequests[SentBatch, ProduceResponse]):
    def __init__(
        self, client: ClientState, options: ProducerOptions, transaction: TransactionalProducer | None = None
    ) -> None:
        super().__init__(client, client.network.produce)
        self._options = options
        self._transactional_id = None if transaction is None else transaction.transactional_id
        self._version = TransactionVersion.V2 if transaction is None else transaction.version
        self._unknown_since: dict[TopicPartition, float] = {}

    # --- requests -----------------------------------------------------------------------------------------------------

    def send(self, queues: Collection[PartitionQueue], now: float) -> None:
        """Send the batches that can be sent, while their leaders have fewer requests in flight than allowed.

        Raises:
            BrokerError: a partition may not be written.
            UnknownTopicError: a partition does not exist any more.
            DataLossError: the topic was recreated after it had acknowledged records.
        """
        generation, timeout_ms = self._client.cache.snapshot.generation, self._client.options.request_timeout_ms
        for broker, ready in self._by_leader(queues, generation, now).items():
            ready.sort(key=lambda sent: (sent[0].deadline, sent[0].in_flight))  # the oldest rows first
            while ready and self.count(broker.node_id) < self._options.max_in_flight:
                batches = self._fitting(ready)
                self._client.network.produce.send(broker, self._request(batches, broker), now + timeout_ms / 1000)
                self.add(broker, batches, generation, now)
                # Those without a batch in it go first in the next request.
                served = [(queue, queue.next_batch(generation, now)) for queue, _ in batches]
                ready = ready[len(batches) :] + [(queue, queued) for queue, queued in served if queued is not None]

    def _by_leader(
        self, queues: Iterable[PartitionQueue], generation: int, now: float
    ) -> dict[Broker, list[SentBatch]]:
        """The queues with a batch to send, and the batch, by the broker that gets it."""
        ready: dict[Broker, list[SentBatch]] = {}
        for queue in queues:
            queued = queue.next_batch(generation, now)
            leader = None if queued is None else self._leader(queue, now)
            if queued is None or leader is None or not queue.can_go_to(leader.broker.node_id):
                continue
            if not self.is_throttled(queue, leader.broker.node_id, now):
                ready.setdefault(leader.broker, []).append((queue, queued))
        return ready

    def _fitting(self, ready: Iterable[SentBatch]) -> list[SentBatch]:
        """The first batches, as many as one request may have."""
        batches: list[SentBatch] = []
        size_bytes = 0
        for queue, queued in ready:
            size_bytes += queued.batch.size_bytes
            if batches and size_bytes > self._options.max_request_bytes:
                break
            batches.append((queue, queued))
        return batches

    def _request(self, batches: Iterable[SentBatch], broker: Broker) -> ProduceRequest:
        """The request with these batches, which are in flight from now on."""
        return ProduceRequest(
            tuple(
                ProducePartition(queue.partition, queue.topic_id, queue.send(queued, broker.node_id))
                for queue, queued in batches
            ),
            self._options.acks,
            self._client.options.request_timeout_ms,
            self._transactional_id,
            self._version,
        )

    def _leader(self, queue: PartitionQueue, now: float) -> LeaderAndEpoch | None:
        """The cached leader; if None, a metadata refresh was requested, and the queue waits for it."""
        cache, partition = self._client.cache, queue.partition
        snapshot = cache.snapshot
        topic_id = snapshot.topic_id(partition.topic)
        match queue.on_topic_id(topic_id, snapshot.reported_by, len(snapshot.brokers)):
            case Fail(error):
                raise error
            case Refresh(reason):
                self.wait_for_leader(queue, reason)
                return None
        leader = cache.leader(partition)
        if leader is None:
            self._wait_without_leader(queue, now)
        else:
            self._unknown_since.pop(partition, None)
        return leader

    def _wait_without_leader(self, queue: PartitionQueue, now: float) -> None:
        snapshot, partition = self._client.cache.snapshot, queue.partition
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
        self.wait_for_leader(queue, reason, code)

    def _give_up(self, node_id: int, now: float) -> Received[SentBatch, ProduceResponse] | None:
        """Abandon all requests to a broker, as failed, if one of their partitions has another leader by now. Metadata
        is requested if not: a leader may just wait for its replicas."""
        partitions = {queue.partition for sent in self.of(node_id) for queue, _ in sent.members}
        leaders = map(self._client.cache.snapshot.leader, partitions)
        if all(leader is None or leader.broker.node_id == node_id for leader in leaders):
            self.suspect(node_id)
            return None
        error = RequestTimeoutError("a broker that led it before did not answer")
        return Received(RequestFailure(node_id, error), self.abandon(node_id))

    # --- responses ----------------------------------------------------------------------------------------------------

    def handle(self, received: Received[SentBatch, ProduceResponse]) -> None:
        """Take a response to one request, or the failure of all requests to a broker. Raises KafkaMetaError: an error
        that is not retriable."""
        response = received.response
        if isinstance(response, RequestFailure):
            self._on_failure(received.sent, response)
            return
        self._client.traffic.count_produce(response.node_id, response.request_bytes, response.throttle_ms)
        self._client.take_throttle(response.node_id, response.throttle_ms)
        (sent,) = received.sent
        results = {produced.partition: produced for produced in response.partitions}
        for queue, queued in sent.members:
            produced = results.get(queue.partition)
            if produced is None:
                error = ProtocolError(f"{sent.broker.address} answered without {queue.partition}")
                self._client.traffic.retries += 1
                self._wait_for_metadata(queue, queued, sent, error)
            else:
                self._carry_out(queue, queue.on_response(queued, produced), sent, produced)

    def _on_failure(self, requests: Iterable[SentRequest[SentBatch]], failure: RequestFailure) -> None:
        """Have the batches of requests without a response sent again, once metadata is newer than the request's."""
        if not isinstance(failure.error, RETRIABLE_ERRORS):
            raise failure.error
        self._client.traffic.retries += 1
        for sent in requests:
            for queue, queued in sent.members:
                self._wait_for_metadata(queue, queued, sent, failure.error)

    def _wait_for_metadata(
        self, queue: PartitionQueue, queued: QueuedBatch, sent: SentRequest[SentBatch], error: KafkaMetaError
    ) -> None:
        """Have a batch without a response sent again, once metadata is newer than the request's."""
        queue.on_request_failed(queued, str(error))
        self.refresh_after_failure(queue, sent, error)

    def _carry_out(
        self, queue: PartitionQueue, instruction: Instruction, sent: SentRequest[SentBatch], produced: ProducedPartition
    ) -> None:
        match instruction:
            case Refresh():
                self.refresh(queue, instruction, sent, produced.leader_hint)
            case BackOff():
                self.back_off(queue)
            case Fail(error):
                raise error
