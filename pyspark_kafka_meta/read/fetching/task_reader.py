"""`TaskReader`: reads the offset ranges of one task, in a loop that sends Fetches and decodes their records.

The next Fetch is sent before the records of the last response are decoded, so that broker and network work while Python
does. Partitions with the same leader share a Fetch.

Measured: reading 3 million records of 200 bytes takes one core 0.5 s, some three fifths of it in `records`. It took a
fifth longer when the protocol library copied the records out of each response, and each response lay in new memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import CorruptBatchError, KafkaMetaError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.client.leader_requests import Received
from pyspark_kafka_meta.kafka.protocol.fetch import FetchResponse
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, Selection, decode
from pyspark_kafka_meta.kafka.records.reusable_buffer import ReusableBuffer
from pyspark_kafka_meta.model import OffsetRange, RefreshReason, TopicEpoch, TopicPartition
from pyspark_kafka_meta.options import ReadOptions
from pyspark_kafka_meta.read.fetching.fetch_sender import FetchSender, SentFetch, StallDetector
from pyspark_kafka_meta.read.fetching.lost_records import LostRecords
from pyspark_kafka_meta.read.fetching.partition_cursor import PartitionCursor
from pyspark_kafka_meta.read.planning.data_loss import DataLossPolicy

if TYPE_CHECKING:
    import pyarrow as pa

LAST_REFRESH_S = 0.1
"""How long an in-flight refresh is waited for at the end of a task, so that its event belongs to the task. The worker's
next task takes a later response."""


class TaskReader:
    """Turns offset ranges into `pa.RecordBatch`es of a few megabytes at most."""

    def __init__(
        self,
        client: KafkaClient,
        options: ReadOptions,
        columns: Sequence[str],
        policy: DataLossPolicy | None = None,
        selection: Selection | None = None,
    ) -> None:
        """`policy` is by default that of `options`."""
        self._client = client
        self._options = options
        self._columns = columns
        self._selection = selection
        self._cursors: list[PartitionCursor] = []
        self._lost_records = LostRecords(client, policy or DataLossPolicy(options))
        self._stalls = StallDetector(client.throttles, options.poll_timeout_ms)
        self._fetches = FetchSender(client, options.fetch, self._lost_records, self._stalls)
        self._memory = ReusableBuffer()

    def read(self, ranges: Sequence[OffsetRange], topics: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """The rows of `ranges`, in the order of offsets within each partition.

        Args:
            topics: of the whole query, requested along with those of `ranges`: later tasks of this worker read them,
                and thousands of caches would request them again in each micro-batch.

        Raises:
            DataLossError: records of a range are lost and failOnDataLoss is true.
            ReadTimeoutError: a partition made no progress within kafkaConsumer.pollTimeoutMs.
            ConnectError: no broker of the cluster responded.
            BrokerError, CorruptBatchError, UnsupportedRecordFormatError: a broker refused the read, or the records
                cannot be decoded.
        """
        for fetch, records in self._fetched(ranges, topics):
            left_at = self._client.clock()
            yield from self._rows(fetch, records)
            self._stalls.exclude(self._client.clock() - left_at)
            del records

    def read_record_batches(self, ranges: Sequence[OffsetRange]) -> Iterator[FetchedRecords]:
        """The record batches that `ranges` are in, as brokers store them, with control batches. Each is valid until the
        next. Raises as `read`."""
        for _, records in self._fetched(ranges, ()):
            left_at = self._client.clock()
            yield from records
            self._stalls.exclude(self._client.clock() - left_at)
            del records

    def _fetched(
        self, ranges: Sequence[OffsetRange], topics: Collection[str]
    ) -> Iterator[tuple[SentFetch, list[FetchedRecords]]]:
        """The responses with records, of which the caller has no reference left when it asks for the next: it reuses
        their memory."""
        fetch = self._options.fetch
        self._cursors = [
            PartitionCursor(planned, fetch.read_committed, fetch.max_partition_fetch_bytes, fetch.check_crcs)
            for planned in ranges
        ]
        self._prepare_cache(ranges, topics)
        try:
            while self._cursors:
                received = self._next_records()
                if received is not None:
                    yield received
                    del received  # so that the next response can reuse its memory
            now = self._client.clock()
            with suppress(KafkaMetaError):  # all rows were read
                self._client.cache.refresh_if_due(deadline=now, until=now + LAST_REFRESH_S)
        finally:
            self._fetches.abandon_all()

    def _prepare_cache(self, ranges: Sequence[OffsetRange], others: Collection[str]) -> None:
        """Wait only for the topics of `ranges`. A refused topic is requested again: it may be allowed now."""
        cache, topics = self._client.cache, {planned.partition.topic for planned in ranges}
        cache.raise_epochs(
            {
                planned.partition: TopicEpoch(planned.topic_id, planned.leader_epoch)
                for planned in ranges
                if planned.topic_id is not None
            }
        )
        cache.track(topics.union(others))
        if not all(map(cache.snapshot.partitions, topics)):
            cache.refresh(RefreshReason.NEW_TOPIC, self._client.api_deadline())

    def _rows(self, fetch: SentFetch, records: list[FetchedRecords]) -> Iterator[pa.RecordBatch]:
        """Yields rows per partition up to a corrupt batch; the rest is refetched."""
        while records:
            try:
                max_bytes = self._options.max_decompressed_batch_bytes
                yield from decode(records, self._columns, max_bytes, self._memory, self._selection)
                return
            except CorruptBatchError as error:
                corrupt = (error.topic, error.partition)
                index = next(index for index, fetched in enumerate(records) if fetched.partition == corrupt)
                self._refetch(fetch, records[index].partition, error)
                records = records[index + 1 :]

    def _refetch(self, fetch: SentFetch, partition: TopicPartition, error: CorruptBatchError) -> None:
        cursor = next(cursor for cursor in fetch.members if cursor.range.partition == partition)
        self._fetches.forget(cursor)
        self._fetches.carry_out(cursor, cursor.on_undecodable(error), fetch)
        self._cursors = [other for other in self._cursors if other is not cursor] + [cursor] * (not cursor.done)

    def _next_records(self) -> tuple[SentFetch, list[FetchedRecords]] | None:
        """Wait for a response with records; the next Fetch is sent before this returns. None if the rest is lost."""
        while self._cursors:
            # One look: with another for the pause, a Fetch that comes due in between is neither sent nor waited for.
            now = self._client.clock()
            self._client.cache.refresh_if_due(deadline=math.inf, until=now)
            received = self._fetches.receive_overdue(now)
            if received is None:
                self._send_fetches(now)
                if not self._cursors:
                    break  # the rest is lost
                self._stalls.watch(self._cursors, now)
                self._fail_if_stalled(now, may_have_responses=True)
                received = self._receive(
                    now, min(self._stalls.stalls_at(), self._fetches.wake_up_at(self._cursors, now))
                )
            if received is None:
                self._fail_if_stalled(now)
                continue
            (fetch,) = received.sent
            records = self._fetches.handle(fetch, received.response)
            # Partitions that got records go last in the next Fetch: a broker fills its response in the request's order.
            served = {fetched.partition for fetched in records}
            self._cursors.sort(key=lambda cursor: cursor.range.partition in served)
            self._cursors = [cursor for cursor in self._cursors if not cursor.done]
            self._send_fetches(self._client.clock())
            if records:
                return fetch, records
        return None

    def _receive(self, now: float, until: float) -> Received[PartitionCursor, FetchResponse] | None:
        """As `FetchSender.receive`. If the process did not run when the wait ended, the delay is no stall: the
        Fetches that were due meanwhile are yet to be sent."""
        received = self._fetches.receive(until)
        if received is None:
            self._stalls.exclude(max(self._client.clock() - max(until, now), 0))
        return received

    def _fail_if_stalled(self, now: float, may_have_responses: bool = False) -> None:
        """Fail even if other partitions progress, but not before a response that has arrived is read: Fetches that are
        not overdue may have one, unless nothing came since `now`."""
        if now >= self._stalls.stalls_at():
            unread = self._fetches.cursors(not_overdue_at=now) if may_have_responses else ()
            stalled = [cursor for cursor in self._stalls.stalled(now) if cursor not in unread]
            if stalled:
                raise self._stalls.timeout_error(stalled, self._client.cache.snapshot)

    def _send_fetches(self, now: float) -> None:
        """Fetch for all cursors that are ready, not in flight, and have a leader."""
        generation = self._client.cache.snapshot.generation
        leaders, in_flight = {}, self._fetches.cursors()
        ready = [cursor for cursor in self._cursors if cursor.is_ready(generation, now) and cursor not in in_flight]
        for cursor in ready:
            leader = self._fetches.leader(cursor)
            if self._lost_records.skip_if_gone(cursor, now):
                self._cursors.remove(cursor)
            elif leader is not None:
                leaders[cursor] = leader
        self._fetches.send(leaders, generation, now)
        # The brokers of the others have an in-flight Fetch, which delays them.
        delayed = [cursor for cursor in leaders.keys() - self._fetches.cursors() if cursor.not_before <= now]
        self._stalls.restart(delayed, now)
