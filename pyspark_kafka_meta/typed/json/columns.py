"""Columns of dates, times and decimals, from Arrow arrays of what texts have in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import flag_array, memory_of, offsets_of
from pyspark_kafka_meta.typed.columnar.decimals import big_endian_words
from pyspark_kafka_meta.typed.json.schema import column_type

PIECES = 4
Column: TypeAlias = tuple[pa.Array, Sequence[int]]
"""The values, and which of them the type does not hold, or only `json` can read."""


def cast_each(type_: pa.DataType, values: pa.Array) -> Column:
    """As values of the type. Where Arrow refuses all because of one, each quarter is tried again."""
    try:
        return values.cast(type_), ()
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.nulls(1, type_), (0,)
    size = -(-len(values) // PIECES)
    starts = range(0, len(values), size)
    arrays, not_held = zip(*(cast_each(type_, values[start : start + size]) for start in starts), strict=True)
    return pa.concat_arrays(arrays), [
        start + index for start, piece in zip(starts, not_held, strict=True) for index in piece
    ]


def with_fields(type_: pa.DataType, values: pa.Array) -> pa.Array:
    """The structs with all fields of the type, null where they have none."""
    if values.type == type_ or not pa.types.is_struct(type_):
        return values
    known = dict(zip(values.type.names, values.flatten(), strict=True))
    arrays = [
        with_fields(each.type, known[each.name]) if each.name in known else pa.nulls(len(values), each.type)
        for each in type_
    ]
    return pa.StructArray.from_arrays(arrays, type_.names, mask=values.is_null())


def times_of_texts(type_: pa.DataType, texts: pa.StringArray) -> Column:
    """Also with small letters, and over 6 digits of a second, which are cut as Spark does."""
    plain = pc.ascii_upper(texts)
    if pc.any(pc.ascii_is_decimal(pc.utf8_slice_codeunits(plain, 26, 27))).as_py():
        plain = pc.replace_substring_regex(plain, r"^([^.]+\.[0-9]{6})[0-9]+", r"\1")
    return cast_each(type_, plain)


def is_counted(type_: pa.DataType) -> bool:
    """Whether a date or timestamp is a number."""
    return bool(pa.types.is_date64(type_) or (pa.types.is_timestamp(type_) and type_.unit == "ms"))


def counted_number(type_: pa.DataType) -> pa.DataType:
    """The type of the numbers of such dates or timestamps."""
    return pa.int32() if pa.types.is_date(type_) else pa.int64()


def times_of_numbers(type_: pa.DataType, numbers: pa.Array) -> Column:
    return cast_each(
        column_type(type_), numbers.cast(pa.date32() if pa.types.is_date(type_) else pa.timestamp("ms", "UTC"))
    )


def decimals_of_bytes(type_: pa.Decimal256Type, numbers: pa.BinaryArray) -> Column:
    """Of unscaled numbers, big-endian in two's complement."""
    column = column_type(type_)
    offsets, data = offsets_of(numbers).astype(np.int64), np.append(memory_of(numbers), np.zeros(8, np.uint8))
    words, bad = big_endian_words(data, offsets[:-1], np.diff(offsets), column.precision)
    is_valid = np.asarray(numbers.is_valid())
    array = pa.Array.from_buffers(column, len(numbers), [flag_array(is_valid).buffers()[1], pa.py_buffer(words)])
    return array, np.flatnonzero(bad & is_valid).tolist()
