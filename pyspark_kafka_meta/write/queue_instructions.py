"""What a `PartitionQueue` wants done after a response: one frozen instruction; None if nothing."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.model import RefreshReason


@dataclass(frozen=True, slots=True)
class Refresh:
    """The cached leader is wrong: refresh metadata for this reason, then send the batch again."""

    reason: RefreshReason
    error_code: int


@dataclass(frozen=True, slots=True)
class BackOff:
    """Send the batch again after a backoff."""

    error_code: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The error is not retriable: the task fails."""

    error: KafkaMetaError


Instruction = Refresh | BackOff | Fail | None
