"""Reads the same field of many Avro records at once with numpy.

A `Cursor` has a position in each of n values. Each read takes one field of all of them, and moves all positions. So the
cost of Python is paid once for a field of thousands of records, not once for each field of each record.

Nobody can trust the bytes. What makes this safe:

- Positions only grow. A number is read without a look at the end of its record: if the record was too short, the bytes
  come from the next record (or again from the last byte of all), the number is wrong, and the position is after the end
  of the record. It stays there, so one look at the ends of all records, by `finish`, finds such records.
- A length is compared with the end of its record before it is used. Nothing is read or allocated by a wrong one.
- A record at fault is noted with its cause, and goes on with harmless numbers in place of wrong ones, so that others
  stay in step. Whatever it then yields is dropped in the end, when the rows at fault become null.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_kafka_meta.arrow_arrays import Bytes, Flags, Longs, numbers_at
from pyspark_kafka_meta.typed.columnar.varints import STOP_BITS, join_sevens

TRUNCATED = "the value ends before its last field"
TRAILING_BYTES = "bytes follow the last field"
BAD_VARINT = "a number has more than 64 bits"
BAD_LENGTH = "a length is negative or reaches over the end of the value"
BAD_COUNT = "a number of items is larger than the rest of the value, or has too many items without bytes"
BAD_SIZE = "a block of items has another size than it says"
MAX_EMPTY_ITEMS = 10_000
"""In one value: items of arrays and maps that take no bytes, such as nulls, which no end of the value limits."""
MAX_EMPTY_ITEMS_OF_CHUNK = 1_000_000

WORD_BYTES = 8
_MAX_VARINT_BYTES = 10
_LOW_BITS = np.uint64(0x0101010101010101)
_ONE = np.uint64(1)


class TooManyEmptyItemsError(Exception):
    """The values of a chunk together have more than `MAX_EMPTY_ITEMS_OF_CHUNK`: decode fewer at once."""


class Memory:
    """The bytes of all values of a chunk, and what is wrong with some of them.

    Attributes:
        view: of the bytes, for those who read one at a time.
        causes: of faults, by the row in the chunk. The first of a row stays.
    """

    def __init__(self, data: Bytes, rows: int) -> None:
        self.data = data if len(data) >= WORD_BYTES else np.concatenate([data, np.zeros(WORD_BYTES, np.uint8)])
        self.view = memoryview(self.data)  # type: ignore[arg-type]
        self.causes: dict[int, str] = {}
        self.empty_items = np.zeros(rows, np.int64)


class Cursor:
    """Positions in some values of a chunk, which reads move.

    Attributes:
        at, end: position and end of each, in the memory. A read replaces the array of positions, and changes none.
        rows: in the chunk; in an array or a map, several positions have the same row.
    """

    def __init__(self, memory: Memory, at: Longs, end: Longs, rows: Longs) -> None:
        self.memory, self.at, self.end, self.rows = memory, at, end, rows

    def __len__(self) -> int:
        return len(self.at)

    def select(self, index: Longs) -> Cursor:
        """A cursor in these values alone. `resume` takes its positions back."""
        return Cursor(self.memory, self.at.take(index), self.end.take(index), self.rows.take(index))

    def resume(self, index: Longs, part: Cursor) -> None:
        self.at = self.at.copy()
        self.at[index] = part.at

    def fail(self, bad: Flags, cause: str, field: str = "") -> None:
        """Note the cause of values at fault. What comes after the end of a value is wrong because the value is short.

        Args:
            field: dotted path of the field; the other methods pass it on.
        """
        rows, first = np.unique(self.rows[bad], return_index=True)
        short = (self.at > self.end)[bad][first]
        if field and not cause.startswith("field "):  # an inner field's cause names it
            cause = f"field {field!r}: {cause}"
        for row, is_short in zip(rows.tolist(), short.tolist(), strict=True):
            self.memory.causes.setdefault(row, TRUNCATED if is_short else cause)

    def finish(self) -> None:
        """Find the values that do not end here."""
        wrong = self.at != self.end
        if wrong.any():
            self.fail(wrong, TRAILING_BYTES)

    def longs(self, field: str) -> Longs:
        """Numbers as zigzag varints: 7 bits in each byte, the lowest first, and a high bit before each other byte.
        Those of up to two bytes, as most lengths are, need no words."""
        first = self.memory.data.take(self.at, mode="clip")
        if first.max(initial=0) <= 0x7F:
            self.at = self.at + 1
            return _unzigzag(first).astype(np.int64)
        has_second = first >> 7
        second = self.memory.data.take(self.at + 1, mode="clip") * has_second
        if second.max() <= 0x7F:
            self.at = self.at + (has_second + 1)
            both = np.left_shift(second, 7, dtype=np.uint16) | (first & 0x7F)
            return _unzigzag(both).astype(np.int64)
        raw, size = self._varints_in_words(field)
        self.at = self.at + size
        return _unzigzag(raw)

    def indexes(self, count: int, cause: str, field: str) -> Longs:
        """Numbers from 0 to `count`, exclusive."""
        index = self.longs(field)
        if index.view(np.uint64).max(initial=0) >= count:
            bad = index.view(np.uint64) >= count
            self.fail(bad, cause, field)
            index[bad] = 0
        return index

    def slices(self, size_bytes: int | None, field: str) -> tuple[Longs, Longs]:
        """Positions and lengths of byte strings, which are before the ends. Without a size for all, each has its length
        before it."""
        length = self.longs(field) if size_bytes is None else np.full(len(self), size_bytes)
        bad = (length < 0) | (length > self.end - self.at)
        if bad.any():
            self.fail(bad, BAD_LENGTH if size_bytes is None else TRUNCATED, field)
            length[bad] = 0
            self.at = np.where(bad, self.end, self.at)
        return self.move(length), length

    def block_counts(self, min_bytes: int, before: Longs, field: str) -> tuple[Longs, Longs]:
        """Numbers of items in the next blocks of arrays, 0 at their ends; and where the blocks end, -1 if they do not
        say so. After a negative number comes the size of the block in bytes.

        Args:
            min_bytes: of an item.
            before: numbers of items in the blocks before.
        """
        count, block_end = self.longs(field), np.full(len(self), -1)
        if count.min(initial=0) < 0:
            sized = np.flatnonzero(count < 0)
            part = self.select(sized)
            size = part.longs(field)
            self.resume(sized, part)
            fits = (size >= 0) & (size <= part.end - part.at)
            block_end[sized] = np.where(fits, part.at + size, 0)  # no block ends at 0
            count[sized] = -count[sized]  # -2**63 stays negative
        limit = (self.end - self.at) // min_bytes if min_bytes else MAX_EMPTY_ITEMS - before
        bad = (count < 0) | (count > limit) | (self.at > self.end)
        if bad.any():
            self.fail(bad, BAD_COUNT, field)
            count[bad] = 0
        return count, block_end

    def move(self, size_bytes: int | Longs) -> Longs:
        """Go on by sizes in bytes. Returns the positions before."""
        before, self.at = self.at, self.at + size_bytes
        return before

    def limit_empty_items(self, counts: Longs, field: str) -> Longs:
        """Numbers of items without bytes, 0 where a value would have more than `MAX_EMPTY_ITEMS`. Raises
        TooManyEmptyItemsError: see there."""
        total = self.memory.empty_items
        np.add.at(total, self.rows, counts)
        bad = total[self.rows] > MAX_EMPTY_ITEMS
        if bad.any():
            self.fail(bad, BAD_COUNT, field)
        if total[total <= MAX_EMPTY_ITEMS].sum() > MAX_EMPTY_ITEMS_OF_CHUNK:
            raise TooManyEmptyItemsError
        return np.where(bad, 0, counts)

    def _varints_in_words(self, field: str) -> tuple[npt.NDArray[np.uint64], Longs]:
        """Unsigned varints and their sizes. Each varint of up to 8 bytes is in a word of 8 bytes, up to the first byte
        without the high bit; others are read byte by byte."""
        words = numbers_at(self.memory.data, self.at, "<u8")
        stops = ~words
        stops &= STOP_BITS
        slow = np.flatnonzero((stops == 0) | (self.at > len(self.memory.data) - WORD_BYTES))
        stops ^= stops - _ONE  # the bits up to the first stop bit
        words &= stops
        join_sevens(words)
        stops &= _LOW_BITS
        stops *= _LOW_BITS
        stops >>= np.uint64(56)  # the number of bytes with such bits
        size = stops.view(np.int64)
        if slow.size:
            words[slow], size[slow] = self._varints_by_bytes(slow, field)
        return words, size

    def _varints_by_bytes(self, index: Longs, field: str) -> tuple[npt.NDArray[np.uint64], Longs]:
        at = self.at[index]
        value, size = np.zeros(len(at), np.uint64), np.zeros(len(at), np.int64)
        more = np.ones(len(at), np.bool_)
        for place in range(_MAX_VARINT_BYTES):
            byte = np.where(more, self.memory.data.take(at + place, mode="clip"), np.uint8(0))
            value |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * place)
            size += more
            more &= byte > 0x7F
        too_long = more | (byte > 1)  # the tenth byte has the 64th bit
        if too_long.any():
            bad = np.zeros(len(self), np.bool_)
            bad[index[too_long]] = True
            self.fail(bad, BAD_VARINT, field)
        return value, size


def _unzigzag(raw: npt.NDArray[np.unsignedinteger[Any]]) -> npt.NDArray[np.signedinteger[Any]]:
    """Signed numbers of as many bits, in the memory of the unsigned ones."""
    signed = raw.view(f"i{raw.itemsize}")
    negative = signed & 1
    raw >>= 1
    signed ^= -negative
    return signed
