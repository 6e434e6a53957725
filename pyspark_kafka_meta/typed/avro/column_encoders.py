"""Encodes Arrow columns, with a function for each kind of Avro type.

Follows Avro's `GenericDatumWriter` and `BinaryEncoder`: numbers are zigzag varints; strings follow their length, items
of arrays and maps their count, values of a union the index of the branch. Arrays and maps are one block, and end with
0.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import Bytes, Flags
from pyspark_kafka_meta.typed.avro.schema import Logical
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


def nulls(rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
    """Null has no bytes."""


def booleans(place: str, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
    used = not_null(place, values, used)
    rows.append_bytes(values.cast(pa.uint8()).fill_null(0).to_numpy()[:, None], used)


def integers(
    place: str, multiplier: int, divisor: int, rows: EncodedRows, values: pa.Array, used: Flags | None
) -> None:
    """int and long: integers, and dates and times as counts of a unit.

    Args:
        multiplier, divisor: from the column's unit to the schema's, rounded down. One of them is 1.
    """
    used = not_null(place, values, used)
    storage = pa.int32() if values.type.bit_width <= 32 and multiplier == 1 else pa.int64()
    if values.type.bit_width == 32:
        values = values.cast(pa.int32())  # Arrow casts times of 32 bits to nothing else
    numbers: Integers = values.cast(storage).fill_null(0).to_numpy()
    if divisor != 1:
        numbers = numbers // divisor
    if multiplier != 1:
        limit = np.iinfo(np.int64).max // multiplier
        refuse(place, (numbers > limit) | (numbers < -limit), "is out of the range of the schema's unit")
        numbers = numbers * multiplier
    rows.append_varints(numbers, used)


def floats(place: str, kind: pa.DataType, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
    """float and double; `kind` is of the encoded number."""
    used = not_null(place, values, used)
    numbers = values.cast(kind).fill_null(0).to_numpy()
    rows.append_bytes(np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), numbers.itemsize), used)


def strings(
    place: str, is_text: bool, has_length: bool, rows: EncodedRows, values: pa.Array, used: Flags | None
) -> None:
    """string and bytes.

    Args:
        is_text: string, which must be UTF-8.
        has_length: before it.
    """
    used = not_null(place, values, used)
    if is_text:
        refuse_other_than_utf8(place, values)
    if has_length:
        rows.append_varints(lengths(values), used)
    rows.append_values(values.cast(pa.binary()))


def fixed(place: str, size: int, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
    used = not_null(place, values, used)
    refuse(place, lengths(values) != size, f"does not have the schema's {size} bytes", used)
    rows.append_values(values.cast(pa.binary()))


def enums(place: str, symbols: Sequence[str], rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
    used = not_null(place, values, used)
    index = pc.index_in(values, value_set=pa.array(symbols, values.type))
    unknown = index.is_null().to_numpy(zero_copy_only=False)
    refuse(place, unknown, "is not a symbol of the schema's enum", used)
    rows.append_varints(index.fill_null(0).to_numpy(), used)


def decimals(
    place: str,
    logical: Logical,
    size: int | None,
    has_length: bool,
    rows: EncodedRows,
    values: pa.Array,
    used: Flags | None,
) -> None:
    """decimal: the unscaled number in two's complement, big-endian.

    Args:
        logical: of the schema. The column's scale is not larger.
        size: of fixed; None for bytes, which have as few bytes as possible.
        has_length: before these.
    """
    used = not_null(place, values, used)
    number = _big_endian(_rescaled(place, logical, values))[:, -decimal_bytes(logical.precision) :]
    if size is not None:
        rows.append_bytes(_resized(number, size), used)
        return
    significant = _significant(number)
    if used is not None:
        significant &= used[:, None]
    if has_length:
        rows.append_varints(np.count_nonzero(significant, axis=1).astype(np.int32), used)
    rows.append_bytes(number, significant)


def _rescaled(place: str, logical: Logical, values: pa.Array) -> pa.Array:
    precision, scale = logical.precision, logical.scale
    if values.type.scale == scale and values.type.precision <= precision:
        return values
    rescaled = values.cast(pa.decimal256(LARGEST_DECIMAL_DIGITS, scale))
    limit = pa.scalar(Decimal(10) ** (precision - scale), rescaled.type)
    too_large = pc.greater_equal(pc.abs(rescaled), limit).fill_null(False).to_numpy(zero_copy_only=False)
    refuse(place, too_large, f"does not fit into the schema's decimal({precision}, {scale})")
    return rescaled


def records(
    place: str,
    fields: Sequence[tuple[int, ColumnEncoder] | bytes],
    rows: EncodedRows,
    values: pa.Array,
    used: Flags | None,
) -> None:
    """`fields` are in the schema's order: the index in the struct and its encoder, or the bytes that all rows have."""
    used = not_null(place, values, used)
    columns = values.flatten()
    for field in fields:
        if isinstance(field, bytes):
            rows.append_constant(field, used)
        else:
            index, encode = field
            encode(rows, columns[index], used)


def arrays(place: str, encode: ColumnEncoder, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
    used = not_null(place, values, used)
    counts, items = encoded_items(values, lambda encoded, items: encode(encoded, items, None))
    rows.append_varints(counts, used)
    rows.append_values(items)
    rows.append_constant(_END_OF_BLOCKS, counts > 0)


def maps(place: str, encode: ColumnEncoder, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
    """Of structs of key and value."""
    arrays(place, encode, rows, map_entries(values), used)


def branches(
    place: str,
    index: int,
    null_branch: int | None,
    encode: ColumnEncoder,
    rows: EncodedRows,
    values: pa.Array,
    used: Flags | None,
) -> None:
    """A union of which columns have one branch, and null if it has null.

    Args:
        index: of the branch in the union.
        null_branch: None if the union has no null.
    """
    if null_branch is None:
        used = not_null(place, values, used)
    branch, valid = np.full(len(values), index, np.int32), None
    if values.null_count:
        valid = valid_rows(values)
        branch[~valid] = null_branch or 0
    rows.append_varints(branch if used is None else branch * used, used)
    encode(rows, values, valid)


def unions(
    place: str,
    encoders: Sequence[tuple[int, ColumnEncoder]],
    null_branch: int | None,
    rows: EncodedRows,
    values: pa.Array,
    used: Flags | None,
) -> None:
    """A union of several types besides null: a struct with a member for each, of which one is not null.

    Args:
        encoders: index in the union of each member, and its encoder.
        null_branch: None if the union has no null.
    """
    if null_branch is None:
        used = not_null(place, values, used)
    members = values.flatten()
    valid = [valid_rows(member) for member in members]
    count = np.sum(valid, axis=0)
    refuse(place, count > 1, "has more than one member that is not null")
    if null_branch is None:
        refuse(place, count == 0, "has no member that is not null", used)
    branch = np.full(len(values), null_branch or 0, np.int32)
    for (index, _), chosen in zip(encoders, valid, strict=True):
        branch[chosen] = index
    rows.append_varints(branch if used is None else branch * used, used)
    for (_, encode), member, chosen in zip(encoders, members, valid, strict=True):
        encode(rows, member, chosen)


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
