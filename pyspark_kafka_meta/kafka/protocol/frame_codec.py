"""Encode and decode Kafka's frames: an int32 length, a header, a message of one API version. No socket.

The protocol library generates the messages from Kafka's schemas. They are looked up by name and version, so that one
function serves all versions of the same shape.

Every length and count of a response is checked before the library parses it: its parser allocates memory for as many
entries as a count claims, up to 2^31, which can end the process. The layouts come from the library's message classes,
the encodings from Kafka's protocol guide (KIP-482). The walk also returns where the records are, because the parser
would copy them several times.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_origin

from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.kafka.protocol.apis import Api

LENGTH_BYTES = 4
NULL_RECORDS = b"\0"
_NUMBERS = {"error_code": "int16", "datetime_i64": "int64"}
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
    None. Raises ProtocolError: the frame is malformed, belongs to another request, or is longer than its message.
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
    response = next(
        entity
        for entity in vars(schema(api, version).response).values()
        if isinstance(entity, type) and getattr(entity, "__type__", None) is EntityType.response
    )
    _read_as_numbers(response)
    return response


@cache
def _readers(api: Api, version: int) -> tuple[Any, Any, Any]:
    response = response_schema(api, version)
    return entity_reader(response.__header_schema__), entity_reader(response), response


def _read_as_numbers(kind: Any) -> None:
    """Have the parser read error codes and times of a message class as numbers. The library's types would refuse a code
    of a newer broker, and the start time -1 of a producer that has not begun a transaction yet, which Kafka's schema
    does not mention; and with it the whole response. Times that may be missing stay as they are."""
    for field in fields(kind):
        kafka_type = _NUMBERS.get(field.metadata.get("kafka_type", ""))
        if kafka_type is not None and type(None) not in get_args(field.type):
            field.metadata = MappingProxyType({**field.metadata, "kafka_type": kafka_type})
        for entity in _entities(field.type):
            _read_as_numbers(entity)


def _entities(kind: Any) -> Iterator[Any]:
    """The message classes in the type of a field, such as `tuple[Topic, ...] | None`."""
    if is_dataclass(kind):
        yield kind
    for argument in get_args(kind):
        yield from _entities(argument)


def milliseconds(value: int) -> i32Timedelta:
    """`value` ms in the protocol library's type."""
    return i32Timedelta.parse(timedelta(milliseconds=value))


class Span(NamedTuple):
    """A records field in its frame: its length, then `start` to `end` (exclusive), which are equal for null."""

    length_at: int
    start: int
    end: int


Walk = Callable[[memoryview, int, list[Span]], int]
"""Returns the position after the field that begins at a position. Appends the records on the way."""

_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}
_MAX_VARINT_BYTES = 5


def check_lengths(kind: Any, frame: memoryview, position: int) -> list[Span]:
    """Walk through a message of class `kind` that begins at `position`. Returns its records fields in their order.
    Raises ProtocolError: a length or count points beyond the end of the frame, or is null in a field that is not
    nullable."""
    spans: list[Span] = []
    try:
        end = _message(kind)(frame, position, spans)
    except IndexError:
        end = len(frame) + 1
    if end > len(frame):
        raise ProtocolError("a broker's response cannot be read: a length in it is missing or points beyond its end")
    return spans


@cache
def _message(kind: Any) -> Walk:
    steps: list[Walk | int] = []
    tagged: dict[int, Walk] = {}
    for field in fields(kind):
        step = _field(field.type, field.metadata.get("kafka_type"), kind.__flexible__)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = _walk_of([step])
        else:
            steps.append(step)
    if kind.__flexible__:
        steps.append(_tags(tagged))
    return _walk_of(steps)


def _field(kind: Any, kafka_type: str | None, flexible: bool) -> Walk | int:
    """The walk over a field, or the size of a field of fixed size."""
    nullable = type(None) in get_args(kind)
    inner: Any = next((arg for arg in get_args(kind) if arg is not type(None)), kind) if nullable else kind
    if get_origin(inner) is tuple:
        entry = get_args(inner)[0]
        element = _message(entry) if hasattr(entry, "__flexible__") else _field(entry, kafka_type, flexible)
        return _array(element, flexible, nullable)
    if hasattr(inner, "__flexible__"):
        return _message(inner)
    if kafka_type in _SIZES:
        return _SIZES[kafka_type]
    if kafka_type == "records":
        return _records
    return _text(2 if kafka_type == "string" else 4, flexible, nullable)


def _walk_of(steps: Iterable[Walk | int]) -> Walk:
    """One walk over all steps. Adjacent fixed sizes are added up."""
    joined: list[Walk | int] = []
    for step in steps:
        if isinstance(step, int) and joined and isinstance(joined[-1], int):
            joined[-1] += step
        else:
            joined.append(step)

    def walk(data: memoryview, at: int, spans: list[Span]) -> int:
        for step in joined:
            at = at + step if isinstance(step, int) else step(data, at, spans)
        return at

    return walk


def _array(element: Walk | int, flexible: bool, nullable: bool) -> Walk:
    def walk(data: memoryview, at: int, spans: list[Span]) -> int:
        count, at = _length(data, at, 4, flexible, nullable)
        if isinstance(element, int):
            return at + count * element
        for _ in range(count):
            at = element(data, at, spans)
            if at > len(data):
                raise IndexError
        return at

    return walk


def _text(size: int, flexible: bool, nullable: bool) -> Walk:
    def walk(data: memoryview, at: int, spans: list[Span]) -> int:
        length, at = _length(data, at, size, flexible, nullable)
        return at + length

    return walk


def _records(data: memoryview, at: int, spans: list[Span]) -> int:
    """Only Fetch responses contain records. All supported versions of Fetch have varint lengths."""
    length, start = _length(data, at, 4, flexible=True, nullable=True)
    spans.append(Span(at, start, start + length))
    return start + length


def _tags(known: dict[int, Walk]) -> Walk:
    def walk(data: memoryview, at: int, spans: list[Span]) -> int:
        if data[at] == 0:  # almost always, and there may be ten thousand in a response
            return at + 1
        count, at = _varint(data, at)
        for _ in range(count):
            tag, at = _varint(data, at)
            size, at = _varint(data, at)
            if tag in known and known[tag](data, at, spans) != at + size:
                raise IndexError
            at += size
        return at

    return walk


def _length(data: memoryview, at: int, size: int, flexible: bool, nullable: bool) -> tuple[int, int]:
    """A length or count, 0 for null, and the position after it."""
    if flexible:
        more, at = _varint(data, at)
        length = more - 1
    else:
        length, at = int.from_bytes(data[at : at + size], "big", signed=True), at + size
    if length < 0 and not nullable:
        raise IndexError
    return max(length, 0), at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise IndexError
