"""Encodes Arrow columns, with a function for each kind of Protobuf field, and of content.

Follows Protobuf's `CodedOutputStream`, which `wire` describes. A field is its tag and its content: a number of
each row, or bytes of each row, which are strings, nested messages, or packed numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import Flags, number_array
from pyspark_kafka_meta.typed.columnar.encoders import (
    ColumnEncoder,
    EncodedRows,
    Unsigned,
    encoded_items,
    lengths,
    map_entries,
    not_null,
    refuse,
    refuse_other_than_utf8,
    valid_rows,
    zigzag,
)
from pyspark_kafka_meta.typed.columnar.varints import varint_bytes
from pyspark_kafka_meta.typed.formats import UnwritableValueError
from pyspark_kafka_meta.typed.protobuf.known_values import date_fields, json_message
from pyspark_kafka_meta.typed.protobuf.schema import Enum
from pyspark_kafka_meta.typed.protobuf.wire import END_GROUP, GROUP, VARINT

Encoded: TypeAlias = Unsigned | pa.BinaryArray

_MICROS_PER_SECOND, _NANOS_PER_MICRO = 1_000_000, 1_000
_EXACT = Context(prec=40)


class Content(NamedTuple):
    """What follows the tag of a field, without the length of bytes.

    Attributes:
        encoded: numbers as varints or little-endian words have them, 0 for null; or bytes, null or empty for null.
            Raises UnwritableValueError: a value does not fit.
    """

    wire_type: int
    encoded: Callable[[pa.Array], Encoded]


def numbers(place: str, kind: str, values: pa.Array) -> Unsigned:
    """`kind` is of Protobuf, without enum."""
    if kind not in _UNSIGNED_BITS:
        return _RAW[kind](values)
    bits = _UNSIGNED_BITS[kind]
    low, is_small = _decimal_words(values) if pa.types.is_decimal(values.type) else _words(values)
    refuse(place, ~is_small | (low >> np.uint64(bits - 1) > 1), f"is not in the range of Protobuf {kind}")
    return low if bits == 64 else low.astype(np.uint32)


_UNSIGNED_BITS = {"uint32": 32, "fixed32": 32, "uint64": 64, "fixed64": 64}
_RAW: dict[str, Callable[[pa.Array], Unsigned]] = {
    "bool": lambda values: _numbers(values, pa.uint8()).astype(np.uint32),
    "int32": lambda values: _numbers(values, pa.int64()).view(np.uint64),
    "int64": lambda values: _numbers(values, pa.int64()).view(np.uint64),
    "sint32": lambda values: zigzag(_numbers(values, pa.int32())),
    "sint64": lambda values: zigzag(_numbers(values, pa.int64())),
    "sfixed32": lambda values: _numbers(values, pa.int32()).view(np.uint32),
    "sfixed64": lambda values: _numbers(values, pa.int64()).view(np.uint64),
    "float": lambda values: _numbers(values, pa.float32()).view(np.uint32),
    "double": lambda values: _numbers(values, pa.float64()).view(np.uint64),
}
"""By kind: from columns of which each value fits."""


def _numbers(values: pa.Array, kind: pa.DataType) -> Any:
    return values.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)


def _words(values: pa.Array) -> tuple[npt.NDArray[np.uint64], Flags]:
    """Integers, and which are not negative."""
    numbers = _numbers(values, pa.int64())
    return numbers.view(np.uint64), numbers >= 0


def _decimal_words(values: pa.Array) -> tuple[npt.NDArray[np.uint64], Flags]:
    """The lower half of decimals without a scale, and whether the higher half is 0. Both are 0 for null."""
    filled = values.fill_null(Decimal(0))
    words = np.frombuffer(filled.buffers()[1], np.uint64).reshape(-1, 2)[filled.offset :][: len(values)]
    return words[:, 0].copy(), words[:, 1] == 0


def enums(place: str, enum: Enum, values: pa.Array) -> Unsigned:
    """Names, or numbers."""
    distinct = values.dictionary_encode()
    given = distinct.dictionary.to_pylist()
    found = [_number_in(enum, each) for each in given]
    index = distinct.indices.fill_null(len(given)).to_numpy()
    unknown = np.array([*(number is None for number in found), False])
    refuse(place, unknown[index], f"is not in the enum {enum.full_name}")
    raw: Unsigned = np.array([*(number or 0 for number in found), 0], np.int64).view(np.uint64)[index]
    return raw


def _number_in(enum: Enum, given: str | int) -> int | None:
    if isinstance(given, str):
        return enum.number_of(given)
    return given if given in enum.names or not enum.closed else None


def strings(place: str, values: pa.Array) -> pa.BinaryArray:
    refuse_other_than_utf8(place, values)
    return binaries(values)


def binaries(values: pa.Array) -> pa.BinaryArray:
    return values.cast(pa.binary())


def messages(
    place: str, fields: Sequence[tuple[int, ColumnEncoder]], oneofs: Sequence[Sequence[int]], values: pa.Array
) -> pa.BinaryArray:
    """
    Args:
        fields: in the order of their numbers: the index in the struct and the encoder.
        oneofs: the indexes of the fields of each.
    """
    valid = valid_rows(values) if values.null_count else None
    columns, rows = values.flatten(), EncodedRows(len(values))
    for members in oneofs:
        count = np.sum([valid_rows(columns[index]) for index in members], axis=0)
        names = ", ".join(values.type[index].name for index in members)
        refuse(place, count > 1, f"has more than one field of a oneof that is not null, of {names}")
    for index, encoder in fields:
        encoder(rows, columns[index], valid)
    return rows.to_array(valid)


def times(message: Content, is_signed: bool, values: pa.Array) -> Encoded:
    """google.protobuf.Timestamp and Duration, of microseconds.

    Args:
        message: of seconds and nanoseconds.
        is_signed: nanoseconds have the sign of the seconds, as in Duration; in Timestamp they count forward.
    """
    micros = _numbers(values, pa.int64())
    rest = np.fmod(micros, _MICROS_PER_SECOND) if is_signed else np.remainder(micros, _MICROS_PER_SECOND)
    seconds, nanos = micros // _MICROS_PER_SECOND + (rest < 0), (rest * _NANOS_PER_MICRO).astype(np.int32)
    valid = valid_rows(values) if values.null_count else None
    fields = [number_array(seconds, valid), number_array(nanos, valid)]
    return message.encoded(_structs(["seconds", "nanos"], fields, values))


def dates(message: Content, values: pa.Array) -> Encoded:
    """google.type.Date, of days."""
    days = _numbers(values.view(pa.int32()), pa.int32())
    fields = [pa.array(field.astype(np.int32)) for field in date_fields(days)]
    return message.encoded(_structs(["year", "month", "day"], fields, values))


def decimal_texts(message: Content, values: pa.Array) -> Encoded:
    """google.type.Decimal."""
    texts = [None if number is None else f"{number:f}" for number in values.to_pylist()]
    return message.encoded(_structs(["value"], [pa.array(texts, pa.string())], values))


def decimals(message: Content, values: pa.Array) -> Encoded:
    """confluent.type.Decimal: an unscaled number in bytes, big-endian, with sign."""
    precision, scale = values.type.precision, values.type.scale
    unscaled = [0 if number is None else int(number.scaleb(scale, _EXACT)) for number in values.to_pylist()]
    data = pa.array([number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True) for number in unscaled])
    digits, places = (pa.repeat(pa.scalar(number, pa.int64()), len(values)) for number in (precision, scale))
    fields = [data, digits, places.cast(pa.int32())]
    return message.encoded(_structs(["value", "precision", "scale"], fields, values))


def _structs(names: list[str], fields: list[pa.Array], values: pa.Array) -> pa.StructArray:
    """Null where the values are."""
    return pa.StructArray.from_arrays(fields, names, mask=values.is_null())


def json_messages(place: str, name: str, values: pa.Array) -> pa.BinaryArray:
    """google.protobuf.Struct, Value or ListValue, of JSON text."""
    found: list[bytes | None] = []
    for row, text in enumerate(values.to_pylist()):
        try:
            found.append(None if text is None else json_message(name, text))
        except ValueError as error:
            raise UnwritableValueError(row, f"{place} {error}") from None
    return pa.array(found, pa.binary())


def groups(message: Content, number: int, values: pa.Array) -> pa.BinaryArray:
    """Messages that end with a tag, as groups and DELIMITED fields."""
    end = pa.scalar(varint_bytes(number << 3 | END_GROUP), pa.binary())
    return pc.binary_join_element_wise(message.encoded(values), end, pa.scalar(b"", pa.binary()))


def packed(place: str, items: Content, values: pa.Array) -> pa.BinaryArray:
    """Lists of numbers."""

    def append(rows: EncodedRows, parts: pa.Array) -> None:
        not_null(place, parts, None)
        _append(rows, items.wire_type, items.encoded(parts), None)

    return encoded_items(values, append)[1]


def singular(
    place: str,
    tag: bytes,
    content: Content,
    required: bool,
    implicit: bool,
    rows: EncodedRows,
    values: pa.Array,
    used: Flags | None,
) -> None:
    """A field that a message has once at most.

    Args:
        tag: its bytes.
        required: null is refused; else it is not written.
        implicit: nor are zero, false and empty values, which readers cannot tell from absent ones.
    """
    if required:
        used = not_null(place, values, used)
    elif values.null_count:
        used = valid_rows(values)
    else:
        used = None
    encoded = content.encoded(values)
    if implicit:
        written = (lengths(encoded) if isinstance(encoded, pa.BinaryArray) else encoded) != 0
        used = None if written.all() else written
    rows.append_constant(tag, used)
    _append(rows, content.wire_type, encoded, used)


def repeated(encode: ColumnEncoder, rows: EncodedRows, values: pa.Array, used: Flags | None) -> None:
    """A field of lists, or of maps, whose entries are messages. Each item is required."""
    lists = map_entries(values) if pa.types.is_map(values.type) else values
    rows.append_values(encoded_items(lists, lambda encoded, items: encode(encoded, items, None))[1])


def _append(rows: EncodedRows, wire_type: int, encoded: Encoded, used: Flags | None) -> None:
    """Append the contents without tags."""
    if isinstance(encoded, pa.BinaryArray):
        if wire_type != GROUP:
            rows.append_unsigned_varints(lengths(encoded).view(np.uint32), used)
        rows.append_values(encoded)
    elif wire_type == VARINT:
        rows.append_unsigned_varints(encoded, used)
    else:
        rows.append_bytes(encoded.view(np.uint8).reshape(len(encoded), encoded.itemsize), used)
