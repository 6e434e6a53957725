"""Frames before encoded values, in which serializers name the writer's schema.

Confluent's serializers write the byte 0 and the id as 4 bytes, Apicurio's `DefaultIdHandler` as 8 bytes. All frames of
a column are read together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import binary_array, memory_of, offsets_of
from pyspark_kafka_meta.formats.values import Fault

MAGIC = 0
MAX_INDEXES = 100
"""Protobuf's libraries nest no deeper."""
MAX_KINDS = 1_000
"""Of different message types in a column: more are bytes that are no message indexes."""


def frame(schema_id: int, id_bytes: int) -> bytes:
    """What precedes a value. `id_bytes` is 4 or 8."""
    return bytes([MAGIC]) + schema_id.to_bytes(id_bytes)


class Unframed(NamedTuple):
    """A column without its frames.

    Attributes:
        rows: indexes of the rows with a frame; a null has none.
        schema_ids: in the frames of these rows.
        payloads: what follows their frames, of type binary.
        faults: of rows that are not null and have no frame; no id is negative.
    """

    rows: npt.NDArray[np.intp]
    schema_ids: npt.NDArray[np.int64]
    payloads: pa.Array
    faults: list[Fault]


def unframe(values: pa.Array, id_bytes: int) -> Unframed:
    """Take the frames off a column of type binary.

    Args:
        id_bytes: 4 or 8.
    """
    offsets, data = offsets_of(values), memory_of(values)
    starts, lengths = offsets[:-1], np.diff(offsets)
    is_valid = np.asarray(values.is_valid())
    is_framed = is_valid & (lengths > id_bytes)
    first = starts[is_framed]
    is_framed[is_framed] = (data[first] == MAGIC) & (data[first + 1] < 0x80)
    rows = np.flatnonzero(is_framed)
    frames = data[starts[rows][:, np.newaxis] + np.arange(1, 1 + id_bytes)]
    schema_ids = frames.view(f">i{id_bytes}").ravel().astype(np.int64)
    unframed = np.flatnonzero(is_valid & ~is_framed).tolist()
    faults = [Fault(row, _fault(data[starts[row] : offsets[row + 1]], id_bytes)) for row in unframed]
    payloads = binary_array(data, starts[rows] + 1 + id_bytes, lengths[rows] - 1 - id_bytes)
    return Unframed(rows, schema_ids, payloads, faults)


class Indexed(NamedTuple):
    """Payloads of Protobuf without Confluent's message indexes, which name a message type of the schema.

    Attributes:
        kinds: the different message indexes.
        kind: of each payload, its position in `kinds`; -1 at a fault.
        payloads: what follows; empty at a fault.
        faults: of payloads whose indexes are malformed.
    """

    kinds: list[tuple[int, ...]]
    kind: npt.NDArray[np.intp]
    payloads: pa.Array
    faults: list[Fault]


def without_message_indexes(payloads: pa.Array) -> Indexed:
    """Take the message indexes off payloads, none of which is null: a count and as many indexes, all zigzag varints. A
    single 0 stands for the first type, and is all that most records have."""
    offsets, data = offsets_of(payloads), memory_of(payloads)
    starts, ends = offsets[:-1].copy(), offsets[1:]
    kinds: dict[tuple[int, ...], int] = {(0,): 0}
    kind, faults = np.zeros(len(payloads), np.intp), []
    is_first = starts < ends
    is_first[is_first] = data[starts[is_first]] == 0
    starts[is_first] += 1
    for row in np.flatnonzero(~is_first).tolist():
        try:
            indexes, starts[row] = _read_indexes(data, int(starts[row]), int(ends[row]))
            kind[row] = kinds.setdefault(indexes, len(kinds)) if len(kinds) < MAX_KINDS else kinds[indexes]
        except LookupError:
            faults.append(Fault(row, "no frame: its message indexes are malformed"))
            kind[row], starts[row] = -1, ends[row]
    return Indexed(list(kinds), kind, binary_array(data, starts, ends - starts), faults)


def _read_indexes(data: npt.NDArray[np.uint8], at: int, end: int) -> tuple[tuple[int, ...], int]:
    """The message indexes at a position, and the position after them. Raises IndexError."""
    count, at = _zigzag(data, at, end)
    if not 0 < count <= MAX_INDEXES:
        raise IndexError
    indexes = []
    for _ in range(count):
        index, at = _zigzag(data, at, end)
        indexes.append(index)
    return tuple(indexes), at


def _zigzag(data: npt.NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= end:
            raise IndexError
        byte = int(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise IndexError


def _fault(value: npt.NDArray[np.uint8], id_bytes: int) -> str:
    if len(value) <= id_bytes:
        return f"no frame: {len(value)} bytes are shorter than a frame of {1 + id_bytes} bytes"
    return "no frame: its first byte is not 0" if value[0] != MAGIC else "no frame: its schema id is negative"
