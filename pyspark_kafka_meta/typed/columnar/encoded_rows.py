"""Builds a column of encoded values field by field: each call appends one field to all rows, with numpy and Arrow.

Small fields become columns of a grid of bytes, from which unused bytes are removed; strings stay Arrow columns. Arrow
joins grids and strings. No Python object is made for a row.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import Bytes, Flags, flag_array

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
