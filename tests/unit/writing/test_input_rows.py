"""Spark's Arrow batches as chunks of records: joined and cut, with every row once and in order."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafka_meta.errors import InvalidRowError
from pyspark_kafka_meta.sink_schema import SinkColumns
from pyspark_kafka_meta.writing.input_rows import CHUNK_ROWS, InputRows, read_rows

VALUE = SinkColumns(key=None, value=0, headers=None, topic=None, partition=None, timestamp=None)
NOW_MS = 1_700_000_000_000


def read(batches: list[pa.RecordBatch], columns: SinkColumns = VALUE, chunk_bytes: int = 1_000_000) -> list[InputRows]:
    return list(read_rows(batches, columns, chunk_bytes, 2**31, lambda: NOW_MS))


def values(*sizes: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"x" * size for size in sizes], pa.binary())})


@settings(max_examples=200)
@given(st.lists(st.lists(st.integers(0, 300), max_size=20), max_size=10), st.integers(1, 1_000))
def test_every_row_comes_once_in_order_in_chunks_of_limited_size(sizes: list[list[int]], chunk_bytes: int) -> None:
    chunks = read([values(*batch) for batch in sizes], chunk_bytes=chunk_bytes)

    read_sizes = [len(value) for chunk in chunks for value in chunk.records.value.to_pylist()]
    assert read_sizes == [size for batch in sizes for size in batch]
    assert [chunk.first_row for chunk in chunks] == [sum(map(len, chunks[:n])) for n in range(len(chunks))]
    assert all(len(chunk) == 1 or 0 < chunk.sizes.sum() <= chunk_bytes for chunk in chunks)


def test_small_batches_are_joined_and_no_chunk_has_too_many_rows() -> None:
    chunks = read([values(*[1] * 10_000) for _ in range(20)], chunk_bytes=2**30)

    assert [len(chunk) for chunk in chunks] == [CHUNK_ROWS, 200_000 - CHUNK_ROWS]


def test_strings_become_bytes_and_missing_columns_null() -> None:
    (chunk,) = read([pa.record_batch({"value": pa.array(["ä", None])})])

    assert chunk.records.value.to_pylist() == ["ä".encode(), None]
    assert chunk.records.key.to_pylist() == [None, None]
    assert (chunk.topic, chunk.chosen, chunk.records.headers) == (None, None, None)


def test_large_and_sliced_arrays_are_read() -> None:
    batch = pa.record_batch({"value": pa.array(["a", "b", "c"], pa.large_string())}).slice(1)

    (chunk,) = read([batch])

    assert chunk.records.value.to_pylist() == [b"b", b"c"]


def test_timestamps_are_rounded_down_and_missing_ones_are_now() -> None:
    columns = SinkColumns(key=None, value=0, headers=None, topic=None, partition=None, timestamp=1)
    times = pa.array([1_999, -1, None], pa.timestamp("us", tz="Europe/Berlin"))

    (chunk,) = read([pa.record_batch({"value": pa.array([b"1", b"2", b"3"]), "timestamp": times})], columns)

    assert chunk.records.timestamp_ms.tolist() == [1, -1, NOW_MS]


def test_topics_choices_and_headers_stay_with_their_rows() -> None:
    columns = SinkColumns(key=None, value=0, headers=3, topic=1, partition=2, timestamp=None)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batches = [
        pa.record_batch(
            {
                "value": pa.array([b"1"]),
                "topic": pa.array([topic]),
                "partition": pa.array([partition], pa.int32()),
                "headers": pa.array([[(topic, b"h")]], kind),
            }
        )
        for topic, partition in (("a", 2), ("b", None))
    ]

    (chunk,) = read(batches, columns)

    assert chunk.topic is not None and chunk.chosen is not None and chunk.records.headers is not None
    assert (chunk.topic.to_pylist(), chunk.chosen.tolist()) == (["a", "b"], [2, -1])
    assert [row[0]["key"] for row in chunk.records.headers.to_pylist()] == ["a", "b"]


def test_header_without_a_key_is_named_by_its_row_of_the_task() -> None:
    columns = SinkColumns(key=None, value=0, headers=1, topic=None, partition=None, timestamp=None)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = [[[("a", b"1")], None], [None, [("a", b"1"), (None, b"2")]]]
    batches = [
        pa.record_batch({"value": pa.array([b"1", b"2"]), "headers": pa.array(of_batch, kind)}) for of_batch in headers
    ]

    with pytest.raises(InvalidRowError, match=r"^row 3: the key of a header is null"):
        read(batches, columns)
