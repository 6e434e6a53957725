"""Avro schemas: their text becomes types, and types become Arrow types.

Source: the specification of Apache Avro 1.12, `org.apache.avro.Schema.Parser` where the specification is silent, and
Spark's `org.apache.spark.sql.avro.SchemaConverters` for the types of columns. pyarrow is imported on first use.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import ConnectType, inner_path

if TYPE_CHECKING:
    import pyarrow as pa

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
MAX_DEPTH = 100
MAX_TYPES = 100_000
"""With a named type counted where it is used, because each use is a column."""
MAX_DECIMAL_DIGITS = 38
"""Of Spark's decimals. Schemas of Kafka Connect say 64, whatever their values have: larger values are malformed."""

_COMMENTS = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
"""Or texts in JSON, which may have the same signs. Java's parser allows comments."""

_LOGICAL_TYPES = {
    "int": ("date", "time-millis"),
    "long": (
        "time-micros",
        "timestamp-millis",
        "timestamp-micros",
        "timestamp-nanos",
        "local-timestamp-millis",
        "local-timestamp-micros",
        "local-timestamp-nanos",
    ),
    "string": ("uuid",),
}


@dataclass(frozen=True, slots=True)
class Logical:
    """A valid logical type.

    Attributes:
        precision, scale: digits of a decimal, and those after the point; else 0.
    """

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Primitive:
    """One of `PRIMITIVES`. What Kafka Connect calls it makes no difference to values, here and below."""

    type: str
    logical: Logical | None = None
    connect: ConnectType | None = dataclass_field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A number of bytes. Names and aliases of types are full names here and below: with the namespace, if any."""

    name: str
    size_bytes: int
    logical: Logical | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Enumeration:
    """One of some symbols; `default` is the one for symbols that a reader does not know."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Array:
    items: AvroSchema


@dataclass(frozen=True, slots=True)
class Map:
    """Keys are strings."""

    values: AvroSchema


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record.

    Attributes:
        default: from the schema's JSON, not yet checked: `defaults.encode_default` does. None may be a default.
    """

    name: str
    type: AvroSchema
    has_default: bool = False
    default: Any = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    fields: tuple[Field, ...]
    aliases: tuple[str, ...] = ()
    connect: ConnectType | None = dataclass_field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types, at least one, none of them a union.

    Attributes:
        stable: in a column, members are named after their types, not after their places.
    """

    branches: tuple[AvroSchema, ...]
    stable: bool = False


Named: TypeAlias = Fixed | Enumeration | Record


@dataclass(frozen=True, slots=True)
class Recursive:
    """A record inside itself.

    Attributes:
        definitions: by full name; this record is complete by the time that anybody reads it.
    """

    name: str
    definitions: Mapping[str, Named | None] = dataclass_field(compare=False, repr=False)

    @property
    def record(self) -> Record:
        record = self.definitions[self.name]
        assert isinstance(record, Record)
        return record


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A branch of a reader's union that has no column: null in its place.

    Attributes:
        why: it has none.
    """

    branch: AvroSchema
    why: str


AvroSchema: TypeAlias = Primitive | Array | Map | Union | Named | Recursive | LeftOut


def parse_avro(text: str, references: Sequence[str] = ()) -> AvroSchema:
    """The type of a schema text. `references` are texts that define types it names, each after those that it needs. A
    type may be defined again in the same way, as in the schemas of several records, which are registered one by one.
    Raises ValueSchemaError: a text is no Avro schema, or it has too many parts for columns."""
    parser = _Parser()
    try:
        for reference in dict.fromkeys(references):
            parser.parse(_json(reference), "")
        schema = parser.parse(_json(text), "")
        _check_size(schema)
    except RecursionError:
        raise ValueSchemaError(f"an Avro schema is over {MAX_DEPTH} types deep") from None
    return schema


def arrow_type(schema: AvroSchema) -> pa.DataType:
    """The type of a column with values of this schema, as Spark's `from_avro` has it. Raises ValueSchemaError: a
    decimal has more digits after the point than Spark's."""
    import pyarrow as pa

    match schema:
        case Array(items):
            return pa.list_(_arrow_field("element", items))
        case Map(values):
            return pa.map_(pa.field("key", pa.string(), nullable=False), _arrow_field("value", values))
        case Record(fields=fields):
            return pa.struct([_arrow_field(field.name, field.type) for field in fields])
        case Union():
            column = column_schema(schema)
            if not isinstance(column, Union):
                return arrow_type(column)
            members = zip(member_names(column), map(arrow_type, column.branches), strict=True)
            return pa.struct([pa.field(name, kind) for name, kind in members])
        case Enumeration():
            return pa.string()
        case Primitive() | Fixed():
            return _arrow_scalar(schema)
    raise AssertionError("a bounded schema has no recursive type")


def is_nullable(schema: AvroSchema) -> bool:
    """Whether null is a value of the schema."""
    return _is_null(schema) or (isinstance(schema, Union) and any(map(_is_null, schema.branches)))


def member_names(column: Union) -> list[str]:
    """Of the struct of a union's column. Raises ValueSchemaError: two types have the same stable name."""
    if not column.stable:
        return [f"member{index}" for index in range(len(column.branches))]
    # Without a namespace, as `org.apache.avro.Schema.getName`.
    names = [f"member_{_branch_kind(each).removeprefix('type ').rpartition('.')[2]}" for each in column.branches]
    if len({name.lower() for name in names}) < len(names):
        raise ValueSchemaError(
            f"two types of an Avro union have the same name ({', '.join(names)}): unset "
            "'enableStableIdentifiersForUnionType'"
        )
    return names


def bounded(schema: AvroSchema, max_depth: int, stable_members: bool = False) -> tuple[AvroSchema, Mapping[str, str]]:
    """The reader's schema in which a record is at most so often in itself, as with Spark's `recursiveFieldMaxDepth`.
    Fields that would need more are left out, and fields that Spark has no type for: why, by their names after those of
    their records. `stable_members` is as of `Union`. Raises ValueSchemaError: it has too many parts for columns."""
    walk = _Bounded(max_depth, stable_members)
    part = walk.part(schema, ())
    return schema if isinstance(part, LeftOut) else part, walk.left_out


def connect_types(schema: AvroSchema, path: str = "") -> dict[str, ConnectType]:
    """As `Schema.connect_types`, of a bounded schema.

    Args:
        path: of the field with this type.
    """
    column = column_schema(schema)
    inner: list[tuple[str, AvroSchema]] = []
    match column:
        case Array(items):
            inner = [("element", items)]
        case Map(values):
            inner = [("value", values)]
        case Record(fields=fields):
            inner = [(field.name, field.type) for field in fields]
        case Union(branches):
            inner = list(zip(member_names(column), branches, strict=True))
    named = isinstance(column, Primitive | Record) and column.connect
    found = {path: named} if named else {}
    for name, part in inner:
        found |= connect_types(part, inner_path(path, name))
    return found


def column_schema(schema: AvroSchema) -> AvroSchema:
    """What a column of this schema holds beside nulls.

    A union loses null and what is left out. If one branch remains, this is the column. Int with long become long, float
    with double become double, as in Spark. Any other union remains one: a struct with a nullable field for each branch.
    """
    if not isinstance(schema, Union):
        return schema
    branches = tuple(branch for branch in schema.branches if not _is_null(branch))
    if len(branches) < 2:
        return branches[0] if branches else Primitive("null")
    types = {branch.type for branch in branches if isinstance(branch, Primitive)}
    for narrow, wide in (("int", "long"), ("float", "double")):
        if len(branches) == 2 and types == {narrow, wide}:
            return Primitive(wide)
    return replace(schema, branches=branches)


def parts(schema: AvroSchema) -> Sequence[AvroSchema]:
    """The types in a type."""
    match schema:
        case Array(part) | Map(part):
            return (part,)
        case Record(fields=fields):
            return [field.type for field in fields]
        case Union(branches):
            return branches
        case _:
            return ()


def without_names(schema: AvroSchema, parents: tuple[str, ...] = (), is_branch: bool = False) -> AvroSchema:
    """The type without the names that no value depends on: of records, and namespaces, outside unions of several types.

    Args:
        parents: names of the records around it.
        is_branch: of such a union.
    """
    match schema:
        case Array(items):
            return Array(without_names(items, parents))
        case Map(values):
            return Map(without_names(values, parents))
        case Record(name, fields):
            unnamed = tuple(replace(field, type=without_names(field.type, (*parents, name))) for field in fields)
            if is_branch or any(field.aliases for field in fields):  # which count in the record of this name
                return replace(schema, fields=unnamed)
            return Record("", unnamed)
        case Union(branches):
            is_branch = sum(not _is_null(branch) for branch in branches) > 1
            return Union(tuple(without_names(branch, parents, is_branch) for branch in branches))
        case Recursive(name) if name in parents and not is_branch:
            return replace(schema, name=str(parents.index(name)))
        case Fixed(name) | Enumeration(name):
            return schema if is_branch else replace(schema, name=name.rpartition(".")[2])
    return schema


class _Parser:
    """Types by full name, while texts are parsed. A type that is not complete yet is None."""

    def __init__(self) -> None:
        self._named: dict[str, Named | None] = {}

    def parse(self, schema: Any, namespace: str) -> AvroSchema:
        """The type of a JSON value. `namespace` is that of the enclosing type."""
        match schema:
            case str():
                return Primitive(schema) if schema in PRIMITIVES else self._look_up(schema, namespace)
            case list():
                return self._union(schema, namespace)
            case {"type": "array", "items": items}:
                return Array(self.parse(items, namespace))
            case {"type": "map", "values": values}:
                return Map(self.parse(values, namespace))
            case {"type": "record" | "error" | "enum" | "fixed"}:
                return self._define(schema, namespace)
            case {"type": str(kind)} if kind in PRIMITIVES:
                return Primitive(kind, _logical(schema, kind), _connect_type(schema))
            case {"type": str(kind)} if kind not in ("array", "map"):
                return self._look_up(kind, namespace)
        raise ValueSchemaError("an Avro schema has a type that is no name, object with a type, or list of types")

    def _look_up(self, name: str, namespace: str) -> Named | Recursive:
        """A type without namespace is found from within any namespace, as in Java's parser."""
        full_name = next((known for known in (_full_name(name, namespace), name) if known in self._named), None)
        if full_name is None:
            raise ValueSchemaError(f"an Avro schema uses the type {name!r} without a definition or reference")
        return self._named[full_name] or Recursive(full_name, self._named)

    def _union(self, branches: list[Any], namespace: str) -> Union:
        union = Union(tuple(self.parse(branch, namespace) for branch in branches))
        kinds = [_branch_kind(branch) for branch in union.branches]
        if not kinds or "union" in kinds or len(set(kinds)) < len(kinds):
            raise ValueSchemaError("an Avro schema has a union that is empty, or has a union or the same type twice")
        return union

    def _define(self, schema: dict[str, Any], namespace: str) -> Named:
        name = _full_name(_text(schema, "name"), schema.get("namespace", namespace) or "")
        before = self._named.get(name)
        if name in PRIMITIVES or (name in self._named and before is None):
            raise ValueSchemaError(f"an Avro schema defines the type {name!r} twice")
        self._named[name] = None
        namespace = name.rpartition(".")[0]
        aliases = tuple(_full_name(alias, namespace) for alias in _texts(schema, "aliases"))
        defined: Named
        if schema["type"] == "fixed":
            defined = _fixed(schema, name, aliases)
        elif schema["type"] == "enum":
            defined = _enumeration(schema, name, aliases)
        else:
            defined = Record(name, self._fields(schema, name, namespace), aliases, _connect_type(schema))
        if before is not None and before != defined:
            raise ValueSchemaError(f"an Avro schema defines the type {name!r} twice, with a difference")
        self._named[name] = before or defined  # the same object, so that comparisons of types with it end at once
        return before or defined

    def _fields(self, schema: dict[str, Any], record: str, namespace: str) -> tuple[Field, ...]:
        given = schema.get("fields")
        if not isinstance(given, list) or not all(isinstance(field, dict) and "type" in field for field in given):
            raise ValueSchemaError(f"the Avro record {record!r} has no list of fields with types")
        fields = [self._field(field, namespace) for field in given]
        if len({field.name for field in fields}) < len(fields):
            raise ValueSchemaError(f"the Avro record {record!r} has two fields of the same name")
        return tuple(fields)

    def _field(self, field: dict[str, Any], namespace: str) -> Field:
        kind, default = self.parse(field["type"], namespace), field.get("default")
        if kind in (Primitive("float"), Primitive("double")) and isinstance(default, str):
            with suppress(ValueError):  # it is refused if it is used
                default = float(default)
        return Field(_text(field, "name"), kind, "default" in field, default, tuple(_texts(field, "aliases")))


def _json(text: str) -> Any:
    """A text that is no JSON may be the name of a primitive type, as registries return it, or have comments."""
    if text.strip() in PRIMITIVES:
        return text.strip()
    try:
        # parse_constant fails for Infinity and NaN, which are no JSON
        return json.loads(_COMMENTS.sub(lambda found: found[1] or "", text), parse_constant=int)
    except ValueError:
        raise ValueSchemaError("an Avro schema is not JSON") from None


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _text(schema: dict[str, Any], attribute: str) -> str:
    value = schema.get(attribute)
    if not isinstance(value, str) or not value:
        raise ValueSchemaError(f"an Avro schema has a type or field without {attribute}")
    return value


def _texts(schema: dict[str, Any], attribute: str) -> list[str]:
    values = schema.get(attribute) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueSchemaError(f"an Avro schema has {attribute} that are no list of names")
    return values


def _fixed(schema: dict[str, Any], name: str, aliases: tuple[str, ...]) -> Fixed:
    size = schema.get("size")
    if type(size) is not int or not 0 <= size < 2**31:
        raise ValueSchemaError(f"the Avro type {name!r} has no size of 0 to 2147483647 bytes")
    return Fixed(name, size, _logical(schema, "fixed", size), aliases)


def _enumeration(schema: dict[str, Any], name: str, aliases: tuple[str, ...]) -> Enumeration:
    symbols, default = tuple(_texts(schema, "symbols")), schema.get("default")
    if len(set(symbols)) < len(symbols) or (default is not None and default not in symbols):
        raise ValueSchemaError(f"the Avro enum {name!r} has a symbol twice, or a default that is none of its symbols")
    return Enumeration(name, symbols, default, aliases)


def _logical(schema: dict[str, Any], kind: str, size_bytes: int = 0) -> Logical | None:
    """The logical type of a schema; None if it is unknown or not valid: then a reader has to ignore it."""
    name = schema.get("logicalType")
    if name == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
            return None
        if kind == "fixed" and precision > math.floor(math.log10(2) * (8 * size_bytes - 1)):
            return None
        return Logical(name, precision, scale)
    if name in _LOGICAL_TYPES.get(kind, ()) or (kind, name, size_bytes) in (
        ("fixed", "uuid", 16),
        ("fixed", "duration", 12),
    ):
        return Logical(str(name))
    return None


def _connect_type(schema: dict[str, Any]) -> ConnectType | None:
    """As Confluent's `AvroData` writes it."""
    name = schema.get("connect.name")
    return ConnectType.of(name, schema.get("connect.parameters")) if isinstance(name, str) else None


def _is_null(schema: AvroSchema) -> bool:
    return isinstance(schema, LeftOut) or (isinstance(schema, Primitive) and schema.type == "null")


def _branch_kind(branch: AvroSchema) -> str:
    """Of which a union may have one: a full name, or a type without a name."""
    match branch:
        case Primitive(kind):
            return kind
        case Fixed() | Enumeration() | Record() | Recursive():
            return f"type {branch.name}"
        case _:
            return type(branch).__name__.lower()


class _Bounded:
    """`left_out` says why, by field."""

    def __init__(self, max_depth: int, stable_members: bool) -> None:
        self._max_depth, self._stable, self._types = max_depth, stable_members, 0
        self._place = "the value"  # the field around the type
        self.left_out: dict[str, str] = {}

    def part(self, schema: AvroSchema, parents: tuple[str, ...]) -> AvroSchema:
        """The bounded type; `LeftOut` if it would be too deep."""
        self._types += 1
        if self._types > MAX_TYPES:
            raise ValueSchemaError(f"an Avro schema has more than {MAX_TYPES} types")
        match schema:
            case Recursive(name):
                return (
                    LeftOut(schema, _RECURSIVE)
                    if parents.count(name) >= self._max_depth
                    else self.part(schema.record, parents)
                )
            case Array(inner) | Map(inner):
                part = self.part(inner, parents)
                return LeftOut(schema, part.why) if isinstance(part, LeftOut) else type(schema)(part)
            case Record(name, fields):
                bounded = (self._field(field, (*parents, name)) for field in fields)
                return replace(schema, fields=tuple(field for field in bounded if field is not None))
            case Union(branches):
                union = Union(tuple(self.part(branch, parents) for branch in branches), self._stable)
                left_out = [branch for branch in union.branches if isinstance(branch, LeftOut)]
                if left_out and all(map(_is_null, union.branches)):
                    return LeftOut(schema, left_out[0].why)
                for branch in left_out:
                    self.left_out[self._place] = f"a branch of its type {branch.why}"
                return union
            case Primitive(logical=Logical(scale=scale)) | Fixed(logical=Logical(scale=scale)) if (
                scale > MAX_DECIMAL_DIGITS
            ):
                return LeftOut(schema, _too_many_digits(scale))
        return schema

    def _field(self, field: Field, parents: tuple[str, ...]) -> Field | None:
        around, self._place = self._place, f"{parents[-1]}.{field.name}"
        part = self.part(field.type, parents)
        if isinstance(part, LeftOut):
            self.left_out[self._place] = f"its type {part.why}"
        self._place = around
        return None if isinstance(part, LeftOut) else replace(field, type=part)


_RECURSIVE = "is recursive; 'recursiveFieldMaxDepth' says how deep it is read"


def _too_many_digits(scale: int) -> str:
    return f"is a decimal of {scale} digits after the point, and Spark's have at most {MAX_DECIMAL_DIGITS}"


def _check_size(schema: AvroSchema) -> None:
    """Refuse texts in which named types use others so often, or so deep, that their columns would not end."""
    sizes: dict[int, tuple[int, int]] = {}

    def size(part: AvroSchema) -> tuple[int, int]:
        """Number of types and depth, computed once for a type that is used many times."""
        if id(part) not in sizes:
            inner = [size(each) for each in parts(part)]
            sizes[id(part)] = 1 + sum(types for types, _ in inner), 1 + max((depth for _, depth in inner), default=0)
        return sizes[id(part)]

    types, depth = size(schema)
    if types > MAX_TYPES or depth > MAX_DEPTH:
        raise ValueSchemaError(f"an Avro schema has more than {MAX_TYPES} types, or is over {MAX_DEPTH} types deep")


def _arrow_field(name: str, schema: AvroSchema) -> pa.Field:
    import pyarrow as pa

    return pa.field(name, arrow_type(schema), is_nullable(schema))


def _arrow_scalar(schema: Primitive | Fixed) -> pa.DataType:
    import pyarrow as pa

    logical = schema.logical
    match logical.name if logical else "":
        case "decimal" if logical:
            if logical.scale > MAX_DECIMAL_DIGITS:
                raise ValueSchemaError(f"an Avro type {_too_many_digits(logical.scale)}")
            return pa.decimal128(min(logical.precision, MAX_DECIMAL_DIGITS), logical.scale)
        case "date":
            return pa.date32()
        case "timestamp-millis" | "timestamp-micros":
            return pa.timestamp("us", tz="UTC")
        case "local-timestamp-millis" | "local-timestamp-micros":
            return pa.timestamp("us")
    kind = "binary" if isinstance(schema, Fixed) or schema.type == "bytes" else schema.type
    names = {"boolean": "bool", "int": "int32", "long": "int64", "float": "float32", "double": "float64"}
    return pa.type_for_alias(names.get(kind, kind))
