"""Column decoders: each reads one type of Avro from many values at once, and yields an Arrow array of one type.

They form a tree, as types do. `resolution` builds it for the schemas of a writer and a reader. What a writer has
and the reader lacks is skipped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import Flags, Longs, binary_array, is_ascii, not_utf8, number_array, numbers_at
from pyspark_kafka_meta.typed.avro.cursor import BAD_LENGTH, BAD_VARINT, TRUNCATED, Cursor
from pyspark_kafka_meta.typed.columnar.decimals import big_endian_words

BAD_INT = "an int has more than 32 bits"
BAD_BOOLEAN = "a boolean is neither 0 nor 1"
BAD_TEXT = "a string is not UTF-8"
MAX_NESTING = 64
"""Levels of a recursive record: Python's stack has several frames for each."""
BAD_NESTING = f"a recursive record has more than {MAX_NESTING} levels"
BAD_UNIT = "a time does not fit 64 bits in the reader's unit"
NO_BRANCH = "a union has a branch that is not in the schema"
NO_SYMBOL = "an enum has a symbol that is not in the schema"
BAD_DECIMAL = "a decimal has no bytes, or more digits than its type"


class BadValue(Exception):  # noqa: N818 - never leaves this package
    """One value, which is read alone, is at fault."""


class Column(ABC):
    """Decodes one type.

    Attributes:
        type: of the arrays.
        field: dotted path, for the causes of faults.
        min_bytes: at least so many bytes has each value.
        fixed_bytes: so many bytes has each value; None if not all have the same.
    """

    type: pa.DataType
    field: str
    min_bytes: int = 1
    fixed_bytes: int | None = None

    @abstractmethod
    def read(self, cursor: Cursor) -> pa.Array:
        """The values at the cursor, which moves after them."""

    @abstractmethod
    def skip(self, cursor: Cursor) -> None:
        """Move the cursor after the values."""

    @abstractmethod
    def skip_one(self, data: memoryview, at: int, end: int) -> int:
        """The position after one value. This is faster than `skip` for a few values only. Raises BadValue: the value
        does not end before `end`, or nobody can know where it ends."""

    def read_present(self, cursor: Cursor, present: Flags) -> pa.Array:
        """The values where there are any, and null elsewhere, where the cursor stays."""
        index = np.flatnonzero(present)
        part = cursor.select(index)
        values = self.read(part)
        cursor.resume(index, part)
        return values.take(number_array(np.cumsum(present) - 1, present))


class _Fixed(Column):
    """Values that all have the same number of bytes."""

    fixed_bytes: int

    def skip(self, cursor: Cursor) -> None:
        cursor.move(self.fixed_bytes)

    def skip_one(self, data: memoryview, at: int, end: int) -> int:
        return at + self.fixed_bytes


@dataclass(frozen=True)
class Null(_Fixed):
    """No bytes. The type is that of the other values of a union."""

    type: pa.DataType
    field: str
    min_bytes: int = 0
    fixed_bytes: int = 0

    def read(self, cursor: Cursor) -> pa.Array:
        return pa.nulls(len(cursor), self.type)


@dataclass(frozen=True)
class Unresolved(Column):
    """A branch of the writer's union that the reader cannot have: a fault where a value has it."""

    type: pa.DataType
    field: str
    cause: str
    min_bytes: int = 0

    def read(self, cursor: Cursor) -> pa.Array:
        self.skip(cursor)
        return pa.nulls(len(cursor), self.type)

    def skip(self, cursor: Cursor) -> None:
        cursor.fail(np.ones(len(cursor), np.bool_), self.cause)

    def skip_one(self, data: memoryview, at: int, end: int) -> int:
        raise BadValue(self.cause)


@dataclass(frozen=True)
class Boolean(_Fixed):
    """One byte, 0 or 1."""

    type: pa.DataType
    field: str
    fixed_bytes: int = 1

    def read(self, cursor: Cursor) -> pa.Array:
        byte = cursor.memory.data.take(cursor.move(1), mode="clip")
        if byte.max(initial=0) > 1:
            cursor.fail(byte > 1, BAD_BOOLEAN, self.field)
        bits = np.packbits(byte, bitorder="little")
        return pa.Array.from_buffers(self.type, len(byte), [None, pa.py_buffer(bits)])


@dataclass(frozen=True)
class Real(_Fixed):
    """A float or double: 4 or 8 bytes, little-endian."""

    type: pa.DataType
    field: str
    fixed_bytes: int

    @property
    def min_bytes(self) -> int:  # type: ignore[override]
        return self.fixed_bytes

    def read(self, cursor: Cursor) -> pa.Array:
        numbers = numbers_at(cursor.memory.data, cursor.move(self.fixed_bytes), f"<f{self.fixed_bytes}")
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return number_array(numbers.astype(f"f{self.type.bit_width // 8}", copy=False))


class _Varint(Column):
    def skip(self, cursor: Cursor) -> None:
        cursor.longs(self.field)

    def skip_one(self, data: memoryview, at: int, end: int) -> int:
        return long_at(data, at, end)[1]


@dataclass(frozen=True)
class Integer(_Varint):
    """An int or long, also as a wider number, date or time.

    Attributes:
        bits: of the writer's type, 32 or 64.
        multiplier, divisor: from the writer's unit of time to the column's; one of them is 1.
    """

    type: pa.DataType
    field: str
    bits: int
    multiplier: int = 1
    divisor: int = 1

    def read(self, cursor: Cursor) -> pa.Array:
        number = cursor.longs(self.field)
        if self.bits == 32:
            check(cursor, number != number.astype(np.int32), BAD_INT, self.field)
        if self.multiplier > 1:
            most = (2**63 - 1) // self.multiplier
            check(cursor, (number > most) | (number < -most), BAD_UNIT, self.field)
            number *= self.multiplier
        if self.divisor > 1:
            number //= self.divisor
        kind = np.dtype(f"{'f' if pa.types.is_floating(self.type) else 'i'}{self.type.bit_width // 8}")
        return number_array(number.astype(kind, copy=False), kind=self.type)


@dataclass(frozen=True)
class Symbol(_Varint):
    """An enum: a number of a symbol.

    Attributes:
        symbols: of the reader, for each of the writer; null if the reader has none.
    """

    type: pa.DataType
    field: str
    symbols: pa.StringArray

    def read(self, cursor: Cursor) -> pa.Array:
        index = cursor.indexes(len(self.symbols), NO_SYMBOL, self.field)
        if not len(self.symbols):
            return pa.nulls(len(cursor), self.type)
        values = self.symbols.take(number_array(index))
        if values.null_count:
            cursor.fail(~_flags(values.is_valid()), NO_SYMBOL, self.field)
        return values


class Slices(Column):
    """Bytes after their length, or a fixed number of bytes: see `fixed_bytes`."""

    @property
    def min_bytes(self) -> int:  # type: ignore[override]
        return 1 if self.fixed_bytes is None else self.fixed_bytes

    def skip(self, cursor: Cursor) -> None:
        if self.fixed_bytes is None:
            cursor.slices(None, self.field)
        else:
            cursor.move(self.fixed_bytes)

    def skip_one(self, data: memoryview, at: int, end: int) -> int:
        if self.fixed_bytes is not None:
            return at + self.fixed_bytes
        length, at = long_at(data, at, end)
        if not 0 <= length <= end - at:
            raise BadValue(BAD_LENGTH)
        return at + length


@dataclass(frozen=True)
class Binary(Slices):
    """Bytes, a string or a fixed, as bytes or string."""

    type: pa.DataType
    field: str
    fixed_bytes: int | None = None

    def read(self, cursor: Cursor) -> pa.Array:
        at, length = cursor.slices(self.fixed_bytes, self.field)
        return self._array(cursor, at, length)

    def read_present(self, cursor: Cursor, present: Flags) -> pa.Array:
        """Copies each value once."""
        index = np.flatnonzero(present)
        part = cursor.select(index)
        at, length = np.zeros(len(cursor), np.int64), np.full(len(cursor), -1)
        at[index], length[index] = part.slices(self.fixed_bytes, self.field)
        cursor.resume(index, part)
        return self._array(cursor, at, length)

    def _array(self, cursor: Cursor, at: Longs, length: Longs) -> pa.Array:
        values = binary_array(cursor.memory.data, at, length)
        if pa.types.is_binary(self.type):
            return values
        if is_ascii(values):
            return values.view(self.type)
        try:
            return values.cast(self.type)
        except pa.ArrowInvalid:
            cursor.fail(not_utf8(values), BAD_TEXT, self.field)
            return values.view(self.type)


@dataclass(frozen=True)
class Decimal(Slices):
    """An unscaled number in bytes, big-endian, with sign.

    Attributes:
        scale: of the writer, at most that of the type.
    """

    type: pa.DataType
    field: str
    fixed_bytes: int | None = None
    scale: int = 0

    def read(self, cursor: Cursor) -> pa.Array:
        at, length = cursor.slices(self.fixed_bytes, self.field)
        more = self.type.scale - self.scale
        words, bad = big_endian_words(cursor.memory.data, at, length, max(self.type.precision - more, 0))
        check(cursor, bad, BAD_DECIMAL, self.field)
        if not more:
            return pa.Array.from_buffers(self.type, len(at), [None, pa.py_buffer(words)])
        words[bad] = 0
        kind = pa.decimal128(max(self.type.precision - more, self.scale, 1), self.scale)
        return pa.Array.from_buffers(kind, len(at), [None, pa.py_buffer(words)]).cast(self.type)


class Record(Column):
    """Fields in the writer's order; an array of structs has them in the reader's.

    Args:
        fields: in the writer's order: with the index in the struct, or None if the reader has no such field.
        defaults: one value of each field that the writer lacks, by the index in the struct.
    """

    def __init__(
        self, kind: pa.DataType, field: str, fields: Sequence[tuple[Column, int | None]], defaults: dict[int, pa.Array]
    ) -> None:
        self.type, self.field, self._fields, self._defaults = kind, field, fields, defaults
        sizes = [column.fixed_bytes for column, _ in fields]
        self.min_bytes = sum(column.min_bytes for column, _ in fields)
        self.fixed_bytes = None if None in sizes else sum(size for size in sizes if size is not None)

    def read(self, cursor: Cursor) -> pa.Array:
        arrays: dict[int, pa.Array] = {}
        for column, index in self._fields:
            if index is None:
                column.skip(cursor)
            else:
                arrays[index] = column.read(cursor)
        for index, value in self._defaults.items():
            arrays[index] = value.take(number_array(np.zeros(len(cursor), np.int8)))
        children = [arrays[index] for index in range(self.type.num_fields)]
        return pa.Array.from_buffers(self.type, len(cursor), [None], children=children)

    def skip(self, cursor: Cursor) -> None:
        for column, _ in self._fields:
            column.skip(cursor)

    def skip_one(self, data: memoryview, at: int, end: int) -> int:
        for column, _ in self._fields:
            at = column.skip_one(data, at, end)
        return at


class Union(Column):
    """A number of a branch, and a value of the branch. All branches yield arrays of the same type."""

    def __init__(self, kind: pa.DataType, field: str, branches: Sequence[Column]) -> None:
        self.type, self.field, self._branches = kind, field, branches
        self.min_bytes = 1 + min(column.min_bytes for column in branches)

    def read(self, cursor: Cursor) -> pa.Array:
        branch = cursor.indexes(len(self._branches), NO_BRANCH, self.field)
        used = np.flatnonzero(np.bincount(branch, minlength=1)).tolist() or [0]
        if len(used) == 1:
            return self._branches[used[0]].read(cursor)
        filled = [index for index in used if not isinstance(self._branches[index], Null)]
        if len(filled) == 1:
            return self._branches[filled[0]].read_present(cursor, branch == filled[0])
        return self._mixed(cursor, branch, used)

    def _mixed(self, cursor: Cursor, branch: Longs, used: list[int]) -> pa.Array:
        order, arrays = [np.flatnonzero(branch == index) for index in used], []
        for index, rows in zip(used, order, strict=True):
            part = cursor.select(rows)
            arrays.append(self._branches[index].read(part))
            cursor.resume(rows, part)
        place = np.empty(len(cursor), np.int64)
        place[np.concatenate(order)] = np.arange(len(cursor))
        return pa.concat_arrays(arrays).take(number_array(place))

    def skip(self, cursor: Cursor) -> None:
        branch = cursor.indexes(len(self._branches), NO_BRANCH, self.field)
        for index in np.flatnonzero(np.bincount(branch)).tolist():
            rows = np.flatnonzero(branch == index)
            part = cursor.select(rows)
            self._branches[index].skip(part)
            cursor.resume(rows, part)

    def skip_one(self, data: memoryview, at: int, end: int) -> int:
        index, at = long_at(data, at, end)
        if not 0 <= index < len(self._branches):
            raise BadValue(NO_BRANCH)
        return self._branches[index].skip_one(data, at, end)


class Skipped(Column):
    """Values that nobody reads: null."""

    def __init__(self, kind: pa.DataType, column: Column) -> None:
        self.type, self.field, self._column = kind, column.field, column
        self.min_bytes, self.fixed_bytes = column.min_bytes, column.fixed_bytes

    def read(self, cursor: Cursor) -> pa.Array:
        self.skip(cursor)
        return pa.nulls(len(cursor), self.type)

    def skip(self, cursor: Cursor) -> None:
        self._column.skip(cursor)

    def skip_one(self, data: memoryview, at: int, end: int) -> int:
        return self._column.skip_one(data, at, end)


class Member(Skipped):
    """A branch of the reader's union, as the struct of all its branches. It is skipped as the branch is."""

    def __init__(self, kind: pa.DataType, column: Column, index: int) -> None:
        super().__init__(kind, column)
        self._index = index

    def read(self, cursor: Cursor) -> pa.Array:
        members = [pa.nulls(len(cursor), member.type) for member in self.type]
        members[self._index] = self._column.read(cursor)
        return pa.Array.from_buffers(self.type, len(cursor), [None], children=members)


class Recursion(Column):
    """A record inside itself, which is skipped.

    Attributes:
        record: the column of the record, once it is complete.
    """

    record: Column

    def __init__(self, field: str) -> None:
        self.type, self.field, self._depth = pa.null(), field, 0

    def read(self, cursor: Cursor) -> pa.Array:
        raise NotImplementedError

    def skip(self, cursor: Cursor) -> None:
        if self._depth == MAX_NESTING:
            cursor.fail(np.ones(len(cursor), np.bool_), BAD_NESTING, self.field)
            return
        self._depth += 1
        try:
            self.record.skip(cursor)
        finally:
            self._depth -= 1

    def skip_one(self, data: memoryview, at: int, end: int) -> int:
        if self._depth == MAX_NESTING:
            raise BadValue(BAD_NESTING)
        self._depth += 1
        try:
            return self.record.skip_one(data, at, end)
        finally:
            self._depth -= 1


def check(cursor: Cursor, bad: Flags, cause: str, field: str) -> None:
    if bad.any():
        cursor.fail(bad, cause, field)


def long_at(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """A zigzag varint of one value, and the position after it."""
    raw = shift = 0
    while at < end:
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if raw >= 2**64 or (byte > 0x7F and shift == 70):
            raise BadValue(BAD_VARINT)
        if byte <= 0x7F:
            return raw >> 1 ^ -(raw & 1), at
    raise BadValue(TRUNCATED)


def _flags(array: pa.BooleanArray) -> Flags:
    bits = np.unpackbits(np.frombuffer(array.buffers()[1], np.uint8), bitorder="little")
    flags: Flags = bits[array.offset : array.offset + len(array)].astype(np.bool_)
    return flags
