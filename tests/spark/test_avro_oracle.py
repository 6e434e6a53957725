"""Avro values are those of Apache Avro's Java, and their types those of Spark, for random schemas, also damaged values.

A value that Java refuses is refused here. Of what Java reads, this package refuses more; `STRICTER` has the causes."""

from __future__ import annotations

import base64
import json
import os
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Context
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.pandas.types import from_arrow_type

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.java_launcher import find_java
from pyspark_kafka_meta.typed.avro.columns import BAD_BOOLEAN, BAD_DECIMAL, BAD_INT, BAD_TEXT, BAD_UNIT
from pyspark_kafka_meta.typed.avro.cursor import BAD_COUNT, BAD_SIZE, BAD_VARINT, MAX_EMPTY_ITEMS, TRAILING_BYTES
from pyspark_kafka_meta.typed.avro.decoder import avro_decoder
from pyspark_kafka_meta.typed.avro.schema import (
    Array,
    AvroSchema,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
    arrow_type,
    column_schema,
    is_nullable,
    parse_avro,
)
from pyspark_kafka_meta.typed.formats import Decoded
from tests.unit.typed.avro.pairs import PRIMITIVES, PROMOTED, SchemaPair
from tests.unit.typed.avro.test_mutations import mutated

TIMEOUT_S = 900
WIDE = Context(prec=38)
LIMIT = "-Dorg.apache.avro.limits"
LIMITS = (
    f"{LIMIT}.collectionItems.maxLength={MAX_EMPTY_ITEMS}",
    f"{LIMIT}.bytes.maxLength=1000000",
    f"{LIMIT}.string.maxLength=1000000",
)
"""Without them, Java allocates what a damaged length says."""


@dataclass(frozen=True)
class Question:
    """Values of a writer's schema, to be read with a reader's."""

    writer: str
    reader: str
    values: Sequence[bytes]


@dataclass(frozen=True)
class Read:
    """What Java reads.

    Attributes:
        value: as `AvroOracle.java` writes it; None also after an error.
        bytes_left: after the value.
    """

    value: Any = None
    bytes_left: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Answer:
    """What Java reads of each value. Whether the schemas are refused: then there are no values, or all are errors but
    those of empty arrays and maps."""

    is_refused: bool
    values: Sequence[Read]


def read_with_java(questions: Sequence[Question]) -> list[Answer]:
    lines = [
        {
            "writer": question.writer,
            "reader": question.reader,
            "values": [base64.b64encode(value).decode() for value in question.values],
        }
        for question in questions
    ]
    return [_answer(answer) for answer in _ask_java(lines)]


def spark_types(schemas: Sequence[str]) -> list[tuple[Any, bool]]:
    """The type of each schema, as Spark's JSON, and whether it is nullable."""
    answers = _ask_java([{"schema": schema} for schema in schemas])
    return [(json.loads(answer["type"]), answer["nullable"]) for answer in answers]


def has_compiler() -> bool:
    """Whether Java can run a source file."""
    modules = subprocess.run([find_java(), "--list-modules"], capture_output=True, text=True, timeout=60, check=True)
    return "jdk.compiler" in modules.stdout


def _answer(answer: dict[str, Any]) -> Answer:
    values = [Read(*each) if isinstance(each, list) else Read(**each) for each in answer.get("values", ())]
    return Answer("error" in answer or answer["refused"], values)


def _ask_java(questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    program = Path(__file__).with_name("AvroOracle.java")
    command = [str(find_java()), "-Xmx512m", *LIMITS, "-cp", str(jars), str(program)]
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def ours(value: Any, schema: AvroSchema) -> Any:
    """A decoded scalar of Arrow as a plain value."""
    column = column_schema(schema)
    match column:
        case _ if not value.is_valid:
            return None
        case Union(branches):
            (index,) = (index for index in range(len(branches)) if value[index].is_valid)
            return f"member{index}", ours(value[index], branches[index])
        case Record(fields=fields):
            return [ours(value[index], field.type) for index, field in enumerate(fields)]
        case Array(items):
            return [ours(item, items) for item in value.values]
        case Map(values):
            return [(entry[0].as_py(), ours(entry[1], values)) for entry in value.values]
        case Primitive("float" | "double"):
            return _bits(value.as_py())
        case (Primitive() | Fixed()) as scalar if scalar.logical and scalar.logical.name == "decimal":
            return int(value.as_py().scaleb(scalar.logical.scale, WIDE))
    return value.value if isinstance(value, (pa.Date32Scalar, pa.TimestampScalar)) else value.as_py()


def theirs(value: Any, schema: AvroSchema) -> Any:
    """A value of `AvroOracle.java` as a plain value. Times have the unit of the column.

    Raises:
        ValueError: a string is not UTF-8, a decimal has no bytes or too many digits, or a time does not fit 64 bits.
    """
    match schema:
        case Union(branches):
            index, inner = value
            read, column = theirs(inner, branches[index]), column_schema(schema)
            if read is None or not isinstance(column, Union):
                return read
            return f"member{column.branches.index(branches[index])}", read
        case Record(fields=fields):
            return [theirs(each, field.type) for each, field in zip(value, fields, strict=True)]
        case Array(items):
            return [theirs(item, items) for item in value]
        case Map(values):
            entries = [(bytes.fromhex(key).decode(), theirs(item, values)) for key, item in value]
            last = {key: number for number, (key, _) in enumerate(entries)}  # counts, as in a HashMap
            return [entry for number, entry in enumerate(entries) if last[entry[0]] == number]
        case Primitive() | Fixed():
            return _scalar(value, schema)
    return value


def _scalar(value: Any, schema: Primitive | Fixed) -> Any:
    match schema:
        case (Primitive() | Fixed()) as scalar if scalar.logical and scalar.logical.name == "decimal":
            number = int.from_bytes(bytes.fromhex(value), "big", signed=True)
            if not value or abs(number) >= 10**scalar.logical.precision:
                raise ValueError("decimal")
            return number
        case Primitive("string"):
            return bytes.fromhex(value).decode()
        case Primitive("bytes") | Fixed():
            return bytes.fromhex(value)
        case Primitive("float" | "double"):
            return _bits(struct.unpack(">d", bytes.fromhex(value.rjust(16, "0")))[0])
        case Primitive("long", logical) if logical and logical.name in ("timestamp-millis", "local-timestamp-millis"):
            if not -(2**63) <= value * 1000 < 2**63:
                raise ValueError("time")
            return value * 1000
    return value


def _bits(number: float) -> str:
    return "nan" if number != number else struct.pack(">d", number).hex()


NAMESPACES = ("m", "m", "m", "n", "n.o")
RARE, OFTEN = 0.04, 0.3


class WildPair(SchemaPair):
    """Unions have types of which one can be promoted to the other, and several records that look alike; types move to
    other namespaces, and get other names with or without aliases; aliases collide; fields get other types."""

    def _name(self, kind: str) -> str:
        name = super()._name(kind)
        return name if kind in "fgd" else f"{self._random.choice(NAMESPACES)}.{name}"

    def _union(self, depth: int) -> Any:
        branches: dict[str, Any] = {}
        for _ in range(self._random.randint(2, 5)):
            branch = self._random.choice(PRIMITIVES) if self._chance(OFTEN) else self._no_union(depth)
            branches.setdefault(branch_kind(branch), branch)
            if isinstance(branch, dict) and branch["type"] == "record" and self._chance(OFTEN):
                twin = {**branch, "name": self._renamed(branch["name"])}
                branches.setdefault(branch_kind(twin), json.loads(json.dumps(twin)))
        return list(branches.values())

    def _renamed(self, name: str) -> str:
        """In another namespace or not, with another name or not."""
        namespace, _, short = name.rpartition(".")
        if self._chance(0.7):
            namespace = self._random.choice(NAMESPACES)
        return f"{namespace}.{short}" if self._chance(0.5) else f"{namespace}.{super()._name(short[0])}"

    def _evolved(self, schema: Any) -> Any:
        if self._chance(RARE / 4):
            return self._type(1)
        evolved = super()._evolved(schema)
        if isinstance(evolved, dict) and "name" in evolved and self._chance(2 * RARE):
            was = evolved["name"]
            evolved = {**evolved, "name": self._renamed(was)}
            if self._chance(0.5):
                evolved["aliases"] = [self._random.choice((was, was, was.rpartition(".")[2]))]
        return evolved

    def _evolved_union(self, branches: list[Any]) -> Any:
        evolved = super()._evolved_union(branches)
        if isinstance(evolved, list):
            if self._chance(OFTEN):
                evolved.insert(0, self._random.choice(PROMOTED[self._random.choice(list(PROMOTED))]))
            unique = {branch_kind(branch): branch for branch in evolved}
            if unique.keys() - {"null"} == {"float", "double"}:
                del unique["float"]  # Java would make an int a float, and lose digits
            evolved = list(unique.values())
        return evolved

    def _evolved_record(self, schema: Any) -> Any:
        evolved = super()._evolved_record(schema)
        fields = evolved["fields"]
        if fields and self._chance(RARE):
            alias = self._random.choice(schema["fields"] or fields)["name"]
            self._random.choice(fields).setdefault("aliases", []).append(alias)
        if fields and self._chance(RARE / 2):
            self._random.choice(fields).pop("default", None)
        return evolved


def branch_kind(branch: Any) -> str:
    """Of which a union has one."""
    kind = branch if isinstance(branch, str) else branch["type"]
    return f"{kind} {branch['name']}" if isinstance(branch, dict) and "name" in branch else kind


pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]

PAIRS = int(os.environ.get("KAFKAMETA_AVRO_PAIRS", "300"))
VALUES = 100
SEEDS_AT_ONCE = 250
STRICTER = {
    TRAILING_BYTES: "ignored",
    BAD_TEXT: "damaged characters are replaced when the text is used",
    BAD_BOOLEAN: "false",
    BAD_INT: "the lowest 32 bits",
    BAD_VARINT: "the lowest 64 bits",
    BAD_SIZE: "sizes of blocks are not looked at",
    BAD_COUNT: "-2**63 items end an array, and items without bytes may be any number",
    BAD_DECIMAL: "left to who uses the bytes",
    BAD_UNIT: "units are not converted",
    "the writer": "times and decimals are numbers and bytes; and an empty array has no items that do not fit",
}
"""Causes of faults, with what Java makes of these values. Others must come from what is skipped: Java does not look at
all of it."""
LAXER = ("Invalid int encoding", "expecting union")
"""Errors of Java. It refuses a small int in more than five bytes, and types of unions from another namespace."""
NULL_WITHOUT_DEFAULT = re.compile(r"missing required field (\w+)$")
"""Error of Java for a field that the writer lacks and that has no default: here it is null if it is nullable."""


@dataclass(frozen=True)
class Case:
    """A pair with encoded values, which may be damaged."""

    seed: int
    pair: SchemaPair
    payloads: list[bytes]

    @property
    def question(self) -> Question:
        return Question(json.dumps(self.pair.writer), json.dumps(self.pair.reader), self.payloads)

    def decoded(self) -> Decoded | ValueSchemaError:
        try:
            decoder = avro_decoder(parse_avro(self.question.writer), parse_avro(self.question.reader))
        except ValueSchemaError as error:
            return error
        return decoder.decode(pa.array(self.payloads, pa.binary()))


class Comparison:
    """Of decoded values with those of Java.

    Attributes:
        outcomes: of values, as "same" or the cause of a fault, and of refused pairs.
        problems: differences without a reason.
        skipped: faults that may be in what is skipped, with the value and the writer's schema for both sides.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self.skipped: list[tuple[str, Question]] = []

    def add(self, case: Case, answer: Answer) -> None:
        decoded = case.decoded()
        if answer.is_refused and isinstance(decoded, Decoded) and is_null_without_default(case.pair.reader, answer):
            self.outcomes["null without a default"] += 1
            return
        if answer.is_refused or isinstance(decoded, ValueSchemaError):
            self.outcomes["pair refused"] += 1
            if not answer.is_refused or not isinstance(decoded, ValueSchemaError):
                self.problems.append(f"seed {case.seed}: only one refuses the pair: {decoded}")
            return
        faults = {fault.row: fault.cause for fault in decoded.faults}
        for row, (value, read) in enumerate(zip(decoded.values, answer.values, strict=True)):
            outcome = self._outcome(case, row, value, faults.get(row), read)
            self.outcomes[outcome] += 1

    def _outcome(self, case: Case, row: int, value: pa.Scalar, fault: str | None, read: Read) -> str:
        if fault and read.error:
            return "fault"
        if fault:
            known = [cause for cause in STRICTER if cause in fault]
            if not known:
                writer = case.question.writer
                self.skipped.append((fault, Question(writer, writer, [case.payloads[row]])))
            return known[0] if known else "fault in what is skipped"
        if read.error:
            known = [error for error in LAXER if error in read.error]
        else:
            is_same = not read.bytes_left and plain(read, case) == ours(value, parse_avro(case.question.reader))
            known = ["same"] if is_same else []
        if not known:
            self.problems.append(f"seed {case.seed}, row {row}: {case.payloads[row]!r} is {value} and {read}")
        return known[0] if known else "different"

    def finish(self) -> None:
        answers = read_with_java([question for _, question in self.skipped])
        for (fault, question), answer in zip(self.skipped, answers, strict=True):
            if not answer.values[0].error and not answer.values[0].bytes_left:
                self.problems.append(f"{fault}: Java reads {question.values[0]!r} of {question.writer}")


def is_null_without_default(reader: Any, answer: Answer) -> bool:
    """Whether Java refuses a pair because of a field of the reader that may be null."""
    missing = NULL_WITHOUT_DEFAULT.search(answer.values[0].error or "")
    if isinstance(reader, list):
        return any(is_null_without_default(each, answer) for each in reader)
    if not missing or not isinstance(reader, dict):
        return False
    is_field = reader.get("name") == missing[1] and isinstance(reader["type"], list) and "null" in reader["type"]
    return is_field or any(is_null_without_default(part, answer) for part in reader.values())


def plain(read: Read, case: Case) -> Any:
    """A value of Java, or why it is none of Spark's."""
    try:
        return theirs(read.value, parse_avro(json.dumps(in_writers_units(case.pair.reader))))
    except ValueError as error:
        return error


def in_writers_units(schema: Any) -> Any:
    """The reader's schema with the units of the numbers that Java reads."""
    if isinstance(schema, list):
        return [in_writers_units(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: in_writers_units(part) for name, part in schema.items()}
    return {**parts, "logicalType": parts["was"]} if "was" in parts else parts


def cases(kind: type[SchemaPair], damage: Callable[[bytes, Random], bytes], values: int) -> Iterator[list[Case]]:
    """Of all seeds, a part at a time."""
    for first in range(0, PAIRS, SEEDS_AT_ONCE):
        part = []
        for seed in range(first, min(first + SEEDS_AT_ONCE, PAIRS)):
            pair, random = kind(seed), Random(seed)
            part.append(Case(seed, pair, [damage(pair.payload(), random) for _ in range(values)]))
        yield part


def compared(kind: type[SchemaPair], damage: Callable[[bytes, Random], bytes], values: int) -> Comparison:
    comparison = Comparison()
    for part in cases(kind, damage, values):
        for case, answer in zip(part, read_with_java([each.question for each in part]), strict=True):
            comparison.add(case, answer)
    comparison.finish()
    return comparison


@pytest.fixture(scope="module", autouse=True)
def compiler(go_without: Callable[[str], NoReturn]) -> None:
    if not has_compiler():
        go_without("without a JDK, whose compiler runs AvroOracle.java")


@pytest.mark.parametrize("kind", [SchemaPair, WildPair])
def test_values_are_those_of_java(kind: type[SchemaPair]) -> None:
    comparison = compared(kind, lambda payload, random: payload, VALUES)

    assert comparison.problems == []
    assert comparison.outcomes["same"] > 0.75 * comparison.outcomes.total()


@pytest.mark.parametrize("kind", [SchemaPair, WildPair])
def test_damaged_values_are_faults_or_those_of_java(kind: type[SchemaPair]) -> None:
    comparison = compared(kind, mutated, VALUES // 5)

    assert comparison.problems == []
    assert comparison.outcomes["same"] > 0.05 * comparison.outcomes.total()


@pytest.mark.parametrize("kind", [SchemaPair, WildPair])
def test_types_are_those_of_spark(kind: type[SchemaPair]) -> None:
    parsed: dict[str, AvroSchema] = {}
    for seed in range(PAIRS):
        with suppress(ValueSchemaError):  # some wild schemas define a type twice: no pair with them is compared above
            reader = json.dumps(kind(seed).reader)
            parsed[reader] = parse_avro(reader)
    readers, schemas = [*parsed], [*parsed.values()]
    assert len(readers) > 0.9 * PAIRS
    given = [json.loads(from_arrow_type(arrow_type(schema), prefer_timestamp_ntz=True).json()) for schema in schemas]

    expected = [(without_known_differences(kind), nullable) for kind, nullable in spark_types(readers)]

    assert list(zip(map(without_known_differences, given), map(is_nullable, schemas), strict=True)) == expected


def without_known_differences(kind: Any) -> Any:
    """Times are numbers here, as in Spark before 4.2. A union of null alone is no struct without fields here."""
    if isinstance(kind, dict):
        if kind.get("type") == "struct" and not kind["fields"]:
            return "void"
        return {name: without_known_differences(part) for name, part in kind.items()}
    if isinstance(kind, list):
        return [without_known_differences(part) for part in kind]
    return "long" if kind == "time(6)" else kind
