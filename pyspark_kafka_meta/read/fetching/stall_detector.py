"""`StallDetector`: fails a task when a partition makes no progress for kafkaConsumer.pollTimeoutMs.

As in Spark's `KafkaDataConsumer`, but for each partition, even if others of the task progress; later while brokers
throttle.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pyspark_kafka_meta.errors import KafkaMetaError, ReadTimeoutError
from pyspark_kafka_meta.kafka.client.next_request import MAX_THROTTLE_MS, Throttles
from pyspark_kafka_meta.kafka.metadata.snapshot import MetadataSnapshot
from pyspark_kafka_meta.kafka.protocol.error_codes import describe
from pyspark_kafka_meta.read.fetching.partition_cursor import PartitionCursor


class _Wait(NamedTuple):
    """The wait for records from `position`; `since` is in seconds of the caller's clock."""

    position: int
    since: float


class StallDetector:
    """Progress of the partitions of one task. `now` is in seconds, of the clock that `throttles` uses."""

    def __init__(self, throttles: Throttles, poll_timeout_ms: int) -> None:
        self._throttles = throttles
        self._poll_timeout_ms = poll_timeout_ms
        self._waits: dict[PartitionCursor, _Wait] = {}
        self._failures: dict[PartitionCursor, KafkaMetaError] = {}  # of requests without a response

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

    def on_failure(self, cursor: PartitionCursor, error: KafkaMetaError) -> None:
        """A Fetch of the partition got no response."""
        self._failures[cursor] = error

    def on_response(self, cursor: PartitionCursor) -> None:
        self._failures.pop(cursor, None)

    def stalls_at(self) -> float:
        """When the first partition stalls."""
        return self._stalls_at(min(since for _, since in self._waits.values()))

    def stalled(self, now: float) -> list[PartitionCursor]:
        """Partitions without progress for too long."""
        return [cursor for cursor, (_, since) in self._waits.items() if now >= self._stalls_at(since)]

    def timeout_error(self, stalled: Collection[PartitionCursor], snapshot: MetadataSnapshot) -> ReadTimeoutError:
        """Names a partition that failed, if there is any. `snapshot`: the current metadata."""
        cursor = max(stalled, key=lambda cursor: cursor.last_error != 0 or cursor in self._failures)
        failure = str(self._failures.get(cursor, "the brokers send no records"))
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
