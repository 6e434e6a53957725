"""Turns Spark's Arrow batches into chunks of records that are encoded together, and checks their rows.

Spark hands over 10,000 rows at a time, whatever their size: small batches are joined, large ones are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.errors import InvalidRowError, RecordTooLargeError
from pyspark_kafka_meta.records.encoder import Records, record_sizes
from pyspark_kafka_meta.records.record_fields import Ints, Longs
from pyspark_kafka_meta.sink_schema import SinkColumns

CHUNK_ROWS = 131_072
CHUNK_BYTES = 16 * 1024 * 1024
"""A broker takes the next request of a connection once all replicas have the last, so few large requests are faster."""
NO_CHOICE = -1
"""Instead of a partition: the row chooses none."""


@dataclass(frozen=True, slots=True)
class InputRows:
    """Consecutive rows of a task.

    Attributes:
        first_row: number of the first row in the task, from 0.
        sizes: of each record, an upper bound of its bytes.
        topic: of each row; None if the option `topic` names the topic of all rows.
        chosen: partition of each row, or `NO_CHOICE`; None if there is no column `partition`.
    """

    first_row: int
    records: Records
    sizes: Longs
    topic: pa.StringArray | None
    chosen: Ints | None

    def __len__(self) -> int:
        return len(self.sizes)

    def slice(self, start: int, stop: int) -> InputRows:
        records = Records(
            self.records.key[start:stop],
            self.records.value[start:stop],
            None if self.records.headers is None else self.records.headers[start:stop],
            self.records.timestamp_ms[start:stop],
        )
        return InputRows(
            self.first_row + start,
            records,
            self.sizes[start:stop],
            None if self.topic is None else self.topic[start:stop],
            None if self.chosen is None else self.chosen[start:stop],
        )


def read_rows(
    batches: Iterable[pa.RecordBatch],
    columns: SinkColumns,
    chunk_bytes: int,
    max_record_bytes: int,
    now_ms: Callable[[], int],
) -> Iterator[InputRows]:
    """The rows in chunks of about `chunk_bytes` and at most `CHUNK_ROWS`, none of them empty.

    Args:
        max_record_bytes: limit of each record.
        now_ms: timestamp of rows without one, ms since 1970 UTC.

    Raises:
        InvalidRowError: a row has no topic, an impossible partition, or a header without a key.
        RecordTooLargeError: a row is larger than allowed.
    """
    pending: list[InputRows] = []
    pending_rows = pending_bytes = row = 0
    for batch in batches:
        rows = _checked(_rows(batch, columns, row, now_ms()), max_record_bytes)
        row += len(rows)
        ends, start = np.cumsum(rows.sizes), 0
        while start < len(rows):
            begin = int(ends[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends, begin + chunk_bytes - pending_bytes, side="right"))
            stop = min(max(fitting, start + (not pending)), start + CHUNK_ROWS - pending_rows)
            if stop > start:
                pending.append(rows.slice(start, stop))
                pending_rows, pending_bytes = pending_rows + stop - start, pending_bytes + int(ends[stop - 1]) - begin
            if stop < len(rows) or pending_rows == CHUNK_ROWS:
                yield _joined(pending)
                pending, pending_rows, pending_bytes = [], 0, 0
            start = stop
    if pending:
        yield _joined(pending)


def _rows(batch: pa.RecordBatch, columns: SinkColumns, first_row: int, now_ms: int) -> InputRows:
    def column(position: int | None) -> pa.Array | None:
        return None if position is None else batch.column(position)

    key, partition, headers = column(columns.key), column(columns.partition), column(columns.headers)
    records = Records(
        pa.nulls(len(batch), pa.binary()) if key is None else key.cast(pa.binary()),
        batch.column(columns.value).cast(pa.binary()),
        headers,
        _timestamps_ms(column(columns.timestamp), len(batch), now_ms),
    )
    topic = column(columns.topic)
    chosen = None if partition is None else pc.fill_null(partition, NO_CHOICE).to_numpy(zero_copy_only=False)
    if partition is not None and pc.any(pc.less(partition, 0)).as_py():
        at = int(np.argmax(pc.fill_null(pc.less(partition, 0), False).to_numpy(zero_copy_only=False)))
        raise InvalidRowError(
            f"row {first_row + at} has partition {partition[at]}: use a number from 0 on, or null for any partition"
        )
    sizes = record_sizes(records, first_row)
    return InputRows(first_row, records, sizes, None if topic is None else topic.cast(pa.string()), chosen)


def _timestamps_ms(timestamp: pa.Array | None, count: int, now_ms: int) -> Longs:
    """Spark's microseconds as Kafka's milliseconds, rounded down; the current time where there is none."""
    if timestamp is None:
        return np.full(count, now_ms, np.int64)
    us = timestamp.cast(pa.timestamp("us", tz=timestamp.type.tz)).view(pa.int64())
    return np.asarray(pc.fill_null(us, now_ms * 1000).to_numpy(zero_copy_only=False) // 1000)


def _checked(rows: InputRows, max_record_bytes: int) -> InputRows:
    if rows.topic is not None and rows.topic.null_count:
        at = int(np.argmax(rows.topic.is_null().to_numpy(zero_copy_only=False)))
        raise InvalidRowError(
            f"null topic present in the data, in row {rows.first_row + at}. Use the topic option for setting a topic."
        )
    if len(rows) and rows.sizes.max() > max_record_bytes:
        at = int(np.argmax(rows.sizes))
        raise RecordTooLargeError(
            f"row {rows.first_row + at} makes a record of up to {rows.sizes[at]} bytes, more than "
            f"kafka.max.request.size ({max_record_bytes}) allows: raise it, and max.message.bytes of the topic"
        )
    return rows


def _joined(pieces: list[InputRows]) -> InputRows:
    if len(pieces) == 1:
        return pieces[0]
    records = Records(
        pa.concat_arrays([piece.records.key for piece in pieces]),
        pa.concat_arrays([piece.records.value for piece in pieces]),
        _concat([piece.records.headers for piece in pieces]),
        np.concatenate([piece.records.timestamp_ms for piece in pieces]),
    )
    choices = [piece.chosen for piece in pieces if piece.chosen is not None]
    return InputRows(
        pieces[0].first_row,
        records,
        np.concatenate([piece.sizes for piece in pieces]),
        _concat([piece.topic for piece in pieces]),
        np.concatenate(choices) if choices else None,
    )


def _concat(arrays: list[pa.Array | None]) -> pa.Array | None:
    """Either all arrays are None, or no array is."""
    return None if arrays[0] is None else pa.concat_arrays(arrays)
