"""`TappedNetwork`: connections to real brokers, with proxies before them, and with faults in responses to Produce."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.in_flight_requests import IdleConnections
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork, MetadataRequests, ProduceRequests
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.model import Broker, TopicPartition
from tests.tcp_proxy import TcpProxy

CRC_AT = 17
"""In a record batch."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error in the response to one batch.

    Attributes:
        is_appended: whether the log has the batch. If not, the broker refuses it because of a wrong checksum, and the
            batches after it because of their sequence.
        is_lasting: whether the partition refuses all batches of this producer epoch, as a leader that has forgotten it.
    """

    code: ErrorCode
    is_appended: bool
    is_lasting: bool = False


class TappedProduces(ProduceRequests):
    """Produce requests as a test wants them, and counts of what the writer sent and got.

    Attributes:
        proxies: by node id, in front of brokers.
        faults: of the next requests, one for each.
        applied: faults that the writer got.
        codes: how often the writer got each error code.
        failures: connections that failed with requests in flight.
        sent: how often each batch was sent, by partition, producer id, producer epoch and base sequence.
    """

    def __init__(self, settings: ConnectionSettings, idle: IdleConnections, interrupted_by: MetadataRequests) -> None:
        super().__init__(settings, idle, interrupted_by)
        self.proxies: dict[int, TcpProxy] = {}
        self.faults: deque[Fault] = deque()
        self.applied: list[Fault] = []
        self.codes: Counter[str] = Counter()
        self.sent: Counter[tuple[TopicPartition, int, int, int]] = Counter()
        self.failures = 0
        self._pending: defaultdict[int, deque[dict[TopicPartition, Fault]]] = defaultdict(deque)
        self._lasting: dict[tuple[TopicPartition, int], Fault] = {}  # by partition and producer epoch

    @property
    def resent(self) -> int:
        """Batches that were sent again under their sequence numbers."""
        return sum(times - 1 for times in self.sent.values())

    def send(self, broker: Broker, request: ProduceRequest, deadline: float) -> None:
        faults: dict[TopicPartition, Fault] = {}
        for part in request.partitions:
            (header,) = read_batch_headers(part.records)
            self.sent[part.partition, header.producer_id, header.producer_epoch, header.base_sequence] += 1
            fault = self._lasting.get((part.partition, header.producer_epoch))
            if fault is None and self.faults and not faults:
                fault = self.faults.popleft()
            if fault is not None:
                faults[part.partition] = fault
            if fault is not None and fault.is_lasting:
                self._lasting[part.partition, header.producer_epoch] = fault
        parts = (_damaged(part) if _is_refused(faults.get(part.partition)) else part for part in request.partitions)
        request = replace(request, partitions=tuple(parts))
        self._pending[broker.node_id].append(faults)
        proxy = self.proxies.get(broker.node_id)
        super().send(broker if proxy is None else replace(broker, address=proxy.address), request, deadline)

    def receive(self, node_ids: Collection[int], deadline: float) -> ProduceResponse | RequestFailure | None:
        received = super().receive(node_ids, deadline)
        if isinstance(received, RequestFailure):
            self.failures += 1
            self._pending.pop(received.node_id, None)
        elif received is not None:
            pending = self._pending[received.node_id].popleft()
            received = self._with_faults(received, pending)
            self.codes.update(ErrorCode(part.error_code).name for part in received.partitions if part.error_code)
        return received

    def drop(self, node_id: int) -> None:
        self._pending.pop(node_id, None)
        super().drop(node_id)

    def _with_faults(self, response: ProduceResponse, faults: Mapping[TopicPartition, Fault]) -> ProduceResponse:
        """The response with the code of each fault, if the broker did with the batch what the fault says."""
        parts = list(response.partitions)
        for index, part in enumerate(parts):
            fault = faults.get(part.partition)
            by_broker = ErrorCode.corrupt_message if _is_refused(fault) else ErrorCode.none
            if fault is not None and part.error_code == by_broker:
                parts[index] = replace(part, error_code=int(fault.code), base_offset=-1)
                self.applied.append(fault)
        return replace(response, partitions=tuple(parts))


class TappedNetwork(KafkaNetwork):
    """The network of one worker, with `TappedProduces`."""

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__(settings)
        self.tapped = self.produce = TappedProduces(settings, self._idle, self._metadata)


def _is_refused(fault: Fault | None) -> bool:
    return fault is not None and not fault.is_appended


def _damaged(part: ProducePartition) -> ProducePartition:
    records = bytearray(part.records)
    records[CRC_AT] ^= 1
    return replace(part, records=bytes(records))
