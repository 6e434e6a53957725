"""The values of found fields as Arrow arrays: one element for each occurrence of a field on the wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import Flags, Longs, not_utf8
from pyspark_kafka_meta.typed.columnar.varints import LONG_VARINT
from pyspark_kafka_meta.typed.protobuf.scan import Found
from pyspark_kafka_meta.typed.protobuf.wire import FIXED32, FIXED64, MAX_VARINT_BYTES, VARINT, Payload, Raw

BAD_UTF8 = "a string is not UTF-8"
BAD_PACKED = "packed numbers do not end where they should"


@dataclass(frozen=True, slots=True)
class NumberKind:
    """How numbers of a type are on the wire.

    Attributes:
        to_array: from varints or the little-endian bytes as unsigned numbers.
    """

    wire_type: int
    to_array: Callable[[Raw], pa.Array]


def _int32(raw: Raw) -> npt.NDArray[np.int32]:
    return raw.astype(np.uint32).view(np.int32)


def _zigzag(raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return (raw >> 1) ^ -(raw & 1)


def _uint64(raw: Raw) -> pa.Array:
    """As decimals of 16 bytes, of which the higher 8 are 0."""
    wide = np.zeros((len(raw), 2), np.uint64)
    wide[:, 0] = raw
    return pa.Array.from_buffers(pa.decimal128(20, 0), len(raw), [None, pa.py_buffer(wide)])


NUMBERS = {
    "int32": NumberKind(VARINT, lambda raw: pa.array(_int32(raw))),
    "int64": NumberKind(VARINT, lambda raw: pa.array(raw.view(np.int64))),
    "uint32": NumberKind(VARINT, lambda raw: pa.array(raw.astype(np.uint32).astype(np.int64))),
    "uint64": NumberKind(VARINT, _uint64),
    "sint32": NumberKind(VARINT, lambda raw: pa.array(_zigzag(raw.astype(np.uint32)).view(np.int32))),
    "sint64": NumberKind(VARINT, lambda raw: pa.array(_zigzag(raw).view(np.int64))),
    "bool": NumberKind(VARINT, lambda raw: pa.array(raw != 0)),
    "enum": NumberKind(VARINT, lambda raw: pa.array(_int32(raw))),
    "fixed32": NumberKind(FIXED32, lambda raw: pa.array(raw.astype(np.int64))),
    "fixed64": NumberKind(FIXED64, _uint64),
    "sfixed32": NumberKind(FIXED32, lambda raw: pa.array(_int32(raw))),
    "sfixed64": NumberKind(FIXED64, lambda raw: pa.array(raw.view(np.int64))),
    "float": NumberKind(FIXED32, lambda raw: pa.array(raw.astype(np.uint32).view(np.float32))),
    "double": NumberKind(FIXED64, lambda raw: pa.array(raw.view(np.float64))),
}
"""By the type's name. All can be packed."""


def raw_numbers(payload: Payload, wire_type: int, found: Found) -> Raw:
    if wire_type == VARINT:
        return found.raw
    words = payload.words(found.at)
    return words if wire_type == FIXED64 else words & np.uint64(0xFFFFFFFF)


def unpacked(payload: Payload, wire_type: int, found: Found) -> tuple[Found, dict[str, Longs]]:
    """Each number of packed fields as a field of its own; a number that is not packed is taken as a pack of one.
    Also the messages with faults, by their cause."""
    if wire_type == VARINT:
        return _unpacked_varints(payload, found)
    size = 8 if wire_type == FIXED64 else 4
    length = found.after - found.at
    good = length % size == 0
    owner, at = _spread(found.at[good], length[good] // size, size)
    message = found.message[good][owner]
    faults = {BAD_PACKED: found.message[~good]}
    return Found(message, at, at + size, np.zeros(len(at), np.uint64)), faults


def _unpacked_varints(payload: Payload, found: Found) -> tuple[Found, dict[str, Longs]]:
    ends_with_varint = (found.after > found.at) & (payload.bytes.take(np.maximum(found.after - 1, 0)) < 0x80)
    good = ends_with_varint | (found.after == found.at)
    rest = found.select(good)
    owner, at = _spread(rest.at, rest.after - rest.at, 1)
    is_last = payload.bytes.take(at) < 0x80
    # A number begins where a pack begins and after the last byte of each other number.
    is_first = np.empty(len(at), np.bool_)
    is_first[:1] = True
    is_first[1:] = is_last[:-1] | (owner[1:] != owner[:-1])
    begin = at[is_first]
    raw, after = payload.varints(begin)
    message = rest.message[owner[is_first]]
    faults = {BAD_PACKED: found.message[~good], LONG_VARINT: message[after - begin > MAX_VARINT_BYTES]}
    return Found(message, begin, after, raw), faults


def _spread(at: Longs, counts: Longs, step: int) -> tuple[Longs, Longs]:
    """From each position, `counts` positions with this step. Returns the index of the first position, and positions."""
    owner = np.repeat(np.arange(len(at)), counts)
    before = np.cumsum(counts) - counts
    return owner, at[owner] + (np.arange(len(owner)) - before[owner]) * step


def strings(values: pa.BinaryArray) -> tuple[pa.StringArray, Flags | None]:
    """The strings, and which are not UTF-8; None for none. These are empty."""
    try:
        return values.cast(pa.string()), None
    except pa.ArrowInvalid:
        bad = not_utf8(values)
        return pa.compute.if_else(pa.array(bad), b"", values).cast(pa.string()), bad


def one_each(values: pa.Array, message: Longs, count: int) -> tuple[pa.Array, Flags | None]:
    """The last value of each message, null for the others, and which are absent; None for none."""
    if len(values) == count and (count == 0 or bool((message[1:] > message[:-1]).all())):
        return values, None
    index = np.full(count, -1, np.int64)
    index[message] = np.arange(len(message))
    absent = index < 0
    return values.take(pa.array(index, mask=absent)), absent
