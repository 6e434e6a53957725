"""Decodes columns of Avro values, without frames, into Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.formats.avro_columns import Column
from pyspark_kafka_meta.formats.avro_cursor import WORD_BYTES, Bytes, Cursor, Longs, Memory, number_array
from pyspark_kafka_meta.formats.avro_resolution import resolve
from pyspark_kafka_meta.formats.avro_schema import AvroSchema
from pyspark_kafka_meta.formats.values import Decoded, Fault, ValueDecoder

CHUNK_ROWS = 32_768
"""The arrays of numbers for so many rows stay in a processor's cache."""
CHUNK_BYTES = 4 * 1024 * 1024
"""Of values that are decoded together, because items of arrays take about a hundred times their bytes while they are
decoded. A larger value is decoded alone."""


def avro_decoder(writer: AvroSchema, reader: AvroSchema) -> ValueDecoder:
    """Decodes values of the writer's schema to the Arrow type of the reader's.

    Raises:
        ValueSchemaError: no value of the writer can be read, with the path of the field.
    """
    return _AvroDecoder(resolve(writer, reader))


class _AvroDecoder:
    def __init__(self, column: Column) -> None:
        self._column = column

    @property
    def type(self) -> pa.DataType:
        return self._column.type

    def decode(self, values: pa.Array) -> Decoded:
        arrays: list[pa.Array] = []
        faults: list[Fault] = []
        for first, chunk in _chunks(values):
            array, causes = self._decode_chunk(chunk)
            arrays.append(array)
            faults += [Fault(first + row, causes[row]) for row in sorted(causes)]
        return Decoded(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), faults)

    def _decode_chunk(self, values: pa.BinaryArray) -> tuple[pa.Array, dict[int, str]]:
        """The decoded values, and the causes of faults by row."""
        offsets = _offsets(values)
        rows = np.arange(len(values))
        if values.null_count:
            rows = rows[values.is_valid().to_numpy(zero_copy_only=False)]
        data, offsets = _data(values)[offsets[0] : offsets[-1] + WORD_BYTES], offsets - offsets[0]
        memory = Memory(data, len(values))
        cursor = Cursor(memory, offsets[:-1][rows], offsets[1:][rows], rows)
        array = self._column.read(cursor)
        cursor.finish()
        return _in_rows(array, rows, len(values), list(memory.causes)), memory.causes


def _in_rows(array: pa.Array, rows: Longs, count: int, at_fault: list[int]) -> pa.Array:
    """The values in their rows; null in other rows, and in those at fault, whose values mean nothing."""
    if len(rows) == count and not at_fault:
        return array
    place, valid = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    place[rows], valid[rows] = np.arange(len(rows)), True
    valid[at_fault] = False
    return array.take(number_array(place, valid))


def _chunks(values: pa.BinaryArray) -> Iterator[tuple[int, pa.BinaryArray]]:
    """Slices of at least one row, with the index of the first; one empty slice of no values."""
    offsets = _offsets(values)
    first = 0
    while first == 0 or first < len(values):
        fitting = int(np.searchsorted(offsets, offsets[first] + CHUNK_BYTES, side="right")) - 1
        until = min(max(fitting, first + 1), first + CHUNK_ROWS, len(values))
        yield first, values.slice(first, until - first)
        first = max(until, 1)


def _offsets(values: pa.BinaryArray) -> Longs:
    """The start of each value in the data, and the end of the last."""
    if not len(values):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    return offsets.astype(np.int64)


def _data(values: pa.BinaryArray) -> Bytes:
    data = values.buffers()[2]
    return np.zeros(0, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
