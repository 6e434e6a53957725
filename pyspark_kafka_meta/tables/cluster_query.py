"""Queries the current state of a cluster: brokers, partitions, and open transactions.

Brokers take one Metadata request to the first broker that responds, partitions another to a second broker, and
ListOffsets. No metadata cache is used, so no refresh event is published. Requests are not retried: a failed broker is a
result.

Open transactions (KIP-664), and which of them belong to decided batches of sinks, are queried with a client.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark_kafka_meta.errors import (
    RETRIABLE_ERRORS,
    ConnectError,
    ProtocolError,
    UnknownTopicError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.events.origin import planner_origin
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.metadata.refresh_policy import FIRST_ATTEMPT_TIMEOUT_MS
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.error_codes import describe
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    OffsetQuery,
    OffsetsRequest,
    PartitionOffset,
)
from pyspark_kafka_meta.kafka.protocol.network_interface import Network, RequestFailure
from pyspark_kafka_meta.kafka.protocol.transactions import ENDING_STATES, OPEN_STATES, DescribedTransaction
from pyspark_kafka_meta.model import (
    Address,
    Broker,
    MetadataResponse,
    OpenTransaction,
    PartitionMetadata,
    RefreshReason,
    TopicMetadata,
    TopicPartition,
    is_other_topic,
)
from pyspark_kafka_meta.options import ClientOptions, ClusterOptions
from pyspark_kafka_meta.tables.rows import BrokerRow, PartitionRow, TransactionPartition, TransactionRow
from pyspark_kafka_meta.write.exactly_once.decision import BatchId, Decision, sink_of_task


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
                if isinstance(response, RequestFailure):
                    self.failures |= dict.fromkeys(leaders.pop(response.node_id), str(response.error))
                elif response is not None:
                    offsets |= response.result


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


SinkDecisions = Mapping[tuple[str, str], Decision]
"""As `DecisionsTopic.read_all`."""


def query_transactions(options: ClusterOptions) -> list[TransactionRow]:
    """The open transactions of a cluster, and those of unsettled batches, with a client of their own.

    Raises:
        KafkaMetaError: as `open_transactions`, or this user may not read the decisions topic.
    """
    with closing(client_without_events(options.client, planner_origin())) as client:
        return open_transactions(client, read_decisions(client, options.decisions_topic))


def read_decisions(client: KafkaClient, decisions_topic: str) -> SinkDecisions:
    """The last decision of each sink and series; none without the topic, which the first sink creates."""
    # Other commands start sooner without it.
    from pyspark_kafka_meta.write.exactly_once.decisions_topic import DecisionsTopic, require_one_partition

    deadline = client.api_deadline()
    try:
        require_one_partition(client.partitions([decisions_topic], deadline))
    except UnknownTopicError:
        return {}
    # From a second broker: a leader that was replaced would show decided transactions as undecided.
    client.cache.refresh(RefreshReason.ON_DEMAND, deadline)
    return DecisionsTopic(client, decisions_topic, None).read_all()


def open_transactions(client: KafkaClient, decisions: SinkDecisions) -> list[TransactionRow]:
    """The open transactions of a cluster, and those of unsettled batches, by sink and id.

    Raises:
        UnsupportedBrokerError: the brokers cannot list transactions (before Kafka 3.0).
        AuthorizationError: this user may not describe an id of a decided transaction.
        ConnectError: a broker did not respond.
    """
    deadline = client.api_deadline()
    try:
        listed = client.coordinators.list_transactions(deadline)
    except UnsupportedBrokerError:
        raise UnsupportedBrokerError(
            "brokers before Kafka 3.0 cannot list transactions (KIP-664): a lost task attempt leaves its transaction "
            "open until kafka.transaction.timeout.ms, or until its sink uses the id again"
        ) from None
    decided = {each.transactional_id for decision in decisions.values() for each in decision.transactions}
    described = client.coordinators.describe_transactions(sorted({*listed, *decided}), deadline)
    return transaction_rows(described, decisions, client.cache.snapshot.cluster_id, int(time.time() * 1000))


def transaction_rows(
    described: Iterable[DescribedTransaction], decisions: SinkDecisions, cluster_id: str | None, now_ms: int
) -> list[TransactionRow]:
    """The rows of open and of decided transactions, by sink and id; transactions of other producers come last."""
    sinks = {sink for sink, _ in decisions}
    queries = {sink: decision.batch.owner for (sink, _), decision in decisions.items() if decision.batch.is_stream}
    decided = {
        (each.transactional_id, each.producer): (each, sink, decision.batch)
        for (sink, _), decision in decisions.items()
        for each in decision.transactions
    }
    rows, states = [], {}
    for transaction in described:
        if transaction.state in OPEN_STATES:
            transactional_id, producer = transaction.transactional_id, transaction.producer
            if (transactional_id, producer) not in decided and transaction.state in ENDING_STATES:
                producer = producer._replace(epoch=producer.epoch - 1)  # the end has raised it already (KIP-890)
            _, _, batch = decided.pop((transactional_id, producer), (None, None, None))
            # None for the id of another producer than a task attempt or a driver.
            sink = sink_of_task(transactional_id) or (transactional_id if transactional_id in sinks else None)
            rows.append(_row(transaction, transaction.partitions, transaction.state, sink, batch, now_ms))
        else:
            states[transaction.transactional_id] = transaction.state
    for ended, sink, batch in decided.values():  # committed or aborted, but their batch is not settled
        partitions = {(written.topic, written.partition) for written in ended.written}
        rows.append(_row(ended, partitions, states.get(ended.transactional_id), sink, batch, now_ms))
    rows = [
        replace(row, cluster_id=cluster_id, query_id=row.query_id if row.is_decided else queries.get(row.sink or ""))
        for row in rows
    ]
    return sorted(rows, key=lambda row: (row.sink is None, row.sink or "", row.transactional_id))


def _row(
    transaction: DescribedTransaction | OpenTransaction,
    partitions: Iterable[tuple[str, int]],
    state: str | None,
    sink: str | None,
    batch: BatchId | None,
    now_ms: int,
) -> TransactionRow:
    opened = transaction if isinstance(transaction, DescribedTransaction) else None
    started_ms = None if opened is None else opened.started_ms
    return TransactionRow(
        sink=sink,
        transactional_id=transaction.transactional_id,
        state=state,
        started=None if started_ms is None else datetime.fromtimestamp(started_ms / 1000, UTC),
        open_ms=None if started_ms is None else max(now_ms - started_ms, 0),
        timeout_ms=None if opened is None else opened.timeout_ms,
        producer_id=transaction.producer.producer_id,
        producer_epoch=transaction.producer.epoch,
        partitions=tuple(TransactionPartition(*partition) for partition in sorted(partitions)),
        is_decided=batch is not None,
        query_id=batch.owner if batch is not None and batch.is_stream else None,
        batch_id=None if batch is None else batch.version,
    )
