"""The checker finds each anomaly that it is there for, and nothing in a history without one."""

from __future__ import annotations

import pytest
from checker import (
    Record,
    assert_all_read,
    busiest_second,
    duplicates,
    inconsistent_offsets,
    lost_writes,
    nonmonotonic,
    skipped,
)

from pyspark_kafka_meta.metadata.model import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
A0, A1, A2 = (Record(A, offset, f"a{offset}") for offset in range(3))
B0 = Record(B, 0, "b0")
ACKED = [A0, B0, A1, A2]

ANOMALIES = {
    "lost-write": [A0, B0, A1],
    "duplicate": [A0, B0, A1, A2, A2],
    "inconsistent-offsets": [A0, B0, A1, A2._replace(value="other")],
    "nonmonotonic": [A1, A0, A2, B0],
    "skipped": [A0, A2, B0],
}


def found(rows: list[Record]) -> set[str]:
    return {
        name
        for name, places in {
            "lost-write": lost_writes(ACKED, rows),
            "duplicate": duplicates(rows),
            "inconsistent-offsets": inconsistent_offsets([*ACKED, *rows]),
            "nonmonotonic": nonmonotonic(rows),
            "skipped": skipped(rows),
        }.items()
        if places
    }


@pytest.mark.parametrize("name", ANOMALIES)
def test_anomaly_is_found(name: str) -> None:
    assert name in found(ANOMALIES[name])
    with pytest.raises(AssertionError):
        assert_all_read(ACKED, ANOMALIES[name])


def test_whole_history_has_none_in_whatever_order_logs_take_turns() -> None:
    assert found([B0, A0, A1, A2]) == found([A0, A1, B0, A2]) == set()
    assert_all_read(ACKED, [A0, A1, A2, B0])


def test_busiest_second_counts_requests_but_no_hints() -> None:
    times_ms = [0, 900, 1_100, 1_899, 1_900, 5_000]
    events = [{"kind": "refresh", "time_ms": time_ms} for time_ms in times_ms]
    events.append({"kind": "hint", "time_ms": 1_000})

    assert busiest_second(events) == 3
    assert busiest_second([]) == 0
