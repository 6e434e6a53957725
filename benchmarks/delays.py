"""What leader moves cost readers: delays of the records around each move beside those right before it, as plain arrays.

Records are numbered from 0, times are seconds since 1970, and what never happened has the time infinity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAD_S = 1.0
"""Records sent so shortly before a move may still be unread when it comes: they count as sent around it."""
CALM_S = 3.0
"""How long the readers are watched before that, for what is usual."""

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Written:
    """Every record that was sent, by its number: to which partition, when, and when its leader acknowledged it."""

    partition: NDArray[np.int64]
    sent: Times
    acked: Times


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What one reader got: the number of a record and when the reader had it, in the order of reading."""

    number: NDArray[np.int64]
    time: Times

    def first(self, count: int) -> Times:
        """When each of the records numbered below `count` arrived first."""
        times = np.full(count, np.inf)
        np.minimum.at(times, self.number, self.time)
        return times


@dataclass(frozen=True, slots=True)
class Move:
    """Leaders that moved.

    Attributes:
        began: when the cluster was told to, or the leader was killed.
        named: when brokers first named a new leader of each partition.
        ready: when each of these had taken a record and replicated it. Before that nothing can be read from it.
        until: records sent up to then count as sent around the move.
    """

    kind: str
    partitions: frozenset[int]
    began: float
    named: float
    ready: float
    until: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What the moves of one kind cost one reader: ms, one figure for each move, but for `usual_ms`.

    A record is late from its acknowledgement on; in partitions that moved, not before their new leaders were ready.

    Attributes:
        usual_ms: how late the latest record of a calm stretch is, in the partitions about to move; the median of the
            stretches right before moves of any kind.
        added_ms: the same around each move, less `usual_ms`: what the reader needed longer than the cluster.
        others_ms: as `added_ms`, in the partitions whose leaders stayed.
        delay_ms: the longest delay around each move, counted from the sending: what a user sees.
    """

    usual_ms: float
    added_ms: tuple[float, ...]
    others_ms: tuple[float, ...]
    delay_ms: tuple[float, ...]


def costs(written: Written, arrived: Times, moves: Sequence[Move]) -> dict[str, Cost]:
    """By kind of move, what they cost a reader that had each record when `arrived` says."""
    worst = [_worst_around(written, arrived, move) for move in moves]
    usual_ms = float(np.nanmedian([each.usual_ms for each in worst]))
    usual_others_ms = float(np.nanmedian([each.usual_others_ms for each in worst]))
    by_kind: dict[str, list[_Worst]] = {}
    for move, one in zip(moves, worst, strict=True):
        by_kind.setdefault(move.kind, []).append(one)
    return {kind: _cost(of_kind, usual_ms, usual_others_ms) for kind, of_kind in by_kind.items()}


def lost_and_repeated(written: Written, arrivals: Arrivals, until: float) -> tuple[int, int]:
    """Of the records sent before `until` and acknowledged: how many never arrived, and how many arrived again."""
    due = np.isfinite(written.acked) & (written.sent < until)
    times = np.bincount(arrivals.number, minlength=len(due))
    return int(np.count_nonzero(due & (times == 0))), int(np.sum(np.maximum(times - 1, 0)))


def _cost(worst: Sequence[_Worst], usual_ms: float, usual_others_ms: float) -> Cost:
    return Cost(
        usual_ms=usual_ms,
        added_ms=tuple(_more(one.late_ms, usual_ms) for one in worst),
        others_ms=tuple(_more(one.others_ms, usual_others_ms) for one in worst),
        delay_ms=tuple(one.delay_ms for one in worst),
    )


def _more(late_ms: float, usual_ms: float) -> float:
    return late_ms if math.isinf(late_ms) else late_ms - usual_ms


class _Worst(NamedTuple):
    usual_ms: float
    usual_others_ms: float
    late_ms: float
    others_ms: float
    delay_ms: float


def _worst_around(written: Written, arrived: Times, move: Move) -> _Worst:
    taken = np.isfinite(written.acked)
    moved = np.isin(written.partition, list(move.partitions))
    began = move.began - LEAD_S
    calm = taken & (written.sent >= began - CALM_S) & (written.sent < began)
    around = taken & (written.sent >= began) & (written.sent < move.until)
    due = np.where(moved & around, np.maximum(written.acked, move.ready), written.acked)
    return _Worst(
        usual_ms=_worst_ms(arrived, due, calm & moved),
        usual_others_ms=_worst_ms(arrived, due, calm & ~moved),
        late_ms=_worst_ms(arrived, due, around & moved),
        others_ms=_worst_ms(arrived, due, around & ~moved),
        delay_ms=_worst_ms(arrived, written.sent, around & moved),
    )


def _worst_ms(arrived: Times, due: Times, records: NDArray[np.bool_]) -> float:
    """Infinite if one is lost, NaN if there are none."""
    return float(np.max(arrived[records] - due[records])) * 1000 if np.any(records) else float("nan")
