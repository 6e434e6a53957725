"""Decodes JSON texts (UTF-8) into Arrow arrays.

Arrow's JSON reader decodes many records together, where that is exact:

- The type is a struct without maps, decimals, binary values and floats, for which the reader has other rules.
- A record begins with `{`, ends with `}` and has no line break. After `}` JSON allows `{` only between documents, and
  no string continues after a line break: so each line begins a document, and as many rows as lines are one of each.

If the reader refuses some records, or it is not exact, each half is tried again. A few records are read one by one by
Python's `json`, which finds the cause; there the last one of equal keys wins, as for Spark, and 1.0 is an integer, as
in JSON Schema. Words such as NaN are refused as values, but not looked for in what the schema does not have.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pyspark_kafka_meta.formats.json_schema import JsonSchema
from pyspark_kafka_meta.formats.values import Decoded, Fault

CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_ROWS = 16_384
FEW_RECORDS = 32
"""Reading so many one by one takes as long as a call of Arrow's reader."""
MAX_EXACT_FLOAT = 2**53

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
        arrays = [pa.array([], self.type)]
        offsets = _offsets(values)
        begin = 0
        while begin < len(values):
            fitting = int(np.searchsorted(offsets, int(offsets[begin]) + CHUNK_BYTES, "right")) - 1
            end = min(max(fitting, begin + 1), begin + CHUNK_ROWS, len(values))
            arrays += chunk.decode(values.slice(begin, end - begin), begin)
            begin = end
        return Decoded(arrays[1] if len(arrays) == 2 else pa.concat_arrays(arrays), chunk.faults)


def _offsets(values: pa.Array) -> Any:
    if len(values) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]


class _Decoding:
    """Attributes:
    faults: found so far, in the order of rows.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._columns = pa.schema(list(_as_read(type_))) if _is_columnar(type_) else None
        self._parse_float = Decimal if _has(type_, pa.types.is_decimal) else float
        self.faults: list[Fault] = []

    def decode(self, values: pa.Array, row: int) -> list[pa.Array]:
        """The decoded values, in parts; `row` is the index of the first one."""
        if self._columns is not None and len(values) > FEW_RECORDS:
            decoded = self._decode_together(values)
            if decoded is not None:
                return [decoded]
            half = len(values) // 2
            return [*self.decode(values[:half], row), *self.decode(values[half:], row + half)]
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
            except ValueError as error:
                decoded.append(None)
                self.faults.append(Fault(row + index, str(error)))
        return pa.array(decoded, self._type)

    def _decode_one(self, value: bytes) -> Any:
        try:
            document = json.loads(value.decode(), parse_float=self._parse_float)
        except UnicodeDecodeError:
            raise ValueError("the text is not UTF-8") from None
        except (ValueError, RecursionError, InvalidOperation):
            raise ValueError("the text is not valid JSON, is nested too deeply, or has a number too long") from None
        return _converted(document, self._type, "$")


def _are_objects(values: pa.Array) -> bool:
    """Whether each text begins and ends with a brace."""
    offsets = _offsets(values)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
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
    """Whether Arrow's reader has the same rules for the type as `_converted`. It would round floats once, not twice."""
    others = (pa.types.is_map, pa.types.is_decimal, pa.types.is_binary, pa.types.is_float32)
    return pa.types.is_struct(type_) and not any(_has(type_, other) for other in others)


def _as_read(type_: pa.DataType) -> pa.DataType:
    """With strings for dates and timestamps: the cast from strings is stricter than the reader."""
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _as_read(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", _as_read(type_.value_type)))
    return pa.string() if pa.types.is_temporal(type_) else type_


def _converted(value: Any, type_: pa.DataType, path: str) -> Any:
    """The value of `json.loads` as pyarrow makes arrays of it.

    Raises:
        ValueError: the value does not have the type.
    """
    if value is None:
        return None
    converted = None
    if pa.types.is_struct(type_) and isinstance(value, dict):
        return {each.name: _converted(value.get(each.name), each.type, f"{path}.{each.name}") for each in type_}
    if pa.types.is_map(type_) and isinstance(value, dict):
        return [(_text(key, path), _converted(each, type_.item_type, f"{path}[*]")) for key, each in value.items()]
    if pa.types.is_list(type_) and isinstance(value, list):
        return [_converted(each, type_.value_type, f"{path}[*]") for each in value]
    if pa.types.is_boolean(type_) and isinstance(value, bool):
        return value
    if isinstance(value, str):
        converted = _from_text(value, type_, path)
    elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        converted = _from_number(value, type_)
    if converted is None:
        raise ValueError(f"the value at {path} cannot be read as {type_}")
    return converted


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the text at {path} has half of a surrogate pair") from None
    return value


def _from_text(value: str, type_: pa.DataType, path: str) -> Any:
    """None if it has another type."""
    if pa.types.is_string(type_):
        return _text(value, path)
    try:
        if pa.types.is_binary(type_):
            return base64.b64decode(value, validate=True)
        if pa.types.is_temporal(type_):
            return pa.scalar(_MORE_THAN_MICROS.sub(r"\1", value.upper())).cast(type_)
    except ValueError:  # pa.ArrowInvalid is one
        pass
    return None


def _from_number(value: Any, type_: pa.DataType) -> Any:
    """None if it has another type."""
    try:
        if pa.types.is_integer(type_):
            is_exact = isinstance(value, int) or (value == int(value) and abs(value) <= MAX_EXACT_FLOAT)
            return pa.scalar(int(value), type_).as_py() if is_exact else None
        if pa.types.is_floating(type_):
            return float(value) if math.isfinite(float(value)) else None
        if pa.types.is_decimal(type_):
            return pa.scalar(Decimal(value), type_).as_py()
    except (ValueError, OverflowError, InvalidOperation):  # pa.ArrowInvalid is a ValueError
        pass
    return None
