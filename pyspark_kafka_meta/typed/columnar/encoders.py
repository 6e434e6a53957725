"""What encoders of columns have in common in all formats.

`EncodedRows` builds a column of encoded values field by field: each call appends one field to all rows, with numpy and
Arrow. Small fields become columns of a grid of bytes, from which unused bytes are removed; strings stay Arrow columns.
Arrow joins grids and strings. No Python object is made for a row.

Below it: which fields and values encoders refuse, items of lists, maps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import Bytes, Flags, flag_array, list_lengths, not_utf8
from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import UnwritableValueError, inner_path

Integers: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Unsigned: TypeAlias = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]

MAX_BYTES = 2**31 - 1
"""Of all rows together: offsets of Arrow's binary type are int32."""

_MAX_GRID_CONSTANT = 8
_LOW_BITS, _MORE_BIT = np.uint8(0x7F), np.uint8(7)


class EncodedRows:
    """Rows without bytes at first. Arguments have one element for each row. `used` says to which rows a field is
    appended; None is all rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._grid: list[tuple[Bytes, Flags | None]] = []
        self._columns: list[pa.BinaryArray | pa.BinaryScalar] = []

    def append_varints(self, numbers: Integers, used: Flags | None = None) -> None:
        """Zigzag varints, as Avro's `BinaryEncoder.writeLong` writes each. Numbers of other rows are 0."""
        self.append_unsigned_varints(zigzag(numbers), used)

    def append_unsigned_varints(self, raw: Unsigned, used: Flags | None = None) -> None:
        """Varints, as Protobuf's `CodedOutputStream.writeUInt64NoTag` writes each. Numbers of other rows are 0."""
        if raw.itemsize == 8 and raw.max(initial=0) < 1 << 32:
            raw = raw.astype(np.uint32)  # which is faster
        while (has_more := raw > 0x7F).any():
            self.append_bytes((raw.astype(np.uint8) & _LOW_BITS | has_more.view(np.uint8) << _MORE_BIT)[:, None], used)
            used = has_more
            raw = np.right_shift(raw, 7, dtype=raw.dtype)
        self.append_bytes(raw.astype(np.uint8)[:, None], used)

    def append_bytes(self, data: Bytes, used: Flags | None = None) -> None:
        """A few bytes.

        Args:
            data: of shape (rows, width), or (1, width) for the same bytes in all rows.
            used: of shape (rows,), or (rows, width) for each byte.
        """
        self._grid.append((data, used))

    def append_constant(self, data: bytes, used: Flags | None = None) -> None:
        """The same bytes in all rows."""
        if len(data) <= _MAX_GRID_CONSTANT:
            self.append_bytes(np.frombuffer(data, np.uint8)[None, :], used)
        else:
            self.append_values(pa.scalar(data) if used is None else pc.if_else(flag_array(used), data, None))

    def append_values(self, values: pa.BinaryArray | pa.BinaryScalar) -> None:
        """Strings without their lengths; null appends nothing."""
        self._end_grid()
        self._columns.append(values)

    def to_array(self, valid: Flags | None = None) -> pa.BinaryArray:
        """The encoded rows; those that are not `valid`, which have no bytes, are null.

        Raises:
            pa.ArrowCapacityError: they have more than `MAX_BYTES`.
        """
        self._end_grid()
        rows = pa.repeat(pa.scalar(b""), self._rows)  # with scalars alone Arrow would join a single row
        joined = pc.binary_join_element_wise(rows, *self._columns, b"", null_handling="replace", null_replacement=b"")
        return joined if valid is None else pc.if_else(flag_array(valid), joined, None)

    def _end_grid(self) -> None:
        if self._grid:
            self._columns.append(_packed(self._rows, self._grid))
            self._grid = []


def _packed(rows: int, fields: list[tuple[Bytes, Flags | None]]) -> pa.BinaryArray:
    """The used bytes of each row."""
    width = sum(data.shape[1] for data, _ in fields)
    if rows * width > MAX_BYTES:
        raise pa.ArrowCapacityError(f"{rows} rows of up to {width} bytes are too many to encode together")
    grid, used = np.empty((rows, width), np.uint8), np.ones((rows, width), np.bool_)
    size, at = np.zeros(rows, np.int32), 0
    for data, flags in fields:
        until = at + data.shape[1]
        grid[:, at:until] = data
        if flags is None:
            size += until - at
        elif flags.ndim == 1:
            used[:, at:until] = flags[:, None]
            size += flags * np.int32(until - at)
        else:
            used[:, at:until] = flags
            size += np.count_nonzero(flags, axis=1).astype(np.int32)
        at = until
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(size, out=offsets[1:])
    packed = grid if all(flags is None for _, flags in fields) else grid[used]
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(packed)])


def zigzag(numbers: Integers) -> Unsigned:
    """Numbers near 0 as small ones: 0, -1, 1, -2 become 0, 1, 2, 3."""
    raw: Unsigned = (numbers << 1 ^ numbers >> 8 * numbers.itemsize - 1).view(f"u{numbers.itemsize}")
    return raw


ColumnEncoder: TypeAlias = Callable[[EncodedRows, pa.Array, Flags | None], None]
"""Appends the values of one field to the rows that are used; None is all rows. Values of other rows are null. Raises
UnwritableValueError: a value is null or does not fit. The argument `place` of encoders is the field in error texts."""


def place_of(path: str) -> str:
    """The field in error texts."""
    return f"field {path}" if path else "the value"


def refuse_column(path: str, why: str) -> NoReturn:
    raise ValueSchemaError(f"{place_of(path)} {why}")


def check_names(given: pa.StructType, known: Collection[str], path: str, owner: str) -> None:
    """Raises ValueSchemaError if a field of the struct occurs twice, or is not among the `known` fields of `owner`."""
    for name, count in Counter(field.name for field in given).items():
        if count > 1:
            refuse_column(inner_path(path, name), "occurs twice: rename one")
        if name not in known:
            refuse_column(inner_path(path, name), f"is not in {owner}: drop it, or extend the schema")


def refuse(place: str, wrong: Flags, why: str, used: Flags | None = None) -> None:
    """Raises UnwritableValueError if a row that is used is wrong."""
    wrong = wrong if used is None else wrong & used
    if wrong.any():
        raise UnwritableValueError(int(np.argmax(wrong)), f"{place} {why}")


def not_null(place: str, values: pa.Array, used: Flags | None) -> Flags | None:
    """The rows that are used, from the values: None if no value is null."""
    if not values.null_count:
        return None
    valid = valid_rows(values)
    refuse(place, ~valid, "is null, and the schema does not allow null", used)
    return valid


def valid_rows(values: pa.Array) -> Flags:
    valid: Flags = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def refuse_other_than_utf8(place: str, values: pa.StringArray) -> None:
    """Spark makes strings of any bytes: `CAST(value AS STRING)`."""
    data = values.cast(pa.binary())
    try:
        data.cast(pa.string())
    except pa.ArrowInvalid:
        refuse(place, not_utf8(data) & valid_rows(values), "is not UTF-8")


def lengths(values: pa.BinaryArray) -> Integers:
    """In bytes; 0 for null."""
    lengths: Integers = pc.binary_length(values).fill_null(0).to_numpy()
    return lengths


@contextmanager
def rows_of_items(counts: Integers) -> Iterator[None]:
    """Inside `with`, items of lists with these lengths are encoded, together. An error has the list's row."""
    try:
        yield
    except UnwritableValueError as error:
        row = int(np.searchsorted(np.cumsum(counts), error.row, "right"))
        raise UnwritableValueError(row, error.cause) from None


def encoded_items(
    lists: pa.ListArray, append: Callable[[EncodedRows, pa.Array], None]
) -> tuple[Integers, pa.BinaryArray]:
    """The lengths of lists, and the bytes of the items of each, which `append` appends to the rows of all items."""
    counts, items = list_lengths(lists), lists.flatten()
    rows = EncodedRows(len(items))
    with rows_of_items(counts):
        append(rows, items)
    values = rows.to_array()
    offsets = np.frombuffer(values.buffers()[1], np.int32)[np.append(0, np.cumsum(counts))]
    return counts, pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(offsets), values.buffers()[2]])


def map_entries(maps: pa.MapArray) -> pa.ListArray:
    """The maps as lists of structs, without a copy. A cast would refuse nulls of required fields below a null."""
    entries = pa.StructArray.from_arrays([maps.keys, maps.items], fields=[maps.type.key_field, maps.type.item_field])
    return pa.Array.from_buffers(
        pa.list_(entries.type), len(maps), maps.buffers()[:2], offset=maps.offset, children=[entries]
    )
