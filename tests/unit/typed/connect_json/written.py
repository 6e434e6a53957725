"""Schemas and values of Kafka Connect, as its JsonConverter writes them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pyspark_kafka_meta.typed.formats import Decoded, SchemaText, formats


def struct(name: str | None = None, /, **fields: Any) -> dict[str, Any]:
    """A schema with fields of these types, or schemas."""
    schemas = [{"field": field, **of(kind)} for field, kind in fields.items()]
    return {"type": "struct", "fields": schemas, "optional": False} | ({} if name is None else {"name": name})


def of(kind: str | dict[str, Any], name: str | None = None, **parameters: str) -> dict[str, Any]:
    """The schema of an optional value."""
    schema: dict[str, Any] = {"type": kind, "optional": True} if isinstance(kind, str) else kind
    named = {} if name is None else {"name": name, "version": 1}
    return schema | named | ({"parameters": parameters} if parameters else {})


def connects(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    return of(kind, f"org.apache.kafka.connect.data.{name}", **parameters)


def debeziums(kind: str, name: str) -> dict[str, Any]:
    return of(kind, f"io.debezium.time.{name}")


def decimal(scale: int, precision: int | None = None) -> dict[str, Any]:
    digits = {} if precision is None else {"connect.decimal.precision": str(precision)}
    return connects("bytes", "Decimal", scale=str(scale), **digits)


def unscaled(number: int) -> str:
    """As `Decimal.fromLogical` and Jackson write it."""
    return base64.b64encode(number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)).decode()


def value(schema: Any, payload: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()


def decoded(reader: Any, *values: bytes | None) -> Decoded:
    schema = formats()["connect-json"](SchemaText(json.dumps(reader)))
    found = schema.decoder(schema, False).decode(pa.array(values, pa.binary()))
    found.values.validate(full=True)
    assert found.values.type == schema.type
    return found


def rows(reader: Any, *values: bytes | None) -> list[Any]:
    """Decoded values, none of which is malformed."""
    found = decoded(reader, *values)
    assert found.faults == []
    return list(found.values.to_pylist())


def causes(reader: Any, values: Sequence[bytes | None]) -> dict[int, str]:
    """By row. Each malformed value is null."""
    found = decoded(reader, *values)
    assert [found.values[fault.row].as_py() for fault in found.faults] == [None] * len(found.faults)
    return {fault.row: fault.cause for fault in found.faults}
