"""Frames before encoded values, in which serializers name the writer's schema.

Confluent's serializers write the byte 0 and the id as 4 bytes, Apicurio's `DefaultIdHandler` as 8 bytes. Confluent's
`HeaderSchemaIdSerializer` writes the byte 1 and the schema's GUID into a header instead; `DualSchemaIdDeserializer`
prefers the header. All frames of a column are read together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import binary_array, list_lengths, memory_of, numbers_at, offsets_of
from pyspark_kafka_meta.typed.columnar.varints import varint_at, zigzag_bytes
from pyspark_kafka_meta.typed.formats import Fault

MAGIC, MAGIC_GUID = 0, 1
HEADER_ID_BYTES, GUID_BYTES, CONTENT_ID_BYTES = 4, 16, 8
MAX_INDEXES = 100
"""Protobuf's libraries nest no deeper."""
MAX_INDEX_BYTES = 5
FOREIGN_FRAME_BYTES = 36
"""Of the longest one that is recognised."""
MAX_KINDS = 1_000
"""Of different message types in a column: more are bytes that are no message indexes."""


def frame(schema_id: int, id_bytes: int, message_indexes: Sequence[int] = ()) -> bytes:
    """What precedes a value.

    Args:
        id_bytes: 4 or 8.
        message_indexes: of Protobuf, in Confluent's frames.
    """
    return bytes([MAGIC]) + schema_id.to_bytes(id_bytes) + _indexes_bytes(message_indexes)


def guid_frame(guid: str, message_indexes: Sequence[int] = ()) -> bytes:
    """The value of the header `id_header`. Args as of `frame`. Raises ValueError if it is no GUID."""
    return bytes([MAGIC_GUID]) + UUID(guid).bytes + _indexes_bytes(message_indexes)


def _indexes_bytes(message_indexes: Sequence[int]) -> bytes:
    numbers = [0] if tuple(message_indexes) == (0,) else [len(message_indexes), *message_indexes]
    return b"".join(zigzag_bytes(number) for number in numbers) if message_indexes else b""


class Unframed(NamedTuple):
    """A column without its frames.

    Attributes:
        rows: indexes of the rows with a frame; a null has none.
        schema_ids: in the frames of these rows; a negative number is a GUID.
        payloads: what follows their frames, of type binary.
        faults: of rows that are not null and have no frame; no id is negative.
        guids: of the schema ids -1, -2 ...
        message_indexes: of Protobuf; None if the payloads begin with them.
    """

    rows: npt.NDArray[np.intp]
    schema_ids: npt.NDArray[np.int64]
    payloads: pa.Array
    faults: list[Fault]
    guids: Sequence[str] = ()
    message_indexes: pa.Array | None = None

    def key(self, position: int) -> int | str:
        """The schema id at a position in `schema_ids`, or its GUID."""
        schema_id = int(self.schema_ids[position])
        return schema_id if schema_id >= 0 else self.guids[-1 - schema_id]


def unframe(values: pa.Array, id_bytes: int) -> Unframed:
    """Take the frames off a column of type binary.

    Args:
        id_bytes: 4 or 8.
    """
    offsets, data = offsets_of(values), memory_of(values)
    starts, lengths = offsets[:-1], np.diff(offsets)
    is_valid = np.array(values.is_valid())
    rows = np.flatnonzero(is_valid & (lengths > id_bytes))
    schema_ids = numbers_at(data, starts[rows] + 1, f">i{id_bytes}").astype(np.int64)
    is_framed = (data[starts[rows]] == MAGIC) & (schema_ids >= 0)
    if not is_framed.all():
        rows, schema_ids = rows[is_framed], schema_ids[is_framed]
    is_valid[rows] = False
    unframed = np.flatnonzero(is_valid).tolist()
    faults = [Fault(row, _fault(data[starts[row] : offsets[row + 1]], id_bytes)) for row in unframed]
    payloads = binary_array(data, starts[rows] + 1 + id_bytes, lengths[rows] - 1 - id_bytes)
    return Unframed(rows, schema_ids, payloads, faults)


class HeaderFrames(NamedTuple):
    """The frames of a column in the headers of its records.

    Attributes:
        header: its name.
        rows: indexes of the rows with such a header, in order.
        frames: the last one of each, of type binary without nulls.
    """

    header: str
    rows: npt.NDArray[np.intp]
    frames: pa.Array


def id_header(column: str) -> str:
    """The header with the frames of the column `key` or `value`."""
    return f"__{column}_schema_id"


def content_id_header(column: str) -> str:
    """The header with the content ids of Apicurio's serializers (`DefaultHeadersHandler`)."""
    return f"apicurio.{column}.contentId"


def header_frames(headers: pa.Array, name: str) -> HeaderFrames | None:
    """The frames in headers of this name; None if no record has one.

    Args:
        headers: the headers column.
    """
    if headers.null_count == len(headers):
        return None
    items = headers.flatten()
    at = pc.indices_nonzero(pc.equal(items.field("key"), name)).to_numpy()
    if not len(at):
        return None
    ends = np.cumsum(list_lengths(headers))
    rows = np.searchsorted(ends, at, side="right")
    is_last = np.append(rows[1:] != rows[:-1], True)
    frames = items.field("value").take(pa.array(at[is_last]))
    has_value = frames.is_valid()
    return HeaderFrames(name, rows[is_last][has_value.to_numpy(zero_copy_only=False)], frames.drop_null())


def unframe_with_headers(values: pa.Array, in_headers: HeaderFrames) -> Unframed:
    """The values of the rows with frames in headers, which they have whole."""
    is_value = np.asarray(values.is_valid())[in_headers.rows]
    frames, rows = in_headers.frames.filter(pa.array(is_value)), in_headers.rows[is_value]
    offsets, data = offsets_of(frames), memory_of(frames)
    starts, lengths = offsets[:-1], np.diff(offsets)
    magic = np.full(len(rows), -1)
    magic[lengths > 0] = data[starts[lengths > 0]]
    has_id = (magic == MAGIC) & (lengths > HEADER_ID_BYTES)
    has_id[has_id] = data[starts[has_id] + 1] < 0x80
    has_guid = (magic == MAGIC_GUID) & (lengths > GUID_BYTES)
    schema_ids = np.zeros(len(rows), np.int64)
    schema_ids[has_id] = numbers_at(data, starts[has_id] + 1, f">i{HEADER_ID_BYTES}")
    distinct, which = np.unique(numbers_at(data, starts[has_guid] + 1, f"V{GUID_BYTES}"), return_inverse=True)
    schema_ids[has_guid] = -1 - which
    is_framed = has_id | has_guid
    cause = f"no frame: its header {in_headers.header} is malformed"
    at = starts + 1 + np.where(has_guid, GUID_BYTES, HEADER_ID_BYTES)
    return Unframed(
        rows[is_framed],
        schema_ids[is_framed],
        values.take(pa.array(rows[is_framed])),
        [Fault(row, cause) for row in rows[~is_framed].tolist()],
        [str(UUID(bytes=guid.tobytes())) for guid in distinct],
        binary_array(data, at[is_framed], offsets[1:][is_framed] - at[is_framed]),
    )


def unframe_with_content_ids(values: pa.Array, in_headers: HeaderFrames | None, header: str) -> Unframed:
    """The values of a column, each whole, with the ids in headers of Apicurio's serializers: 8 bytes each."""
    framed = np.empty(0, np.int64) if in_headers is None else in_headers.rows
    frames = pa.array([], pa.binary()) if in_headers is None else in_headers.frames
    offsets, data = offsets_of(frames), memory_of(frames)
    is_id = (np.diff(offsets) == CONTENT_ID_BYTES) & np.asarray(values.is_valid())[framed]
    rows, starts = framed[is_id], offsets[:-1][is_id]
    schema_ids = numbers_at(data, starts, f">i{CONTENT_ID_BYTES}").astype(np.int64)
    rows, schema_ids = rows[schema_ids >= 0], schema_ids[schema_ids >= 0]
    without = np.array(values.is_valid())
    without[rows] = False
    cause = f"no frame: it has no header {header} with a content id ('apicurio.registry.use-id' of its producer)"
    faults = [Fault(row, cause) for row in np.flatnonzero(without).tolist()]
    return Unframed(rows, schema_ids, values.take(pa.array(rows)), faults)


def foreign_frame(value: bytes) -> str | None:
    """Whose frame, of those that cannot be read, a value begins with; None if it begins with none."""
    if len(value) > 18 and value[0] == 3 and value[1] in (0, 5):
        return "AWS Glue's"
    if value[:4] == bytes(4) and re.fullmatch(rb"[0-9a-f]{32}", value[4:36]):
        return "Azure's"
    return None


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
    starts, ends, view = offsets[:-1].copy(), offsets[1:], memoryview(data)  # type: ignore[arg-type]
    kinds: dict[tuple[int, ...], int] = {(0,): 0}
    kind, faults = np.zeros(len(payloads), np.intp), []
    is_first = starts < ends
    is_first[is_first] = data[starts[is_first]] == 0
    starts[is_first] += 1
    for row in np.flatnonzero(~is_first).tolist():
        try:
            indexes, starts[row] = _read_indexes(view, int(starts[row]), int(ends[row]))
            kind[row] = kinds.setdefault(indexes, len(kinds)) if len(kinds) < MAX_KINDS else kinds[indexes]
        except (ValueError, KeyError):
            faults.append(Fault(row, "no frame: its message indexes are malformed"))
            kind[row], starts[row] = -1, ends[row]
    return Indexed(list(kinds), kind, binary_array(data, starts, ends - starts), faults)


def _read_indexes(data: memoryview, at: int, end: int) -> tuple[tuple[int, ...], int]:
    """The message indexes at a position, and the position after them. Raises ValueError."""
    count, at = _zigzag(data, at, end)
    if not 0 < count <= MAX_INDEXES:
        raise ValueError
    indexes = []
    for _ in range(count):
        index, at = _zigzag(data, at, end)
        indexes.append(index)
    return tuple(indexes), at


def _zigzag(data: memoryview, at: int, end: int) -> tuple[int, int]:
    raw, at = varint_at(data, at, end, MAX_INDEX_BYTES)
    return raw >> 1 ^ -(raw & 1), at


def _fault(value: npt.NDArray[np.uint8], id_bytes: int) -> str:
    if len(value) <= id_bytes:
        return f"no frame: {len(value)} bytes are shorter than a frame of {1 + id_bytes} bytes"
    return "no frame: its first byte is not 0" if value[0] != MAGIC else "no frame: its schema id is negative"
