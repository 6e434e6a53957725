"""The checker of the sink finds each kind of anomaly, and no anomaly in a correct log."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.write.partition_queue import UNKNOWN_OFFSET, AcknowledgedRange
from tests.kafka.writing_checker import Row, anomalies, missing_rows

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
OLD = Row(0, 0)
A0, A2, A4, B1 = Row(1, 0), Row(1, 2), Row(1, 4), Row(1, 1)
WRITTEN = {A: [AcknowledgedRange(1, 4, 3)], B: [AcknowledgedRange(0, 1, 1)]}
DUPLICATE = {
    A: [AcknowledgedRange(1, 2, 1), AcknowledgedRange(UNKNOWN_OFFSET, UNKNOWN_OFFSET, 1), AcknowledgedRange(3, 4, 1)]
}

WRONG = {
    "lost": [OLD, A0, A2],
    "lost, another attempt's row in its place": [OLD, A0, A2, Row(2, 4)],
    "repeated": [OLD, A0, A2, A4, A4],
    "reordered": [OLD, A0, A4, A2],
    "at other offsets": [A0, A2, A4],
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("written", [WRITTEN, DUPLICATE], ids=["offsets", "one unknown offset"])
def test_anomaly_is_found(name: str, written: dict[TopicPartition, list[AcknowledgedRange]]) -> None:
    assert anomalies({A: WRONG[name], B: [B1]}, 1, written) != []


@pytest.mark.parametrize("written", [WRITTEN, DUPLICATE, {}], ids=["offsets", "one unknown offset", "nothing"])
def test_rows_once_and_in_order_are_no_anomaly(written: dict[TopicPartition, list[AcknowledgedRange]]) -> None:
    assert anomalies({A: [OLD, A0, A2, A4, OLD], B: [B1]}, 1, written) == []


def test_missing_rows_are_those_of_no_log() -> None:
    assert missing_rows({A: [OLD, A0, A2], B: [B1]}, 1, 5) == [3, 4]
    assert Row.parse(A2.value()) == A2
