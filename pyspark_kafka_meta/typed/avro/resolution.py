"""Schema resolution: how values of a writer's schema become columns of a reader's schema.

Source: "Schema Resolution" in the specification of Apache Avro 1.12, and `org.apache.avro.Resolver` where it leaves a
choice: names of records need not match outside unions, and a type prefers the branch of a reader's union that is the
same type, then one that it can be promoted to.

Where it differs from Java:

- A time or number has the same meaning before and after: milliseconds that a reader wants as microseconds are
  converted, a decimal has the same value and is no string, and a date cannot be read as a timestamp. A long that is
  read as a union of float and double keeps the digits that a float would lose.
- A field that the writer lacks is null, if it may be null and has no default.
- A type that the reader cannot have is refused, or is a fault, also as the items of an empty array.
- Names of enums and fixed types match without namespaces in unions too, and a record that no branch has the name of is
  read as a branch only if all its parts can be.

Aliases follow `org.apache.avro.Schema.applyAliases`: an alias of a field comes before a field of that name, and counts
only in the record of the same name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.avro.columns import (
    Binary,
    Boolean,
    Column,
    Decimal,
    Integer,
    Member,
    Null,
    Real,
    Recursion,
    Skipped,
    Symbol,
    Unresolved,
)
from pyspark_kafka_meta.typed.avro.columns import Record as RecordColumn
from pyspark_kafka_meta.typed.avro.columns import Union as UnionColumn
from pyspark_kafka_meta.typed.avro.cursor import Cursor, Memory
from pyspark_kafka_meta.typed.avro.defaults import encode_default
from pyspark_kafka_meta.typed.avro.items import Items
from pyspark_kafka_meta.typed.avro.schema import (
    Array,
    AvroSchema,
    Enumeration,
    Field,
    Fixed,
    LeftOut,
    Map,
    Named,
    Primitive,
    Record,
    Recursive,
    Union,
    arrow_type,
    column_schema,
    is_nullable,
    parts,
)
from pyspark_kafka_meta.typed.formats import inner_path

_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_TIMES = {
    # The kind of time, and its unit in nanoseconds.
    "date": ("date", 86_400 * 10**9),
    "time-millis": ("time", 10**6),
    "time-micros": ("time", 10**3),
    "timestamp-millis": ("timestamp", 10**6),
    "timestamp-micros": ("timestamp", 10**3),
    "timestamp-nanos": ("timestamp", 1),
    "local-timestamp-millis": ("timestamp", 10**6),
    "local-timestamp-micros": ("timestamp", 10**3),
    "local-timestamp-nanos": ("timestamp", 1),
}


def resolve(writer: AvroSchema, reader: AvroSchema) -> Column:
    """The decoder of a column of the reader's type from values of the writer's. Raises ValueSchemaError: no value of
    the writer can be read. The message has the path of the field."""
    return _resolve(_renamed(writer, reader), reader, "")


def without_unfit(writer: AvroSchema, reader: AvroSchema, lenient_fields: Collection[str] | None) -> AvroSchema:
    """The writer's schema, in which lenient fields that cannot be read have a name that the reader does not look for.

    Args:
        lenient_fields: of these records; None for all of them.
    """
    match writer, column_schema(reader):
        case Union(branches), column:
            return Union(tuple(without_unfit(branch, column, lenient_fields) for branch in branches))
        case Record(fields=fields), Record(fields=reader_fields):
            types, found = {each.name: each.type for each in reader_fields}, []
            for each in fields:
                if each.name in types and (lenient_fields is None or each.name in lenient_fields):
                    kind = without_unfit(each.type, types[each.name], None)
                    is_read = not is_nullable(types[each.name]) or _are_all_read(kind, types[each.name])
                    each = replace(each, type=kind, name=each.name if is_read else f"{each.name} of another type")
                found.append(each)
            return replace(writer, fields=tuple(found))
    return writer


def _are_all_read(writer: AvroSchema, reader: AvroSchema) -> bool:
    """Whether no value is a fault for its type alone."""
    branches = writer.branches if isinstance(writer, Union) else (writer,)
    return all(isinstance(_resolved_or_error(branch, reader, ""), Column) for branch in branches)


def _resolve(writer: AvroSchema, reader: AvroSchema, field: str) -> Column:
    """The same once aliases do not matter. `field` is the dotted path of the field, for errors and faults."""
    match writer, reader:
        case Recursive(), _:
            return _resolve(writer.record, reader, field)
        case Union(branches), _:
            return _from_union(branches, reader, field)
        case _, Union():
            return _into_union(writer, reader, field)
        case Primitive(), Primitive() if _is_same(writer, reader) or _is_promoted(writer, reader):
            return _primitive(writer, reader, field)
        case Record(), Record():
            return _record(writer, reader, field)
        case Array(items), Array(reader_items):
            return Items(arrow_type(reader), field, _resolve(items, reader_items, inner_path(field, "element")))
        case Map(values), Map(reader_values):
            return _map(values, reader_values, arrow_type(reader), field)
        case Enumeration(), Enumeration() if _has_same_name(writer, reader):
            return _enumeration(writer, reader, field)
        case Fixed(), Fixed() if _has_same_name(writer, reader) and writer.size_bytes == reader.size_bytes:
            return _bytes(writer, reader, field)
    raise ValueSchemaError(f"{_where(field)}the writer's {_kind(writer)} cannot be read as {_kind(reader)}")


def _primitive(writer: Primitive, reader: Primitive, field: str) -> Column:
    kind = arrow_type(reader)
    match writer.type:
        case "null":
            return Null(kind, field)
        case "boolean":
            return Boolean(kind, field)
        case "float" | "double":
            return Real(kind, field, 4 if writer.type == "float" else 8)
        case "int" | "long":
            return Integer(kind, field, 32 if writer.type == "int" else 64, *_units(writer, reader, field))
        case _ if "string" in (writer.type, reader.type) and _is_decimal(writer) != _is_decimal(reader):
            raise ValueSchemaError(f"{_where(field)}the writer's {_kind(writer)} cannot be read as {_kind(reader)}")
        case _:
            return _bytes(writer, reader, field)


def _units(writer: Primitive, reader: Primitive, field: str) -> tuple[int, int]:
    """Multiplier and divisor from the unit of the writer's time to that of the column."""
    if reader.logical is None:
        return 1, 1
    kind, unit = _TIMES[(writer.logical or reader.logical).name]
    column_kind, column_unit = _TIMES[reader.logical.name]
    if kind != column_kind:
        raise ValueSchemaError(f"{_where(field)}the writer's {_kind(writer)} cannot be read as {_kind(reader)}")
    if pa.types.is_timestamp(arrow_type(reader)):
        column_unit = 10**3
    return max(1, unit // column_unit), max(1, column_unit // unit)


def _bytes(writer: Primitive | Fixed, reader: Primitive | Fixed, field: str) -> Column:
    size = writer.size_bytes if isinstance(writer, Fixed) else None
    kind = arrow_type(reader)
    if not pa.types.is_decimal(kind):
        return Binary(kind, field, size)
    scale = writer.logical.scale if writer.logical and _is_decimal(writer) else kind.scale
    if scale > kind.scale:
        raise ValueSchemaError(
            f"{_where(field)}the writer's decimal has {scale} digits after the point, the reader's {kind.scale}"
        )
    return Decimal(kind, field, size, scale)


def _is_decimal(schema: Primitive | Fixed) -> bool:
    return schema.logical is not None and schema.logical.name == "decimal"


def _enumeration(writer: Enumeration, reader: Enumeration, field: str) -> Column:
    symbols = [symbol if symbol in reader.symbols else reader.default for symbol in writer.symbols]
    return Symbol(pa.string(), field, pa.array(symbols, pa.string()))


def _map(writer: AvroSchema, reader: AvroSchema, kind: pa.DataType, field: str) -> Column:
    key = Binary(pa.string(), inner_path(field, "key"))
    value = _resolve(writer, reader, inner_path(field, "value"))
    entry = RecordColumn(pa.struct([kind.key_field, kind.item_field]), field, [(key, 0), (value, 1)], {})
    return Items(kind, field, entry)


def _record(writer: Record, reader: Record, field: str) -> Column:
    index_of = {read.name: index for index, read in enumerate(reader.fields)}
    written = {each.name for each in writer.fields}
    fields: list[tuple[Column, int | None]] = []
    for each in writer.fields:
        index, path = index_of.get(each.name), inner_path(field, each.name)
        if index is None:
            fields.append((_skipped(each.type, path), None))
        else:
            fields.append((_resolve(each.type, reader.fields[index].type, path), index))
    defaults = {
        index: _default(read, inner_path(field, read.name))
        for index, read in enumerate(reader.fields)
        if read.name not in written
    }
    return RecordColumn(arrow_type(reader), field, fields, defaults)


def _skipped(schema: AvroSchema, field: str, around: Mapping[str, Recursion] = MappingProxyType({})) -> Column:
    """A decoder of values that nobody reads: they need no type of Spark.

    Args:
        around: the records that the type is in, by name.
    """
    kind = pa.null()
    match schema:
        case Recursive(name):
            return around[name] if name in around else _skipped(schema.record, field, around)
        case Primitive(name):
            return _primitive(Primitive(name), Primitive(name), field)
        case Fixed(size_bytes=size):
            return Binary(kind, field, size)
        case Enumeration():
            return _enumeration(schema, schema, field)
        case Array(items):
            return Items(kind, field, _skipped(items, field, around))
        case Map(values):
            key = Binary(kind, field)
            return Items(
                kind, field, RecordColumn(kind, field, [(key, None), (_skipped(values, field, around), None)], {})
            )
        case Record(name, fields):
            again = Recursion(field)
            inside = {**around, name: again}
            parts = [(_skipped(each.type, inner_path(field, each.name), inside), None) for each in fields]
            again.record = RecordColumn(kind, field, parts, {})
            return again.record
        case Union(branches):
            return UnionColumn(kind, field, [_skipped(branch, field, around) for branch in branches])
    raise AssertionError("a writer has no part that is left out")


def _default(field: Field, path: str) -> pa.Array:
    """The default value of a field that the writer lacks, decoded as if the writer had written it."""
    if not field.has_default and is_nullable(field.type):
        return pa.nulls(1, arrow_type(field.type))
    if not field.has_default:
        raise ValueSchemaError(
            f"{_where(path)}the writer lacks the field, and the reader has no default for it: read with a version that "
            "has one, or that lacks the field (valueSchemaVersion), or with such a valueSchema"
        )
    try:
        data = np.array(bytearray(encode_default(field.type, field.default)), np.uint8)
    except ValueError as error:
        raise ValueSchemaError(f"{_where(path)}{error}") from None
    memory = Memory(data, 1)
    cursor = Cursor(memory, np.zeros(1, np.int64), np.full(1, len(data)), np.zeros(1, np.int64))
    value = _resolve(field.type, field.type, path).read(cursor)
    if memory.causes:
        raise ValueSchemaError(f"{_where(path)}the default is wrong: {memory.causes[0]}")
    return value


def _from_union(branches: tuple[AvroSchema, ...], reader: AvroSchema, field: str) -> Column:
    """A branch that the reader cannot have is a fault only where a value has it."""
    columns = [_resolved_or_error(branch, reader, field) for branch in branches]
    errors = [column for column in columns if isinstance(column, ValueSchemaError)]
    if len(errors) == len(columns):
        raise errors[0]
    kind = arrow_type(reader)
    return UnionColumn(
        kind,
        field,
        [Unresolved(kind, field, str(each)) if isinstance(each, ValueSchemaError) else each for each in columns],
    )


def _into_union(writer: AvroSchema, reader: Union, field: str) -> Column:
    kind, column = arrow_type(reader), column_schema(reader)
    if writer == Primitive("null") and is_nullable(reader):
        return Null(kind, field)
    if any(isinstance(branch, LeftOut) and _is_same(writer, branch.branch) for branch in reader.branches):
        return Skipped(kind, _skipped(writer, field))
    if not isinstance(column, Union):
        return _resolve(writer, column, field)
    index, member = _member(writer, column, field)
    return Member(kind, member, index)


def _member(writer: AvroSchema, reader: Union, field: str) -> tuple[int, Column]:
    """The branch of the same type, or else the first that the writer's type can be promoted to. A type with a name that
    no branch has is read as the last branch with this name in another namespace, else as the first that fits."""
    for matches in (_is_same, _is_promoted):
        for index, branch in enumerate(reader.branches):
            if matches(writer, branch):
                return index, _resolve(writer, branch, field)
    columns = [_resolved_or_error(writer, branch, field) for branch in reader.branches]
    fitting = [
        (index, column)
        for index, (column, branch) in enumerate(zip(columns, reader.branches, strict=True))
        if isinstance(column, Column) and (_has_same_name(writer, branch) or _has_all_fields(writer, branch))
    ]
    if not fitting:
        raise ValueSchemaError(f"{_where(field)}no branch of the reader's union can have the writer's {_kind(writer)}")
    same_name = [each for each in fitting if _has_same_name(writer, reader.branches[each[0]])]
    return (same_name or fitting[:1])[-1]


def _is_same(writer: AvroSchema, reader: AvroSchema) -> bool:
    match writer, reader:
        case Primitive(kind), Primitive(other):
            return kind == other
        case ((Record() | Enumeration() | Fixed()), (Record() | Enumeration() | Fixed())):
            return type(writer) is type(reader) and writer.name == reader.name
        case Record(name), Recursive(other):
            return name == other
    return type(writer) is type(reader)


def _is_promoted(writer: AvroSchema, reader: AvroSchema) -> bool:
    match writer, reader:
        case Primitive(kind), Primitive(other):
            return other in _PROMOTIONS.get(kind, ())
    return False


def _resolved_or_error(writer: AvroSchema, reader: AvroSchema, field: str) -> Column | ValueSchemaError:
    try:
        return _resolve(writer, reader, field)
    except ValueSchemaError as error:
        return error


def _has_same_name(writer: AvroSchema, reader: AvroSchema) -> bool:
    """Without namespaces, as the specification says."""
    match writer, reader:
        case ((Record() | Enumeration() | Fixed()), (Record() | Enumeration() | Fixed())):
            return writer.name.rpartition(".")[2] == reader.name.rpartition(".")[2]
    return False


def _has_all_fields(writer: AvroSchema, reader: AvroSchema) -> bool:
    """Whether no field of a record is null only because the writer lacks it: such a record may be another one."""
    if not isinstance(writer, Record) or not isinstance(reader, Record):
        return True
    written = {field.name for field in writer.fields}
    return all(field.has_default or field.name in written for field in reader.fields)


def _where(field: str) -> str:
    return f"field {field!r}: " if field else ""


def _kind(schema: AvroSchema) -> str:
    match schema:
        case Primitive(kind, logical):
            return logical.name if logical else kind
        case Recursive(name):
            return f"record {name}"
        case Record() | Enumeration() | Fixed():
            return f"{type(schema).__name__.lower()} {schema.name}"
        case _:
            return type(schema).__name__.lower()


# --- aliases ---------------------------------------------------------------------------------------------------------


def _renamed(writer: AvroSchema, reader: AvroSchema) -> AvroSchema:
    """The writer's schema with the reader's names, and without aliases. Raises ValueSchemaError: two fields of a
    record, or two branches of a union, get the same name."""
    own = _Names().apply(writer)
    if own == _Names().apply(reader):
        return own
    names = _Names()
    names.add(reader)
    return names.apply(writer)


class _Names:
    """A reader's names, by alias: of types, and of the fields in each record."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._fields: dict[str, dict[str, str]] = {}
        self._records: dict[str, Named | None] = {}

    def add(self, schema: AvroSchema) -> None:
        """Those of a schema and its parts."""
        if isinstance(schema, Record | Enumeration | Fixed):
            self._types |= dict.fromkeys(schema.aliases, schema.name)
        if isinstance(schema, Record):
            fields = self._fields.setdefault(schema.name, {})
            for field in schema.fields:
                fields |= dict.fromkeys(field.aliases, field.name)
        for part in parts(schema):
            self.add(part)

    def apply(self, schema: AvroSchema) -> AvroSchema:
        match schema:
            case Array(items):
                return Array(self.apply(items))
            case Map(values):
                return Map(self.apply(values))
            case Union(branches):
                return self._union(branches)
            case Record():
                return self._record(schema)
            case Recursive(name):
                return Recursive(self._types.get(name, name), self._records)
            case Enumeration() | Fixed():
                return replace(schema, name=self._types.get(schema.name, schema.name), aliases=())
        return schema

    def _union(self, branches: tuple[AvroSchema, ...]) -> Union:
        union = Union(tuple(map(self.apply, branches)))
        names = [branch.name for branch in union.branches if isinstance(branch, Named | Recursive)]
        if len(set(names)) < len(names):
            raise ValueSchemaError("by the reader's aliases, two types in a union of the writer have the same name")
        return union

    def _record(self, record: Record) -> Record:
        name = self._types.get(record.name, record.name)
        names = self._fields.get(name, {})
        fields = [
            replace(field, name=names.get(field.name, field.name), type=self.apply(field.type), aliases=())
            for field in record.fields
        ]
        if len({field.name for field in fields}) < len(fields):
            raise ValueSchemaError(f"by the reader's aliases, two fields of the writer's record {name!r} are the same")
        self._records[name] = renamed = Record(name, tuple(fields))
        return renamed
