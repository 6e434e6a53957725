"""`ProduceResponses`: gives the partitions of each Produce response to their queues, and carries out what they want.

A leader that a broker names along with an error is used at once (KIP-951); without it, queues wait for newer metadata.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.metadata.cache import RETRIABLE_ERRORS, failure_reason
from pyspark_kafka_meta.kafka.protocol.messages import RequestFailure
from pyspark_kafka_meta.kafka.protocol.producer_messages import ProducedPartition, ProduceResponse
from pyspark_kafka_meta.write.in_flight_produces import InFlightProduce
from pyspark_kafka_meta.write.partition_queue import PartitionQueue
from pyspark_kafka_meta.write.queue_instructions import BackOff, Fail, Instruction, Refresh


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
        self._client.cache.count_produce(received.node_id, received.request_bytes, received.throttle_ms)
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
        cache.count_retry()
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
                cache.count_retry()
                hint = produced.leader_hint
                if hint is None or not cache.take_hint(queue.partition, hint, request.generation, code, node_id):
                    request_update = partial(
                        cache.request_update, reason, partition=queue.partition, error_code=code, node_id=node_id
                    )
                    queue.wait_for_metadata_after(request.generation, request_update)
            case BackOff():
                cache.count_retry()
                queue.back_off(self._client.clock(), self._client.backoff_s)
            case Fail(error):
                raise error
