"""`TappedWire`: connections to real brokers, with proxies before them, and with faults in responses to Produce."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass, replace

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.model import Broker, TopicPartition
from pyspark_kafka_meta.records.record_batches import read_batch_headers
from pyspark_kafka_meta.wire.connection import ConnectionSettings
from pyspark_kafka_meta.wire.kafka_wire import KafkaWire, MetadataRequests
from pyspark_kafka_meta.wire.messages import RequestFailure
from pyspark_kafka_meta.wire.producer_messages import ProducePartition, ProduceRequest, ProduceResponse
from pyspark_kafka_meta.wire.producer_requests import ProduceRequests
from tests.tcp_proxy import TcpProxy

CRC_AT = 17
"""In a record batch."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error in the response to one batch.

    Attributes:
        is_appended: whether the log has the batch. If not, the broker refuses it because of a wrong checksum, and the
            batches behind it because of their sequence.
    """

    code: ErrorCode
    is_appended: bool


class TappedProduces(ProduceRequests):
    """Produce requests as a test wants them, and counts of what the writer sent and got.

    Attributes:
        proxies: by node id, in front of brokers.
        faults: of the next requests, one for each.
        applied: faults that the writer got.
        codes: how often the writer got each error code.
        failures: connections that failed with requests in flight.
        throttle_ms: total time for which brokers wanted no request.
        sent: how often each batch was sent, by partition, producer id, producer epoch and base sequence.
    """

    def __init__(self, settings: ConnectionSettings, interrupted_by: MetadataRequests) -> None:
        super().__init__(settings, interrupted_by)
        self.proxies: dict[int, TcpProxy] = {}
        self.faults: deque[Fault] = deque()
        self.applied: list[Fault] = []
        self.codes: Counter[str] = Counter()
        self.sent: Counter[tuple[TopicPartition, int, int, int]] = Counter()
        self.failures = 0
        self.throttle_ms = 0
        self._pending: defaultdict[int, deque[tuple[TopicPartition, Fault] | None]] = defaultdict(deque)

    @property
    def resent(self) -> int:
        """Batches that were sent again under their sequence numbers."""
        return sum(times - 1 for times in self.sent.values())

    def send(self, broker: Broker, request: ProduceRequest, deadline: float) -> None:
        for part in request.partitions:
            (header,) = read_batch_headers(part.records)
            self.sent[part.partition, header.producer_id, header.producer_epoch, header.base_sequence] += 1
        first, *others = request.partitions
        fault = self.faults.popleft() if self.faults else None
        if fault is not None and not fault.is_appended:
            request = replace(request, partitions=(_damaged(first), *others))
        self._pending[broker.node_id].append(None if fault is None else (first.partition, fault))
        proxy = self.proxies.get(broker.node_id)
        super().send(broker if proxy is None else replace(broker, address=proxy.address), request, deadline)

    def receive(self, node_ids: Collection[int], deadline: float) -> ProduceResponse | RequestFailure | None:
        received = super().receive(node_ids, deadline)
        if isinstance(received, RequestFailure):
            self.failures += 1
            self._pending.pop(received.node_id, None)
        elif received is not None:
            self.throttle_ms += received.throttle_ms
            pending = self._pending[received.node_id].popleft()
            received = received if pending is None else self._with_fault(received, *pending)
            self.codes.update(ErrorCode(part.error_code).name for part in received.partitions if part.error_code)
        return received

    def drop(self, node_id: int) -> None:
        self._pending.pop(node_id, None)
        super().drop(node_id)

    def _with_fault(self, response: ProduceResponse, partition: TopicPartition, fault: Fault) -> ProduceResponse:
        """The response with the code of the fault, if the broker did with the batch what the fault says."""
        by_broker = ErrorCode.none if fault.is_appended else ErrorCode.corrupt_message
        parts = list(response.partitions)
        for index, part in enumerate(parts):
            if part.partition == partition and part.error_code == by_broker:
                parts[index] = replace(part, error_code=int(fault.code), base_offset=-1)
                self.applied.append(fault)
        return replace(response, partitions=tuple(parts))


class TappedWire(KafkaWire):
    """The wire of one worker, with `TappedProduces`."""

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__(settings)
        self.tapped = self.produce = self._open(TappedProduces)


def _damaged(part: ProducePartition) -> ProducePartition:
    records = bytearray(part.records)
    records[CRC_AT] ^= 1
    return replace(part, records=bytes(records))
