"""Values of Kafka Connect's JsonConverter become columns, whatever their members' order, blanks and schemas are."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.typed.connect_json import envelope
from pyspark_kafka_meta.typed.connect_json.envelope import NO_ENVELOPE
from tests.unit.typed.connect_json.written import causes, connects, decimal, decoded, of, rows, struct, unscaled, value

ROW = struct("shop.Row", id="int64", name="string")
OLD, NEW = struct("shop.Row", id="int32"), struct("shop.Row", id="int64", name="string", more="boolean")
PAIRS = {"type": "map", "keys": of("int32"), "values": of("string")}


@pytest.mark.parametrize(
    ("schema", "payload", "read"),
    [
        (of("boolean"), True, True),
        (of("int8"), -128, -128),
        (of("int64"), -(2**63), -(2**63)),
        (of("float"), 3.4e38, pytest.approx(3.4e38)),
        (of("double"), 5e-324, 5e-324),
        (of("double"), 1e308, 1e308),
        (of("double"), "Infinity", math.inf),
        (of("double"), "-Infinity", -math.inf),
        (of("double"), "NaN", pytest.approx(math.nan, nan_ok=True)),
        (of("float"), "NaN", pytest.approx(math.nan, nan_ok=True)),
        (of("string"), "é\n\N{GRINNING FACE}", "é\n\N{GRINNING FACE}"),
        (of("bytes"), base64.b64encode(b"\0\xff").decode(), b"\0\xff"),
        (of("bytes"), "", b""),
        (connects("int32", "Date"), -1, date(1969, 12, 31)),
        (connects("int32", "Time"), 86_399_999, 86_399_999),
        (connects("int64", "Timestamp"), -1, datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
        (decimal(2, 5), unscaled(-12345), Decimal("-123.45")),
        (decimal(0), unscaled(0), Decimal(0)),
        (decimal(0), unscaled(-128), Decimal(-128)),
        (decimal(38), unscaled(-1), Decimal("-1e-38")),
        (decimal(0), unscaled(10**38 - 1), Decimal(10**38 - 1)),
        (decimal(2), 123, Decimal("123.00")),
        (decimal(2), -1.5, Decimal("-1.50")),
        ({"type": "array", "items": struct(a="int8")}, [{"a": 1}, {}, None], [{"a": 1}, {"a": None}, None]),
        ({"type": "map", "keys": of("string"), "values": of("int8")}, {"é": 1, "b": None}, [("é", 1), ("b", None)]),
        (PAIRS, [[1, "a"], [2, None]], [(1, "a"), (2, None)]),
        (PAIRS, [], []),
        ({"type": "map", "keys": ROW, "values": of("int8")}, [[{"id": 1}, 2]], [({"id": 1, "name": None}, 2)]),
        (struct(**{"a-b": "int8", 'c"d': "int8"}), {"a-b": 1, 'c"d': 2}, {"a-b": 1, 'c"d': 2}),
        (struct(a=struct(b=struct(c="int8"))), {"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 1}}}),
    ],
)
def test_a_value_of_each_type(schema: Any, payload: Any, read: Any) -> None:
    assert rows(schema, value(schema, payload), value(schema, None), None) == [read, None, None]


def test_what_json_converter_wrote_is_read() -> None:
    """By version 4.4.0 of `connect-json`, with a decimal in Base64 and as a number."""
    texts = Path(__file__).with_name("json_converter.txt").read_bytes().splitlines()
    schema = json.loads(texts[0])["schema"]
    row = {
        "i8": -128,
        "i16": 7,
        "i32": -(2**31),
        "i64": 2**63 - 1,
        "f64": math.inf,
        "b": True,
        "def": "dflt",
        "str": 'é\x01\N{GRINNING FACE}"',
        "by": b"\x00\xffA",
        "arr": [{"s": "q", "n": 1}, None],
        "m": [("a", 1), ("ü", 2)],
        "mi": [(-2, "b"), (1, "a")],
        "dec": Decimal("-12345.6789"),
        "date": date(1969, 12, 31),
        "time": 86_399_999,
        "micro-ts": 1_700_000_000_123_456,
        "ts": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
    }

    found = rows(schema, *texts)

    assert [math.isnan(each.pop("f32")) for each in found] == [True, True]
    assert found == [row, row]


def test_missing_members_are_null_and_unknown_members_are_left_out() -> None:
    found = rows(ROW, value(ROW, {"id": 1, "other": {"a": []}}), value(ROW, {}))
    assert found == [{"id": 1, "name": None}, {"id": None, "name": None}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"schema": ROW, "payload": {"id": 1, "name": "a"}}),
        json.dumps({"payload": {"id": 1, "name": "a"}, "schema": ROW}),
        json.dumps({"schema": ROW, "payload": {"id": 1, "name": "a"}}, indent=2),
        " \n" + json.dumps({"payload": {"id": 1, "name": "a"}, "schema": ROW}, indent=1) + "\n\t",
        json.dumps({"schema": None, "payload": {"name": "a", "id": 1}}),
        json.dumps({"payload": {"name": "a", "id": 1}, "schema": None}),
    ],
)
def test_members_may_have_any_order_and_blanks_and_a_schema_may_be_null(text: str) -> None:
    plain = value(ROW, {"id": 1, "name": "a"})
    assert rows(ROW, plain, text.encode(), plain) == [{"id": 1, "name": "a"}] * 3


@pytest.mark.parametrize("schema", [None, ROW])
def test_a_payload_of_null_is_null(schema: Any) -> None:
    assert rows(ROW, value(schema, None)) == [None]


@pytest.mark.parametrize("passes", [0, 1, 100])
def test_a_schema_may_change_in_the_middle(passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "MAX_PASSES", passes)
    values: list[bytes | None] = []
    for number in range(10):
        values += [value(OLD, {"id": number}), None, value(NEW, {"id": number, "name": "a", "more": True})]

    read: list[Any] = []
    for number in range(10):
        read += [{"id": number, "name": None}, None, {"id": number, "name": "a"}]
    assert rows(ROW, *values) == read


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (b"", NO_ENVELOPE),
        (b"\xff", NO_ENVELOPE),
        (b"{", NO_ENVELOPE),
        (b"[1]", NO_ENVELOPE),
        (b"null", NO_ENVELOPE),
        (b'{"id": 1, "name": "a"}', NO_ENVELOPE),
        (b'{"payload": {"id": 1}}', NO_ENVELOPE),
        (b'{"schema": null, "payload": {"id": 1}, "more": 1}', NO_ENVELOPE),
        (b'{"payload": 1, "payload": 2, "schema": null}', NO_ENVELOPE),
        (b'{"schema": null, "payload": {"id": 1}, "payload": {"id": 2}}', NO_ENVELOPE),
        (b'{"schema": null, "schema": null, "payload": {"id": 1}}', NO_ENVELOPE),
        (b"[" * 100_000, NO_ENVELOPE),
        (value(ROW, {"id": 1})[:-2], NO_ENVELOPE),
        (value(ROW, {"id": 1})[:-1] + b',"more":1}', "the text is not valid JSON"),
        (value(ROW, {"id": 1})[:-1], "the text is not valid JSON"),
        (value(ROW, {"id": "1"}), "the value at $.id cannot be read as int64"),
        (value(ROW, {"id": 2**63}), "the value at $.id cannot be read as int64"),
        (value(ROW, {"name": 1}), "the value at $.name is not of type string"),
        (value(ROW, [1]), "the value at $ is not of type object"),
        (value(ROW, {"name": "a"}).replace(b'"a"', b'"\xff"'), "the text is not UTF-8"),
        (value(ROW, {}).replace(b'"int64"', b'"\xff"'), "its schema is not UTF-8"),
        (value(ROW, {}).replace(b'"int64"', b"64"), "id has no known type"),
    ],
)
def test_a_malformed_value_has_a_cause_and_its_neighbours_have_none(text: bytes, cause: str) -> None:
    good = value(ROW, {"id": 1, "name": "a"})
    found = causes(ROW, [good, text, None, good])
    assert list(found) == [1]
    assert found[1].startswith(cause)


@pytest.mark.parametrize(
    ("schema", "payload", "cause"),
    [
        (of("bytes"), "a", "the value at $ cannot be read as binary"),
        (of("float"), 1e39, "the value at $ cannot be read as float"),
        (connects("int32", "Date"), "2024-01-01", "the value at $ cannot be read as date32[day]"),
        (connects("int64", "Timestamp"), 2**62, "the value at $ cannot be read as timestamp[us, tz=UTC]"),
        (decimal(2, 5), unscaled(100_000), "the value at $ cannot be read as decimal128(5, 2)"),
        (decimal(2, 5), 1.234, "the value at $ cannot be read as decimal128(5, 2)"),
        (decimal(2, 5), "", "the value at $ cannot be read as decimal128(5, 2)"),
        (decimal(2, 5), "%", "the value at $ cannot be read as decimal128(5, 2)"),
        (decimal(0), unscaled(10**60), "the value at $ cannot be read as decimal128(38, 0)"),
        (PAIRS, {"1": "a"}, "the value at $ is not of type array"),
        (PAIRS, [[None, "a"]], "the value at $ is not a list of pairs with keys"),
        (PAIRS, [[1]], "the value at $ is not a list of pairs with keys"),
        (PAIRS, [[2**40, "a"]], "the value at $ cannot be read as int32"),
    ],
)
def test_a_payload_that_its_type_does_not_hold_is_malformed(schema: Any, payload: Any, cause: str) -> None:
    assert causes(schema, [value(schema, None), value(schema, payload)]) == {1: cause}


PAYLOADS = st.dictionaries(st.sampled_from(["id", "name"]), st.none() | st.integers(0, 9) | st.text(max_size=3))
CUTS = st.tuples(st.integers(0, 200), st.integers(0, 200))


@given(st.lists(st.tuples(st.sampled_from([ROW, OLD, NEW, None]), PAYLOADS, st.booleans(), CUTS), max_size=12))
def test_value_is_read_beside_others_as_alone(values: list[tuple[Any, dict[str, Any], bool, tuple[int, int]]]) -> None:
    """Cut values too, which begin and end as others do."""
    texts = [
        value(schema, payload)[:start] + value(schema, payload)[start + (length if is_cut else 0) :]
        for schema, payload, is_cut, (start, length) in values
    ]
    together, alone = decoded(ROW, *texts), [decoded(ROW, text) for text in texts]

    assert together.values.to_pylist() == [each.values[0].as_py() for each in alone]
    assert [fault.row for fault in together.faults] == [row for row, each in enumerate(alone) if each.faults]
