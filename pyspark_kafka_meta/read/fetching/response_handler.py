"""`ResponseHandler`: carries out what the cursors make of a Fetch response, and returns its records.

A leader that a broker names along with an error is used at once (KIP-951); without it, cursors wait for newer metadata.
"""

from __future__ import annotations

from functools import partial

from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.client.next_request import ReadReplicas
from pyspark_kafka_meta.kafka.metadata.cache import failure_reason
from pyspark_kafka_meta.kafka.metadata.cache_state import RETRIABLE_ERRORS
from pyspark_kafka_meta.kafka.protocol.error_codes import INCONSISTENT_TOPIC_ID, UNKNOWN_SERVER_ERROR
from pyspark_kafka_meta.kafka.protocol.fetch import FetchResponse
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords
from pyspark_kafka_meta.model import LeaderHint, RefreshReason, is_other_topic
from pyspark_kafka_meta.read.fetching.in_flight_fetches import InFlightFetch
from pyspark_kafka_meta.read.fetching.lost_records import LostRecords
from pyspark_kafka_meta.read.fetching.partition_cursor import (
    CorruptBatch,
    Emit,
    EmptyResponses,
    Fail,
    Instruction,
    Lost,
    OutOfRange,
    PartitionCursor,
    ReadFrom,
    Refresh,
    Wait,
)
from pyspark_kafka_meta.read.fetching.stall_detector import StallDetector

REPORT_AGE_S, MAX_REPORT_AGE_S = 0.2, 1.0
"""Before Kafka 3.1, a Fetch names topics, and only metadata of the same broker shows that a topic was recreated: other
brokers may lag behind. A client sends five such requests a second, or one to each broker."""


class ResponseHandler:
    """Handles the Fetch responses of one task."""

    def __init__(
        self, client: KafkaClient, replicas: ReadReplicas, lost_records: LostRecords, stalls: StallDetector
    ) -> None:
        self._client = client
        self._replicas = replicas
        self._lost_records = lost_records
        self._stalls = stalls
        self._reports = client.broker_reports

    def handle(self, fetch: InFlightFetch, response: FetchResponse | RequestFailure) -> list[FetchedRecords]:
        """Move the cursors of the Fetch.

        Raises:
            KafkaMetaError: an error that is not retriable, or a loss that the options do not allow.
        """
        if isinstance(response, RequestFailure):
            self._on_failure(fetch, response)
            return []
        self._client.events.count_fetch(response.node_id, response.response_bytes, response.throttle_ms)
        if response.throttle_ms > 0:
            self._client.throttles.throttle(response.node_id, response.throttle_ms, self._client.clock())
        if self._needs_report(fetch, response):
            self._ask_for_report(fetch, response.node_id)
        records: list[FetchedRecords] = []
        instructions = self._instructions(fetch, response)
        moved_nothing = not any(isinstance(instruction, Emit) for _, instruction, _ in instructions)
        for cursor, instruction, hint in instructions:
            if moved_nothing and (instruction == Wait() or isinstance(instruction, EmptyResponses)):
                # A broker parks a Fetch that finds no records. A broker that responds at once, because it may not wait,
                # with records that were read before, or with the same truncation again, must not be sent one Fetch
                # after the other.
                cursor.wait_until(fetch.sent_at + self._client.backoff_s(1))
            records.extend(self.carry_out(cursor, instruction, fetch, hint))
        if response.has_records:
            # The first partition of a request gets its records first; the response may have no room for the others.
            starved = [cursor for cursor in fetch.cursors[1:] if not cursor.last_error]
            self._stalls.restart(starved, self._client.clock())
        return records

    def _instructions(
        self, fetch: InFlightFetch, response: FetchResponse
    ) -> list[tuple[PartitionCursor, Instruction, LeaderHint | None]]:
        """The instruction of each cursor, with the leader that came along."""
        partitions = {fetched.partition: fetched for fetched in response.partitions}
        response_is_empty = response.throttle_ms == 0 and not response.has_records
        instructions: list[tuple[PartitionCursor, Instruction, LeaderHint | None]] = []
        for cursor in fetch.cursors:
            self._stalls.on_response(cursor)
            fetched = partitions.get(cursor.range.partition)
            if fetched is not None and not response.by_id and self._lost_records.is_recreated(cursor.range):
                instructions.append((cursor, cursor.on_error(INCONSISTENT_TOPIC_ID), None))
            elif fetched is not None and fetched.records and not self._is_planned_topic(cursor, response):
                instructions.append((cursor, cursor.on_doubtful_topic(), None))
            elif fetched is not None:
                instructions.append((cursor, cursor.on_fetched(fetched, response_is_empty), fetched.leader_hint))
            elif response.throttle_ms > 0 and response.error_code == 0:
                instructions.append((cursor, Wait(), None))  # over quota: such a response names no partitions
            else:
                instructions.append((cursor, cursor.on_error(response.error_code or UNKNOWN_SERVER_ERROR), None))
        return instructions

    def _needs_report(self, fetch: InFlightFetch, response: FetchResponse) -> bool:
        """Whether the records may be of a recreated topic, and the metadata of their broker is too old to know."""
        if response.by_id or not response.has_records:
            return False
        report = self._reports.get(response.node_id)
        max_age_s = min(REPORT_AGE_S * len(self._reports), MAX_REPORT_AGE_S)
        is_old = report is None or self._client.clock() - report.fetched_at >= max_age_s
        planned = [cursor.range for cursor in fetch.cursors if cursor.range.topic_id is not None]
        return is_old and not all(map(self._lost_records.is_recreated, planned))

    def _ask_for_report(self, fetch: InFlightFetch, node_id: int) -> None:
        self._reports.pop(node_id, None)
        asked_at = self._client.clock()
        report = self._client.cache.refresh(RefreshReason.ON_DEMAND, self._client.api_deadline(), node_id)
        self._stalls.exclude(self._client.clock() - asked_at, except_for=fetch.cursors)
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
        self, cursor: PartitionCursor, instruction: Instruction, fetch: InFlightFetch, hint: LeaderHint | None = None
    ) -> list[FetchedRecords]:
        """Carry out one instruction. Raises as `handle`."""
        match instruction:
            case Emit(records):
                return [records]
            case Refresh():
                self._client.events.count_retry()
                self._refresh(cursor, instruction, fetch, hint)
            case Wait(error_code):
                if error_code:
                    self._client.events.count_retry()
                    cursor.back_off(self._client.clock(), self._client.backoff_s)
            case ReadFrom(node_id):
                self._read_from(cursor, node_id)
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

    def _refresh(
        self, cursor: PartitionCursor, refresh: Refresh, fetch: InFlightFetch, hint: LeaderHint | None
    ) -> None:
        """Use the leader that the broker named. Without it, request metadata, which the cursor waits for."""
        cache, partition, node_id = self._client.cache, cursor.range.partition, fetch.broker.node_id
        code, generation = refresh.error_code, fetch.generation
        if hint is None or not cache.take_hint(partition, hint, generation, code, node_id):
            request_update = partial(
                cache.request_update, refresh.reason, partition=partition, error_code=code, node_id=node_id
            )
            cursor.wait_for_metadata_after(generation, request_update)

    def _read_from(self, cursor: PartitionCursor, node_id: int) -> None:
        if self._replicas.choose(cursor.range.partition, node_id, self._client.clock()):
            cursor.back_off(self._client.clock(), self._client.backoff_s)

    def _on_failure(self, fetch: InFlightFetch, failure: RequestFailure) -> None:
        cache, reason = self._client.cache, failure_reason(failure.error)
        if isinstance(failure.error, RETRIABLE_ERRORS):
            cache.report_failure(failure.error, fetch.generation, failure.node_id)
        elif all(cursor.asked_follower for cursor in fetch.cursors):
            cache.pass_over(fetch.broker.address, failure.error)  # the leaders have the records too
        else:
            raise failure.error
        request_update = partial(cache.request_update, reason, node_id=failure.node_id)
        for cursor in fetch.cursors:
            self._stalls.on_failure(cursor, failure.error)
            self.carry_out(cursor, cursor.on_request_failed(fetch.generation, request_update), fetch)
