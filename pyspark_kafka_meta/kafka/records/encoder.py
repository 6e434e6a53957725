"""Encodes Arrow columns into record batches. Follows Kafka's `MemoryRecordsBuilder`.

All rows of a chunk are encoded together: the varints before the keys and before the values become columns too, and
Arrow joins all columns to a column of encoded records. No Python object is made for a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import data_of, list_lengths, number_array, offsets_of
from pyspark_kafka_meta.errors import InvalidRowError
from pyspark_kafka_meta.kafka.records.batches import HEADER_BYTES, TRANSACTIONAL, read_batch_headers, write_batch
from pyspark_kafka_meta.kafka.records.compression import Compression, compress
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.kafka.records.fields import Ints, Longs
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN
from pyspark_kafka_meta.model import NO_PRODUCER, ProducerIdAndEpoch, TopicPartition

MAX_CHUNK_BYTES = 2**31 - 1
"""Limit for the records of one call of `encode`: offsets of Arrow's binary type are int32."""

_ATTRIBUTES = np.zeros(1, np.int32)
_ATTRIBUTES_BYTES = 1
_MAX_RECORD_OVERHEAD = 5 + _ATTRIBUTES_BYTES + 10 + 5
"""As in Kafka's `DefaultRecord`: length, attributes, timestamp delta, offset delta."""


@dataclass(frozen=True, slots=True)
class Records:
    """The columns of records, all of equal length; slices of arrays are accepted, chunked and large arrays are not.

    Attributes:
        key, value: of type binary. Null and empty differ.
        headers: of type list<struct<key: string, value: binary>>; null and an empty list are no headers. None if no
            record has headers.
    """

    key: pa.BinaryArray
    value: pa.BinaryArray
    headers: pa.ListArray | None
    timestamp_ms: Longs

    def take(self, rows: Ints) -> Records:
        """The records at these indexes, in this order."""
        indexes = number_array(rows)
        headers = None if self.headers is None else self.headers.take(indexes)
        return Records(self.key.take(indexes), self.value.take(indexes), headers, self.timestamp_ms[rows])


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A record batch without its producer and sequence numbers.

    Attributes:
        partition: the number that `encode` got for these rows.
        rows: numbers of the records, in order; of a new batch, their indexes in the `Records` that were encoded.
        payload: the compressed records. Without a codec, a view of the memory of all batches of the chunk.
        records_bytes: before compression.
        is_copy: whether a log holds its records, which are written again.
    """

    partition: int
    rows: Ints | Longs
    payload: bytes | memoryview
    records_bytes: int
    compression: Compression
    base_timestamp: int
    max_timestamp: int
    is_copy: bool = False

    @property
    def record_count(self) -> int:
        return len(self.rows)

    @property
    def size_bytes(self) -> int:
        """With the header."""
        return HEADER_BYTES + len(self.payload)

    def to_bytes(self, producer: ProducerIdAndEpoch, base_sequence: int, is_transactional: bool = False) -> bytes:
        """The batch as it is sent. The base sequence of `NO_PRODUCER` is -1."""
        return write_batch(
            self.payload,
            attributes=self.compression.codec | (TRANSACTIONAL if is_transactional else 0),
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer=producer,
            base_sequence=base_sequence,
            record_count=self.record_count,
        )


def record_sizes(records: Records, first_row: int = 0) -> Longs:
    """An upper bound of each record's size in a batch, in bytes. Follows `DefaultRecord.recordSizeUpperBound`. Raises
    InvalidRowError: the key of a header is null.

    Args:
        first_row: number of the first record in errors.
    """
    sizes = _MAX_RECORD_OVERHEAD + _field_bytes(records.key) + _field_bytes(records.value)
    if records.headers is None:
        return sizes + 1
    counts, keys, values = _flatten_headers(records.headers, first_row)
    ends_at = np.cumsum(np.append(0, _field_bytes(keys) + _field_bytes(values)))
    until = np.cumsum(counts)
    header_bytes: Longs = ends_at[until] - ends_at[until - counts]
    return sizes + varint_bytes(counts) + header_bytes


def encode(
    records: Records,
    partition: Ints,
    sizes: Longs,
    max_batch_bytes: int,
    compression: Compression,
    compressed_share: float = 1.0,
) -> list[EncodedBatch]:
    """The record batches of all partitions, by partition. The rows of a partition keep their order.

    Args:
        partition: a number for each row, at least 0.
        sizes: `record_sizes(records)`. The sum is at most `MAX_CHUNK_BYTES`.
        max_batch_bytes: limit for a compressed batch with its header. A larger record is alone in its batch.
        compressed_share: the expected size of these records after compression, as a share of their size.
    """
    if sizes.sum() > MAX_CHUNK_BYTES:
        raise ValueError(
            f"{sizes.sum()} bytes of records in one chunk; encode at most {MAX_CHUNK_BYTES} bytes together"
        )
    # numpy sorts numbers of up to 16 bits by radix, eight times faster.
    order = np.argsort(partition.astype(np.min_scalar_type(partition.max(initial=0))), kind="stable").astype(np.int32)
    records, partition, sizes = records.take(order), partition[order], sizes[order]
    bounds = _batch_bounds(partition, sizes, int((max_batch_bytes - HEADER_BYTES) / compressed_share))
    starts, ends = bounds[:-1], bounds[1:]
    encoded = _encode_records(records, sizes, starts, ends)
    data, offsets = data_of(encoded), offsets_of(encoded)
    first_ms, max_ms = records.timestamp_ms[starts], np.maximum.reduceat(records.timestamp_ms, starts)
    columns = (partition[starts], starts, ends, offsets[starts], offsets[ends], first_ms, max_ms)
    batches = [
        EncodedBatch(
            partition=number,
            rows=order[start:end],
            payload=compress(compression, data[at:until]),
            records_bytes=until - at,
            compression=compression,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
        )
        for number, start, end, at, until, base_timestamp, max_timestamp in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
    return [part for batch in batches for part in _fitting(batch, max_batch_bytes)]


def compressed_share(batches: Sequence[EncodedBatch]) -> float:
    """The expected size of records like those of `batches` after compression, as a share of their size: a tenth more
    than theirs. Follows Kafka's `CompressionRatioEstimator`."""
    compressed_bytes = sum(len(batch.payload) for batch in batches)
    return min(1.1 * compressed_bytes / sum(batch.records_bytes for batch in batches), 1.0)


def _fitting(batch: EncodedBatch, max_batch_bytes: int) -> Iterator[EncodedBatch]:
    """The batch, in halves if it has compressed worse than expected."""
    if batch.size_bytes <= max_batch_bytes or batch.record_count == 1:
        yield batch
    else:
        for half in split(batch):
            yield from _fitting(half, max_batch_bytes)


def split(batch: EncodedBatch) -> tuple[EncodedBatch, EncodedBatch]:
    """The batch as two with half of the records each. It has at least two records."""
    data, count = batch.to_bytes(NO_PRODUCER, -1), batch.record_count
    part = FetchedRecords(TopicPartition("", batch.partition), data, read_batch_headers(data, False), 0, count)
    (rows,) = decode([part], ["key", "value", HEADERS_COLUMN, "timestamp"])
    timestamp_ms = rows["timestamp"].cast(pa.int64()).to_numpy() // 1000
    records = Records(rows["key"], rows["value"], rows[HEADERS_COLUMN], timestamp_ms)
    half = (np.arange(count) >= count // 2).astype(np.int32)
    halves = encode(records, half, record_sizes(records), MAX_CHUNK_BYTES, batch.compression)
    first, second = (
        replace(each, partition=batch.partition, rows=batch.rows[each.rows], is_copy=batch.is_copy) for each in halves
    )
    return first, second


def _batch_bounds(partition: Ints, sizes: Longs, room_bytes: int) -> Longs:
    """The index of the first record of each batch, and the number of records. Records are in order of partitions."""
    ends_at = np.cumsum(sizes)
    starts, at = [], 0
    for until in np.append(np.flatnonzero(np.diff(partition)) + 1, len(partition)).tolist():
        while at < until:
            starts.append(at)
            fitting = int(np.searchsorted(ends_at, ends_at[at] - sizes[at] + room_bytes, "right"))
            at = min(max(fitting, at + 1), until)
    return np.array([*starts, len(sizes)], np.int64)


def _encode_records(records: Records, sizes: Longs, starts: Longs, ends: Longs) -> pa.BinaryArray:
    """The records of batches with these bounds. `fields.py` has the layout."""
    counts = ends - starts
    offset_delta = np.arange(len(sizes), dtype=np.int32) - np.repeat(starts.astype(np.int32), counts)
    timestamp_delta = records.timestamp_ms - np.repeat(records.timestamp_ms[starts], counts)
    varying_bytes = _ATTRIBUTES_BYTES + varint_bytes(timestamp_delta) + varint_bytes(offset_delta)
    length = (sizes - _MAX_RECORD_OVERHEAD + varying_bytes).astype(np.int32)
    before_key = varints(length, _ATTRIBUTES, timestamp_delta, offset_delta, _lengths(records.key))
    before_value = varints(_lengths(records.value))
    return _join(before_key, records.key, before_value, records.value, *_encode_headers(records.headers))


def _encode_headers(headers: pa.ListArray | None) -> list[pa.BinaryArray | pa.BinaryScalar]:
    """Columns with the header count and the headers of each record."""
    if headers is None:
        return [pa.scalar(b"\x00")]
    counts, keys, values = _flatten_headers(headers)
    each = _join(varints(_lengths(keys)), keys, varints(_lengths(values)), values)
    offsets = offsets_of(each)[np.cumsum(np.append(0, counts))]
    return [
        varints(counts),
        pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(offsets), each.buffers()[2]]),
    ]


def _flatten_headers(headers: pa.ListArray, first_row: int = 0) -> tuple[Ints, pa.BinaryArray, pa.BinaryArray]:
    """The header count of each record, and the keys and values of all headers."""
    counts = list_lengths(headers)
    keys, values = headers.flatten().flatten()
    if keys.null_count:
        row = first_row + np.searchsorted(np.cumsum(counts), keys.is_null().index(True).as_py(), "right")
        raise InvalidRowError(
            f"row {row}: the key of a header is null, which Kafka does not allow; give each header a key"
        )
    return counts, keys.cast(pa.binary()), values


def _lengths(column: pa.BinaryArray) -> Ints:
    """-1 for null."""
    lengths = pc.binary_length(column)
    filled: Ints = (lengths.fill_null(-1) if lengths.null_count else lengths).to_numpy()
    return filled


def _field_bytes(column: pa.BinaryArray) -> Longs:
    """The size of each element with its length."""
    lengths = _lengths(column)
    return varint_bytes(lengths) + np.maximum(lengths, 0)


def _join(*columns: pa.BinaryArray | pa.BinaryScalar) -> pa.BinaryArray:
    """The elements of each row as one; null adds nothing."""
    return pc.binary_join_element_wise(*columns, b"", null_handling="replace", null_replacement=b"")


# --- zigzag varints of many records at once, as Kafka's `ByteUtils.writeVarlong` writes each --------------------------


def varint_bytes(numbers: Longs | Ints) -> Longs:
    """The size of each number as a varint."""
    raw, size = _zigzag(numbers), np.ones(len(numbers), np.int64)
    while (has_more := raw > 0x7F).any():
        size += has_more
        raw = raw >> 7
    return size


def varints(*columns: Longs | Ints) -> pa.BinaryArray:
    """For each row the varints of its numbers, one from each column. A column after the first may have one number for
    all rows.

    A grid of bytes has room for the longest varint of each column; then the unused bytes are removed. This is three
    times faster than writing each byte to its position.
    """
    grid_columns: list[npt.NDArray[Any]] = []
    used_columns: list[npt.NDArray[np.bool_] | bool] = []
    size = np.full(len(columns[0]), len(columns), np.int32)
    for numbers in columns:
        raw = _zigzag(numbers)
        used_columns.append(True)
        while (has_more := raw > 0x7F).any():
            grid_columns.append(raw.astype(np.uint8) & 0x7F | has_more.view(np.uint8) << 7)
            used_columns.append(has_more)
            size += has_more
            raw = raw >> 7
        grid_columns.append(raw.astype(np.uint8))
    grid = np.empty((len(size), len(grid_columns)), np.uint8)
    used = np.empty(grid.shape, np.bool_)
    for index, (grid_column, used_column) in enumerate(zip(grid_columns, used_columns, strict=True)):
        grid[:, index] = grid_column
        used[:, index] = used_column
    offsets = np.zeros(len(size) + 1, np.int32)
    np.cumsum(size, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(size), [None, pa.py_buffer(offsets), pa.py_buffer(grid[used])])


def _zigzag(numbers: Longs | Ints) -> npt.NDArray[Any]:
    """The numbers as varints have them, of 32 bits if they fit, which is faster."""
    bits = 8 * numbers.itemsize
    raw = (numbers << 1 ^ numbers >> bits - 1).view(f"u{numbers.itemsize}")
    return raw if bits == 32 or raw.max(initial=0) >= 1 << 32 else raw.astype(np.uint32)
