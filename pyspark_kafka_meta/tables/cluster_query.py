"""Queries the current state of a cluster, and how far a streaming query is behind it.

Brokers take one Metadata request to the first broker that responds, partitions another to a second broker, and
ListOffsets. No metadata cache is used, so no refresh event is published. Requests are not retried: a failed broker is a
result. The lag of a query comes from its offsets, the log ends, and the age of its next record.
"""

from __future__ import annotations

import json
import logging
import math
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

from pyspark_kafka_meta.errors import CheckpointError, ConnectError, KafkaMetaError, ProtocolError
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
    NO_EPOCH,
    Address,
    Broker,
    MetadataResponse,
    OffsetRange,
    PartitionMetadata,
    Position,
    Positions,
    TopicMetadata,
    TopicPartition,
    is_other_topic,
)
from pyspark_kafka_meta.options import ClientOptions, ClusterOptions, ReadOptions, default_options
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.rows import BrokerRow, LagRow, PartitionRow, by_partition

logger = logging.getLogger(__name__)

RECORD_TIMEOUT_MS = 10_000
"""For a leader to return the next record."""
FETCH_BYTES = 64 * 1024
"""Soft limit for each partition of a Fetch of its next record: a batch of the usual 16 KiB fits, and ten thousand
partitions do not return their backlog. A leader returns larger batches too, one in each response (KIP-74)."""


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


def query_lag(options: Mapping[str, str], offsets: Iterable[SourceOffset]) -> list[LagRow]:
    """The lag of a query whose sources have read up to `offsets`, beside the cluster now.

    Args:
        options: `kafka.*`, of the query's cluster.

    Raises:
        KafkaMetaError: an option is invalid, or no broker responded.
    """
    cluster = ClusterOptions.parse(options)
    rows = []
    for offset in offsets:
        partitions = partition_rows(cluster.client, sorted(offset.topic_ids), cluster.fetch.read_committed)
        live = without_recreated_topics(partitions, offset.topic_ids)
        timestamps = next_record_timestamps(cluster, offset, partitions_behind(offset.positions, live))
        rows += lag_rows(offset.positions, live, timestamps, time.time())
    return rows


class LagSummary(NamedTuple):
    """The lag of a query in all its partitions.

    Attributes:
        records: as far as known.
        oldest_s: age of the oldest next unread record whose age is known; None if none is.
        unknown_ages: number of partitions whose next unread record has an unknown age.
        unknown: number of partitions whose end is not known.
    """

    records: int
    oldest_s: float | None
    unknown_ages: int
    unknown: int

    @classmethod
    def of(cls, rows: Collection[LagRow]) -> LagSummary:
        oldest_s = max((row.seconds_behind for row in rows if row.seconds_behind is not None), default=None)
        unknown = sum(row.records_behind is None for row in rows)
        unknown_ages = sum(row.seconds_behind is None for row in rows) - unknown
        return cls(sum(row.records_behind or 0 for row in rows), oldest_s, unknown_ages, unknown)


def end_offsets(progress: Any) -> Iterator[SourceOffset]:
    """The end offset of each kafkameta source in a progress report of a query."""
    for source in progress["sources"]:
        if (offset := source_offset(source["endOffset"])) is not None:
            yield offset


def source_offset(text: str | None) -> SourceOffset | None:
    """An offset as Spark stores and reports it; None if it is not of this source, or has no partitions."""
    try:
        offset = SourceOffset.parse(json.loads(text or "null"))
    except (ValueError, CheckpointError):
        return None
    return offset if offset.positions else None


def without_recreated_topics(live: Iterable[PartitionRow], topic_ids: Mapping[str, UUID | None]) -> list[PartitionRow]:
    """`live` without partitions of recreated topics: their offsets do not compare with the old topic's."""
    ids = {topic: topic_id and str(topic_id) for topic, topic_id in topic_ids.items()}
    return [row for row in live if not is_other_topic(ids[row.topic], row.topic_id)]


def partitions_behind(positions: Positions, live: Iterable[PartitionRow]) -> list[TopicPartition]:
    """The partitions whose log ends after the query's position."""
    ends = _ends(positions, live)
    return [partition for partition, position in positions.items() if (ends.get(partition) or 0) > position.offset]


def lag_rows(
    positions: Positions, live: Iterable[PartitionRow], timestamps: Mapping[TopicPartition, float], now: float
) -> list[LagRow]:
    """The lag of each partition, in order.

    Args:
        timestamps: of the next records, where known, seconds since 1970 UTC.
        now: seconds since 1970 UTC.
    """
    ends = _ends(positions, live)
    rows = []
    for partition, position in sorted(positions.items()):
        end = ends.get(partition)
        behind = None if end is None else max(0, end - position.offset)
        seconds = 0.0 if behind == 0 else None
        if behind and partition in timestamps:
            seconds = max(0.0, now - timestamps[partition])
        rows.append(
            LagRow(
                topic=partition.topic,
                partition=partition.partition,
                next_offset=position.offset,
                end_offset=end,
                records_behind=behind,
                seconds_behind=seconds,
            )
        )
    return rows


def next_record_timestamps(
    cluster: ClusterOptions, offset: SourceOffset, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, float]:
    """The timestamps of the next records of `partitions`, seconds since 1970 UTC; missing if that offset has no record,
    or its leader does not return the record in time."""
    from pyspark_kafka_meta.events.origin import planner_origin
    from pyspark_kafka_meta.events.publisher import client_without_events
    from pyspark_kafka_meta.read.fetching.task_reader import TaskReader

    if not partitions:
        return {}
    fetch = replace(cluster.fetch, max_partition_fetch_bytes=FETCH_BYTES)
    options = default_options(ReadOptions, fetch=fetch)
    options = replace(options, fail_on_data_loss=False, poll_timeout_ms=RECORD_TIMEOUT_MS)
    ranges = [_next_record_range(partition, offset) for partition in partitions]
    timestamps: dict[TopicPartition, float] = {}
    with closing(client_without_events(cluster.client, planner_origin())) as client:
        try:
            for batch in TaskReader(client, options, ["topic", "partition", "timestamp"]).read(ranges):
                # As integers, us: Spark has later times than Python's datetime.
                rows = batch.set_column(2, "timestamp", batch.column("timestamp").cast("int64"))
                for row in rows.to_pylist():
                    timestamps[TopicPartition(row["topic"], row["partition"])] = row["timestamp"] / 1_000_000
        except KafkaMetaError as error:
            logger.warning("cannot read the timestamps of all next records: %s", error)
    return timestamps


def _next_record_range(partition: TopicPartition, offset: SourceOffset) -> OffsetRange:
    position: Position = offset.positions[partition]
    return OffsetRange(
        partition,
        offset.topic_ids[partition.topic],
        position.offset,
        position.offset + 1,
        position.leader_epoch,
        position.known_epoch,
    )


def _ends(positions: Positions, live: Iterable[PartitionRow]) -> dict[TopicPartition, int | None]:
    """The ends of the logs, without those of leaders that were replaced before the query read up to `positions`."""
    return {
        partition: row.end_offset
        for partition, row in by_partition(live).items()
        if (position := positions.get(partition)) is not None
        and (row.leader_epoch in (None, NO_EPOCH) or row.leader_epoch >= position.known_epoch)
    }
