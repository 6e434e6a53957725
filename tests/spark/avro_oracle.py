"""Apache Avro's `GenericDatumReader` and Spark's `SchemaConverters`, in a JVM that `AvroOracle.java` describes.

Decoded values and those of Java become plain values that can be compared: numbers for dates and times, unscaled numbers
for decimals, bits for floats, lists for records, and of a union its branch with the value.
"""

from __future__ import annotations

import base64
import json
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark

from pyspark_kafka_meta.java_launcher import find_java
from pyspark_kafka_meta.typed.avro.cursor import MAX_EMPTY_ITEMS
from pyspark_kafka_meta.typed.avro.schema import Array, AvroSchema, Fixed, Map, Primitive, Record, Union, column_schema

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
