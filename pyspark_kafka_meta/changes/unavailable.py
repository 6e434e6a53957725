"""Columns that a database did not send, because they are large and did not change.

Source: `UnchangedToastedPlaceholder` of Debezium's connector for PostgreSQL.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from hashlib import md5
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import Flags, list_lengths, list_offsets, null_unless, number_array, offsets_of


class Placeholders:
    """What Debezium sends in place of such a column, by the type of the column."""

    def __init__(self, placeholder: bytes) -> None:
        self._bytes, text = placeholder, placeholder.decode(errors="replace")
        # As text also bytes in JSON without a schema, and hstore; in lists also uuids.
        json_map = json.dumps({text: text}, separators=(",", ":"), ensure_ascii=False)
        uuid = str(UUID(bytes=md5(placeholder, usedforsecurity=False).digest(), version=3))
        self._texts = (text, base64.b64encode(placeholder).decode(), json_map, uuid)

    def in_column(self, array: pa.Array) -> Flags | None:
        """Which values are placeholders; None if none is."""
        kind = array.type
        if pa.types.is_string(kind):
            return _equal(array, self._texts)
        if pa.types.is_binary(kind):
            return _equal(array, [self._bytes])
        if pa.types.is_list(kind) and (pa.types.is_string(kind.value_type) or pa.types.is_binary(kind.value_type)):
            rows = np.flatnonzero(list_lengths(array) == 1)
            found = self.in_column(array.values.take(number_array(offsets_of(array)[rows])))
            return None if found is None else _flags_at(rows[found], len(array))
        if pa.types.is_list(kind) and (pa.types.is_integer(kind.value_type) or pa.types.is_date32(kind.value_type)):
            return _equal_lists(array, array.values, np.frombuffer(self._bytes, np.int8).tolist())
        if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
            return _equal_lists(array, array.keys, [self._texts[0]])
        return None


def _equal(array: pa.Array, texts: Sequence[str | bytes]) -> Flags | None:
    """Which values are one of these; None if none is."""
    found = pc.is_in(array, pa.array(texts, array.type))
    return found.to_numpy(zero_copy_only=False) if found.true_count else None


def _equal_lists(lists: pa.Array, items: pa.Array, expected: list[Any]) -> Flags | None:
    """Which lists have these items; None if none has."""
    has_length = np.diff(offsets_of(lists)) == len(expected)
    rows = np.flatnonzero(has_length & lists.is_valid().to_numpy(zero_copy_only=False))
    at = offsets_of(lists)[rows][:, None] + np.arange(len(expected))
    pattern = pa.array(expected, items.type).take(number_array(np.tile(np.arange(len(expected)), len(rows))))
    is_equal = pc.equal(items.take(number_array(at.ravel())), pattern).fill_null(False)
    found = rows[is_equal.to_numpy(zero_copy_only=False).reshape(at.shape).all(axis=1)]
    return _flags_at(found, len(lists)) if len(found) else None


def _flags_at(rows: npt.NDArray[np.intp], count: int) -> Flags:
    flags = np.zeros(count, np.bool_)
    flags[rows] = True
    return flags


def without(array: pa.Array, is_placeholder: Flags) -> pa.Array:
    """Null in place of placeholders."""
    return null_unless(~is_placeholder, array)


def names_by_row(found: Mapping[str, Flags], count: int) -> pa.ListArray:
    """The names of the columns with a placeholder in each row."""
    names: Sequence[str] = list(found)
    rows, columns = np.nonzero(np.array(list(found.values())).T) if found else (np.zeros(0, int), np.zeros(0, int))
    items = pa.array(names, pa.string()).take(number_array(np.ascontiguousarray(columns)))
    kind = pa.list_(pa.field("element", pa.string(), False))
    return pa.Array.from_buffers(kind, count, [None, list_offsets(rows, count)], children=[items])
