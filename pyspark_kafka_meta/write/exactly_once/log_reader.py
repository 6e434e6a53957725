"""`LogReader`: reads record batches as a partition's log holds them, with their producers and markers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

from pyspark_kafka_meta.errors import CorruptBatchError, DataLossError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords
from pyspark_kafka_meta.model import OffsetRange, RefreshReason, TopicPartition
from pyspark_kafka_meta.options import FetchOptions, ReadOptions, default_options
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.data_loss import DataLossPolicy


class _NoLoss(DataLossPolicy):
    """A sink has no option to go on without records of its own."""

    def report_loss(self, text: str, may_be_recreated: bool = False) -> None:
        raise DataLossError(text)

    def report_recreated_while_read(self, text: str) -> None:
        raise DataLossError(text)

    def report_corrupt(
        self, partition: TopicPartition, offset: int, error: CorruptBatchError, loss: str | None
    ) -> None:
        raise CorruptBatchError(
            f"{partition} at offset {offset}: {error}, though fetched twice: let another replica lead the partition",
            partition.topic,
            partition.partition,
            offset,
            error.until_offset,
        )


class LogReader:
    """Reads through leader changes and lost connections, as tasks do."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._options = default_options(ReadOptions, fetch=default_options(FetchOptions))
        self._policy = _NoLoss(self._options)

    def batches(
        self, partition: TopicPartition, from_offset: int, until_offset: int, topic_id: UUID | None = None
    ) -> Iterator[FetchedRecords]:
        """The record batches with offsets in [from_offset, until_offset), of committed, aborted and open transactions,
        and control batches. Each has one header, and is valid until the next.

        Args:
            topic_id: that the offsets belong to; None for the topic that has the name now, whatever id it has: brokers
                that lag behind report that of an earlier topic.

        Raises:
            DataLossError: the log starts after `from_offset` or ends before `until_offset`, or is of another topic.
            KafkaMetaError: as `TaskReader.read`.
        """
        if from_offset >= until_offset:
            return
        planned = OffsetRange(partition, topic_id, from_offset, until_offset)
        for fetched in TaskReader(self._client, self._options, [], self._policy).read_record_batches([planned]):
            for header in fetched.headers:
                if header.last_offset >= from_offset and header.base_offset < until_offset:
                    yield replace(fetched, headers=[header])

    def start_offset(self, partition: TopicPartition) -> int:
        """The first offset of the log."""
        return self._offset(partition, EARLIEST_TIMESTAMP)

    def end_offset(self, partition: TopicPartition, deadline: float = math.inf) -> int:
        """The high watermark: open transactions do not hold it back."""
        return self._offset(partition, LATEST_TIMESTAMP, deadline)

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        """As the leader reports: a broker that lags behind reports that of an earlier topic with the name."""
        cache = self._client.cache
        leader = cache.leader(partition)
        deadline, node_id = self._client.api_deadline(), None if leader is None else leader.broker.node_id
        return cache.refresh(RefreshReason.ON_DEMAND, deadline, node_id).topic_id(partition.topic)

    def _offset(self, partition: TopicPartition, timestamp: int, deadline: float = math.inf) -> int:
        deadline = min(deadline, self._client.api_deadline())
        return self._client.list_offsets({partition: timestamp}, deadline)[partition].offset
