"""The objects of schema and payload in which values are: payloads are cut out of a column without parsing most of them.

Values of one writer begin and end with the same bytes. One of them is parsed; where others begin and end like it, what
is between is the payload.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import Flags, offsets_of
from pyspark_kafka_meta.typed.formats import Fault

NO_ENVELOPE = (
    "no schema: the text is not an object of schema and payload alone, as Kafka Connect's JsonConverter writes"
)
MAX_PASSES = 100
"""Over all values. Where more begin differently, each of the others is parsed."""

_BEGIN = re.compile(rb'\s*\{\s*"(schema|payload)"\s*:\s*')
_BETWEEN = re.compile(rb'\s*,\s*"(schema|payload)"\s*:\s*')
_BLANKS = b" \t\n\r"
_NULL = b"null"


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    schema: msgspec.Raw
    payload: msgspec.Raw


_DECODER = msgspec.json.Decoder(_Envelope)


class Cut(NamedTuple):
    """A value.

    Attributes:
        head, tail: what is before and after the payload.
        schema: its text; None if it is null.
    """

    head: bytes
    tail: bytes
    schema: bytes | None


def cut(value: bytes) -> Cut:
    """Raises ValueError: the value is no such object, or names its members in a way that no serializer does."""
    try:
        envelope = _DECODER.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        raise ValueError(NO_ENVELOPE) from None
    schema, payload = bytes(envelope.schema), bytes(envelope.payload)
    begin = _BEGIN.match(value)
    end = len(value.rstrip(_BLANKS)[:-1].rstrip(_BLANKS))
    is_first = begin is not None and begin[1] == b"payload"
    first, second = (payload, schema) if is_first else (schema, payload)
    if begin is None or not _BETWEEN.fullmatch(value, begin.end() + len(first), end - len(second)):
        raise ValueError(NO_ENVELOPE)  # a member is there twice
    start = begin.end() if is_first else end - len(payload)
    return Cut(value[:start], value[start + len(payload) :], None if schema == _NULL else schema)


class Payloads(NamedTuple):
    """The payloads in a column. Arrays have an element for each row.

    Attributes:
        at, lengths: of each in the memory of the column.
        schemas: the different texts of schemas; None for null.
        which: index in `schemas`; -1 if the value is null or at fault.
        faults: in the order of rows.
    """

    at: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    schemas: list[bytes | None]
    which: npt.NDArray[np.intp]
    faults: list[Fault]


def payloads(values: pa.Array) -> Payloads:
    """Of a column of type binary."""
    offsets = offsets_of(values)
    at, lengths, which = offsets[:-1].copy(), np.diff(offsets), np.full(len(values), -1)
    schemas: dict[bytes | None, int] = {}
    faults: list[Fault] = []
    rows, passes = np.flatnonzero(values.is_valid()), 0
    while len(rows):
        try:
            head, tail, schema = cut(values[int(rows[0])].as_py())
        except ValueError as error:
            faults.append(Fault(int(rows[0]), str(error)))
            rows = rows[1:]
            continue
        if passes < MAX_PASSES:
            is_alike = _are_alike(values, head, tail)[rows]
            alike, rows = rows[is_alike], rows[~is_alike]
        else:
            alike, rows = rows[:1], rows[1:]
        passes += 1
        at[alike] += len(head)
        lengths[alike] -= len(head) + len(tail)
        which[alike] = schemas.setdefault(schema, len(schemas))
    return Payloads(at, lengths, list(schemas), which, faults)


def _are_alike(values: pa.Array, head: bytes, tail: bytes) -> Flags:
    """Whether values begin and end like that."""
    is_alike: Flags = np.diff(offsets_of(values)) >= len(head) + len(tail)
    for matches in (pc.starts_with(values, head), pc.ends_with(values, tail)):
        is_alike &= matches.fill_null(False).to_numpy(zero_copy_only=False)
    return is_alike
