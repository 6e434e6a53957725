"""Chooses the partition of each row. Follows Kafka's `KafkaProducer.partition` and `BuiltInPartitioner` (KIP-794).

The hash of keys equals `murmur2` in Kafka's `Utils`, and is computed for all keys at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import data_of, offsets_of
from pyspark_kafka_meta.kafka.records.encoder import Records
from pyspark_kafka_meta.kafka.records.fields import Flags, Ints, Longs

_POSITIVE = 0x7FFFFFFF
"""As Kafka's `Utils.toPositive`."""
MIN_TOGETHER = 32
"""One step of the hash with numpy takes as long as this many words of the plain loop."""
_SEED = np.uint32(0x9747B28C)
_MULTIPLIER = np.uint32(0x5BD1E995)
_WORD_BYTES = 4

Words: TypeAlias = npt.NDArray[np.uint32]
ByteIndexes: TypeAlias = npt.NDArray[np.intp]


class RowTopics(NamedTuple):
    """The topics of rows.

    Attributes:
        of_rows: of each row, an index in `names`.
        partition_counts: of each topic.
    """

    names: Sequence[str]
    of_rows: Ints
    partition_counts: Ints

    def counts_of(self, rows: Flags) -> Ints:
        """How many partitions the topics of these rows have: of each row, or of all."""
        return self.partition_counts if len(self.names) == 1 else self.partition_counts[self.of_rows[rows]]

    def groups(self, rows: Longs) -> Iterator[tuple[int, Longs]]:
        """The index of each topic that has some of these rows, and its rows, in order."""
        if len(self.names) == 1:
            groups = [rows]
        else:
            # numpy sorts numbers of up to 16 bits by radix, eight times faster.
            key = self.of_rows[rows].astype(np.min_scalar_type(len(self.names)))
            rows = rows[np.argsort(key, kind="stable")]
            groups = np.split(rows, np.flatnonzero(np.diff(self.of_rows[rows])) + 1)
        return ((int(self.of_rows[group[0]]), group) for group in groups if group.size)


@dataclass(slots=True)
class _Sticky:
    """The partition that the rows of one topic without a key fill, and the bytes that it was given."""

    partition: int = -1
    given_bytes: int = 0

    def change(self, partition: int) -> None:
        self.partition, self.given_bytes = partition, 0


class Partitioner:
    """Keeps the sticky partition of each topic between calls.

    Args:
        ignore_keys: rows with a key get a partition like rows without a key.
        sticky_bytes: how many bytes of rows without a key fill one partition before chance chooses another.
    """

    def __init__(self, ignore_keys: bool, sticky_bytes: int, rng: random.Random) -> None:
        self._ignore_keys = ignore_keys
        self._sticky_bytes = sticky_bytes
        self._rng = rng
        self._sticky: dict[str, _Sticky] = {}

    def assign(
        self,
        topics: RowTopics,
        records: Records,
        sizes: Longs,
        chosen: Ints | None,
        available: Callable[[str], Sequence[int]],
    ) -> Ints:
        """The partition of each row: the chosen one, else by the hash of its key, else sticky.

        Args:
            sizes: of the records, in bytes.
            chosen: negative for rows without a choice. None if no row has a choice.
            available: the partitions of a topic that have a leader, for rows without a key. If there are none, all
                partitions are used.
        """
        partition = np.full(len(sizes), -1, np.int32) if chosen is None else chosen.astype(np.int32)
        if not self._ignore_keys:
            keyed = (partition < 0) & records.key.is_valid().to_numpy(zero_copy_only=False)
            if keyed.any():
                partition[keyed] = (murmur2(records.key)[keyed] & _POSITIVE) % topics.counts_of(keyed)
        for topic, members in topics.groups(np.flatnonzero(partition < 0)):
            name = topics.names[topic]
            partitions = available(name) or range(topics.partition_counts[topic])
            partition[members] = self._stick(name, sizes[members], partitions)
        return partition

    def _stick(self, topic: str, sizes: Longs, partitions: Sequence[int]) -> Ints:
        """The sticky partition of each row."""
        result = np.empty(len(sizes), np.int32)
        ends_at = np.cumsum(sizes)
        sticky = self._sticky.setdefault(topic, _Sticky())
        if sticky.partition not in partitions:
            sticky.change(self._other(sticky.partition, partitions))
        start = used_bytes = 0
        while start < len(sizes):
            if sticky.given_bytes >= self._sticky_bytes:
                sticky.change(self._other(sticky.partition, partitions))
            full_at = used_bytes + self._sticky_bytes - sticky.given_bytes
            until = min(int(np.searchsorted(ends_at, full_at)) + 1, len(sizes))
            result[start:until] = sticky.partition
            sticky.given_bytes += int(ends_at[until - 1]) - used_bytes
            start, used_bytes = until, int(ends_at[until - 1])
        return result

    def _other(self, current: int, partitions: Sequence[int]) -> int:
        """A partition by chance, not the current partition if there are others."""
        while (partition := self._rng.choice(partitions)) == current and len(partitions) > 1:
            pass
        return partition


# --- the hash of keys -------------------------------------------------------------------------------------------------


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


def _add_words(words: Words, starts: ByteIndexes, length: ByteIndexes) -> Words:
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


def _finish(words: Words, starts: ByteIndexes, length: ByteIndexes, hashes: Words) -> Words:
    """Adds the last one to three bytes of each key."""
    rest = length % _WORD_BYTES
    last_bytes = words[starts + length - rest] & ((1 << 8 * rest) - 1).astype(np.uint32)
    hashes = np.where(rest > 0, (hashes ^ last_bytes) * _MULTIPLIER, hashes)
    hashes ^= hashes >> 13
    hashes *= _MULTIPLIER
    hashes ^= hashes >> 15
    return hashes
