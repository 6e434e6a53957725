"""Arrow arrays of decoded records: binary values copied from a payload, the headers column. The memory of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_kafka_meta.record_schema import HEADERS_COLUMN, records_arrow_schema
from pyspark_kafka_meta.records.record_boundaries import expected_ends, find_starts
from pyspark_kafka_meta.records.record_fields import Bytes, Fields, Flags, Ints, Locate, read_varints, require


def offsets_of(array: pa.BinaryArray) -> Ints:
    """The start of each value in the memory of the values, and the end of the last value."""
    offsets: Ints = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return offsets


def data_of(array: pa.BinaryArray) -> memoryview:
    """The values, one after the other, without a copy. The value of a null may have bytes."""
    offsets = offsets_of(array)
    return memoryview(array.buffers()[2])[offsets[0] : offsets[-1]]


def number_array(numbers: npt.NDArray[Any], valid: Flags | None = None) -> pa.Array:
    """The numbers without a copy, null where they are not `valid`. `pa.array` would import numpy.ma: 10 ms in each new
    worker."""
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [bitmap, pa.py_buffer(numbers)])


def binary_array(payload: Bytes, at: Ints, length: Ints) -> pa.BinaryArray:
    """The bytes at these positions, at least one; a length of -1 is null.

    The payload becomes one Arrow array whose even elements are the values and whose odd elements are the gaps between
    values; `take` copies the even elements. Arrow does not check positions and lengths: the caller must have done so.
    """
    offsets = np.empty(2 * len(at), np.int32)
    offsets[::2] = at
    offsets[1::2] = at + np.maximum(length, 0)
    segments = pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(payload)]
    )
    return segments.take(number_array(np.arange(0, len(offsets), 2, dtype=np.int32), valid=length >= 0))


def headers_array(payload: Bytes, fields: Fields, locate: Locate) -> pa.ListArray:
    """The headers of each record, in order and with duplicate keys; null for a record without headers, as in Spark.

    Raises:
        CorruptBatchError: a length is wrong.
    """
    kind = records_arrow_schema([HEADERS_COLUMN]).field(0).type
    rows = np.flatnonzero(fields.header_count)
    if not rows.size:
        return pa.nulls(len(fields.header_count), kind)
    strings = 2 * fields.header_count[rows]
    at, length = _find_strings(
        payload, fields.headers_at[rows], strings, fields.end[rows], lambda index: locate(int(rows[index]))
    )
    keys = _text(binary_array(payload, at[::2], length[::2]))
    values = binary_array(payload, at[1::2], length[1::2])
    headers = pa.StructArray.from_arrays([keys, values], fields=list(kind.value_type))
    offsets = np.zeros(len(fields.header_count) + 1, np.int32)
    np.cumsum(fields.header_count, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), headers, type=kind, mask=pa.array(fields.header_count == 0))


def _find_strings(payload: Bytes, starts_at: Ints, counts: Ints, ends: Ints, locate: Locate) -> tuple[Ints, Ints]:
    """Positions and lengths of keys and values in turn: `counts` strings from each of `starts_at` to its end."""
    starts = find_starts(payload, starts_at, counts, ends)

    def locate_string(string: int) -> str:
        return locate(int(np.repeat(np.arange(len(counts)), counts)[string]))

    length, at = read_varints(payload, starts, locate_string)
    fits = np.maximum(length, 0) == expected_ends(starts, counts, ends) - at
    fits[::2] &= length[::2] >= 0  # a key is never null
    require(fits & (length >= -1), "a header length is wrong", locate_string)
    return at, length


def _text(keys: pa.BinaryArray) -> pa.StringArray:
    """Header keys as text. Invalid UTF-8 is replaced, as by Kafka's `Utils.utf8`."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
