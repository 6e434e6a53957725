"""Until when brokers that asked for patience are left alone."""

from __future__ import annotations

from pyspark_kafka_meta.reading.throttles import MAX_THROTTLE_MS, Throttles


def test_longest_throttle_of_a_broker_holds_and_none_is_believed_without_end() -> None:
    throttles = Throttles()
    throttles.throttle(1, 30_000, now=0.0)
    throttles.throttle(1, 50, now=1.0)
    throttles.throttle(2, 10 * MAX_THROTTLE_MS, now=1.0)

    assert [throttles.until(node_id) for node_id in (1, 2, 3)] == [30.0, 1.0 + MAX_THROTTLE_MS / 1000, float("-inf")]
