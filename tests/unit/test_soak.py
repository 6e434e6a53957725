"""The verdict of the soak, and its faults."""

from __future__ import annotations

import pytest

from benchmarks.acked_feed import Acknowledged
from benchmarks.soak import KINDS, Rows, Verdict, fault


@pytest.mark.parametrize(
    ("unknown", "rows", "restarts", "verdict"),
    [
        ([], Rows(count=10, positions=10, records=10), 0, Verdict(missing=0, repeated=0, restarts=0)),
        ([], Rows(count=9, positions=9, records=9), 0, Verdict(missing=1, repeated=0, restarts=0)),
        ([], Rows(count=11, positions=10, records=10), 0, Verdict(missing=0, repeated=1, restarts=0)),
        ([], Rows(count=10, positions=9, records=9), 0, Verdict(missing=1, repeated=1, restarts=0)),
        ([], Rows(count=10, positions=10, records=10), 1, Verdict(missing=0, repeated=0, restarts=1)),
        ([3], Rows(count=10, positions=10, records=9), 0, Verdict(missing=0, repeated=0, restarts=0)),
    ],
)
def test_the_verdict(unknown: list[int], rows: Rows, restarts: int, verdict: Verdict) -> None:
    found = Verdict.of(Acknowledged(10, frozenset(unknown)), rows, restarts)
    assert found == verdict
    assert found.is_good == (verdict == Verdict(0, 0, 0))


def test_each_broker_gets_each_fault() -> None:
    faults = [fault(number, (2, 3, 4)) for number in range(12)]
    assert set(faults) == {(kind, broker) for kind in KINDS for broker in (2, 3, 4)}
