"""The columns of a query over changes: those of the table, those of the key first, and `_change`.

Source: Debezium's `io.debezium.data.Envelope`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from pyspark_kafka_meta.changes.semantic_types import MAX_DIGITS, UTC_MICROS, Conversion, conversion
from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.options import (
    ChangeOrder,
    Changes,
    ChangesOptions,
    OnMalformedRecord,
    OnTruncate,
    TypedValuesOptions,
)
from pyspark_kafka_meta.typed.formats import COMPILED_SCHEMAS, PRECISION, Schema, SchemaText, inner_path, schema_of
from pyspark_kafka_meta.typed.reading import ERROR_TYPE, QuerySchemas, digest, given_schema, spark_type_json

CHANGE_COLUMN = "_change"
JSON = "json"
KEY_COLUMN = "key"
"""Of a key that is no struct."""
DELETED_FIELD = "__deleted"
"""Of `ExtractNewRecordState`: whether the row was deleted."""
TIME_FIELDS = {"ts_us": (1, 1), "ts_ns": (1, 1000), "ts_ms": (1000, 1)}
"""Of an envelope and its source: by which number microseconds are multiplied and divided. The best one first."""
_TIMES = [(name, pa.int64()) for name in ("ts_ms", "ts_us", "ts_ns")]
_SOURCE = [
    *((name, pa.string()) for name in ("version", "connector", "name")),
    *_TIMES,
    *((name, pa.string()) for name in ("snapshot", "db", "sequence", "schema", "table", "txId", "lsn")),
]
_TRANSACTION = [("id", pa.string()), ("total_order", pa.int64()), ("data_collection_order", pa.int64())]
_BESIDE_THE_ROW = [
    ("op", pa.string()),
    *_TIMES,
    ("source", pa.struct(_SOURCE)),
    ("transaction", pa.struct(_TRANSACTION)),
]
"""What an envelope has beside the row, with the source of PostgreSQL. Other connectors have texts where it has the
numbers `txId` and `lsn`: a string has the text of any value."""
POSITION_TYPE = pa.struct([pa.field("position", pa.string(), False), pa.field("sequence", pa.int64(), False)])
_POSITIONS = (
    ("commit_lsn", "change_lsn", "event_serial_no"),  # SQL Server
    ("commit_scn", "scn"),  # Oracle
    ("file", "pos", "row"),  # MySQL and MariaDB
    ("lsn", "sequence"),  # PostgreSQL
)
"""Fields of the source of a connector. One connector has all of a line."""
_NO_POSITION = (
    "'changeOrder' source needs the position in the database, which the schema of 'source' does not have: remove the "
    "option, or set the schema of the whole envelope"
)


class TableColumn(NamedTuple):
    """A column of the table.

    Attributes:
        type: as in the rows of the query.
        conversion: from the decoded field; None if this is the column.
    """

    name: str
    type: pa.DataType
    conversion: Conversion | None


@dataclass(frozen=True, slots=True)
class ChangesSchema:
    """What the records of a query become.

    Attributes:
        keys: columns of the key.
        key_is_struct: whether the columns of the key are its fields.
        row: columns of the row in a value, which may be those of the key too.
        change: the type of `_change`.
        keys_are_null: whether columns of the key may be null.
        position: the fields of the source by which changes are ordered; empty for Kafka's order.
    """

    options: ChangesOptions
    keys: tuple[TableColumn, ...]
    key_is_struct: bool
    row: tuple[TableColumn, ...]
    change: pa.StructType
    keys_are_null: bool
    position: tuple[str, ...]

    @property
    def type(self) -> pa.StructType:
        """Of the rows."""
        names = {column.name for column in self.keys}
        keys = [pa.field(column.name, column.type, self.keys_are_null) for column in self.keys]
        others = [pa.field(column.name, column.type) for column in self.row if column.name not in names]
        return pa.struct([*keys, *others, pa.field(CHANGE_COLUMN, self.change, False)])


def changes_schema(schemas: QuerySchemas, options: ChangesOptions) -> ChangesSchema:
    """The schema of the rows.

    Raises:
        ValueSchemaError: values are no envelopes, or no rows but envelopes, or columns would have the same name.
    """
    by_column = {reader.column.column: reader.schema for reader in decoded_schemas(schemas, options).readers}
    value, is_debezium = by_column["value"], options.changes is Changes.DEBEZIUM
    if is_debezium and not is_envelope(value.type):
        raise ValueSchemaError(
            "the schema of values is not Debezium's envelope, as it has no 'op', no struct 'after', or a field "
            "twice: set 'changes' to upsert if values are rows"
        )
    if not is_debezium and is_envelope(value.type) and "before" in value.type.names:
        raise ValueSchemaError(
            "the schema of values is Debezium's envelope, with the row before and after a change: set 'changes' to "
            "debezium"
        )
    row = _columns(value, "after" if is_debezium else "")
    places = {column.name: place for place, column in enumerate(row)}
    keys = sorted(_keys(by_column.get("key"), is_debezium), key=lambda column: places.get(column.name, -1))
    key_is_struct = "key" in by_column and pa.types.is_struct(by_column["key"].type)
    in_both = {key.name for key in keys} if key_is_struct else set()
    _check_names([*keys, *(column for column in row if column.name not in in_both)])
    on_malformed = schemas.typed.on_malformed
    position = _position(value.type) if options.order is ChangeOrder.SOURCE else ()
    return ChangesSchema(
        options,
        tuple(keys),
        key_is_struct,
        row,
        pa.struct(_change_fields(value.type, row, options, on_malformed)),
        on_malformed in (OnMalformedRecord.NULL, OnMalformedRecord.RECORD) or options.on_truncate is OnTruncate.ROW,
        position,
    )


def pinned_rows(schemas: QuerySchemas, options: ChangesOptions) -> QuerySchemas:
    """The schemas of a query that begins now, pinned as the columns of rows and keys: what is beside them in an
    envelope, such as `source`, is another one in each version of a connector.

    Raises:
        ValueSchemaError: as `changes_schema`.
    """
    rows = changes_schema(schemas, options)
    described = {
        "key": digest(str([(each.name, str(each.type)) for each in rows.keys])),
        "value": " ".join(digest(f"{each.name} {each.type}") for each in rows.row),
    }
    readers = [replace(each, pin=each.pin._replace(columns=described[each.column.column])) for each in schemas.readers]
    return replace(schemas, readers=tuple(readers))


def is_envelope(kind: pa.DataType) -> bool:
    """Whether values of this type say what happened to a row. No field is there twice."""
    if not pa.types.is_struct(kind) or not {"op", "after"} <= set(kind.names) or len(set(kind.names)) < len(kind):
        return False
    return bool(pa.types.is_string(kind.field("op").type) and pa.types.is_struct(kind.field("after").type))


def with_envelope(typed: TypedValuesOptions, options: ChangesOptions | None) -> TypedValuesOptions:
    """The options of typed values. If values are JSON whose given schema is the row's, it becomes the envelope's. A
    flattened one gets the field that tells of a delete.

    Raises:
        OptionError, ValueSchemaError: as `typed.reading.query_schemas`; the schema of a row does not say enough.
    """
    if options is None or typed.value_format != JSON or typed.value_schema is None:
        return typed
    (value,) = (column for column in typed.columns if column.column == "value")
    given = schema_of(value.format, given_schema(value, typed.value_schema))
    kind = completed(given.type, options.changes)
    if kind is given.type:
        return typed
    if given.connect_types:  # which a type of Spark would not keep
        raise ValueSchemaError(
            "'valueSchema' has types of Kafka Connect, but is not the JSON Schema of the whole value: set it to that "
            f"of the envelope, or with 'changes' upsert add the property '{DELETED_FIELD}'"
        )
    if options.order is ChangeOrder.SOURCE:
        raise ValueSchemaError(_NO_POSITION)
    return replace(typed, value_schema=spark_type_json(kind))


def completed(given: pa.DataType, changes: Changes) -> pa.DataType:
    """The type of values in JSON without a schema, for which users may give that of the row: it becomes an envelope, or
    gets the field that tells of a delete. The same object if nothing is missing."""
    if changes is Changes.DEBEZIUM:
        return given if is_envelope(given) else pa.struct([("before", given), ("after", given), *_BESIDE_THE_ROW])
    if not pa.types.is_struct(given) or DELETED_FIELD in given.names:
        return given
    return pa.struct([*given, (DELETED_FIELD, pa.string())])


def decoded_schemas(schemas: QuerySchemas, options: ChangesOptions) -> QuerySchemas:
    """The schemas by which records are decoded. Decimals of Avro with more digits than Spark's are bytes, of which a
    conversion makes texts. Rows have the field that tells of a delete, as older values may have one where the newest
    have none."""
    is_row = options.changes is Changes.UPSERT
    readers = (
        replace(each, text=_decoded(each.text, is_row and each.column.column == "value")) for each in schemas.readers
    )
    return replace(schemas, readers=tuple(readers))


@lru_cache(COMPILED_SCHEMAS)
def _decoded(given: SchemaText, is_row: bool) -> SchemaText:
    """The same text if it is no JSON, as a type of Spark or a descriptor of Protobuf, whose fields have numbers."""
    try:
        schema = json.loads(given.text, object_hook=_without_long_decimal)
    except (ValueError, RecursionError):
        return given
    if is_row and f'"{DELETED_FIELD}"' not in given.text:
        _add_deleted(schema)
    return given if schema == json.loads(given.text) else given._replace(text=json.dumps(schema))


def _without_long_decimal(schema: dict[str, Any]) -> dict[str, Any]:
    match schema:
        case {"logicalType": "decimal", "precision": int(digits), "scale": int(scale), "connect.parameters": {**known}}:
            if digits > MAX_DIGITS >= scale and PRECISION in known:  # else Connect says 64 of any
                del schema["logicalType"]
    return schema


def _add_deleted(schema: Any) -> None:
    """To the schema of a row, or of a row or null."""
    match schema:
        case ["null", row] | [row, "null"] | {"oneOf": [{"type": "null"}, row]}:
            _add_deleted(row)
        case {"type": "struct", "fields": list(fields)}:  # of Connect
            fields.append({"field": DELETED_FIELD, "type": "string", "optional": True})
        case {"type": "record", "fields": list(fields)}:  # of Avro
            fields.append({"name": DELETED_FIELD, "type": ["null", "string"], "default": None})
        case {"type": "object", "properties": dict(properties)}:  # of JSON Schema
            properties[DELETED_FIELD] = {"type": "string"}


def _columns(schema: Schema, path: str) -> tuple[TableColumn, ...]:
    """Of the struct at this path, "" for the whole value."""
    kind = schema.type.field(path).type if path else schema.type
    if not pa.types.is_struct(kind):
        raise ValueSchemaError("changes need values, or keys, with fields: their schema has none")
    fields = [field for field in kind if path or field.name != DELETED_FIELD]
    return tuple(_column(schema, field.name, field.type, inner_path(path, field.name)) for field in fields)


def _column(schema: Schema, name: str, kind: pa.DataType, path: str) -> TableColumn:
    made = conversion(kind, schema.connect_types, path)
    return TableColumn(name, kind if made is None else made.type, made)


def _keys(schema: Schema | None, is_debezium: bool) -> Sequence[TableColumn]:
    """Bytes are no key of Debezium's, which is a struct: the table has none."""
    if schema is None:
        return () if is_debezium else (TableColumn(KEY_COLUMN, pa.binary(), None),)
    if pa.types.is_struct(schema.type):
        return _columns(schema, "")
    return (_column(schema, KEY_COLUMN, schema.type, ""),)


def _check_names(columns: Sequence[TableColumn]) -> None:
    count = Counter([CHANGE_COLUMN, *(column.name.lower() for column in columns)])
    if several := sorted(name for name, times in count.items() if times > 1):
        raise ValueSchemaError(
            f"several columns would have the name {several[0]}, in any case: read the values without 'changes'"
        )


def _change_fields(
    value: pa.StructType, row: Sequence[TableColumn], options: ChangesOptions, on_malformed: OnMalformedRecord
) -> list[pa.Field]:
    fields = [
        pa.field("op", pa.string()),
        pa.field("deleted", pa.bool_()),
        pa.field("sequence", POSITION_TYPE if options.order is ChangeOrder.SOURCE else pa.int64(), False),
        pa.field("snapshot", pa.string()),
        pa.field("unavailable", pa.list_(pa.field("element", pa.string(), False)), False),
        pa.field("changed_at", UTC_MICROS),
        pa.field("captured_at", UTC_MICROS),
        *(pa.field(name, value.field(name).type) for name in ("source", "transaction") if name in value.names),
        pa.field("topic", pa.string(), False),
        pa.field("partition", pa.int32(), False),
        pa.field("offset", pa.int64(), False),
    ]
    if options.include_before:
        fields.append(pa.field("before", pa.struct([(column.name, column.type) for column in row])))
    if on_malformed is OnMalformedRecord.RECORD:
        fields.append(pa.field("error", ERROR_TYPE))
    if options.changes is Changes.UPSERT:
        unknown = {"snapshot", "changed_at", "captured_at", "source", "transaction"}
        return [field for field in fields if field.name not in unknown]
    return fields


def _position(value: pa.StructType) -> tuple[str, ...]:
    source = value.field("source").type if "source" in value.names else pa.struct([])
    for fields in _POSITIONS:
        if pa.types.is_struct(source) and set(fields) <= set(source.names):
            return ("sequence",) if "sequence" in fields else fields
    raise ValueSchemaError(_NO_POSITION)
