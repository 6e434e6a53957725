"""`PartitionCursor`: progress of a task through the offsets of one partition, without I/O.

A partition is a log: a sequence of records, numbered by offsets. One broker, the leader, appends records, and followers
copy them. Readers get records before the high watermark, the offset up to which enough followers have copied the log.
Each election of a leader raises the leader epoch, and a record batch carries the epoch in which it was written. A log
loses its first records when they age out. It is truncated, which removes its last records, when an unclean election
makes a broker leader that lacks them; new records then get the same offsets.

`request` makes the partition's part of the next Fetch. Each `on_...` method takes an event, and returns an
`Instruction` for the `FetchSender`. The offsets of the range before `position` were emitted, hold no records,
or were reported as lost. `position` moves forward over record batches, whose checksums are verified unless
kafka.check.crcs is false, and over lost offsets. It moves back if the log was truncated, or if emitted records cannot
be decoded. It never leaves the range. Follows Kafka's `FetchCollector` and Spark's `KafkaDataConsumer`.

| state | meaning | what ends it |
|---|---|---|
| ready | `is_ready` is true | the next Fetch to its broker |
| in a Fetch | `FetchSender` waits for the response | the response, a failure; if it is overdue, a new leader |
| waiting for metadata | the cached leader is missing or wrong | metadata of a later generation |
| paused | `not_before` is in the future | the time |
| done | `position` is the end of the range | corrupt records among the last that were emitted |

| suspicion | when it becomes an instruction | what refutes it before |
|---|---|---|
| the cached epoch is wrong | after `MAX_UNKNOWN_EPOCHS` errors: `Refresh` | a response without an error |
| the log ends at the position | after `MAX_EMPTY_RESPONSES`: `EmptyResponses` | records, another high watermark |
| compaction removed the rest | after as many empty responses: `EmptyResponses` | records of any partition |
| the position is outside the log | at once: `OutOfRange` | nothing |
| the record batch is corrupt | in the second fetch of it: `CorruptBatch` | an intact batch |

After `EmptyResponses` and `OutOfRange`, `LostRecords` asks the leader for its offsets before any record counts as lost.

Races, and their guards:

- A former leader. 1. B is elected in place of A, and the cache still names A. 2. A, a follower now, would serve the
  Fetch from its copy of the log, without an error: nothing would show that the cache is stale. Guard: `request` names
  the cached epoch, which A refuses; `on_error` returns `Refresh`.
- A log that is truncated and grows. 1. Offsets 5 to 8 were read, and the log is truncated to 5. 2. New records get the
  offsets 5 to 20. 3. The next Fetch, from 9 on, would miss four of them. Guard: `request` names the epoch of the last
  record that was read, and the leader responds where its log diverges. `_on_diverging_epoch` returns `Lost`, and
  `skip_lost` moves the position to 5.
- A longer log without the epoch. 1. Offsets 7 and 8 were read, both of epoch 4. 2. An unclean election chooses a log
  with records of epoch 3 up to offset 12, and none of epoch 4. 3. The leader reports that epoch 3 ends at 12, after the
  position: the offsets alone show no loss. Guard: `_epoch_start`, here 7, from which `Position.kept_until` knows that
  offsets 7 and 8 were replaced. It is unknown until a record of the epoch was read: the planned epoch may be of a
  leader that wrote nothing, and such an epoch leaves no trace in other logs.
- A follower that lags behind. 1. The leader names a follower to read from. 2. The follower reports an error or a
  diverging epoch, or sends nothing, although the leader has the records. Guard: if `asked_follower`, `on_fetched`,
  `on_error` and `_on_empty` return `ReadFrom(LEADER)`; its empty responses are not added to the leader's.
- A choice that expires. 1. The leader names a follower that lags behind. 2. kafka.metadata.max.age.ms is short: the
  choice of the follower, or then of the leader, expires before the third empty response. 3. The leader gets the rack,
  and names the follower again, for ever. Guard: each counts on over the responses of the other.
- A leader that was just elected. 1. It has all records, but does not know yet that its followers have them, so that its
  high watermark is too low (KIP-207). 2. It sends nothing, like a log that ends at the position. Guard: `_on_empty`
  counts such responses, and `LostRecords` gives the log time.
- A full response. 1. The records of other partitions fill the responses to several Fetches. 2. This partition has
  records, and gets none, as if compaction had removed them. Guard: `response_is_empty` in `_on_empty`.
- Corrupt records. 1. `_on_records` moves the position, and the next Fetch is sent. 2. Only then the records are
  decoded: if a batch is corrupt, its rows and the rows after it would be missing. Guard: `on_undecodable` moves the
  position back, and the caller calls `FetchSender.forget`, so that the response in flight is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from pyspark_kafka_meta.errors import CorruptBatchError, KafkaMetaError
from pyspark_kafka_meta.kafka.client.next_request import LEADER, BackOff, Fail, Refresh, RetryPause
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    CORRUPT_MESSAGE,
    INCONSISTENT_TOPIC_ID,
    UNKNOWN_LEADER_EPOCH,
    Action,
    broker_error,
    describe,
    read_action,
    refresh_reason,
)
from pyspark_kafka_meta.kafka.protocol.fetch import DivergingEpoch, FetchedPartition, FetchPartition
from pyspark_kafka_meta.kafka.records.batches import next_position, read_batch_headers
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords
from pyspark_kafka_meta.model import NO_EPOCH, NO_OFFSET, OffsetRange, Position


@dataclass(frozen=True, slots=True)
class Emit:
    """Decode these records to rows; the cursor has moved past them."""

    records: FetchedRecords


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Fetch from this replica from now on, or from `LEADER`."""

    node_id: int


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The broker reports that the position is outside its log: ask the leader for its first and last offset."""


@dataclass(frozen=True, slots=True)
class EmptyResponses:
    """Several responses in a row held no records before the end of the range: ask the leader for its offsets.

    Attributes:
        log_is_short: whether its log, or its high watermark, ends at the position or before. If not, the log reaches
            the end of the range, and compaction may have removed the last records.
    """

    log_is_short: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets [from_offset, until_offset) are lost because of `cause`: report them, and continue after them. If the log
    was truncated, continue where it was truncated, because its new records are unread."""

    cause: str
    from_offset: int
    until_offset: int
    truncation: DivergingEpoch | None = None


@dataclass(frozen=True, slots=True)
class CorruptBatch:
    """A record batch was corrupt in two fetches: fail, or continue after `lost`; None if its end is unknown."""

    error: CorruptBatchError
    lost: Lost | None


Instruction = Emit | Refresh | BackOff | ReadFrom | OutOfRange | EmptyResponses | Lost | CorruptBatch | Fail | None
"""What a cursor wants done next, one for each response. None: fetch again, as the broker merely had no records yet."""


MIN_FETCH_BYTES = 64 * 1024
"""First lower bound of a partition's share of a Fetch, so that an estimate that is too small costs little."""
MAX_BATCH_BYTES = 1024 * 1024
"""Up to which the lower bound grows: larger record batches need another max.message.bytes than Kafka's default."""
INITIAL_BYTES_PER_OFFSET = 1024
MAX_EMPTY_RESPONSES = 3
"""Empty responses in a row after which the leader is asked: for the records, if a follower sent the responses; else for
its offsets."""
MAX_UNKNOWN_EPOCHS = 3
"""UNKNOWN_LEADER_EPOCH errors in a row after which the cached epoch counts as wrong. Before, the broker may not have
learned of its own election yet."""


class PartitionCursor(RetryPause):
    """Progress through one `OffsetRange`. Its fields are read-only for other classes.

    Attributes:
        position: the next offset to read; equal to `range.until_offset` when done.
        last_fetched_epoch: leader epoch of the record before `position`, `NO_EPOCH` if unknown. Before the first record
            it may be the epoch of a leader that wrote nothing.
        leader_epoch: in the last request, from the cache.
        last_error: error code of the last response if it brought no progress; 0 if it had none.
        asked_follower: whether the last request was for a follower.
    """

    def __init__(self, offset_range: OffsetRange, read_committed: bool, max_bytes: int, check_crcs: bool) -> None:
        super().__init__(offset_range.partition)
        self.range = offset_range
        self.position = offset_range.from_offset
        self.last_fetched_epoch = offset_range.start_epoch
        self._epoch_start = NO_OFFSET  # first offset that was read in `last_fetched_epoch`
        self.leader_epoch = NO_EPOCH
        self.last_error = 0
        self.asked_follower = False
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._max_bytes = max_bytes
        self._bytes_per_offset: float = INITIAL_BYTES_PER_OFFSET
        self._min_bytes = MIN_FETCH_BYTES
        self._empty_responses = 0
        self._empty_at_follower = 0  # of followers since the last records, whatever the leader sent between
        self._short_logs = 0
        self._unknown_epochs = 0
        self._corrupt_at = -1  # position of the last corrupt batch

    @property
    def done(self) -> bool:
        return self.position >= self.range.until_offset

    def request(self, topic_id: UUID | None, leader_epoch: int, of_follower: bool = False) -> FetchPartition:
        """The partition of a Fetch: about as many bytes as the rest of the range is likely to take."""
        self.asked_follower = of_follower
        self.leader_epoch = leader_epoch
        estimated_bytes = int((self.range.until_offset - self.position) * self._bytes_per_offset * 1.1)
        return FetchPartition(
            partition=self.range.partition,
            topic_id=topic_id,
            fetch_offset=self.position,
            leader_epoch=leader_epoch,
            last_fetched_epoch=self.last_fetched_epoch,
            max_bytes=min(max(estimated_bytes, self._min_bytes), self._max_bytes),
        )

    def on_fetched(
        self, fetched: FetchedPartition, response_is_empty: bool, one_was_served: bool = False
    ) -> Instruction:
        """Take one partition of a Fetch response.

        Args:
            response_is_empty: whether the whole response held no records and no throttling. If not, an empty partition
                proves nothing: another partition may have used up its share.
            one_was_served: whether the response held records of one partition alone. A broker sends a record batch that
                is larger than its partition's share for the first partition alone (KIP-74): then the next batches of
                the others may be larger too, and one response each would take long.
        """
        if fetched.error_code != 0:
            return self.on_error(fetched.error_code)
        self.last_error = self._unknown_epochs = 0
        if fetched.preferred_read_replica >= 0 and not fetched.records:
            return ReadFrom(LEADER if self.asked_follower else fetched.preferred_read_replica)
        if fetched.diverging_epoch is not None:
            return ReadFrom(LEADER) if self.asked_follower else self._on_diverging_epoch(fetched.diverging_epoch)
        if not fetched.records:
            if one_was_served:
                self._min_bytes = min(4 * self._min_bytes, MAX_BATCH_BYTES)
            return self._on_empty(fetched, response_is_empty)
        return self._on_records(fetched)

    def on_no_leader(self, code: int) -> Instruction:
        """Take an error code of the metadata, which no other replica can correct."""
        self.asked_follower = False
        return self.on_error(code)

    def on_request_failed(self) -> Instruction:
        """Take a Fetch without a response. None if it was for the leader: the caller then waits for newer metadata."""
        self.last_error = 0
        return ReadFrom(LEADER) if self.asked_follower else None

    def on_unconfirmed_topic(self) -> Instruction:
        """Take records that may be of another topic of this name: fetch them again."""
        self.last_error = INCONSISTENT_TOPIC_ID
        return ReadFrom(LEADER) if self.asked_follower else BackOff()

    def on_error(self, code: int) -> Instruction:
        """Take an error code of the partition, or of the whole response."""
        self.last_error = code
        if self.asked_follower:
            return ReadFrom(LEADER)  # a follower may lag behind, or be no replica any more
        if code == CORRUPT_MESSAGE:
            return self._on_corrupt(CorruptBatchError(f"its broker cannot read the record batch: {describe(code)}"))
        self._unknown_epochs = self._unknown_epochs + 1 if code == UNKNOWN_LEADER_EPOCH else 0
        match read_action(code):
            case Action.RETRY if self._unknown_epochs >= MAX_UNKNOWN_EPOCHS:
                return Refresh(refresh_reason(code), code)
            case Action.REFRESH:
                return Refresh(refresh_reason(code), code)
            case Action.RETRY:
                return BackOff()
            case Action.DATA_LOSS:
                return OutOfRange()
            case _:
                return Fail(
                    broker_error(f"{self.range.partition} cannot be read", code, self.range.partition.topic, "READ")
                )

    def on_log_start(self, earliest: int) -> Instruction:
        """After `OutOfRange`: take the first offset of the leader's log, which does not end before the position."""
        if self.position < earliest:
            until = min(earliest, self.range.until_offset)
            return Lost(f"they aged out or were deleted; the log starts at offset {earliest} now", self.position, until)
        # A leader that does not know the epoch at all reports OFFSET_OUT_OF_RANGE too.
        self._forget_epoch()
        return BackOff()

    def on_local_start(self, offset: int) -> Instruction:
        """After `EmptyResponses`: take the first offset on the leader's own disk. A position before it is in remote
        storage, which may be slow. From this offset on, the leader would send records if it had any: compaction has
        removed them up to the end of the range."""
        if self.position < offset:
            return BackOff()
        self.position = self.range.until_offset
        return None

    def on_undecodable(self, error: CorruptBatchError) -> Instruction:
        """Take the error of decoding an `Emit`: its records are corrupt from `error.from_offset`."""
        assert error.from_offset is not None
        self.position = error.from_offset
        self._forget_epoch()
        return self._on_corrupt(error)

    def _forget_epoch(self, known: int = NO_EPOCH) -> None:
        """Set the epoch of the record before the position. Where the records of this epoch begin is unknown."""
        self.last_fetched_epoch, self._epoch_start = known, NO_OFFSET

    def _on_corrupt(self, error: CorruptBatchError) -> Instruction:
        """Fetch the batch again, from the leader: another replica, or another transfer, may be intact."""
        if self._corrupt_at != self.position:
            self._corrupt_at = self.position
            self.last_error = CORRUPT_MESSAGE
            return ReadFrom(LEADER) if self.asked_follower else BackOff()
        self.succeeded()
        until = min(error.until_offset or 0, self.range.until_offset)
        return CorruptBatch(error, Lost(str(error), self.position, until) if until > self.position else None)

    def skip_lost(self, lost: Lost) -> None:
        """Continue after lost offsets. In a truncated log, continue at the truncation, as Kafka's consumer does
        (`SubscriptionState.maybeCompleteValidation`): offsets that were emitted are read again, with the records that
        replaced them. Never before the range: a micro-batch has no offsets but those that Spark logged."""
        truncation = lost.truncation
        if truncation is not None and truncation.end_offset >= self.range.from_offset:
            self.position = truncation.end_offset
            self._forget_epoch(truncation.epoch)
        else:
            self.position = self.range.from_offset if truncation is not None else lost.until_offset
            self._forget_epoch()

    def _on_diverging_epoch(self, diverging: DivergingEpoch) -> Instruction:
        read = Position(self.position, self.last_fetched_epoch, self._epoch_start)
        kept_until = read.kept_until(diverging.epoch, diverging.end_offset)
        if kept_until >= self.position:
            # Both logs agree up to the position. The epoch came from ListOffsets, and a leader that wrote nothing in
            # its epoch leaves no trace of it at its successor.
            self._forget_epoch(diverging.epoch)
            return None
        cause = (
            f"the log was truncated to offset {kept_until} (leader epoch {self.last_fetched_epoch}, now "
            f"{self.leader_epoch}) after these records had been read, as an unclean leader election does"
        )
        start = self.range.from_offset
        if kept_until < start:
            replaced = f"{kept_until} to {start - 1}"
            cause += f"; a stream reads the records that replaced offsets {replaced} in its next micro-batch"
        return Lost(cause, kept_until, self.position, truncation=DivergingEpoch(diverging.epoch, kept_until))

    def _on_empty(self, fetched: FetchedPartition, response_is_empty: bool) -> Instruction:
        end = fetched.last_stable_offset if self._read_committed else fetched.high_watermark
        has_all = end >= self.range.until_offset
        if self.asked_follower:
            # A follower may lag behind, or be slow at remote storage: only the leader knows that records are missing.
            self._empty_at_follower = self._empty_at_follower + 1 if response_is_empty or not has_all else 0
            return None if self._empty_at_follower < MAX_EMPTY_RESPONSES else ReadFrom(LEADER)
        # The high watermark, because an open transaction holds back the last stable offset alone.
        is_short = 0 <= fetched.high_watermark <= self.position
        self._empty_responses = self._empty_responses + 1 if response_is_empty and has_all else 0
        self._short_logs = self._short_logs + 1 if is_short else 0
        if max(self._empty_responses, self._short_logs) < MAX_EMPTY_RESPONSES:
            return None
        self._empty_responses = self._short_logs = 0
        return EmptyResponses(log_is_short=is_short)

    def _on_records(self, fetched: FetchedPartition) -> Instruction:
        self._empty_responses = self._empty_at_follower = self._short_logs = 0
        from_offset = self.position
        try:
            headers = read_batch_headers(fetched.records, self._check_crcs)
        except CorruptBatchError as error:
            return self._on_corrupt(error)
        except KafkaMetaError as error:
            return Fail(type(error)(f"{self.range.partition} at offset {from_offset}: {error}"))
        position, epoch = next_position(headers)
        self._bytes_per_offset = len(fetched.records) / max(position - headers[0].base_offset, 1)
        if position <= from_offset:
            return None
        if epoch != self.last_fetched_epoch or self._epoch_start == NO_OFFSET:
            first = next(header.base_offset for header in headers if header.leader_epoch == epoch)
            self._epoch_start = max(first, from_offset)
        self.position, self.last_fetched_epoch = min(position, self.range.until_offset), epoch
        self.succeeded()
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
