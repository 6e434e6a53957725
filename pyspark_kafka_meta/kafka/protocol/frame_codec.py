"""Encode and decode Kafka's frames: an int32 length, a header, a message of one API version. No socket.

The protocol library generates the messages from Kafka's schemas. They are looked up by name and version, so that one
function serves all versions of the same shape.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.kafka.protocol.apis import DESCRIBE_TRANSACTIONS, Api
from pyspark_kafka_meta.kafka.protocol.frame_lengths import Span, check_lengths

LENGTH_BYTES = 4
NULL_RECORDS = b"\0"
SPLICED_BYTES = 64 * 1024
"""From this size, records become a part of a frame without a copy: copies of 1 MB took longer than all other work on a
Produce request."""


def schema(api: Api, version: int) -> Any:
    """The package of both messages, which imports their modules. It is imported as a whole: threads that import one
    module each, as while connections open, can end in a deadlock of their import locks, which Python raises."""
    return import_module(f"kio.schema.{api.name}.v{version}")


@cache
def request_schema(api: Api, version: int) -> Any:
    """The module of the request's message classes."""
    return schema(api, version).request


class _Parts(io.BytesIO):
    """Collects what is written, in parts: small values together, large values as they are."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes | memoryview] = []

    def write(self, data: Any) -> int:
        if len(data) < SPLICED_BYTES:
            return super().write(data)
        self._parts += (self.getvalue(), data)
        self.seek(0)
        self.truncate()
        return len(data)

    def parts(self) -> list[memoryview]:
        return [memoryview(part) for part in (*self._parts, self.getvalue()) if part]


class PackedRequest(NamedTuple):
    """A request whose body is encoded already, for a message class of the protocol library."""

    kind: Any
    body: bytes

    @property
    def __version__(self) -> int:
        return int(self.kind.__version__)


def encode(message: Any, correlation_id: int, client_id: str) -> list[memoryview]:
    """A frame with its length prefix, in parts. Large records of `message` are parts of their own: they must not change
    until they are sent."""
    body = _Parts()
    kind = message.kind if isinstance(message, PackedRequest) else type(message)
    header = kind.__header_schema__(
        request_api_key=kind.__api_key__,
        request_api_version=kind.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    entity_writer(type(header))(body, header)
    if isinstance(message, PackedRequest):
        body.write(message.body)
    else:
        entity_writer(kind)(body, message)
    head, *rest = body.parts()
    size = len(head) + sum(map(len, rest))
    return [memoryview(size.to_bytes(LENGTH_BYTES, "big") + head), *rest]


def decode(api: Api, version: int, correlation_id: int, frame: memoryview) -> tuple[Any, list[memoryview]]:
    """The response message in `frame`, which has no length prefix, and its records in their order.

    The records are views of `frame`, because the parser would copy them several times. Their fields in the message are
    None.

    Raises:
        ProtocolError: the frame is malformed, belongs to another request, or is longer than its message.
    """
    try:
        read_header, read_message, response = _readers(api, version)
        header, position = read_header(frame, 0)
        if header.correlation_id != correlation_id:
            raise ProtocolError(
                f"a broker answered request {header.correlation_id} instead of {correlation_id} ({api.title})"
            )
        spans = check_lengths(response, frame, position)
        rest = _without(frame, spans)
        message, size = read_message(rest, position)
    except (ProtocolError, MemoryError):  # the lengths are checked: memory is missing for a sound response
        raise
    except Exception as error:  # the parser's errors, and KeyError, ValueError ... of damaged bytes
        raise ProtocolError(
            f"a broker's {api.title} v{version} response cannot be read ({type(error).__name__})"
        ) from error
    surplus = rest[position + size :]
    # librdkafka's mock brokers end Metadata v13 with an extra empty tag section: one zero byte.
    if surplus not in (b"", b"\0"):
        raise ProtocolError(f"a broker's {api.title} v{version} response has {len(surplus)} extra bytes")
    return message, [frame[span.start : span.end] for span in spans]


def _without(frame: memoryview, spans: Sequence[Span]) -> bytes:
    """The frame with null instead of its records."""
    ends = (0, *(span.end for span in spans))
    lengths_at = (*(span.length_at for span in spans), len(frame))
    return NULL_RECORDS.join(frame[end:length_at] for end, length_at in zip(ends, lengths_at, strict=True))


@cache
def response_schema(api: Api, version: int) -> Any:
    """The message class of the response."""
    if api == DESCRIBE_TRANSACTIONS:
        # Readers start sooner without it. Threads cannot meet in its imports: sending the request has imported them.
        from pyspark_kafka_meta.kafka.protocol.describe_transactions import DescribeTransactionsResponse

        return DescribeTransactionsResponse
    return next(
        entity
        for entity in vars(schema(api, version).response).values()
        if isinstance(entity, type) and getattr(entity, "__type__", None) is EntityType.response
    )


@cache
def _readers(api: Api, version: int) -> tuple[Any, Any, Any]:
    response = response_schema(api, version)
    _read_error_codes_as_numbers(response)
    return entity_reader(response.__header_schema__), entity_reader(response), response


def _read_error_codes_as_numbers(kind: Any) -> None:
    """Have the parser read the error codes of a message class as int16. The library's enum would refuse a code of a
    newer broker, and with it the whole response."""
    for field in fields(kind):
        if field.metadata.get("kafka_type") == "error_code":
            field.metadata = MappingProxyType({**field.metadata, "kafka_type": "int16"})
        for entity in _entities(field.type):
            _read_error_codes_as_numbers(entity)


def _entities(kind: Any) -> Iterator[Any]:
    """The message classes in the type of a field, such as `tuple[Topic, ...] | None`."""
    if is_dataclass(kind):
        yield kind
    for argument in get_args(kind):
        yield from _entities(argument)


def milliseconds(value: int) -> i32Timedelta:
    """`value` ms in the protocol library's type."""
    return i32Timedelta.parse(timedelta(milliseconds=value))
