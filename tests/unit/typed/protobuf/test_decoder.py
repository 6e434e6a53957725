"""Protobuf messages become the values that Protobuf's own library reads; malformed ones become faults."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("google.protobuf")

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.protobuf.decoder import CHUNK_ROWS, ProtobufDecoder, protobuf_decoder
from pyspark_kafka_meta.typed.protobuf.scan import FEW_MESSAGES, Tag, find_fields
from pyspark_kafka_meta.typed.protobuf.schema import arrow_type, descriptor_set, parse_protobuf
from pyspark_kafka_meta.typed.protobuf.wire import Payload
from tests.budget import cases
from tests.unit.typed.protobuf.cases import FieldProto, RandomSchema, file_of, mutated, overlooked_faults, parsed, plain

INT32, INT64, STRING, BYTES = (
    FieldProto.TYPE_INT32,
    FieldProto.TYPE_INT64,
    FieldProto.TYPE_STRING,
    FieldProto.TYPE_BYTES,
)
UINT32, UINT64, MESSAGE, GROUP = (
    FieldProto.TYPE_UINT32,
    FieldProto.TYPE_UINT64,
    FieldProto.TYPE_MESSAGE,
    FieldProto.TYPE_GROUP,
)


def decoder_of(schema: RandomSchema) -> ProtobufDecoder:
    parsed_schema = parse_protobuf(descriptor_set(schema.files), schema.descriptor.full_name)
    return protobuf_decoder(parsed_schema, parsed_schema)


def decode(decoder: ProtobufDecoder, payloads: Sequence[bytes | None]) -> tuple[list[object], dict[int, str]]:
    values, faults = decoder.decode(pa.array(payloads, pa.binary()))
    values.validate(full=True)
    assert values.type == decoder.type
    assert [fault.row for fault in faults] == sorted({fault.row for fault in faults})
    return plain(values), {fault.row: fault.cause for fault in faults}


def simple_decoder(*fields: tuple[str, int, int], syntax: str = "proto3") -> ProtobufDecoder:
    schema = parse_protobuf(descriptor_set([file_of(syntax, fields)]))
    return protobuf_decoder(schema, schema)


@pytest.mark.budget
def test_messages_have_the_values_of_protobufs_library() -> None:
    for seed in range(cases(25, 60, 2_000)):
        schema = RandomSchema(seed)
        payloads = [schema.payload() for _ in range(100)]
        values, faults = decode(decoder_of(schema), payloads)
        for row, payload in enumerate(payloads):
            try:
                expected: object = parsed(schema, payload)
            except ValueError as error:
                assert "required" in str(error), (seed, row)
                assert row in faults, (seed, row)
                expected = None
            assert values[row] == expected, (seed, row, payload)


@pytest.mark.budget
def test_mutated_messages_are_equal_or_faults() -> None:
    """Also faults of values that others replace: Protobuf's library (upb) reads their messages."""
    count, compared = cases(1_000, 2_000, 100_000), 0
    for seed in range(count // 100):
        schema, chance = RandomSchema(10_000 + seed), random.Random(seed)
        base = [schema.payload() for _ in range(50)]
        payloads = [mutated(chance, payload, chance.choice(base)) for payload in base for _ in range(2)]
        values, faults = decode(decoder_of(schema), payloads)
        for row, payload in enumerate(payloads):
            try:
                expected = parsed(schema, payload)
            except ValueError:
                assert row in faults, (seed, row, payload)
                continue
            if row in faults:
                overlooked = overlooked_faults(schema, payload)
                assert any(cause in faults[row] for cause in overlooked), (seed, row, payload, faults[row], overlooked)
                continue
            assert values[row] == expected, (seed, row, payload)
            compared += 1
    assert compared > count // 4


@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        (b"\x08", "a field continues after the end of its message"),
        (b"\x12\x05abc", "a field continues after the end of its message"),
        (b"\x12\xff\xff\xff\xff\x07a", "a field continues after the end of its message"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "a varint has too many bytes"),
        (b"\x00\x01", "a field has number 0 or a wire type that does not exist"),
        (b"\x0f", "a field has number 0 or a wire type that does not exist"),
        (b"\x12\x02\xc3\x28", "s: a string is not UTF-8"),
        (b"\x9b\x06\x08\x01", "a group does not end where it should"),
        (b"\x9c\x06", "a group does not end where it should"),
        (b"\x9b\x06" * 101 + b"\x9c\x06" * 101, "more than 100 groups are nested"),
        (b"\x1a\x02\x01\x80", "r: packed numbers do not end where they should"),
    ],
)
def test_malformed_messages_are_faults(payload: bytes, cause: str) -> None:
    schema = parse_protobuf(
        descriptor_set([file_of("proto3", [("i", 1, INT64), ("s", 2, STRING), ("r", 3, INT32)], ["r"])])
    )
    many = [b"\x08\x07"] * 50
    values, faults = decode(protobuf_decoder(schema, schema), [*many, payload, None, *many])
    assert faults == {50: cause}
    assert values == [{"i": 7, "s": "", "r": []}] * 50 + [None, None] + [{"i": 7, "s": "", "r": []}] * 50


def test_every_cut_of_a_message_is_found_in_its_row() -> None:
    """Also where what follows in memory would continue the message."""
    decoder = simple_decoder(("i", 1, INT64), ("s", 2, STRING), ("j", 3, FieldProto.TYPE_FIXED64))
    message = b"\x08\x96\x01" + b"\x12\x03abc" + b"\x19" + b"12345678"
    complete = (0, 3, 8, 17)
    _, faults = decode(decoder, [message[:size] for size in range(len(message) + 1)] * 3)
    assert set(faults) == {row for row in range(3 * 18) if row % 18 not in complete}


def test_groups_and_other_unknown_fields_are_skipped() -> None:
    unknown = (
        b"\x9b\x06\x08\x01\x13\x12\x01a\x14\x9c\x06"
        + b"\xa0\x06\x01"
        + b"\xa9\x0612345678"
        + b"\xb2\x06\x01x"
        + b"\xbd\x061234"
    )
    payloads = [unknown + b"\x08\x07" + unknown] * 30 + [b"\x08\x07" + unknown[11:]] * 30
    assert decode(simple_decoder(("i", 1, INT64)), payloads) == ([{"i": 7}] * 60, {})


def test_rows_of_all_chunks_keep_their_values() -> None:
    """The memory for bytes is that of the chunk before."""
    rows = CHUNK_ROWS * 2 + 5

    def payload(row: int) -> bytes | None:
        if row % 1000 in (3, 5):
            return None if row % 1000 == 3 else b"\x08"
        return b"\x08" + bytes([row % 100]) + b"\x12\x05%05d" % row

    values, faults = decode(simple_decoder(("i", 1, INT64), ("s", 2, STRING)), [payload(row) for row in range(rows)])
    assert set(faults) == {row for row in range(rows) if row % 1000 == 5}
    assert values == [None if row % 1000 in (3, 5) else {"i": row % 100, "s": f"{row:05}"} for row in range(rows)]


def test_slices_and_empty_columns_are_decoded() -> None:
    decoder = simple_decoder(("i", 1, INT64))
    column = pa.array([b"\x08", b"\x08\x01", None, b"", b"\x08"], pa.binary())
    assert decoder.decode(column[1:4]).values.to_pylist() == [{"i": 1}, None, {"i": 0}]
    assert decoder.decode(column[:0]).values.to_pylist() == []


@pytest.mark.parametrize("others", [0, 50])
@pytest.mark.parametrize(
    ("piece", "row"),
    [
        (b"\x10\x01\x08\x01", {"a": 1, "b": 1}),
        (b"\xa0\x06\x01", {}),
        (b"\x9b\x06\x9c\x06", {}),
        (b"\x18\x01", {"r": [1] * 20_000}),
        (b"\x22\x01x", {"s": "x"}),
    ],
)
def test_long_messages_among_others_take_linear_time(
    piece: bytes, row: dict[str, object], others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading one field of few messages with numpy takes as long as many fields without: it is limited."""
    schema = parse_protobuf(
        descriptor_set(
            [file_of("proto3", [("a", 1, INT32), ("b", 2, INT32), ("r", 3, INT32), ("s", 4, STRING)], ["r"])]
        )
    )
    calls = []
    varints = Payload.varints
    monkeypatch.setattr(Payload, "varints", lambda *args: calls.append(1) or varints(*args))
    absent: dict[str, object] = {"a": 0, "b": 0, "r": [], "s": ""}
    values, faults = decode(protobuf_decoder(schema, schema), [*[b"\x08\x00"] * others, piece * 20_000])
    assert faults == {}
    assert values == [absent] * others + [{**absent, **row}]
    assert len(calls) < 100


def test_fields_of_a_few_long_messages_do_not_cost_a_look_at_all_messages() -> None:
    looked_at = []

    class Watched(np.ndarray):  # type: ignore[type-arg, unused-ignore]
        def take(self, indexes: np.typing.NDArray[np.int64]) -> object:  # type: ignore[override]
            looked_at.append(len(indexes))
            return self.view(np.ndarray).take(indexes)

    messages = [b"\x18\x01" * 200] * FEW_MESSAGES + [b"\x08\x01"] * 10_000
    end = np.cumsum([len(message) for message in messages])
    payload = Payload(np.frombuffer(b"".join(messages), np.uint8))
    payload.bytes = payload.bytes.view(Watched)
    tags = [Tag(1, 0), Tag(3, 0, repeated=True)]
    found = find_fields(payload, tags, np.append(0, end[:-1]), end, lambda rows, cause: pytest.fail(cause))
    assert (len(found[1].at), len(found[3].at)) == (10_000, 200 * FEW_MESSAGES)
    assert sum(looked_at) < 10 * len(messages)


def test_decoders_can_be_pickled() -> None:
    decoder = pickle.loads(pickle.dumps(simple_decoder(("i", 1, INT64))))
    assert decode(decoder, [b"\x08\x01"]) == ([{"i": 1}], {})


def test_unsigned_numbers_are_not_negative() -> None:
    schema = parse_protobuf(descriptor_set([file_of("proto3", [("a", 1, UINT32), ("b", 2, UINT64)])]))
    assert arrow_type(schema) == pa.struct([("a", pa.int64()), ("b", pa.decimal128(20, 0))])
    values, _ = decode(protobuf_decoder(schema, schema), [b"\x08\xff\xff\xff\xff\x0f\x10" + b"\xff" * 9 + b"\x01"])
    assert values == [{"a": 2**32 - 1, "b": 2**64 - 1}]


@pytest.mark.parametrize(
    ("written", "read", "is_readable"),
    [
        (INT32, INT64, True),
        (UINT32, INT64, True),
        (INT64, INT32, False),
        (INT32, UINT32, False),
        (INT32, FieldProto.TYPE_SINT32, False),
        (STRING, BYTES, True),
        (BYTES, STRING, True),
        (STRING, INT32, False),
        (FieldProto.TYPE_FLOAT, FieldProto.TYPE_DOUBLE, False),
    ],
)
def test_types_are_changed_only_where_no_value_changes(written: int, read: int, is_readable: bool) -> None:
    writer, reader = (parse_protobuf(descriptor_set([file_of("proto3", [("f", 1, kind)])])) for kind in (written, read))
    if is_readable:
        protobuf_decoder(writer, reader)
    else:
        with pytest.raises(ValueSchemaError, match=r"The Protobuf field f \(number 1\) is"):
            protobuf_decoder(writer, reader)


def test_fields_are_resolved_by_number() -> None:
    writer = parse_protobuf(descriptor_set([file_of("proto3", [("a", 1, INT32), ("new", 2, STRING), ("b", 3, INT32)])]))
    reader = parse_protobuf(
        descriptor_set([file_of("proto3", [("renamed", 3, INT64), ("later", 9, STRING), ("a", 1, INT32)])])
    )
    values, faults = decode(
        protobuf_decoder(writer, reader), [b"\x08\x01\x12\x01x\x18\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"]
    )
    assert (values, faults) == ([{"renamed": -2, "later": "", "a": 1}], {})
