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
from pyspark_kafka_meta.kafka.records.encoder import MAX_CHUNK_BYTES, Records, record_sizes
from pyspark_kafka_meta.kafka.records.fields import Ints, Longs
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, records_arrow_schema
from pyspark_kafka_meta.write.input_columns import SinkColumns

CHUNK_ROWS = 131_072
CHUNK_BYTES = 16 * 1024 * 1024
"""A broker takes the next request of a connection once all replicas have the last, so few large requests are faster."""
PART_BYTES = 256 * 1024 * 1024
"""A larger Arrow batch is read in parts: offsets of Arrow's binary type are int32, large types may have more bytes."""
NO_CHOICE = -1
"""Instead of a partition: the row chooses none."""
_HEADERS = records_arrow_schema([HEADERS_COLUMN]).field(0).type


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
    part_bytes: int = PART_BYTES,
) -> Iterator[InputRows]:
    """The rows in chunks of about `chunk_bytes` and at most `CHUNK_ROWS`, none of them empty.

    Args:
        max_record_bytes: limit of each record.
        now_ms: timestamp of rows without one, ms since 1970 UTC.
        part_bytes: how many bytes of rows are converted together; a larger row alone.

    Raises:
        InvalidRowError: a row has no topic, an impossible partition or timestamp, a header without a key, or a key or
            value that its schema does not allow.
        RecordTooLargeError: a row is larger than allowed.
    """
    pending: list[InputRows] = []
    pending_rows = pending_bytes = first_row = 0
    for part in (part for batch in batches for part in _parts(batch, part_bytes)):
        rows = _checked(_rows(part, columns, first_row, now_ms()), max_record_bytes)
        first_row += len(rows)
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


def _parts(batch: pa.RecordBatch, part_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batch, in halves if it is larger than a part."""
    if len(batch) <= 1 or batch.nbytes <= part_bytes:
        yield batch
    else:
        half = len(batch) // 2
        yield from _parts(batch.slice(0, half), part_bytes)
        yield from _parts(batch.slice(half), part_bytes)


def _rows(batch: pa.RecordBatch, columns: SinkColumns, first_row: int, now_ms: int) -> InputRows:
    def column(position: int | None, kind: pa.DataType) -> pa.Array | None:
        return None if position is None else _whole(batch.column(position)).cast(kind)

    def encoded(name: str, position: int | None) -> pa.Array | None:
        typed = columns.typed.get(name)
        if typed is None or position is None:
            return column(position, pa.binary())
        return typed.encode(_whole(batch.column(position)), first_row)

    if len(batch) == 1 and batch.nbytes > MAX_CHUNK_BYTES:
        raise RecordTooLargeError(
            f"row {first_row} has {batch.nbytes} bytes, and no record has more than {MAX_CHUNK_BYTES}: write less"
        )
    key, value = encoded("key", columns.key), encoded("value", columns.value)
    headers = column(columns.headers, _HEADERS)
    for name, typed in columns.typed.items():
        if typed.header_frame:
            headers = pa.nulls(len(batch), _HEADERS) if headers is None else headers
            headers = typed.with_header(headers, key if name == "key" else value)
        elif typed.frame and headers is not None:
            headers = typed.without_header(headers)
    records = Records(
        pa.nulls(len(batch), pa.binary()) if key is None else key,
        value,
        headers,
        _timestamps_ms(column(columns.timestamp, pa.timestamp("us")), len(batch), first_row, now_ms),
    )
    partition = column(columns.partition, pa.int32())
    if partition is not None and (at := pc.less(partition, 0).index(True).as_py()) >= 0:
        raise InvalidRowError(
            f"row {first_row + at} has partition {partition[at]}: use a number from 0 on, or null for any partition"
        )
    chosen = None if partition is None else pc.fill_null(partition, NO_CHOICE).to_numpy(zero_copy_only=False)
    sizes = record_sizes(records, first_row)
    return InputRows(first_row, records, sizes, column(columns.topic, pa.string()), chosen)


def _whole(column: pa.Array) -> pa.Array:
    """The column with its own memory. The offsets of a slice may need 64 bits: they are of the whole column."""
    return pa.concat_arrays([column]) if column.offset else column


def _timestamps_ms(timestamp: pa.Array | None, count: int, first_row: int, now_ms: int) -> Longs:
    """Spark's microseconds as Kafka's milliseconds, rounded down; the current time where there is none. Kafka's
    `ProducerRecord` refuses negative timestamps too: brokers append them, and can neither compact nor convert them."""
    if timestamp is None:
        return np.full(count, now_ms, np.int64)
    us = pc.fill_null(timestamp.view(pa.int64()), now_ms * 1000).to_numpy(zero_copy_only=False)
    timestamp_ms: Longs = us // 1000
    if timestamp_ms.min(initial=0) < 0:
        at = int(np.argmax(timestamp_ms < 0))
        time = timestamp[at].cast(pa.string())  # which, unlike Python, knows years before 1
        raise InvalidRowError(
            f"row {first_row + at} has timestamp {time} UTC, and Kafka has none before 1970: correct it, or use null "
            "for the current time"
        )
    return timestamp_ms


def _checked(rows: InputRows, max_record_bytes: int) -> InputRows:
    if rows.topic is not None and rows.topic.null_count:
        at = rows.topic.is_null().index(True).as_py()
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
