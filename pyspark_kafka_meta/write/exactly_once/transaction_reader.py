"""Reads from the log how a transaction ended that its coordinator does not know any more, and its records.
`LogReader` reads record batches as a partition's log holds them, with their producers and markers.

The records of an aborted transaction stay in the log, invisible to read_committed readers, until retention or
compaction removes them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

import numpy as np

from pyspark_kafka_meta.errors import (
    ConnectError,
    CorruptBatchError,
    DataLossError,
    KafkaMetaError,
    NoLeaderError,
    ReadTimeoutError,
    UnknownTopicError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from pyspark_kafka_meta.kafka.protocol.transactions import OPEN_STATES
from pyspark_kafka_meta.kafka.records.batches import HEADER_BYTES, is_abort_marker
from pyspark_kafka_meta.kafka.records.compression import Compression
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords
from pyspark_kafka_meta.kafka.records.encoder import EncodedBatch
from pyspark_kafka_meta.model import (
    LeaderAndEpoch,
    OffsetRange,
    OpenTransaction,
    ProducerIdAndEpoch,
    RefreshReason,
    TopicPartition,
    TransactionSpan,
    name_partitions,
)
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


MAY_BE_READ_LATER = (ConnectError, NoLeaderError, ReadTimeoutError)
"""Errors of a log, whose partition may have a leader later."""

COORDINATOR_S = 5.0
"""Maximum wait for the state of a transaction, which may not be needed."""


@dataclass(slots=True)
class _Search:
    """For the marker of a transaction in one of its partitions.

    Attributes:
        next_offset: after what was read.
        leader: that another broker named too. A leader that was replaced may not know it, and its log has no marker.
        is_lost: whether the log is gone, or starts after `next_offset`.
        error: why the log was not read up to its end.
    """

    partition: TopicPartition
    next_offset: int
    leader: LeaderAndEpoch | None = None
    is_lost: bool = False
    error: KafkaMetaError | None = None


class Copy(NamedTuple):
    """A record batch for another producer, in the partition that it was read from.

    Attributes:
        left: what the transaction wrote to this partition after the batch.
    """

    partition: TopicPartition
    batch: EncodedBatch
    left: TransactionSpan


class TransactionReader:
    """Reads the markers and the records of transactions that tasks wrote."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._log = LogReader(client)

    def is_committed(self, transaction: OpenTransaction, deadline: float) -> bool:
        """Whether the marker after the transaction's records, in any of its partitions, commits them. Waits for the
        marker if the transaction is just ending.

        Raises:
            DataLossError: no marker can come any more: all logs are gone or start after its records, or by `deadline`
                all markers were written and no log has one, at leaders that two brokers name.
            ConnectError: no log has a marker by `deadline`, but one may come later.
            KafkaMetaError: a log cannot be read.
        """
        searches = [
            _Search(TopicPartition(each.topic, each.partition), each.until_offset) for each in transaction.written
        ]
        for rounds in itertools.count(1):
            is_open = self._is_open(transaction)  # before the logs are read: a marker may come in between
            read_until = deadline if is_open else math.inf  # a marker that was written is found, however far it is
            for search in searches:
                is_committed = self._go_on(search, transaction.producer, read_until, rounds)
                if is_committed is not None:
                    return is_committed
            searches = [search for search in searches if not search.is_lost]
            errors = [search.error for search in searches if search.error is not None]
            for error in errors:
                if not isinstance(error, MAY_BE_READ_LATER):
                    raise error
            is_late, leader = self._client.clock() >= deadline, self._client.cache.snapshot.leader
            is_confirmed = all(search.leader == leader(search.partition) for search in searches)
            if not searches or (is_late and is_open is False and is_confirmed and not errors):
                break
            if is_late:
                raise _not_known_yet(transaction, searches, errors)
            self._client.cache.refresh(RefreshReason.ON_DEMAND, deadline)  # a leader may have been deposed
            self._client.sleep(min(self._client.backoff_s(rounds), max(deadline - self._client.clock(), 0)))
        raise DataLossError(
            f"nobody knows whether the transaction {transaction.transactional_id} was committed: no marker follows its "
            f"records. {_advice(transaction)}"
        )

    def _is_open(self, transaction: OpenTransaction) -> bool | None:
        """Whether the coordinator has markers of this id to write; None if it does not say. It does not know an id that
        it has forgotten long after the markers, or lost."""
        deadline = self._client.clock() + COORDINATOR_S
        try:
            described = self._client.coordinators.describe_transactions([transaction.transactional_id], deadline)
        except (UnsupportedBrokerError, ConnectError):  # before Kafka 3.0, or away
            return None
        return any(each.state in OPEN_STATES for each in described)

    def _go_on(self, search: _Search, producer: ProducerIdAndEpoch, deadline: float, leader_s: float) -> bool | None:
        """Read on, to the marker or the end of the log. Returns whether the marker commits; None without a marker.

        Args:
            leader_s: maximum wait for the leader: other partitions wait too.
        """
        search.error = None
        snapshot = self._client.cache.snapshot
        if snapshot.is_leader_confirmed(search.partition):
            search.leader = snapshot.leader(search.partition)
        try:
            end = self._log.end_offset(search.partition, min(deadline, self._client.clock() + leader_s))
            for fetched in self._log.batches(search.partition, search.next_offset, end):
                (header,) = fetched.headers
                is_marker = header.is_control and header.record_count > 0 and header.producer_id == producer.producer_id
                if is_marker and header.producer_epoch >= producer.epoch:  # the next if its end raised the epoch
                    return not is_abort_marker(header, fetched.records)
                search.next_offset = header.last_offset + 1
                if self._client.clock() >= deadline:
                    raise ConnectError(f"{search.partition} was read up to offset {search.next_offset} of {end}")
            search.next_offset = max(search.next_offset, end)
        except (DataLossError, UnknownTopicError):
            search.is_lost = True
        except KafkaMetaError as error:  # other partitions have a marker, too
            search.error = error
        return None

    def copies(self, transaction: OpenTransaction) -> Iterator[Copy]:
        """The transaction's record batches: one partition after the other, each in the order of its log. Raises
        DataLossError: the log does not hold all its records any more."""
        for written in transaction.written:
            partition, left = TopicPartition(written.topic, written.partition), written
            with suppress(DataLossError, UnknownTopicError):  # told below
                for fetched in self._log.batches(partition, written.from_offset, written.until_offset):
                    (header,) = fetched.headers
                    is_written = (header.producer_id, header.producer_epoch) == transaction.producer
                    if is_written and not header.is_control and header.record_count == header.last_offset_delta + 1:
                        records = left.records - header.record_count
                        left = left._replace(from_offset=header.last_offset + 1, records=records)
                        yield Copy(partition, _copy(fetched), left)
            if left.records != 0:
                raise DataLossError(_incomplete(written, left.records, transaction))


def not_copied(transaction: OpenTransaction, last: Copy) -> OpenTransaction:
    """What is left of a transaction after this copy; nothing written if it was the last."""
    at = next(at for at, written in enumerate(transaction.written) if TopicPartition(*written[:2]) == last.partition)
    left = (last.left,) if last.left.records else ()
    return transaction._replace(written=left + transaction.written[at + 1 :])


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
        is_copy=True,
    )


def _incomplete(written: TransactionSpan, missing: int, transaction: OpenTransaction) -> str:
    return (
        f"{missing} of {written.records} records of a decided batch are gone from "
        f"{written.topic}-{written.partition}, offsets {written.from_offset} to {written.until_offset}: retention, "
        f"compaction or somebody has removed them after their transaction timed out. {_advice(transaction)}"
    )


def _not_known_yet(
    transaction: OpenTransaction, searches: Sequence[_Search], errors: Sequence[KafkaMetaError]
) -> ConnectError:
    partitions = name_partitions([search.partition for search in searches])
    return ConnectError(
        f"it is not known yet whether the transaction {transaction.transactional_id} of a decided batch was committed: "
        f"no marker follows its records in {partitions}{f' ({errors[0]})' if errors else ''}. Nothing is lost: start "
        "the query again when these partitions have a leader and min.insync.replicas replicas in sync"
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
