"""Decodes JSON texts (UTF-8) into Arrow arrays.

Arrow reads a chunk of usual ones at once (`arrow_json`). Of another chunk msgspec reads each text by itself, so no
record depends on its neighbours, and columns are made of the fields of all records. What msgspec refuses, and what a
column does not hold, is read again by Python's `json`, which has the last word and finds the cause. The last one of
equal keys wins, as for Spark, and 1.0 is an integer, as in JSON Schema. What nothing reads may be a number of any
length.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from pyspark_kafka_meta.arrow_arrays import flag_array, joined, list_array, list_offsets, not_utf8, number_array, slices
from pyspark_kafka_meta.typed.formats import Decoded, Fault
from pyspark_kafka_meta.typed.json.arrow_json import ArrowJsonReader
from pyspark_kafka_meta.typed.json.columns import (
    Column,
    counted_number,
    decimals_of_bytes,
    is_counted,
    times_of_numbers,
    times_of_texts,
)
from pyspark_kafka_meta.typed.json.schema import JsonSchema, column_type

CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_ROWS = 16_384
REFUSALS = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError)
MAX_DECIMAL_BYTES = 16
"""Of Arrow's decimals. Millions would take Python hours."""
EXACT = Context(prec=38, traps=[Inexact, InvalidOperation])

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NOT_FINITE = {
    "NaN": math.nan,
    **dict.fromkeys(("Infinity", "+Infinity", "+INF"), math.inf),
    **dict.fromkeys(("-Infinity", "-INF"), -math.inf),
}
"""Strings that are numbers for Spark. Without quotes, `json` has three of the words."""

Converter: TypeAlias = Callable[[Any], Any]


class JsonDecoder:
    """A `ValueDecoder`."""

    def __init__(self, schema: JsonSchema) -> None:
        kinds = schema.kinds
        self.type, self._kinds = column_type(kinds), kinds
        self._arrow = ArrowJsonReader(kinds)
        self._read, self._read_any = _reader(kinds), _reader(kinds, is_lenient=True)
        self._convert = _converter(kinds, "$")

    def decode(self, values: pa.Array) -> Decoded:
        faults: list[Fault] = []
        parts = slices(values, CHUNK_ROWS, CHUNK_BYTES)
        arrays = [self._decode(part, first, faults) for first, part in parts]
        return Decoded(joined(arrays, self.type), faults)

    def _decode(self, values: pa.Array, row: int, faults: list[Fault]) -> pa.Array:
        """Args:
        row: the index of the first value.
        faults: those of these values are added.
        """
        refused = _not_utf8(values)
        read = None if refused else self._arrow.read(values)
        array, missing = read or self._read_each(values, refused, self._read)
        again = sorted(set(missing))
        if not again:
            return array
        order, found = np.arange(len(values)), []
        for index in again:
            try:
                found.append(self._read_again(values[index].as_py().removeprefix(BYTE_ORDER_MARK)))
            except ValueError as error:
                found.append(None)
                faults.append(Fault(row + index, str(error)))
        order[again] = len(values) + np.arange(len(again))
        return pa.concat_arrays([array, pa.array(found, self.type)]).take(number_array(order))

    def _read_each(self, values: pa.Array, not_utf8: Sequence[int], read: Converter) -> Column:
        """Args:
        read: takes strings alone for texts and decimals, or, at half the speed, other values too.
        """
        texts, records, refused = values.to_pylist(), [], list(not_utf8)
        for index in refused:
            texts[index] = None
        if pc.any(pc.starts_with(values, BYTE_ORDER_MARK)).as_py():
            texts = [text and text.removeprefix(BYTE_ORDER_MARK) for text in texts]
        for index, text in enumerate(texts):
            try:
                records.append(None if text is None else read(text))
            except REFUSALS:
                if read is self._read and self._reads_any(text):
                    return self._read_each(values, not_utf8, self._read_any)
                records.append(None)
                refused.append(index)
        array, not_held = _column(self._kinds, records)
        return array, [*refused, *not_held]

    def _reads_any(self, text: bytes) -> bool:
        """Whether a record is read if texts and decimals are of other values too."""
        try:
            self._read_any(text)
        except REFUSALS:
            return False
        return True

    def _read_again(self, text: bytes) -> Any:
        """Raises ValueError with the cause."""
        try:
            document = json.loads(text.decode(), parse_float=Decimal)
        except UnicodeDecodeError:
            raise ValueError("the text is not UTF-8") from None
        except (ValueError, RecursionError, InvalidOperation):
            raise ValueError("the text is not valid JSON, is nested too deeply, or has a number too long") from None
        try:
            return None if document is None else self._convert(document)
        except RecursionError:
            raise ValueError("the text is nested too deeply") from None


def _reader(kinds: pa.DataType, is_lenient: bool = False) -> Converter:
    """Raises one of `REFUSALS`."""
    try:
        reader: Converter = msgspec.json.Decoder(_kind(kinds, is_lenient), float_hook=_number).decode
    except ValueError:  # a name twice, or with a quote, backslash or control character
        return _refused
    return reader


def _refused(_: bytes) -> Any:
    raise ValueError


def _not_utf8(values: pa.Array) -> list[int]:
    """msgspec does not check strings that nothing reads."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return np.flatnonzero(not_utf8(values)).tolist()
    return []


def _kind(type_: pa.DataType, is_lenient: bool) -> Any:
    """What msgspec reads for `_column`. A float would round numbers of integer and decimal columns: for these it reads
    any value, with Decimal for numbers such as 1.0.

    Args:
        is_lenient: whether it reads any values for large strings and for decimals in Base64.
    """
    kind: Any = Any
    if pa.types.is_struct(type_):
        names = {f"f{index}": field.name for index, field in enumerate(type_)}  # those of Python's variables
        attributes = [(name, _kind(type_.field(index).type, is_lenient), None) for index, name in enumerate(names)]
        kind = msgspec.defstruct("Struct", attributes, rename=names, gc=False, eq=False)
    elif _is_object(type_):
        kind = dict[str, _kind(type_.item_type, is_lenient)]  # type: ignore[misc]
    elif pa.types.is_map(type_):
        kind = list[tuple[_kind(type_.key_type, is_lenient), _kind(type_.item_type, is_lenient)]]  # type: ignore[misc]
    elif pa.types.is_list(type_):
        kind = list[_kind(type_.value_type, is_lenient)]  # type: ignore[misc]
    elif pa.types.is_boolean(type_):
        kind = bool
    elif pa.types.is_floating(type_):
        kind = float
    elif pa.types.is_large_string(type_):
        return msgspec.Raw if is_lenient else str | None
    elif pa.types.is_binary(type_) or (pa.types.is_decimal256(type_) and not is_lenient):
        kind = bytes
    elif not _is_number(type_):
        kind = str
    return kind | None


def _is_object(type_: pa.DataType) -> bool:
    """Whether a map is an object, and no list of pairs."""
    return bool(pa.types.is_map(type_) and pa.types.is_string(type_.key_type))


def _number(text: str) -> int | Decimal:
    """Of a number that is not written as an integer. A float would round it."""
    return int(text[:-2]) if text.endswith(".0") else Decimal(text)


def _column(type_: pa.DataType, values: Sequence[Any]) -> Column:
    """Of what msgspec read as `_kind` of the type."""
    if pa.types.is_struct(type_):
        return _struct(type_, values)
    if pa.types.is_nested(type_):
        return _items(type_, values)
    if is_counted(type_):
        numbers, not_held = _integers(counted_number(type_), values)
        column, too_large = times_of_numbers(type_, numbers)
        return column, [*not_held, *too_large]
    if pa.types.is_temporal(type_):
        return times_of_texts(type_, pa.array(values, pa.string()))
    if pa.types.is_integer(type_):
        return _integers(type_, values)
    if pa.types.is_large_string(type_):
        return _texts(values), ()
    if pa.types.is_decimal256(type_) and {bytes, type(None)}.issuperset(map(type, values)):
        return decimals_of_bytes(type_, pa.array(values, pa.binary()))
    if pa.types.is_decimal(type_):
        return _one_by_one(type_, values, range(len(values)))
    array = pa.array(values, type_)
    if pa.types.is_float32(type_) and pc.all(pc.is_finite(array)).as_py() is False:
        return _one_by_one(type_, values, range(len(values)))
    return array, ()


def _struct(type_: pa.StructType, values: Sequence[Any]) -> Column:
    is_null, nulls = [value is None for value in values], (None,) * type_.num_fields
    rows = [nulls if value is None else astuple(value) for value in values]
    members = list(zip(*rows, strict=True)) or [()] * type_.num_fields
    columns = [_column(field.type, member) for field, member in zip(type_, members, strict=True)]
    arrays, not_held = zip(*columns, strict=True)
    array = pa.StructArray.from_arrays(arrays, fields=list(column_type(type_)), mask=pa.array(is_null, pa.bool_()))
    return array, list(chain(*not_held))


def _integers(type_: pa.DataType, values: Sequence[Any]) -> Column:
    kinds = {int, type(None)}
    others: list[int] = []
    if not kinds.issuperset(map(type, values)):
        others = [index for index, value in enumerate(values) if type(value) not in kinds]
    try:
        return _one_by_one(type_, values, others) if others else (pa.array(values, type_), ())
    except (pa.ArrowInvalid, OverflowError):  # one is too large
        return _one_by_one(type_, values, range(len(values)))


def _items(type_: pa.DataType, values: Sequence[Any]) -> Column:
    """Of lists and maps."""
    none: Any = {} if _is_object(type_) else []
    filled = [value or none for value in values]
    owner = np.repeat(np.arange(len(filled)), np.fromiter(map(len, filled), np.int64, len(filled)))
    if pa.types.is_list(type_):
        child, not_held = _column(type_.value_type, list(chain(*filled)))
        has_key = np.ones(len(child), np.bool_)
    else:
        keys, items, not_held = _entries(type_, filled)
        child = pa.StructArray.from_arrays([keys, items], ["key", "value"])
        has_key = np.asarray(keys.is_valid())
    not_held = [*owner[list(not_held)].tolist(), *owner[~has_key].tolist()]
    if not has_key.all():
        child, owner = child.filter(pa.array(has_key)), owner[has_key]
    valid = flag_array(np.array([value is not None for value in values], np.bool_)).buffers()[1]
    buffers = [valid, list_offsets(owner, len(values))]
    return list_array(column_type(type_), len(values), buffers, child), not_held


def _entries(type_: pa.MapType, maps: Sequence[Any]) -> tuple[pa.Array, pa.Array, Sequence[int]]:
    """The keys and items of maps, and which items the type does not hold."""
    if _is_object(type_):
        keys, items = list(chain(*maps)), list(chain.from_iterable(map(dict.values, maps)))
    else:
        keys, items = ([entry[side] for entry in chain(*maps)] for side in (0, 1))
    array, not_held = _column(type_.item_type, items)
    return _column(type_.key_type, keys)[0], array, not_held


def _texts(values: Sequence[Any]) -> pa.StringArray:
    """Strings, and the JSON texts of other values."""
    if {str, type(None)}.issuperset(map(type, values)):
        return pa.array(values, pa.string())
    texts = pa.array([None if value is None else bytes(value) for value in values], pa.binary())
    is_other = pc.or_(pc.invert(pc.starts_with(texts, '"')), pc.match_substring(texts, "\\"))
    strings, others = pc.binary_slice(texts, 1, -1).cast(pa.string()), texts.filter(is_other).to_pylist()
    return pc.replace_with_mask(strings, is_other, pa.array(map(_text_of, others), pa.string())) if others else strings


def _text_of(text: bytes) -> str | None:
    if text.startswith(b'"'):
        return msgspec.json.decode(text, type=str)
    return None if text == b"null" else msgspec.json.format(text, indent=-1).decode()


def _one_by_one(type_: pa.DataType, values: Sequence[Any], indexes: Iterable[int]) -> Column:
    """Of the values at these indexes; others are as they must be."""
    convert, converted, not_held = _scalar(type_), list(values), []
    for index in indexes:
        try:
            converted[index] = None if values[index] is None else convert(values[index])
        except (ValueError, ArithmeticError):
            converted[index] = None
            not_held.append(index)
    return pa.array(converted, column_type(type_)), not_held


def _converter(type_: pa.DataType, path: str) -> Converter:
    """Makes of a value of `json.loads`, which is not null, what pyarrow makes arrays of.

    The converter raises ValueError if the value does not have the type.
    """
    if pa.types.is_struct(type_):
        return _struct_converter([(each.name, _converter(each.type, f"{path}.{each.name}")) for each in type_], path)
    if pa.types.is_map(type_) and not _is_object(type_):
        return _pairs_converter(_converter(type_.key_type, path), _converter(type_.item_type, f"{path}[*]"), path)
    if pa.types.is_map(type_):
        convert_item = _converter(type_.item_type, f"{path}[*]")
        return lambda value: [
            (_text(key, path), None if each is None else convert_item(each))
            for key, each in _checked(value, dict, path).items()
        ]
    if pa.types.is_list(type_):
        convert = _converter(type_.value_type, f"{path}[*]")
        return lambda value: [None if each is None else convert(each) for each in _checked(value, list, path)]
    if pa.types.is_boolean(type_):
        return lambda value: _checked(value, bool, path)
    if pa.types.is_string(type_):
        return lambda value: _text(_checked(value, str, path), path)
    if pa.types.is_large_string(type_):
        return lambda value: _text(value if type(value) is str else _json_text(value), path)
    convert_scalar = _scalar(type_)

    def converted(value: Any) -> Any:
        try:
            return convert_scalar(value)
        except (ValueError, ArithmeticError):  # pa.ArrowInvalid is a ValueError
            raise ValueError(f"the value at {path} cannot be read as {column_type(type_)}") from None

    return converted


def _struct_converter(fields: Sequence[tuple[str, Converter]], path: str) -> Converter:
    def converted(value: Any) -> dict[str, Any]:
        get = _checked(value, dict, path).get
        return {name: None if (each := get(name)) is None else convert(each) for name, convert in fields}

    return converted


def _pairs_converter(convert_key: Converter, convert_item: Converter, path: str) -> Converter:
    def converted(value: Any) -> list[tuple[Any, Any]]:
        pairs = _checked(value, list, path)
        if not all(type(pair) is list and len(pair) == 2 and pair[0] is not None for pair in pairs):
            raise ValueError(f"the value at {path} is not a list of pairs with keys")
        return [(convert_key(key), None if item is None else convert_item(item)) for key, item in pairs]

    return converted


def _checked(value: Any, kind: type, path: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"the value at {path} is not of type {_JSON_TYPES[kind]}")
    return value


_JSON_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean"}


def _text(value: str, path: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the text at {path} has half of a surrogate pair") from None
    return value


def _json_text(value: Any) -> str:
    """Of what `json` read, with Decimals."""
    if type(value) is dict:
        return "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{_json_text(value[key])}" for key in value) + "}"
    if type(value) is list:
        return "[" + ",".join(map(_json_text, value)) + "]"
    return str(value) if type(value) is Decimal else json.dumps(value, ensure_ascii=False)


def _is_number(type_: pa.DataType) -> bool:
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    return bool(is_number or is_counted(type_))


def _scalar(type_: pa.DataType) -> Converter:
    """It raises ValueError or ArithmeticError for what the type cannot hold. No exponent is written out: 1e999999999
    would fill the memory."""
    if pa.types.is_integer(type_):
        return partial(_integer, 1 << (type_.bit_width - 1))
    if pa.types.is_floating(type_):
        return partial(_float, type_)
    if is_counted(type_):
        return partial(_count, 1 if pa.types.is_date(type_) else 1000)
    if pa.types.is_decimal(type_):
        convert = partial(_decimal, Decimal(1).scaleb(-type_.scale), Decimal(10) ** (type_.precision - type_.scale))
        return partial(_scaled, convert, type_.scale) if pa.types.is_decimal256(type_) else convert
    return _bytes if pa.types.is_binary(type_) else partial(_time, type_)


def _integer(limit: int, value: Any) -> int:
    if type(value) not in (int, Decimal) or not -limit <= value < limit:
        raise ValueError
    number = int(value or 0)
    if number != value:
        raise ValueError
    return number


def _float(type_: pa.DataType, value: Any) -> float:
    if type(value) is str and value in NOT_FINITE:
        return NOT_FINITE[value]
    if type(value) not in (int, float, Decimal):
        raise ValueError
    number = float(value)
    if type(value) is not float and not math.isfinite(number):  # such as 1e999; a float is a word
        raise ValueError
    if pa.types.is_float32(type_):
        struct.pack("<f", number)  # OverflowError, where Arrow makes infinity of it
    return number


def _decimal(unit: Decimal, limit: Decimal, value: Any) -> Decimal:
    if type(value) not in (int, float, Decimal):
        raise ValueError
    # Arrow rescales by up to 38 digits; with more, as of 1e-77, it returns other numbers.
    number = Decimal(value).quantize(unit, context=EXACT)
    if abs(number) >= limit:
        raise ValueError
    return number


def _scaled(convert: Converter, scale: int, value: Any) -> Decimal:
    """Of a number, or an unscaled number in Base64."""
    if type(value) is str:
        unscaled = _bytes(value)
        if not 0 < len(unscaled) <= MAX_DECIMAL_BYTES:
            raise ValueError
        value = Decimal(int.from_bytes(unscaled, "big", signed=True)).scaleb(-scale, EXACT)
    number: Decimal = convert(value)
    return number


def _count(units: int, value: Any) -> int:
    """In the units of the column, of which one day or millisecond has so many."""
    return _integer(1 << 31 if units == 1 else (1 << 63) // units, value) * units


def _bytes(value: Any) -> bytes:
    return base64.b64decode(_checked(value, str, ""), validate=True)


def _time(type_: pa.DataType, value: Any) -> pa.Scalar:
    array, not_held = times_of_texts(type_, pa.array([_checked(value, str, "")]))
    if not_held:
        raise ValueError
    return array[0]
