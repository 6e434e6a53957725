"""Random Protobuf schemas and messages, and what Protobuf's own library reads from them."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
from google.protobuf import (  # type: ignore[import-untyped, unused-ignore]
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
    unknown_fields,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from pyspark_kafka_meta.typed.protobuf.wire import GROUP

FieldProto = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    name: getattr(FieldProto, f"TYPE_{name.upper()}")
    for name in [
        "double",
        "float",
        "int64",
        "uint64",
        "int32",
        "fixed64",
        "fixed32",
        "bool",
        "string",
        "bytes",
        "uint32",
        "sfixed32",
        "sfixed64",
        "sint32",
        "sint64",
    ]
}
MAP_KEYS = ("int32", "int64", "uint32", "uint64", "sint32", "fixed64", "sfixed32", "bool", "string")
WELL_KNOWN = (timestamp_pb2, duration_pb2, wrappers_pb2)
BITS = {"int32": 32, "sint32": 32, "sfixed32": 32, "int64": 64, "sint64": 64, "sfixed64": 64}
UNSIGNED_BITS = {"uint32": 32, "fixed32": 32, "uint64": 64, "fixed64": 64}
TEXTS = ("", "a", "Grüße", "日本語", "😀" * 3, "x" * 150, "\x00", "line\nline")


class _NotCompared:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


NOT_COMPARED = _NotCompared()
"""Instead of maps of which the library (upb) takes entries for unknown fields: it does so if an entry itself has
unknown fields, where Java's library and this package skip these alone."""


class RandomSchema:
    """A file with a few message types, which refer to later ones only, so that none is recursive."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        syntax = self.random.choice(("proto2", "proto3"))
        self.package = "p.q" if self.random.random() < 0.8 else ""
        self.file = descriptor_pb2.FileDescriptorProto(name="random.proto", package=self.package, syntax=syntax)
        self.is_proto2 = syntax == "proto2"
        self.prefix = f".{self.package}." if self.package else "."
        for known in WELL_KNOWN:
            self.file.dependency.append(known.DESCRIPTOR.name)
        enum = self.file.enum_type.add(name="Color")
        for name, number in (("RED", 0), ("GREEN", 1), ("BLUE", 5), ("MINUS", -3)):
            enum.value.add(name=name, number=number)
        self.names = [f"M{index}" for index in range(self.random.randint(1, 4))]
        for index in range(len(self.names)):
            self._add_message(index)
        pool = descriptor_pool.DescriptorPool()
        files = []
        for known in WELL_KNOWN:
            files.append(descriptor_pb2.FileDescriptorProto())
            known.DESCRIPTOR.CopyToProto(files[-1])
        for file in (*files, self.file):
            pool.Add(file)
        self.descriptor = pool.FindMessageTypeByName(f"{self.prefix}M0".removeprefix("."))
        self.message_class = message_factory.GetMessageClass(self.descriptor)
        pool = descriptor_pool.DescriptorPool()
        for file in (*files, keeping_all_values(self.file)):
            pool.Add(file)
        self.all_values_class = message_factory.GetMessageClass(pool.FindMessageTypeByName(self.descriptor.full_name))
        known_files = files if self.random.random() < 0.5 else []
        self.files = [file.SerializeToString() for file in (*known_files, self.file)]

    def _add_message(self, index: int) -> None:
        message = self.file.message_type.add(name=self.names[index])
        numbers = self.random.sample(
            [*range(1, 25), 100, 2047, 2048, 300_000, 2**29 - 1], self.random.randint(0 if index else 1, 10)
        )
        for number in numbers:
            self._add_field(message, f"f{number}", number, index)
        plain = [
            field for field in message.field if field.label == FieldProto.LABEL_OPTIONAL and not field.proto3_optional
        ]
        if len(plain) >= 3 and self.random.random() < 0.6:
            message.oneof_decl.add(name="choice")
            for field in plain[: self.random.randint(2, 3)]:
                field.oneof_index = 0
                field.ClearField("default_value")
        for field in message.field:  # synthetic oneofs come after the others
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

    def _add_field(self, message: Any, name: str, number: int, index: int) -> None:
        field = message.field.add(name=name, number=number, label=FieldProto.LABEL_OPTIONAL)
        self._set_type(field, index)
        shape = self.random.random()
        if shape < 0.25:
            field.label = FieldProto.LABEL_REPEATED
            if field.type not in (FieldProto.TYPE_MESSAGE, FieldProto.TYPE_STRING, FieldProto.TYPE_BYTES):
                field.options.packed = self.random.random() < 0.5
        elif shape < 0.35:
            self._make_map(message, field)
        elif self.is_proto2 and shape < 0.4:
            field.label = FieldProto.LABEL_REQUIRED
        elif self.is_proto2 and shape < 0.55:
            self._set_default(field)
        elif not self.is_proto2 and shape < 0.5:
            field.proto3_optional = True

    def _set_type(self, field: Any, index: int) -> None:
        kind = self.random.random()
        if kind < 0.15 and index + 1 < len(self.names):
            field.type, field.type_name = (
                FieldProto.TYPE_MESSAGE,
                self.prefix + self.random.choice(self.names[index + 1 :]),
            )
        elif kind < 0.25:
            field.type = FieldProto.TYPE_MESSAGE
            field.type_name = ".google.protobuf." + self.random.choice(
                ("Timestamp", "Duration", "Int64Value", "StringValue")
            )
        elif kind < 0.35:
            field.type, field.type_name = FieldProto.TYPE_ENUM, self.prefix + "Color"
        else:
            field.type = SCALARS[self.random.choice(list(SCALARS))]

    def _make_map(self, message: Any, field: Any) -> None:
        name = field.name.capitalize() + "Entry"
        entry = message.nested_type.add(name=name)
        entry.options.map_entry = True
        key = SCALARS[self.random.choice(MAP_KEYS)]
        entry.field.add(name="key", number=1, type=key, label=FieldProto.LABEL_OPTIONAL)
        value = entry.field.add(name="value", number=2, label=FieldProto.LABEL_OPTIONAL)
        value.type = field.type
        if field.type_name:
            value.type_name = field.type_name
        field.label, field.type = FieldProto.LABEL_REPEATED, FieldProto.TYPE_MESSAGE
        field.type_name = f"{self.prefix}{message.name}.{name}"

    def _set_default(self, field: Any) -> None:
        defaults = {
            "string": "dé",
            "bytes": "a\\001\\377\\n",
            "bool": "true",
            "double": "-inf",
            "float": "1.5",
            "int32": "-7",
        }
        for name, text in defaults.items():
            if field.type == SCALARS[name]:
                field.default_value = text
        if field.type == FieldProto.TYPE_ENUM:
            field.default_value = "BLUE"

    def payload(self) -> bytes:
        message = self.message_class()
        self._fill(message)
        return bytes(message.SerializePartialToString())

    def written_payload(self) -> bytes | None:
        """What the library writes of a message that can be columns; None if a required field is missing."""
        message = self.message_class()
        self._fill(message)
        as_columns(message)
        return bytes(message.SerializeToString(deterministic=True)) if message.IsInitialized() else None

    def _fill(self, message: Any) -> None:
        for field in message.DESCRIPTOR.fields:
            if not field.is_required and self.random.random() < 0.3:
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                self._fill_map(field, getattr(message, field.name))
            elif field.is_repeated:
                values = getattr(message, field.name)
                for _ in range(self.random.choice((0, 1, 2, 5))):
                    if field.message_type is not None:
                        self._fill(values.add())
                    else:
                        values.append(self._value(field))
            elif field.message_type is not None:
                getattr(message, field.name).SetInParent()
                self._fill(getattr(message, field.name))
            else:
                setattr(message, field.name, self._value(field))

    def _fill_map(self, field: Any, values: Any) -> None:
        key, value = field.message_type.fields
        for _ in range(self.random.randint(0, 3)):
            if value.message_type is not None:
                self._fill(values[self._value(key)])
            else:
                values[self._value(key)] = self._value(value)

    def _value(self, field: Any) -> Any:
        kind = next((name for name, number in SCALARS.items() if number == field.type), "enum")
        if kind in BITS or kind in UNSIGNED_BITS:
            if field.name == "nanos":
                return self.random.randint(-999_999_999, 999_999_999)
            if field.name == "seconds":
                return self.random.randint(-(10**11), 10**11)
            number = self.random.getrandbits(self.random.randint(0, BITS.get(kind, 64 if "64" in kind else 32)))
            half = 1 << (BITS.get(kind, 64) - 1)
            return (
                number
                if kind in UNSIGNED_BITS
                else (number + half) % (2 * half) - half
                if self.random.random() < 0.3
                else number % half
            )
        if kind in ("double", "float"):
            return self.random.choice((0.0, -0.0, 1.5, float("inf"), float("nan"), -(2.0**-100)))
        if kind == "bool":
            return self.random.random() < 0.5
        if kind == "enum":
            return self.random.choice((0, 1, 5, -3) if self.is_proto2 else (0, 1, 5, -3, 77))
        text = self.random.choice(TEXTS)
        return text if kind == "string" else text.encode() + b"\xff"


def keeping_all_values(file: Any) -> Any:
    """The file with types of which the library checks all values, and keeps those that others would replace: maps are
    lists of entries, fields of a oneof are lists, and strings must be UTF-8 in proto2 too. Entries must have a value if
    it is a message, because an absent one lacks the fields that its type requires."""
    changed = descriptor_pb2.FileDescriptorProto()
    changed.CopyFrom(file)
    if file.syntax == "proto2":
        changed.syntax, changed.edition = "editions", descriptor_pb2.EDITION_2023
        changed.options.features.enum_type = descriptor_pb2.FeatureSet.CLOSED
    for message in changed.message_type:
        del message.oneof_decl[:]
        for entry in message.nested_type:
            entry.ClearField("options")
            if entry.field[1].type == FieldProto.TYPE_MESSAGE and file.syntax == "proto2":
                entry.field[1].options.features.field_presence = descriptor_pb2.FeatureSet.LEGACY_REQUIRED
        for field in message.field:
            if field.HasField("oneof_index") and not field.proto3_optional:
                field.label = FieldProto.LABEL_REPEATED
            field.ClearField("oneof_index")
            field.ClearField("proto3_optional")
            field.ClearField("options")
            if field.label == FieldProto.LABEL_REQUIRED:
                field.label = FieldProto.LABEL_OPTIONAL
                field.options.features.field_presence = descriptor_pb2.FeatureSet.LEGACY_REQUIRED
    return changed


def overlooked_faults(schema: RandomSchema, payload: bytes) -> set[str]:
    """Words of the causes for which this package refuses a payload that the library reads: faults of values that others
    replace, or that are unknown to the library."""
    message = schema.all_values_class()
    try:
        message.ParseFromString(payload)
    except DecodeError:
        return {"UTF-8"}
    missing = set() if message.IsInitialized() else {"required"}
    return missing | set(_faults_of_parts(message))


def _faults_of_parts(message: Any) -> Iterator[str]:
    is_time = message.DESCRIPTOR.full_name in ("google.protobuf.Timestamp", "google.protobuf.Duration")
    if is_time and not -(2**63) < message.seconds * 1_000_000 < 2**63:
        yield "do not fit"
    if _has_number_0(unknown_fields.UnknownFieldSet(message)):
        yield "number 0"
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                yield from _faults_of_parts(part)


def _has_number_0(unknown: Any) -> bool:
    """In a group: the library refuses it in a message."""
    return any(field.field_number == 0 or (field.wire_type == GROUP and _has_number_0(field.data)) for field in unknown)


def parsed(schema: RandomSchema, payload: bytes) -> Any:
    """What Protobuf's library reads, as `plain` values.

    Raises:
        ValueError: the payload is malformed, or a required field is missing.
    """
    message = schema.message_class()
    try:
        message.ParseFromString(payload)
    except Exception as error:
        raise ValueError(str(error)) from error
    if not message.IsInitialized():
        raise ValueError("required field")
    return _expected(message)


def as_columns(message: Any) -> None:
    """Change a message to what the reader's columns can hold: messages without fields are absent, absent fields with a
    default have it, times have whole microseconds, which count forward in timestamps."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        message.nanos = abs(message.nanos) // 1000 * 1000
    if message.DESCRIPTOR.full_name == "google.protobuf.Duration":
        message.nanos = abs(message.nanos) // 1000 * (-1000 if message.seconds < 0 else 1000)
    for field in message.DESCRIPTOR.fields:
        if _is_empty(field.message_type):
            message.ClearField(field.name)
        elif field.has_default_value and not message.HasField(field.name):
            setattr(message, field.name, field.default_value)
    for field, value in message.ListFields():
        for part in _messages_in(field, value):
            as_columns(part)


def _messages_in(field: Any, value: Any) -> list[Any]:
    if field.message_type is None:
        return []
    if not field.message_type.GetOptions().map_entry:
        return list(value) if field.is_repeated else [value]
    return [value[key] for key in value] if field.message_type.fields[1].message_type is not None else []


def _expected(message: Any) -> dict[str, Any]:
    return {
        field.name: _expected_field(message, field)
        for field in message.DESCRIPTOR.fields
        if not _is_empty(field.message_type)
    }


def _is_empty(descriptor: Any) -> bool:
    if descriptor is None:
        return False
    if descriptor.GetOptions().map_entry:
        return _is_empty(descriptor.fields[1].message_type)
    return all(_is_empty(field.message_type) for field in descriptor.fields)


def _expected_field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, item = field.message_type.fields
        if any(each.field_number == field.number for each in unknown_fields.UnknownFieldSet(message)):
            return NOT_COMPARED
        return {_expected_value(key, k): _expected_value(item, value[k]) for k in value}
    if field.is_repeated:
        return [_expected_value(field, each) for each in value]
    if field.has_presence and not message.HasField(field.name) and not field.has_default_value:
        return None
    return _expected_value(field, value)


def _expected_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
            nanos = abs(value.nanos) // 1000 * (-1 if value.nanos < 0 else 1)
            micros = value.seconds * 1_000_000 + nanos
            if not -(2**63) < micros < 2**63:
                raise ValueError("out of range")
            return micros
        return _expected(value)
    if field.enum_type is not None:
        names = {each.number: each.name for each in reversed(field.enum_type.values)}
        return names.get(value, f"UNKNOWN_ENUM_VALUE_{field.enum_type.name}_{value}")
    if field.type in (SCALARS["uint64"], SCALARS["fixed64"]):
        return Decimal(value)
    if field.type == SCALARS["string"]:
        return value.decode() if isinstance(value, bytes) else value
    return plain_number(value)


def plain_number(value: Any) -> Any:
    """Floats as bits, because NaN is not equal to itself."""
    return struct.pack("<d", value).hex() if isinstance(value, float) else value


def plain(array: pa.Array) -> list[Any]:
    """Values that can be compared: timestamps and intervals as microseconds, maps as dicts, floats as bits."""
    type_ = array.type
    if pa.types.is_struct(type_):
        columns = {field.name: plain(array.field(index)) for index, field in enumerate(type_)}
        return [
            {name: values[row] for name, values in columns.items()} if valid else None
            for row, valid in enumerate(array.is_valid().to_pylist())
        ]
    if pa.types.is_map(type_):
        offsets, keys, items = array.offsets.to_pylist(), plain(array.keys), plain(array.items)
        maps = [list(zip(keys[a:b], items[a:b], strict=True)) for a, b in pairwise(offsets)]
        assert all(len(dict(pairs)) == len(pairs) for pairs in maps)
        return [dict(pairs) for pairs in maps]
    if pa.types.is_list(type_):
        offsets, values = array.offsets.to_pylist(), plain(array.values)
        return [values[a:b] for a, b in pairwise(offsets)]
    if pa.types.is_temporal(type_):
        return list(array.cast(pa.int64()).to_pylist())
    return [plain_number(value) for value in array.to_pylist()]


def file_of(syntax: str, fields: Sequence[tuple[str, int, int]], repeated: Sequence[str] = ()) -> bytes:
    """A serialized file with one message type of these fields: name, number, type."""
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", syntax=syntax)
    message = file.message_type.add(name="M")
    for name, number, kind in fields:
        label = FieldProto.LABEL_REPEATED if name in repeated else FieldProto.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kind, label=label)
    return bytes(file.SerializeToString())


def mutated(chance: random.Random, payload: bytes, other: bytes) -> bytes:
    """The payload after one or two of: other bytes, bits, insertions, deletions, cuts, copies, another message."""
    data = bytearray(payload)
    for _ in range(chance.randint(1, 2)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(8)
        if kind == 0:
            data[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            del data[at : at + chance.randint(1, 4)]
        elif kind == 2:
            data[at:at] = chance.randbytes(chance.randint(1, 4))
        elif kind == 3:
            del data[at:]
        elif kind in (4, 5):
            data += other
        elif kind == 6 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        else:
            data += bytes([chance.randrange(128)]) + data[at : at + chance.randint(1, 12)]
    return bytes(data)
