"""Computes the cost of leader changes for readers: delays of records around each change and before.

Records are numbered from 0, times are seconds since 1970, and the time of an event that never happened is infinity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAD_S = 1.0
"""Records sent this shortly before a move may be unread when it starts: they count as sent around the move."""
CALM_S = 3.0
"""Duration of the calm stretch before that, for the usual delay."""

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Written:
    """Partition, send time and acknowledgement time of every record, by its number."""

    partition: NDArray[np.int64]
    sent: Times
    acked: Times


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The record numbers and arrival times of one reader, in the order of reading."""

    number: NDArray[np.int64]
    time: Times

    def first(self, count: int) -> Times:
        """The time of the first arrival of each record numbered below `count`."""
        times = np.full(count, np.inf)
        np.minimum.at(times, self.number, self.time)
        return times


@dataclass(frozen=True, slots=True)
class Move:
    """A change of leaders.

    Attributes:
        began: time of the election or the kill.
        named: first time at which brokers reported a new leader of each partition.
        ready: time at which each new leader had written and replicated a record. Before, it serves no records.
        until: records sent until this time count as sent around the move.
    """

    kind: str
    partitions: frozenset[int]
    began: float
    named: float
    ready: float
    until: float


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of the moves of one kind for one reader: ms, one figure for each move, except `usual_ms`.

    The delay of a record starts at its acknowledgement; in moved partitions, not before the new leaders were ready.

    Attributes:
        usual_ms: the largest delay in a calm stretch, in the partitions that move next; median of the stretches before
            moves of all kinds.
        added_ms: the largest delay around each move, minus `usual_ms`: the reader's time in addition to the cluster's.
        others_ms: as `added_ms`, in the partitions whose leaders did not move.
        delay_ms: the largest delay around each move since the send time, as a user sees it.
    """

    usual_ms: float
    added_ms: tuple[float, ...]
    others_ms: tuple[float, ...]
    delay_ms: tuple[float, ...]


def costs(written: Written, arrived: Times, moves: Sequence[Move]) -> dict[str, Cost]:
    """The costs by kind of move, for a reader with these arrival times."""
    worst = [_worst_around(written, arrived, move) for move in moves]
    usual_ms = float(np.nanmedian([delays.usual_ms for delays in worst]))
    usual_others_ms = float(np.nanmedian([delays.usual_others_ms for delays in worst]))
    by_kind: dict[str, list[_Worst]] = {}
    for move, delays in zip(moves, worst, strict=True):
        by_kind.setdefault(move.kind, []).append(delays)
    return {kind: _cost(group, usual_ms, usual_others_ms) for kind, group in by_kind.items()}


def lost_and_repeated(written: Written, arrivals: Arrivals, until: float) -> tuple[int, int]:
    """Counts of the acknowledged records sent before `until` that never arrived, and that arrived again."""
    due = np.isfinite(written.acked) & (written.sent < until)
    times = np.bincount(arrivals.number, minlength=len(due))
    return int(np.count_nonzero(due & (times == 0))), int(np.sum(np.maximum(times - 1, 0)))


def _cost(worst: Sequence[_Worst], usual_ms: float, usual_others_ms: float) -> Cost:
    return Cost(
        usual_ms=usual_ms,
        added_ms=tuple(_added(delays.late_ms, usual_ms) for delays in worst),
        others_ms=tuple(_added(delays.others_ms, usual_others_ms) for delays in worst),
        delay_ms=tuple(delays.delay_ms for delays in worst),
    )


def _added(late_ms: float, usual_ms: float) -> float:
    return late_ms if math.isinf(late_ms) else late_ms - usual_ms


class _Worst(NamedTuple):
    usual_ms: float
    usual_others_ms: float
    late_ms: float
    others_ms: float
    delay_ms: float


def _worst_around(written: Written, arrived: Times, move: Move) -> _Worst:
    acknowledged = np.isfinite(written.acked)
    moved = np.isin(written.partition, list(move.partitions))
    began = move.began - LEAD_S
    calm = acknowledged & (written.sent >= began - CALM_S) & (written.sent < began)
    around = acknowledged & (written.sent >= began) & (written.sent < move.until)
    due = np.where(moved & around, np.maximum(written.acked, move.ready), written.acked)
    return _Worst(
        usual_ms=_worst_ms(arrived, due, calm & moved),
        usual_others_ms=_worst_ms(arrived, due, calm & ~moved),
        late_ms=_worst_ms(arrived, due, around & moved),
        others_ms=_worst_ms(arrived, due, around & ~moved),
        delay_ms=_worst_ms(arrived, written.sent, around & moved),
    )


def _worst_ms(arrived: Times, due: Times, records: NDArray[np.bool_]) -> float:
    """Infinite if a record is lost, NaN without records."""
    return float(np.max(arrived[records] - due[records])) * 1000 if np.any(records) else float("nan")
