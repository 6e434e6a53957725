"""Compiles a writer's and a reader's Protobuf schema to a plan for decoding, once for all values.

Protobuf resolves schemas by field numbers: names do not matter, fields that only one side has are skipped or absent.
Other types for the same number are read as one another only where no value changes; Protobuf's own libraries truncate
numbers or drop fields without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.protobuf.known_types import JSON_TYPES
from pyspark_kafka_meta.typed.protobuf.scan import Tag
from pyspark_kafka_meta.typed.protobuf.schema import Enum, Field, Message, ProtobufSchema, arrow_type, is_map
from pyspark_kafka_meta.typed.protobuf.values import NUMBERS
from pyspark_kafka_meta.typed.protobuf.wire import GROUP, LENGTH

_ALSO_READABLE = {
    "int32": ("bool", "enum"),
    "int64": ("bool", "enum", "int32", "uint32"),
    "uint32": ("bool",),
    "uint64": ("bool", "uint32"),
    "sint64": ("sint32",),
    "enum": ("int32",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Kinds of writers' fields by the kind of the reader's field."""


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """How occurrences of a field become a column.

    Attributes:
        path: of the field, for causes of faults.
        type: of the column; None if there is none, because the field's messages have no fields.
        default: where the field is absent; null for null.
        enum: the type of an enum.
        message: the plan of a message or of a map's entries; None for `JSON_TYPES`.
        is_map: the column is a map.
    """

    path: str
    field: Field
    type: pa.DataType | None
    default: pa.Scalar
    enum: Enum | None = None
    message: MessagePlan | None = None
    is_map: bool = False


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """How messages become a struct.

    Attributes:
        full_name: of the message type.
        tags: of all known fields, in the order of their values.
        oneofs: columns of each oneof.
    """

    full_name: str
    path: str
    type: pa.DataType
    tags: tuple[Tag, ...]
    columns: tuple[ColumnPlan, ...]
    oneofs: tuple[tuple[ColumnPlan, ...], ...]


def compile_plan(writer: ProtobufSchema, reader: ProtobufSchema) -> MessagePlan:
    """Raises:
    ValueSchemaError: the reader's schema has no Arrow type, or the writer's values cannot be read with it.
    """
    compiler = _Compiler(writer, reader)
    return compiler.message(writer.messages[writer.message], reader.messages[reader.message], arrow_type(reader), "")


@dataclass(frozen=True, slots=True)
class _Compiler:
    writer: ProtobufSchema
    reader: ProtobufSchema

    def message(self, written: Message | None, read: Message, type_: pa.DataType, path: str) -> MessagePlan:
        """The plan for messages of type `read`, written as `written`; None if the writer does not have the field."""
        written_fields = {field.number: field for field in written.fields} if written else {}
        fields = [each for each in read.fields if read.map_entry or self._is_read(each, type_)]
        columns = tuple(self._column(written_fields.get(field.number), field, type_, path) for field in fields)
        tags = {tag.value: tag for field in written_fields.values() for tag in _tags(field, kept=False)}
        tags |= {tag.value: tag for field in fields for tag in _tags(field, kept=True)}
        oneofs = {column.field.oneof: () for column in columns if column.field.oneof is not None}
        return MessagePlan(
            read.full_name,
            path,
            type_,
            tuple(tags[value] for value in sorted(tags)),
            columns,
            tuple(tuple(column for column in columns if column.field.oneof == oneof) for oneof in oneofs),
        )

    def _is_read(self, field: Field, type_: pa.DataType) -> bool:
        """Messages without fields have no column, but may be malformed; fields that are left out are skipped."""
        return type_.get_field_index(field.name) >= 0 or field.type_name in self.reader.empty

    def _column(self, written: Field | None, read: Field, parent: pa.DataType, path: str) -> ColumnPlan:
        path = f"{path}.{read.name}" if path else read.name
        if written is not None:
            self._check(written, read, path)
        index = parent.get_field_index(read.name)
        type_ = parent.field(index).type if index >= 0 else None
        map_ = is_map(self.reader, read)
        enum = self.reader.enums[read.type_name] if read.kind == "enum" else None
        is_plain = not read.is_message or read.type_name in JSON_TYPES
        message = None if is_plain else self._nested(written, read, type_, path, map_)
        return ColumnPlan(path, read, type_, _default(read, enum, type_, path), enum, message, map_)

    def _nested(
        self, written: Field | None, read: Field, type_: pa.DataType | None, path: str, map_: bool
    ) -> MessagePlan:
        read_type = self.reader.messages[read.type_name]
        written_type = self.writer.messages.get(written.type_name) if written else None
        if map_:
            # An absent key or value is zero or empty, even if it is a message.
            read_type = replace(read_type, fields=tuple(replace(field, presence=False) for field in read_type.fields))
            struct = (
                pa.struct([("key", type_.key_type), ("value", type_.item_type)]) if type_ is not None else pa.struct([])
            )
        else:
            struct = self._struct(read_type, type_.value_type if read.repeated and type_ is not None else type_)
        return self.message(written_type, read_type, struct, path)

    def _struct(self, message: Message, type_: pa.DataType | None) -> pa.DataType:
        """The type of the messages: those that become times, dates or decimals are read as structs before."""
        if type_ is None:
            return pa.struct([])
        return type_ if pa.types.is_struct(type_) else arrow_type(replace(self.reader, message=message.full_name))

    def _check(self, written: Field, read: Field, path: str) -> None:
        is_other_kind = written.kind != read.kind and written.kind not in _ALSO_READABLE.get(read.kind, ())
        is_other_map = is_map(self.writer, written) != is_map(self.reader, read) if read.is_message else False
        if is_other_kind or is_other_map or (written.repeated and not read.repeated):
            there, here = _describe(self.writer, written), _describe(self.reader, read)
            raise ValueSchemaError(
                f"The Protobuf field {path} (number {read.number}) is {there} in the schema of the values, and {here}"
                " in the schema of the column: values would change."
            )


def _describe(schema: ProtobufSchema, field: Field) -> str:
    kind = "map" if is_map(schema, field) else field.kind
    return f"repeated {kind}" if field.repeated and kind != "map" else kind


def _tags(field: Field, kept: bool) -> Iterator[Tag]:
    if field.kind in NUMBERS:
        yield Tag(field.number, NUMBERS[field.kind].wire_type, field.repeated, kept)
    if field.kind not in NUMBERS or field.repeated:
        yield Tag(field.number, GROUP if field.kind == "group" else LENGTH, field.repeated, kept)


def _default(field: Field, enum: Enum | None, type_: pa.DataType | None, path: str) -> pa.Scalar:
    if type_ is None or field.repeated or field.is_message:
        return pa.scalar(None)
    if field.default is not None:
        try:
            return pa.scalar(_default_value(field.kind, field.default), type_)
        except ValueError:  # also of pyarrow
            raise ValueSchemaError(f"The Protobuf field {path} has a default value that is no {field.kind}.") from None
    if field.presence:
        return pa.scalar(None, type_)
    if enum is not None:
        return pa.scalar(next(iter(enum.names.values()), ""), type_)
    return pa.scalar({"string": "", "bytes": b"", "bool": False}.get(field.kind, 0), type_)


def _default_value(kind: str, text: str) -> object:
    """Of the text in a descriptor: bytes have C's escapes."""
    if kind in ("string", "enum"):
        return text
    if kind == "bytes":
        return text.encode("ascii").decode("unicode_escape").encode("latin-1")
    if kind == "bool":
        return text == "true"
    return float(text) if kind in ("float", "double") else int(text)
