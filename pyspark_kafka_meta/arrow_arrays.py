"""Arrow arrays and numpy over the same memory: no value is copied to a Python object.

`pa.array` of numpy's numbers would import numpy.ma: 10 ms in each new worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.signedinteger[Any]]
Longs: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


def offsets_of(array: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """The start of each value in `memory_of` the array, and the end of the last value."""
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]


def memory_of(array: pa.BinaryArray) -> Bytes:
    """The values, and those of the array that this one is a slice of, without a copy."""
    return np.frombuffer(array.buffers()[2] or b"", np.uint8)


def data_of(array: pa.BinaryArray) -> memoryview:
    """The values, one after the other, without a copy. The value of a null may have bytes."""
    offsets = offsets_of(array)
    return memoryview(array.buffers()[2])[offsets[0] : offsets[-1]]


def numbers_at(data: Bytes, at: Ints, kind: str) -> npt.NDArray[Any]:
    """Numbers of a numpy type at these positions of the data, aligned or not; after the last possible position, the
    last."""
    count = max(0, len(data) - np.dtype(kind).itemsize + 1)
    everywhere: npt.NDArray[Any] = np.ndarray(count, kind, data, strides=(1,))
    numbers: npt.NDArray[Any] = everywhere[np.minimum(at, count - 1)]
    return numbers


def number_array(numbers: npt.NDArray[Any], valid: Flags | None = None, kind: pa.DataType | None = None) -> pa.Array:
    """The numbers without a copy, null where they are not `valid`.

    Args:
        kind: of the array, if another type has the same memory, such as a time.
    """
    bitmap = None if valid is None or valid.all() else _bitmap(valid)
    kind = kind or pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [bitmap, pa.py_buffer(numbers)])


def flag_array(flags: Flags) -> pa.BooleanArray:
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, _bitmap(flags)])


def _bitmap(flags: Flags) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def binary_array(data: Bytes, at: Ints, length: Ints) -> pa.BinaryArray:
    """The bytes at these positions, which increase; a length of -1 is null, at any position.

    The data becomes one Arrow array, of what is before the first value, the first value, what is between it and the
    second, and so on; `take` copies the values. It reserves memory by the mean length between the first and the last
    offset, which are those of the values, not of all data. Arrow checks these two alone: the caller must have checked
    positions and lengths.
    """
    if not len(at):
        return pa.array([], pa.binary())
    offsets = np.empty(2 * len(at) + 2, np.int32)
    offsets[1:-1:2] = at
    np.add(at, np.maximum(length, 0), out=offsets[2:-1:2], casting="unsafe")
    offsets[0], offsets[-1] = offsets[1:-1].min(), offsets[1:-1].max()
    segments = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return segments.take(number_array(np.arange(1, len(offsets) - 1, 2, dtype=np.int32), length >= 0))


def null_unless(is_kept: Flags, values: pa.Array) -> pa.Array:
    """The values that are kept, each at its place, else null. `pyarrow.compute.if_else` damages slices of strings and
    bytes before Arrow 24."""
    return values.take(number_array(np.arange(len(values)), is_kept))


def list_lengths(lists: pa.ListArray) -> npt.NDArray[np.int32]:
    """The number of items in each list; 0 for null."""
    import pyarrow.compute as pc  # which a worker that only reads bytes does not need

    lengths: npt.NDArray[np.int32] = pc.list_value_length(lists).fill_null(0).to_numpy()
    return lengths


def list_offsets(owner: Longs, count: int) -> pa.Buffer:
    """The offsets of lists, from the index of the list of each item, in order.

    Args:
        count: of the lists, some of which may be empty.
    """
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=count), out=offsets[1:])
    return pa.py_buffer(offsets)


def list_array(
    kind: pa.DataType, length: int, buffers: Sequence[pa.Buffer | None], items: pa.Array, offset: int = 0
) -> pa.Array:
    """Lists of these items, or maps of these entries, without a copy.

    Before Arrow 26, a map ends the process unless its entries have the fields of its type, and it is known of the keys
    that none is null: Arrow does not count nulls before it is asked, as here, in `python -O` too.

    Args:
        buffers: the validity of the lists, and their offsets.
    """
    if pa.types.is_map(kind):
        keys, values = items.field(0), items.field(1)
        if keys.null_count:
            raise ValueError("a key of a map is null")
        items = pa.StructArray.from_arrays([keys, values], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, length, buffers, offset=offset, children=[items])


def last_of_keys(owner: Longs, entries: pa.StructArray) -> tuple[Longs, pa.StructArray]:
    """The entries whose key does not follow again in the same map, with the maps' indexes: the last one counts, as for
    Kafka's `Headers.lastHeader` and the libraries of Avro, Protobuf and JSON. Spark looks up the first.

    Args:
        owner: the index of the map of each entry, in order.
        entries: keys and values.
    """
    codes = entries.field(0).dictionary_encode().indices.to_numpy()
    pairs = owner * (int(codes.max(initial=0)) + 1) + codes
    _, from_end = np.unique(pairs[::-1], return_index=True)
    if len(from_end) == len(pairs):
        return owner, entries
    last = np.sort(len(pairs) - 1 - from_end)
    return owner[last], entries.take(number_array(last))


def header_maps(headers: pa.ListArray) -> pa.MapArray:
    """The headers of records as maps. Of headers with the same key, the last counts: see `last_of_keys`."""
    import pyarrow.compute as pc  # as above

    rows, entries = last_of_keys(pc.list_parent_indices(headers).to_numpy().astype(np.int64), headers.flatten())
    starts = pa.array(np.searchsorted(rows, np.arange(len(headers) + 1)).astype(np.int32))
    is_null = pa.concat_arrays([headers.is_null(), pa.array([False])])
    return pa.MapArray.from_arrays(pc.if_else(is_null, None, starts), entries.field(0), entries.field(1))


def slices(array: pa.BinaryArray, max_rows: int, max_bytes: int) -> Iterator[tuple[int, pa.BinaryArray]]:
    """The array in parts, each with the index of its first value. A value of more bytes is a part of its own."""
    offsets, first = offsets_of(array).astype(np.int64), 0
    while first < len(array):
        fitting = int(np.searchsorted(offsets, offsets[first] + max_bytes, side="right")) - 1
        until = min(max(fitting, first + 1), first + max_rows, len(array))
        yield first, array.slice(first, until - first)
        first = until


def joined(parts: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """The arrays, which have this type, as one; a single one without a copy."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays([pa.array([], kind), *parts])


def in_order(
    parts: Sequence[pa.Array], places: Sequence[npt.NDArray[np.intp]], count: int, kind: pa.DataType
) -> pa.Array:
    """The values of all parts, each at its place; null in other places.

    Args:
        kind: of the parts.
    """
    if len(parts) == 1 and len(parts[0]) == count:
        return parts[0]
    order, is_there = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    for first, place in zip(np.cumsum([0, *map(len, parts)]).tolist(), places, strict=False):
        order[place], is_there[place] = first + np.arange(len(place)), True
    return joined(parts, kind).take(number_array(order, is_there))


def is_ascii(array: pa.BinaryArray) -> bool:
    """Whether all values are ASCII, in a tenth of the time in which Arrow checks that they are UTF-8."""
    offsets = offsets_of(array)
    return bool(memory_of(array)[offsets[0] : offsets[-1]].max(initial=0) <= 0x7F)


def not_utf8(array: pa.BinaryArray) -> Flags:
    """Which values are not UTF-8. Arrow can only tell whether there is one."""
    offsets, memory = offsets_of(array).tolist(), memoryview(memory_of(array))  # type: ignore[arg-type]
    bad = np.zeros(len(array), np.bool_)
    for index in range(len(array)):
        try:
            str(memory[offsets[index] : offsets[index + 1]], "utf-8")
        except UnicodeDecodeError:
            bad[index] = True
    return bad
