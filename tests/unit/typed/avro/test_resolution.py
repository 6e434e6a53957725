"""Values of a writer's schema become columns of a reader's schema as Avro's rules say."""

from __future__ import annotations

import io
import json
import math
import random
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.avro import Avro
from pyspark_kafka_meta.typed.avro.decoder import avro_decoder
from pyspark_kafka_meta.typed.avro.schema import arrow_type, bounded, parse_avro
from pyspark_kafka_meta.typed.formats import Decoded, SchemaText, ValueDecoder
from tests.unit.typed.avro.written import long, sized

LATIN = {"type": "fixed", "name": "n.F", "size": 2}


def field(name: str, kind: Any, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **attributes}


def record(*fields: dict[str, Any], name: str = "R", **attributes: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


def map_of(values: str) -> dict[str, Any]:
    return {"type": "map", "values": values}


def enum(*symbols: str, **attributes: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **attributes}


def logical(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "logicalType": name}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def decoder(writer: Any, reader: Any) -> ValueDecoder:
    return avro_decoder(parse_avro(json.dumps(writer)), parse_avro(json.dumps(reader)))


def decoded(writer: Any, reader: Any, *values: bytes) -> Decoded:
    return decoder(writer, reader).decode(pa.array(values, pa.binary()))


A, B = field("a", "int"), field("b", "int")


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("int", "long", long(5), 5),
        ("int", "float", long(2**24 + 1), 2.0**24),
        ("int", "double", long(2**24 + 1), 2.0**24 + 1),
        ("long", "float", long(-3), -3.0),
        ("long", "double", long(2**62), 2.0**62),
        ("float", "double", struct.pack("<f", 0.1), struct.unpack("<f", struct.pack("<f", 0.1))[0]),
        ("string", "bytes", sized(b"a"), b"a"),
        ("bytes", "string", sized(b"a"), "a"),
        ("int", ["null", "long"], long(5), 5),
        ("null", ["null", "long"], b"", None),
        (["null", "int"], "long", long(1) + long(5), 5),
        (["int", "string"], ["string", "null", "int"], long(0) + long(5), {"member0": None, "member1": 5}),
        ("int", ["double", "string", "int"], long(5), {"member0": None, "member1": None, "member2": 5}),
        ("int", ["string", "double", "long"], long(5), {"member0": None, "member1": 5.0, "member2": None}),
        ("string", ["bytes", "string"], sized(b"a"), {"member0": None, "member1": "a"}),
        ("bytes", ["string", "int"], sized(b"a"), {"member0": "a", "member1": None}),
        (["int", "long"], "long", long(0) + long(5), 5),
        ("long", ["int", "long"], long(5), 5),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, long(1) + long(5) + b"\0", [5]),
        (map_of("int"), map_of("double"), long(1) + sized(b"a") + long(5) + b"\0", [("a", 5.0)]),
        (LATIN, {**LATIN, "name": "m.F"}, b"ab", b"ab"),
        (LATIN, {**LATIN, "name": "G", "aliases": ["n.F"]}, b"ab", b"ab"),
        (enum("A", "B"), enum("B", "C"), long(1), "B"),
        (enum("A", "B"), enum("B", "C", default="C"), long(0), "C"),
        (record(A), record(field("a", "int"), name="Other"), long(5), {"a": 5}),
        (record(A, B), record(B, A), long(1) + long(2), {"b": 2, "a": 1}),
        (record(field("a", "string"), field("b", "int")), record(field("b", "int")), sized(b"a") + long(2), {"b": 2}),
        (record(A), record(field("b", "int", aliases=["x", "a"])), long(1), {"b": 1}),
        (record(A), record(field("b", "int", aliases=["a"]), field("a", "int", default=7)), long(1), {"b": 1, "a": 7}),
        (record(A), record(field("b", "int", aliases=["a"], default=7), name="Other"), long(1), {"b": 7}),
        (record(A), record(field("b", "int", aliases=["a"]), name="Other", aliases=["R"]), long(1), {"b": 1}),
        (*2 * (record(field("a", "int"), field("b", "int", aliases=["a"])),), long(1) + long(2), {"a": 1, "b": 2}),
        ("int", [record(name="m.R"), "float", "double"], long(5), {"member0": None, "member1": 5.0, "member2": None}),
        ("long", ["string", "float", "int"], long(2**24 + 1), {"member0": None, "member1": 2.0**24, "member2": None}),
        (record(), record(field("a", ["null", "int"], default=None)), b"", {"a": None}),
        (record(), record(field("a", "bytes", default="\u00ff")), b"", {"a": b"\xff"}),
        (record(), record(field("a", "float", default="-Infinity")), b"", {"a": -math.inf}),
        (record(), record(field("a", "double", default="0.5")), b"", {"a": 0.5}),
        (record(), record(field("a", ["null", "int"]), field("b", ["string", "null"])), b"", {"a": None, "b": None}),
        (decimal(4, 1), decimal(6, 3), sized(b"\xfe"), Decimal("-0.200")),
        (decimal(9, 0), decimal(4, 4), sized(b"\0"), Decimal("0.0000")),
        (record(), record(field("a", decimal(4, 2), default="\u0001\u0000")), b"", {"a": Decimal("2.56")}),
        (record(), record(field("a", {"type": "array", "items": "int"}, default=[1, 2])), b"", {"a": [1, 2]}),
        (record(), record(field("a", ["int", "string"], default="x")), b"", {"a": {"member0": None, "member1": "x"}}),
        (
            record(),
            record(field("a", record(field("b", "int", default=3), name="S"), default={})),
            b"",
            {"a": {"b": 3}},
        ),
    ],
)
def test_a_value_is_resolved(writer: Any, reader: Any, value: bytes, expected: Any) -> None:
    result = decoded(writer, reader, value, value)

    assert (result.values.to_pylist(), result.faults) == ([expected] * 2, [])


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), 5, 5000),
        (logical("long", "timestamp-micros"), logical("long", "timestamp-millis"), 5, 5),
        (logical("long", "timestamp-nanos"), logical("long", "timestamp-millis"), -5001, -6),
        (logical("long", "timestamp-millis"), logical("long", "timestamp-nanos"), 5, 5_000_000),
        (logical("long", "timestamp-millis"), logical("long", "local-timestamp-micros"), 5, 5000),
        (logical("int", "time-millis"), logical("long", "time-micros"), 5, 5000),
        ("long", logical("long", "timestamp-millis"), 5, 5000),
        (logical("long", "timestamp-millis"), "long", 5, 5),
        (logical("int", "date"), "int", 5, 5),
        (logical("long", "timestamp-millis"), "double", 5, 5.0),
    ],
)
def test_a_time_keeps_its_meaning(writer: Any, reader: Any, value: int, expected: float) -> None:
    result = decoded(writer, reader, long(value))
    numbers = result.values
    if pa.types.is_timestamp(numbers.type):
        numbers = numbers.cast(pa.int64())

    assert (numbers.to_pylist(), result.faults) == ([expected], [])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("null", b""),
        ("boolean", b"\1"),
        ("long", long(2**40)),
        ("double", bytes(8)),
        ("string", sized(b"a")),
        (LATIN, b"ab"),
        (enum("A"), long(0)),
        (["null", "string", "int"], long(1) + sized(b"a")),
        ({"type": "array", "items": "double"}, long(1) + bytes(8) + b"\0"),
        ({"type": "array", "items": "string"}, long(1) + sized(b"a") + b"\0"),
        ({"type": "map", "values": ["null", "int"]}, long(1) + sized(b"a") + long(0) + b"\0"),
        (record(field("b", "int"), field("c", "string"), name="S"), long(1) + sized(b"a")),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50}, sized(b"a")),
    ],
)
def test_a_field_that_the_reader_lacks_is_skipped(kind: Any, value: bytes) -> None:
    result = decoded(record(field("a", kind), field("z", "int")), record(field("z", "int")), *[value + long(7)] * 40)

    assert (result.values.to_pylist(), result.faults) == ([{"z": 7}] * 40, [])


@pytest.mark.parametrize(
    ("writer", "reader", "problem"),
    [
        ("string", "int", "the writer's string cannot be read as int"),
        ("long", "int", "the writer's long cannot be read as int"),
        (["null", "string"], "int", "the writer's null cannot be read as int"),
        ("string", ["null", "int"], "the writer's string cannot be read as int"),
        ("boolean", ["string", "int"], "no branch of the reader's union can have the writer's boolean"),
        (LATIN, {**LATIN, "size": 3}, r"the writer's fixed n\.F cannot be read as fixed n\.F"),
        (LATIN, {**LATIN, "name": "G"}, r"the writer's fixed n\.F cannot be read as fixed G"),
        (enum("A"), enum("A", name="X"), "the writer's enumeration E cannot be read as enumeration X"),
        (logical("int", "date"), logical("long", "timestamp-millis"), "date cannot be read as timestamp-millis"),
        (decimal(4, 2), decimal(4, 1), "the writer's decimal has 2 digits after the point, the reader's 1"),
        ("string", decimal(4, 2), "the writer's string cannot be read as decimal"),
        (decimal(4, 2), "string", "the writer's decimal cannot be read as string"),
        (
            record(field("a", "int"), field("b", "int")),
            record(field("b", "int", aliases=["a"])),
            "two fields of the writer's record 'R' are the same",
        ),
        ([enum("A"), enum("A", name="X")], [enum("A", aliases=["X"]), "null"], "two types in a union of the writer"),
        (logical("int", "date"), ["string", logical("long", "timestamp-millis"), "double"], "date cannot be read as"),
        (
            record(field("a", "int"), name="m.R"),
            [record(field("a", "string"), name="m.R"), record(field("a", "int"), name="n.R")],
            "field 'a': the writer's int cannot be read as string",
        ),
        (record(), record(field("a", "int")), "field 'a': the writer lacks the field, and the reader has no default"),
        (record(), record(field("a", "int", default="x")), "field 'a': the default does not have the field's type"),
        (record(), record(field("a", decimal(1, 0), default="\u00ff\u0000")), "field 'a': the default is wrong"),
        (
            record(field("a", {"type": "array", "items": record(field("b", "int"), name="S")})),
            record(field("a", {"type": "array", "items": record(field("b", "string"), name="S")})),
            r"field 'a\.element\.b': the writer's int cannot be read as string",
        ),
        (map_of("int"), map_of("string"), "field 'value': the writer's int"),
        (decimal(39, 39), decimal(39, 39), "39 digits"),
    ],
)
def test_an_impossible_pair_is_refused_with_the_path(writer: Any, reader: Any, problem: str) -> None:
    with pytest.raises(ValueSchemaError, match=problem):
        decoder(writer, reader)


@pytest.mark.parametrize(
    ("writer", "reader", "good", "bad", "cause"),
    [
        (["int", "string"], "int", long(0) + long(5), long(1) + sized(b"a"), "the writer's string cannot be read as i"),
        (["null", "int"], "int", long(1) + long(5), long(0), "the writer's null cannot be read as int"),
        (enum("A", "B"), enum("B"), long(1), long(0), "a symbol that is not in the schema"),
        ("bytes", "string", sized(b"a"), sized(b"\xff"), "not UTF-8"),
        (decimal(4, 0), decimal(5, 2), sized(b"\3\xe7"), sized(b"\3\xe8"), "more digits than its type"),
        (
            record(field("z", "int"), name="C"),
            [record(field("x", ["null", "int"]), name="A"), record(field("z", "int"), name="B"), "string"],
            long(1),
            long(1) + b"\0",
            "bytes follow the last field",
        ),
    ],
)
def test_value_that_a_reader_lacks_is_a_fault(writer: Any, reader: Any, good: bytes, bad: bytes, cause: str) -> None:
    result = decoded(writer, reader, good, bad, good)

    assert [(fault.row, cause in fault.cause) for fault in result.faults] == [(1, True)]
    assert result.values.is_valid().to_pylist() == [True, False, True]


def test_members_have_the_names_of_their_types_in_any_order() -> None:
    reader, _ = bounded(
        parse_avro(json.dumps(["null", "int", record(name="n.Order"), {"type": "map", "values": "int"}])), 1, True
    )
    writer = parse_avro(json.dumps([record(name="n.Order"), "int"]))
    result = avro_decoder(writer, reader).decode(pa.array([long(1) + long(5), long(0)]))

    assert result.values.to_pylist() == [
        {"member_int": 5, "member_Order": None, "member_map": None},
        {"member_int": None, "member_Order": {}, "member_map": None},
    ]
    same, _ = bounded(parse_avro(json.dumps(["int", record(name="n.Int")])), 1, True)
    with pytest.raises(ValueSchemaError, match="two types of an Avro union have the same name"):
        arrow_type(same)


TREE = record(
    field("id", "int"),
    field("next", ["null", "n.Tree"]),
    field("kids", {"type": "array", "items": "n.Tree"}),
    field("named", {"type": "map", "values": ["null", "n.Tree"]}),
    field("any", ["null", "string", "n.Tree", "int"]),
    field("end", "string"),
    name="n.Tree",
)


MEMBERS = ("member0", "member1", "member2")


def random_tree(chance: random.Random, depth: int) -> dict[str, Any]:
    def some(count: int) -> list[Any]:
        return [random_tree(chance, depth - 1) for _ in range(chance.randint(0, count))] if depth else []

    any_of = chance.choice([None, "s", 5, *(("n.Tree", tree) for tree in some(1))])
    named = {f"k{index}": tree for index, tree in enumerate(some(2))}
    return {
        "id": depth,
        "next": next(iter(some(1)), None),
        "kids": some(2),
        "named": {**named, "none": None},
        "any": any_of,
        "end": "x" * chance.randint(0, 3),
    }


def cut_tree(tree: dict[str, Any], depth: int) -> dict[str, Any]:
    """The columns with so many levels."""
    kind = tree["any"]
    members: dict[str, Any] = dict.fromkeys(MEMBERS[:2] if depth == 1 else MEMBERS)
    if isinstance(kind, str):
        members["member0"] = kind
    elif isinstance(kind, int):
        members[list(members)[-1]] = kind
    elif kind is not None and depth > 1:
        members["member1"] = cut_tree(kind[1], depth - 1)
    has_any = kind is not None and not (isinstance(kind, tuple) and depth == 1)
    shown = {"id": tree["id"], "any": members if has_any else None, "end": tree["end"]}
    if depth == 1:
        return shown
    deeper = {
        "next": None if tree["next"] is None else cut_tree(tree["next"], depth - 1),
        "kids": [cut_tree(kid, depth - 1) for kid in tree["kids"]],
        "named": [(key, None if each is None else cut_tree(each, depth - 1)) for key, each in tree["named"].items()],
    }
    return {**shown, **deeper}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_recursive_type_is_read_as_deep_as_the_option_says(depth: int) -> None:
    """Also as another name, by an alias."""
    chance = random.Random(depth)
    trees = [random_tree(chance, chance.randint(0, 4)) for _ in range(50)]
    written = fastavro.parse_schema(json.loads(json.dumps(TREE)))
    payloads = []
    for tree in trees:
        fastavro.schemaless_writer(data := io.BytesIO(), written, tree)
        payloads.append(data.getvalue())
    writer = parse_avro(json.dumps(TREE))
    for text in (json.dumps(TREE), json.dumps({**TREE, "aliases": ["n.Tree"]}).replace('"n.Tree"', '"n.New"')):
        reader, _ = bounded(parse_avro(text.replace('"aliases": ["n.New"]', '"aliases": ["n.Tree"]')), depth)
        result = avro_decoder(writer, reader).decode(pa.array(payloads))
        assert result.faults == []
        assert result.values.to_pylist() == [cut_tree(tree, depth) for tree in trees]


def test_a_recursive_field_that_nobody_reads_is_skipped_to_a_depth() -> None:
    writer = record(field("n", ["null", "L"]), field("kids", {"type": "array", "items": "L"}), name="L")
    leaf = b"\0\0"

    def nested(count: int) -> bytes:
        return long(1) * count + leaf + b"\0" * count

    reader = record(name="L")
    result = decoded(writer, reader, nested(3), nested(60), nested(70), b"\0" + long(1) + nested(2) + b"\0", leaf)
    assert [(fault.row, fault.cause) for fault in result.faults] == [
        (2, "field 'n': a recursive record has more than 64 levels")
    ]


def test_cause_names_the_field_once() -> None:
    items, text = {"type": "array", "items": ["int", "string"]}, long(1) + long(1) + sized(b"a") + long(0)
    (fault,) = decoded(record(field("a", items)), record(field("a", {**items, "items": "int"})), text).faults

    assert fault.cause == "field 'a.element': the writer's string cannot be read as int"


def test_any_nan_of_a_float_is_a_double() -> None:
    result = decoded("float", "double", bytes.fromhex("0100807f"))

    assert math.isnan(result.values[0].as_py())


@pytest.mark.parametrize(
    ("names", "chosen"),
    [(("m.R", "n.R"), 1), (("m.X", "o.R", "p.R", "m.Y"), 2), (("m.X", "m.Y"), 0)],
    ids=["full name", "last of the same short name", "first that fits"],
)
def test_a_record_is_read_as_the_branch_that_java_chooses(names: tuple[str, ...], chosen: int) -> None:
    branches = [record(field("a", "string"), name="m.Unfit"), *(record(field("a", "int"), name=name) for name in names)]

    result = decoded(record(field("a", "int"), name="n.R"), branches, long(1))

    assert result.values[0].as_py()[f"member{chosen + 1}"] == {"a": 1}


def optional(kind: Any) -> list[Any]:
    return ["null", kind]


@pytest.mark.parametrize(
    ("given", "own", "encoded", "read"),
    [
        (optional("long"), optional("string"), long(1) + long(5), None),
        ("long", optional("string"), long(5), None),
        (optional("string"), optional("long"), long(1) + sized(b"6.28"), None),
        (optional(record(A, name="S")), optional("string"), long(1) + long(5), None),
        (optional("int"), optional("long"), long(1) + long(5), 5),
        (optional("int"), optional("long"), long(0), None),
    ],
)
@pytest.mark.parametrize("is_optional", [False, True])
def test_a_lenient_field_of_another_type_is_null(
    given: Any, own: Any, encoded: bytes, read: Any, is_optional: bool
) -> None:
    """Fields of a connector's source got other types in later versions."""

    def of(kind: Any) -> str:
        source = record(field("scn", kind), field("db", "string"), name="Source")
        return json.dumps(record(field("source", optional(source) if is_optional else source), field("op", "string")))

    reader, writer = Avro(SchemaText(of(own), lenient_fields=("source",))), Avro(SchemaText(of(given)))
    value = (long(1) if is_optional else b"") + encoded + sized(b"d") + sized(b"c")

    found = reader.decoder(writer, True).decode(pa.array([value]))

    assert (found.values.to_pylist(), found.faults) == ([{"source": {"scn": read, "db": "d"}, "op": "c"}], [])


def test_a_field_that_is_not_lenient_keeps_its_fault() -> None:
    after = [record(field("after", record(field("a", optional(kind)), name="V"))) for kind in ("string", "long")]
    reader, writer = (Avro(SchemaText(json.dumps(each), lenient_fields=("source",))) for each in after)

    assert reader.decoder(writer, True).decode(pa.array([long(1) + long(5)])).faults
