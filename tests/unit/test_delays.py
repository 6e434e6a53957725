"""The figures of `benchmarks.recovery`, from synthetic records: every 10 ms one, acknowledged 2 ms later."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.delays import CALM_S, LEAD_S, Arrivals, Move, Times, Written, costs, lost_and_repeated

START = 1000.0
BEGAN = START + CALM_S + LEAD_S
MOVE = Move("election", frozenset({0}), began=BEGAN, named=BEGAN + 0.01, ready=BEGAN + 0.1, until=BEGAN + 2)
SENT = np.arange(START, MOVE.until, 0.01)
WRITTEN = Written(partition=np.arange(len(SENT)) % 2, sent=SENT, acked=SENT + 0.002)


def arrived(record: int, late_s: float) -> Times:
    """Everything 5 ms after its acknowledgement, but for one record."""
    times = WRITTEN.acked + 0.005
    times[record] = WRITTEN.acked[record] + late_s
    return times


def record_at(at: float, partition: int) -> int:
    """The first record of a partition that was sent at this time or later."""
    return int(np.flatnonzero((at <= SENT) & (WRITTEN.partition == partition))[0])


def test_what_a_reader_needs_as_always_is_not_added_by_a_move() -> None:
    result = costs(WRITTEN, arrived(0, 0.005), [MOVE])["election"]

    assert result.usual_ms == pytest.approx(5)
    assert result.added_ms == pytest.approx((0,), abs=1e-3)
    assert result.delay_ms == pytest.approx((7,))


def test_latest_record_around_the_move_counts_from_its_acknowledgement() -> None:
    result = costs(WRITTEN, arrived(record_at(BEGAN + 0.5, 0), 0.065), [MOVE])["election"]

    assert result.added_ms == pytest.approx((60,))
    assert result.others_ms == pytest.approx((0,), abs=1e-3)


def test_nothing_is_late_before_the_new_leader_is_ready() -> None:
    record = record_at(BEGAN, 0)
    result = costs(WRITTEN, arrived(record, MOVE.ready - WRITTEN.acked[record] + 0.025), [MOVE])["election"]

    assert result.added_ms == pytest.approx((20,))
    assert result.delay_ms[0] > 100


def test_partitions_that_stayed_have_a_figure_of_their_own() -> None:
    result = costs(WRITTEN, arrived(record_at(BEGAN + 0.01, 1), 0.045), [MOVE])["election"]

    assert result.added_ms == pytest.approx((0,), abs=1e-3)
    assert result.others_ms == pytest.approx((40,))


@pytest.mark.parametrize("record", [record_at(START, 0), record_at(BEGAN, 0)])
def test_record_that_never_arrives_is_infinitely_late(record: int) -> None:
    result = costs(WRITTEN, arrived(record, math.inf), [MOVE])["election"]

    assert math.inf in (result.usual_ms, *result.added_ms)


def test_record_that_no_leader_took_is_not_waited_for() -> None:
    acked = WRITTEN.acked.copy()
    acked[7] = math.inf
    written = Written(WRITTEN.partition, WRITTEN.sent, acked)

    assert costs(written, arrived(7, math.inf), [MOVE])["election"].usual_ms == pytest.approx(5)
    assert lost_and_repeated(written, Arrivals(np.delete(np.arange(len(SENT)), 7), SENT[1:]), MOVE.until) == (0, 0)


def test_lost_and_repeated_records_are_counted() -> None:
    numbers = np.array([0, 1, 1, 3, 3, 3])

    assert lost_and_repeated(WRITTEN, Arrivals(numbers, np.zeros(6)), until=SENT[4]) == (1, 3)


def test_first_arrival_of_a_record_counts() -> None:
    first = Arrivals(np.array([2, 0, 2]), np.array([5.0, 6.0, 7.0])).first(count=3)

    assert first.tolist() == [6.0, math.inf, 5.0]
