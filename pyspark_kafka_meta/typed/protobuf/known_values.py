"""Values of known Protobuf types that become one column: times, dates, decimals, and JSON as text; and the reverse."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import Flags, Longs
from pyspark_kafka_meta.typed.columnar.varints import varint_bytes
from pyspark_kafka_meta.typed.protobuf.known_types import (
    CONFLUENT_DECIMAL,
    DATE,
    DECIMAL,
    DURATION,
    LIST_VALUE,
    STRUCT,
    TIMESTAMP,
    VALUE,
)
from pyspark_kafka_meta.typed.protobuf.values import BAD_UTF8
from pyspark_kafka_meta.typed.protobuf.wire import MAX_GROUP_DEPTH, WireField, wire_fields

_MICROS_PER_SECOND = 1_000_000
_MAX_SECONDS = (2**63 - 1) // _MICROS_PER_SECOND - 3  # nanos are at most 2.2 s
_MAX_DIGITS = 1_000
"""Of a decimal with zeros at its end. More take long."""
_DEEP = f"its JSON has more than {MAX_GROUP_DEPTH} nested messages"

Converted = tuple[pa.Array, Flags]
"""A column, and which values are right."""


def _micros(fields: list[pa.Array], kind: pa.DataType) -> Converted:
    """Microseconds, cut towards zero as Spark does."""
    s, n = fields[0].to_numpy(), fields[1].to_numpy().astype(np.int64)
    good = (s >= -_MAX_SECONDS) & (s <= _MAX_SECONDS)
    micros = np.where(good, s, 0) * _MICROS_PER_SECOND + np.sign(n) * (np.abs(n) // 1000)
    return pa.array(micros).view(kind), good


def _days(fields: list[pa.Array], kind: pa.DataType) -> Converted:
    year, month, day = (field.to_numpy().astype(np.int64) for field in fields)
    good = (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = (np.where(good, year * 12 + month, 1970 * 12 + 1) - 1970 * 12 - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + np.where(good, day - 1, 0)
    good &= days.astype("datetime64[M]") == months
    return pa.array(days.astype(np.int64).astype(np.int32)).view(kind), good


def _decimals_of_text(fields: list[pa.Array], kind: pa.DataType) -> Converted:
    return _decimals(map(_parsed_decimal, fields[0].to_pylist()), kind)


def _parsed_decimal(text: str) -> tuple[int, int] | None:
    """Its digits and how many of them follow the point. An empty text is 0."""
    try:
        sign, digits, exponent = Decimal(text or 0).as_tuple()
    except InvalidOperation:
        return None
    if not isinstance(exponent, int) or len(digits) > _MAX_DIGITS:
        return None
    number = int("".join(map(str, digits)))
    return -number if sign else number, -exponent


def _decimals_of_bytes(fields: list[pa.Array], kind: pa.DataType) -> Converted:
    value, _, scale = fields
    numbers = (
        (int.from_bytes(data, "big", signed=True), digits) if len(data) < _MAX_DIGITS // 4 else None
        for data, digits in zip(value.to_pylist(), scale.to_pylist(), strict=True)
    )
    return _decimals(numbers, kind)


def _decimals(numbers: Iterable[tuple[int, int] | None], kind: pa.Decimal128Type) -> Converted:
    """Of numbers and the digits of them that follow the point."""
    unscaled = [None if number is None else _rescaled(*number, kind) for number in numbers]
    good = np.array([number is not None for number in unscaled], np.bool_)
    words = b"".join((number or 0).to_bytes(16, "little", signed=True) for number in unscaled)
    return pa.Array.from_buffers(kind, len(good), [None, pa.py_buffer(words)]), good


def _rescaled(number: int, scale: int, kind: pa.Decimal128Type) -> int | None:
    more = kind.scale - scale
    if number == 0 or abs(more) > _MAX_DIGITS:
        return 0 if number == 0 else None
    number, rest = (number * 10**more, 0) if more >= 0 else divmod(number, 10**-more)
    return None if rest or abs(number) >= 10**kind.precision else number


CONVERSIONS: dict[str, tuple[Callable[[list[pa.Array], pa.DataType], Converted], str]] = {
    TIMESTAMP: (_micros, "seconds do not fit Spark's microseconds"),
    DURATION: (_micros, "seconds do not fit Spark's microseconds"),
    DATE: (_days, "a date has no year, month or day, or does not exist"),
    DECIMAL: (_decimals_of_text, "a decimal is none, or has more digits than its column"),
    CONFLUENT_DECIMAL: (_decimals_of_bytes, "a decimal has more digits than its column"),
}
"""By the type: from the fields of its messages and the column's type, and the cause of faults."""


# --- JSON -------------------------------------------------------------------------------------------------------------


def json_text(kind: str, data: bytes) -> str:
    """The JSON text of a message of `JSON_TYPES`; null for a Value of no kind. Raises ValueError: the message is
    malformed, or a number is none of JSON."""
    view = memoryview(data)
    value = _READERS[kind](view, 0, len(view), 0)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _fields(data: memoryview, at: int, end: int, depth: int) -> Iterator[tuple[int, WireField]]:
    if depth > MAX_GROUP_DEPTH:
        raise ValueError(_DEEP)
    return ((field.tag, field) for field in wire_fields(data, at, end))


def _text(data: memoryview, field: WireField) -> str:
    try:
        return str(data[field.at : field.after], "utf-8")
    except UnicodeDecodeError:
        raise ValueError(BAD_UTF8) from None


def _struct(data: memoryview, at: int, end: int, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for tag, entry in _fields(data, at, end, depth):
        if tag == 0x0A:
            key, value = "", (0, 0)
            for inner, field in _fields(data, entry.at, entry.after, depth):
                if inner == 0x0A:
                    key = _text(data, field)
                elif inner == 0x12:
                    value = field.at, field.after
            found[key] = _value(data, *value, depth + 1)
    return found


def _list(data: memoryview, at: int, end: int, depth: int) -> list[Any]:
    return [_value(data, item.at, item.after, depth + 1) for tag, item in _fields(data, at, end, depth) if tag == 0x0A]


def _value(data: memoryview, at: int, end: int, depth: int) -> Any:
    """Of the last kind that the message has; several structs or lists after one another are merged."""
    value: Any = None
    for tag, field in _fields(data, at, end, depth):
        match tag:
            case 0x08:
                value = None
            case 0x11:
                value = _number(struct.unpack("<d", data[field.at : field.after])[0])
            case 0x1A:
                value = _text(data, field)
            case 0x20:
                value = field.raw != 0
            case 0x2A:
                value = value if isinstance(value, dict) else {}
                value.update(_struct(data, field.at, field.after, depth + 1))
            case 0x32:
                value = value if isinstance(value, list) else []
                value.extend(_list(data, field.at, field.after, depth + 1))
    return value


def _number(number: float) -> float | int:
    if not math.isfinite(number):
        raise ValueError("JSON has no infinite numbers and no NaN")
    is_whole = number.is_integer() and abs(number) < 2**53 and repr(number) != "-0.0"
    return int(number) if is_whole else number


_READERS: dict[str, Callable[[memoryview, int, int, int], Any]] = {STRUCT: _struct, VALUE: _value, LIST_VALUE: _list}


def json_message(kind: str, text: str) -> bytes:
    """The message of `JSON_TYPES` of a JSON text. Raises ValueError: the text is no JSON, or no object (Struct) or
    array (ListValue)."""
    try:
        value = json.loads(text, parse_constant=_no_number)
        if isinstance(value, {STRUCT: dict, LIST_VALUE: list}.get(kind, object)):
            return _encoded(value) if kind == VALUE else _parts(value)
    except (ValueError, RecursionError, OverflowError):
        pass
    raise ValueError(f"is no JSON that {kind} can have")


def _no_number(_: str) -> None:
    raise ValueError


def _encoded(value: Any) -> bytes:
    """A Value."""
    match value:
        case None:
            return b"\x08\x00"
        case bool():
            return bytes([0x20, value])
        case int() | float():
            return b"\x11" + struct.pack("<d", _number(float(value)))
        case str():
            return _sized(0x1A, value.encode())
        case dict():
            return _sized(0x2A, _parts(value))
    return _sized(0x32, _parts(value))


def _parts(value: Any) -> bytes:
    """A Struct of a dictionary, or a ListValue of a list."""
    if isinstance(value, list):
        return b"".join(_sized(0x0A, _encoded(item)) for item in value)
    return b"".join(
        _sized(0x0A, _sized(0x0A, key.encode()) + _sized(0x12, _encoded(item))) for key, item in value.items()
    )


def _sized(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + varint_bytes(len(data)) + data


def date_fields(days: npt.NDArray[np.int32]) -> list[Longs]:
    """Years, months and days of days since 1970."""
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]").astype(np.int64)
    return [months // 12 + 1970, months % 12 + 1, (dates - dates.astype("datetime64[M]")).astype(np.int64) + 1]
