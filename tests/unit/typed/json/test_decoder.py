"""JSON texts become the values that Python's `json` reads; others become faults of their rows."""

from __future__ import annotations

import json
import random
import re
import struct
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka_meta.typed.json import decoder as json_decoder_module
from pyspark_kafka_meta.typed.json.decoder import CHUNK_ROWS, JsonDecoder
from pyspark_kafka_meta.typed.json.schema import JsonSchema, column_type, parse_json_schema
from tests.budget import cases

ORDER = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("ok", pa.bool_()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("lines", pa.list_(pa.field("element", pa.struct([("sku", pa.string()), ("qty", pa.int64())])))),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
    ]
)
TEXTS = ("", "a", "Grüße", "日本語", "😀", "line\nline", '"quoted" \\', "\x00\x1f", "x" * 100, "Information")


PLAIN_TIME = re.compile(r"(?!0000)\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d\.\d{6}\+\d\d:\d\d)?")


class NotComparedError(Exception):
    """A mutated time, of which Python and Arrow allow different forms."""


def decode(type_: pa.DataType, texts: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
    values, faults = JsonDecoder(JsonSchema(type_)).decode(pa.array(texts, pa.binary()))
    values.validate(full=True)
    assert values.type == column_type(type_)
    return values.to_pylist(), {fault.row: fault.cause for fault in faults}


def random_order(chance: random.Random) -> dict[str, Any]:
    order: dict[str, Any] = {
        "id": chance.randint(-(2**63), 2**63 - 1),
        "name": chance.choice(TEXTS),
        "price": struct.unpack("<d", chance.randbytes(8))[0] if chance.random() < 0.5 else chance.randint(0, 10**20),
        "ok": chance.random() < 0.5,
        "tags": [chance.choice((*TEXTS, None)) for _ in range(chance.randint(0, 3))],
        "lines": [{"sku": chance.choice(TEXTS), "qty": chance.randint(0, 99)} for _ in range(chance.randint(0, 3))],
        "at": f"2024-02-29T23:59:{chance.randint(0, 59):02}.{chance.randint(0, 10**6 - 1):06}+01:00",
        "day": f"{chance.randint(1, 9999):04}-01-31",
        "unknown": [{"deep": [1, "a", None]}],
    }
    if order["price"] != order["price"] or abs(order["price"]) == float("inf"):
        order["price"] = None
    names = chance.sample(list(order), chance.randint(0, len(order)))
    return {name: order[name] if chance.random() < 0.9 else None for name in names}


def expected(order: Any) -> dict[str, Any] | None:
    """Of `ORDER`; raises ValueError for a value of another type."""
    if order is None:
        return None
    if not isinstance(order, dict):
        raise ValueError
    kinds: dict[str, Any] = {"name": str, "ok": bool}
    row: dict[str, Any] = dict.fromkeys(field.name for field in ORDER)
    for name in row:
        value = order.get(name)
        if value is not None:
            row[name] = _expected_value(name, value) if name not in kinds else _checked(value, kinds[name])
    return row


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError
    if isinstance(value, str):
        value.encode()
    return value


def _integer(value: Any) -> int:
    if type(value) not in (int, Decimal) or not -(2**63) <= value < 2**63 or value != int(value):
        raise ValueError
    return int(value)


def _expected_value(name: str, value: Any) -> Any:
    if name == "id":
        return _integer(value)
    if name == "price":
        if type(value) not in (int, float, Decimal) or (type(value) is not float and float(value) in (inf, -inf)):
            raise ValueError
        return float(value)
    if name == "tags":
        return [None if each is None else _checked(each, str) for each in _checked(value, list)]
    if name == "lines":
        return [_line(each) for each in _checked(value, list)]
    text = _checked(value, str)
    if not PLAIN_TIME.fullmatch(text):
        raise NotComparedError
    return datetime.fromisoformat(text).astimezone(UTC) if name == "at" else date.fromisoformat(text)


def _line(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    sku, qty = _checked(value, dict).get("sku"), value.get("qty")
    return {"sku": None if sku is None else _checked(sku, str), "qty": None if qty is None else _integer(qty)}


def comparable(order: dict[str, Any] | None) -> dict[str, Any] | None:
    """NaN is not equal to itself."""
    return None if order is None else {**order, "price": repr(order["price"])}


def mutated_order(chance: random.Random) -> bytes:
    """Every second record is as `json` writes it."""
    is_ascii, indent = chance.random() < 0.5, chance.choice((None, None, 1))
    data = bytearray(json.dumps(random_order(chance), ensure_ascii=is_ascii, indent=indent).encode())
    tokens = (b"{", b"}", b'"', b",", b"\n", b"[", b"1", b"null", b"\\ud800", b"}{", b"NaN")
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                data[at:at] = chance.choice(tokens)
            case 2:
                del data[at:]
            case 3:
                del data[at : at + 2]
            case 4:
                data += chance.choice((b"{}", b" ", b"}", b"\n{}"))
    return bytes(data)


@pytest.mark.budget
def test_mutated_records_are_equal_or_faults() -> None:
    count, chance = cases(1_000, 2_000, 100_000), random.Random(2)
    texts: list[bytes | None] = [mutated_order(chance) for _ in range(count)]
    values, faults = decode(ORDER, texts)
    compared = 0
    for row, text in enumerate(texts):
        assert text is not None
        try:
            want = expected(json.loads(text.decode(), parse_float=Decimal))
        except NotComparedError:
            continue
        except (ValueError, RecursionError):
            assert row in faults, (row, text)
            assert values[row] is None
            continue
        assert row not in faults, (row, text, faults[row])
        assert comparable(values[row]) == comparable(want), (row, text)
        compared += 1
    assert compared > count // 3


TRICKS = [
    b'{"id":1}{"id":2}',
    b'{"id":1} {"id":2}',
    b'{"id":1',
    b'{"id":1},"name":{}',
    b"",
    b" ",
    b'{"id":1}}',
    b'{"name":"a\nb"}',
    b'{"name":"\xff"}',
    b'{"unknown":"\xff"}',
    b'{"price":1e999}',
    b'{"id":9223372036854775808}',
    b'{"id":1.5}',
    b'{"id":true}',
    b'{"name":1}',
    b'{"at":"2024-01-01T00:00:00"}',
    b'{"day":"2024-02-30"}',
    b'{"name":"\\ud800"}',
    b"[1]",
    b'"a"',
    b'{"price":"nan"}',
    b'{"price":"INF"}',
    b'{"id":NaN}',
    b'{"name":NaN}',
    b' \xef\xbb\xbf{"id":1}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("trick", TRICKS, ids=range(len(TRICKS)))
def test_bad_record_is_its_rows_fault_alone(trick: bytes) -> None:
    good = {field.name: None for field in ORDER} | {"id": 7}
    texts: list[bytes | None] = [b'{"id":7}'] * 100
    values, faults = decode(ORDER, [*texts, trick, None, *texts])
    assert list(faults) == [100]
    assert values == [good] * 100 + [None, None] + [good] * 100


@pytest.mark.parametrize("ignored", [b"9" * 5_000, b"[" * 2_000 + b"]" * 2_000, b"Inf", b"-inf", b"tru", b"0x1", b"01"])
def test_record_does_not_depend_on_its_neighbours(ignored: bytes) -> None:
    text = b'{"id":1,"unknown":' + ignored + b"}"
    alone, faults_alone = decode(ORDER, [text])
    among, faults_among = decode(ORDER, [*[b'{"id":7}'] * 100, text])

    assert (alone[0], bool(faults_alone)) == (among[100], bool(faults_among))


@pytest.mark.parametrize("text", [b'{"day":"0000-01-01","x":NaN}', b'{"at":"9999-12-31T23:00:00-05:00","x":NaN}'])
def test_time_that_python_does_not_have_is_read(text: bytes) -> None:
    result = JsonDecoder(JsonSchema(ORDER)).decode(pa.array([text], pa.binary()))
    assert (result.faults, result.values.null_count) == ([], 0)


def test_two_wrong_records_that_are_right_together_are_both_faults() -> None:
    texts: list[bytes | None] = [b'{"id":7}'] * 100
    _, faults = decode(ORDER, [*texts, b'{"id":1}{"name":', b'"a"}', *texts])
    assert list(faults) == [100, 101]


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (b'{"id":1,"id":2}', "id", 2),
        (b'{"id":1.0}', "id", 1),
        (b'{"id":1e3}', "id", 1000),
        (b'{"id":9007199254740993.0}', "id", 2**53 + 1),
        (b'{"id":-9.223372036854775807e18}', "id", -(2**63 - 1)),
        (b'{\n"id": 3\n}', "id", 3),
        (b'{"at":"2024-01-01T00:00:00.123456789Z"}', "at", datetime(2024, 1, 1, 0, 0, 0, 123456, UTC)),
        (b'{"unknown":NaN}', "id", None),
        (b'{"price":123456789012345678901234567890}', "price", 1.2345678901234568e29),
    ],
)
def test_values_are_exact_among_others(text: bytes, name: str, value: object) -> None:
    values, faults = decode(ORDER, [*[b'{"id":7}'] * 100, text])
    assert faults == {}
    assert values[100][name] == value


@pytest.mark.parametrize("number", [b"4503599627370497.5", b"1.00000000000000000001", b"9223372036854775808.0"])
def test_number_that_is_no_integer_is_not_rounded_to_one(number: bytes) -> None:
    _, faults = decode(ORDER, [b'{"id":%s}' % number])
    assert faults == {0: "the value at $.id cannot be read as int64"}


def test_types_of_spark_are_read() -> None:
    type_ = pa.struct(
        [("d", pa.decimal128(10, 2)), ("b", pa.binary()), ("m", pa.map_(pa.string(), pa.int64())), ("f", pa.float32())]
    )
    texts: list[bytes | None] = [
        b'{"d":1.10,"b":"AAE=","m":{"x":1,"y":null},"f":0.1}',
        b'{"d":1.123}',
        b'{"b":"?"}',
        b'{"m":[]}',
    ]
    values, faults = decode(type_, texts)
    assert values[0]["d"] == Decimal("1.10")
    assert (values[0]["b"], values[0]["m"]) == (b"\x00\x01", [("x", 1), ("y", None)])
    assert list(faults) == [1, 2, 3]
    assert faults[1] == "the value at $.d cannot be read as decimal128(10, 2)"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"d":1e-77}', None),
        (b'{"d":1.2345678901234567890123456789012345678e-38}', None),
        (b'{"d":1e999999999}', None),
        (b'{"d":-1e-999999999}', None),
        (b'{"d":1234567890}', None),
        (b'{"d":NaN}', None),
        (b'{"d":Infinity}', None),
        (b'{"f":1e39}', None),
        (b'{"f":-3.4028235e38}', {"f": -3.4028234663852886e38}),
        (b'{"i":1e999999999}', None),
        (b'{"i":1e-999999999}', None),
        (b'{"d":0e-999999999,"i":0e-999999999}', {"d": Decimal("0.00"), "i": 0}),
        (b'{"d":1e3,"i":1e3}', {"d": Decimal("1000.00"), "i": 1000}),
        (b'{"d":-1.5000,"i":-1.000}', {"d": Decimal("-1.50"), "i": -1}),
    ],
)
def test_numbers_of_any_exponent_are_exact_or_faults(text: bytes, value: dict[str, object] | None) -> None:
    type_ = pa.struct([("d", pa.decimal128(10, 2)), ("i", pa.int64()), ("f", pa.float32())])
    values, faults = decode(type_, [text])
    assert values == [None if value is None else {"d": None, "i": None, "f": None} | value]
    assert list(faults) == ([0] if value is None else [])


EVERYTHING = pa.struct(
    [
        *ORDER,
        ("small", pa.int8()),
        ("single", pa.float32()),
        ("amount", pa.decimal128(10, 2)),
        ("bytes", pa.binary()),
        ("local", pa.timestamp("us")),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("lists", pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))),
        ("inner", pa.struct([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])),
    ]
)
WITH_TEXTS = pa.struct(
    [*EVERYTHING, ("any", pa.large_string()), ("anys", pa.list_(pa.field("element", pa.large_string())))]
)
ODD_VALUES = [
    *("1", "-0", "1.0", "1.00", "1e3", "1.5", "128", "9223372036854775808", "9007199254740993.0", "1e400", "1e-400"),
    *("0.1", "123456789012345678901234567890", "3.4028236e38", "1e999999999", "NaN", "01", "1.", "+1", "-", "tru"),
    *('"1"', '"a"', '"\\ud800"', '"\\ud83d\\ude00"', '"a\nb"', '"AAE="', "true", "null", "[]", "[1,2.0,null]"),
    *('["x"]', "{}", '{"a":1,"a":2.0}', '{"a":["x",null],"b":null}', '{"a":1.5}', '{"id":1.0,"id":7}', '{"id":"x"}'),
    *('[{"sku":"a","qty":2.0},null]', '[{"qty":1.5}]', '"2024-01-01"', '"2024-02-30"', '"2024-01-01T00:00:00Z"'),
    *('"2024-01-01t00:00:00.1z"', '"2024-01-01T00:00:00.1234567Z"', '"2024-01-01T00:00:00.123456789+05:30"'),
    *('"2024-01-01T00:00:00.123456789"', '"2024-01-01T00:00:00.12345Z9"', '{"at":"2024-01-01T00:00:00.1234567Z"}'),
    *("9" * 5_000, "[" * 2_000 + "]" * 2_000),
]


def odd_record(chance: random.Random) -> bytes | None:
    """Good or malformed, in any way of writing."""
    if chance.random() < 0.1:
        return chance.choice([None, b"", b" ", b"null", b"[]", b"{", b"{}{}", b'"a"', b'{"id":1}x'])
    blanks = chance.choice(["", "", " ", "\n", "\r\n\t"])
    names = chance.choices([*(field.name for field in WITH_TEXTS), "unknown", "ID"], k=chance.randint(0, 4))
    fields = [f'{blanks}"{name}"{blanks}:{blanks}{chance.choice(ODD_VALUES)}' for name in names]
    text = f"{blanks}{{{','.join(fields)}{blanks}}}{blanks}".encode()
    if chance.random() < 0.05:
        text = text[: chance.randint(0, len(text))] + chance.choice([b"", b"\xff", b"}"])
    return text


@pytest.mark.budget
def test_record_is_the_same_alone_and_among_others() -> None:
    count = cases(1_000, 2_000, 100_000)
    chance, decoder = random.Random(3), JsonDecoder(JsonSchema(WITH_TEXTS))
    texts = [odd_record(chance) for _ in range(count)]
    together = decoder.decode(pa.array(texts, pa.binary()))
    together.values.validate(full=True)
    values, causes = together.values.to_pylist(), {fault.row: fault.cause for fault in together.faults}
    assert list(causes) == sorted(causes)
    assert count // 4 < len(causes) < count
    for row, text in enumerate(texts):
        alone = decoder.decode(pa.array([text], pa.binary()))
        assert repr(alone.values.to_pylist()) == repr(values[row : row + 1]), text  # NaN is not equal to itself
        assert [fault.cause for fault in alone.faults] == [cause for cause in [causes.get(row)] if cause], text


@pytest.mark.budget
def test_what_is_read_at_once_is_what_json_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    count = cases(1_000, 2_000, 100_000)
    chance, quick = random.Random(4), JsonDecoder(JsonSchema(EVERYTHING))
    monkeypatch.setattr(json_decoder_module, "_kind", no_kind)
    slow = JsonDecoder(JsonSchema(EVERYTHING))
    values = pa.array([odd_record(chance) for _ in range(count)], pa.binary())
    by_both, by_json = quick.decode(values), slow.decode(values)
    too_long = [fault.row for fault in by_json.faults if b"9" * 5_000 in values[fault.row].as_py()]
    for row in range(count):
        assert repr(by_both.values[row].as_py()) == repr(by_json.values[row].as_py()) or row in too_long, values[row]
    assert [fault for fault in by_both.faults if fault.row not in too_long] == [
        fault for fault in by_json.faults if fault.row not in too_long
    ]


def no_kind(*_: object) -> Any:
    raise ValueError


@pytest.mark.parametrize(
    "write",
    [
        lambda text: text,
        lambda text: text + b"\r\n",
        lambda text: json.dumps(json.loads(text), indent=2).encode(),
        lambda text: text.replace(b'"id":1', b'"id":1.0'),
        lambda text: text.replace(b'00Z"', b'00.1234567Z"'),
        lambda text: text.replace(b'00Z"', b'00.123456789Z"'),
        lambda text: text.replace(b'"tags"', b'"unknown"'),
    ],
)
def test_no_way_to_write_a_good_record_is_left_to_json(
    write: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's `json` takes 20 times as long."""
    text = write(
        b'{"id":1,"name":"a","price":1,"ok":true,"tags":["a",null],"lines":[{"sku":"x","qty":1}],'
        b'"at":"2024-01-01T10:00:00Z","day":"2024-01-01","counts":{"a":1},"inner":{"id":1}}'
    )
    monkeypatch.setattr(json_decoder_module, "json", None)
    values, faults = decode(EVERYTHING, [text, None, text])
    assert faults == {}
    assert [value and value["id"] for value in values] == [1, None, 1]


@pytest.mark.parametrize("text", [b'{"id":1,"counts":{"a":1}}', b"null"])
def test_no_function_of_python_is_called_for_a_good_record(text: bytes) -> None:
    values, decoder, calls = pa.array([text] * 1_000, pa.binary()), JsonDecoder(JsonSchema(EVERYTHING)), []
    sys.setprofile(lambda frame, event, _: calls.append(frame) if event == "call" else None)
    try:
        decoded = decoder.decode(values)
    finally:
        sys.setprofile(None)
    assert decoded.faults == []
    assert len(calls) < len(values)


def test_only_malformed_records_are_left_to_json(monkeypatch: pytest.MonkeyPatch) -> None:
    left = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text, **options: (left.append(text), loads(text, **options))[1])
    malformed = {3: b"{", 7: b'{"id":"x"}', 8: b'{"at":"2024-13-01"}', 90: b'{"counts":{"a":1.5}}', 91: b'{"id":1e99}'}
    texts: list[bytes | None] = [malformed.get(row, b'{"id":1}') for row in range(100)]
    _, faults = decode(EVERYTHING, texts)
    assert list(faults) == list(malformed)
    assert left == [text.decode() for text in malformed.values()]


@pytest.mark.parametrize("name", ['"', "\\", "\n", "", "ä", "f1", "\x7f"])
def test_field_of_any_name_is_read(name: str) -> None:
    type_ = pa.struct([("id", pa.int64()), (name, pa.string())])
    text = json.dumps({"id": 1, name: "a"}).encode()
    assert decode(type_, [text, b"{", text]) == (
        [{"id": 1, name: "a"}, None, {"id": 1, name: "a"}],
        {1: "the text is not valid JSON, is nested too deeply, or has a number too long"},
    )


@pytest.mark.parametrize(
    ("number", "value"),
    [
        *((word, "nan") for word in ("NaN", '"NaN"')),
        *((word, "inf") for word in ("Infinity", '"Infinity"', '"+Infinity"', '"+INF"')),
        *((word, "-inf") for word in ("-Infinity", '"-Infinity"', '"-INF"')),
    ],
)
def test_words_of_from_json_are_numbers(number: str, value: str) -> None:
    type_ = pa.struct([("d", pa.float64()), ("f", pa.float32())])
    values, faults = decode(type_, [b'{"d":1}', f'{{"d":{number},"f":{number}}}'.encode()])
    assert (str(values[1]["d"]), str(values[1]["f"]), faults) == (value, value, {})


def test_byte_order_mark_is_left_out() -> None:
    mark = b"\xef\xbb\xbf"
    values, faults = decode(pa.struct([("id", pa.int64())]), [mark + b'{"id":1}', None, b'{"id":2}', mark, mark + b"{"])
    assert (values, list(faults)) == ([{"id": 1}, None, {"id": 2}, None, None], [3, 4])


def test_top_level_values_need_not_be_objects() -> None:
    assert decode(pa.list_(pa.field("element", pa.int64())), [b"[1, null]", b"{}", None]) == (
        [[1, None], None, None],
        {1: "the value at $ is not of type array"},
    )
    assert decode(pa.map_(pa.string(), pa.int64()), [b'{"a":1}', b"[]", b"null"]) == (
        [[("a", 1)], None, None],
        {1: "the value at $ is not of type object"},
    )


FREE_FORM = pa.struct([("a", pa.large_string()), ("x", pa.float64())])


@pytest.mark.parametrize("neighbour", ["1", "NaN"], ids=["msgspec", "json"])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("true", "true"),
        ("1.50", "1.50"),
        ("12345678901234567890123", "12345678901234567890123"),
        ('"b"', "b"),
        ('""', ""),
        ('"null"', "null"),
        (r'"\u00e9\n\""', 'é\n"'),
        ('{ "b" : [1, -2.50 ,null], "c":{"é": true} }', '{"b":[1,-2.50,null],"c":{"é":true}}'),
        ('[\n"a b",\n{}]', '["a b",{}]'),
    ],
)
def test_value_of_free_form_is_its_text(text: str, value: str | None, neighbour: str) -> None:
    """As for `from_json`, which rewrites numbers."""
    record = f'{{"a":{text},"x":{neighbour}}}'.encode()
    values, faults = decode(FREE_FORM, [record, b'{"x":1}', None, b'{"a":[1}', b'{"a":"\xff"}', b'{"a":"\\ud800"}'])
    assert [row and row["a"] for row in values] == [value, None, None, None, None, None]
    assert list(faults) == [3, 4, 5]


def test_strings_of_sparks_types_are_texts_of_any_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_decoder_module, "json", None)  # which would take long
    schema = parse_json_schema("a STRING, l ARRAY<STRING>, m MAP<STRING, STRING>, s STRUCT<b: STRING>")
    strings = b'{"a":"b","l":["c"],"m":{"k":"d"},"s":{"b":"e"}}'
    text = b'{"a":{"b":1},"l":[1,"x",null,[2]],"m":{"k":1.5,"n":null,"t":"x"},"s":{"b":true}}'
    values, faults = JsonDecoder(schema).decode(pa.array([strings, text, b'{"s":null}'], pa.binary()))
    assert (values.type, faults) == (schema.type, [])
    assert values.to_pylist() == [
        {"a": "b", "l": ["c"], "m": [("k", "d")], "s": {"b": "e"}},
        {
            "a": '{"b":1}',
            "l": ["1", "x", None, "[2]"],
            "m": [("k", "1.5"), ("n", None), ("t", "x")],
            "s": {"b": "true"},
        },
        {"a": None, "l": None, "m": None, "s": None},
    ]


def test_nested_text_of_free_form_is_read_or_a_fault() -> None:
    deep = b"[" * 900 + b"]" * 900
    values, faults = decode(FREE_FORM, [b'{"x":%s,"a":%s}' % (number, deep) for number in (b"1", b"NaN")])
    assert [row is None or row["a"] == deep.decode() for row in values] == [True, True]
    assert all("nested" in cause for cause in faults.values())


def test_rows_of_all_chunks_keep_their_place() -> None:
    rows = CHUNK_ROWS * 2 + 5
    texts: list[bytes | None] = [b"{" if row % 5000 == 7 else b'{"id":%d}' % row for row in range(rows)]
    values, faults = decode(pa.struct([("id", pa.int64())]), texts)
    assert set(faults) == {row for row in range(rows) if row % 5000 == 7}
    assert values == [None if row % 5000 == 7 else {"id": row} for row in range(rows)]
