"""The filter of `where`: before and after decoding, with a count of what it drops."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import CorruptBatchError, OptionError
from pyspark_kafka_meta.kafka.records.decoder import decode
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.fetching.row_filter import RowFilter, kept
from pyspark_kafka_meta.typed.reading import query_schemas
from pyspark_kafka_meta.where.syntax import parse_condition
from tests.partitions import T0, T1
from tests.unit.kafka.records import handmade
from tests.unit.kafka.records.handmade import Row, batch_of, fetched, record

OPTIONS = SourceOptions.parse(
    {"kafka.bootstrap.servers": "b:9", "subscribe": "t", "valueFormat": "json", "valueSchema": "id INT"}
)
SCHEMAS = query_schemas(OPTIONS.typed, OPTIONS.topics)
VALUES = pa.array([{"id": 1}, {"id": 2}, None, {"id": None}], pa.struct([("id", pa.int32())]))
RECORDS = pa.record_batch(
    {
        "topic": pa.array(["t"] * 4),
        "partition": pa.array([0, 0, 0, 1], pa.int32()),
        "offset": pa.array([5, 6, 8, 0], pa.int64()),
        "value": pa.array([b"1", b"2", None, b"4"], pa.binary()),
    }
)


def filtered(condition: str, *returned: str) -> tuple[RowFilter, list[dict[str, object]], list[int]]:
    """The filter, its rows, and how many rows each decoded batch has."""
    row_filter, decoded = RowFilter(parse_condition(condition), SCHEMAS, returned), []

    def converted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            decoded.append(batch.num_rows)
            place = batch.column("offset").to_pylist()
            values = VALUES.take(pa.array([[5, 6, 8, 0].index(offset) for offset in place]))
            yield batch.drop_columns("value").append_column("value", values)

    records = iter([RECORDS]) if row_filter.selection is None else kept([RECORDS], row_filter.selection)
    rows = row_filter.after_decoding(converted(records))
    return row_filter, [row for batch in rows for row in batch.to_pylist()], decoded


def test_what_needs_no_decoding_is_applied_before_it() -> None:
    row_filter, rows, decoded = filtered("VALUE.ID IS NULL AND offset > 5", "offset")
    assert row_filter.selection is not None
    assert (row_filter.selection.columns, row_filter.columns) == (
        ["topic", "partition", "offset"],
        ["offset", "value", "topic", "partition"],
    )
    assert (rows, decoded) == ([{"offset": 8}], [2])
    assert row_filter.dropped == {T0: 2, T1: 1}


def test_parts_of_or_are_applied_together() -> None:
    _, rows, decoded = filtered("value.id = 1 OR offset = 6", "value")
    assert (rows, decoded) == ([{"value": {"id": 1}}, {"value": {"id": 2}}], [4])


def test_batches_without_a_kept_row_are_neither_decoded_nor_returned() -> None:
    row_filter, rows, decoded = filtered("topic = 'u' AND value.id = 1", "value")
    assert (rows, decoded) == ([], [])
    assert row_filter.dropped == {T0: 3, T1: 1}


def test_rows_without_columns_are_counted() -> None:
    row_filter = RowFilter(parse_condition("offset > 5"), None, [])
    assert row_filter.selection is not None
    (batch,) = row_filter.after_decoding(kept([RECORDS], row_filter.selection))
    assert (batch.num_rows, batch.num_columns) == (2, 0)


@pytest.mark.parametrize(
    ("condition", "reason"),
    [("value = 'a'", "can be tested for NULL"), ("key.id = 1", "which is no struct"), ("x = 1", "no column x")],
)
def test_a_condition_that_fits_no_columns_is_refused(condition: str, reason: str) -> None:
    with pytest.raises(OptionError, match=f"Option 'where': .*{reason}"):
        RowFilter(parse_condition(condition), SCHEMAS, [])


def test_records_that_are_decoded_again_because_of_a_corrupt_batch_are_counted_once() -> None:
    good = [handmade.batch([Row(offset) for offset in range(first, first + 5)]) for first in (0, 5)]
    bodies = [record(Row(0)), record(Row(1, headers=(("k", None),)))[:-1] + b"\x03"]  # the value's length is -2
    corrupt = batch_of(b"".join(bodies), base_offset=10, record_count=2, last_offset_delta=1)
    row_filter = RowFilter(parse_condition("offset IN (1, 6, 11)"), None, ["offset", "headers"])

    rows = decode([fetched(b"".join(good) + corrupt)], row_filter.columns, selection=row_filter.selection)
    assert [next(rows).column(0).to_pylist() for _ in good] == [[1], [6]]
    with pytest.raises(CorruptBatchError, match="base offset 10"):
        next(rows)
    assert sum(row_filter.dropped.values()) == 8
