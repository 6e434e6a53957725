"""`FetchSender`: sends the Fetches of a task, at most one in flight to each broker.

A Fetch is for all partitions that are read from its broker. The partitions of its response go to their cursors, and
what these want is carried out. Follows Kafka's `AbstractFetch`. `StallDetector` fails a task that makes no progress.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from pyspark_kafka_meta.errors import RETRIABLE_ERRORS, KafkaMetaError, ReadTimeoutError
from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.client.leader_requests import OVERDUE_MS, LeaderRequests, SentRequest
from pyspark_kafka_meta.kafka.client.next_request import (
    LEADER,
    MAX_THROTTLE_MS,
    BackOff,
    Fail,
    ReadSource,
    Refresh,
    Throttles,
)
from pyspark_kafka_meta.kafka.metadata.snapshot import MetadataSnapshot
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    INCONSISTENT_TOPIC_ID,
    LEADER_NOT_AVAILABLE,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    describe,
)
from pyspark_kafka_meta.kafka.protocol.fetch import FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords
from pyspark_kafka_meta.model import Broker, LeaderAndEpoch, LeaderHint, RefreshReason, is_other_topic
from pyspark_kafka_meta.options import FetchOptions
from pyspark_kafka_meta.read.fetching.lost_records import LostRecords
from pyspark_kafka_meta.read.fetching.partition_cursor import (
    CorruptBatch,
    Emit,
    EmptyResponses,
    Instruction,
    Lost,
    OutOfRange,
    PartitionCursor,
    ReadFrom,
)


class _Wait(NamedTuple):
    """The wait for records from `position`; `since` is in seconds of the caller's clock."""

    position: int
    since: float


class StallDetector:
    """Progress of the partitions of one task: a partition without any for kafkaConsumer.pollTimeoutMs fails it, even if
    others progress, and later while brokers throttle. Follows Spark's `KafkaDataConsumer`, which knows one partition.

    `now` is in seconds, of the clock that `throttles` uses.

    Attributes:
        failures: of partitions whose last Fetch got no response.
    """

    def __init__(self, throttles: Throttles, poll_timeout_ms: int) -> None:
        self._throttles = throttles
        self._poll_timeout_ms = poll_timeout_ms
        self._waits: dict[PartitionCursor, _Wait] = {}
        self.failures: dict[PartitionCursor, KafkaMetaError] = {}

    def watch(self, cursors: Collection[PartitionCursor], now: float) -> None:
        """Watch all cursors that are not done: a new position is progress."""
        before = self._waits
        self._waits = {
            cursor: wait
            if (wait := before.get(cursor)) is not None and wait.position == cursor.position
            else _Wait(cursor.position, now)
            for cursor in cursors
        }

    def restart(self, cursors: Collection[PartitionCursor], now: float) -> None:
        """Restart the wait of cursors that other partitions delayed."""
        self._waits.update((cursor, _Wait(cursor.position, now)) for cursor in cursors)

    def exclude(self, elapsed_s: float, except_for: Collection[PartitionCursor] = ()) -> None:
        """Do not count the time that Spark took for rows, or that a request about the partitions `except_for` took."""
        self._waits = {
            cursor: wait if cursor in except_for else wait._replace(since=wait.since + elapsed_s)
            for cursor, wait in self._waits.items()
        }

    def stalls_at(self) -> float:
        """When the first partition stalls."""
        return self._stalls_at(min(since for _, since in self._waits.values()))

    def stalled(self, now: float) -> list[PartitionCursor]:
        """Partitions without progress for too long."""
        return [cursor for cursor, (_, since) in self._waits.items() if now >= self._stalls_at(since)]

    def timeout_error(self, stalled: Collection[PartitionCursor], snapshot: MetadataSnapshot) -> ReadTimeoutError:
        """Names a partition that failed, if there is any. `snapshot`: the current metadata."""
        cursor = max(stalled, key=lambda cursor: cursor.last_error != 0 or cursor in self.failures)
        failure = str(self.failures.get(cursor, "the brokers send no records"))
        cause = snapshot.replaced_leader(cursor.partition) or (
            describe(cursor.last_error) if cursor.last_error else failure
        )
        return ReadTimeoutError(
            f"no progress in {self._poll_timeout_ms} ms reading {cursor.range.partition} at offset {cursor.position} "
            f"(of {cursor.range.from_offset} to {cursor.range.until_offset}): {cause}. If brokers or the network are "
            "merely slow, raise kafkaConsumer.pollTimeoutMs and kafka.request.timeout.ms, or lower "
            "kafka.fetch.max.bytes"
        )

    def _stalls_at(self, since: float) -> float:
        # Bounded: a broker that throttles again and again and sends no records must not delay the error forever.
        latest = since + MAX_THROTTLE_MS / 1000
        return max(since, min(self._throttles.latest(), latest)) + self._poll_timeout_ms / 1000


SentFetch: TypeAlias = SentRequest[PartitionCursor]

REPORT_AGE_S, MAX_REPORT_AGE_S = 0.2, 1.0
"""Before Kafka 3.1, a Fetch names topics, and only metadata of the same broker shows that a topic was recreated: other
brokers may lag behind. A client sends five such requests a second, or one to each broker."""
_REPORTS: WeakKeyDictionary[ClientState, dict[int, MetadataSnapshot]] = WeakKeyDictionary()
"""Of each client: the last metadata of each broker that was asked for its own, by node id."""


class FetchSender(LeaderRequests[PartitionCursor, FetchResponse]):
    def __init__(
        self, client: ClientState, options: FetchOptions, lost_records: LostRecords, stalls: StallDetector
    ) -> None:
        super().__init__(client, client.network.fetch)
        self._options = options
        self._lost_records = lost_records
        self._stalls = stalls
        self._replicas = client.replicas[options.client_rack]
        self._reports = _REPORTS.setdefault(client, {})

    # --- requests -----------------------------------------------------------------------------------------------------

    def cursors(self, not_overdue_at: float = -math.inf) -> set[PartitionCursor]:
        """Cursors in a Fetch that is not overdue at this time."""
        return {cursor for sent in self if sent.overdue_at > not_overdue_at for cursor in sent.members}

    def leader(self, cursor: PartitionCursor) -> LeaderAndEpoch | None:
        """The cached leader; if None, a metadata refresh was requested, and the cursor waits for it. Raises
        BrokerError: the partition may not be read."""
        cache, partition = self._client.cache, cursor.partition
        leader = cache.leader(partition)
        if leader is None:
            snapshot = cache.snapshot
            is_known = partition in snapshot.partitions(partition.topic)
            code = LEADER_NOT_AVAILABLE if is_known else UNKNOWN_TOPIC_OR_PARTITION
            instruction = cursor.on_no_leader(snapshot.topic_errors.get(partition.topic) or code)
            if isinstance(instruction, Fail):
                raise instruction.error
            reason = instruction.reason if isinstance(instruction, Refresh) else RefreshReason.NO_LEADER
            if snapshot.replaced_leader(partition):
                reason = RefreshReason.REPLACED_LEADER
            self.wait_for_leader(cursor, reason, cursor.last_error)
        return leader

    def send(self, leaders: Mapping[PartitionCursor, LeaderAndEpoch], generation: int, now: float) -> None:
        """Fetch from each broker without an in-flight Fetch; the cursors of other brokers wait for the response."""
        timeout_ms = self._options.fetch_max_wait_ms + self._client.options.request_timeout_ms
        for broker, members in self._by_broker(leaders, now).items():
            self._client.network.fetch.send(broker, self._request(members), now + timeout_ms / 1000)
            cursors = [cursor for cursor, _ in members]
            self.add(broker, cursors, generation, now, self._options.fetch_max_wait_ms + OVERDUE_MS)

    def _by_broker(
        self, leaders: Mapping[PartitionCursor, LeaderAndEpoch], now: float
    ) -> dict[Broker, list[tuple[PartitionCursor, ReadSource]]]:
        brokers = self._client.cache.snapshot.brokers
        groups: dict[Broker, list[tuple[PartitionCursor, ReadSource]]] = {}
        for cursor, leader in leaders.items():
            source = self._replicas.source(cursor.partition, leader, brokers, now)
            node_id = source.broker.node_id
            if not self.is_throttled(cursor, node_id, now) and self.count(node_id) == 0:
                groups.setdefault(source.broker, []).append((cursor, source))
        return groups

    def _request(self, members: Sequence[tuple[PartitionCursor, ReadSource]]) -> FetchRequest:
        options = self._options
        return FetchRequest(
            partitions=tuple(
                cursor.request(cursor.range.topic_id, source.leader_epoch, source.is_follower)
                for cursor, source in members
            ),
            max_wait_ms=options.fetch_max_wait_ms,
            min_bytes=options.fetch_min_bytes,
            max_bytes=options.fetch_max_bytes,
            read_committed=options.read_committed,
            rack=options.client_rack if all(source.sends_rack for _, source in members) else "",
        )

    def _give_up(self, node_id: int, now: float) -> None:
        """Take the partitions that have another leader by now from an overdue Fetch; request metadata for the rest."""
        (sent,) = self.of(node_id)
        leaders = [(cursor, self._client.cache.snapshot.leader(cursor.partition)) for cursor in sent.members]
        for cursor in sent.members:
            if cursor.asked_follower:
                self._replicas.choose(cursor.partition, LEADER, now)
        sent.members[:] = [cursor for cursor, leader in leaders if leader is None or leader.broker == sent.broker]
        if sent.members:
            self.suspect(node_id)
        else:
            self.abandon(node_id)

    def forget(self, cursor: PartitionCursor) -> None:
        """Ignore the response for this cursor: its Fetch requests the wrong offset."""
        for sent in self:
            sent.members[:] = [member for member in sent.members if member is not cursor]

    # --- responses ----------------------------------------------------------------------------------------------------

    def handle(self, fetch: SentFetch, response: FetchResponse | RequestFailure) -> list[FetchedRecords]:
        """Move the cursors of the Fetch. Raises KafkaMetaError: an error that is not retriable, or a loss that the
        options do not allow."""
        if isinstance(response, RequestFailure):
            self._on_failure(fetch, response)
            return []
        self._client.traffic.count_fetch(response.node_id, response.response_bytes, response.throttle_ms)
        self._client.take_throttle(response.node_id, response.throttle_ms)
        if self._needs_report(fetch, response):
            self._ask_for_report(fetch, response.node_id)
        records: list[FetchedRecords] = []
        instructions = self._instructions(fetch, response)
        moved_nothing = not any(isinstance(instruction, Emit) for _, instruction, _ in instructions)
        for cursor, instruction, hint in instructions:
            if moved_nothing and (instruction is None or isinstance(instruction, EmptyResponses)):
                # A broker parks a Fetch that finds no records. A broker that responds at once, because it may not wait,
                # with records that were read before, or with the same truncation again, must not be sent one Fetch
                # after the other.
                cursor.wait_until(fetch.sent_at + self._client.backoff_s(1))
            records.extend(self.carry_out(cursor, instruction, fetch, hint))
        if response.has_records:
            # The first partition of a request gets its records first; the response may have no room for the others.
            starved = [cursor for cursor in fetch.members[1:] if not cursor.last_error]
            self._stalls.restart(starved, self._client.clock())
        return records

    def _instructions(
        self, fetch: SentFetch, response: FetchResponse
    ) -> list[tuple[PartitionCursor, Instruction, LeaderHint | None]]:
        """The instruction of each cursor, with the leader that came along."""
        partitions = {fetched.partition: fetched for fetched in response.partitions}
        response_is_empty = response.throttle_ms == 0 and not response.has_records
        one_was_served = sum(1 for fetched in response.partitions if fetched.records) == 1
        instructions: list[tuple[PartitionCursor, Instruction, LeaderHint | None]] = []
        for cursor in fetch.members:
            self._stalls.failures.pop(cursor, None)
            fetched = partitions.get(cursor.partition)
            if fetched is not None and not response.by_id and self._lost_records.is_recreated(cursor.range):
                instructions.append((cursor, cursor.on_error(INCONSISTENT_TOPIC_ID), None))
            elif fetched is not None and fetched.records and not self._is_planned_topic(cursor, response):
                instructions.append((cursor, cursor.on_unconfirmed_topic(), None))
            elif fetched is not None:
                instruction = cursor.on_fetched(fetched, response_is_empty, one_was_served)
                instructions.append((cursor, instruction, fetched.leader_hint))
            elif response.throttle_ms > 0 and response.error_code == 0:
                instructions.append((cursor, None, None))  # over quota: such a response names no partitions
            else:
                instructions.append((cursor, cursor.on_error(response.error_code or UNKNOWN_SERVER_ERROR), None))
        return instructions

    def _needs_report(self, fetch: SentFetch, response: FetchResponse) -> bool:
        """Whether the records may be of a recreated topic, and the metadata of their broker is too old to know."""
        if response.by_id or not response.has_records:
            return False
        report = self._reports.get(response.node_id)
        max_age_s = min(REPORT_AGE_S * len(self._reports), MAX_REPORT_AGE_S)
        is_old = report is None or self._client.clock() - report.fetched_at >= max_age_s
        planned = [cursor.range for cursor in fetch.members if cursor.range.topic_id is not None]
        return is_old and not all(map(self._lost_records.is_recreated, planned))

    def _ask_for_report(self, fetch: SentFetch, node_id: int) -> None:
        self._reports.pop(node_id, None)
        asked_at = self._client.clock()
        report = self._client.cache.refresh(RefreshReason.ON_DEMAND, self._client.api_deadline(), node_id)
        self._stalls.exclude(self._client.clock() - asked_at, except_for=fetch.members)
        if report.reported_by == node_id:
            self._reports[node_id] = report

    def _is_planned_topic(self, cursor: PartitionCursor, response: FetchResponse) -> bool:
        """Whether records are of the planned topic: by its id, or as their broker reports. Brokers without topic ids
        report its name alone."""
        planned, report = cursor.range, self._reports.get(response.node_id)
        if response.by_id or planned.topic_id is None:
            return True
        topic = planned.partition.topic
        return (
            report is not None
            and topic in report.topics
            and topic not in report.topic_errors
            and not is_other_topic(planned.topic_id, report.topic_id(topic))
        )

    def carry_out(
        self, cursor: PartitionCursor, instruction: Instruction, fetch: SentFetch, hint: LeaderHint | None = None
    ) -> list[FetchedRecords]:
        """Carry out one instruction. Raises as `handle`."""
        match instruction:
            case Emit(records):
                return [records]
            case Refresh():
                self.refresh(cursor, instruction, fetch, hint)
            case BackOff():
                self.back_off(cursor)
            case ReadFrom(node_id):
                if self._replicas.choose(cursor.partition, node_id, self._client.clock()):
                    cursor.back_off(self._client.clock(), self._client.backoff_s)
            case OutOfRange() | EmptyResponses():
                asked_at = self._client.clock()
                confirmed = self._lost_records.confirm(cursor, instruction, asked_at)
                self._stalls.exclude(self._client.clock() - asked_at, except_for=[cursor])
                self.carry_out(cursor, confirmed, fetch)
            case Lost():
                self._lost_records.skip(cursor, instruction)
            case CorruptBatch():
                self._lost_records.skip_corrupt(cursor, instruction)
            case Fail(error):
                raise error
        return []

    def _on_failure(self, fetch: SentFetch, failure: RequestFailure) -> None:
        cache = self._client.cache
        if isinstance(failure.error, RETRIABLE_ERRORS):
            self._client.report_failure(failure.error, fetch.generation, failure.node_id)
        elif all(cursor.asked_follower for cursor in fetch.members):
            cache.pass_over(fetch.broker.address, failure.error)  # the leaders have the records too
        else:
            raise failure.error
        for cursor in fetch.members:
            self._stalls.failures[cursor] = failure.error
            instruction = cursor.on_request_failed()
            if instruction is None:
                self.refresh_after_failure(cursor, fetch, failure.error)
            else:
                self.carry_out(cursor, instruction, fetch)
