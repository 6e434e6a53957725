"""Check every length and count of a response frame before the protocol library parses it.

The library's parser allocates memory for as many entries as a count claims, up to 2^31, which can end the process. The
layouts come from the library's message classes, the encodings from Kafka's protocol guide (KIP-482).

The walk also returns where the records are, because the parser would copy them several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from pyspark_kafka_meta.errors import ProtocolError


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

    Raises:
        ProtocolError: a length or count points beyond the end of the frame, or is null in a field that is not nullable.
    """
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
