"""The offsets that a task has written in a partition: one range, whatever others write between its batches."""

from __future__ import annotations

from functools import reduce

import pytest

from pyspark_kafka_meta.write.partition_queue import UNKNOWN_OFFSET, AcknowledgedRange


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([(10, 3), (13, 2)], AcknowledgedRange(10, 15, 5)),
        ([(10, 3), (13, 2), (20, 4)], AcknowledgedRange(10, 24, 9)),
        ([(UNKNOWN_OFFSET, 1)], AcknowledgedRange(UNKNOWN_OFFSET, UNKNOWN_OFFSET, 1)),
        ([(UNKNOWN_OFFSET, 1), (950, 5)], AcknowledgedRange(950, 955, 6)),
        ([(900, 5), (UNKNOWN_OFFSET, 1)], AcknowledgedRange(900, 905, 6)),
        ([(900, 5), (UNKNOWN_OFFSET, 1), (950, 5)], AcknowledgedRange(900, 955, 11)),
    ],
)
def test_range_goes_from_the_first_known_offset_to_the_last(
    batches: list[tuple[int, int]], expected: AcknowledgedRange
) -> None:
    assert reduce(lambda written, batch: written.with_batch(*batch), batches, AcknowledgedRange()) == expected
