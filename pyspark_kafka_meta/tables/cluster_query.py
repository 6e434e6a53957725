"""The cluster as its brokers see it now: one Metadata request to whoever answers, and ListOffsets to the leaders.

No cache takes part, so looking leaves no refresh event behind; and each question is asked once, because a broker that
does not answer is something to show.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from pyspark_kafka_meta.errors import ConnectError, ProtocolError
from pyspark_kafka_meta.kafka_errors import describe
from pyspark_kafka_meta.metadata.cache import RETRIABLE_ERRORS
from pyspark_kafka_meta.model import Address, Broker, MetadataResponse, PartitionMetadata, TopicMetadata, TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.table_rows import BrokerRow, PartitionRow
from pyspark_kafka_meta.wire.connection import ConnectionSettings
from pyspark_kafka_meta.wire.kafka_wire import KafkaWire
from pyspark_kafka_meta.wire.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    PartitionOffset,
    Wire,
)


@dataclass(frozen=True, slots=True)
class Told:
    """What one broker returned, and how long that took, connecting included."""

    address: Address
    answer: MetadataResponse
    latency_ms: float


def ask_cluster(options: ClientOptions, topics: Collection[str] | None) -> Told:
    """What the first bootstrap address that answers knows of the cluster.

    Args:
        topics: None for all.

    Raises:
        ConnectError: none answered within default.api.timeout.ms; the text says what each did.
        KafkaMetaError: what no other address heals, such as a login that is refused.
    """
    with closing(KafkaWire(ConnectionSettings.of(options))) as wire:
        return _ask(wire, options, topics, options.api_deadline(time.monotonic()))


def broker_rows(told: Told) -> list[BrokerRow]:
    """The brokers, by id."""
    answer = told.answer
    return [
        BrokerRow(
            node_id=broker.node_id,
            host=broker.address.host,
            port=broker.address.port,
            rack=broker.rack,
            is_controller=broker.node_id == answer.controller_id,
            cluster_id=answer.cluster_id,
            answered_by=str(told.address),
        )
        for broker in sorted(answer.brokers)
    ]


def partition_rows(options: ClientOptions, topics: Collection[str] | None) -> list[PartitionRow]:
    """The partitions of `topics` (None: of all that are not internal), by name.

    Raises:
        ConnectError: no broker responded. That a leader does not is in its partitions' rows.
        KafkaMetaError: as `ask_cluster`.
    """
    deadline = options.api_deadline(time.monotonic())
    with closing(KafkaWire(ConnectionSettings.of(options))) as wire:
        answer = _ask(wire, options, topics, deadline).answer
        shown = sorted((one for one in answer.topics if topics or not one.is_internal), key=lambda one: one.name)
        ends = _Ends(wire, options, deadline)
        ends.ask(answer.brokers, shown)
    rows = (row for topic in shown for row in _topic_rows(topic, ends))
    return [replace(row, cluster_id=answer.cluster_id) for row in rows]


class _Ends:
    """The start and end offset of each partition, or why its leader did not return them."""

    def __init__(self, wire: Wire, options: ClientOptions, deadline: float) -> None:
        self._wire = wire
        self._options = options
        self._deadline = deadline
        self.starts: dict[TopicPartition, PartitionOffset] = {}
        self.ends: dict[TopicPartition, PartitionOffset] = {}
        self.failures: dict[TopicPartition, str] = {}

    def ask(self, brokers: Collection[Broker], topics: Collection[TopicMetadata]) -> None:
        live = {broker.node_id: broker for broker in brokers}
        leaders: dict[int, dict[TopicPartition, int]] = {}
        for topic in topics:
            for one in topic.partitions:
                if one.leader_id in live:
                    led = leaders.setdefault(one.leader_id, {})
                    led[TopicPartition(topic.name, one.partition)] = one.leader_epoch
        for timestamp, found in ((EARLIEST_TIMESTAMP, self.starts), (LATEST_TIMESTAMP, self.ends)):
            due = min(self._deadline, time.monotonic() + self._options.request_timeout_ms / 1000)
            for node_id, epochs in leaders.items():
                queries = tuple(OffsetQuery(partition, timestamp, epoch) for partition, epoch in epochs.items())
                request = OffsetsRequest(queries, self._options.read_committed)
                self._wire.send_offsets(live[node_id], request, due)
            for _ in range(len(leaders)):
                answer = self._wire.receive_offsets(leaders, math.inf)  # each has its own end
                if isinstance(answer, OffsetsResponse):
                    found |= answer.offsets
                elif answer is not None:
                    self.failures |= dict.fromkeys(leaders.pop(answer.node_id), str(answer.error))


def _topic_rows(topic: TopicMetadata, ends: _Ends) -> Iterator[PartitionRow]:
    if topic.error_code:
        yield PartitionRow(topic=topic.name, error=describe(topic.error_code))
        return
    for one in sorted(topic.partitions, key=lambda one: one.partition):
        yield _partition_row(topic, one, ends)


def _partition_row(topic: TopicMetadata, one: PartitionMetadata, ends: _Ends) -> PartitionRow:
    partition = TopicPartition(topic.name, one.partition)
    start, end = ends.starts.get(partition), ends.ends.get(partition)
    codes = [one.error_code, *(answer.error_code for answer in (start, end) if answer is not None)]
    error = ends.failures.get(partition) or next((describe(code) for code in codes if code), None)
    if error is None and end is None:
        error = f"no offsets: broker {one.leader_id}, its leader, is not among the live brokers or left it out"
    return PartitionRow(
        topic=topic.name,
        partition=one.partition,
        topic_id=None if topic.topic_id is None else str(topic.topic_id),
        leader_id=one.leader_id,
        leader_epoch=one.leader_epoch,
        replicas=one.replicas,
        isr=one.isr,
        offline_replicas=one.offline_replicas,
        start_offset=start.offset if start is not None and start.error_code == 0 else None,
        end_offset=end.offset if end is not None and end.error_code == 0 else None,
        error=error,
    )


def _ask(wire: KafkaWire, options: ClientOptions, topics: Collection[str] | None, deadline: float) -> Told:
    """Each address gets its share of the time that is left."""
    failures = []
    addresses = options.bootstrap_servers
    for remaining, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        asked_at = time.monotonic()
        try:
            answer = wire.metadata(address, topics, asked_at + (deadline - asked_at) / remaining)
            if answer.error_code:
                raise ProtocolError(f"{address} answered {describe(answer.error_code)}")
        except RETRIABLE_ERRORS as error:
            failures.append(str(error))
        else:
            return Told(address, answer, (time.monotonic() - asked_at) * 1000)
    raise ConnectError(f"no broker responded ({'; '.join(failures)}): check the addresses and that the brokers are up")
