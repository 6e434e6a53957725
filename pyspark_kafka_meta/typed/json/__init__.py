"""JSON: `Json` is a schema of it, JSON Schema or a type of Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import (
    ConnectType,
    Schema,
    SchemaText,
    ValueDecoder,
    ValueEncoder,
    check_units,
    without_fields,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafka_meta.typed.json.schema import JsonSchema


class Json(Schema):
    """Values name their fields, so the writer's schema does not matter."""

    title, registry_type = "JSON", "JSON"

    @cached_property
    def parsed(self) -> JsonSchema:
        from pyspark_kafka_meta.typed.json.schema import parse_json_schema

        return parse_json_schema(self.text.text, self.text.references)

    @cached_property
    def type(self) -> pa.DataType:
        return self.parsed.type

    @cached_property
    def name(self) -> str | None:
        """The title, by which Confluent's serializers name a record."""
        try:
            document = json.loads(self.text.text)
        except (ValueError, RecursionError):
            return None
        title = document.get("title") if isinstance(document, dict) else None
        return title if isinstance(title, str) else None

    @property
    def connect_types(self) -> Mapping[str, ConnectType]:
        return self.parsed.connect_types

    @property
    def read_as(self) -> pa.DataType:
        return without_fields(self.parsed.kinds, self.text.lenient_fields)

    @property
    def registered_text(self) -> str:
        if self.parsed.nullable is None:
            raise ValueSchemaError("its schema is a type of Spark, which no registry has: give a JSON Schema")
        return self.text.text

    def decoder(self, writer: Json, is_confluents: bool) -> ValueDecoder:
        from pyspark_kafka_meta.typed.json.decoder import JsonDecoder

        check_units(self, writer)
        return JsonDecoder(self.parsed)

    def encoder(self, given: pa.DataType, is_confluents: bool) -> ValueEncoder:
        from pyspark_kafka_meta.typed.json.encoder import json_encoder

        return json_encoder(self.parsed, given)

    @classmethod
    def derived(cls, given: pa.DataType, name: str | None) -> SchemaText:
        from pyspark_kafka_meta.typed.json.encoder import derived_json_schema

        return SchemaText(derived_json_schema(given, name))

    @classmethod
    def referred(cls, text: str, name: object) -> str:
        """With the name as its `$id`, by which the other one refers to it."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return json.dumps({**document, "$id": name}) if isinstance(document, dict) else text

    @classmethod
    def may_be_text(cls, given: str) -> bool:
        """A type of Spark may look like a path."""
        return bool(set(given) & set(" <:"))


FORMAT = Json
