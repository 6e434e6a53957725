"""Protobuf: `Protobuf` is a message type of a schema, whose text is a FileDescriptorSet in Base64."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import ValueSchemaError
from pyspark_kafka_meta.typed.formats import Schema, SchemaText, ValueDecoder, ValueEncoder

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafka_meta.typed.protobuf.schema import ProtobufSchema

FIRST_MESSAGE = (0,)
"""Confluent's message indexes of the first message type of a file."""
DESCRIPTOR_START = "\n"
"""Of a serialized FileDescriptorProto, whose first field is the name; never of Base64."""
DAMAGED = "\N{REPLACEMENT CHARACTER}"
"""In the place of bytes that are not UTF-8."""


class Protobuf(Schema):
    title, registry_type = "Protobuf", "PROTOBUF"
    is_recursive = names_message = has_message_indexes = True
    is_in_apicurios_frames = may_be_registered = False
    registry_form = "format=serialized"

    @property
    def _descriptor(self) -> bytes:
        return base64.b64decode(self.text.text)

    @cached_property
    def parsed(self) -> ProtobufSchema:
        from pyspark_kafka_meta.typed.protobuf.schema import message_name, parse_protobuf

        message = self.text.message or None
        if isinstance(message, tuple):
            try:
                message = message_name(self._descriptor, message)
            except (IndexError, ValueError, KeyError) as error:
                raise ValueSchemaError(f"its schema has no such message type: {error}") from None
        return replace(parse_protobuf(self._descriptor, message), max_depth=self.text.max_depth)

    @cached_property
    def _columns(self) -> tuple[pa.StructType, Mapping[str, str]]:
        from pyspark_kafka_meta.typed.protobuf.schema import columns

        return columns(self.parsed)

    @property
    def type(self) -> pa.DataType:
        return self._columns[0]

    @property
    def left_out(self) -> Mapping[str, str]:
        return self._columns[1]

    @property
    def name(self) -> str:
        return self.parsed.message

    @property
    def read_as(self) -> str:
        from pyspark_kafka_meta.typed.protobuf.schema import without_names

        return without_names(self.parsed)

    @property
    def registered_text(self) -> str:
        from pyspark_kafka_meta.typed.protobuf.schema import only_file

        return base64.b64encode(only_file(self._descriptor)).decode()

    @property
    def message_indexes(self) -> tuple[int, ...]:
        from pyspark_kafka_meta.typed.protobuf.schema import message_indexes

        return message_indexes(self._descriptor, self.name)

    def decoder(self, writer: Protobuf, is_confluents: bool) -> ValueDecoder:
        from pyspark_kafka_meta.typed.protobuf.decoder import protobuf_decoder

        is_in_both = self.name in writer.parsed.messages or writer.name in self.parsed.messages
        if writer.name != self.name and (is_in_both or writer.text.message not in ((), FIRST_MESSAGE)):
            # The first type of a file may have been renamed; numbers of fields of any other one would fit by chance.
            raise ValueSchemaError(f"it is a {writer.name}, not a {self.name}")
        return protobuf_decoder(writer.parsed, self.parsed)

    def encoder(self, given: pa.DataType, is_confluents: bool) -> ValueEncoder:
        from pyspark_kafka_meta.typed.protobuf.encoder import protobuf_encoder

        return protobuf_encoder(self.parsed, given)

    @classmethod
    def registered(cls, text: str, references: Sequence[str]) -> SchemaText:
        """A set of FileDescriptorProtos in Base64, or as Apicurio sends them: as text. This is right only if all bytes
        are ASCII, so for small schemas: a length of 128 or more is not."""
        from pyspark_kafka_meta.typed.protobuf.schema import descriptor_set

        files = (*references, text)
        if any(DAMAGED in file for file in files):
            raise ValueSchemaError(
                "the schema registry damaged the descriptor of its Protobuf schema, as Apicurio does with all but "
                "small ones: use Confluent's registry or Karapace, or give the schema as an option, without frames"
            )
        try:
            descriptors = [
                file.encode() if file.startswith(DESCRIPTOR_START) else base64.b64decode(file, validate=True)
                for file in files
            ]
        except ValueError:
            raise ValueSchemaError(
                "the schema registry responded with a Protobuf schema that is no descriptor"
            ) from None
        return SchemaText(base64.b64encode(descriptor_set(descriptors)).decode())

    @classmethod
    def is_text(cls, given: str) -> bool:
        return False

    @classmethod
    def text_of_file(cls, content: bytes) -> str:
        return base64.b64encode(content).decode()


FORMAT = Protobuf
