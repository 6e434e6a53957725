"""`Progress`: when a read that gets no records is given up, and what is said of it.

It is given up at the poll time-out, as in Spark's `KafkaDataConsumer`, or when the request that is waited for then
ends, which has a time-out of its own; later while brokers throttle.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark_kafka_meta.errors import KafkaMetaError, ReadTimeoutError
from pyspark_kafka_meta.reading.cursor import PartitionCursor
from pyspark_kafka_meta.reading.throttles import MAX_THROTTLE_MS, Throttles
from pyspark_kafka_meta.wire.codes import describe


class Progress:
    """Progress of one task. `now` is in seconds, of the clock that `throttles` uses."""

    def __init__(self, throttles: Throttles, poll_timeout_ms: int) -> None:
        self._throttles = throttles
        self._poll_timeout_ms = poll_timeout_ms
        self._made_at = 0.0
        self._failures: dict[PartitionCursor, KafkaMetaError] = {}  # of requests that got no answer

    def made(self, now: float) -> None:
        """Records have come, or are asked for again."""
        self._made_at = now

    def failed(self, cursor: PartitionCursor, error: KafkaMetaError) -> None:
        """A Fetch of the partition got no answer."""
        self._failures[cursor] = error

    def answered(self, cursor: PartitionCursor) -> None:
        self._failures.pop(cursor, None)

    def stalls_at(self) -> float:
        """When there will have been none for too long."""
        # Brokers that ask for patience again and again, and send nothing, are not waited for without an end either.
        believed_until = self._made_at + MAX_THROTTLE_MS / 1000
        waiting_since = max(self._made_at, min(self._throttles.latest(), believed_until))
        return waiting_since + self._poll_timeout_ms / 1000

    def timed_out(self, cursors: Iterable[PartitionCursor]) -> ReadTimeoutError:
        """Names one of these that has trouble, if there is one."""
        cursor = max(cursors, key=lambda one: one.trouble != 0 or one in self._failures)
        failure = str(self._failures.get(cursor, "the brokers send no records"))
        trouble = describe(cursor.trouble) if cursor.trouble else failure
        return ReadTimeoutError(
            f"no progress in {self._poll_timeout_ms} ms reading {cursor.range.partition} at offset {cursor.position} "
            f"(of {cursor.range.from_offset} to {cursor.range.until_offset}): {trouble}. If brokers or the network are "
            "merely slow, raise kafkaConsumer.pollTimeoutMs and kafka.request.timeout.ms, or lower "
            "kafka.fetch.max.bytes"
        )
