"""The digest of a batch of rows: their number, and the sum of their hashes, whatever their order, tasks and partitions.

It shows whether a repeated batch has the rows that were decided. Rows are hashed as Spark hands them over: neither the
schemas of a registry nor the time of writing change their digest.

Bytes are padded with zeros to words w of 64 bits. Their hash is the sum of k * w + l * (w >> 32) modulo 2^64, with
constants k and l for each place. If the constants are drawn at random, two different values of the same length have
the same hash with a probability of at most 2^-32, as for any other multilinear hash (Lemire and Kaser, "Strongly
universal string hashing is fast"): the lower or the upper halves of some words differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from crc32c import crc32c

from pyspark_kafka_meta.model import NO_ROWS, RowDigest
from pyspark_kafka_meta.write.input_columns import TYPES, SinkColumns

Words: TypeAlias = npt.NDArray[np.uint64]
"""Also hashes."""

LONG_BYTES = 1024
"""A longer value has the hash of its CRC-32C: about here, one call for each value becomes as fast as numpy."""
BLOCK_ROWS = 2048
"""Bytes are padded to the longest value of so many rows, and stay in the cache of the CPU."""


def _mixed(numbers: Words) -> Words:
    """The output function of SplitMix64, a bijection."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


_PLACES = LONG_BYTES // 8 + 2
_OF_WORDS, _OF_UPPER_HALVES = _mixed(np.arange(1, 2 * _PLACES + 1, dtype=np.uint64)).reshape(2, _PLACES)
_OF_LENGTHS, _NULL = _OF_WORDS[-1], _OF_UPPER_HALVES[-1]


class RowDigester:
    """Computes the digest of the rows that pass.

    Attributes:
        digest: of all rows so far.
    """

    def __init__(self, columns: SinkColumns) -> None:
        self._positions = [getattr(columns, name) for name in TYPES]
        self.digest = NO_ROWS

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, unchanged."""
        for batch in batches:
            columns = [None if position is None else batch.column(position) for position in self._positions]
            hashes = _mixed(_row_hashes(columns, len(batch)))
            self.digest += RowDigest(len(batch), int(hashes.sum(dtype=np.uint64)))
            yield batch


def _row_hashes(columns: Iterable[pa.Array | None], rows: int) -> Words:
    """Of the values of each row. A missing column adds nothing."""
    hashes = np.zeros(rows, np.uint64)
    for column, constant in zip(columns, _OF_WORDS, strict=False):
        if column is not None:
            hashes += _hashes(column) * constant
    return hashes


def _hashes(values: pa.Array) -> Words:
    """Of values of any type that Spark has."""
    kind = values.type
    if pt.is_null(kind):
        return np.full(len(values), _NULL)
    if pt.is_boolean(kind):
        hashes = _number_hashes(values.cast(pa.uint8()))
    elif pt.is_struct(kind):
        hashes = _mixed(_row_hashes([values.field(at) for at in range(kind.num_fields)], len(values)))
    elif pt.is_nested(kind):
        hashes = _list_hashes(values)
    elif pt.is_primitive(kind) or pt.is_decimal(kind):
        hashes = _number_hashes(values)
    else:
        blocks = [_byte_hashes(values.slice(start, BLOCK_ROWS)) for start in range(0, len(values), BLOCK_ROWS)]
        hashes = np.concatenate(blocks) if blocks else np.zeros(0, np.uint64)
    if values.null_count:
        hashes[values.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _list_hashes(lists: pa.ListArray) -> Words:
    """Of lists or maps: of their items, in order."""
    offsets = lists.offsets.to_numpy()
    items, offsets = lists.values.slice(offsets[0], offsets[-1] - offsets[0]), offsets - offsets[0]
    places = np.arange(1, len(items) + 1) - np.repeat(offsets[:-1], np.diff(offsets))
    sums = np.append(np.uint64(0), _mixed(_hashes(items) + _mixed(places.astype(np.uint64))).cumsum())
    hashes: Words = sums[offsets[1:]] - sums[offsets[:-1]]
    return hashes


def _number_hashes(numbers: pa.Array) -> Words:
    """Of numbers and times of any width, as the bytes that they are in Arrow."""
    width = numbers.type.bit_width // 8
    words = np.frombuffer(numbers.buffers()[1] or b"", f"u{min(width, 8)}").astype(np.uint64, copy=False)
    words = words.reshape(-1, max(width // 8, 1)) if width > 8 else words.reshape(-1, 1)
    return _word_hashes(words[numbers.offset :][: len(numbers)])


def _byte_hashes(values: pa.Array) -> Words:
    """Of strings or binary values, also of Arrow's large types."""
    is_large = pt.is_large_binary(values.type) or pt.is_large_string(values.type)
    values = values.view(pa.large_string() if is_large else pa.string())
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy().astype(np.uint64)
    is_long = lengths > LONG_BYTES
    if is_long.any():
        offsets = np.frombuffer(values.buffers()[1], np.int64 if is_large else np.int32)[values.offset :].tolist()
        data = memoryview(values.buffers()[2])
        crcs = [crc32c(data[offsets[at] : offsets[at + 1]]) for at in np.flatnonzero(is_long).tolist()]
        values = pc.if_else(pa.array(is_long), "", values)
    width = max(int(lengths[~is_long].max(initial=0)) + 7, 8) // 8
    padded = pc.ascii_rpad(pc.fill_null(values, ""), 8 * width, "\0")
    hashes = _word_hashes(np.frombuffer(padded.buffers()[2], np.uint64, len(values) * width).reshape(-1, width))
    if is_long.any():
        hashes[is_long] = _word_hashes(np.array(crcs, np.uint64).reshape(-1, 1))
    hashes += lengths * _OF_LENGTHS
    return hashes


def _word_hashes(words: Words) -> Words:
    """Of the words in each row."""
    width = words.shape[1]
    hashes: Words = np.einsum("ij,j->i", words, _OF_WORDS[:width])
    hashes += np.einsum("ij,j->i", words >> np.uint64(32), _OF_UPPER_HALVES[:width])
    return hashes
