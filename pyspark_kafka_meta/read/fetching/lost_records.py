"""`LostRecords`: decides whether records that a cursor cannot read are lost, and skips them as the options say.

Never on the word of one broker, which may lag behind, or be cut off from the cluster: the leader is asked for the
bounds of its log, and an unknown topic, or a log that ends before the range, is lost only after `LOSS_GRACE_MS`. Two
brokers must not know the topic; another broker must name the leader whose log is short. Follows the data-loss rules of
Spark's `KafkaDataConsumer`, with topic ids (KIP-516).
"""

from __future__ import annotations

import logging
from contextlib import suppress

from pyspark_kafka_meta.client_facts import RecordsLost
from pyspark_kafka_meta.errors import ConnectError, NoLeaderError, UnknownTopicError
from pyspark_kafka_meta.kafka.client.kafka_client import COMPACT, KafkaClient
from pyspark_kafka_meta.kafka.client.next_request import BackOff, Refresh
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    INCONSISTENT_TOPIC_ID,
    LEADER_NOT_AVAILABLE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
)
from pyspark_kafka_meta.model import OffsetRange, RefreshReason, TopicPartition, is_other_topic
from pyspark_kafka_meta.read.fetching.partition_cursor import (
    CorruptBatch,
    EmptyResponses,
    Instruction,
    Lost,
    OutOfRange,
    PartitionCursor,
)
from pyspark_kafka_meta.read.planning.data_loss import DataLossPolicy

logger = logging.getLogger(__name__)

UNKNOWN_TOPIC_CODES = (UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID)
LOSS_GRACE_MS = 5_000
"""How long a topic is unknown, or a log too short, before its records count as lost or compacted."""
CONFIRM_TIMEOUT_S = 5.0
"""Other partitions wait for a request to a leader, or about it. A broker that does not respond is asked again later."""


class LostRecords:
    """The losses of one task. `skip...` raises an error if the `DataLossPolicy` does."""

    def __init__(self, client: KafkaClient, policy: DataLossPolicy) -> None:
        self._client = client
        self._policy = policy
        self._unknown: dict[PartitionCursor, tuple[float, set[int | None]]] = {}  # since when, and by which brokers
        self._suspected_since: dict[PartitionCursor, tuple[tuple[int, bool], float]] = {}  # see _suspected_s

    def confirm(self, cursor: PartitionCursor, suspicion: OutOfRange | EmptyResponses, now: float) -> Instruction:
        """Ask the leader for its offsets before records count as lost or compacted."""
        try:
            latest = self._list_offset(cursor, LATEST_TIMESTAMP, now)
            if isinstance(suspicion, OutOfRange) and latest >= cursor.position:
                self._suspected_since.pop(cursor, None)
                return cursor.on_log_start(self._list_offset(cursor, EARLIEST_TIMESTAMP, now))
            if isinstance(suspicion, OutOfRange) or suspicion.log_is_short or latest < cursor.range.until_offset:
                return self._on_short_log(cursor, latest, now)
            if self._suspected_s(cursor, False, now) < LOSS_GRACE_MS / 1000:
                return None
            if COMPACT not in (self._client.cleanup_policy(cursor.range.partition.topic) or COMPACT):
                return BackOff()  # slow storage, or a gap of former compaction, which looks alike
            position = cursor.position
            instruction = cursor.on_local_start(self._list_offset(cursor, EARLIEST_LOCAL_TIMESTAMP, now))
            if cursor.done:
                self._record_compacted(cursor, position)
            return instruction
        except UnknownTopicError:
            return cursor.on_error(UNKNOWN_TOPIC_OR_PARTITION)
        except NoLeaderError:
            return cursor.on_error(LEADER_NOT_AVAILABLE)

    def _record_compacted(self, cursor: PartitionCursor, position: int) -> None:
        """With an event, because brokers other than Apache Kafka may respond alike while their storage is slow."""
        partition, until = cursor.range.partition, cursor.range.until_offset
        cause = "the leader sends no records up to the end of the range: compaction has removed them"
        logger.warning("offsets %d to %d of %s hold no records any more: %s", position, until - 1, partition, cause)
        self._client.report(RecordsLost(partition, position, until, cause))

    def _on_short_log(self, cursor: PartitionCursor, latest: int, now: float) -> Instruction:
        """The log ends before the range, which was planned from a longer log: it was truncated by an unclean election,
        or its topic recreated, which the next Fetch by topic id shows. Lost once the leader, which another broker names
        too, has said so for the grace period. A leader whose high watermark lags after its election does not respond
        (OFFSET_NOT_AVAILABLE, KIP-207). Catching up does not prove that the records exist: they are still to be
        fetched."""
        if latest > cursor.position:
            self._suspected_since.pop(cursor, None)
            return None
        suspected_s = self._suspected_s(cursor, True, now)
        if 0 < suspected_s < LOSS_GRACE_MS / 1000:
            return BackOff() if cursor.last_error else None
        if suspected_s == 0 or not self._is_leader_confirmed(cursor.range.partition, now):
            return Refresh(RefreshReason.ON_DEMAND, 0)
        return Lost(f"the log ends at offset {latest} now", cursor.position, cursor.range.until_offset)

    def _is_leader_confirmed(self, partition: TopicPartition, now: float) -> bool:
        """Whether another broker names the leader now. Other partitions wait for its response."""
        cache = self._client.cache
        leader = cache.snapshot.leader(partition)
        others = [node_id for node_id in cache.snapshot.brokers if leader is None or node_id != leader.broker.node_id]
        if others:
            deadline = min(self._client.api_deadline(), now + CONFIRM_TIMEOUT_S)
            with suppress(ConnectError):
                cache.refresh(RefreshReason.ON_DEMAND, deadline, self._client.rng.choice(others))
        return cache.snapshot.is_leader_confirmed(partition)

    def _suspected_s(self, cursor: PartitionCursor, log_is_short: bool, now: float) -> float:
        """For how long there have been no records at the position, for this reason; 0 the first time."""
        suspected, since = self._suspected_since.get(cursor, (None, now))
        if suspected != (cursor.position, log_is_short):
            since = now
            self._suspected_since[cursor] = ((cursor.position, log_is_short), now)
        return now - since

    def skip_if_gone(self, cursor: PartitionCursor, now: float) -> bool:
        """Skip the rest of the range, and return True, if two brokers have not known its topic, and none has for the
        grace period."""
        if cursor.last_error not in UNKNOWN_TOPIC_CODES or self._is_in_metadata(cursor.range):
            self._unknown.pop(cursor, None)
            return False
        snapshot = self._client.cache.snapshot
        since, reporters = self._unknown.setdefault(cursor, (now, set()))
        reporters.add(snapshot.reported_by)
        if now < since + LOSS_GRACE_MS / 1000 or not snapshot.is_agreed(reporters):
            return False
        # Error codes do not prove it: after a topic was recreated, this cache may be the last to learn the new id.
        is_recreated, cause = self.is_recreated(cursor.range), "the topic or partition was deleted"
        if is_recreated:
            planned, current = cursor.range.topic_id, snapshot.topic_id(cursor.range.partition.topic)
            cause = f"the topic was deleted and recreated under its name (topic id {planned}, now {current})"
        lost = Lost(cause, cursor.position, cursor.range.until_offset)
        report = self._policy.report_recreated_while_read if is_recreated else self._policy.report_loss
        report(_sentence(cursor, lost))
        self._skip(cursor, lost)
        return True

    def is_recreated(self, planned: OffsetRange) -> bool:
        """Whether metadata has another topic id than planned."""
        return is_other_topic(planned.topic_id, self._client.cache.snapshot.topic_id(planned.partition.topic))

    def _is_in_metadata(self, planned: OffsetRange) -> bool:
        """Metadata outweighs a broker that does not know the partition: the broker may lag behind."""
        partition, snapshot = planned.partition, self._client.cache.snapshot
        return partition in snapshot.partitions(partition.topic) and not self.is_recreated(planned)

    def skip(self, cursor: PartitionCursor, lost: Lost) -> None:
        self._policy.report_loss(_sentence(cursor, lost))
        self._skip(cursor, lost)

    def skip_corrupt(self, cursor: PartitionCursor, corrupt: CorruptBatch) -> None:
        lost = corrupt.lost
        sentence = None if lost is None else _sentence(cursor, lost)
        self._policy.report_corrupt(cursor.range.partition, cursor.position, corrupt.error, sentence)
        if lost is not None:
            self._skip(cursor, lost)

    def _skip(self, cursor: PartitionCursor, lost: Lost) -> None:
        self._client.report(RecordsLost(cursor.range.partition, lost.from_offset, lost.until_offset, lost.cause))
        cursor.skip_lost(lost)

    def _list_offset(self, cursor: PartitionCursor, timestamp: int, now: float) -> int:
        """From the leader. The latest offset is the high watermark: an open transaction does not shorten a log."""
        partition, deadline = cursor.range.partition, min(self._client.api_deadline(), now + CONFIRM_TIMEOUT_S)
        return self._client.list_offsets({partition: timestamp}, deadline, read_committed=False)[partition].offset


def _sentence(cursor: PartitionCursor, lost: Lost) -> str:
    span = f"offsets {lost.from_offset} to {lost.until_offset - 1} of {cursor.range.partition}"
    return f"{span} cannot be read: {lost.cause}"
