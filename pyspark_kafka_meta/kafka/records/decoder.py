"""Decodes fetched bytes into rows: decompresses and checks record batches and returns `pa.RecordBatch`es.

Record batches of all partitions are decoded together, in chunks of `CHUNK_BYTES` or `CHUNK_RECORDS`: about the size of
a CPU cache, which keeps numpy's temporary arrays cheap. Of large records, whose arrays are short, a chunk is twice as
large: the columns of a chunk take milliseconds, however few its records are.

A chunk with a larger record batch is decoded in slices of `SLICE_BYTES` or `SLICE_RECORDS`, first to check all of them,
then for the rows. So memory beside the decompressed batch is 4 bytes for each record, and one slice with its columns:
see SECURITY.md.

Slower alternatives: a whole fetch at once (two to three times slower: numpy's temporary arrays are fresh pages); chunks
of 0.5 MB (a sixth slower: more numpy calls); uncompressed batches without a copy (no faster: the copy warms the cache).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_kafka_meta.errors import BatchTooLargeError, CorruptBatchError, UnsupportedRecordFormatError
from pyspark_kafka_meta.kafka.records.batches import (
    HEADER_BYTES,
    MIN_RECORD_BYTES,
    BatchHeader,
    without_aborted_batches,
)
from pyspark_kafka_meta.kafka.records.boundaries import expected_ends, find_record_starts, find_starts
from pyspark_kafka_meta.kafka.records.columns import COLUMNS, Rows, describe_batch
from pyspark_kafka_meta.kafka.records.compression import Codec, TargetFullError, decompress_into
from pyspark_kafka_meta.kafka.records.fields import PADDING_BYTES, Bytes, Flags, Ints, find_fields, require
from pyspark_kafka_meta.kafka.records.reusable_buffer import ReusableBuffer
from pyspark_kafka_meta.kafka.records.schema import (
    HEADERS_COLUMN,
    SCHEMA_ID_HEADERS_COLUMN,
    records_arrow_schema,
    rows_without_columns,
)
from pyspark_kafka_meta.model import TopicPartition

CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_RECORDS = 65_536
FEW_RECORDS = 4_096
"""With fewer, a chunk has up to 2 * `CHUNK_BYTES`."""
SLICE_BYTES = 4 * CHUNK_BYTES
SLICE_RECORDS = 4 * CHUNK_RECORDS
MIN_BUFFER_BYTES = 1024 * 1024
USUAL_EXPANSION = 8
"""The decompressed size of a batch is expected to be up to as many times its compressed size: memory grows if not."""
USUAL_BYTES = 64 * 1024 * 1024
"""Decompressed size up to which reused memory grows. A larger record batch gets memory of its own."""
MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024

_MAX_BUFFER_BYTES = 2**31 - 1  # positions are int32, as Arrow's are


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """The fetched records of one partition.

    Attributes:
        records: concatenated record batches, as fetched.
        headers: of the complete batches in `records`, from `read_batch_headers`.
        until_offset: exclusive; records outside [from_offset, until_offset) are skipped.
        aborted_transactions: (producer id, first offset) pairs of the Fetch response, for read_committed.
    """

    partition: TopicPartition
    records: bytes | memoryview
    headers: Sequence[BatchHeader]
    from_offset: int
    until_offset: int
    aborted_transactions: tuple[tuple[int, int], ...] = ()
    read_committed: bool = False


class Selection(NamedTuple):
    """Which records become rows: those that `are_kept` says of a batch of these columns. Other columns are built of
    kept records alone. `on_selected` gets the batch and these flags once for each record: a batch is tested again if a
    header of its chunk is corrupt."""

    columns: Sequence[str]
    are_kept: Callable[[pa.RecordBatch], Flags]
    on_selected: Callable[[pa.RecordBatch, Flags], None]


_Batch: TypeAlias = tuple[FetchedRecords, BatchHeader]


def decode(
    parts: Sequence[FetchedRecords],
    columns: Sequence[str],
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    memory: ReusableBuffer | None = None,
    selection: Selection | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of the parts in order, as `records_arrow_schema(columns)`; only the given columns are decoded.

    Yields no empty batch. The yielded batches do not refer to the fetched bytes.

    Args:
        columns: without any, the rows are only counted.
        max_decompressed_bytes: limit for one compressed record batch.
        memory: to decompress into; None for new memory.
        selection: None for all records.
    Raises:
        CorruptBatchError: lengths, counts or offsets contradict each other, or compressed data are malformed. The rows
            before the error's `from_offset`, and the rows of earlier parts, were yielded before.
        BatchTooLargeError: a batch decompresses to more than `max_decompressed_bytes`.
        UnsupportedRecordFormatError: a timestamp does not fit Spark's microseconds, or a batch or its header keys are
            over 2 GiB.
    """
    batches: list[_Batch] = []
    corrupt = None
    for part in parts:
        try:
            batches += _batches_with_rows(part)
        except CorruptBatchError as error:
            assert error.from_offset is not None
            before = [header for header in part.headers if header.base_offset < error.from_offset]
            batches += _batches_with_rows(replace(part, headers=before))
            from_offset = max(part.from_offset, error.from_offset)
            corrupt = _with_range(error, part.partition, from_offset, error.until_offset)
            break
    yield from _decode(batches, columns, max_decompressed_bytes, memory or ReusableBuffer(), selection)
    if corrupt is not None:
        raise corrupt


def _decode(
    batches: Sequence[_Batch],
    columns: Sequence[str],
    max_decompressed_bytes: int,
    memory: ReusableBuffer,
    selection: Selection | None,
) -> Iterator[pa.RecordBatch]:
    decoded = 0
    try:
        for chunk in _chunks(batches, max_decompressed_bytes, memory):
            yield from _decode_chunk(chunk, columns, selection)
            decoded += len(chunk.headers)
            del chunk  # the next chunk may be large
        return
    except CorruptBatchError as error:
        if len(batches) == 1:
            part, header = batches[0]
            from_offset = max(part.from_offset, header.base_offset)
            raise _with_range(error, part.partition, from_offset, header.last_offset + 1) from None
    # One of several batches that were decoded together: decode each alone for the rows before the corrupt batch.
    for batch in batches[decoded:]:
        yield from _decode([batch], columns, max_decompressed_bytes, memory, selection)


def _with_range(
    error: CorruptBatchError, partition: TopicPartition, from_offset: int, until_offset: int | None
) -> CorruptBatchError:
    return CorruptBatchError(str(error), partition.topic, partition.partition, from_offset, until_offset)


def _batches_with_rows(part: FetchedRecords) -> list[_Batch]:
    """The data batches that overlap the range of offsets and, with read_committed, were not aborted."""
    headers: Sequence[BatchHeader] = part.headers
    if part.read_committed:
        headers = without_aborted_batches(headers, part.records, part.aborted_transactions)
    return [
        (part, header)
        for header in headers
        if header.record_count
        and not header.is_control
        and header.base_offset < part.until_offset
        and header.last_offset >= part.from_offset
    ]


@dataclass(slots=True)
class _Chunk:
    """Record batches that are decoded together.

    Attributes:
        buffer: the decompressed records; the next chunk reuses the memory.
        used: bytes in `buffer`.
        parts, headers: of each batch.
        starts, ends: positions of each batch's records in `buffer`.
    """

    buffer: memoryview
    used: int = 0
    parts: list[FetchedRecords] = field(default_factory=list)
    headers: list[BatchHeader] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    records: int = 0

    @property
    def is_full(self) -> bool:
        chunk_bytes = CHUNK_BYTES if self.records >= FEW_RECORDS else 2 * CHUNK_BYTES
        return self.used >= chunk_bytes or self.records >= CHUNK_RECORDS

    def add(self, part: FetchedRecords, header: BatchHeader, max_decompressed_bytes: int) -> bool:
        """Returns whether the batch fits."""
        data = memoryview(part.records)[header.position + HEADER_BYTES : header.end]
        codec, start = header.codec, self.used
        room = len(self.buffer) - PADDING_BYTES - start
        size = min(room, len(data) if codec is Codec.NONE else max_decompressed_bytes)
        try:
            self.used += decompress_into(codec, data, self.buffer[start : start + size])
        except TargetFullError:
            return False
        if header.record_count * MIN_RECORD_BYTES > self.used - start:
            raise CorruptBatchError(f"{header.record_count} records in {self.used - start} bytes")
        self.starts.append(start)
        self.records += header.record_count
        self.parts.append(part)
        self.headers.append(header)
        self.ends.append(self.used)
        return True


def _chunks(batches: Sequence[_Batch], max_decompressed_bytes: int, memory: ReusableBuffer) -> Iterator[_Chunk]:
    """The batches in chunks. A chunk is valid until the next chunk is requested."""
    size = _buffer_bytes(batches)
    chunk = _Chunk(memory.whole(size))
    for part, header in batches:
        try:
            if not chunk.add(part, header, max_decompressed_bytes):
                if chunk.headers:
                    yield chunk
                room = len(chunk.buffer)
                del chunk  # so that its memory can be reused, or freed
                chunk = _larger_chunk(part, header, room, max_decompressed_bytes, memory)
        except CorruptBatchError as error:
            raise CorruptBatchError(f"{describe_batch(part.partition, header)}: {error}") from None
        if chunk.is_full:
            yield chunk
            del chunk  # as above
            chunk = _Chunk(memory.whole(size))
    if chunk.headers:
        yield chunk


def _buffer_bytes(batches: Sequence[_Batch]) -> int:
    """Memory for the chunks of these batches: for all of them, or a chunk that ends with the largest."""
    sizes = [
        header.length if header.codec is Codec.NONE else min(USUAL_EXPANSION * header.length, USUAL_BYTES)
        for _, header in batches
    ]
    largest = max(sizes, default=0)
    size = max(min(sum(sizes), 2 * CHUNK_BYTES + largest), MIN_BUFFER_BYTES) + PADDING_BYTES
    if size > _MAX_BUFFER_BYTES:
        raise UnsupportedRecordFormatError(f"a record batch of {largest} bytes is larger than can be decoded")
    return size


def _larger_chunk(
    part: FetchedRecords, header: BatchHeader, room: int, max_decompressed_bytes: int, memory: ReusableBuffer
) -> _Chunk:
    """A chunk of one batch that did not fit into `room`, maybe behind others, in the reused memory, which grows. A
    batch of more than `USUAL_BYTES` gets memory of its own, which the system takes back."""
    largest = max(max_decompressed_bytes, header.length)  # a batch without a codec may be larger
    while True:
        room = min(2 * room, largest)
        size = room + PADDING_BYTES
        chunk = _Chunk(memory.whole(size) if room <= USUAL_BYTES else np.empty(size, np.uint8).data)
        if chunk.add(part, header, max_decompressed_bytes):
            return chunk
        del chunk  # before it is allocated anew
        if room == largest:
            break
    offset = max(part.from_offset, header.base_offset)
    raise BatchTooLargeError(
        f"{part.partition} at offset {offset}: a record batch of {header.length} bytes decompresses to more than "
        f"{max_decompressed_bytes} bytes; set the option maxDecompressedBatchBytes to more",
        part.partition.topic,
        part.partition.partition,
        offset,
    )


def _decode_chunk(chunk: _Chunk, columns: Sequence[str], selection: Selection | None) -> Iterator[pa.RecordBatch]:
    """The rows of a chunk. Rows of a large chunk are checked before the first is yielded."""
    records = _RecordsOfChunk.of(chunk)
    slices = records.slices()
    # The fields of few records are kept. Others are found again, because they may take more memory than the records.
    kept = list(records.rows(slices)) if len(records.starts) <= SLICE_RECORDS else []
    if len(slices) > 1:
        built_later = {*columns, *(() if selection is None else selection.columns)}
        for rows in kept or records.rows(slices):
            for name in (HEADERS_COLUMN, SCHEMA_ID_HEADERS_COLUMN):
                if name in built_later:
                    COLUMNS[name](rows)
    for rows in kept or records.rows(slices):
        if rows.offset.size:
            yield from [_record_batch(rows, columns, {})] if selection is None else _selected(rows, columns, selection)


def _selected(rows: Rows, columns: Sequence[str], selection: Selection) -> list[pa.RecordBatch]:
    """A batch of the kept rows, or none."""
    tested = _record_batch(rows, selection.columns, {})
    are_kept = selection.are_kept(tested)
    rows, built = rows.select(are_kept), tested.filter(pa.array(are_kept))
    known = dict(zip(selection.columns, built.columns, strict=True))
    batches = [_record_batch(rows, columns, known)] if rows.offset.size else []
    selection.on_selected(tested, are_kept)
    return batches


def _record_batch(rows: Rows, columns: Sequence[str], built: Mapping[str, pa.Array]) -> pa.RecordBatch:
    if not columns:
        return rows_without_columns(rows.offset.size)
    arrays = [built[name] if name in built else COLUMNS[name](rows) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=records_arrow_schema(columns))


@dataclass(frozen=True, slots=True)
class _RecordsOfChunk:
    """The records of a chunk.

    Attributes:
        parts, headers: of each batch.
        counts, ends, last_delta: of each batch: its records, their end in `payload`, the last offset delta.
        starts: of each record.
    """

    payload: Bytes
    parts: Sequence[FetchedRecords]
    headers: Sequence[BatchHeader]
    counts: Ints
    ends: Ints
    last_delta: Ints
    starts: Ints

    @staticmethod
    def of(chunk: _Chunk) -> _RecordsOfChunk:
        payload = np.frombuffer(chunk.buffer, np.uint8)
        counts = np.array([header.record_count for header in chunk.headers], np.int32)
        ends = np.array(chunk.ends, np.int32)
        last_delta = np.array([header.last_offset_delta for header in chunk.headers], np.int32)
        find = find_record_starts if np.array_equal(last_delta + 1, counts) else find_starts
        starts = find(payload, np.array(chunk.starts, np.int32), counts, ends)
        return _RecordsOfChunk(payload, chunk.parts, chunk.headers, counts, ends, last_delta, starts)

    def slices(self) -> list[tuple[int, int]]:
        """(first, end exclusive) of the records in each slice. A record above `SLICE_BYTES` is a slice of its own."""
        bounds = [0]
        while bounds[-1] < len(self.starts):
            first = bounds[-1]
            within = int(np.searchsorted(self.starts, int(self.starts[first]) + SLICE_BYTES))
            bounds.append(max(first + 1, min(within, first + SLICE_RECORDS)))
        return list(pairwise(bounds))

    def rows(self, slices: Sequence[tuple[int, int]]) -> Iterator[Rows]:
        """The records of each slice that are inside their part's range of offsets."""
        partitions = [part.partition for part in self.parts]
        base_offset = np.array([header.base_offset for header in self.headers], np.int64)
        from_offset = np.array([part.from_offset for part in self.parts], np.int64)
        until_offset = np.array([part.until_offset for part in self.parts], np.int64)
        are_inside = all(
            part.from_offset <= header.base_offset and header.last_offset < part.until_offset
            for part, header in zip(self.parts, self.headers, strict=True)
        )
        batch_ends = np.cumsum(self.counts)
        batch_starts = batch_ends - self.counts
        delta_before = -1
        for first, last in slices:
            # From here on, a batch is the part of it that is in the slice.
            counts = np.minimum(batch_ends, last) - np.maximum(batch_starts, first)
            batches = np.flatnonzero(counts > 0)
            counts = counts[batches]
            batch = np.repeat(batches, counts)

            def locate(record: int, batch: npt.NDArray[np.intp] = batch) -> str:
                return describe_batch(partitions[batch[record]], self.headers[batch[record]])

            starts = self.starts[first:last]
            ends = np.minimum(self.ends[batches], self.starts[last] if last < len(self.starts) else self.ends[-1])
            fields = find_fields(self.payload, starts, expected_ends(starts, counts, ends), locate)
            lowest = np.where(batch_starts[batches] < first, delta_before + 1, 0)
            increases = _increase(fields.offset_delta, counts, lowest, self.last_delta[batches])
            require(increases, "offsets do not increase up to the batch's last", locate)
            delta_before = int(fields.offset_delta[-1])
            offset = base_offset[batch] + fields.offset_delta
            if not are_inside:
                inside = (offset >= from_offset[batch]) & (offset < until_offset[batch])
                batch, offset, fields = batch[inside], offset[inside], fields.select(inside)
            yield Rows(self.payload, partitions, self.headers, batch, offset, fields)


def _increase(delta: Ints, counts: Ints, lowest: Ints, last_delta: Ints) -> Flags:
    """Whether the offset deltas of each batch increase, from at least `lowest` to at most the batch's last delta."""
    ends = np.cumsum(counts)
    holds = np.empty(len(delta), np.bool_)
    holds[1:] = delta[1:] > delta[:-1]
    holds[ends - counts] = delta[ends - counts] >= lowest
    holds[ends - 1] &= delta[ends - 1] <= last_delta
    return holds
