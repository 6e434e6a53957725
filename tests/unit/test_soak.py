"""The verdict of the soak, and its faults."""

from __future__ import annotations

import pytest

from benchmarks.acked_feed import Acknowledged
from benchmarks.soak import BLAME_S, KINDS, Rows, Unwell, Verdict, false_timeouts, fault


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


def test_timeouts_are_false_where_no_fault_of_their_broker_explains_them() -> None:
    def timed_out(broker_id: int, at_s: float, role: str = "reader") -> dict[str, object]:
        return {"reason": "request_timeout", "role": role, "cause_node_id": broker_id, "time_ms": at_s * 1000}

    unwell = [Unwell(2, 100.0, 130.0), Unwell(3, 150.0, 160.0)]
    explained = [timed_out(2, 100), timed_out(2, 130 + BLAME_S), timed_out(3, 155), timed_out(4, 110, "committer")]
    false = [timed_out(2, 99), timed_out(2, 155), timed_out(4, 110), timed_out(4, 99, "committer")]

    assert false_timeouts([*explained, *false, {"reason": "max_age"}], unwell) == false
