"""Reads from the log how a transaction ended that its coordinator does not know any more, and its records.

The records of an aborted transaction stay in the log, invisible to read_committed readers, until retention or
compaction removes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.errors import DataLossError, UnknownTopicError
from pyspark_kafka_meta.model import OpenTransaction, TopicPartition, WrittenOffsets
from pyspark_kafka_meta.records.aborted_transactions import is_abort_marker
from pyspark_kafka_meta.records.compression import Compression
from pyspark_kafka_meta.records.decoder import FetchedRecords
from pyspark_kafka_meta.records.encoder import EncodedBatch
from pyspark_kafka_meta.records.record_batches import HEADER_BYTES
from pyspark_kafka_meta.transactions.log_reader import LogReader


class WrittenRecords:
    """The records that tasks wrote in transactions."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._log = LogReader(client)

    def is_committed(self, transaction: OpenTransaction, deadline: float) -> bool:
        """Whether the marker behind the transaction's records, in any of its partitions, commits them. Waits for the
        marker if the transaction is just ending.

        Raises:
            DataLossError: no log has a marker behind its records, or has it by `deadline`.
        """
        for written in transaction.written:
            with suppress(DataLossError, UnknownTopicError):
                return self._is_committed(transaction, written, deadline)
        raise DataLossError(
            f"nobody knows whether the transaction {transaction.transactional_id} was committed: no marker follows its "
            f"records. {_advice(transaction)}"
        )

    def _is_committed(self, transaction: OpenTransaction, written: WrittenOffsets, deadline: float) -> bool:
        partition, next_offset = TopicPartition(written.topic, written.partition), written.until_offset
        failures = 0
        while True:
            until_offset = self._log.end_offset(partition)
            for fetched in self._log.batches(partition, next_offset, until_offset):
                (header,) = fetched.headers
                is_marker = header.is_control and header.record_count
                if is_marker and header.producer_id == transaction.producer.producer_id:
                    return not is_abort_marker(header, fetched.records)
            next_offset = max(next_offset, until_offset)
            failures += 1
            if self._client.clock() >= deadline:
                raise DataLossError(f"{partition} has no marker after offset {written.until_offset}")
            self._client.sleep(min(self._client.backoff_s(failures), max(deadline - self._client.clock(), 0)))

    def copies(self, transaction: OpenTransaction) -> Iterator[tuple[TopicPartition, EncodedBatch]]:
        """The transaction's record batches, for another producer, in the order of the log in each partition.

        Raises:
            DataLossError: the log does not hold all its records any more.
        """
        for written in transaction.written:
            partition, records = TopicPartition(written.topic, written.partition), 0
            with suppress(DataLossError, UnknownTopicError):  # told below
                for fetched in self._log.batches(partition, written.from_offset, written.until_offset):
                    (header,) = fetched.headers
                    is_written = (header.producer_id, header.producer_epoch) == transaction.producer
                    if is_written and not header.is_control and header.record_count == header.last_offset_delta + 1:
                        records += header.record_count
                        yield partition, _copy(fetched)
            if records != written.records:
                raise DataLossError(_incomplete(written, records, transaction))


def _copy(fetched: FetchedRecords) -> EncodedBatch:
    """The compressed records as they are: the header alone names their producer."""
    (header,) = fetched.headers
    payload = bytes(fetched.records[header.position + HEADER_BYTES : header.end])
    return EncodedBatch(
        partition=fetched.partition.partition,
        rows=np.arange(header.record_count, dtype=np.int32),
        payload=payload,
        records_bytes=len(payload),
        compression=Compression(header.codec),
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
    )


def _incomplete(written: WrittenOffsets, found: int, transaction: OpenTransaction) -> str:
    return (
        f"{written.records - found} of {written.records} records of a decided batch are gone from "
        f"{written.topic}-{written.partition}, offsets {written.from_offset} to {written.until_offset}: retention, "
        f"compaction or somebody has removed them after their transaction timed out. {_advice(transaction)}"
    )


def _advice(transaction: OpenTransaction) -> str:
    ranges = ", ".join(
        f"{each.topic}-{each.partition} {each.from_offset} to {each.until_offset}" for each in transaction.written
    )
    return (
        f"Its records are at {ranges}. The batch cannot become whole any more. With a new kafka.transactional.id it is "
        "written again, also the part that is visible; to prevent this, restart queries within the retention of their "
        "topics"
    )
