"""The offsets that a task has written in a partition: few ranges, whatever others write between its batches."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.model import TopicPartition, TransactionSpan
from pyspark_kafka_meta.write.partition_queue import MAX_RANGES, UNKNOWN_OFFSET, AcknowledgedRange, add_range, spans


def added(*batches: tuple[int, int]) -> list[AcknowledgedRange]:
    """The ranges of batches, each with its base offset and its number of records."""
    ranges: list[AcknowledgedRange] = []
    for base_offset, records in batches:
        add_range(ranges, base_offset, records)
    return ranges


def test_batches_with_adjacent_offsets_are_one_range() -> None:
    assert added((10, 3), (13, 2), (20, 4)) == [AcknowledgedRange(10, 15, 5), AcknowledgedRange(20, 24, 4)]


def test_number_of_ranges_is_bounded_and_the_last_one_spans_the_rest() -> None:
    ranges = added(*((10 * number, 5) for number in range(10_000)))
    assert len(ranges) == MAX_RANGES
    assert ranges[0] == AcknowledgedRange(0, 5, 5)
    assert ranges[-1] == AcknowledgedRange(10 * (MAX_RANGES - 1), 99_995, 5 * (10_000 - MAX_RANGES + 1))


@pytest.mark.parametrize(
    ("last", "span"), [([(UNKNOWN_OFFSET, 1)], (900, 905)), ([(UNKNOWN_OFFSET, 1), (950, 5)], (900, 955))]
)
def test_batch_with_an_unknown_offset_leaves_the_known_bounds(
    last: list[tuple[int, int]], span: tuple[int, int]
) -> None:
    full = [(10 * number, 5) for number in range(MAX_RANGES - 1)] + [(900, 5)]
    ranges = added(*full, *last)
    assert ranges[-1][:2] == span
    assert sum(each.records for each in ranges) == sum(records for _, records in [*full, *last])


def test_span_of_a_partition_holds_all_its_ranges() -> None:
    written = {TopicPartition("t", 1): added((0, 1)), TopicPartition("t", 0): added((5, 2), (9, 1))}
    assert spans(written) == (TransactionSpan("t", 0, 5, 10, 3), TransactionSpan("t", 1, 0, 1, 1))
