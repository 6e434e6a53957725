"""Of entries with the same key in a map, the last one counts in all formats, as for the formats' own libraries."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pytest

pytest.importorskip("google.protobuf")
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pyspark_kafka_meta.arrow_arrays import last_of_keys
from pyspark_kafka_meta.typed.formats import SchemaText, formats
from pyspark_kafka_meta.typed.protobuf.schema import descriptor_set

FIELD = descriptor_pb2.FieldDescriptorProto
AVRO = {"type": "record", "name": "A", "fields": [{"name": "m", "type": {"type": "map", "values": "long"}}]}
JSON = {"type": "object", "properties": {"m": {"type": "object", "additionalProperties": {"type": "integer"}}}}

COLUMN = pa.struct([pa.field("m", pa.map_(pa.string(), pa.int64()))])
MAPS = [[("a", 1), ("b", 2), ("a", 3)], [("b", 4)], [], [("a", 5), ("a", 6), ("a", 7)], [("b", 8), ("a", 9)]]
"""Each payload is repeated, because a few items are read in other ways than many."""


def protobuf_file() -> descriptor_pb2.FileDescriptorProto:
    """message A { map<string, int64> m = 1; }"""
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    message = file.message_type.add(name="A")
    kind = {"type": FIELD.TYPE_MESSAGE, "type_name": ".A.MEntry"}
    message.field.add(name="m", number=1, label=FIELD.LABEL_REPEATED, **kind)
    entry = message.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_STRING)
    entry.field.add(name="value", number=2, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_INT64)
    return file


def read_avro(payload: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(payload), AVRO, None)["m"]  # type: ignore[call-overload,index]


def read_protobuf(payload: bytes) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(protobuf_file())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("A")).FromString(payload)
    return dict(message.m)


def read_json(payload: bytes) -> Any:
    return json.loads(payload).get("m", {})


@pytest.mark.parametrize(
    ("name", "schema", "read"),
    [
        ("avro", json.dumps(AVRO), read_avro),
        ("protobuf", base64.b64encode(descriptor_set([protobuf_file().SerializeToString()])).decode(), read_protobuf),
        ("json", json.dumps(JSON), read_json),
    ],
)
def test_last_entry_of_a_key_counts_as_in_its_library(name: str, schema: str, read: Callable[[bytes], Any]) -> None:
    parsed = formats()[name](SchemaText(schema))
    rows = pa.array([{"m": entries} for entries in MAPS * 20], COLUMN)
    payloads = parsed.encoder(COLUMN, False).encode(rows)
    decoded = parsed.decoder(parsed, False).decode(payloads)

    decoded.values.validate(full=True)
    found = [value["m"] for value in decoded.values.to_pylist()]
    assert [len(entries or ()) for entries in found] == [len(dict(entries)) for entries in MAPS * 20]
    assert [dict(entries or ()) for entries in found] == [dict(entries) for entries in MAPS * 20]
    assert [read(payload) for payload in payloads.to_pylist()] == [dict(entries) for entries in MAPS * 20]


@pytest.mark.parametrize("seed", range(20))
def test_last_entries_are_those_of_dictionaries(seed: int) -> None:
    chance = random.Random(seed)
    owner = sorted(chance.randrange(50) for _ in range(chance.randrange(200)))
    pairs = [{"key": chance.randrange(5), "value": number} for number in range(len(owner))]
    found, entries = last_of_keys(
        pa.array(owner, pa.int64()).to_numpy(), pa.array(pairs, pa.struct([("key", pa.int64()), ("value", pa.int64())]))
    )

    expected = {(index, pair["key"]): pair["value"] for index, pair in zip(owner, pairs, strict=True)}
    assert found.tolist() == sorted(found.tolist())
    kept = zip(found.tolist(), entries.to_pylist(), strict=True)
    assert {(index, pair["key"]): pair["value"] for index, pair in kept} == expected
    assert len(found) == len(expected)
