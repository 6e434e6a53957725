"""Reads the offset ranges of one task: cursors, the worker's client, and one Fetch under way to each leader.

The next Fetch is sent before the records of the last answer are decoded, so that the broker and the network work
while Python does. Several partitions that one leader holds share a Fetch. Nothing waits longer than the poll time-out
without progress.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark_kafka_meta.errors import (
    ConnectError,
    KafkaMetaError,
    ProtocolError,
    ReadTimeoutError,
    RequestTimeoutError,
)
from pyspark_kafka_meta.metadata.events import RefreshReason
from pyspark_kafka_meta.metadata.model import Broker
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.reading.client import KafkaClient
from pyspark_kafka_meta.reading.cursor import (
    Emit,
    Fail,
    Instruction,
    Lost,
    NothingMore,
    OutOfRange,
    PartitionCursor,
    ReadFrom,
    Refresh,
    Wait,
)
from pyspark_kafka_meta.reading.losses import LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION, Losses
from pyspark_kafka_meta.reading.offsets import OffsetRange
from pyspark_kafka_meta.reading.replicas import LEADER, ReadSource
from pyspark_kafka_meta.records.columns import FetchedRecords, decode
from pyspark_kafka_meta.wire.codes import describe
from pyspark_kafka_meta.wire.messages import (
    FetchAnswer,
    FetchFailure,
    FetchRequest,
    LeaderHint,
)

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

UNKNOWN_SERVER_ERROR = -1
OVERDUE_MS = 2_000
"""So long after the time that a broker may park a Fetch it is suspected to hang, and another is asked who leads now."""


class _FetchUnderWay(NamedTuple):
    broker: Broker
    generation: int
    cursors: list[PartitionCursor]
    sent_at: float
    overdue_at: float


class TaskReader:
    """Turns offset ranges into `pa.RecordBatch`es of a few megabytes at most."""

    def __init__(self, client: KafkaClient, options: SourceOptions, columns: Sequence[str]) -> None:
        self._client = client
        self._options = options
        self._columns = columns
        self._cursors: list[PartitionCursor] = []
        self._losses = Losses(client, options.fail_on_data_loss)
        self._under_way: dict[int, _FetchUnderWay] = {}
        self._last_progress = 0.0
        self._failures: dict[PartitionCursor, KafkaMetaError] = {}

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """The rows of `ranges`, in the order of offsets within each partition.

        Raises:
            DataLossError: records of a range are gone and failOnDataLoss is set.
            ReadTimeoutError: no progress within the poll time-out.
            ConnectError: no broker of the cluster answered at all.
            BrokerError, CorruptBatchError, UnsupportedRecordFormatError: a broker refused, or its records are
            unreadable.
        """
        client = self._options.client
        read_committed = client.read_committed
        self._cursors = [
            PartitionCursor(one, read_committed, client.max_partition_fetch_bytes, client.check_crcs) for one in ranges
        ]
        self._prepare_cache({one.partition.topic for one in ranges})
        try:
            while self._cursors:
                # Counted anew after each yield: the time that Spark takes for the rows is not a stall.
                self._last_progress = time.monotonic()
                records = self._next_records()
                if records:
                    yield from decode(records, self._columns)
        finally:
            for node_id in self._under_way:
                self._client.wire.drop_fetch(node_id)

    def _prepare_cache(self, topics: set[str]) -> None:
        cache = self._client.cache
        cache.track(topics)
        if any(not cache.snapshot.partitions(one) and cache.snapshot.topic_error(one) is None for one in topics):
            cache.refresh(RefreshReason.NEW_TOPIC, self._client.api_deadline())

    def _next_records(self) -> list[FetchedRecords]:
        """Wait for an answer with records. When it comes, the next Fetch is on its way before this returns."""
        while self._cursors:
            self._client.cache.refresh_if_due(self._stalls_at())
            self._send_fetches()
            if not self._cursors:
                break  # what was left is lost
            answer = self._client.wire.receive_fetch(self._under_way.keys(), self._wake_up_at())
            if answer is None:
                self._pause()
                self._leave_hung_brokers()
                continue
            records = self._absorb(answer)
            self._send_fetches()
            if records:
                return records
        return []

    def _stalls_at(self) -> float:
        waiting_since = max(self._last_progress, self._client.throttles.latest())
        return waiting_since + self._options.poll_timeout_ms / 1000

    def _wake_up_at(self) -> float:
        """When something other than an answer is to be done: a refresh, a fetch after a pause, a look at one that is
        overdue, giving up."""
        now = time.monotonic()
        next_update = now + self._client.cache.time_to_next_update_ms() / 1000
        next_look = now + self._options.client.retry_backoff_ms / 1000
        pauses = [cursor.not_before for cursor in self._cursors if cursor.not_before > now]
        looks = [max(fetch.overdue_at, next_look) for fetch in self._under_way.values()]
        return min(self._stalls_at(), next_update, *pauses, *looks)

    def _pause(self) -> None:
        """No answer came. Sleeps only where no Fetch is under way, as nothing else would wait then."""
        now = time.monotonic()
        if now >= self._stalls_at():
            raise self._stalled()
        if not self._under_way:
            time.sleep(max(self._wake_up_at() - now, 0))

    def _leave_hung_brokers(self) -> None:
        """Ask who leads while a Fetch is overdue, and take from it the partitions that others lead by now."""
        cache, now = self._client.cache, time.monotonic()
        for node_id, fetch in list(self._under_way.items()):
            if now < fetch.overdue_at:
                continue
            leaders = [(cursor, cache.snapshot.leader(cursor.range.partition)) for cursor in fetch.cursors]
            for cursor in fetch.cursors:
                if cursor.asked_follower:
                    self._client.replicas.choose(cursor.range.partition, LEADER, now)
            fetch.cursors[:] = [cursor for cursor, one in leaders if one is None or one.broker == fetch.broker]
            if fetch.cursors:
                cache.request_update(RefreshReason.REQUEST_TIMEOUT, cache.snapshot.generation, node_id=node_id)
            else:
                self._client.wire.drop_fetch(node_id)
                del self._under_way[node_id]

    def _stalled(self) -> ReadTimeoutError:
        cursor = max(self._cursors, key=lambda one: one.trouble != 0 or one in self._failures)
        failure = str(self._failures.get(cursor, "the brokers send no records"))
        trouble = describe(cursor.trouble) if cursor.trouble else failure
        return ReadTimeoutError(
            f"no progress in {self._options.poll_timeout_ms} ms reading {cursor.range.partition} at offset "
            f"{cursor.position} (of {cursor.range.from_offset} to {cursor.range.until_offset}): {trouble}. If brokers "
            "are merely slow, raise kafkaConsumer.pollTimeoutMs"
        )

    def _send_fetches(self) -> None:
        """One Fetch to each broker that has none under way, for all partitions that are read from it."""
        generation, now = self._client.cache.snapshot.generation, time.monotonic()
        busy = {cursor for fetch in self._under_way.values() for cursor in fetch.cursors}
        groups: dict[Broker, list[tuple[PartitionCursor, ReadSource]]] = {}
        for cursor in [one for one in self._cursors if one not in busy and one.is_ready(generation, now)]:
            leader = self._client.cache.leader(cursor.range.partition)
            if leader is None:
                self._ask_for_leader(cursor, generation)
            if self._losses.is_gone(cursor, now):
                self._cursors.remove(cursor)
            if cursor.done or leader is None:
                continue
            brokers = self._client.cache.snapshot.brokers
            source = self._client.replicas.source(cursor.range.partition, leader, brokers, now)
            cursor.not_before = self._client.throttles.until(source.broker.node_id)
            if cursor.not_before <= now and source.broker.node_id not in self._under_way:
                groups.setdefault(source.broker, []).append((cursor, source))
        for broker, members in groups.items():
            self._send_fetch(broker, members, generation)

    def _send_fetch(
        self, broker: Broker, members: Sequence[tuple[PartitionCursor, ReadSource]], generation: int
    ) -> None:
        options, now = self._options.client, time.monotonic()
        overdue_at = now + (options.fetch_max_wait_ms + OVERDUE_MS) / 1000
        fetch = _FetchUnderWay(broker, generation, [cursor for cursor, _ in members], now, overdue_at)
        request = FetchRequest(
            partitions=tuple(
                cursor.request(cursor.range.topic_id, source.leader_epoch, source.is_follower)
                for cursor, source in members
            ),
            max_wait_ms=options.fetch_max_wait_ms,
            min_bytes=options.fetch_min_bytes,
            max_bytes=options.fetch_max_bytes,
            read_committed=options.read_committed,
            rack=options.client_rack if all(source.tells_rack for _, source in members) else "",
        )
        deadline = now + (options.fetch_max_wait_ms + options.request_timeout_ms) / 1000
        try:
            self._client.wire.send_fetch(broker, request, deadline)
            self._under_way[broker.node_id] = fetch
        except (ConnectError, ProtocolError, RequestTimeoutError) as error:
            self._fetch_failed(FetchFailure(broker.node_id, error), fetch)

    def _absorb(self, answer: FetchAnswer | FetchFailure) -> list[FetchedRecords]:
        """Feed an answer to its cursors and do what they say. Cursors that got records go to the end of the line,
        because a broker fills its answer in the order of the request."""
        fetch = self._under_way.pop(answer.node_id)
        if isinstance(answer, FetchFailure):
            self._fetch_failed(answer, fetch)
            return []
        if answer.throttle_ms > 0:
            self._client.throttles.throttle(answer.node_id, answer.throttle_ms, time.monotonic())
            self._client.cache.count_throttle(answer.throttle_ms)
        fetched = {one.partition: one for one in answer.partitions}
        answer_is_empty = answer.throttle_ms == 0 and not any(one.records for one in answer.partitions)
        instructions: list[tuple[PartitionCursor, Instruction, LeaderHint | None]] = []
        for cursor in fetch.cursors:
            self._failures.pop(cursor, None)
            one = fetched.get(cursor.range.partition)
            if one is not None:
                instructions.append((cursor, cursor.on_fetched(one, answer_is_empty), one.leader_hint))
            else:
                instructions.append((cursor, cursor.on_error(answer.error_code or UNKNOWN_SERVER_ERROR), None))
        records: list[FetchedRecords] = []
        moved_nothing = not any(isinstance(instruction, Emit) for _, instruction, _ in instructions)
        for cursor, instruction, hint in instructions:
            if moved_nothing and instruction == Wait():
                # A broker parks a Fetch that finds nothing. One that answers at once, with what the reader has already
                # or with the same truncation again, must not be asked all the time.
                cursor.not_before = fetch.sent_at + self._options.client.retry_backoff_ms / 1000
            records.extend(self._carry_out(cursor, instruction, fetch.generation, answer.node_id, hint))
        served = {one.partition for one in records}
        self._cursors.sort(key=lambda cursor: cursor.range.partition in served)
        self._cursors = [cursor for cursor in self._cursors if not cursor.done]
        return records

    def _carry_out(
        self,
        cursor: PartitionCursor,
        instruction: Instruction,
        generation: int,
        node_id: int,
        hint: LeaderHint | None = None,
    ) -> list[FetchedRecords]:
        match instruction:
            case Emit(records):
                self._last_progress = time.monotonic()
                return [records]
            case Refresh():
                self._refresh(cursor, instruction, generation, node_id, hint)
            case Wait(error_code):
                if error_code:
                    self._pause_cursor(cursor)
            case ReadFrom(replica_id):
                self._read_from(cursor, replica_id)
            case OutOfRange() | NothingMore():
                self._carry_out(
                    cursor, self._losses.confirm(cursor, instruction, time.monotonic()), generation, node_id
                )
            case Lost():
                self._losses.accept(cursor, instruction)
            case Fail(error):
                raise error
        return []

    def _refresh(
        self, cursor: PartitionCursor, wish: Refresh, generation: int, node_id: int, hint: LeaderHint | None
    ) -> None:
        """Take the leader that the broker named (KIP-951); otherwise wait for metadata."""
        hinted = hint is not None and self._client.cache.take_hint(
            cursor.range.partition, hint.leader_id, hint.leader_epoch, hint.broker, generation
        )
        if not hinted:
            self._ask_again(cursor, wish.reason, generation, wish.error_code, node_id)

    def _read_from(self, cursor: PartitionCursor, replica_id: int) -> None:
        if self._client.replicas.choose(cursor.range.partition, replica_id, time.monotonic()):
            self._pause_cursor(cursor)

    def _pause_cursor(self, cursor: PartitionCursor) -> None:
        cursor.not_before = time.monotonic() + self._options.client.retry_backoff_ms / 1000

    def _ask_for_leader(self, cursor: PartitionCursor, generation: int) -> None:
        """Nobody is known to lead the partition: the last metadata says why."""
        partition, snapshot = cursor.range.partition, self._client.cache.snapshot
        is_known = partition in snapshot.partitions(partition.topic)
        code = LEADER_NOT_AVAILABLE if is_known else UNKNOWN_TOPIC_OR_PARTITION
        instruction = cursor.on_error(snapshot.topic_error(partition.topic) or code)
        if isinstance(instruction, Fail):
            raise instruction.error
        reason = instruction.reason if isinstance(instruction, Refresh) else RefreshReason.NO_LEADER
        self._ask_again(cursor, reason, generation, cursor.trouble)

    def _ask_again(
        self,
        cursor: PartitionCursor,
        reason: RefreshReason,
        generation: int,
        error_code: int = 0,
        node_id: int | None = None,
    ) -> None:
        """The cursor waits for a newer cache than the one that led to the trouble."""
        cursor.newer_than = generation
        self._client.cache.request_update(
            reason, generation, partition=cursor.range.partition, error_code=error_code, node_id=node_id
        )

    def _fetch_failed(self, failure: FetchFailure, fetch: _FetchUnderWay) -> None:
        self._client.report_failure(failure.error, fetch.generation, failure.node_id)
        for cursor in fetch.cursors:
            self._failures[cursor] = failure.error
            cursor.trouble = 0
            if cursor.asked_follower:
                self._read_from(cursor, LEADER)
            else:
                cursor.newer_than = fetch.generation
