"""Finds the start positions of length-prefixed items: the records of a batch, the keys and values of record headers.

The start of an item depends on the length of the item before it. A plain loop takes 0.06 to 0.09 us per item: more than
all other steps of decoding a record of 200 B. So numpy follows many groups at the same time, one item of each group per
step. A few large batches are split into more groups, at guessed record starts.
"""

from __future__ import annotations

from bisect import bisect_left
from math import isqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pyspark_kafka_meta.kafka.records.batches import MIN_RECORD_BYTES
from pyspark_kafka_meta.kafka.records.fields import Bytes, Ints, guess_offset_deltas

Indexes: TypeAlias = npt.NDArray[np.intp]

MIN_TOGETHER = 48
"""One step with numpy takes as long as this many items of the plain loop."""
MAX_INTP_ITEMS = 1 << 20
"""Up to this many starts are stored in the type of the positions."""
MAX_LISTED = 65_536
"""Items of the plain loop in one list, in which each number takes 40 bytes."""
MIN_GUESSED_RECORDS = 8192
"""For fewer records, guessing can take longer than it saves: values may be full of zero bytes."""

# What the first and the second byte of a length add to the position: the byte itself, and its part of the length.
_FIRST_STEP = tuple(((byte & 0x7F) >> 1) + (2 if byte > 0x7F else 1) for byte in range(256))
_SECOND_STEP = tuple(byte << 6 for byte in range(128))
# What both bytes add, indexed by their little-endian number; 0 if the varint has more bytes.
_BYTE = np.arange(256)
_STEP_OF_TWO = np.where(_BYTE[:, np.newaxis] < 0x80, np.add.outer(_BYTE << 6, _FIRST_STEP), 0)
_STEP = np.where(_BYTE < 0x80, _FIRST_STEP, _STEP_OF_TWO).ravel().astype(np.intp)
_TOO_LONG = 2**31
"""Step of a length with more than five bytes: leads beyond the end of any payload."""


def find_record_starts(payload: Bytes, at: Ints, counts: Ints, ends: Ints) -> Ints:
    """`find_starts` for the records of adjacent batches without offset gaps: a record's offset delta is its index.

    A few batches with many records are split into groups at guessed record starts. If each group ends where the next
    group starts, all guesses are right; otherwise (a value may contain record batches) no guess is used.
    """
    records, end = int(counts.sum()), int(ends[-1])
    # A step in all groups takes about as long as 12 guesses: this number of guesses minimizes the total time.
    guesses = isqrt(12 * records)
    if records >= MIN_GUESSED_RECORDS and guesses >= 2 * len(counts):
        guessed_at, index = _guess_records(payload, end // guesses, guesses, 2 * end // records)
        group_at, group_counts = _split(at, counts, guessed_at, index)
        group_ends = np.append(group_at[1:], ends[-1:])
        if (group_counts > 0).all():
            starts = find_starts(payload, group_at, group_counts, group_ends)
            last = starts[np.cumsum(group_counts) - 1].astype(np.intp)
            if np.array_equal(last + _steps(payload, _pairs(payload), last), group_ends):
                return starts
    return find_starts(payload, at, counts, ends)


def _split(at: Ints, counts: Ints, guessed_at: Ints, index: Ints) -> tuple[Ints, Ints]:
    """The start and the record count of each group after a split at guessed records. A count below 1 proves a wrong
    guess."""
    batch = np.searchsorted(at, guessed_at, "right") - 1
    first = np.cumsum(counts) - counts
    group_at = np.concatenate([at, guessed_at])
    group_first = np.concatenate([first, first[batch] + index])
    in_order = np.argsort(group_at)
    group_counts = np.diff(group_first[in_order], append=counts.sum())
    return group_at[in_order].astype(np.int32), group_counts.astype(np.int32)


def _guess_records(payload: Bytes, stride: int, windows: int, window_bytes: int) -> tuple[Ints, Ints]:
    """Possible record starts in each window, and their indexes. Windows are `stride` bytes apart.

    A possible record has a length of one or two bytes, attributes 0, and is followed by a record of the next index.
    """
    view = payload[: windows * stride].reshape(windows, stride)[:, :window_bytes]
    # The last byte of a length is not 0 and has no continuation bit.
    row, column = np.divmod(np.flatnonzero((view[:, 2:] == 0) & (view[:, 1:-1] - 1 < 0x7F)), view.shape[1] - 2)
    attributes_at = (row * stride + column + 2).astype(np.int32)
    at = attributes_at - 1 - (payload[attributes_at - 2] > 0x7F)
    steps = _STEP.take(_pairs(payload)[at])
    next_at = np.minimum(at + steps, windows * stride)
    next_attributes_at = next_at + 1 + (payload[next_at] > 0x7F)
    likely = (steps >= MIN_RECORD_BYTES) & (payload[next_attributes_at] == 0)
    index = guess_offset_deltas(payload, attributes_at[likely])
    next_index = guess_offset_deltas(payload, next_attributes_at[likely])
    guessed = (index > 0) & (next_index == index + 1)
    return at[likely][guessed], index[guessed]


def find_starts(payload: Bytes, at: Ints, counts: Ints, ends: Ints) -> Ints:
    """Starts of length-prefixed items. Each group has `counts` items, at least one, between `at` and `ends`.

    numpy follows all groups at once: 0.02 us per item with hundreds of groups. A plain loop follows the few groups that
    have more items than the others.

    If a length leads beyond its group's end, the remaining starts of the group are that end: compare lengths with
    `expected_ends` to detect this. At least `PADDING_BYTES` follow the last end.
    """
    items = int(counts.sum())
    # The type of the positions, because a cast took half of the store time; many items take half the memory.
    starts = np.empty(items, np.intp if items <= MAX_INTP_ITEMS else np.int32)
    most_first = np.argsort(-counts, kind="stable")
    slots = (np.cumsum(counts) - counts)[most_first]
    positions, limits = at[most_first].astype(np.intp), ends[most_first].astype(np.intp)
    minus_counts, followed = (-counts[most_first]).tolist(), 0
    pairs = _pairs(payload)
    while (groups := bisect_left(minus_counts, -followed)) >= MIN_TOGETHER:
        positions = positions[:groups]
        starts[slots[:groups]] = positions
        positions = np.minimum(positions + _steps(payload, pairs, positions), limits[:groups])
        slots += 1
        followed += 1
    for group in range(groups):
        slot, until = int(slots[group]), int(slots[group]) - minus_counts[group] - followed
        limited, position = payload.data[: limits[group]], int(positions[group])
        for part in range(slot, until, MAX_LISTED):
            end = min(part + MAX_LISTED, until)
            starts[part:end], position = _follow_group(limited, position, end - part)
    return starts.astype(np.int32, copy=False)


def _steps(payload: Bytes, pairs: npt.NDArray[np.uint16], positions: Indexes) -> Indexes:
    """Distance from each item to the next: the size of its length field, plus its length."""
    steps = _STEP.take(pairs[positions])
    if np.count_nonzero(steps) < len(steps):
        long = np.flatnonzero(steps == 0)
        steps[long] = [_long_step(payload.data, position) for position in positions[long].tolist()]
    return steps


def _pairs(payload: Bytes) -> npt.NDArray[np.uint16]:
    """Each byte together with the next byte, without a copy."""
    return np.ndarray(len(payload) - 1, np.dtype("<u2"), payload, strides=(1,))


def _follow_group(payload: memoryview, at: int, count: int) -> tuple[list[int], int]:
    """The starts of one group that ends with the payload, and the position after them."""
    starts: list[int] = []
    append = starts.append
    try:
        for _ in range(count):
            first = payload[at]
            append(at)
            if first < 0x80:
                at += _FIRST_STEP[first]
            elif (second := payload[at + 1]) < 0x80:
                at += _FIRST_STEP[first] + _SECOND_STEP[second]
            else:
                at += _long_step(payload, at)
    except IndexError:
        at = len(payload)
        starts += [at] * (count - len(starts))
    return starts, at


def _long_step(payload: memoryview, at: int) -> int:
    """`_steps` for a length of at least 8 KiB, a varint of three to five bytes."""
    length = 0
    for size in range(5):
        byte = payload[at + size]
        length |= (byte & 0x7F) << 7 * size
        if byte < 0x80:
            return size + 1 + (length >> 1)
    return _TOO_LONG


def expected_ends(starts: Ints, counts: Ints, group_ends: Ints) -> Ints:
    """The end of each item: the start of the group's next item, or the group's end. Each group has an item."""
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    ends[np.cumsum(counts) - 1] = group_ends
    return ends
