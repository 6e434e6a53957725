"""A format for tests: the digits of a number, to which the reader adds the number that is its writer's schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import Format, SchemaText
from pyspark_kafka_meta.typed.values import Decoded, Fault, ValueEncoder


@dataclass(frozen=True)
class DigitsDecoder:
    added: int

    @property
    def type(self) -> pa.DataType:
        return pa.int64()

    def decode(self, values: pa.Array) -> Decoded:
        texts = values.to_pylist()
        faults = [Fault(row, "not digits") for row, text in enumerate(texts) if text is not None and not text.isdigit()]
        bad = {fault.row for fault in faults}
        numbers = [None if text is None or row in bad else int(text) + self.added for row, text in enumerate(texts)]
        return Decoded(pa.array(numbers, pa.int64()), faults)


def _decoder(writer: SchemaText, reader: SchemaText) -> DigitsDecoder:
    if not writer.text.isdigit():
        raise ValueSchemaError("the writer's schema cannot be read as the reader's")
    return DigitsDecoder(int(writer.text))


def _any_of(schemas: Sequence[SchemaText]) -> SchemaText:
    return SchemaText("|".join(schema.text for schema in schemas))


def _type(schema: SchemaText) -> pa.DataType:
    return pa.struct([("wide", pa.string())]) if "wide" in schema.text else pa.int64()


def _encoder(schema: SchemaText, given: pa.DataType) -> ValueEncoder:
    raise NotImplementedError


DIGITS = Format("Digits", "DIGITS", str, _type, _decoder, _encoder, _any_of)
