"""Schemas of JSON values become Arrow types: JSON Schema (draft 4 to 2020-12), or a type of Spark as JSON or DDL.

A column is what values can be read as; constraints such as minimum, pattern, enum or required are not checked. So all
columns are nullable, as those of Spark's `from_json`. pyarrow is imported on first use.

    JSON Schema                                    column
    integer, number                                bigint, double
    string; with format date or date-time          string; date or timestamp
    boolean                                        boolean
    array with one schema for all items            array
    object with properties                         struct; other properties are ignored
    object with additionalProperties alone         map of strings
    null with one other type, or scalars of one    that type
    $ref to this or another known document,        what they stand for
    allOf of objects
    all else: any values, several types, tuples,   string: a string, or the JSON text of another value
    recursion, $anchor
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import COMPILED_SCHEMAS, ConnectType, inner_path
from pyspark_kafka_meta.typed.json.spark_ddl import type_of_ddl

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DEPTH = 100
MAX_COLUMNS = 100_000
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_ANY_OF = ("anyOf", "oneOf")
_NULLABLE = "anyOf null"
"""A keyword of merged schemas: a union had null."""
_PARENTS = "$ref parents"
"""A keyword of schemas in merged ones."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """Attributes:
    kinds: the type of the column, with other types where texts have the values in another form: large_string where the
        text of any value is a string, as for `from_json`; date64 and timestamp[ms] where a number counts days or
        milliseconds; decimal256 where a string is the Base64 of the unscaled value. A map is a list of pairs if its
        keys are no strings.
    required: names of properties that each object must have, by its place in the schema.
    nullable: places that allow null; None if all do, as in a type of Spark.
    named: types that Kafka Connect names, by place.
    """

    kinds: pa.DataType
    required: Mapping[str, frozenset[str]] = field(default_factory=dict)
    nullable: frozenset[str] | None = None
    named: Mapping[str, ConnectType] = field(default_factory=dict)

    @property
    def type(self) -> pa.DataType:
        """Of the column."""
        return column_type(self.kinds)

    @property
    def connect_types(self) -> dict[str, ConnectType]:
        """By paths as `inner_path` makes them."""
        return {path: self.named[place] for place, path in _places(self.kinds, "#", "") if place in self.named}


def _places(kinds: pa.DataType, place: str, path: str) -> Iterator[tuple[str, str]]:
    """The places in a schema of JSON Schema that are fields of the type, with their paths."""
    import pyarrow as pa

    yield place, path
    inner = []
    if pa.types.is_struct(kinds):
        inner = [(f"properties/{each.name}", each.name, each.type) for each in kinds]
    elif pa.types.is_map(kinds):
        inner = [("additionalProperties", "value", kinds.item_type)]
    elif pa.types.is_list(kinds):
        inner = [("items", "element", kinds.value_type)]
    for step, name, kind in inner:
        yield from _places(kind, f"{place}/{step}", inner_path(path, name))


@lru_cache(COMPILED_SCHEMAS)
def column_type(kinds: pa.DataType) -> pa.DataType:
    """The type of a column of `JsonSchema.kinds`."""
    import pyarrow as pa

    if pa.types.is_struct(kinds):
        return pa.struct([each.with_type(column_type(each.type)) for each in kinds])
    if pa.types.is_map(kinds):
        return pa.map_(column_type(kinds.key_type), column_type(kinds.item_type))
    if pa.types.is_list(kinds):
        return pa.list_(kinds.value_field.with_type(column_type(kinds.value_type)))
    if pa.types.is_decimal256(kinds):
        return pa.decimal128(kinds.precision, kinds.scale)
    columns = {pa.large_string(): pa.string(), pa.date64(): pa.date32(), pa.timestamp("ms"): pa.timestamp("us", "UTC")}
    return columns.get(kinds, kinds)


def parse_json_schema(text: str, references: Sequence[str] = ()) -> JsonSchema:
    """The schema of a text: JSON Schema, what Spark's `DataType.json()` and `simpleString()` return, or DDL. Raises
    ValueSchemaError: it is neither, is too large, or has a type of Spark that JSON does not have.

    Args:
        references: documents that it refers to by their `$id`.
    """
    try:
        document = _document(text)
        if _is_sparks(document):
            return JsonSchema(_SparkTypes().type(document, "value"))
        types = _JsonSchemaTypes(document, [json.loads(reference) for reference in references])
        return JsonSchema(types.type(document, "#"), types.required, frozenset(types.nullable), types.named)
    except (ValueError, RecursionError):
        raise ValueSchemaError("The JSON schema is not valid JSON or DDL, or is nested too deeply.") from None


def _document(text: str) -> object:
    """Raises ValueError."""
    try:
        return json.loads(text)
    except ValueError:
        if text.lstrip()[:1] in ("{", "[", '"'):
            raise
        return type_of_ddl(text)


def _is_sparks(document: object) -> bool:
    """JSON Schema has no such types, and its arrays have items."""
    if isinstance(document, dict):
        return document.get("type") in ("struct", "map") or "elementType" in document
    return isinstance(document, str)


class _Columns:
    """Counts columns, because references can make a small schema large."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, depth: int, count: int = 1) -> None:
        self._count += count
        if self._count > MAX_COLUMNS or depth > MAX_DEPTH:
            raise ValueSchemaError(f"The JSON schema has over {MAX_COLUMNS} columns or {MAX_DEPTH} levels.")


class _FreeForm(Exception):  # noqa: N818
    """A schema has values of no single type."""


class _JsonSchemaTypes:
    """Arrow types of the schemas in a document of JSON Schema."""

    def __init__(self, document: object, references: Sequence[object] = ()) -> None:
        self._documents = {_id(each): each for each in (*references, document)} | {"": document}
        self._columns = _Columns()
        self.required: dict[str, frozenset[str]] = {}
        self.nullable: set[str] = set()
        self.named: dict[str, ConnectType] = {}

    def type(self, schema: object, path: str, depth: int = 0) -> pa.DataType:
        """Args:
        path: of the schema in the document.
        depth: arrays, maps and structs around it.
        """
        import pyarrow as pa

        self._columns.add(depth)
        try:
            return self._type(schema, path, depth)
        except _FreeForm:
            self.nullable.add(path)
            return pa.large_string()

    def _type(self, schema: object, path: str, depth: int) -> pa.DataType:
        import pyarrow as pa

        resolved = self._resolved(schema, schema.get(_PARENTS, ()) if isinstance(schema, dict) else ())
        match resolved:  # as Confluent's JsonSchemaData writes it
            case {"connect.type": _}:
                title = resolved.get("title")
                name = title if isinstance(title, str) else ""
                self.named[path] = ConnectType.of(name, resolved.get("connect.parameters"))
        name = self._type_name(resolved, path)
        if name == "object":
            return self._object(resolved, path, depth)
        if name == "array":
            items = resolved.get("items")
            if "prefixItems" in resolved or not isinstance(items, dict):
                raise _FreeForm
            return pa.list_(pa.field("element", self.type(items, f"{path}/items", depth + 1)))
        if name == "string":
            formats = {"date": pa.date32(), "date-time": pa.timestamp("us", "UTC")}
            return formats.get(str(resolved.get("format")), pa.string())
        return {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}[name]

    def _object(self, schema: Mapping[str, Any], path: str, depth: int) -> pa.DataType:
        import pyarrow as pa

        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(properties, dict) and properties:
            self.required[path] = frozenset(name for name in _list(schema.get("required")) if isinstance(name, str))
            types = {name: self.type(each, f"{path}/properties/{name}", depth + 1) for name, each in properties.items()}
            return pa.struct(list(types.items()))
        if isinstance(others, dict) and "patternProperties" not in schema:
            return pa.map_(pa.string(), self.type(others, f"{path}/additionalProperties", depth + 1))
        raise _FreeForm

    def _type_name(self, schema: Mapping[str, Any], path: str) -> str:
        """The only type of JSON Schema beside null."""
        types = _types(schema)
        if "null" in types:
            self.nullable.add(path)
        types.discard("null")
        if types == {"integer", "number"}:
            return "number"
        if len(types) != 1 or not types < {"object", "array", "string", "integer", "number", "boolean"}:
            raise _FreeForm
        return types.pop()

    def _resolved(self, schema: object, parents: tuple[str, ...]) -> Mapping[str, Any]:
        """The schema without references, unions with null, and allOf.

        Args:
            parents: the references on the way to this schema, to find recursion. Schemas in it get them as `_PARENTS`.
        """
        if not isinstance(schema, dict) or len(parents) > MAX_DEPTH:
            raise _FreeForm
        own = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", *_ANY_OF, _PARENTS)}
        parts = [*_list(schema.get("allOf"))]
        known = schema.get("properties")
        parts += [self._beside_null(schema[key], parents, known) for key in _ANY_OF if key in schema]
        self._columns.add(0, len(parts))  # references can double them each time
        merged: dict[str, Any] = {}
        for part in parts:
            merged = _merged(merged, self._resolved(part, parents))
        if "$ref" in schema:
            reference = _absolute(schema["$ref"], parents)
            if reference in parents:  # it is recursive; Spark has no type for it
                raise _FreeForm
            merged = _merged(merged, self._resolved(self._referred(reference), (*parents, reference)))
        if any(_is_null(each) for key in _ANY_OF for each in _list(schema.get(key))):
            own[_NULLABLE] = True
        return _merged(merged, _with_parents(own, parents))

    def _beside_null(self, choices: object, parents: tuple[str, ...], known: object) -> object:
        """The only choice beside null. Of several the types, if they are scalars; nothing, if none says a type, or all
        say which of the known properties an object has."""
        others = [each for each in _list(choices) if not _is_null(each)]
        if len(others) == 1:
            return others[0]
        self._columns.add(0, len(others))  # references can double the choices each time
        resolved = [self._resolved(each, parents) for each in others]
        types = [_types(each) for each in resolved]
        names, formats = set[str]().union(*types), {str(each.get("format", "")) for each in resolved}
        if isinstance(known, dict) and names == {"object"} and all(_has_only(known, each) for each in resolved):
            return {}
        if not types or names & {"object", "array"} or (names and not all(types)):
            raise _FreeForm
        union: dict[str, object] = {"type": sorted(names)} if names else {}
        if len(formats) == 1 and "" not in formats:
            union["format"] = formats.pop()
        return union

    def _referred(self, reference: str) -> object:
        document, _, pointer = reference.partition("#")
        if pointer[:1] not in ("", "/"):
            raise _FreeForm
        try:
            target = self._documents[document]
            for step in unquote(pointer).split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                target = target[int(step)] if isinstance(target, list) else target[step]  # type: ignore[index]
        except (KeyError, IndexError, ValueError, TypeError):
            raise _FreeForm from None
        return target


_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The types of JSON Schema that a resolved schema has, with null."""
    names = schema.get("type", _implied(schema))
    types = {name for name in (names if isinstance(names, list) else [names]) if isinstance(name, str)}
    return types | {"null"} if _NULLABLE in schema else types


def _implied(schema: Mapping[str, Any]) -> list[str]:
    """Without a type: the types of an enum's values, or of the keywords for objects and arrays."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if isinstance(values, list) and values:
        return [_JSON_TYPES.get(type(value), "") for value in values]
    if "properties" in schema or "additionalProperties" in schema:
        return ["object"]
    return ["array"] if "items" in schema else []


def _id(document: object) -> object:
    return str(document.get("$id", "")).rstrip("#") if isinstance(document, dict) else ""


def _absolute(reference: object, parents: tuple[str, ...]) -> str:
    """With the document, which is that of the last reference on the way to this one."""
    if not isinstance(reference, str):
        raise _FreeForm
    return reference if reference[:1] != "#" or not parents else parents[-1].partition("#")[0] + reference


def _has_only(known: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether an object has no other properties than the known ones."""
    properties = schema.get("properties", {})
    return isinstance(properties, dict) and properties.keys() <= known.keys()


def _list(given: object) -> list[Any]:
    return given if isinstance(given, list) else []


def _is_null(schema: object) -> bool:
    """Whether null is the only value. Confluent's Java serializer gives it a title: "Not included"."""
    return isinstance(schema, dict) and schema.get("type") in ("null", ["null"])


def _with_parents(schema: Mapping[str, Any], parents: tuple[str, ...]) -> dict[str, Any]:
    """The schema, with `_PARENTS` in the schemas of its items and properties."""

    def noted(part: Any) -> Any:
        return {**part, _PARENTS: parents} if isinstance(part, dict) else part

    parts = {key: noted(schema[key]) for key in ("items", "additionalProperties") if key in schema}
    if isinstance(properties := schema.get("properties"), dict):
        parts["properties"] = {name: noted(each) for name, each in properties.items()}
    return {**schema, **parts}


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The second schema after the first, with the properties of both."""
    properties = [each["properties"] for each in (first, second) if isinstance(each.get("properties"), dict)]
    both = {**first, **second}
    if "required" in both:
        both["required"] = [*_list(first.get("required")), *_list(second.get("required"))]
    return both if len(properties) < 2 else {**both, "properties": {**properties[0], **properties[1]}}


def spark_type_json(kind: pa.DataType) -> str:
    """What Spark's `DataType.json()` returns for the type of a column: `parse_json_schema` reads it as this type."""
    return json.dumps(_json_value(kind), separators=(",", ":"), sort_keys=True)


def _json_value(kind: pa.DataType) -> object:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        fields = [
            {"name": each.name, "type": _json_value(each.type), "nullable": True, "metadata": {}} for each in kind
        ]
        return {"type": "struct", "fields": fields}
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _json_value(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        types = {"keyType": _json_value(kind.key_type), "valueType": _json_value(kind.item_type)}
        return {"type": "map", **types, "valueContainsNull": True}
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return {column_type(known): name for name, known in _SparkTypes().atomic.items()}[kind]


class _SparkTypes:
    """Arrow types of Spark's types as JSON (`DataType.jsonValue`)."""

    def __init__(self) -> None:
        import pyarrow as pa

        self._columns = _Columns()
        self.atomic = {
            "string": pa.large_string(),
            "boolean": pa.bool_(),
            "byte": pa.int8(),
            "short": pa.int16(),
            "integer": pa.int32(),
            "long": pa.int64(),
            "float": pa.float32(),
            "double": pa.float64(),
            "binary": pa.binary(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us", "UTC"),
            "timestamp_ntz": pa.timestamp("us"),
        }

    def type(self, given: Any, path: str, depth: int = 0) -> pa.DataType:
        import pyarrow as pa

        self._columns.add(depth)
        match given:
            case str() if given in self.atomic:
                return self.atomic[given]
            case str() if decimal := _DECIMAL.fullmatch(given):
                if 0 <= int(decimal[2]) <= int(decimal[1]) <= 38 and int(decimal[1]):
                    return pa.decimal128(int(decimal[1]), int(decimal[2]))
            case {"type": "struct", "fields": [*fields]} if fields and all(map(_is_field, fields)):
                named = [(each["name"], each["type"]) for each in fields]
                return pa.struct([(name, self.type(each, f"{path}.{name}", depth + 1)) for name, each in named])
            case {"type": "array", "elementType": element}:
                return pa.list_(pa.field("element", self.type(element, f"{path}.element", depth + 1)))
            case {"type": "map", "keyType": "string", "valueType": value}:
                return pa.map_(pa.string(), self.type(value, f"{path}.value", depth + 1))
        raise ValueSchemaError(f"JSON values cannot be read as the type of {path}.")


def _is_field(given: object) -> bool:
    return isinstance(given, dict) and isinstance(given.get("name"), str) and "type" in given
