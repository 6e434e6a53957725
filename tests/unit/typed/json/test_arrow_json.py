"""Arrow reads a chunk of JSON texts as they are read one by one, or leaves it."""

from __future__ import annotations

import base64
import json
from datetime import UTC
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafka_meta.typed.formats import Decoded
from pyspark_kafka_meta.typed.json.arrow_json import MAX_PAUSE, ArrowJsonReader
from pyspark_kafka_meta.typed.json.decoder import JsonDecoder
from pyspark_kafka_meta.typed.json.schema import JsonSchema
from tests.budget import cases

LEFT = b"["
"""With this one, a chunk is left."""
NAMES = ("id", "name", "Id", "", "é", 'a"b', "a\\b", "a\nb", "a.b", "element")
UNKNOWN = ("x", "ID", "idd")
LEAVES = {
    pa.bool_(): st.sampled_from(["true", "false"]),
    **{
        pa.type_for_alias(f"int{bits}"): st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(str)
        for bits in (8, 16, 32, 64)
    },
    pa.float32(): st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda x: json.dumps(x + 0.0)),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False).map(lambda x: json.dumps(x + 0.0))  # no -0.0
    | st.integers().map(str),
    **dict.fromkeys(
        (pa.string(), pa.large_string()),
        st.builds(lambda text, is_ascii: json.dumps(text, ensure_ascii=is_ascii), st.text(), st.booleans()),
    ),
    pa.binary(): st.binary().map(lambda data: json.dumps(base64.b64encode(data).decode())),
    pa.decimal256(5, 2): st.integers(-99_999, 99_999).map(
        lambda number: json.dumps(base64.b64encode(number.to_bytes(3, "big", signed=True)).decode())
    ),
    pa.date32(): st.dates().map(lambda day: f'"{day}"'),
    pa.date64(): st.integers(-700_000, 2_000_000).map(str),
    pa.timestamp("ms"): st.integers(-(10**13), 10**14).map(str),
    pa.timestamp("us"): st.datetimes().map(lambda time: f'"{time.isoformat()}"'),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)).map(lambda time: f'"{time.isoformat()}"'),
}
ODD = (
    *("1.0", "-0", "-0.0", "1e2", "1e999", "99e307", "1e-400", "01", "NaN", "-NaN", "Inf", "[-Inf ]", "Infinity"),
    *('"NaN"', '"a NaN, b"', '"\\ud800"', '"\\udc00"', '"\\u0000"', '"\\/"', '"A==="', '"AA=A"', '"AB=="', '"é==="'),
    *("{}", "[]", "[null]", "[[1]]", '{"id":1,"id":2}', '{"x":1,"x":2}', "null", "true", '"a\nb"', "9" * 400),
    *("[" * 60 + "]" * 60, "[" * 1_500 + "]" * 1_500, '"2024-02-30"', '"2024-01-01T00:00:00.1234567z"'),
)
ANY = st.recursive(
    st.sampled_from(ODD), lambda inner: st.lists(inner, max_size=2).map(lambda items: f"[{','.join(items)}]")
)
BLANKS = st.sampled_from(["", "", " ", "\n", "\r\n\t"])


def kinds() -> st.SearchStrategy[pa.DataType]:
    def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        return inner.map(lambda kind: pa.list_(pa.field("element", kind))) | structs(inner)

    return structs(st.recursive(st.sampled_from(list(LEAVES)), nested, max_leaves=4))


def structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=5).map(
        lambda members: pa.struct(list(members.items()))
    )


def text_of(draw: Any, kind: pa.DataType, odd: int) -> str:
    """Of a value.

    Args:
        odd: percent of the values that may have another type, or be no JSON.
    """
    chance = draw(st.integers(0, 99))
    if chance < odd:
        return str(draw(ANY))
    if chance > 90:
        return "null"
    if pa.types.is_list(kind):
        return f"[{','.join(text_of(draw, kind.value_type, odd) for _ in range(draw(st.integers(0, 2))))}]"
    return object_of(draw, kind, odd) if pa.types.is_struct(kind) else str(draw(LEAVES[kind]))


def object_of(draw: Any, kind: pa.DataType, odd: int) -> str:
    chosen = draw(st.lists(st.sampled_from([*kind.names, *UNKNOWN]), unique=not odd, max_size=6))
    blank = draw(BLANKS)
    members = []
    for name in chosen:
        value = text_of(draw, kind.field(name).type, odd) if name in kind.names else json.dumps(draw(st.text()))
        members.append(f"{blank}{json.dumps(name, ensure_ascii=draw(st.booleans()))}{blank}:{blank}{value}{blank}")
    return f"{{{','.join(members) or blank}}}"


@st.composite
def chunks(draw: Any, odd: int = 0) -> tuple[pa.DataType, list[bytes | None]]:
    kind = draw(kinds())
    texts: list[bytes | None] = []
    for _ in range(draw(st.integers(1, 4))):
        text = bytearray(object_of(draw, kind, draw(st.sampled_from([0, odd]))).encode())
        if odd and draw(st.integers(0, 3)) == 0:
            at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 3))
            text[at : at + length] = draw(st.sampled_from([b"", b"}{", b"\0", b"\xff", b'"', b"NaN", b"}\n{", b"\\"]))
        texts.append(draw(st.sampled_from([bytes(text)] * 9 + [None])))
    return kind, texts


def decoded(kind: pa.DataType, texts: list[bytes | None]) -> Decoded:
    found = JsonDecoder(JsonSchema(kind)).decode(pa.array(texts, pa.binary()))
    found.values.validate(full=True)
    return found


def assert_equal(kind: pa.DataType, texts: list[bytes | None]) -> None:
    at_once, one_by_one = decoded(kind, texts), decoded(kind, [*texts, LEFT])
    assert at_once.values.type == one_by_one.values.type
    assert at_once.values.equals(one_by_one.values[:-1])
    assert repr(at_once.values.to_pylist()) == repr(one_by_one.values[:-1].to_pylist())  # 0.0 equals -0.0
    assert at_once.faults == one_by_one.faults[:-1]


@pytest.mark.budget
@settings(max_examples=cases(50, 200, 5_000))
@given(chunks())
def test_usual_texts_are_read_at_once(chunk: tuple[pa.DataType, list[bytes | None]]) -> None:
    kind, texts = chunk
    assert ArrowJsonReader(kind).read(pa.array(texts, pa.binary())) is not None
    assert_equal(kind, texts)


@pytest.mark.budget
@settings(max_examples=cases(50, 200, 5_000))
@given(chunks(odd=10))
def test_other_texts_are_equal_or_left(chunk: tuple[pa.DataType, list[bytes | None]]) -> None:
    assert_equal(*chunk)


ROW = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("single", pa.float32()),
        ("data", pa.binary()),
        ("total", pa.decimal256(5, 2)),
        ("days", pa.list_(pa.field("element", pa.date32()))),
    ]
)
GOOD = b'{"id":1,"name":"a","data":"AAE=","days":["2024-01-31",null]}'


def is_read(*texts: bytes | None, kind: pa.DataType = ROW) -> bool:
    return ArrowJsonReader(kind).read(pa.array(texts, pa.binary())) is not None


@pytest.mark.parametrize(
    "text",
    [
        b' {"id":1}',
        b'{"id":1} ',
        b"null",
        b'{"id":1}{"id":2}',
        b'{"id":1}\0}',
        b'{"x":Inf}',
        b'{"x":[1, -NaN]}',
        b'{"x":\t-Infinity\n}',
        b'{"x":' + b"[" * 600 + b"]" * 600 + b"}",
        b'{"x":' + b'{"":' * 2_000 + b"1" + b"}" * 2_000 + b"}",
        b'{"name":"\\ud800"}',
        b'{"name":"\\udc00"}',
        b'{"price":99e307}',
        b'{"single":1e39}',
        b'{"price":-0}',
        b'{"single":-0}',
        b'{"data":"AB="}',
        b'{"data":"A"}',
        b'{"data":"A==="}',
        b'{"data":"=AAA"}',
        b'{"data":"AA=A"}',
        b'{"data":"AA==AA=="}',
        b'{"data":"AA-_"}',
        b'{"data":"AAAA----"}',
        b'{"data":"\\u00c3\\u00a9AA"}',
        b'{"id":"1"}',
        b'{"name":1}',
        b'{"id":1,"id":2}',
    ],
    ids=count(),
)
def test_a_chunk_with_one_of_these_is_left(text: bytes) -> None:
    assert is_read(GOOD, None)
    assert not is_read(GOOD, text)
    assert_equal(ROW, [GOOD, text])


@pytest.mark.parametrize(
    "text",
    [
        b'{"name":"1, NaN, Information","data":"NaNa"}',
        b'{"name":"\\u0000\\ud83d\\ude00\\/"}',
        b'{"x":"' + b"[" * 2_000 + b'"}',
        b'{"data":"","total":""}',
        b'{"single":1.00000005960464477539062500001}',
        b'{"data":"AB==","total":"AYaf"}',
        b'{"total":"AYag"}',
        b'{"price":-0.0,"single":-1e-50}',
        b'{"days":["2024-02-30","2024-02-28"]}',
        b'{"x":[1,{"id":2}],"x":null,"\\u0069d":3}',
    ],
)
def test_these_are_read_as_one_by_one(text: bytes) -> None:
    assert_equal(ROW, [GOOD, None, text, GOOD])


def test_a_million_brackets_are_left() -> None:
    assert not is_read(b'{"x":' + b"[" * 10**6 + b"]" * 10**6 + b"}")


def test_texts_that_are_base64_together_alone_are_left() -> None:
    texts: list[bytes | None] = [b'{"data":"A"}', b'{"data":"AAA"}']
    assert not is_read(*texts)
    assert_equal(ROW, texts)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.list_(ROW), b"{}"),
        (pa.struct([("id", pa.int64()), ("id", pa.int64())]), b'{"id":1}'),
        (pa.struct([("m", pa.map_(pa.string(), pa.int64()))]), b'{"m":[{"key":"a","value":1}]}'),
        (pa.struct([("l", pa.list_(pa.struct([("d", pa.decimal128(5, 2))])))]), b'{"l":[{"d":"1.50"}]}'),
    ],
)
def test_kinds_of_another_form_are_left(kind: pa.DataType, text: bytes) -> None:
    assert not is_read(text, kind=kind)


def test_chunks_are_tried_seldom_after_refused_ones_and_always_after_a_read_one() -> None:
    reader, good, bad = ArrowJsonReader(ROW), pa.array([GOOD], pa.binary()), pa.array([LEFT], pa.binary())
    assert reader.read(bad) is None
    assert [reader.read(good) is None for _ in range(4)] == [True, False, False, False]
    for _ in range(2 * MAX_PAUSE + 1):  # of which the last one is tried
        assert reader.read(bad) is None
    assert [reader.read(good) is None for _ in range(MAX_PAUSE + 2)] == [True] * MAX_PAUSE + [False] * 2
