"""Reads JSON texts by Arrow's reader, which makes columns of all texts at once, in a third of the time of one by one.

It reads a chunk of texts only if it is sure to read each of them as `JsonDecoder` does. A chunk is for `JsonDecoder`

- if a text is not one object. Texts are joined by newlines, and each begins with { and ends with }. No string has a
  newline, and a { after a } begins another object, so each text has an object of its own: as many rows as texts are one
  object each;
- if Arrow refuses a text: a value of another type, a number such as 1e2 for an integer, a name twice, a syntax error;
- if a text may have what Arrow reads and `json` does not: Inf and -NaN without quotes, deep nesting in members that are
  not read, half of a surrogate pair, a number that becomes infinite, a text that is not Base64.

Maps and decimals as numbers have another form for Arrow: schemas with them are for `JsonDecoder`.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from pyspark_kafka_meta.arrow_arrays import binary_array, data_of, list_array, offsets_of
from pyspark_kafka_meta.typed.json.columns import (
    Column,
    counted_number,
    decimals_of_bytes,
    is_counted,
    times_of_numbers,
    times_of_texts,
)
from pyspark_kafka_meta.typed.json.schema import column_type

MAX_PAUSE = 63
"""Chunks that are not tried after one that was refused: a refused one costs a part of its reading."""
MAX_BRACKETS = 500
"""In a text. `json` and msgspec read twice as many levels, or more."""
_NOT_FINITE = [word + r"(inity)?[\s,\]}]" for word in ("NaN", "Inf")]
"""Without quotes, or in a string that looks so. Arrow is quick to find what begins with given bytes."""

Convert: TypeAlias = Callable[[pa.Array], Column]


class _RefusedError(Exception):
    """A chunk is for `JsonDecoder`."""


class ArrowJsonReader:
    """Reads chunks of texts, as long as it is worth trying."""

    def __init__(self, kinds: pa.DataType) -> None:
        """
        Args:
            kinds: as of `JsonSchema`.
        """
        self._convert, self._options = _converter(kinds) or _unchanged, None
        self._pause = self._paused = 0
        if pa.types.is_struct(kinds) and _is_read(kinds):
            schema = pa.schema(list(_type_read(kinds)))
            self._options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")

    def read(self, values: pa.BinaryArray) -> Column | None:
        """None if the values are for `JsonDecoder`. They are UTF-8."""
        if self._options is None:
            return None
        if self._paused:
            self._paused -= 1
            return None
        try:
            column = self._column(values)
        except (_RefusedError, pa.ArrowException):
            self._pause = self._paused = min(2 * self._pause + 1, MAX_PAUSE)
            return None
        self._pause = 0
        return column

    def _column(self, values: pa.BinaryArray) -> Column:
        """Raises _RefusedError or ArrowException."""
        text = data_of(_joined(values))
        read_options = json.ReadOptions(use_threads=False, block_size=len(text))
        table = json.read_json(pa.BufferReader(text), read_options, self._options)
        if len(table) != len(values):
            raise _RefusedError
        members = [column.chunk(0) for column in table.columns]  # the text is one block
        array = pa.StructArray.from_arrays(members, fields=list(table.schema), mask=values.is_null())
        array, not_held = self._convert(array)
        array.validate(full=True)  # RapidJSON 1.1, which some builds of Arrow have, reads halves of surrogate pairs
        return array, not_held


def _joined(values: pa.BinaryArray) -> pa.BinaryArray:
    """One text, with newlines between the values; null as an empty object. Raises _RefusedError."""
    is_object = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    long = values.filter(pc.greater(pc.binary_length(values), 2 * MAX_BRACKETS))
    if pc.all(is_object).as_py() is False or any(map(_may_be_deep, long.to_pylist())):
        raise _RefusedError
    text = pc.binary_join(pa.ListArray.from_arrays([0, len(values)], values.fill_null(b"{}")), b"\n")
    if any(pc.match_substring_regex(text, word)[0].as_py() for word in _NOT_FINITE):
        raise _RefusedError
    return text


def _may_be_deep(text: bytes) -> bool:
    return text.count(b"[") + text.count(b"{") > MAX_BRACKETS


def _is_read(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return len(set(kind.names)) == len(kind.names) > 0 and all(_is_read(each.type) for each in kind)
    if pa.types.is_list(kind):
        return _is_read(kind.value_type)
    return not (pa.types.is_map(kind) or pa.types.is_decimal128(kind))


def _type_read(kind: pa.DataType) -> pa.DataType:
    """The type as which Arrow reads a kind."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_type_read(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_read(kind.value_type)))
    if pa.types.is_float32(kind):
        return pa.float64()  # as which JSON is read elsewhere, before it is rounded once more
    if is_counted(kind):
        return counted_number(kind)
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind) or pa.types.is_decimal256(kind):
        return pa.string()
    return column_type(kind)


def _unchanged(array: pa.Array) -> Column:
    return array, ()


def _converter(kind: pa.DataType) -> Convert | None:
    """Of what was read as `_type_read` of the kind; None if that is the column. It raises _RefusedError or
    ArrowException."""
    if pa.types.is_struct(kind):
        members = [_converter(each.type) for each in kind]
        return partial(_struct, column_type(kind), members) if any(members) else None
    if pa.types.is_list(kind):
        item = _converter(kind.value_type)
        return item and partial(_list, column_type(kind), item)
    if pa.types.is_floating(kind):
        return partial(_floats, kind)
    if is_counted(kind):
        return partial(times_of_numbers, kind)
    if pa.types.is_temporal(kind):
        return partial(times_of_texts, kind)
    if pa.types.is_binary(kind):
        return lambda texts: (_from_base64(texts), ())
    if pa.types.is_decimal256(kind):
        return lambda texts: decimals_of_bytes(kind, _from_base64(texts))
    return None


def _struct(kind: pa.StructType, members: Sequence[Convert | None], array: pa.StructArray) -> Column:
    pairs = [(convert or _unchanged)(array.field(index)) for index, convert in enumerate(members)]
    arrays, faults = zip(*pairs, strict=True)
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=array.is_null()), list(chain(*faults))


def _list(kind: pa.ListType, item: Convert, array: pa.ListArray) -> Column:
    items, not_held = item(array.values)
    rows = (np.searchsorted(offsets_of(array), list(not_held), side="right") - 1).tolist()
    return list_array(kind, len(array), array.buffers()[:2], items), rows


def _floats(kind: pa.DataType, array: pa.DoubleArray) -> Column:
    if np.signbit(array.filter(pc.equal(array, 0.0))).any():
        raise _RefusedError  # it may be -0, which is an integer elsewhere, without a sign
    array = array.cast(kind)
    if pc.all(pc.is_finite(array)).as_py() is False:
        raise _RefusedError
    return array, ()


def _from_base64(texts: pa.StringArray) -> pa.BinaryArray:
    """All at once, as each is whole groups of four characters. Raises _RefusedError: one may be no Base64."""
    data, offsets, padding = bytes(data_of(texts)), offsets_of(texts), np.zeros(len(texts), np.int32)
    groups = np.diff(offsets) // 4
    if (offsets % 4).any():
        raise _RefusedError
    ends = offsets[1:][groups > 0]
    is_last, is_before = np.frombuffer(data, np.uint8)[[ends - 1, ends - 2]] == ord("=")
    padding[groups > 0] = is_last.astype(np.int32) + is_before
    if (is_before & ~is_last).any() or data.count(b"=") != padding.sum():
        raise _RefusedError
    try:
        decoded = binascii.a2b_base64(data.replace(b"=", b"A"), strict_mode=True)
    except binascii.Error:
        raise _RefusedError from None
    lengths = np.where(texts.is_valid(), 3 * groups - padding, -1)
    return binary_array(np.frombuffer(decoded, np.uint8), offsets[:-1] // 4 * 3, lengths)
