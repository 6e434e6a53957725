"""A format for tests: the digits of a number, to which the reader adds the number that is its writer's schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import Decoded, Fault, Schema, SchemaText, ValueEncoder


@dataclass(frozen=True)
class DigitsDecoder:
    added: int
    type: pa.DataType

    def decode(self, values: pa.Array) -> Decoded:
        texts = values.to_pylist()
        faults = [Fault(row, "not digits") for row, text in enumerate(texts) if text is not None and not text.isdigit()]
        bad = {fault.row for fault in faults}
        numbers = [None if text is None or row in bad else int(text) + self.added for row, text in enumerate(texts)]
        return Decoded(pa.array(numbers, self.type), faults)


class Digits(Schema):
    title, registry_type = "Digits", "DIGITS"
    has_several_names = True

    @property
    def parsed(self) -> str:
        return self.text.text

    @property
    def type(self) -> pa.DataType:
        return pa.struct([("wide", pa.string())]) if "wide" in self.parsed else pa.int64()

    @property
    def name(self) -> None:
        return None

    @property
    def read_as(self) -> str:
        return self.parsed.strip()

    def decoder(self, writer: Digits, is_confluents: bool) -> DigitsDecoder:
        if not writer.parsed.isdigit():
            raise ValueSchemaError("the writer's schema cannot be read as the reader's")
        return DigitsDecoder(int(writer.parsed), self.type)

    def encoder(self, given: pa.DataType, is_confluents: bool) -> ValueEncoder:
        raise NotImplementedError

    @classmethod
    def any_of(cls, schemas: Sequence[SchemaText]) -> SchemaText:
        return SchemaText("|".join(schema.text for schema in schemas))
