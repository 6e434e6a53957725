"""Decodes JSON texts (UTF-8) into Arrow arrays.

Arrow's JSON reader decodes many records together, where that is exact:

- The type is a struct without maps, decimals, binary values and floats, for which the reader has other rules.
- A record begins with `{`, ends with `}` and has no line break. After `}` JSON allows `{` only between documents, and
  no string continues after a line break: so each line begins a document, and as many rows as lines are one of each.

If the reader refuses some records, or it is not exact, each sixteenth is tried again. A few records are read one by one
by Python's `json`, which finds the cause; there the last one of equal keys wins, as for Spark, and 1.0 is an integer,
as in JSON Schema. What `json` refuses and the reader does not, such as Inf or a very long number where the schema has
nothing, is good: no record depends on its neighbours. Words such as NaN are refused as values.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pyspark_kafka_meta.arrow_arrays import joined, memory_of, offsets_of, slices
from pyspark_kafka_meta.formats.json_schema import JsonSchema
from pyspark_kafka_meta.formats.values import Decoded, Fault

CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_ROWS = 16_384
PIECES = 16
FEW_RECORDS = 64
"""Reading so many one by one takes as long as a call of Arrow's reader."""
EXACT = Context(prec=38, traps=[Inexact, InvalidOperation])

Converter: TypeAlias = Callable[[Any], Any]

_MORE_THAN_MICROS = re.compile(r"(\.\d{6})\d+")
"""Of a timestamp: cut, as Spark does."""


def json_decoder(schema: JsonSchema) -> JsonDecoder:
    return JsonDecoder(schema.type)


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """A `ValueDecoder`."""

    type: pa.DataType

    def decode(self, values: pa.Array) -> Decoded:
        chunk = _Decoding(self.type)
        arrays: list[pa.Array] = []
        for first, part in slices(values, CHUNK_ROWS, CHUNK_BYTES):
            arrays += chunk.decode(part, first)
        return Decoded(joined(arrays, self.type), chunk.faults)


class _PerhapsJson(ValueError):  # noqa: N818 - never leaves this module
    """Python's `json` refuses a text that Arrow's reader may accept: a very long number, deep nesting, or Inf."""


class _Decoding:
    """Attributes:
    faults: found so far, in the order of rows.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._columns = pa.schema(list(_as_read(type_))) if _is_columnar(type_) else None
        # A float would round 9007199254740993.0, or make an integer of 4503599627370497.5.
        self._parse_float = Decimal if _has(type_, pa.types.is_decimal) or _has(type_, pa.types.is_integer) else float
        self._convert = _converter(type_, "$")
        self.faults: list[Fault] = []

    def decode(self, values: pa.Array, row: int) -> list[pa.Array]:
        """The decoded values, in parts; `row` is the index of the first one."""
        if self._columns is not None and len(values) > FEW_RECORDS:
            decoded = self._decode_together(values)
            if decoded is not None:
                return [decoded]
            size = -(-len(values) // PIECES)
            pieces = [self.decode(values.slice(at, size), row + at) for at in range(0, len(values), size)]
            return [array for piece in pieces for array in piece]
        return [self._decode_one_by_one(values, row)]

    def _decode_together(self, values: pa.Array) -> pa.Array | None:
        """None if that is not exact."""
        if values.null_count or not _are_objects(values):
            return None
        whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        lines = pc.binary_join(whole, b"\n")[0].as_buffer()
        parse = pj.ParseOptions(explicit_schema=self._columns, unexpected_field_behavior="ignore")
        read = pj.ReadOptions(use_threads=False, block_size=lines.size + 1)
        try:
            values.cast(pa.string())  # the reader does not check fields that it ignores
            table = pj.read_json(pa.BufferReader(lines), read_options=read, parse_options=parse)
            structs = pa.concat_arrays(table.to_struct_array().chunks).cast(self._type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        is_exact = lines.to_pybytes().count(b"\n") == len(values) - 1 == len(structs) - 1 and _is_finite(structs)
        return structs if is_exact else None

    def _decode_one_by_one(self, values: pa.Array, row: int) -> pa.Array:
        decoded: list[Any] = []
        for index, value in enumerate(values.to_pylist()):
            try:
                decoded.append(None if value is None else self._decode_one(value))
            except _PerhapsJson as error:
                found = None if self._columns is None else self._decode_together(values.slice(index, 1))
                decoded.append(None if found is None else found[0])
                if found is None:
                    self.faults.append(Fault(row + index, str(error)))
            except ValueError as error:
                decoded.append(None)
                self.faults.append(Fault(row + index, str(error)))
        return pa.array(decoded, self._type)

    def _decode_one(self, value: bytes) -> Any:
        try:
            document = json.loads(value.decode(), parse_float=self._parse_float)
        except UnicodeDecodeError:
            raise ValueError("the text is not UTF-8") from None
        except (ValueError, RecursionError, InvalidOperation) as error:
            is_invalid = isinstance(error, json.JSONDecodeError) and b"Inf" not in value
            raise (ValueError if is_invalid else _PerhapsJson)(
                "the text is not valid JSON, is nested too deeply, or has a number too long"
            ) from None
        return None if document is None else self._convert(document)


def _are_objects(values: pa.Array) -> bool:
    """Whether each text begins and ends with a brace."""
    offsets, data = offsets_of(values), memory_of(values)
    if not (offsets[1:] > offsets[:-1]).all():
        return False
    return bool((data[offsets[:-1]] == ord("{")).all() and (data[offsets[1:] - 1] == ord("}")).all())


def _is_finite(values: pa.Array) -> bool:
    """Whether no number is NaN or infinite: the reader accepts these words, which are not JSON."""
    if pa.types.is_struct(values.type):
        return all(_is_finite(child) for child in values.flatten())
    if pa.types.is_list(values.type):
        return _is_finite(values.flatten())
    return not pa.types.is_floating(values.type) or bool(pc.all(pc.is_finite(values)).as_py() is not False)


def _parts(type_: pa.DataType) -> list[pa.DataType]:
    """The types of fields, elements, or values."""
    if pa.types.is_map(type_):
        return [type_.item_type]
    return [type_.field(index).type for index in range(type_.num_fields)]


def _has(type_: pa.DataType, predicate: Callable[[pa.DataType], bool]) -> bool:
    return predicate(type_) or any(_has(part, predicate) for part in _parts(type_))


def _is_columnar(type_: pa.DataType) -> bool:
    """Whether Arrow's reader has the same rules for the type as `_converter`. It would round floats once, not twice."""
    others = (pa.types.is_map, pa.types.is_decimal, pa.types.is_binary, pa.types.is_float32)
    return pa.types.is_struct(type_) and not any(_has(type_, other) for other in others)


def _as_read(type_: pa.DataType) -> pa.DataType:
    """With strings for dates and timestamps: the cast from strings is stricter than the reader."""
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _as_read(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", _as_read(type_.value_type)))
    return pa.string() if pa.types.is_temporal(type_) else type_


def _converter(type_: pa.DataType, path: str) -> Converter:
    """Makes of a value of `json.loads`, which is not null, what pyarrow makes arrays of.

    The converter raises ValueError if the value does not have the type.
    """
    if pa.types.is_struct(type_):
        return _struct_converter([(each.name, _converter(each.type, f"{path}.{each.name}")) for each in type_], path)
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
    convert_scalar = _from_number if _is_number(type_) else _from_text

    def converted(value: Any) -> Any:
        try:
            return convert_scalar(value, type_)
        except (ValueError, ArithmeticError):  # pa.ArrowInvalid is a ValueError
            raise ValueError(f"the value at {path} cannot be read as {type_}") from None

    return converted


def _struct_converter(fields: Sequence[tuple[str, Converter]], path: str) -> Converter:
    def converted(value: Any) -> dict[str, Any]:
        get = _checked(value, dict, path).get
        return {name: None if (each := get(name)) is None else convert(each) for name, convert in fields}

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


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _from_text(value: Any, type_: pa.DataType) -> Any:
    """Raises ValueError for other texts, and for other values."""
    if type(value) is not str:
        raise ValueError
    if pa.types.is_binary(type_):
        return base64.b64decode(value, validate=True)
    return pa.scalar(_MORE_THAN_MICROS.sub(r"\1", value.upper())).cast(type_)


def _from_number(value: Any, type_: pa.DataType) -> Any:
    """Raises ValueError or ArithmeticError for what the type cannot hold. No exponent is written out: 1e999999999 would
    fill the memory."""
    if type(value) not in (int, float, Decimal):
        raise ValueError
    if pa.types.is_floating(type_):
        number = float(value)
        if not math.isfinite(number):
            raise ValueError
        if pa.types.is_float32(type_):
            struct.pack("<f", number)  # OverflowError, where Arrow makes infinity of it
        return number
    if pa.types.is_decimal(type_):
        # Arrow rescales by up to 38 digits; with more, as of 1e-77, it returns other numbers.
        return pa.scalar(Decimal(value).quantize(Decimal(1).scaleb(-type_.scale), context=EXACT), type_).as_py()
    limit = 1 << (type_.bit_width - 1)
    if not -limit <= value < limit:
        raise ValueError
    number = int(value or 0)
    if number != value:
        raise ValueError
    return number
