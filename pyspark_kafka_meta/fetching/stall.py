"""`Progress`: when a read is given up because a partition gets no records, and what is said of it.

It is given up when a partition makes no progress for the poll time-out, as in Spark's `KafkaDataConsumer`, even if
other partitions of the task do; later while brokers throttle.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pyspark_kafka_meta.client.throttling import MAX_THROTTLE_MS, Throttles
from pyspark_kafka_meta.errors import KafkaMetaError, ReadTimeoutError
from pyspark_kafka_meta.fetching.partition_cursor import PartitionCursor
from pyspark_kafka_meta.kafka_errors import describe


class _Wait(NamedTuple):
    """How long records from `position` on are waited for: `since` is in seconds of the caller's clock."""

    position: int
    since: float


class Progress:
    """Progress of the partitions of one task. `now` is in seconds, of the clock that `throttles` uses."""

    def __init__(self, throttles: Throttles, poll_timeout_ms: int) -> None:
        self._throttles = throttles
        self._poll_timeout_ms = poll_timeout_ms
        self._waits: dict[PartitionCursor, _Wait] = {}
        self._failures: dict[PartitionCursor, KafkaMetaError] = {}  # of requests that got no answer

    def watch(self, cursors: Collection[PartitionCursor], now: float) -> None:
        """Note the positions of all cursors that are not done: a new position is progress."""
        before = self._waits
        self._waits = {
            cursor: wait
            if (wait := before.get(cursor)) is not None and wait.position == cursor.position
            else _Wait(cursor.position, now)
            for cursor in cursors
        }

    def excuse(self, cursors: Collection[PartitionCursor], now: float) -> None:
        """Other partitions are served first: the time until now is no stall of these."""
        self._waits.update((cursor, _Wait(cursor.position, now)) for cursor in cursors)

    def resumed(self, away_s: float, but: PartitionCursor | None = None) -> None:
        """The time that Spark takes for rows is no stall, nor is that of a question about another partition, `but`."""
        self._waits = {
            cursor: wait if cursor is but else wait._replace(since=wait.since + away_s)
            for cursor, wait in self._waits.items()
        }

    def failed(self, cursor: PartitionCursor, error: KafkaMetaError) -> None:
        """A Fetch of the partition got no answer."""
        self._failures[cursor] = error

    def answered(self, cursor: PartitionCursor) -> None:
        self._failures.pop(cursor, None)

    def stalls_at(self) -> float:
        """When the first partition will have made no progress for too long."""
        return self._stalls_at(min(since for _, since in self._waits.values()))

    def stalled(self, now: float) -> list[PartitionCursor]:
        """Partitions that have made no progress for too long."""
        return [cursor for cursor, (_, since) in self._waits.items() if now >= self._stalls_at(since)]

    def timed_out(self, stalled: Collection[PartitionCursor]) -> ReadTimeoutError:
        """Names one of these that has trouble, if there is one."""
        cursor = max(stalled, key=lambda one: one.trouble != 0 or one in self._failures)
        failure = str(self._failures.get(cursor, "the brokers send no records"))
        trouble = describe(cursor.trouble) if cursor.trouble else failure
        return ReadTimeoutError(
            f"no progress in {self._poll_timeout_ms} ms reading {cursor.range.partition} at offset {cursor.position} "
            f"(of {cursor.range.from_offset} to {cursor.range.until_offset}): {trouble}. If brokers or the network are "
            "merely slow, raise kafkaConsumer.pollTimeoutMs and kafka.request.timeout.ms, or lower "
            "kafka.fetch.max.bytes"
        )

    def _stalls_at(self, since: float) -> float:
        # Brokers that ask for patience again and again, and send nothing, are not waited for without an end either.
        believed_until = since + MAX_THROTTLE_MS / 1000
        return max(since, min(self._throttles.latest(), believed_until)) + self._poll_timeout_ms / 1000
