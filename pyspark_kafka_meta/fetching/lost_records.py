"""`Losses`: whether records that a cursor cannot get are lost, and what follows from it.

Nothing is called lost on one broker's word: the leader is asked for the bounds of its log, and a topic that brokers do
not know is waited for, as is a log that ends before the range. Follows the data-loss rules of Spark's
`KafkaDataConsumer`, with topic ids (KIP-516).
"""

from __future__ import annotations

import logging

from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.errors import CorruptBatchError, NoLeaderError, UnknownTopicError
from pyspark_kafka_meta.fetching.instructions import (
    Instruction,
    Lost,
    NothingMore,
    OutOfRange,
    Refresh,
    Unreadable,
    Wait,
)
from pyspark_kafka_meta.fetching.partition_cursor import PartitionCursor
from pyspark_kafka_meta.kafka_errors import (
    INCONSISTENT_TOPIC_ID,
    LEADER_NOT_AVAILABLE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from pyspark_kafka_meta.model import OffsetRange, RefreshReason, is_other_topic
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.planning.data_loss import accept_loss, accept_new_topic
from pyspark_kafka_meta.wire.messages import EARLIEST_LOCAL_TIMESTAMP, EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

logger = logging.getLogger(__name__)

UNKNOWN_TOPIC_CODES = (UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID)
LOSS_GRACE_MS = 5_000
"""This long a topic may be unknown to the brokers, or its log end too early, before records are called lost, or
compacted away."""
ANSWER_S = 5.0
"""The records of other partitions wait while a leader is asked. One that does not answer is asked again later."""


class Losses:
    """The verdicts of one task."""

    def __init__(self, client: KafkaClient, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._unknown_since: dict[PartitionCursor, float] = {}
        self._doubted_since: dict[PartitionCursor, tuple[tuple[int, bool], float]] = {}  # what, as in _doubted_s; when

    def confirm(self, cursor: PartitionCursor, doubt: OutOfRange | NothingMore, now: float) -> Instruction:
        """Ask the leader for its offsets before anything is called lost, or at its end."""
        try:
            latest = self._offset_of(cursor, LATEST_TIMESTAMP, now)
            if isinstance(doubt, OutOfRange) and latest >= cursor.position:
                self._doubted_since.pop(cursor, None)
                return cursor.on_log_start(self._offset_of(cursor, EARLIEST_TIMESTAMP, now))
            if isinstance(doubt, OutOfRange) or doubt.log_is_short or latest < cursor.range.until_offset:
                return self._on_short_log(cursor, latest, now)
            if self._doubted_s(cursor, False, now) < LOSS_GRACE_MS / 1000:
                return Wait()
            position = cursor.position
            instruction = cursor.on_local_start(self._offset_of(cursor, EARLIEST_LOCAL_TIMESTAMP, now))
            if cursor.done:
                text = "offsets %d to %d of %s hold no records any more: compaction has removed them"
                logger.info(text, position, cursor.range.until_offset - 1, cursor.range.partition)
            return instruction
        except UnknownTopicError:
            return cursor.on_error(UNKNOWN_TOPIC_OR_PARTITION)
        except NoLeaderError:
            return cursor.on_error(LEADER_NOT_AVAILABLE)

    def _on_short_log(self, cursor: PartitionCursor, latest: int, now: float) -> Instruction:
        """The leader's log ends before the range, which was planned by a log that did not: it was cut by an unclean
        election, or recreated, which the next Fetch by topic id shows. Believed when the leader by new metadata
        says so for the time of grace; a leader whose high watermark still lags after its election does not answer
        (error 78, KIP-207). That it has caught up when it does answer says nothing about the records: they are still to
        be fetched."""
        if latest > cursor.position:
            self._doubted_since.pop(cursor, None)
            return Wait()
        doubted_s = self._doubted_s(cursor, True, now)
        if doubted_s == 0:
            return Refresh(RefreshReason.ON_DEMAND, 0)
        if doubted_s < LOSS_GRACE_MS / 1000:
            return Wait(cursor.trouble)
        return Lost(f"the log ends at offset {latest} now", cursor.position, cursor.range.until_offset)

    def _doubted_s(self, cursor: PartitionCursor, log_is_short: bool, now: float) -> float:
        """For how long there has been nothing at the position, for that reason; 0 the first time."""
        doubted, since = self._doubted_since.get(cursor, (None, now))
        if doubted != (cursor.position, log_is_short):
            since = now
            self._doubted_since[cursor] = ((cursor.position, log_is_short), now)
        return now - since

    def give_up_if_gone(self, cursor: PartitionCursor, now: float) -> bool:
        """Whether the topic that the range was planned for is gone, brokers having said so for the time of grace. The
        rest of the range is lost then, and the cursor done.

        Raises:
            DataLossError: it is, and onTopicRecreated or failOnDataLoss does not allow that.
        """
        if cursor.trouble not in UNKNOWN_TOPIC_CODES or self._is_told(cursor.range):
            self._unknown_since.pop(cursor, None)
            return False
        if now < self._unknown_since.setdefault(cursor, now) + LOSS_GRACE_MS / 1000:
            return False
        # Ids are not enough by themselves: after the topic was recreated, this cache may be the last to hear of it.
        if self.is_recreated(cursor.range):
            planned, current = cursor.range.topic_id, self._client.cache.snapshot.topic_id(cursor.range.partition.topic)
            cause = f"the topic was deleted and recreated under its name (topic id {planned}, now {current})"
            self._accept_recreated(cursor, Lost(cause, cursor.position, cursor.range.until_offset))
        else:
            self.accept(cursor, Lost("the topic or partition was deleted", cursor.position, cursor.range.until_offset))
        return True

    def is_recreated(self, planned: OffsetRange) -> bool:
        """Whether the topic is another one than planned, as far as metadata shows."""
        return is_other_topic(planned.topic_id, self._client.cache.snapshot.topic_id(planned.partition.topic))

    def _is_told(self, planned: OffsetRange) -> bool:
        """Whether the metadata still has it. That counts more than a broker that does not know it, because it may lag
        behind or be confused."""
        partition, snapshot = planned.partition, self._client.cache.snapshot
        return partition in snapshot.partitions(partition.topic) and not self.is_recreated(planned)

    def _accept_recreated(self, cursor: PartitionCursor, lost: Lost) -> None:
        """The new topic is for the next micro-batch, which begins in it as onTopicRecreated says."""
        policy = self._options.on_topic_recreated
        if policy is None:
            self.accept(cursor, lost)
        else:
            accept_new_topic(_sentence(cursor, lost), policy, fails=False)
            self._skip(cursor, lost)

    def accept(self, cursor: PartitionCursor, lost: Lost) -> None:
        """Go on behind what is lost.

        Raises:
            DataLossError: failOnDataLoss is set.
        """
        accept_loss(_sentence(cursor, lost), self._options.fail_on_data_loss)
        self._skip(cursor, lost)

    def accept_corrupt(self, cursor: PartitionCursor, unreadable: Unreadable) -> None:
        """Go on behind a corrupt batch.

        Raises:
            CorruptBatchError: onCorruptBatch is fail, or where the batch ends is not known.
        """
        error, lost, partition = unreadable.error, unreadable.lost, cursor.range.partition
        if self._options.skip_corrupt_batches and lost is not None:
            logger.warning("%s; going on, as onCorruptBatch says", _sentence(cursor, lost))
            self._skip(cursor, lost)
            return
        way_out = (
            "set the option onCorruptBatch to skip" if lost is not None else "start behind it: its end is not known"
        )
        raise CorruptBatchError(
            f"{partition} at offset {cursor.position}: {error}, though fetched twice. To go on without it, {way_out}",
            partition.topic,
            partition.partition,
            cursor.position,
            error.until_offset,
        )

    def _skip(self, cursor: PartitionCursor, lost: Lost) -> None:
        self._client.cache.record_loss(cursor.range.partition, lost.from_offset, lost.until_offset, lost.cause)
        cursor.skip_lost(lost)

    def _offset_of(self, cursor: PartitionCursor, timestamp: int, now: float) -> int:
        """What the leader says. The end is the high watermark: an open transaction does not shorten a log."""
        partition, deadline = cursor.range.partition, min(self._client.api_deadline(), now + ANSWER_S)
        return self._client.list_offsets({partition: timestamp}, deadline, read_committed=False)[partition].offset


def _sentence(cursor: PartitionCursor, lost: Lost) -> str:
    span = f"offsets {lost.from_offset} to {lost.until_offset - 1} of {cursor.range.partition}"
    return f"{span} cannot be read: {lost.cause}"
