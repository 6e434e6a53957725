"""Protobuf schemas: serialized descriptors become types, and types become Arrow types.

Sources: `google/protobuf/descriptor.proto`, whose messages describe .proto files, for field numbers; Spark's
`org.apache.spark.sql.protobuf.utils.SchemaConverters` for the types of columns. Unlike Spark's defaults, unsigned
numbers get columns that can hold them (Spark's `upcast.unsigned.ints`). pyarrow is imported on first use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.columnar.varints import varint_bytes
from pyspark_kafka_meta.typed.protobuf import known_types
from pyspark_kafka_meta.typed.protobuf.wire import GROUP, wire_fields

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DEPTH = 100
"""As Protobuf's libraries limit messages."""
MAX_COLUMNS = 100_000
"""With a message counted where it is used, because each use is columns."""

_KIND_NAMES = (
    "double float int64 uint64 int32 fixed64 fixed32 bool string group message bytes uint32 enum sfixed32 sfixed64 "
    "sint32 sint64"
)
_KINDS = dict(enumerate(_KIND_NAMES.split(), 1))
"""Of `FieldDescriptorProto.Type`."""
_REQUIRED, _REPEATED = 2, 3
"""`FieldDescriptorProto.Label`."""
_PROTO3 = 999
"""`Edition`."""
_PRESENCE, _ENUM_TYPE, _REPEATED_ENCODING, _MESSAGE_ENCODING = 1, 2, 3, 5
"""Numbers of `FeatureSet`, with the values that matter here:"""
_IMPLICIT, _LEGACY_REQUIRED, _CLOSED, _EXPANDED, _DELIMITED = 2, 3, 2, 2, 2


@dataclass(frozen=True, slots=True)
class Enum:
    """Attributes:
    closed: unknown numbers are unknown fields, as in proto2.
    names: by number; the first name of a number that has several.
    numbers: by name.
    """

    full_name: str
    closed: bool
    names: Mapping[int, str]
    numbers: Mapping[str, int]

    def name_of(self, number: int) -> str:
        """As Protobuf's Java library, and so Spark, names numbers that an open enum does not have."""
        return self.names.get(number) or f"{self._unknown}{number}"

    def number_of(self, name: str) -> int | None:
        """The number of a name of `name_of`, or of another name in the schema; None if it is neither."""
        if name in self.numbers:
            return self.numbers[name]
        number = name.removeprefix(self._unknown)
        is_number = name != number and re.fullmatch("0|-?[1-9][0-9]{0,9}", number) and -(2**31) <= int(number) < 2**31
        return int(number) if is_number and not self.closed else None

    @property
    def _unknown(self) -> str:
        return f"UNKNOWN_ENUM_VALUE_{self.full_name.rpartition('.')[2]}_"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    Attributes:
        kind: a type of .proto files, else message, enum or group.
        type_name: the full name of a message's or enum's type; else empty.
        presence: an absent field is null or `default`; without presence it is zero, false or empty.
        packed: repeated numbers are written as one field.
        oneof: the index of the oneof in its message; None if it is in none.
        default: proto2's, as text.
        digits: precision and scale of a decimal, as Kafka Connect notes them in the field's options.
    """

    name: str
    number: int
    kind: str
    type_name: str = ""
    repeated: bool = False
    packed: bool = False
    required: bool = False
    presence: bool = False
    oneof: int | None = None
    default: str | None = None
    digits: tuple[int, int] = known_types.DECIMAL_DIGITS

    @property
    def is_message(self) -> bool:
        """Whether its values are messages; those of a group, or DELIMITED, end with a tag."""
        return self.kind in ("message", "group")


@dataclass(frozen=True, slots=True)
class Message:
    """Attributes:
    fields: in the order of their definition, which is the order of columns.
    map_entry: it is a pair of a map field: key and value.
    """

    full_name: str
    fields: tuple[Field, ...]
    map_entry: bool = False


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    """A message type, with all types of its files by full name.

    Attributes:
        message: full name of the type.
        empty: full names of messages without columns.
        max_depth: how often a recursive type becomes columns in itself, as Spark's `recursive.fields.max.depth`: with 1
            a field of a type that it is part of is left out.
    """

    message: str
    messages: Mapping[str, Message]
    enums: Mapping[str, Enum]
    empty: frozenset[str]
    max_depth: int = 1


def descriptor_set(files: Sequence[bytes]) -> bytes:
    """A serialized FileDescriptorSet of serialized FileDescriptorProtos, which is what registries return."""
    return b"".join(b"\x0a" + varint_bytes(len(file)) + file for file in files)


def parse_protobuf(descriptor: bytes, message: str | None = None) -> ProtobufSchema:
    """The schema of a serialized FileDescriptorSet. Raises ValueSchemaError: it is no FileDescriptorSet, or has no such
    message type.

    Args:
        message: full name of the message type; None for the first one of the last file.
    """
    types = _Types()
    try:
        files = [_Node(file) for file in _Node(descriptor).all(1)]
        for file in files:
            types.add_file(file)
        first = message or message_name(descriptor, (0,))
    except (ValueError, KeyError, IndexError, RecursionError) as error:
        raise ValueSchemaError(
            "The Protobuf schema is not a serialized FileDescriptorSet, as `protoc --include_imports "
            f"--descriptor_set_out` writes it: {error}"
        ) from None
    if first not in types.messages:
        known = ", ".join(list(types.messages)[:10]) or "none"
        raise ValueSchemaError(f"The Protobuf schema has no message type {first}. It has {known}.")
    messages = types.messages | _KNOWN_MESSAGES
    return ProtobufSchema(first, messages, _KNOWN_ENUMS | types.enums, _empty_messages(messages))


def only_file(descriptor: bytes) -> bytes:
    """The last file of a set, a serialized FileDescriptorProto, of which the others define known types alone. Raises
    ValueSchemaError: there are others, which a registry must have as references."""
    *imported, file = _Node(descriptor).all(1)
    names = [_Node(each).text(1) for each in imported]
    if others := [name for name in names if not name.startswith(_KNOWN_FILES)]:
        raise ValueSchemaError(f"its Protobuf schema imports {', '.join(others[:10])}: define all types in one file")
    return file


def message_name(descriptor: bytes, indexes: Sequence[int]) -> str:
    """The full name of the message type at Confluent's message indexes: [1, 0] is the first type nested in the second.

    Most serializers count the entry types of maps too, as the descriptor has them. Java's with `normalize.schemas`, or
    with the text of a .proto file, does not: its count is taken where the other one finds no type of values. Raises
    IndexError: the last file of the set has no such type.
    """
    file = _Node(_Node(descriptor).all(1)[-1])
    for with_entries in (True, False):
        names, nodes = [file.text(2)] if file.text(2) else [], list(map(_Node, file.all(4)))
        for index in indexes:
            types = [node for node in nodes if with_entries or not _is_map_entry(node)]
            if not 0 <= index < len(types) or _is_map_entry(types[index]):
                break
            names.append(types[index].text(1))
            nodes = list(map(_Node, types[index].all(3)))
        else:
            return ".".join(names)
    raise IndexError(f"the last file has no message type at {list(indexes)}")


def _is_map_entry(message: _Node) -> bool:
    return bool(message.child(7).number(7))


def message_indexes(descriptor: bytes, message: str) -> tuple[int, ...]:
    """The message indexes of a full name: the reverse of `message_name`. Raises ValueSchemaError: the last file of the
    set does not define the type."""
    file = _Node(_Node(descriptor).all(1)[-1])
    scope, nodes, indexes = f"{file.text(2)}." if file.text(2) else "", file.all(4), []
    while nodes:
        names = [scope + _Node(node).text(1) for node in nodes]
        index = next((index for index, name in enumerate(names) if f"{message}.".startswith(f"{name}.")), None)
        if index is None:
            break
        indexes.append(index)
        if names[index] == message:
            return tuple(indexes)
        scope, nodes = f"{names[index]}.", _Node(nodes[index]).all(3)
    raise ValueSchemaError(f"the message type {message} is not defined in the schema itself, but in a file it imports")


def arrow_type(schema: ProtobufSchema) -> pa.StructType:
    """The type of a column of these messages. Raises as `columns`."""
    return columns(schema)[0]


def columns(schema: ProtobufSchema) -> tuple[pa.StructType, Mapping[str, str]]:
    """The type of a column of these messages, and why fields have no column, by their names after those of their
    messages. Raises ValueSchemaError: the type is too large."""
    types = _ArrowTypes(schema)
    return types.struct(schema.message, ()), types.left_out


def columns_of(schema: ProtobufSchema, message: str) -> list[Field]:
    """The fields that become columns: Spark has no column for a message without fields."""
    return [field for field in schema.messages[message].fields if field.type_name not in schema.empty]


def without_names(schema: ProtobufSchema) -> str:
    """Equal for schemas by which the same bytes are read as the same columns: without the names of messages, which are
    numbered as fields use them, and of packages, and without how numbers are packed."""
    numbers = {schema.message: 0}

    def named(type_name: str) -> str:
        if type_name in schema.enums:  # an open enum's name is in those of unknown numbers
            enum = schema.enums[type_name]
            return repr(replace(enum, full_name=enum.full_name.rpartition(".")[2]))
        if type_name in _KNOWN_MESSAGES or type_name not in schema.messages:
            return type_name
        return str(numbers.setdefault(type_name, len(numbers)))

    def unnamed(message: Message) -> Message:
        fields = (replace(field, type_name=named(field.type_name), packed=False) for field in message.fields)
        return Message("", tuple(fields), message.map_entry)

    types: list[Message] = []
    while more := list(numbers)[len(types) :]:
        types += [unnamed(schema.messages[name]) for name in more]
    return repr(types)


def is_map(schema: ProtobufSchema, field: Field) -> bool:
    """False if the schema lacks the type, as a writer's may: registries know files that only others import."""
    message = schema.messages.get(field.type_name)
    return field.kind == "message" and field.repeated and message is not None and message.map_entry


def _empty_messages(messages: Mapping[str, Message]) -> frozenset[str]:
    """Messages without fields, messages with fields of these alone, and so on; also maps to them."""
    empty: set[str] = set()
    while more := {
        name
        for name, message in messages.items()
        if name not in empty and all(field.type_name in empty for field in message.fields[message.map_entry :])
    }:
        empty |= more
    return frozenset(empty)


class _ArrowTypes:
    """Arrow types of messages, while they are not too large.

    Attributes:
        left_out: why, by field.
    """

    def __init__(self, schema: ProtobufSchema) -> None:
        import pyarrow as pa

        self._schema, self._columns = schema, 0
        self.left_out: dict[str, str] = {}
        self._scalars = {
            "double": pa.float64(),
            "float": pa.float32(),
            "bool": pa.bool_(),
            "string": pa.string(),
            "enum": pa.string(),
            "bytes": pa.binary(),
            **dict.fromkeys(("int32", "sint32", "sfixed32"), pa.int32()),
            **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), pa.int64()),
            **dict.fromkeys(("uint64", "fixed64"), pa.decimal128(20, 0)),
        }
        self._known = {
            known_types.TIMESTAMP: pa.timestamp("us", "UTC"),
            known_types.DURATION: pa.duration("us"),
            known_types.DATE: pa.date32(),
            known_types.DECIMAL: pa.decimal128(*known_types.DECIMAL_DIGITS),
            **dict.fromkeys(known_types.JSON_TYPES, pa.string()),
        }

    def struct(self, message: str, parents: tuple[str, ...]) -> pa.StructType:
        import pyarrow as pa

        if len(parents) >= MAX_DEPTH:
            raise ValueSchemaError(f"The Protobuf type {self._schema.message} has over {MAX_DEPTH} levels.")
        fields = columns_of(self._schema, message)
        self._columns += len(fields)
        if self._columns > MAX_COLUMNS:
            raise ValueSchemaError(f"The Protobuf type {self._schema.message} has over {MAX_COLUMNS} columns.")
        columns = [self._field(field, (*parents, message)) for field in fields]
        return pa.struct([column for column in columns if column is not None])

    def _field(self, field: Field, parents: tuple[str, ...]) -> pa.Field | None:
        import pyarrow as pa

        key = None
        element = field
        if is_map(self._schema, field):
            key, element = self._schema.messages[field.type_name].fields
        type_ = self._singular(element, parents)
        if type_ is None:
            return None
        if key is not None:
            return pa.field(field.name, pa.map_(self._scalars[key.kind], pa.field("value", type_, nullable=False)))
        if field.repeated:
            type_ = pa.list_(pa.field("element", type_, nullable=False))
        return pa.field(field.name, type_, nullable=not field.required)

    def _singular(self, field: Field, parents: tuple[str, ...]) -> pa.DataType | None:
        """None if there is no column for it."""
        import pyarrow as pa

        why = self._why_not(field, parents)
        if why is not None:
            self.left_out[f"{parents[-1]}.{field.name}"] = why
            return None
        if not field.is_message:
            return self._scalars[field.kind]
        if field.type_name == known_types.CONFLUENT_DECIMAL:
            return pa.decimal128(*field.digits)
        if field.type_name in self._known:
            return self._known[field.type_name]
        struct = self.struct(field.type_name, parents)
        return struct if struct.num_fields else None

    def _why_not(self, field: Field, parents: tuple[str, ...]) -> str | None:
        has_type = field.is_message or field.kind == "enum"
        if has_type and field.type_name not in (self._schema.messages if field.is_message else self._schema.enums):
            return f"the Protobuf schema lacks its type {field.type_name}"
        if parents.count(field.type_name) < self._schema.max_depth:
            return None
        cycle = " > ".join((*parents[parents.index(field.type_name) :], field.type_name))
        return f"its type is recursive ({cycle}); 'recursiveFieldMaxDepth' says how deep it is read"


@dataclass(frozen=True)
class _Types:
    """The message and enum types of files, by full name."""

    messages: dict[str, Message] = field(default_factory=dict)
    enums: dict[str, Enum] = field(default_factory=dict)

    def add_file(self, file: _Node) -> None:
        edition = file.number(14) or (_PROTO3 if file.text(12) == "proto3" else 0)
        proto2 = {_ENUM_TYPE: _CLOSED, _REPEATED_ENCODING: _EXPANDED}
        defaults = {_PRESENCE: _IMPLICIT} if edition == _PROTO3 else {} if edition else proto2
        features = {**defaults, **file.features(8, 50)}
        scope = f"{file.text(2)}." if file.text(2) else ""
        self._add_types(scope, file.all(4), file.all(5), features)

    def _add_types(
        self, scope: str, messages: Sequence[bytes], enums: Sequence[bytes], features: Mapping[int, int]
    ) -> None:
        for node in map(_Node, enums):
            self._add_enum(scope + node.text(1), node, {**features, **node.features(3, 7)})
        for node in map(_Node, messages):
            self._add_message(scope + node.text(1), node, {**features, **node.features(7, 12)})

    def _add_enum(self, full_name: str, node: _Node, features: Mapping[int, int]) -> None:
        raw = {value.text(1): value.number(2) for value in map(_Node, node.all(2))}
        numbers = {name: number - 2**64 if number >= 2**63 else number for name, number in raw.items()}
        names: dict[int, str] = {}
        for name, number in numbers.items():
            names.setdefault(number, name)
        self.enums[full_name] = Enum(full_name, features.get(_ENUM_TYPE) == _CLOSED, names, numbers)

    def _add_message(self, full_name: str, node: _Node, features: Mapping[int, int]) -> None:
        self._add_types(f"{full_name}.", node.all(3), node.all(4), features)
        fields = tuple(_parse_field(_Node(field), features) for field in node.all(2))
        map_entry = _is_map_entry(node)
        if map_entry and not _is_entry(fields):
            raise ValueError(f"{full_name} is no map entry")
        if any(len({getattr(field, name) for field in fields}) < len(fields) for name in ("name", "number")):
            raise ValueError(f"{full_name} has two fields of one name or number")
        self.messages[full_name] = Message(full_name, fields, map_entry)


def _is_entry(fields: Sequence[Field]) -> bool:
    places = [(field.number, field.repeated) for field in fields]
    return places == [(1, False), (2, False)] and fields[0].kind not in ("message", "group", "enum")


def _parse_field(node: _Node, features: Mapping[int, int]) -> Field:
    features, options = {**features, **node.features(8, 21)}, node.child(8)
    kind = _KINDS[node.number(5)]
    presence = features.get(_PRESENCE)
    oneof = node.number(9) if node.has(9) and not node.number(17) else None
    return Field(
        name=node.text(1),
        number=node.number(3),
        kind="group" if kind == "message" and features.get(_MESSAGE_ENCODING) == _DELIMITED else kind,
        type_name=node.text(6).removeprefix("."),
        repeated=node.number(4) == _REPEATED,
        digits=_digits(options),
        packed=bool(options.number(2)) if options.has(2) else features.get(_REPEATED_ENCODING) != _EXPANDED,
        required=node.number(4) == _REQUIRED or presence == _LEGACY_REQUIRED,
        presence=presence != _IMPLICIT or node.has(9) or kind == "message",
        oneof=oneof,
        default=node.text(7) if node.has(7) else None,
    )


def _digits(options: _Node) -> tuple[int, int]:
    """Of `confluent.field_meta`, whose `params` are a map."""
    entries = map(_Node, options.child(1088).all(2))
    params = {entry.text(1): entry.text(2) for entry in entries}
    try:
        precision, scale = int(params["precision"]), int(params["scale"])
    except (KeyError, ValueError):
        return known_types.DECIMAL_DIGITS
    return (precision, scale) if 0 <= scale <= precision <= 38 and precision else known_types.DECIMAL_DIGITS


class _Node:
    """A message of descriptor.proto, read by field numbers."""

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[bytes | int]] = {}
        for wire in wire_fields(data, 0, len(data)):
            if wire.tag & 7 == GROUP:
                continue
            value = wire.raw if wire.tag & 7 == 0 else data[wire.at : wire.after]
            self._fields.setdefault(wire.tag >> 3, []).append(value)

    def has(self, number: int) -> bool:
        return number in self._fields

    def all(self, number: int) -> list[bytes]:
        return [bytes(value) for value in self._fields.get(number, ()) if not isinstance(value, int)]

    def text(self, number: int) -> str:
        return b"".join(self.all(number)[-1:]).decode()

    def number(self, number: int) -> int:
        return int(self._fields.get(number, [0])[-1])

    def child(self, number: int) -> _Node:
        return _Node(b"".join(self.all(number)))

    def features(self, options: int, number: int) -> dict[int, int]:
        """The FeatureSet in the options at these field numbers: values by feature."""
        return {key: int(values[-1]) for key, values in self.child(options).child(number)._fields.items() if key <= 6}


def _known_lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.strip().splitlines():
        name, _, rest = line.partition(":")
        yield name, rest


def _known_field(number: int, text: str) -> Field:
    *label, kind, name = text.split()
    is_message, is_oneof = "." in kind, label == ["oneof"]
    return Field(
        name,
        number,
        "message" if is_message else kind,
        kind if is_message else "",
        repeated=label == ["repeated"],
        presence=is_message or is_oneof,
        oneof=0 if is_oneof else None,
    )


_KNOWN_FILES = ("google/protobuf/", "google/type/", "confluent/")
_KNOWN_MESSAGES = {
    name: Message(name, tuple(_known_field(*each) for each in enumerate(filter(None, rest.split(",")), 1)))
    for name, rest in _known_lines(known_types.MESSAGES)
}
_KNOWN_ENUMS = {
    name: Enum(name, False, dict(enumerate(rest.split())), {each: index for index, each in enumerate(rest.split())})
    for name, rest in _known_lines(known_types.ENUMS)
}
