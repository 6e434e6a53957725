"""Finds the fields of many messages of one type at the same time.

Writers put fields in the order of their numbers. So a pass over the known tags in that order finds each field of all
messages that have it with a few numpy calls, and one pass reads most messages to their end. Others stop at a field that
is unknown or out of order: unknown fields are skipped together, then another pass follows. What is left after
a few passes, or has few messages, is read field by field, which bounds the time that any input takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from pyspark_kafka_meta.arrow_arrays import Flags, Longs
from pyspark_kafka_meta.typed.columnar.varints import LONG_VARINT, TOO_SHORT, varint_bytes
from pyspark_kafka_meta.typed.protobuf.wire import (
    FIXED32,
    FIXED64,
    GROUP,
    LENGTH,
    MAX_LENGTH_BYTES,
    MAX_TAG,
    MAX_VARINT_BYTES,
    VARINT,
    Payload,
    Raw,
    wire_fields,
)

MAX_PASSES = 8
FEW_MESSAGES = 16
"""Reading so many field by field takes as long as numpy calls for all of them."""

OnFault: TypeAlias = Callable[[Longs, str], None]
"""Called with indexes of messages and the cause."""

_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}


@dataclass(frozen=True, slots=True)
class Tag:
    """A known tag: field number and wire type.

    Attributes:
        repeated: several in a row are usual.
        kept: false for fields of the writer that the reader does not have.
    """

    number: int
    wire_type: int
    repeated: bool = False
    kept: bool = True

    @property
    def value(self) -> int:
        return self.number << 3 | self.wire_type

    def encoded(self) -> bytes:
        return varint_bytes(self.value)


class Found(NamedTuple):
    """Where messages have a field, in the order of messages, and in each message in the order of its bytes.

    Attributes:
        message: index of the message.
        at, after: where the value begins (after tag and length) and ends.
        raw: of varints; else 0.
    """

    message: Longs
    at: Longs
    after: Longs
    raw: Raw

    def select(self, rows: Flags | Longs) -> Found:
        return Found._make(column[rows] for column in self)


NONE_FOUND = Found(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))


def find_fields(payload: Payload, tags: Sequence[Tag], at: Longs, end: Longs, on_fault: OnFault) -> dict[int, Found]:
    """The kept fields of the messages between these positions, by field number.

    Args:
        tags: in the order of their values.
        on_fault: gets malformed messages; their fields before the fault are found.
    """
    scan = _Scan(payload, tags, at, end, on_fault)
    for _ in range(MAX_PASSES):
        scan.read_known_fields()
        if len(scan.messages) < FEW_MESSAGES:
            break
        scan.skip_unknown_fields()
    scan.read_one_by_one(range(len(scan.messages)))
    return {number: _joined(parts) for number, parts in scan.parts.items()}


def _joined(parts: Sequence[Found]) -> Found:
    """Each part is in the order of messages."""
    if len(parts) == 1:
        return parts[0]
    found = Found._make(map(np.concatenate, zip(*parts, strict=True)))
    return found.select(np.argsort(found.message, kind="stable"))


class _Scan:
    """How far the messages are read. The arrays have the messages that are not at their end.

    Attributes:
        messages: their indexes.
        parts: what was found by field number, each part in the order of messages.
    """

    def __init__(self, payload: Payload, tags: Sequence[Tag], at: Longs, end: Longs, on_fault: OnFault) -> None:
        self._payload, self._tags, self._on_fault = payload, tags, on_fault
        self._at, self._end = at.copy(), end
        self.messages = np.arange(len(at), dtype=np.int64)
        self.parts: dict[int, list[Found]] = {}
        self._drop_complete()

    def read_known_fields(self) -> None:
        """Those of all messages together; groups are read one by one."""
        for tag in self._tags:
            if tag.wire_type == GROUP:
                continue
            rows = self._rows_with(tag, None)
            while rows is None or len(rows):
                self._read(tag, rows)
                if not tag.repeated:
                    break
                rows = self._rows_with(tag, rows)
                few = range(len(self.messages)) if rows is None else rows.tolist()
                if len(few) < FEW_MESSAGES:
                    self.read_one_by_one(few)
                    break
        self._drop_complete()

    def skip_unknown_fields(self) -> None:
        """Skips unknown fields, except groups, while many messages have more."""
        known = np.array([tag.value for tag in self._tags], np.uint64)
        rows = np.arange(len(self.messages))
        while len(rows) >= FEW_MESSAGES:
            tag, at = self._payload.varints(self._at[rows])
            is_tag = (at - self._at[rows] <= MAX_LENGTH_BYTES) & (tag <= MAX_TAG) & (tag > 7) & ~np.isin(tag, known)
            progress = np.zeros(len(rows), np.bool_)
            for wire_type in (VARINT, FIXED64, LENGTH, FIXED32):
                which = np.flatnonzero(is_tag & (tag & 7 == wire_type))
                if len(which):
                    self._read_values(wire_type, rows[which], at[which])
                    progress[which] = True
            rows = rows[progress & (self._at[rows] < self._end[rows])]
        self._drop_complete()

    def read_one_by_one(self, rows: Iterable[int]) -> None:
        """Reads these messages to their ends, with a Python object for each field."""
        numbers = {tag.value: tag.number for tag in self._tags if tag.kept}
        data = memoryview(self._payload.bytes.data)
        found: dict[int, list[tuple[int, int, int, int]]] = {}
        for row in rows:
            index = int(self.messages[row])
            try:
                for field in wire_fields(data, int(self._at[row]), int(self._end[row])):
                    if field.tag in numbers:
                        found.setdefault(numbers[field.tag], []).append((index, field.at, field.after, field.raw))
            except ValueError as error:
                self._on_fault(np.array([index]), str(error))
            self._at[row] = self._end[row]
        for number, fields in found.items():
            message, at, after = np.array([each[:3] for each in fields], np.int64).T
            self._add(number, Found(message, at, after, np.array([each[3] for each in fields], np.uint64)))

    def _rows_with(self, tag: Tag, among: Longs | None) -> Longs | None:
        """Which of these messages have the tag at their position. None is all messages."""
        at, end = (self._at, self._end) if among is None else (self._at[among], self._end[among])
        first, *rest = tag.encoded()
        matches = self._payload.bytes.take(at) == first
        for distance, byte in enumerate(rest, 1):
            matches &= self._payload.bytes.take(at + distance) == byte
        matches &= at < end
        if matches.all():
            return among
        return np.flatnonzero(matches) if among is None else among[matches]

    def _read(self, tag: Tag, rows: Longs | None) -> None:
        which: Longs | slice = slice(None) if rows is None else rows
        at, after, raw, good = self._read_values(tag.wire_type, which, self._at[which] + len(tag.encoded()))
        if tag.kept:
            found = Found(self.messages[which], at, after, raw)
            self._add(tag.number, found if good is None else found.select(good))

    def _add(self, number: int, found: Found) -> None:
        self.parts.setdefault(number, []).append(found)

    def _read_values(self, wire_type: int, rows: Longs | slice, at: Longs) -> tuple[Longs, Longs, Raw, Flags | None]:
        """Moves these messages behind their values at these positions; behind their end if they are malformed.

        Returns where values begin and end, varints, and which are good; None for all.
        """
        end = self._end[rows]
        raw, max_bytes = np.zeros(len(at), np.uint64), 0
        if wire_type in _FIXED_BYTES:
            after = at + _FIXED_BYTES[wire_type]
        else:
            raw, after = self._payload.varints(at)
            max_bytes = MAX_VARINT_BYTES if wire_type == VARINT else MAX_LENGTH_BYTES
        overlong = (after - at > max_bytes) if max_bytes else np.zeros(len(at), np.bool_)
        if wire_type == LENGTH:
            at, after = after, after + raw.view(np.int64)
            overlong |= after < at
        bad = overlong | (after > end)
        if not bad.any():
            self._at[rows] = after
            return at, after, raw, None
        self._report(rows, overlong & (after <= end), LONG_VARINT)
        self._report(rows, bad, TOO_SHORT)
        self._at[rows] = np.where(bad, end, after)
        return at, after, raw, ~bad

    def _report(self, rows: Longs | slice, which: Flags, cause: str) -> None:
        self._on_fault(self.messages[rows][which], cause)

    def _drop_complete(self) -> None:
        rest = self._at < self._end
        if not rest.all():
            self.messages, self._at, self._end = self.messages[rest], self._at[rest], self._end[rest]
