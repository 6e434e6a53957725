"""Queries the current state of a cluster.

Brokers take one Metadata request to the first broker that responds, partitions another to a second broker, and
ListOffsets. No metadata cache is used, so no refresh event is published. Requests are not retried: a failed broker is a
result.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from pyspark_kafka_meta.errors import ConnectError, ProtocolError
from pyspark_kafka_meta.kafka.metadata.cache_state import RETRIABLE_ERRORS
from pyspark_kafka_meta.kafka.metadata.refresh_policy import FIRST_ATTEMPT_TIMEOUT_MS
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.error_codes import describe
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    PartitionOffset,
)
from pyspark_kafka_meta.kafka.protocol.requests import Network
from pyspark_kafka_meta.model import (
    Address,
    Broker,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
    is_other_topic,
)
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.rows import BrokerRow, PartitionRow


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The Metadata response of one broker, and its latency, connecting included."""

    address: Address
    response: MetadataResponse
    latency_ms: float


def describe_cluster(options: ClientOptions, topics: Collection[str] | None) -> ClusterDescription:
    """The metadata of the first bootstrap address that responds.

    Args:
        topics: None for all.

    Raises:
        ConnectError: no address responded within default.api.timeout.ms; the text has the error of each address.
        KafkaMetaError: an error of all addresses, such as a refused login.
    """
    with closing(KafkaNetwork(ConnectionSettings.of(options))) as network:
        return _describe(network, options, topics, options.api_deadline(time.monotonic()))


def newest_metadata(options: ClientOptions, topics: Collection[str] | None) -> MetadataResponse:
    """The metadata of two brokers, if there are two: a broker that lags behind, or is cut off from the cluster, names
    leaders that were replaced, whose logs end too early. Arguments and errors as of `describe_cluster`."""
    with closing(KafkaNetwork(ConnectionSettings.of(options))) as network:
        return _newest(network, options, topics, options.api_deadline(time.monotonic()))


def _newest(
    network: KafkaNetwork, options: ClientOptions, topics: Collection[str] | None, deadline: float
) -> MetadataResponse:
    first = _describe(network, options, topics, deadline)
    others = [broker.address for broker in first.response.brokers if broker.address != first.address]
    if not others:
        return first.response
    try:
        until = min(deadline, time.monotonic() + FIRST_ATTEMPT_TIMEOUT_MS / 1000)
        return merged(first.response, network.metadata(random.choice(others), topics, until))
    except RETRIABLE_ERRORS:
        return first.response


def merged(first: MetadataResponse, second: MetadataResponse) -> MetadataResponse:
    """The first response, with what the second adds: topics, partitions, and leaders of higher epochs."""
    topics = {topic.name: topic for topic in second.topics if topic.error_code == 0}
    for topic in first.topics:
        other = topics.get(topic.name)
        topics[topic.name] = topic if other is None else _newer(topic, other)
    brokers = {broker.node_id: broker for broker in (*second.brokers, *first.brokers)}
    return replace(first, brokers=tuple(brokers.values()), topics=tuple(topics.values()))


def _newer(first: TopicMetadata, second: TopicMetadata) -> TopicMetadata:
    if first.error_code:
        return second
    if is_other_topic(first.topic_id, second.topic_id):
        return first  # ids have no order
    partitions = {partition.partition: partition for partition in first.partitions}
    for partition in second.partitions:
        known = partitions.get(partition.partition)
        if known is None or known.leader_epoch < partition.leader_epoch:
            partitions[partition.partition] = partition
    return replace(first, partitions=tuple(partitions.values()))


def broker_rows(cluster: ClusterDescription) -> list[BrokerRow]:
    """The brokers, by id."""
    response = cluster.response
    return [
        BrokerRow(
            node_id=broker.node_id,
            host=broker.address.host,
            port=broker.address.port,
            rack=broker.rack,
            is_controller=broker.node_id == response.controller_id,
            cluster_id=response.cluster_id,
            answered_by=str(cluster.address),
        )
        for broker in sorted(response.brokers)
    ]


def partition_rows(
    options: ClientOptions, topics: Collection[str] | None, read_committed: bool = False
) -> list[PartitionRow]:
    """The partitions of `topics`, by name; None for all topics that are not internal.

    Args:
        read_committed: whether a partition ends at its last stable offset instead of its high watermark.

    Raises:
        ConnectError: no broker responded. That a leader does not is in its partitions' rows.
        KafkaMetaError: as `describe_cluster`.
    """
    deadline = options.api_deadline(time.monotonic())
    with closing(KafkaNetwork(ConnectionSettings.of(options))) as network:
        response = _newest(network, options, topics, deadline)
        selected = [topic for topic in response.topics if topics or not topic.is_internal]
        selected.sort(key=lambda topic: topic.name)
        offsets = _Offsets(network, options, read_committed, deadline)
        offsets.query(response.brokers, selected)
    rows = (row for topic in selected for row in _topic_rows(topic, offsets))
    return [replace(row, cluster_id=response.cluster_id) for row in rows]


class _Offsets:
    """The start and end offset of each partition, or the error of its leader."""

    def __init__(self, network: Network, options: ClientOptions, read_committed: bool, deadline: float) -> None:
        self._network = network
        self._options = options
        self._read_committed = read_committed
        self._deadline = deadline
        self.starts: dict[TopicPartition, PartitionOffset] = {}
        self.ends: dict[TopicPartition, PartitionOffset] = {}
        self.failures: dict[TopicPartition, str] = {}

    def query(self, brokers: Collection[Broker], topics: Collection[TopicMetadata]) -> None:
        by_id = {broker.node_id: broker for broker in brokers}
        leaders: dict[int, dict[TopicPartition, int]] = {}
        for topic in topics:
            for partition in topic.partitions:
                if partition.leader_id in by_id:
                    epochs = leaders.setdefault(partition.leader_id, {})
                    epochs[TopicPartition(topic.name, partition.partition)] = partition.leader_epoch
        for timestamp, offsets in ((EARLIEST_TIMESTAMP, self.starts), (LATEST_TIMESTAMP, self.ends)):
            deadline = min(self._deadline, time.monotonic() + self._options.request_timeout_ms / 1000)
            for node_id, epochs in leaders.items():
                queries = tuple(OffsetQuery(partition, timestamp, epoch) for partition, epoch in epochs.items())
                request = OffsetsRequest(queries, self._read_committed)
                self._network.offsets.send(by_id[node_id], request, deadline)
            for _ in range(len(leaders)):
                response = self._network.offsets.receive(leaders, math.inf)  # each request has its own deadline
                if isinstance(response, OffsetsResponse):
                    offsets |= response.offsets
                elif response is not None:
                    self.failures |= dict.fromkeys(leaders.pop(response.node_id), str(response.error))


def _topic_rows(topic: TopicMetadata, offsets: _Offsets) -> Iterator[PartitionRow]:
    if topic.error_code:
        yield PartitionRow(topic=topic.name, error=describe(topic.error_code))
        return
    for partition in sorted(topic.partitions, key=lambda partition: partition.partition):
        yield _partition_row(topic, partition, offsets)


def _partition_row(topic: TopicMetadata, metadata: PartitionMetadata, offsets: _Offsets) -> PartitionRow:
    partition = TopicPartition(topic.name, metadata.partition)
    start, end = offsets.starts.get(partition), offsets.ends.get(partition)
    codes = [metadata.error_code, *(offset.error_code for offset in (start, end) if offset is not None)]
    error = offsets.failures.get(partition) or next((describe(code) for code in codes if code), None)
    if error is None and end is None:
        error = f"no offsets: broker {metadata.leader_id}, its leader, is not alive or did not return the partition"
    return PartitionRow(
        topic=topic.name,
        partition=metadata.partition,
        topic_id=None if topic.topic_id is None else str(topic.topic_id),
        leader_id=metadata.leader_id,
        leader_epoch=metadata.leader_epoch,
        replicas=metadata.replicas,
        isr=metadata.isr,
        offline_replicas=metadata.offline_replicas,
        start_offset=start.offset if start is not None and start.error_code == 0 else None,
        end_offset=end.offset if end is not None and end.error_code == 0 else None,
        error=error,
    )


def _describe(
    network: KafkaNetwork, options: ClientOptions, topics: Collection[str] | None, deadline: float
) -> ClusterDescription:
    """Divide the time until the deadline evenly among the remaining addresses."""
    failures = []
    addresses = options.bootstrap_servers
    for remaining, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        start = time.monotonic()
        try:
            response = network.metadata(address, topics, start + (deadline - start) / remaining)
            if response.error_code:
                raise ProtocolError(f"{address} responded with {describe(response.error_code)}")
        except RETRIABLE_ERRORS as error:
            failures.append(str(error))
        else:
            return ClusterDescription(address, response, (time.monotonic() - start) * 1000)
    raise ConnectError(f"no broker responded ({'; '.join(failures)}): check the addresses and that the brokers are up")
