"""Column decoders of arrays and maps.

An array is a number of blocks: each begins with its number of items, and a block of 0 items ends the array. Where an
item starts is known once the one before it has been skipped. So items are found round by round: the first item of all
arrays, then the second of those that have more, and so on. Then the items of all arrays are read at once, as any other
column.

A round costs almost the same for three arrays as for a hundred. So the last few, which may be long, are followed one by
one, in plain Python.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import Longs, last_of_keys, list_array, list_offsets
from pyspark_kafka_meta.typed.avro.columns import BadValue, Column, long_at
from pyspark_kafka_meta.typed.avro.cursor import BAD_COUNT, BAD_SIZE, MAX_EMPTY_ITEMS, Cursor

FEW = 24
"""So many arrays are as fast one by one as together."""


class Items(Column):
    """An array, or a map, whose items are pairs of key and value."""

    def __init__(self, kind: pa.DataType, field: str, item: Column) -> None:
        self.type, self.field, self.item = kind, field, item

    def read(self, cursor: Cursor) -> pa.Array:
        before = cursor.at
        finder = _ItemFinder(self, cursor)
        finder.run()
        counts = finder.counts
        if not self.item.min_bytes:
            counts = cursor.limit_empty_items(counts, self.field)
        offsets = np.zeros(len(cursor) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        at = finder.positions(offsets) if self.item.min_bytes else np.repeat(before, counts)
        end, rows = np.repeat(cursor.end, counts), np.repeat(cursor.rows, counts)
        items = self.item.read(Cursor(cursor.memory, at, end, rows))
        buffer = pa.py_buffer(offsets.astype(np.int32))
        if pa.types.is_map(self.type):
            owner, items = last_of_keys(np.repeat(np.arange(len(cursor)), counts), items)
            buffer = list_offsets(owner, len(cursor))
        return list_array(self.type, len(cursor), [None, buffer], items)

    def skip(self, cursor: Cursor) -> None:
        _ItemFinder(self, cursor).run()

    def skip_one(self, data: memoryview, at: int, end: int) -> int:
        return self.follow(data, at, end, [])

    def follow(self, data: memoryview, at: int, end: int, found: list[int], left: int = 0, block_end: int = -1) -> int:
        """The position after an array. Adds the positions of its items to `found`.

        Args:
            left, block_end: items from the position to the end of its block, and this end if the block says so.
        """
        size = self.item.fixed_bytes
        while True:
            if size is None:
                for _ in range(left):
                    found.append(at)
                    at = self.item.skip_one(data, at, end)
            elif left:
                found.extend(range(at, at + left * size, size) if size else ())
                at += left * size
            if block_end not in (-1, at):
                raise BadValue(BAD_SIZE)
            left, block_end, at = self._block_at(data, at, end)
            if not left:
                return at

    def _block_at(self, data: memoryview, at: int, end: int) -> tuple[int, int, int]:
        """`Cursor.block_counts` of one array, and the position after it."""
        count, at = long_at(data, at, end)
        block_end = -1
        if count < 0:
            size, at = long_at(data, at, end)
            count, block_end = -count, max(at + size, 0)
        if count > ((end - at) // self.item.min_bytes if self.item.min_bytes else MAX_EMPTY_ITEMS):
            raise BadValue(BAD_COUNT)
        return count, block_end, at


class _ItemFinder:
    """Finds the items of all arrays at a cursor, which `run` moves after the arrays.

    Attributes:
        counts: of items, for each array.
    """

    def __init__(self, items: Items, cursor: Cursor) -> None:
        self._items, self._cursor = items, cursor
        self._at = cursor.at.copy()
        self._left = np.zeros(len(cursor), np.int64)
        self._block_end = np.full(len(cursor), -1)
        self.counts = np.zeros(len(cursor), np.int64)
        self._found: list[tuple[Longs, Longs, Longs]] = []

    def run(self) -> None:
        arrays = np.arange(len(self._at))
        while arrays.size:
            arrays = self._begin_blocks(arrays)
            if arrays.size <= FEW and self._items.item.min_bytes:
                break
            if self._items.item.fixed_bytes is None:
                self._skip_item(arrays)
            else:
                self._skip_block(arrays, self._items.item.fixed_bytes)
        for array in arrays.tolist():
            self._follow(array)
        self._cursor.at = self._at

    def positions(self, offsets: Longs) -> Longs:
        """Of all items, array by array; `offsets` are the sums of the counts."""
        positions = np.empty(offsets[-1], np.int64)
        if self._found:
            array, place, at = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
            positions[offsets[array] + place] = at
        return positions

    def _begin_blocks(self, arrays: Longs) -> Longs:
        """Read the number of items where a block begins. Returns the arrays that have more items."""
        at_start = arrays[self._left[arrays] == 0]
        if not at_start.size:
            return arrays
        part, block_end = self._part(at_start), self._block_end[at_start]
        wrong = (block_end >= 0) & (block_end != part.at)
        if wrong.any():
            part.fail(wrong, BAD_SIZE, self._items.field)
        counts = part.block_counts(self._items.item.min_bytes, self.counts[at_start], self._items.field)
        self._left[at_start], self._block_end[at_start] = counts
        self._at[at_start] = part.at
        return arrays[self._left[arrays] > 0]

    def _skip_item(self, arrays: Longs) -> None:
        part = self._part(arrays)
        self._found.append((arrays, self.counts[arrays], part.at))
        self._items.item.skip(part)
        self._at[arrays] = part.at
        self._left[arrays] -= 1
        self.counts[arrays] += 1

    def _skip_block(self, arrays: Longs, item_bytes: int) -> None:
        left = self._left[arrays]
        if item_bytes:
            each = np.repeat(arrays, left)
            place = np.arange(len(each)) - np.repeat(np.cumsum(left) - left, left)
            self._found.append((each, self.counts[each] + place, self._at[each] + place * item_bytes))
        self._at[arrays] += left * item_bytes
        self._left[arrays] = 0
        self.counts[arrays] += left

    def _follow(self, array: int) -> None:
        cursor, found = self._cursor, list[int]()
        at, end = int(self._at[array]), int(cursor.end[array])
        try:
            block = int(self._left[array]), int(self._block_end[array])
            self._at[array] = self._items.follow(cursor.memory.view, at, end, found, *block)
        except BadValue as error:
            bad = np.zeros(len(cursor), np.bool_)
            bad[array] = True
            cursor.fail(bad, str(error), self._items.field)
            self._at[array] = end
        place = np.arange(len(found)) + self.counts[array]
        self._found.append((np.full(len(found), array), place, np.array(found, np.int64)))
        self.counts[array] += len(found)

    def _part(self, arrays: Longs) -> Cursor:
        cursor = self._cursor
        return Cursor(cursor.memory, self._at[arrays], cursor.end[arrays], cursor.rows[arrays])
