"""Decodes Protobuf messages into Arrow structs, column by column.

The fields of all messages of a chunk are found together (`scan`), and the occurrences of each field become
values together (`values`). A nested message is a range of bytes of its parent, so the same code decodes all
messages of one nested field; in a map these are the entries.

As Protobuf's libraries do: the last one of several values wins, also among the fields of a oneof; several parts of a
message are merged; repeated numbers may be packed or not; fields with an unexpected wire type are unknown, as are
numbers that a closed enum does not have. Unlike in them, a proto2 string must be UTF-8, as in proto3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import (
    Flags,
    Longs,
    binary_array,
    joined,
    last_of_keys,
    list_array,
    list_offsets,
    memory_of,
    null_unless,
    offsets_of,
    slices,
)
from pyspark_kafka_meta.typed.formats import Decoded, Fault
from pyspark_kafka_meta.typed.protobuf.known_values import CONVERSIONS, json_text
from pyspark_kafka_meta.typed.protobuf.plan import ColumnPlan, MessagePlan, compile_plan
from pyspark_kafka_meta.typed.protobuf.scan import NONE_FOUND, Found, find_fields
from pyspark_kafka_meta.typed.protobuf.schema import Enum, ProtobufSchema
from pyspark_kafka_meta.typed.protobuf.values import BAD_UTF8, NUMBERS, one_each, raw_numbers, strings, unpacked
from pyspark_kafka_meta.typed.protobuf.wire import Payload

CHUNK_ROWS = 8_192
CHUNK_BYTES = 2 * 1024 * 1024
"""A chunk has one row at least. In larger ones, each field reads bytes that have left the CPU's cache."""

MISSING = "a required field is missing"


def protobuf_decoder(writer: ProtobufSchema, reader: ProtobufSchema) -> ProtobufDecoder:
    """Decodes values of the writer's schema to structs of `arrow_type(reader)`. Raises ValueSchemaError: the reader's
    schema has no Arrow type, or the writer's values cannot be read with it."""
    return ProtobufDecoder(compile_plan(writer, reader))


@dataclass(frozen=True, slots=True)
class ProtobufDecoder:
    """A `ValueDecoder`."""

    plan: MessagePlan

    @property
    def type(self) -> pa.DataType:
        return self.plan.type

    def decode(self, values: pa.Array) -> Decoded:
        faults: list[Fault] = []
        chunks: list[pa.Array] = []
        payload = Payload(np.empty(0, np.uint8))
        for begin, part in slices(values, CHUNK_ROWS, CHUNK_BYTES):
            chunk, causes = _decode_chunk(self.plan, part, payload)
            chunks.append(chunk)
            faults += [Fault(begin + row, causes[row]) for row in sorted(causes)]
        return Decoded(joined(chunks, self.type), faults)


def _decode_chunk(plan: MessagePlan, values: pa.Array, payload: Payload) -> tuple[pa.Array, Mapping[int, str]]:
    """The structs, and causes of faults by row.

    Args:
        payload: memory for the bytes.
    """
    offsets = offsets_of(values).astype(np.int64)
    payload.replace(memory_of(values)[offsets[0] : offsets[-1]])
    chunk = _Chunk(payload)
    rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    at, end = (offsets[:-1] - offsets[0])[rows], (offsets[1:] - offsets[0])[rows]
    parts = _Parts(at, end, np.arange(len(rows)), len(rows), rows)
    structs, _ = one_each(chunk.structs(plan, parts), rows, len(values))
    if chunk.causes:
        good = np.ones(len(values), np.bool_)
        good[list(chunk.causes)] = False
        structs = null_unless(good, structs)
    return structs, chunk.causes


class _Parts(NamedTuple):
    """The bytes of messages of one type.

    Attributes:
        at, end: where each part begins and ends, in the order of messages.
        message: of each part; usually a message has one part.
        total: number of messages.
        rows: the row of the chunk that each message belongs to.
    """

    at: Longs
    end: Longs
    message: Longs
    total: int
    rows: Longs


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Attributes:
    causes: of faults by row; the first one that is found.
    """

    payload: Payload
    causes: dict[int, str] = field(default_factory=dict)

    def structs(self, plan: MessagePlan, parts: _Parts) -> pa.Array:
        return self._struct_array(plan, self._found(plan, parts), parts.total, parts.rows)

    def _found(self, plan: MessagePlan, parts: _Parts) -> dict[int, Found]:
        """Where the messages have their fields, by field number."""

        def on_fault(part: Longs, cause: str) -> None:
            self._fault(parts.rows[parts.message[part]], plan.path, cause)

        found = find_fields(self.payload, plan.tags, parts.at, parts.end, on_fault)
        if len(parts.at) == parts.total and bool((parts.message == np.arange(parts.total)).all()):
            return found
        return {number: each._replace(message=parts.message[each.message]) for number, each in found.items()}

    def _struct_array(self, plan: MessagePlan, found: dict[int, Found], count: int, rows: Longs) -> pa.Array:
        for column in plan.columns:
            if _is_closed(column.enum) and not column.field.repeated and column.field.number in found:
                found[column.field.number] = _known(column.enum, found[column.field.number])
        for oneof in plan.oneofs:
            self._keep_last(oneof, found, count, rows)
        arrays = [
            self._column(column, found.get(column.field.number, NONE_FOUND), count, rows) for column in plan.columns
        ]
        children = [array for array, column in zip(arrays, plan.columns, strict=True) if column.type is not None]
        return pa.Array.from_buffers(plan.type, count, [None], children=children)

    def _keep_last(self, oneof: tuple[ColumnPlan, ...], found: dict[int, Found], count: int, rows: Longs) -> None:
        """Of the fields of a oneof, keeps what follows the last occurrence of the others."""
        members = [column for column in oneof if column.field.number in found]
        if len(members) < 2:
            return
        last = np.full((len(members), count), -1, np.int64)
        for index, column in enumerate(members):
            each = found[column.field.number]
            last[index, each.message] = each.at
        second_last, very_last = np.partition(last, -2, axis=0)[-2:]
        for column, own_last in zip(members, last, strict=True):
            each = found[column.field.number]
            kept = each.at > np.where(own_last == very_last, second_last, very_last)[each.message]
            if not kept.all():
                self._values(column, each.select(~kept), rows)  # only to find faults
                found[column.field.number] = each.select(kept)

    def _column(self, column: ColumnPlan, found: Found, count: int, rows: Longs) -> pa.Array:
        if column.is_map:
            return self._map(column, found, count, rows)
        if column.field.repeated:
            return self._list(column, found, count, rows)
        if column.field.is_message:
            return self._message(column, found, count, rows)
        values, absent = one_each(self._values(column, found, rows), found.message, count)
        if absent is None:
            return values
        if column.field.required:
            self._fault(rows[absent], column.path, MISSING)
        return values.fill_null(column.default) if column.default.is_valid else values

    def _values(self, column: ColumnPlan, found: Found, rows: Longs) -> pa.Array:
        """A value for each occurrence."""
        kind = column.field.kind
        if column.field.is_message:
            parts = _Parts(found.at, found.after, np.arange(len(found.at)), len(found.at), rows[found.message])
            return self._messages(column, parts)
        if kind in NUMBERS:
            number = NUMBERS[kind]
            values = number.to_array(raw_numbers(self.payload, number.wire_type, found))
            return values if column.enum is None else _names(column.enum, values)
        values = binary_array(self.payload.bytes, found.at, found.after - found.at)
        if kind == "bytes":
            return values
        values, bad = strings(values)
        if bad is not None:
            self._fault(rows[found.message[bad]], column.path, BAD_UTF8)
        return values

    def _list(self, column: ColumnPlan, found: Found, count: int, rows: Longs) -> pa.Array:
        if column.field.kind in NUMBERS:
            found, faults = unpacked(self.payload, NUMBERS[column.field.kind].wire_type, found)
            for cause, messages in faults.items():
                self._fault(rows[messages], column.path, cause)
            if _is_closed(column.enum):
                found = _known(column.enum, found)
        values = self._values(column, found, rows)
        if column.type is None:
            return values
        return list_array(column.type, count, [None, list_offsets(found.message, count)], values)

    def _message(self, column: ColumnPlan, found: Found, count: int, rows: Longs) -> pa.Array:
        if not column.field.presence:
            return self._messages(column, _Parts(found.at, found.after, found.message, count, rows))
        present, index = np.unique(found.message, return_inverse=True)
        parts = _Parts(found.at, found.after, index, len(present), rows[present])
        values, absent = one_each(self._messages(column, parts), present, count)
        if absent is not None and column.field.required:
            self._fault(rows[absent], column.path, MISSING)
        return values

    def _messages(self, column: ColumnPlan, parts: _Parts) -> pa.Array:
        if column.message is None:
            return self._json(column, parts)
        structs = self.structs(column.message, parts)
        type_ = column.type.value_type if column.field.repeated and column.type is not None else column.type
        if type_ is None or pa.types.is_struct(type_):
            return structs
        convert, cause = CONVERSIONS[column.field.type_name]
        values, good = convert(structs.flatten(), type_)
        if not good.all():
            self._fault(parts.rows[~good], column.path, cause)
        return values

    def _json(self, column: ColumnPlan, parts: _Parts) -> pa.StringArray:
        """The JSON text of each message; the parts of a message are merged by joining them."""
        pieces: list[list[memoryview]] = [[] for _ in range(parts.total)]
        view = memoryview(self.payload.bytes.data)
        for message, at, end in zip(parts.message.tolist(), parts.at.tolist(), parts.end.tolist(), strict=True):
            pieces[message].append(view[at:end])
        texts = [""] * parts.total
        for message, each in enumerate(pieces):
            try:
                texts[message] = json_text(column.field.type_name, b"".join(each))
            except ValueError as error:
                self._fault(parts.rows[message : message + 1], column.path, str(error))
        return pa.array(texts, pa.string())

    def _map(self, column: ColumnPlan, found: Found, count: int, rows: Longs) -> pa.Array:
        """The last entry of each key. An entry with an unknown value of a closed enum is an unknown field."""
        plan = column.message
        assert plan is not None
        entries = _Parts(found.at, found.after, np.arange(len(found.at)), len(found.at), rows[found.message])
        fields = self._found(plan, entries)
        enum, values = plan.columns[1].enum, fields.get(2, NONE_FOUND)
        structs = self._struct_array(plan, fields, entries.total, entries.rows)
        if column.type is None:
            return structs
        message = found.message
        if _is_closed(enum):
            kept = np.ones(entries.total, np.bool_)
            kept[values.message[~_is_known(enum, values)]] = False
            message, structs = message[kept], structs.filter(pa.array(kept))
        message, structs = last_of_keys(message, structs)
        return list_array(column.type, count, [None, list_offsets(message, count)], structs)

    def _fault(self, rows: Longs, path: str, cause: str) -> None:
        for row in rows.tolist():
            self.causes.setdefault(row, f"{path}: {cause}" if path else cause)


def _is_closed(enum: Enum | None) -> TypeGuard[Enum]:
    return enum is not None and enum.closed


def _is_known(enum: Enum, found: Found) -> Flags:
    return np.isin(found.raw.astype(np.uint32).view(np.int32), list(enum.names))


def _known(enum: Enum, found: Found) -> Found:
    known = _is_known(enum, found)
    return found if known.all() else found.select(known)


def _names(enum: Enum, numbers: pa.Array) -> pa.StringArray:
    encoded = numbers.dictionary_encode()
    names = pa.array([enum.name_of(number) for number in encoded.dictionary.to_pylist()], pa.string())
    return names.take(encoded.indices)
