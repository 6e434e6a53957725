"""Record batches for tests of readers, written by kio, which shares no code with this package's decoder."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_new_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

WRITTEN = datetime(2024, 5, 17, tzinfo=UTC)


def batch(values: Sequence[str], base_offset: int = 0, epoch: int = 0, written: datetime = WRITTEN) -> bytes:
    """A batch with these values at consecutive offsets."""
    return sparse_batch({base_offset + index: value for index, value in enumerate(values)}, epoch, written)


def sparse_batch(values: Mapping[int, str], epoch: int = 0, written: datetime = WRITTEN) -> bytes:
    """A batch with values by offset, with gaps as after compaction."""
    buffer = io.BytesIO()
    timestamp = TZAwareMicros.parse(written)
    records = tuple(
        Record(attributes=i8(0), timestamp=timestamp, offset=i64(offset), key=None, value=value.encode(), headers=())
        for offset, value in values.items()
    )
    write_new_batch(
        buffer,
        NewRecordBatch(
            producer_id=i64(-1),
            producer_epoch=i16(-1),
            partition_leader_epoch=i32(epoch),
            base_sequence=i32(-1),
            records=records,
            attributes=i16(0),
        ),
    )
    return buffer.getvalue()
