"""`PartitionCursor`: progress of one partition through its offset range, without I/O.

Bytes and error codes go in, an instruction for the task reader comes out. The position advances over record batches
that can be read, checksums verified unless that is switched off, and over what is lost; it goes back only where the log
was truncated, and never leaves the range. Follows Kafka's `FetchCollector` and Spark's `KafkaDataConsumer`.
"""

from __future__ import annotations

from uuid import UUID

from pyspark_kafka_meta.client.read_replicas import LEADER
from pyspark_kafka_meta.errors import CorruptBatchError, KafkaMetaError
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
from pyspark_kafka_meta.kafka_errors import (
    CORRUPT_MESSAGE,
    REQUEST_TIMED_OUT,
    UNKNOWN_LEADER_EPOCH,
    Action,
    broker_error,
    describe,
    read_action,
    refresh_reason,
)
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange
from pyspark_kafka_meta.records.decoder import FetchedRecords
from pyspark_kafka_meta.records.record_batches import next_position, scan
from pyspark_kafka_meta.wire.messages import DivergingEpoch, FetchedPartition, FetchPartition

MIN_FETCH_BYTES = 64 * 1024
"""A partition's share of a Fetch is never below this, so that an estimate that is too small costs little."""
FIRST_GUESS_BYTES_PER_OFFSET = 1024
EMPTY_ANSWERS_TO_BELIEVE = 3
"""After this many empty answers in a row the leader is asked: for the records if they came from a follower, else
whether it has anything up to the end of the range."""
UNKNOWN_EPOCHS_TO_BELIEVE = 3
"""How many UNKNOWN_LEADER_EPOCH in a row show that the cache is wrong, not that the broker lags behind."""


class PartitionCursor:
    """Progress through one `OffsetRange`.

    Attributes:
        position: the next offset wanted; equal to `range.until_offset` when done.
        last_fetched_epoch: leader epoch of the record before `position`, `NO_EPOCH` if unknown.
        leader_epoch: of the leader that was asked last, as the cache knew it.
        trouble: error code of the last answer that brought no progress, 0 if there was none.
        newer_than: fetch again only with a cache whose generation is above this one.
        failures: pauses after an error since the last records.
        not_before: fetch again only at this time, in seconds of the caller's clock.
        asked_follower: whether the last request was for another replica than the leader.
    """

    def __init__(self, offset_range: OffsetRange, read_committed: bool, max_bytes: int, check_crcs: bool) -> None:
        self.range = offset_range
        self.position = offset_range.from_offset
        self.last_fetched_epoch = offset_range.start_epoch
        self.leader_epoch = NO_EPOCH
        self.trouble = 0
        self.newer_than = -1
        self.failures = 0
        self.not_before = 0.0
        self.asked_follower = False
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._max_bytes = max_bytes
        self._bytes_per_offset: float = FIRST_GUESS_BYTES_PER_OFFSET
        self._empty_answers = 0
        self._short_answers = 0
        self._unknown_epochs = 0
        self._corrupt_at = -1  # the position of the last batch that could not be read

    @property
    def done(self) -> bool:
        return self.position >= self.range.until_offset

    def is_ready(self, generation: int, now: float) -> bool:
        """Whether a Fetch may be sent with what the cache of this `generation` says."""
        return generation > self.newer_than and now >= self.not_before

    def request(self, topic_id: UUID | None, leader_epoch: int, of_follower: bool = False) -> FetchPartition:
        """What to ask for: about as many bytes as the rest of the range is likely to take."""
        self._turn_to(of_follower)
        self.leader_epoch = leader_epoch
        wanted = int((self.range.until_offset - self.position) * self._bytes_per_offset * 1.1)
        return FetchPartition(
            partition=self.range.partition,
            topic_id=topic_id,
            fetch_offset=self.position,
            leader_epoch=leader_epoch,
            last_fetched_epoch=self.last_fetched_epoch,
            max_bytes=min(max(wanted, MIN_FETCH_BYTES), self._max_bytes),
        )

    def on_fetched(self, fetched: FetchedPartition, answer_is_empty: bool) -> Instruction:
        """What to do with one partition of a Fetch answer.

        Args:
            answer_is_empty: whether the whole answer held no records and no throttling. Otherwise an empty partition
                proves nothing: its share may have gone to another.
        """
        if fetched.error_code != 0:
            return self.on_error(fetched.error_code)
        self.trouble = self._unknown_epochs = 0
        if fetched.preferred_read_replica >= 0 and not fetched.records:
            return ReadFrom(LEADER if self.asked_follower else fetched.preferred_read_replica)
        if fetched.diverging_epoch is not None:
            return ReadFrom(LEADER) if self.asked_follower else self._on_diverging_epoch(fetched.diverging_epoch)
        if not fetched.records:
            return self._on_empty(fetched, answer_is_empty)
        return self._on_records(fetched)

    def _turn_to(self, follower: bool) -> None:
        if follower != self.asked_follower:  # empty answers of one say nothing about the other
            self._empty_answers = self._short_answers = 0
        self.asked_follower = follower

    def on_no_leader(self, code: int) -> Instruction:
        """What to do about an error code of the metadata: no replica knows better."""
        self._turn_to(False)
        return self.on_error(code)

    def on_error(self, code: int) -> Instruction:
        """What to do about an error code of the partition, or of the whole answer."""
        self.trouble = code
        if self.asked_follower:
            return ReadFrom(LEADER)  # it may lag behind, or be no replica any more: only the leader knows
        if code == CORRUPT_MESSAGE:
            return self._on_corrupt(CorruptBatchError(f"its broker cannot read the record batch: {describe(code)}"))
        self._unknown_epochs = self._unknown_epochs + 1 if code == UNKNOWN_LEADER_EPOCH else 0
        match read_action(code):
            case Action.RETRY if self._unknown_epochs >= UNKNOWN_EPOCHS_TO_BELIEVE:
                return Refresh(refresh_reason(code), code)
            case Action.REFRESH:
                return Refresh(refresh_reason(code), code)
            case Action.RETRY:
                return Wait(code)
            case Action.DATA_LOSS:
                return OutOfRange()
            case _:
                return Fail(
                    broker_error(f"{self.range.partition} cannot be read", code, self.range.partition.topic, "READ")
                )

    def on_log_start(self, earliest: int) -> Instruction:
        """After `OutOfRange`: what the leader's first offset means for the position, which is not behind its log."""
        if self.position < earliest:
            until = min(earliest, self.range.until_offset)
            return Lost(f"they aged out or were deleted; the log starts at offset {earliest} now", self.position, until)
        # A leader that does not know the epoch at all answers this way too.
        self.last_fetched_epoch = NO_EPOCH
        return Wait(self.trouble)

    def on_local_start(self, offset: int) -> Instruction:
        """After `NothingMore`: where the part of the log begins that the leader has on its own disk. Before that it may
        just have been slow to get at remote storage; behind it there is nothing up to the end of the range: compaction
        has removed the last records."""
        if self.position < offset:
            return Wait(REQUEST_TIMED_OUT)
        self.position = self.range.until_offset
        return Wait()

    def on_undecodable(self, error: CorruptBatchError) -> Instruction:
        """What to do about records that an `Emit` held, and that cannot be decoded from `error.from_offset` on."""
        assert error.from_offset is not None
        self.position, self.last_fetched_epoch = error.from_offset, NO_EPOCH
        return self._on_corrupt(error)

    def _on_corrupt(self, error: CorruptBatchError) -> Instruction:
        """Fetch the batch once more, from the leader: what is corrupt in one replica, or on its way from there, need
        not be so again."""
        if self._corrupt_at != self.position:
            self._corrupt_at = self.position
            self.trouble = CORRUPT_MESSAGE
            return ReadFrom(LEADER) if self.asked_follower else Wait(CORRUPT_MESSAGE)
        until = min(error.until_offset or 0, self.range.until_offset)
        return Unreadable(error, Lost(str(error), self.position, until) if until > self.position else None)

    def skip_lost(self, lost: Lost) -> None:
        """Go on behind what was lost. In a truncated log that is where the truncation cut it, as Kafka's consumer does
        (`SubscriptionState.maybeCompleteValidation`), so that offsets that were given out come again, with the records
        that took their place. Never before the range: a micro-batch has no offsets but those that Spark logged."""
        kept = lost.truncated_to
        if kept is not None and kept.end_offset >= self.range.from_offset:
            self.position, self.last_fetched_epoch = kept.end_offset, kept.epoch
        else:
            self.position = self.range.from_offset if kept is not None else lost.until_offset
            self.last_fetched_epoch = NO_EPOCH

    def _on_diverging_epoch(self, diverging: DivergingEpoch) -> Instruction:
        if diverging.end_offset >= self.position:
            # Both logs agree up to here. The epoch came from ListOffsets, and a leader that wrote nothing in its epoch
            # leaves no trace of it at its successor.
            self.last_fetched_epoch = diverging.epoch
            return Wait()
        cause = (
            f"the log was truncated to offset {diverging.end_offset} (leader epoch {self.last_fetched_epoch}, now "
            f"{self.leader_epoch}) after these records had been read, as an unclean leader election does"
        )
        begins = self.range.from_offset
        if diverging.end_offset < begins:
            replaced = f"{diverging.end_offset} to {begins - 1}"
            cause += f"; records that took the place of offsets {replaced} lie before this read, and come after it"
        return Lost(cause, diverging.end_offset, self.position, truncated_to=diverging)

    def _on_empty(self, fetched: FetchedPartition, answer_is_empty: bool) -> Instruction:
        end = fetched.last_stable_offset if self._read_committed else fetched.high_watermark
        has_all = end >= self.range.until_offset
        if self.asked_follower:
            # It lags behind, or is slow at remote storage: what is not there at all, only the leader knows.
            self._empty_answers = self._empty_answers + 1 if answer_is_empty or not has_all else 0
            return Wait() if self._empty_answers < EMPTY_ANSWERS_TO_BELIEVE else ReadFrom(LEADER)
        # An open transaction holds back the last stable offset alone: that is no short log.
        is_short = 0 <= fetched.high_watermark <= self.position
        self._empty_answers = self._empty_answers + 1 if answer_is_empty and has_all else 0
        self._short_answers = self._short_answers + 1 if is_short else 0
        if max(self._empty_answers, self._short_answers) < EMPTY_ANSWERS_TO_BELIEVE:
            return Wait()
        self._empty_answers = self._short_answers = 0
        return NothingMore(log_is_short=is_short)

    def _on_records(self, fetched: FetchedPartition) -> Instruction:
        self._empty_answers = self._short_answers = 0
        from_offset = self.position
        try:
            headers = scan(fetched.records, self._check_crcs)
        except CorruptBatchError as error:
            return self._on_corrupt(error)
        except KafkaMetaError as error:
            return Fail(type(error)(f"{self.range.partition} at offset {from_offset}: {error}"))
        position, epoch = next_position(headers)
        self._bytes_per_offset = len(fetched.records) / max(position - headers[0].base_offset, 1)
        if position <= from_offset:
            return Wait()
        self.position, self.last_fetched_epoch = min(position, self.range.until_offset), epoch
        return Emit(
            FetchedRecords(
                partition=self.range.partition,
                records=fetched.records,
                headers=headers,
                from_offset=from_offset,
                until_offset=self.range.until_offset,
                aborted_transactions=fetched.aborted_transactions,
                read_committed=self._read_committed,
            )
        )
