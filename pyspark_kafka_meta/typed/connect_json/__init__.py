"""JSON of Kafka Connect: `ConnectJson` is a schema of it. Each value is an object of its schema and a payload, as the
`JsonConverter` writes it with `schemas.enable`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import ConnectType, Schema, SchemaText, ValueDecoder, without_fields

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafka_meta.typed.connect_json.schema import ConnectSchema


class ConnectJson(Schema):
    """Writers' schemas may differ: fields are found by their names."""

    title, registry_type = "JSON of Kafka Connect", "CONNECT-JSON"
    is_in_values = True

    @cached_property
    def parsed(self) -> ConnectSchema:
        from pyspark_kafka_meta.typed.connect_json.schema import parse_connect

        return parse_connect(self.text.text)

    @cached_property
    def type(self) -> pa.DataType:
        from pyspark_kafka_meta.typed.json.schema import column_type

        return column_type(self.parsed.kinds)

    @property
    def name(self) -> str | None:
        top = self.connect_types.get("")
        return None if top is None else top.name

    @property
    def connect_types(self) -> Mapping[str, ConnectType]:
        return self.parsed.connect_types

    @property
    def read_as(self) -> Hashable:
        parsed, is_lenient = self.parsed, self.text.is_lenient
        units = frozenset(unit for unit in parsed.units.items() if not is_lenient(unit[0]))
        return without_fields(parsed.kinds, self.text.lenient_fields), units

    def decoder(self, writer: ConnectJson, is_confluents: bool) -> ValueDecoder:
        from pyspark_kafka_meta.typed.connect_json.decoder import ConnectJsonDecoder

        return ConnectJsonDecoder(self.parsed, self.text.is_lenient)

    def encoder(self, given: pa.DataType, is_confluents: bool) -> NoReturn:
        raise ValueSchemaError("connect-json is for reads alone")

    @classmethod
    def schema_in(cls, value: bytes) -> SchemaText | None:
        from pyspark_kafka_meta.typed.connect_json.envelope import cut

        try:
            schema = cut(value).schema
            return None if schema is None else SchemaText(schema.decode())
        except ValueError:
            return None


FORMAT = ConnectJson
