"""Types that Kafka Connect and Debezium name beside plain numbers, bytes and texts become Arrow types.

Source: the classes of `io.debezium.time` and `io.debezium.data`, and of `org.apache.kafka.connect.data`. Types that are
not in `_MAKERS`, such as Uuid, Json, Enum, Year, Interval, Bits or Geometry, stay what they are sent as.

Debezium sends infinite timestamps of PostgreSQL as the first and last ones of its JDBC driver, in the years -290308 and
294247. They stay so. Infinite nanoseconds, which it sends as the first and last numbers, become these timestamps, and
infinite dates, which it sends as several numbers that no date of PostgreSQL has, their days: Spark compares them, but
Python has no such `datetime`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import (
    Flags,
    Longs,
    flag_array,
    list_array,
    memory_of,
    null_unless,
    number_array,
    offsets_of,
)
from pyspark_kafka_meta.typed.formats import PRECISION, ConnectType, inner_path
from pyspark_kafka_meta.value_checks import INT32_MAX, INT64_MAX

MAX_DIGITS = 38
"""Of Spark's decimals."""
MAX_SCALE = 20_000
"""Of a VariableScaleDecimal: PostgreSQL's have up to 16,383 digits after the point."""
UTC_MICROS = pa.timestamp("us", "UTC")
LOCAL_MICROS = pa.timestamp("us")
_INFINITE_MICROS = (-9223372036832400000, 9223372036825200000)
_INFINITE_DAYS = tuple(micros // 86_400_000_000 for micros in _INFINITE_MICROS)
_INFINITE_TEXTS = {
    "-infinity": 0,
    "-290308-12-21T19:59:27.6Z": 0,
    "-5877611-06-22Z": 0,
    "infinity": 1,
    "+294247-01-10T04:00:25.2Z": 1,
    "-5877611-06-21Z": 1,
}
"""Index in those of timestamps or dates."""
_SENT_INFINITE_NANOS = (-INT64_MAX - 1, INT64_MAX)
_SENT_INFINITE_DAYS = ((-625_821_272, -2_147_472_691), (-622_191_234, -2_147_472_692))
"""From snapshots, and from changes. The year -4713 is PostgreSQL's first."""
_ISO = re.compile(r"([+-]?\d{4,7})(-\d\d-\d\d.*)")
"""The year, and what follows it."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Converted: TypeAlias = tuple[pa.Array, Flags]
"""The values, and which of them the type cannot hold: null."""


class Conversion(NamedTuple):
    """How the values of a column become those of another type."""

    type: pa.DataType
    convert: Callable[[pa.Array], Converted]


def conversion(kind: pa.DataType, types: Mapping[str, ConnectType], path: str) -> Conversion | None:
    """Of a field at this path, and of the fields in it; None if all stay what they are.

    Args:
        kind: of the decoded field, which may have the type already, as Avro's logical types do.
        types: see `Schema.connect_types`.
    """
    named = types.get(path)
    maker = None if named is None else _MAKERS.get(named.name)
    if named is not None and maker is not None and (made := maker(kind, named.parameters)) is not None:
        return made
    if pa.types.is_struct(kind):
        return _of_struct(kind, [conversion(each.type, types, inner_path(path, each.name)) for each in kind])
    if pa.types.is_list(kind):
        inner = conversion(kind.value_type, types, inner_path(path, "element"))
        return inner and _of_list(pa.list_(kind.value_field.with_type(inner.type)), inner)
    if pa.types.is_map(kind):
        item = conversion(kind.item_type, types, inner_path(path, "value"))
        return item and _of_list(pa.map_(kind.key_field, kind.item_field.with_type(item.type)), item)
    return None


def _of_struct(kind: pa.StructType, members: list[Conversion | None]) -> Conversion | None:
    if not any(members):
        return None
    types = [each.type if made is None else made.type for each, made in zip(kind, members, strict=True)]
    fields = [each.with_type(type_) for each, type_ in zip(kind, types, strict=True)]

    def convert(structs: pa.StructArray) -> Converted:
        arrays, bad = structs.flatten(), np.zeros(len(structs), np.bool_)
        for index, made in enumerate(members):
            if made is not None:
                arrays[index], faults = made.convert(arrays[index])
                bad |= faults
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=structs.is_null()), bad

    return Conversion(pa.struct(fields), convert)


def _of_list(kind: pa.DataType, item: Conversion) -> Conversion:
    """Of a list, or of the items of a map."""

    def convert(lists: pa.Array) -> Converted:
        is_map = pa.types.is_map(kind)
        values, faults = item.convert(lists.items if is_map else lists.values)
        if is_map:
            values = pa.StructArray.from_arrays([lists.keys, values], ["key", "value"])
        array = list_array(kind, len(lists), lists.buffers()[:2], values, lists.offset)
        offsets, at, bad = offsets_of(lists), np.flatnonzero(faults), np.zeros(len(lists), np.bool_)
        at = at[(at >= offsets[0]) & (at < offsets[-1])]  # the array may be a slice
        bad[np.searchsorted(offsets, at, side="right") - 1] = True
        return array, bad & lists.is_valid().to_numpy(zero_copy_only=False)  # a null may have items

    return Conversion(kind, convert)


# --- numbers ----------------------------------------------------------------------------------------------------------


def numbers_of(array: pa.Array) -> tuple[Longs, Flags]:
    """Whole numbers, 0 for null; and which are not null."""
    return array.cast(pa.int64()).fill_null(0).to_numpy(), array.is_valid().to_numpy(zero_copy_only=False)


def micros(array: pa.Array, multiplier: int, divisor: int, kind: pa.DataType) -> Converted:
    """Timestamps from numbers of a larger unit, or of nanoseconds."""
    if multiplier == divisor:
        return array.cast(pa.int64()).view(kind), np.zeros(len(array), np.bool_)
    numbers, valid = numbers_of(array)
    if divisor > 1:
        found = numbers // divisor
        for sent, infinite in zip(_SENT_INFINITE_NANOS, _INFINITE_MICROS, strict=True):
            found[numbers == sent] = infinite
        return number_array(found, valid, kind), np.zeros(len(array), np.bool_)
    limit = INT64_MAX // multiplier
    bad = valid & ((numbers > limit) | (numbers < -limit))
    return number_array(np.where(bad, 0, numbers) * multiplier, valid & ~bad, kind), bad


def _timestamp(multiplier: int, divisor: int, target: pa.DataType, kind: pa.DataType, _: object) -> Conversion | None:
    if not pa.types.is_integer(kind):
        return None
    return Conversion(target, partial(micros, multiplier=multiplier, divisor=divisor, kind=target))


def _date(kind: pa.DataType, _: object) -> Conversion | None:
    return Conversion(pa.date32(), _days) if pa.types.is_integer(kind) else None


def _days(array: pa.Array) -> Converted:
    least = pc.min(array).as_py() or 0
    if pa.types.is_int32(array.type) and least > max(map(max, _SENT_INFINITE_DAYS)):
        return array.view(pa.date32()), np.zeros(len(array), np.bool_)
    numbers, valid = numbers_of(array)
    bad = valid & (numbers != numbers.astype(np.int32))
    for sent, days in zip(_SENT_INFINITE_DAYS, _INFINITE_DAYS, strict=True):
        numbers = np.where(np.isin(numbers, sent), days, numbers)
    return number_array(numbers.astype(np.int32), valid & ~bad, pa.date32()), bad


def _time(unit: str, digits: int, kind: pa.DataType, _: object) -> Conversion | None:
    """A text that sorts as the times of a day do, as Spark had no type for them before 4.1."""
    return Conversion(pa.string(), partial(_clock, unit, digits)) if pa.types.is_integer(kind) else None


def _clock(unit: str, digits: int, array: pa.Array) -> Converted:
    numbers, valid = numbers_of(array)
    is_other = valid & ((numbers < 0) | (numbers >= 86_400 * 10**digits))
    type_ = pa.time32(unit) if unit == "ms" else pa.time64(unit)
    clean = np.where(is_other, 0, numbers).astype(np.int32 if unit == "ms" else np.int64)
    texts = number_array(clean, valid, type_).cast(pa.string())
    if is_other.any():
        others = [_other_time(number, digits) for number in numbers[is_other].tolist()]
        texts = pc.replace_with_mask(texts, flag_array(is_other), pa.array(others, pa.string()))
    return texts, np.zeros(len(texts), np.bool_)


def _other_time(number: int, digits: int) -> str:
    """PostgreSQL has 24:00:00, MySQL -838:59:59 to 838:59:59."""
    seconds, fraction = divmod(abs(number), 10**digits)
    minutes, second = divmod(seconds, 60)
    return f"{'-' * (number < 0)}{minutes // 60:02}:{minutes % 60:02}:{second:02}.{fraction:0{digits}}"


# --- texts ------------------------------------------------------------------------------------------------------------


def _iso(target: pa.DataType, kind: pa.DataType, _: object) -> Conversion | None:
    return Conversion(target, partial(_parsed, target)) if pa.types.is_string(kind) else None


def _parsed(target: pa.DataType, texts: pa.Array) -> Converted:
    """Times in ISO 8601. What Arrow does not know, or what is no time, is parsed alone, each distinct text once."""
    try:
        return _cast(texts, target), np.zeros(len(texts), np.bool_)
    except pa.ArrowInvalid:
        is_usual = pc.match_substring_regex(texts, r"^\d{4}-").fill_null(False)
        usual = null_unless(is_usual.to_numpy(zero_copy_only=False), texts)
    try:
        parsed = _cast(usual, target)
    except pa.ArrowInvalid:
        parsed = pa.nulls(len(texts), target)
    others = null_unless(parsed.is_null().to_numpy(zero_copy_only=False), texts).dictionary_encode()
    is_date = pa.types.is_date(target)
    numbers = [_number_of(text, is_date) for text in others.dictionary.to_pylist()]
    distinct = pa.array(numbers, pa.int32() if is_date else pa.int64()).cast(target)
    parsed = pc.coalesce(parsed, distinct.take(others.indices))
    return parsed, pc.and_(texts.is_valid(), parsed.is_null()).to_numpy(zero_copy_only=False)


def _cast(texts: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_date(target):
        return pc.utf8_rtrim(texts, "Z").cast(target)
    try:
        return texts.cast(UTC_MICROS).cast(target)
    except pa.ArrowInvalid:  # nanoseconds
        return pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1").cast(UTC_MICROS).cast(target)


def _number_of(text: str, is_date: bool) -> int | None:
    """The days of a date, or the microseconds of a timestamp, in any year; None if Spark has no such value."""
    if text in _INFINITE_TEXTS:
        return (_INFINITE_DAYS if is_date else _INFINITE_MICROS)[_INFINITE_TEXTS[text]]
    if (found := _ISO.fullmatch(text)) is None:
        return None
    cycles, year = divmod(int(found[1]), 400)  # years, after which the calendar repeats itself
    near, cycle_days = f"{year + 400:04}{found[2]}", (cycles - 1) * 146_097
    try:
        if is_date:
            days = (date.fromisoformat(near.removesuffix("Z")) - _EPOCH.date()).days + cycle_days
            return days if abs(days) <= INT32_MAX else None
        time = datetime.fromisoformat(near)
    except ValueError:
        return None
    since = time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH + timedelta(cycle_days)
    number = since // timedelta(microseconds=1)
    return number if abs(number) <= INT64_MAX else None


# --- decimals ---------------------------------------------------------------------------------------------------------


def _decimal(kind: pa.DataType, parameters: Mapping[str, str]) -> Conversion | None:
    try:
        scale, precision = (int(parameters.get(name, 0)) for name in ("scale", PRECISION))
    except ValueError:
        return None
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        return None
    if precision > MAX_DIGITS or not 0 <= scale <= MAX_DIGITS:  # Debezium has one of 2046 for numeric(5,-2)
        return Conversion(pa.string(), partial(_texts_of_scale, scale))
    target = pa.decimal128(max(precision or MAX_DIGITS, scale, 1), scale)
    return Conversion(target, partial(_decimals, target))


def _decimals(target: pa.Decimal128Type, array: pa.Array) -> Converted:
    array = _bytes(array)
    words, is_long = unscaled(array)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    bad = valid & (is_long | ~_has_digits(words, target.precision))
    words[~valid | bad] = 0
    return number_array(words, valid & ~bad, target), bad


def _bytes(array: pa.Array) -> pa.BinaryArray:
    """Of JSON Schema, which has none, they are texts in Base64."""
    if pa.types.is_binary(array.type):
        return array
    return pa.array([None if text is None else _from_base64(text) for text in array.to_pylist()], pa.binary())


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""  # no number


def unscaled(values: pa.BinaryArray) -> tuple[npt.NDArray[np.uint64], Flags]:
    """Big-endian numbers in two's complement as two words each, the lower one first; and which have no bytes, or more
    than 16."""
    offsets = offsets_of(values).astype(np.int64)
    start, end, data = offsets[:-1, None], offsets[1:, None], memory_of(values)
    data = data if len(data) else np.zeros(1, np.uint8)
    is_negative = data[np.minimum(start, len(data) - 1)] >= 0x80
    at = end - 1 - np.arange(16)
    digits = np.where(at >= start, data[np.maximum(at, 0)], np.where(is_negative, 0xFF, 0)).astype(np.uint8)
    size = (end - start)[:, 0]
    return np.ascontiguousarray(digits).view("<u8"), (size == 0) | (size > 16)


def _has_digits(words: npt.NDArray[np.uint64], digits: int) -> Flags:
    """Which numbers have at most so many digits."""
    low, high = words[:, 0], words[:, 1].view(np.int64)
    (high_min, low_min), (high_max, low_max) = (divmod(limit, 2**64) for limit in (1 - 10**digits, 10**digits - 1))
    is_enough = (high > high_min) | ((high == high_min) & (low >= np.uint64(low_min)))
    fits: Flags = is_enough & ((high < high_max) | ((high == high_max) & (low <= np.uint64(low_max))))
    return fits


def _variable_scale(kind: pa.DataType, _: object) -> Conversion | None:
    """A text, as each value has digits of its own."""
    is_decimal = pa.types.is_struct(kind) and {"scale", "value"} <= {field.name for field in kind}
    return Conversion(pa.string(), _texts) if is_decimal and pa.types.is_binary(kind.field("value").type) else None


def _texts_of_scale(scale: int, array: pa.Array) -> Converted:
    return _texts(pa.StructArray.from_arrays([pa.array(np.full(len(array), scale)), _bytes(array)], ["scale", "value"]))


def _texts(structs: pa.StructArray) -> Converted:
    fields = dict(zip(structs.type.names, structs.flatten(), strict=True))
    (scales, has_scale), values = numbers_of(fields["scale"]), fields["value"]
    words, is_long = unscaled(values)
    valid = has_scale & values.is_valid().to_numpy(zero_copy_only=False)
    is_short = valid & ~is_long & (scales >= 0) & (scales <= MAX_DIGITS) & _has_digits(words, MAX_DIGITS)
    words[~is_short] = 0
    digits = number_array(words, None, pa.decimal128(MAX_DIGITS, 0)).cast(pa.string())
    rows = [np.flatnonzero(is_short & (scales == scale)) for scale in np.unique(scales[is_short]).tolist()]
    parts = [_with_point(digits.take(pa.array(at)), int(scales[at[0]])) for at in rows]
    others = np.flatnonzero(~is_short)
    exact = [_exact(values[row].as_py(), int(scales[row])) if valid[row] else None for row in others.tolist()]
    order = np.empty(len(structs), np.int64)
    order[np.concatenate([*rows, others])] = np.arange(len(structs))
    texts = pa.concat_arrays([*parts, pa.array(exact, pa.string())]).take(pa.array(order))
    return texts, valid & texts.is_null().to_numpy(zero_copy_only=False)


def _with_point(digits: pa.StringArray, scale: int) -> pa.StringArray:
    if scale == 0:
        return digits
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    whole, rest = pc.utf8_slice_codeunits(padded, 0, -scale), pc.utf8_slice_codeunits(padded, -scale)
    return pc.binary_join_element_wise(sign, pc.binary_join_element_wise(whole, rest, "."), "")


def _exact(value: bytes, scale: int) -> str | None:
    if not value or abs(scale) > MAX_SCALE:
        return None
    sign, digits, _ = Decimal(int.from_bytes(value, "big", signed=True)).as_tuple()
    return f"{Decimal((sign, digits, -scale)):f}"


_Maker: TypeAlias = Callable[[pa.DataType, Mapping[str, str]], Conversion | None]
_CONNECT, _DEBEZIUM = "org.apache.kafka.connect.data", "io.debezium"
_MAKERS: Mapping[str, _Maker] = {
    f"{_CONNECT}.Date": _date,
    f"{_CONNECT}.Time": partial(_time, "ms", 3),
    f"{_CONNECT}.Timestamp": partial(_timestamp, 1000, 1, UTC_MICROS),
    f"{_CONNECT}.Decimal": _decimal,
    f"{_DEBEZIUM}.time.Date": _date,
    f"{_DEBEZIUM}.time.Time": partial(_time, "ms", 3),
    f"{_DEBEZIUM}.time.MicroTime": partial(_time, "us", 6),
    f"{_DEBEZIUM}.time.NanoTime": partial(_time, "ns", 9),
    f"{_DEBEZIUM}.time.Timestamp": partial(_timestamp, 1000, 1, LOCAL_MICROS),
    f"{_DEBEZIUM}.time.MicroTimestamp": partial(_timestamp, 1, 1, LOCAL_MICROS),
    f"{_DEBEZIUM}.time.NanoTimestamp": partial(_timestamp, 1, 1000, LOCAL_MICROS),
    f"{_DEBEZIUM}.time.IsoDate": partial(_iso, pa.date32()),
    f"{_DEBEZIUM}.time.IsoTimestamp": partial(_iso, LOCAL_MICROS),
    f"{_DEBEZIUM}.time.ZonedTimestamp": partial(_iso, UTC_MICROS),
    f"{_DEBEZIUM}.data.VariableScaleDecimal": _variable_scale,
}
"""By the name of the type; None for a column of a type that nothing is known of."""
