"""Arrow columns to JSON texts: which texts a type has as a schema, and the schema of a type.

Follows Spark's `to_json`: null properties are left out, unless the schema requires them. Unlike there, timestamps have
microseconds and UTC, and NaN is refused. Texts of all rows are made and joined by Arrow; Python escapes strings that
need it, one by one. Only types, null and required properties are checked, not a schema's other constraints. Where a
schema allows any value, a column of any type is written, and strings that are JSON objects or arrays as such.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import Flags, flag_array, list_lengths, memory_of, number_array, offsets_of
from pyspark_kafka_meta.typed.columnar.encoders import (
    check_names,
    map_entries,
    not_null,
    place_of,
    refuse,
    refuse_column,
    refuse_other_than_utf8,
    rows_of_items,
    valid_rows,
)
from pyspark_kafka_meta.typed.formats import ValueEncoder, inner_path
from pyspark_kafka_meta.typed.json.schema import JsonSchema

_ESCAPED = r'["\\\x00-\x1f]'
_FOUR_DIGIT_YEARS = {
    pa.date32(): (-719_528, 2_932_896),
    pa.timestamp("us"): (-62_167_219_200_000_000, 253_402_300_799_999_999),
}
"""RFC 3339 has no others."""


class Text(NamedTuple):
    """The texts of a column. They are joined with what is around them: each join copies all bytes.

    Attributes:
        content: between `begin` and `end`; null for null.
    """

    begin: str
    content: pa.StringArray
    end: str

    def joined(self) -> pa.StringArray:
        return pc.binary_join_element_wise(*self, "")


Texts: TypeAlias = Callable[[pa.Array], Text]
"""Makes the JSON texts of a column. Raises UnwritableValueError: a value does not fit."""


def _numbers(place: str, values: pa.Array) -> Text:
    """Also of booleans."""
    if pa.types.is_floating(values.type):
        finite = pc.is_finite(values).fill_null(True).to_numpy(zero_copy_only=False)
        refuse(place, ~finite, "is NaN or infinite, which JSON does not have")
    return Text("", values.cast(pa.string()), "")


def _strings(place: str, values: pa.Array) -> Text:
    refuse_other_than_utf8(place, values)
    values = values.cast(pa.string())
    return Text('"', _escaped(values) if _may_need_escapes(values) else values, '"')


def _free_forms(place: str, values: pa.Array) -> Text:
    """Strings, or the objects and arrays of which they are the JSON texts."""
    texts = _strings(place, values).joined()
    values = values.cast(pa.string())
    is_nested = pc.or_(pc.starts_with(values, "{"), pc.starts_with(values, "["))
    nested = pa.array(map(_nested, values.filter(is_nested).to_pylist()), pa.string())
    written = pc.replace_with_mask(pa.nulls(len(values), pa.string()), is_nested, nested)
    return Text("", pc.coalesce(written, texts), "")


def _nested(text: str) -> str | None:
    """The text if it is JSON."""
    try:
        return msgspec.json.format(text, indent=-1)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _may_need_escapes(values: pa.StringArray) -> bool:
    """Three looks at all bytes are five times as fast as a regular expression."""
    offsets = offsets_of(values)
    data = memory_of(values)[offsets[0] : offsets[-1]]
    return bool((data < ord(" ")).any() or (data == ord('"')).any() or (data == ord("\\")).any())


def _escaped(values: pa.StringArray) -> pa.StringArray:
    escaped = pc.match_substring_regex(values, _ESCAPED).fill_null(False)
    texts = [json.dumps(text, ensure_ascii=False)[1:-1] for text in values.filter(escaped).to_pylist()]
    return pc.replace_with_mask(values, escaped, pa.array(texts, pa.string()))


def _binaries(values: pa.Array) -> Text:
    texts = [None if each is None else base64.b64encode(each).decode() for each in values.to_pylist()]
    return Text('"', pa.array(texts, pa.string()), '"')


def _times(place: str, end: str, values: pa.Array) -> Text:
    """`end` is that of a timestamp: with a time zone Z."""
    values = values if pa.types.is_date(values.type) else values.view(pa.timestamp("us"))
    first, last = (pa.scalar(each, values.type) for each in _FOUR_DIGIT_YEARS[values.type])
    outside = pc.or_(pc.less(values, first), pc.greater(values, last)).fill_null(False)
    refuse(place, outside.to_numpy(zero_copy_only=False), "is not in the years 0 to 9999")
    return Text('"', pc.replace_substring(values.cast(pa.string()), " ", "T"), f'{end}"')


@dataclass(frozen=True, slots=True)
class MemberTexts:
    """The texts of properties or items, whose null is part of the text around it.

    Attributes:
        is_required: null is written if the schema allows it, and refused if not; else it is left out.
        allows_null: by the schema.
    """

    place: str
    texts: Texts
    is_required: bool
    allows_null: bool

    def of(self, values: pa.Array, used: Flags | None) -> Text:
        """Null where it is left out. `used` are the rows that have what is around it; None is all."""
        text = self.texts(values)
        if not self.is_required or not values.null_count:
            return text
        if not self.allows_null:
            not_null(self.place, values, used)
        return Text("", text.joined().fill_null("null"), "")


def _objects(members: Sequence[tuple[str, MemberTexts]], values: pa.Array) -> Text:
    """`members` are the name of each field as JSON, and its texts."""
    used = valid_rows(values) if values.null_count else None
    columns = zip(members, values.flatten(), strict=True)
    texts = [(name, member.of(column, used)) for (name, member), column in columns]
    content = _listed([text._replace(begin=f"{name}:{text.begin}") for name, text in texts])
    return Text("{", content if used is None else pc.if_else(flag_array(used), content, None), "}")


def _listed(members: Sequence[Text]) -> pa.StringArray:
    """The members that are not null, with commas between them."""
    always = next((index for index, text in enumerate(members) if not text.content.null_count), None)
    if always is None:
        texts = [text.joined() for text in members]
        present = np.logical_or.reduce([valid_rows(text) for text in texts])
        texts[0] = pc.if_else(flag_array(present), texts[0], "")  # Arrow leaves a row out in which all are null
        return pc.binary_join_element_wise(*texts, ",", null_handling="skip")
    parts: list[Any] = []
    for index, (begin, content, end) in enumerate(members):
        text = Text("," * (index > always) + begin, content, end + "," * (index < always))
        parts += [text.joined()] if content.null_count else text
    return pc.binary_join_element_wise(*parts, "", null_handling="replace")


def _arrays(items: MemberTexts, keys: Texts | None, values: pa.Array) -> Text:
    """Arrays, and objects made of maps, which have keys."""
    lists = values if keys is None else map_entries(values)
    counts, parts = list_lengths(lists), lists.flatten()
    with rows_of_items(counts):
        if keys is None:
            texts = items.of(parts, None).joined()
        else:
            names, parts = parts.flatten()
            texts = pc.binary_join_element_wise(*keys(names), ":", *items.of(parts, None), "")
    offsets = number_array(np.append(0, np.cumsum(counts)).astype(np.int32))
    content = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
    begin, end = "[]" if keys is None else "{}"
    return Text(begin, pc.if_else(values.is_valid(), content, None) if values.null_count else content, end)


def json_encoder(schema: JsonSchema, given: pa.DataType) -> ValueEncoder:
    """The encoder of columns of the type `given`. Raises ValueSchemaError: columns of the type cannot be written with
    the schema."""
    is_sparks = schema.nullable is None
    texts = _Compiler(schema).texts(schema.type if is_sparks else schema.kinds, given, "#", "")
    return ValueEncoder(partial(_encoded, texts))


def _encoded(texts: Texts, values: pa.Array) -> pa.BinaryArray:
    return texts(values).joined().cast(pa.binary())


@dataclass(frozen=True, slots=True)
class _Compiler:
    schema: JsonSchema

    def texts(self, wanted: pa.DataType, given: pa.DataType, place: str, path: str) -> Texts:
        """
        Args:
            wanted: of `JsonSchema.kinds`.
            place: in the schema.
            path: of the field.
        """
        if pa.types.is_large_string(wanted):
            if pa.types.is_string(given):
                return partial(_free_forms, place_of(path))
            return _Compiler(JsonSchema(given)).texts(given, given, place, path)
        if pa.types.is_struct(wanted) and pa.types.is_struct(given):
            return self._object(wanted, given, place, path)
        if pa.types.is_list(wanted) and pa.types.is_list(given):
            item = self._item(wanted.value_type, given.value_type, f"{place}/items", path, "element")
            return partial(_arrays, item, None)
        if pa.types.is_map(wanted) and pa.types.is_map(given) and pa.types.is_string(given.key_type):
            place = f"{place}/additionalProperties"
            item = self._item(wanted.item_type, given.item_type, place, path, "value")
            return partial(_arrays, item, partial(_strings, place_of(path)))
        if _fits(wanted, given):
            return _scalar(given, place_of(path))
        return refuse_column(path, f"has type {given}, which cannot be written where the JSON schema has {wanted}")

    def _object(self, wanted: pa.StructType, given: pa.StructType, place: str, path: str) -> Texts:
        known, required = {field.name for field in wanted}, self.schema.required.get(place, frozenset())
        check_names(given, known, path, "the JSON schema")
        for name in sorted(required - {field.name for field in given}):
            where = "" if name in known else ", also to the schema's properties"
            refuse_column(inner_path(path, name), f"is missing, and the JSON schema requires it: add it{where}")
        if not len(given):
            refuse_column(path, "has no fields")
        members = []
        for field in given:
            inner, inner_place = inner_path(path, field.name), f"{place}/properties/{field.name}"
            texts = self.texts(wanted.field(field.name).type, field.type, inner_place, inner)
            is_required, allows_null = field.name in required, self._allows_null(inner_place)
            member = MemberTexts(place_of(inner), texts, is_required, allows_null)
            members.append((json.dumps(field.name, ensure_ascii=False), member))
        return partial(_objects, members)

    def _item(self, wanted: pa.DataType, given: pa.DataType, place: str, path: str, name: str) -> MemberTexts:
        path = inner_path(path, name)
        return MemberTexts(place_of(path), self.texts(wanted, given, place, path), True, self._allows_null(place))

    def _allows_null(self, place: str) -> bool:
        return self.schema.nullable is None or place in self.schema.nullable


def _fits(wanted: pa.DataType, given: pa.DataType) -> bool:
    """Whether the schema's type has all values of the column's."""
    is_integer = pa.types.is_signed_integer(given)
    if pa.types.is_decimal(wanted) and pa.types.is_decimal128(given):
        whole_digits = given.precision - given.scale
        return bool(given.scale <= wanted.scale and whole_digits <= wanted.precision - wanted.scale)
    if pa.types.is_integer(wanted):
        return is_integer and bool(given.bit_width <= wanted.bit_width)
    if pa.types.is_float64(wanted):
        return is_integer or bool(pa.types.is_floating(given) or pa.types.is_decimal128(given))
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(given):
        return given.unit == "us" and bool(given.tz) == bool(wanted.tz)
    return bool(wanted == given and not pa.types.is_nested(given))


def _scalar(given: pa.DataType, place: str) -> Texts:
    if pa.types.is_string(given):
        return partial(_strings, place)
    if pa.types.is_binary(given):
        return _binaries
    if pa.types.is_date(given) or pa.types.is_timestamp(given):
        return partial(_times, place, "Z" if pa.types.is_timestamp(given) and given.tz else "")
    return partial(_numbers, place)


# --- the schema of a type ---------------------------------------------------------------------------------------------


def derived_json_schema(given: pa.DataType, name: str | None = None) -> str:
    """The JSON Schema of columns of this type, of which other properties are not allowed, as in those that Confluent's
    serializers derive: so properties can be added later. Raises ValueSchemaError: JSON Schema has no such type.

    Args:
        name: the schema's title.
    """
    title = {} if name is None else {"title": name}
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **title, **_derived(given, "")})


def _derived(given: pa.DataType, path: str) -> dict[str, Any]:
    if pa.types.is_struct(given):
        properties = {field.name: _derived(field.type, inner_path(path, field.name)) for field in given}
        required = [field.name for field in given if not field.nullable]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if pa.types.is_list(given):
        return {"type": "array", "items": _derived_item(given.value_field, inner_path(path, "element"))}
    if pa.types.is_map(given) and pa.types.is_string(given.key_type):
        return {"type": "object", "additionalProperties": _derived_item(given.item_field, inner_path(path, "value"))}
    if pa.types.is_signed_integer(given):
        return {"type": "integer"}
    if pa.types.is_timestamp(given) and given.tz:
        return {"type": "string", "format": "date-time"}
    types: dict[pa.DataType, dict[str, Any]] = {
        pa.string(): {"type": "string"},
        pa.bool_(): {"type": "boolean"},
        pa.float32(): {"type": "number"},
        pa.float64(): {"type": "number"},
        pa.date32(): {"type": "string", "format": "date"},
    }
    return types.get(given) or refuse_column(path, f"has type {given}, which JSON Schema does not have: cast it")


def _derived_item(field: pa.Field, path: str) -> dict[str, Any]:
    schema = _derived(field.type, path)
    return {**schema, "type": [schema["type"], "null"]} if field.nullable else schema
