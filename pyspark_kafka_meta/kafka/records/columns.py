"""Builds the columns of the records table from the fields of records, among them their headers, and the headers of
their batches."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import binary_array, data_of, flag_array, number_array, offsets_of
from pyspark_kafka_meta.errors import UnsupportedRecordFormatError
from pyspark_kafka_meta.kafka.records.batches import BatchHeader
from pyspark_kafka_meta.kafka.records.boundaries import Indexes, expected_ends, find_starts
from pyspark_kafka_meta.kafka.records.fields import Bytes, Fields, Flags, Ints, Locate, Longs, read_varints, require
from pyspark_kafka_meta.kafka.records.schema import (
    HEADERS_COLUMN,
    SCHEMA_ID_HEADERS_COLUMN,
    TOMBSTONE_COLUMN,
    records_arrow_schema,
)
from pyspark_kafka_meta.model import TopicPartition

SLICE_STRINGS = 1 << 19
"""Keys and values of headers that are decoded together: a multiple of 16."""

_MAX_BYTES = 2**31 - 1  # offsets are int32
_UTF8 = getincrementaldecoder("utf-8")
_DECODED_BYTES = 1024 * 1024
_REPLACED_BYTES = 3
"""UTF-8 of the character that replaces an invalid byte."""


def headers_array(payload: Bytes, fields: Fields, locate: Locate) -> pa.ListArray:
    """The headers of each record, in order and with duplicate keys; null for a record without headers, as in Spark.

    Raises:
        CorruptBatchError: a length is wrong.
        UnsupportedRecordFormatError: keys that are not UTF-8 are over 2 GiB as text.
    """
    kind = records_arrow_schema([HEADERS_COLUMN]).field(0).type
    rows = np.flatnonzero(fields.header_count)
    if not rows.size:
        return pa.nulls(len(fields.header_count), kind)
    offsets = np.zeros(len(fields.header_count) + 1, np.int32)
    np.cumsum(fields.header_count, out=offsets[1:])
    keys, values = (_BinaryColumn(kind, int(offsets[-1])) for kind in (pa.string(), pa.binary()))
    strings = 2 * fields.header_count[rows]
    for at, length in _find_strings(
        payload, fields.headers_at[rows], strings, fields.end[rows], lambda index: locate(int(rows[index]))
    ):
        keys.append(_text(binary_array(payload, at[::2], length[::2])))
        values.append(binary_array(payload, at[1::2], length[1::2]))
    headers = pa.StructArray.from_arrays([keys.array(), values.array()], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), headers, type=kind, mask=pa.array(fields.header_count == 0))


class _BinaryColumn:
    """Joins the slices of a column, without memory for each slice, as `pa.concat_arrays` would need."""

    def __init__(self, kind: pa.DataType, length: int) -> None:
        self._kind, self._length = kind, length
        self._whole: pa.Array | None = None
        self._offsets = np.zeros(length + 1, np.int32)
        self._bitmap = np.zeros((length + 7) // 8, np.uint8)
        self._data = bytearray()
        self._filled = 0

    def append(self, array: pa.Array) -> None:
        """Add a slice. Its length is a multiple of 8 unless it is the last."""
        if len(array) == self._length:
            self._whole = array
            return
        if len(self._data) + len(data_of(array)) > _MAX_BYTES:
            raise _too_large()
        first, end = self._filled, self._filled + len(array)
        self._offsets[first : end + 1] = offsets_of(array) + (len(self._data) - offsets_of(array)[0])
        bitmap = np.frombuffer(array.is_valid().buffers()[1], np.uint8)[: (len(array) + 7) // 8]
        self._bitmap[first // 8 : first // 8 + len(bitmap)] = bitmap
        self._data += data_of(array)
        self._filled = end

    def array(self) -> pa.Array:
        if self._whole is not None:
            return self._whole
        buffers = [pa.py_buffer(buffer) for buffer in (self._bitmap, self._offsets, self._data)]
        return pa.Array.from_buffers(self._kind, self._length, buffers)


def _find_strings(
    payload: Bytes, starts_at: Ints, counts: Ints, ends: Ints, locate: Locate
) -> Iterator[tuple[Ints, Ints]]:
    """Positions and lengths of keys and values in turn: `counts` strings from each of `starts_at` to its end. Yields
    slices of `SLICE_STRINGS`, because a record may have millions of headers."""
    until = np.cumsum(counts)
    first = until - counts
    next_at = 0
    for start in range(0, int(until[-1]), SLICE_STRINGS):
        end = min(start + SLICE_STRINGS, int(until[-1]))
        # From here on, a group is the part of it that is in the slice.
        slice_counts = np.minimum(until, end) - np.maximum(first, start)
        groups = np.flatnonzero(slice_counts > 0)
        slice_counts, group_at, group_ends = slice_counts[groups], starts_at[groups], ends[groups]
        if first[groups[0]] < start:
            group_at[0] = next_at
        has_more = int(until[groups[-1]] > end)
        slice_counts[-1] += has_more
        starts = find_starts(payload, group_at, slice_counts, group_ends)
        if has_more:
            next_at = group_ends[-1] = starts[-1]
            slice_counts[-1] -= 1
            starts = starts[:-1]

        def locate_string(string: int, groups: Indexes = groups, slice_counts: Ints = slice_counts) -> str:
            return locate(int(np.repeat(groups, slice_counts)[string]))

        length, at = read_varints(payload, starts, locate_string)
        fits = np.maximum(length, 0) == expected_ends(starts, slice_counts, group_ends) - at
        fits[::2] &= length[::2] >= 0  # a key is never null
        require(fits & (length >= -1), "a header length is wrong", locate_string)
        yield at, length


def _text(keys: pa.BinaryArray) -> pa.StringArray:
    """Header keys as text. Invalid UTF-8 is replaced, as by Kafka's `Utils.utf8`."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return _replaced_text(keys)


def _replaced_text(keys: pa.BinaryArray) -> pa.StringArray:
    """Python's text of a large key takes up to four times its bytes, so a key is decoded in parts."""
    if len(data_of(keys)) > _MAX_BYTES // _REPLACED_BYTES:
        raise _too_large()
    text, offsets = bytearray(), np.zeros(len(keys) + 1, np.int32)
    for index, key in enumerate(keys, 1):
        data, decoder = memoryview(key.as_buffer()), _UTF8("replace")
        for at in range(0, len(data), _DECODED_BYTES):
            text += decoder.decode(data[at : at + _DECODED_BYTES]).encode()
        text += decoder.decode(b"", final=True).encode()
        offsets[index] = len(text)
    return pa.Array.from_buffers(pa.string(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def _too_large() -> UnsupportedRecordFormatError:
    return UnsupportedRecordFormatError(
        "header keys that are not UTF-8 are larger than can be decoded; leave out the headers"
    )


_SCHEMA_ID = re.compile(b"_schema_id")
"""In the names of headers; one literal is found faster than several."""
_MAX_MS = (2**63 - 1) // 1000


@dataclass(frozen=True, slots=True)
class Rows:
    """Input of all columns.

    Attributes:
        payload: the decompressed records; `fields` are positions in it.
        partitions, headers: of each record batch.
        batch: index of each row's record batch.
        offset: of each row.
    """

    payload: Bytes
    partitions: Sequence[TopicPartition]
    headers: Sequence[BatchHeader]
    batch: npt.NDArray[np.intp]
    offset: Longs
    fields: Fields

    def select(self, rows: Flags) -> Rows:
        return replace(self, batch=self.batch[rows], offset=self.offset[rows], fields=self.fields.select(rows))

    def locate(self, row: int) -> str:
        return describe_batch(self.partitions[self.batch[row]], self.headers[self.batch[row]])


def describe_batch(partition: TopicPartition, header: BatchHeader) -> str:
    """A record batch in an error text."""
    return f"{partition}, record batch with base offset {header.base_offset}"


def _topic(rows: Rows) -> pa.Array:
    first, *others = topics = [partition.topic for partition in rows.partitions]
    if others.count(first) == len(others):
        return pa.repeat(first, len(rows.batch))
    return pa.array(topics).take(number_array(rows.batch))


def _partition(rows: Rows) -> pa.Array:
    return number_array(np.array([partition.partition for partition in rows.partitions], np.int32)[rows.batch])


def _timestamp(rows: Rows) -> pa.Array:
    """Milliseconds as microseconds. -1, a producer's "no timestamp", is a time before 1970, as in Spark."""
    log_append = np.array([header.is_log_append_time for header in rows.headers])
    max_ms = np.array([header.max_timestamp for header in rows.headers], np.int64)
    first_ms = np.array([header.base_timestamp for header in rows.headers], np.int64)
    base_ms = np.where(log_append, max_ms, first_ms)[rows.batch]
    delta_ms = np.where(log_append[rows.batch], 0, rows.fields.timestamp_delta)
    ms = base_ms + delta_ms
    fits = (ms >= -_MAX_MS) & (ms <= _MAX_MS) & ((ms >= base_ms) == (delta_ms >= 0))
    if not fits.all():
        row = int(np.argmin(fits))
        raise UnsupportedRecordFormatError(
            f"{rows.locate(row)}: the timestamp of offset {rows.offset[row]}, {base_ms[row]} + {delta_ms[row]} ms, "
            "does not fit Spark's microseconds; leave out the timestamp column or start after this offset"
        )
    return number_array(ms * 1000).view(pa.timestamp("us", tz="UTC"))


def _timestamp_type(rows: Rows) -> pa.Array:
    """Spark's ids: 0 CreateTime, 1 LogAppendTime. Only message format v0 has -1, no timestamp."""
    return number_array(np.array([header.is_log_append_time for header in rows.headers], np.int32)[rows.batch])


def _headers(rows: Rows) -> pa.Array:
    return headers_array(rows.payload, rows.fields, rows.locate)


def _schema_id_headers(rows: Rows) -> pa.Array:
    """To find the header's name takes a tenth of the time that other headers would take."""
    fields = rows.fields
    if fields.header_count.any():
        searched = rows.payload[fields.headers_at[0] : fields.end[-1]]  # not what reused memory has after its records
        if _SCHEMA_ID.search(searched.data) is not None:
            return _headers(rows)
    return pa.nulls(len(rows.batch), records_arrow_schema([SCHEMA_ID_HEADERS_COLUMN]).field(0).type)


COLUMNS: Mapping[str, Callable[[Rows], pa.Array]] = {
    "key": lambda rows: binary_array(rows.payload, rows.fields.key_at, rows.fields.key_length),
    "value": lambda rows: binary_array(rows.payload, rows.fields.value_at, rows.fields.value_length),
    "topic": _topic,
    "partition": _partition,
    "offset": lambda rows: number_array(rows.offset),
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    HEADERS_COLUMN: _headers,
    SCHEMA_ID_HEADERS_COLUMN: _schema_id_headers,
    TOMBSTONE_COLUMN: lambda rows: flag_array(rows.fields.value_length < 0),
}
"""Builds each column from at least one row.

Raises:
    CorruptBatchError: a header's length is wrong.
    UnsupportedRecordFormatError: a timestamp does not fit Spark's microseconds.
"""
