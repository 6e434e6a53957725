"""Reads the offset ranges of one task: the loop that sends Fetches, and does what cursors make of the answers.

The next Fetch is sent before the records of the last answer are decoded, so that the broker and the network work
while Python does. Several partitions that one leader holds share a Fetch.

Measured: reading 3 million records of 200 bytes takes a core 0.5 s, some three fifths of it in `records`. Reading took
a fifth longer when the protocol library copied the records out of each answer, and each answer lay in fresh memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark_kafka_meta.client.client_pool import ClientPool
from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.client.read_replicas import LEADER
from pyspark_kafka_meta.errors import CorruptBatchError, KafkaMetaError
from pyspark_kafka_meta.fetching.cursor_leaders import Leaders
from pyspark_kafka_meta.fetching.in_flight_fetches import Fetch, Fetches
from pyspark_kafka_meta.fetching.instructions import (
    Emit,
    Fail,
    Instruction,
    Lost,
    NothingMore,
    OutOfRange,
    ReadFrom,
    Refresh,
    Unreadable,
    Wait,
)
from pyspark_kafka_meta.fetching.lost_records import Losses
from pyspark_kafka_meta.fetching.partition_cursor import PartitionCursor
from pyspark_kafka_meta.fetching.stall import Progress
from pyspark_kafka_meta.kafka_errors import INCONSISTENT_TOPIC_ID, UNKNOWN_SERVER_ERROR
from pyspark_kafka_meta.metadata.cache import RETRIABLE_ERRORS
from pyspark_kafka_meta.model import LeaderHint, OffsetRange, RefreshReason, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.reused_memory import ReusedMemory
from pyspark_kafka_meta.wire.messages import FetchResponse, RequestFailure

if TYPE_CHECKING:
    import pyarrow as pa

LAST_REFRESH_S = 0.1
"""A refresh under way when a task ends is waited for this long, so that its event is the task's. The worker's next task
takes a later answer."""


class TaskReader:
    """Turns offset ranges into `pa.RecordBatch`es of a few megabytes at most."""

    def __init__(self, client: KafkaClient, options: SourceOptions, columns: Sequence[str]) -> None:
        self._client = client
        self._options = options
        self._columns = columns
        self._cursors: list[PartitionCursor] = []
        self._losses = Losses(client, options)
        self._leaders = Leaders(client.cache)
        self._fetches = Fetches(client)
        self._memory = ReusedMemory()
        self._progress = Progress(client.throttles, options.poll_timeout_ms)

    def read(self, ranges: Sequence[OffsetRange], topics: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """The rows of `ranges`, in the order of offsets within each partition.

        Args:
            topics: others of the query, to ask for along with those of `ranges`: later tasks of this worker will read
                them, and thousands of caches would ask again with each micro-batch.

        Raises:
            DataLossError: records of a range are gone and failOnDataLoss is set.
            ReadTimeoutError: a partition made no progress within the poll time-out.
            ConnectError: no broker of the cluster answered at all.
            BrokerError, CorruptBatchError, UnsupportedRecordFormatError: a broker refused, or its records are
            unreadable.
        """
        client = self._options.client
        read_committed = client.read_committed
        self._cursors = [
            PartitionCursor(one, read_committed, client.max_partition_fetch_bytes, client.check_crcs) for one in ranges
        ]
        self._prepare_cache({one.partition.topic for one in ranges}, topics)
        try:
            while self._cursors:
                received = self._next_records()
                if received is not None:
                    left_at = self._client.clock()
                    yield from self._rows(*received)
                    self._progress.resumed(self._client.clock() - left_at)
                    del received  # so that the next answer can reuse the memory of this one
            now = self._client.clock()
            with suppress(KafkaMetaError):  # all rows were read
                self._client.cache.refresh_if_due(deadline=now, until=now + LAST_REFRESH_S)
        finally:
            self._fetches.drop()

    def _prepare_cache(self, topics: set[str], others: Collection[str]) -> None:
        """Only what is read now is waited for. A topic that was refused is asked for again: it may be allowed now."""
        cache = self._client.cache
        cache.track(topics.union(others))
        if not all(map(cache.snapshot.partitions, topics)):
            cache.refresh(RefreshReason.NEW_TOPIC, self._client.api_deadline())

    def _rows(self, fetch: Fetch, records: list[FetchedRecords]) -> Iterator[pa.RecordBatch]:
        """Yields rows per partition up to a corrupt batch; the rest is refetched."""
        while records:
            try:
                yield from decode(records, self._columns, self._options.max_decompressed_batch_bytes, self._memory)
                return
            except CorruptBatchError as error:
                corrupt = (error.topic, error.partition)
                at = [(one.partition.topic, one.partition.partition) == corrupt for one in records].index(True)
                self._read_again(fetch, records[at].partition, error)
                records = records[at + 1 :]

    def _read_again(self, fetch: Fetch, partition: TopicPartition, error: CorruptBatchError) -> None:
        cursor = next(one for one in fetch.cursors if one.range.partition == partition)
        self._fetches.forget(cursor)
        self._carry_out(cursor, cursor.on_undecodable(error), fetch)
        self._cursors = [one for one in self._cursors if one is not cursor] + [cursor] * (not cursor.done)

    def _next_records(self) -> tuple[Fetch, list[FetchedRecords]] | None:
        """Wait for an answer with records. When it comes, the next Fetch is on its way before this returns."""
        while self._cursors:
            self._client.cache.refresh_if_due(deadline=math.inf, until=self._client.clock())
            received = self._fetches.receive_overdue()
            if received is None:
                self._send_fetches()
                if not self._cursors:
                    break  # what was left is lost
                self._progress.watch(self._cursors, self._client.clock())
                self._fail_if_stalled()
                received = self._fetches.receive(self._wake_up_at())
            if received is None:
                self._pause()
                continue
            records = self._absorb(*received)
            self._send_fetches()
            if records:
                return received[0], records
        return None

    def _wake_up_at(self) -> float:
        """When something other than an answer is to be done: a refresh, a fetch after a pause, a look at one that is
        overdue, giving up."""
        now = self._client.clock()
        next_update = now + self._client.cache.time_to_next_update_ms() / 1000
        next_look = now + self._client.backoff_s(1)
        pauses = [cursor.not_before for cursor in self._cursors if cursor.not_before > now]
        return min(self._progress.stalls_at(), next_update, *pauses, max(self._fetches.overdue_at(), next_look))

    def _fail_if_stalled(self) -> None:
        """Others may progress: no answer about a stalled partition has come, or it is early to look for one."""
        now = self._client.clock()
        if now >= self._progress.stalls_at():
            early = self._fetches.cursors(not_overdue_at=now)
            stalled = [cursor for cursor in self._progress.stalled(now) if cursor not in early]
            if stalled:
                raise self._progress.timed_out(stalled)

    def _pause(self) -> None:
        """No answer came. Sleeps only where nothing is under way, as nothing else would wait then."""
        now = self._client.clock()
        if now >= self._progress.stalls_at():
            raise self._progress.timed_out(self._progress.stalled(now))
        if not self._fetches and not self._client.cache.is_asking:
            self._client.sleep(max(self._wake_up_at() - now, 0))

    def _send_fetches(self) -> None:
        """For all cursors that are ready and have none under way, as far as somebody leads their partitions."""
        generation, now = self._client.cache.snapshot.generation, self._client.clock()
        leaders, busy = {}, self._fetches.cursors()
        for cursor in [one for one in self._cursors if one.is_ready(generation, now) and one not in busy]:
            leader = self._leaders.leader(cursor)
            if self._losses.give_up_if_gone(cursor, now):
                self._cursors.remove(cursor)
            elif leader is not None:
                leaders[cursor] = leader
        self._fetches.send(leaders, generation)
        # Their broker has a Fetch for others under way.
        self._progress.excuse([one for one in leaders.keys() - self._fetches.cursors() if one.not_before <= now], now)

    def _absorb(self, fetch: Fetch, answer: FetchResponse | RequestFailure) -> list[FetchedRecords]:
        """Feed an answer to its cursors and do what they say. Cursors that got records go to the end of the line,
        because a broker fills its answer in the order of the request."""
        if isinstance(answer, RequestFailure):
            self._fetch_failed(fetch, answer)
            return []
        self._client.cache.count_fetch(answer.node_id, answer.response_bytes, answer.throttle_ms)
        if answer.throttle_ms > 0:
            self._client.throttles.throttle(answer.node_id, answer.throttle_ms, self._client.clock())
        records: list[FetchedRecords] = []
        instructions = self._instructions(fetch, answer)
        moved_nothing = not any(isinstance(instruction, Emit) for _, instruction, _ in instructions)
        for cursor, instruction, hint in instructions:
            if moved_nothing and instruction == Wait():
                # A broker parks a Fetch that finds nothing. One that answers at once, with what the reader has already
                # or with the same truncation again, must not be asked all the time.
                cursor.not_before = fetch.sent_at + self._client.backoff_s(1)
            records.extend(self._carry_out(cursor, instruction, fetch, hint))
        if any(one.records for one in answer.partitions):
            # The first of a request gets its records before others. A place behind it may have no share of the answer.
            starved = [cursor for cursor in fetch.cursors[1:] if not cursor.trouble]
            self._progress.excuse(starved, self._client.clock())
        served = {one.partition for one in records}
        self._cursors.sort(key=lambda cursor: cursor.range.partition in served)
        self._cursors = [cursor for cursor in self._cursors if not cursor.done]
        return records

    def _instructions(
        self, fetch: Fetch, answer: FetchResponse
    ) -> list[tuple[PartitionCursor, Instruction, LeaderHint | None]]:
        """What each cursor makes of the answer, and the leader that came along."""
        fetched = {one.partition: one for one in answer.partitions}
        answer_is_empty = answer.throttle_ms == 0 and not any(one.records for one in answer.partitions)
        instructions: list[tuple[PartitionCursor, Instruction, LeaderHint | None]] = []
        for cursor in fetch.cursors:
            self._progress.answered(cursor)
            one = fetched.get(cursor.range.partition)
            if one is not None and not answer.by_id and self._losses.is_recreated(cursor.range):
                instructions.append((cursor, cursor.on_error(INCONSISTENT_TOPIC_ID), None))
            elif one is not None:
                instructions.append((cursor, cursor.on_fetched(one, answer_is_empty), one.leader_hint))
            elif answer.throttle_ms > 0 and answer.error_code == 0:
                instructions.append((cursor, Wait(), None))  # over quota: brokers name no partitions then
            else:
                instructions.append((cursor, cursor.on_error(answer.error_code or UNKNOWN_SERVER_ERROR), None))
        return instructions

    def _carry_out(
        self, cursor: PartitionCursor, instruction: Instruction, fetch: Fetch, hint: LeaderHint | None = None
    ) -> list[FetchedRecords]:
        match instruction:
            case Emit(records):
                cursor.failures = 0
                return [records]
            case Refresh():
                self._client.cache.count_retry()
                self._leaders.refresh(cursor, instruction, fetch.generation, fetch.broker.node_id, hint)
            case Wait(error_code):
                if error_code:
                    self._client.cache.count_retry()
                    self._pause_cursor(cursor)
            case ReadFrom(replica_id):
                self._read_from(cursor, replica_id)
            case OutOfRange() | NothingMore():
                asked_at = self._client.clock()
                confirmed = self._losses.confirm(cursor, instruction, asked_at)
                self._progress.resumed(self._client.clock() - asked_at, but=cursor)
                self._carry_out(cursor, confirmed, fetch)
            case Lost():
                self._losses.accept(cursor, instruction)
            case Unreadable():
                cursor.failures = 0
                self._losses.accept_corrupt(cursor, instruction)
            case Fail(error):
                raise error
        return []

    def _read_from(self, cursor: PartitionCursor, replica_id: int) -> None:
        if self._client.replicas.choose(cursor.range.partition, replica_id, self._client.clock()):
            self._pause_cursor(cursor)

    def _pause_cursor(self, cursor: PartitionCursor) -> None:
        cursor.failures += 1
        cursor.not_before = self._client.clock() + self._client.backoff_s(cursor.failures)

    def _fetch_failed(self, fetch: Fetch, failure: RequestFailure) -> None:
        if not isinstance(failure.error, RETRIABLE_ERRORS):
            raise failure.error
        self._client.cache.report_failure(failure.error, fetch.generation, failure.node_id)
        for cursor in fetch.cursors:
            self._progress.failed(cursor, failure.error)
            cursor.trouble = 0
            if cursor.asked_follower:
                self._read_from(cursor, LEADER)
            else:
                cursor.newer_than = fetch.generation


_pool = ClientPool()


def read_task(
    options: SourceOptions, ranges: Sequence[OffsetRange], topics: Collection[str], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of one Spark task, read with the client that this Python worker keeps between tasks."""
    from pyspark_kafka_meta.telemetry.event_origin import task_origin

    with _pool.client(options.client, options.metrics, task_origin()) as client:
        yield from TaskReader(client, options, columns).read(ranges, topics)
