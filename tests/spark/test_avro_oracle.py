"""Avro values are those of Apache Avro's Java, and their types those of Spark, for random schemas, also damaged values.

A value that Java refuses is refused here. Of what Java reads, this package refuses more; `STRICTER` has the causes.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_type

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.avro.columns import BAD_BOOLEAN, BAD_DECIMAL, BAD_INT, BAD_TEXT, BAD_UNIT
from pyspark_kafka_meta.typed.avro.cursor import BAD_COUNT, BAD_SIZE, BAD_VARINT, TRAILING_BYTES
from pyspark_kafka_meta.typed.avro.decoder import avro_decoder
from pyspark_kafka_meta.typed.avro.schema import AvroSchema, arrow_type, is_nullable, parse_avro
from pyspark_kafka_meta.typed.schemas import Decoded
from tests.spark.avro_oracle import Answer, Question, Read, has_compiler, ours, read_with_java, spark_types, theirs
from tests.spark.avro_wild_pairs import WildPair
from tests.unit.typed.avro.pairs import SchemaPair
from tests.unit.typed.avro.test_mutations import mutated

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
