"""Decodes columns of Avro values, without frames, into Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pyspark_kafka_meta.arrow_arrays import Longs, joined, memory_of, number_array, offsets_of, slices
from pyspark_kafka_meta.typed.avro.columns import Column
from pyspark_kafka_meta.typed.avro.cursor import WORD_BYTES, Cursor, Memory, TooManyEmptyItemsError
from pyspark_kafka_meta.typed.avro.resolution import resolve
from pyspark_kafka_meta.typed.avro.schema import AvroSchema, Primitive
from pyspark_kafka_meta.typed.formats import Decoded, Fault, ValueDecoder

CHUNK_ROWS = 32_768
"""The arrays of numbers for so many rows stay in a processor's cache."""
CHUNK_BYTES = 4 * 1024 * 1024
"""Of values that are decoded together, because items of arrays take about a hundred times their bytes while they are
decoded. A larger value is decoded alone."""


def avro_decoder(writer: AvroSchema, reader: AvroSchema, *, is_raw: bool = False) -> ValueDecoder:
    """Decodes values of the writer's schema to the Arrow type of the reader's. Raises ValueSchemaError: no value of the
    writer can be read, with the path of the field.

    Args:
        is_raw: whether values of a schema that is `bytes` are these bytes, without their length.
    """
    is_bytes = isinstance(writer, Primitive) and writer.type == "bytes"
    return _AvroDecoder(resolve(writer, reader), _WholeValues if is_raw and is_bytes else Cursor)


class _WholeValues(Cursor):
    """Values that are byte strings, each to its end."""

    def slices(self, size_bytes: int | None, field: str) -> tuple[Longs, Longs]:
        length = self.end - self.at
        return self.move(length), length


class _AvroDecoder:
    def __init__(self, column: Column, cursor: type[Cursor]) -> None:
        self._column, self._cursor = column, cursor

    @property
    def type(self) -> pa.DataType:
        return self._column.type

    def decode(self, values: pa.Array) -> Decoded:
        arrays: list[pa.Array] = []
        faults: list[Fault] = []
        for first, chunk in slices(values, CHUNK_ROWS, CHUNK_BYTES):
            for at, array, causes in self._decoded(first, chunk):
                arrays.append(array)
                faults += [Fault(at + row, causes[row]) for row in sorted(causes)]
        return Decoded(joined(arrays, self.type), faults)

    def _decoded(self, first: int, values: pa.BinaryArray) -> Iterator[tuple[int, pa.Array, dict[int, str]]]:
        """A chunk from a row on, in as many parts as it needs."""
        try:
            yield first, *self._decode_chunk(values)
        except TooManyEmptyItemsError:
            half = len(values) // 2
            yield from self._decoded(first, values[:half])
            yield from self._decoded(first + half, values[half:])

    def _decode_chunk(self, values: pa.BinaryArray) -> tuple[pa.Array, dict[int, str]]:
        """The decoded values, and the causes of faults by row."""
        offsets = offsets_of(values).astype(np.int64)
        rows = np.arange(len(values))
        if values.null_count:
            rows = rows[values.is_valid().to_numpy(zero_copy_only=False)]
        data, offsets = memory_of(values)[offsets[0] : offsets[-1] + WORD_BYTES], offsets - offsets[0]
        memory = Memory(data, len(values))
        cursor = self._cursor(memory, offsets[:-1][rows], offsets[1:][rows], rows)
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
