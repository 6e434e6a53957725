"""What a `PartitionCursor` wants done next: one frozen instruction for each answer that it was given."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafka_meta.errors import CorruptBatchError, KafkaMetaError
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.records.decoder import FetchedRecords
from pyspark_kafka_meta.wire.messages import DivergingEpoch


@dataclass(frozen=True, slots=True)
class Emit:
    """Give these records out as rows; the cursor has moved behind them."""

    records: FetchedRecords


@dataclass(frozen=True, slots=True)
class Refresh:
    """The broker is not who the cache says: ask for metadata for this reason, then fetch again."""

    reason: RefreshReason
    error_code: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Fetch again after a pause; 0 where the broker merely had nothing yet."""

    error_code: int = 0


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Fetch from this replica from now on, or from `LEADER`."""

    node_id: int


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The broker says that the position is outside its log: ask the leader for its first and last offset."""


@dataclass(frozen=True, slots=True)
class NothingMore:
    """The leader has sent nothing for a while although the range is not read to its end: ask it for its offsets.

    Attributes:
        log_is_short: whether its log, or what it knows to be committed of that, ended at the position or before.
            Otherwise the log went up to the end of the range, so that compaction may have removed the last records.
    """

    log_is_short: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets [from_offset, until_offset) cannot be read any more, for `cause`. `skip_lost` goes on behind them, or
    where the log was truncated, whose new records nobody has read."""

    cause: str
    from_offset: int
    until_offset: int
    truncated_to: DivergingEpoch | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record batch is corrupt, and was so when it was fetched before: give up, or go on behind `lost` if it is known
    where that is."""

    error: CorruptBatchError
    lost: Lost | None


@dataclass(frozen=True, slots=True)
class Fail:
    """Asking again will not help."""

    error: KafkaMetaError


Instruction = Emit | Refresh | Wait | ReadFrom | OutOfRange | NothingMore | Lost | Unreadable | Fail
