"""What a `PartitionCursor` wants done next: one frozen instruction for each response."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafka_meta.errors import CorruptBatchError, KafkaMetaError
from pyspark_kafka_meta.kafka.protocol.messages import DivergingEpoch
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords
from pyspark_kafka_meta.model import RefreshReason


@dataclass(frozen=True, slots=True)
class Emit:
    """Decode these records to rows; the cursor has moved behind them."""

    records: FetchedRecords


@dataclass(frozen=True, slots=True)
class Refresh:
    """The cached leader is wrong: refresh metadata for this reason, then fetch again."""

    reason: RefreshReason
    error_code: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Fetch again: after a backoff for an error, at once if the broker merely had no records yet (0)."""

    error_code: int = 0


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Fetch from this replica from now on, or from `LEADER`."""

    node_id: int


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The broker reports that the position is outside its log: ask the leader for its first and last offset."""


@dataclass(frozen=True, slots=True)
class EmptyResponses:
    """Several responses in a row were empty before the end of the range: ask the leader for its offsets.

    Attributes:
        log_is_short: whether its log, or its high watermark, ends at the position or before. If not, the log reaches
            the end of the range, and compaction may have removed the last records.
    """

    log_is_short: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets [from_offset, until_offset) are lost because of `cause`: report them and continue behind them, or where
    the log was truncated, because its new records are unread."""

    cause: str
    from_offset: int
    until_offset: int
    truncated_to: DivergingEpoch | None = None


@dataclass(frozen=True, slots=True)
class CorruptBatch:
    """A record batch was corrupt in two fetches: fail, or continue behind `lost`; None if its end is unknown."""

    error: CorruptBatchError
    lost: Lost | None


@dataclass(frozen=True, slots=True)
class Fail:
    """The error is not retriable."""

    error: KafkaMetaError


Instruction = Emit | Refresh | Wait | ReadFrom | OutOfRange | EmptyResponses | Lost | CorruptBatch | Fail
