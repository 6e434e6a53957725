"""Arrow arrays over the bytes of records: binary values gathered out of a payload, and the headers column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.records.record_fields import Bytes, Fields, Ints, Place, read_varints, require
from pyspark_kafka_meta.records.record_lengths import ends_of, follow_lengths
from pyspark_kafka_meta.schemas import HEADERS_COLUMN, records_arrow_schema


def binary_array(payload: Bytes, at: Ints, length: Ints) -> pa.BinaryArray:
    """The bytes at these positions; a length of -1 is null. At least one position.

    The payload becomes one Arrow array whose even elements are the wanted bytes and whose odd ones lie between them;
    `take` copies the even ones. Positions and lengths must have been checked: Arrow does not.
    """
    offsets = np.empty(2 * len(at), np.int32)
    offsets[::2] = at
    offsets[1::2] = at + np.maximum(length, 0)
    segments = pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(payload)]
    )
    return segments.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32), mask=length < 0))


def headers_array(payload: Bytes, fields: Fields, place: Place) -> pa.ListArray:
    """The headers of each record, in order, duplicate keys kept; null for a record without any, as in Spark.

    Raises:
        CorruptBatchError: a length is wrong.
    """
    kind = records_arrow_schema([HEADERS_COLUMN]).field(0).type
    rows = np.flatnonzero(fields.header_count)
    if not rows.size:
        return pa.nulls(len(fields.header_count), kind)
    strings = 2 * fields.header_count[rows]
    at, length = _find_strings(
        payload, fields.headers_at[rows], strings, fields.end[rows], lambda index: place(int(rows[index]))
    )
    keys = _text(binary_array(payload, at[::2], length[::2]))
    values = binary_array(payload, at[1::2], length[1::2])
    headers = pa.StructArray.from_arrays([keys, values], fields=list(kind.value_type))
    offsets = np.zeros(len(fields.header_count) + 1, np.int32)
    np.cumsum(fields.header_count, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), headers, type=kind, mask=pa.array(fields.header_count == 0))


def _find_strings(payload: Bytes, starts_at: Ints, counts: Ints, ends: Ints, place: Place) -> tuple[Ints, Ints]:
    """Positions and lengths of the keys and values in turn, `counts` of them from each of `starts_at` to its end."""
    starts = follow_lengths(payload, starts_at, counts, ends)

    def place_of(string: int) -> str:
        return place(int(np.repeat(np.arange(len(counts)), counts)[string]))

    length, at = read_varints(payload, starts, place_of)
    fits = np.maximum(length, 0) == ends_of(starts, counts, ends) - at
    fits[::2] &= length[::2] >= 0  # a key is never null, a value may be
    require(fits & (length >= -1), "a header length is wrong", place_of)
    return at, length


def _text(keys: pa.BinaryArray) -> pa.StringArray:
    """Header keys as text. Bytes that are not UTF-8 are replaced, as Kafka's `Utils.utf8` does."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
