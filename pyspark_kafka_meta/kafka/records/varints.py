"""Writes the zigzag varints of many records at once with numpy. Follows Kafka's `ByteUtils.writeVarlong`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_kafka_meta.kafka.records.fields import Ints, Longs


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
