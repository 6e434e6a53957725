"""Encodes Arrow columns, with a class for each kind of Avro type.

Follows Avro's `GenericDatumWriter` and `BinaryEncoder`: numbers are zigzag varints; strings follow their length, items
of arrays and maps their count, values of a union the index of the branch. Arrays and maps are one block, and end with
0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import Bytes, Flags
from pyspark_kafka_meta.typed.columnar.encoders import (
    ColumnEncoder,
    EncodedRows,
    Integers,
    encoded_items,
    lengths,
    map_entries,
    not_null,
    refuse,
    refuse_other_than_utf8,
    valid_rows,
)

_END_OF_BLOCKS = b"\x00"
LARGEST_DECIMAL_DIGITS = 76


@dataclass(frozen=True, slots=True)
class NullEncoder:
    """Has no bytes."""

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        pass


@dataclass(frozen=True, slots=True)
class BooleanEncoder:
    place: str

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        used = not_null(self.place, values, used)
        rows.append_bytes(values.cast(pa.uint8()).fill_null(0).to_numpy()[:, None], used)


@dataclass(frozen=True, slots=True)
class IntegerEncoder:
    """int and long: integers, and dates and times as counts of a unit.

    Attributes:
        multiplier, divisor: from the column's unit to the schema's, rounded down. One of them is 1.
    """

    place: str
    multiplier: int = 1
    divisor: int = 1

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        used = not_null(self.place, values, used)
        storage = pa.int32() if values.type.bit_width <= 32 and self.multiplier == 1 else pa.int64()
        if values.type.bit_width == 32:
            values = values.cast(pa.int32())  # Arrow casts times of 32 bits to nothing else
        numbers: Integers = values.cast(storage).fill_null(0).to_numpy()
        if self.divisor != 1:
            numbers = numbers // self.divisor
        if self.multiplier != 1:
            limit = np.iinfo(np.int64).max // self.multiplier
            refuse(self.place, (numbers > limit) | (numbers < -limit), "is out of the range of the schema's unit")
            numbers = numbers * self.multiplier
        rows.append_varints(numbers, used)


@dataclass(frozen=True, slots=True)
class FloatEncoder:
    """float and double.

    Attributes:
        type: of the encoded number.
    """

    place: str
    type: pa.DataType

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        used = not_null(self.place, values, used)
        numbers = values.cast(self.type).fill_null(0).to_numpy()
        rows.append_bytes(np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), numbers.itemsize), used)


@dataclass(frozen=True, slots=True)
class StringEncoder:
    """string and bytes.

    Attributes:
        is_text: string, which must be UTF-8.
        has_length: before it.
    """

    place: str
    is_text: bool = True
    has_length: bool = True

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        used = not_null(self.place, values, used)
        if self.is_text:
            refuse_other_than_utf8(self.place, values)
        if self.has_length:
            rows.append_varints(lengths(values), used)
        rows.append_values(values.cast(pa.binary()))


@dataclass(frozen=True, slots=True)
class FixedEncoder:
    place: str
    size: int

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        used = not_null(self.place, values, used)
        refuse(self.place, lengths(values) != self.size, f"does not have the schema's {self.size} bytes", used)
        rows.append_values(values.cast(pa.binary()))


@dataclass(frozen=True, slots=True)
class EnumEncoder:
    place: str
    symbols: Sequence[str]

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        used = not_null(self.place, values, used)
        index = pc.index_in(values, value_set=pa.array(self.symbols, values.type))
        unknown = index.is_null().to_numpy(zero_copy_only=False)
        refuse(self.place, unknown, "is not a symbol of the schema's enum", used)
        rows.append_varints(index.fill_null(0).to_numpy(), used)


@dataclass(frozen=True, slots=True)
class DecimalEncoder:
    """decimal: the unscaled number in two's complement, big-endian.

    Attributes:
        precision, scale: of the schema. The column's scale is not larger.
        size: of fixed; None for bytes, which have as few bytes as possible.
        has_length: before these.
    """

    place: str
    precision: int
    scale: int
    size: int | None = None
    has_length: bool = True

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        used = not_null(self.place, values, used)
        number = _big_endian(self._rescaled(values))[:, -decimal_bytes(self.precision) :]
        if self.size is not None:
            rows.append_bytes(_resized(number, self.size), used)
            return
        significant = _significant(number)
        if used is not None:
            significant &= used[:, None]
        if self.has_length:
            rows.append_varints(np.count_nonzero(significant, axis=1).astype(np.int32), used)
        rows.append_bytes(number, significant)

    def _rescaled(self, values: pa.Array) -> pa.Array:
        if values.type.scale == self.scale and values.type.precision <= self.precision:
            return values
        rescaled = values.cast(pa.decimal256(LARGEST_DECIMAL_DIGITS, self.scale))
        limit = pa.scalar(Decimal(10) ** (self.precision - self.scale), rescaled.type)
        too_large = pc.greater_equal(pc.abs(rescaled), limit).fill_null(False).to_numpy(zero_copy_only=False)
        refuse(self.place, too_large, f"does not fit into the schema's decimal({self.precision}, {self.scale})")
        return rescaled


@dataclass(frozen=True, slots=True)
class RecordEncoder:
    """`fields` are in the schema's order: the index in the struct and its encoder, or the bytes that all rows have."""

    place: str
    fields: Sequence[tuple[int, ColumnEncoder] | bytes]

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        used = not_null(self.place, values, used)
        columns = values.flatten()
        for field in self.fields:
            if isinstance(field, bytes):
                rows.append_constant(field, used)
            else:
                index, encoder = field
                encoder.append(rows, columns[index], used)


@dataclass(frozen=True, slots=True)
class ArrayEncoder:
    place: str
    items: ColumnEncoder

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        used = not_null(self.place, values, used)
        counts, items = encoded_items(values, lambda encoded, items: self.items.append(encoded, items, None))
        rows.append_varints(counts, used)
        rows.append_values(items)
        rows.append_constant(_END_OF_BLOCKS, counts > 0)


@dataclass(frozen=True, slots=True)
class MapEncoder:
    """`entries` is of a struct of key and value."""

    entries: ArrayEncoder

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        self.entries.append(rows, map_entries(values), used)


@dataclass(frozen=True, slots=True)
class BranchEncoder:
    """A union of which columns have one branch, and null if it has null.

    Attributes:
        branch: index in the union.
        null_branch: None if the union has no null.
    """

    place: str
    branch: int
    null_branch: int | None
    encoder: ColumnEncoder

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        if self.null_branch is None:
            used = not_null(self.place, values, used)
        branch, valid = np.full(len(values), self.branch, np.int32), None
        if values.null_count:
            valid = valid_rows(values)
            branch[~valid] = self.null_branch or 0
        rows.append_varints(branch if used is None else branch * used, used)
        self.encoder.append(rows, values, valid)


@dataclass(frozen=True, slots=True)
class UnionEncoder:
    """A union of several types besides null: a struct with a member for each, of which one is not null.

    Attributes:
        branches: index in the union of each member, and its encoder.
        null_branch: None if the union has no null.
    """

    place: str
    branches: Sequence[tuple[int, ColumnEncoder]]
    null_branch: int | None

    def append(self, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
        if self.null_branch is None:
            used = not_null(self.place, values, used)
        members = values.flatten()
        valid = [valid_rows(member) for member in members]
        count = np.sum(valid, axis=0)
        refuse(self.place, count > 1, "has more than one member that is not null")
        if self.null_branch is None:
            refuse(self.place, count == 0, "has no member that is not null", used)
        branch = np.full(len(values), self.null_branch or 0, np.int32)
        for (index, _), chosen in zip(self.branches, valid, strict=True):
            branch[chosen] = index
        rows.append_varints(branch if used is None else branch * used, used)
        for (_, encoder), member, chosen in zip(self.branches, members, valid, strict=True):
            encoder.append(rows, member, chosen)


def decimal_bytes(precision: int) -> int:
    """How many bytes hold each number of as many digits. Spark's `Decimal.minBytesForPrecision`."""
    largest: int = 10**precision - 1
    return largest.bit_length() // 8 + 1


def _big_endian(decimals: pa.Array) -> Bytes:
    """The unscaled numbers, a row of 16 or 32 bytes for each."""
    width = decimals.type.byte_width
    little = np.frombuffer(decimals.buffers()[1], np.uint8)[decimals.offset * width :][: len(decimals) * width]
    return little.reshape(len(decimals), width)[:, ::-1]


def _sign(number: Bytes) -> Bytes:
    """The byte that may precede the number, as a column: 0, or 255 if it is negative."""
    return (number[:, :1].view(np.int8) >> 7).view(np.uint8)


def _resized(number: Bytes, size: int) -> Bytes:
    missing = size - number.shape[1]
    return np.hstack([np.repeat(_sign(number), missing, axis=1), number]) if missing > 0 else number[:, -size:]


def _significant(number: Bytes) -> Flags:
    """The bytes that `BigInteger.toByteArray` has: not those that repeat the sign of the next byte."""
    repeats = (number[:, :-1] == _sign(number)) & ((number[:, 1:] ^ number[:, :-1]) < 0x80)
    significant = np.ones(number.shape, np.bool_)
    significant[:, :-1] = ~np.logical_and.accumulate(repeats, axis=1)
    return significant
