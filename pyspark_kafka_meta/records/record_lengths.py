"""Find where things begin that follow each other and state their lengths: the records of a record batch, the keys and
values of a record's headers.

Where one begins is known once the length of the one before it is, so that each has to wait for the one before. A plain
loop takes 0.06 to 0.09 us each: more than all else that decoding does with a record of 200 B. So numpy goes from thing
to thing in many groups at the same time, and where record batches are few, they are cut into more groups, at records
that are guessed.
"""

from __future__ import annotations

from bisect import bisect_left
from math import isqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pyspark_kafka_meta.records.record_batches import MIN_RECORD_BYTES
from pyspark_kafka_meta.records.record_fields import Bytes, Ints, guess_offset_deltas

Positions: TypeAlias = npt.NDArray[np.intp]

MIN_TOGETHER = 48
"""One turn of numpy's calls takes as long as this many of the plain loop."""
MIN_GUESSED_RECORDS = 8192
"""For fewer, guessing can take as long as it saves: values may be full of zero bytes."""

# What the first byte and the second byte of a varint add to the position: itself, and its share of the length.
_FIRST_STEP = tuple(((byte & 0x7F) >> 1) + (2 if byte > 0x7F else 1) for byte in range(256))
_SECOND_STEP = tuple(byte << 6 for byte in range(128))
# What both add, by the little-endian number that they are; 0 where the varint has more bytes.
_BYTE = np.arange(256)
_STEP_OF_TWO = np.where(_BYTE[:, np.newaxis] < 0x80, np.add.outer(_BYTE << 6, _FIRST_STEP), 0)
_STEP = np.where(_BYTE < 0x80, _FIRST_STEP, _STEP_OF_TWO).ravel().astype(np.intp)
_TOO_LONG = 2**31
"""A step that leads out of any payload: that of a length with more than five bytes."""


def follow_records(payload: Bytes, at: Ints, counts: Ints, ends: Ints) -> Ints:
    """What `follow_lengths` does, for the records of gapless batches that lie one behind the other: the offset delta
    of each record is its index in its batch.

    Few batches with many records are cut into groups, at records that are guessed. That each group ends where the next
    one begins shows that all guesses were right; if one was not, as a value may hold record batches, none is used.
    """
    records, end = int(counts.sum()), int(ends[-1])
    # A step in all groups takes about as long as 12 guesses: with that many, guessing and following take least.
    guesses = isqrt(12 * records)
    if records >= MIN_GUESSED_RECORDS and guesses >= 2 * len(counts):
        guessed_at, index = _guess_records(payload, end // guesses, guesses, 2 * end // records)
        group_at, group_counts = _cut(at, counts, guessed_at, index)
        group_ends = np.append(group_at[1:], ends[-1:])
        if (group_counts > 0).all():
            starts = follow_lengths(payload, group_at, group_counts, group_ends)
            last = starts[np.cumsum(group_counts) - 1].astype(np.intp)
            if np.array_equal(last + _steps(payload, _pairs(payload), last), group_ends):
                return starts
    return follow_lengths(payload, at, counts, ends)


def _cut(at: Ints, counts: Ints, guessed_at: Ints, index: Ints) -> tuple[Ints, Ints]:
    """The batches, cut at the guessed records: where each group begins, and its count of records, which only a wrong
    guess makes less than 1."""
    batch = np.searchsorted(at, guessed_at, "right") - 1
    first = np.cumsum(counts) - counts
    group_at = np.concatenate([at, guessed_at])
    group_first = np.concatenate([first, first[batch] + index])
    in_order = np.argsort(group_at)
    group_counts = np.diff(group_first[in_order], append=counts.sum())
    return group_at[in_order].astype(np.int32), group_counts.astype(np.int32)


def _guess_records(payload: Bytes, stride: int, windows: int, window_bytes: int) -> tuple[Ints, Ints]:
    """Where records seem to begin in each of the windows, which are `stride` apart, and what index each has.

    A record has a length of one byte or two, attributes 0, and behind it another one with the next index.
    """
    view = payload[: windows * stride].reshape(windows, stride)[:, :window_bytes]
    # The last byte of a length neither is 0 nor has the bit that says that more follow.
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


def follow_lengths(payload: Bytes, at: Ints, counts: Ints, ends: Ints) -> Ints:
    """Where things are that each begin with their length: `counts` of them, at least one, from each of `at` to `ends`.

    numpy goes from thing to thing in all groups at once: 0.02 us each in hundreds of groups. A plain loop follows each
    of the few groups that have more than the others.

    No position is behind its group's end, where the rest of a group is put if a length leads beyond: whether all
    lengths are true is for a check against `ends_of` to say. Behind the last end lie `PADDING_BYTES` or more.
    """
    starts = np.empty(int(counts.sum()), np.intp)  # as the positions: a cast took half of the time to put them
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
        slot, count = slots[group], -minus_counts[group] - followed
        starts[slot : slot + count] = _follow_one(payload.data[: limits[group]], int(positions[group]), count)
    return starts.astype(np.int32)


def _steps(payload: Bytes, pairs: npt.NDArray[np.uint16], positions: Positions) -> Positions:
    """What each length adds to its position: the bytes of the length itself, and those that it counts."""
    steps = _STEP.take(pairs[positions])
    if np.count_nonzero(steps) < len(steps):
        long = np.flatnonzero(steps == 0)
        steps[long] = [_long_step(payload.data, position) for position in positions[long].tolist()]
    return steps


def _pairs(payload: Bytes) -> npt.NDArray[np.uint16]:
    """Each byte together with the next one, without a copy."""
    return np.ndarray(len(payload) - 1, np.dtype("<u2"), payload, strides=(1,))


def _follow_one(payload: memoryview, at: int, count: int) -> list[int]:
    """What `follow_lengths` does, for one group that ends with the payload."""
    starts: list[int] = []
    add = starts.append
    try:
        for _ in range(count):
            first = payload[at]
            add(at)
            if first < 0x80:
                at += _FIRST_STEP[first]
            elif (second := payload[at + 1]) < 0x80:
                at += _FIRST_STEP[first] + _SECOND_STEP[second]
            else:
                at += _long_step(payload, at)
    except IndexError:
        starts += [len(payload)] * (count - len(starts))
    return starts


def _long_step(payload: memoryview, at: int) -> int:
    """What a length of 8 KiB or more, a varint of three to five bytes, adds to the position."""
    length = 0
    for size in range(5):
        byte = payload[at + size]
        length |= (byte & 0x7F) << 7 * size
        if byte < 0x80:
            return size + 1 + (length >> 1)
    return _TOO_LONG


def ends_of(starts: Ints, counts: Ints, group_ends: Ints) -> Ints:
    """Where each thing has to end: where the next one of its group starts, the last one at the end of the group.
    Each group has at least one."""
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    ends[np.cumsum(counts) - 1] = group_ends
    return ends
