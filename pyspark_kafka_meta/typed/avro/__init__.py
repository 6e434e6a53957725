"""Avro: `Avro` is a schema of it. Schemas of a writer and a reader are resolved to a tree of column decoders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark_kafka_meta.typed.formats import ConnectType, Schema, SchemaText, ValueDecoder, ValueEncoder, check_units

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafka_meta.typed.avro.schema import AvroSchema


class Avro(Schema):
    """Values of a schema that is only `bytes` are those bytes, without a length, for Confluent's serializers."""

    title, registry_type = "Avro", "AVRO"
    is_recursive = has_unions = has_several_names = True

    @cached_property
    def parsed(self) -> AvroSchema:
        from pyspark_kafka_meta.typed.avro.schema import parse_avro

        return parse_avro(self.text.text, self.text.references)

    @cached_property
    def _bounded(self) -> tuple[AvroSchema, Mapping[str, str]]:
        from pyspark_kafka_meta.typed.avro.schema import bounded

        return bounded(self.parsed, self.text.max_depth, self.text.stable_members)

    @cached_property
    def type(self) -> pa.DataType:
        from pyspark_kafka_meta.typed.avro.schema import arrow_type

        return arrow_type(self._bounded[0])

    @property
    def left_out(self) -> Mapping[str, str]:
        return self._bounded[1]

    @cached_property
    def connect_types(self) -> Mapping[str, ConnectType]:
        from pyspark_kafka_meta.typed.avro.schema import connect_types

        return connect_types(self._bounded[0])

    @property
    def name(self) -> str | None:
        from pyspark_kafka_meta.typed.avro.schema import Record

        return self.parsed.name if isinstance(self.parsed, Record) else None

    @property
    def read_as(self) -> str:
        from pyspark_kafka_meta.typed.avro.schema import Record, without_names

        parsed = self.parsed
        if isinstance(parsed, Record):
            compared = tuple(field for field in parsed.fields if field.name not in self.text.lenient_fields)
            parsed = replace(parsed, fields=compared)
        return repr(without_names(parsed))

    def decoder(self, writer: Avro, is_confluents: bool) -> ValueDecoder:
        from pyspark_kafka_meta.typed.avro.decoder import avro_decoder
        from pyspark_kafka_meta.typed.avro.resolution import without_unfit

        check_units(self, writer)
        given, reader = writer.parsed, self._bounded[0]
        if self.text.lenient_fields:
            given = without_unfit(given, reader, self.text.lenient_fields)
        return avro_decoder(given, reader, is_raw=is_confluents)

    def encoder(self, given: pa.DataType, is_confluents: bool) -> ValueEncoder:
        from pyspark_kafka_meta.typed.avro.encoder import avro_encoder

        return avro_encoder(self.parsed, given, is_raw=is_confluents)

    @classmethod
    def any_of(cls, schemas: Sequence[SchemaText]) -> SchemaText:
        references = dict.fromkeys(reference for schema in schemas for reference in schema.references)
        return SchemaText(json.dumps([json.loads(schema.text) for schema in schemas]), tuple(references))

    @classmethod
    def derived(cls, given: pa.DataType, name: str | None) -> SchemaText:
        from pyspark_kafka_meta.typed.avro.encoder import TOP_LEVEL_NAME, derived_schema

        return SchemaText(derived_schema(given, name or TOP_LEVEL_NAME))


FORMAT = Avro
