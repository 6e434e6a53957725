"""Kafka's hash of record keys, computed for all keys at once with numpy. Equals `murmur2` in Kafka's `Utils`."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.kafka.records.arrow_arrays import data_of, offsets_of

Words: TypeAlias = npt.NDArray[np.uint32]
Positions: TypeAlias = npt.NDArray[np.intp]

MIN_TOGETHER = 32
"""One step with numpy takes as long as this many words of the plain loop."""

_SEED = np.uint32(0x9747B28C)
_MULTIPLIER = np.uint32(0x5BD1E995)
_WORD_BYTES = 4


def murmur2(keys: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """The hash of each key; for a null key, of the empty key."""
    length = pc.fill_null(pc.binary_length(keys), 0).to_numpy()
    shorter_by = length.max(initial=0) - length
    # numpy sorts numbers of up to 16 bits by radix, which is faster unless they are in order.
    longest_first = np.argsort(shorter_by.astype(np.min_scalar_type(shorter_by.max(initial=0))), kind="stable")
    length = length[longest_first]
    offsets, data = offsets_of(keys), np.frombuffer(b"".join((data_of(keys), bytes(_WORD_BYTES))), np.uint8)
    starts = (offsets[:-1] - offsets[0])[longest_first].astype(np.intp)
    # Each four bytes of the data, without a copy.
    words = np.ndarray(len(data) - _WORD_BYTES + 1, np.dtype("<u4"), data, strides=(1,))
    hashes = np.empty(len(keys), np.uint32)
    hashes[longest_first] = _finish(words, starts, length, _add_words(words, starts, length))
    return hashes.view(np.int32)


def _add_words(words: Words, starts: Positions, length: Positions) -> Words:
    """The hashes after the whole words of each key, for keys in order of falling length.

    In each step numpy adds one word of all keys that have it. A plain loop adds what is left of the few longest keys.
    """
    hashes = length.astype(np.uint32) ^ _SEED
    minus_counts, step = -(length // _WORD_BYTES), 0
    while (keys := int(np.searchsorted(minus_counts, -step))) >= MIN_TOGETHER:
        hashes[:keys] = hashes[:keys] * _MULTIPLIER ^ _mixed(words[starts[:keys] + step * _WORD_BYTES])
        step += 1
    for key in range(keys):
        of_key = words[starts[key] + step * _WORD_BYTES :: _WORD_BYTES][: -minus_counts[key] - step]
        hashes[key] = _add_words_of_key(int(hashes[key]), _mixed(of_key))
    return hashes


def _add_words_of_key(key_hash: int, mixed: Words) -> int:
    multiplier = int(_MULTIPLIER)
    for word in mixed.tolist():
        key_hash = key_hash * multiplier & 0xFFFFFFFF ^ word
    return key_hash


def _mixed(words: Words) -> Words:
    words = words * _MULTIPLIER
    words ^= words >> 24
    words *= _MULTIPLIER
    return words


def _finish(words: Words, starts: Positions, length: Positions, hashes: Words) -> Words:
    """Adds the last one to three bytes of each key."""
    rest = length % _WORD_BYTES
    last_bytes = words[starts + length - rest] & ((1 << 8 * rest) - 1).astype(np.uint32)
    hashes = np.where(rest > 0, (hashes ^ last_bytes) * _MULTIPLIER, hashes)
    hashes ^= hashes >> 13
    hashes *= _MULTIPLIER
    hashes ^= hashes >> 15
    return hashes
