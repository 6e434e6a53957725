"""Spark's Arrow batches as chunks of records: joined and cut, with every row once and in order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafka_meta.errors import InvalidRowError, RecordTooLargeError
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.kafka.records.compression import Codec, Compression
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.kafka.records.encoder import encode
from pyspark_kafka_meta.kafka.records.schema import records_arrow_schema
from pyspark_kafka_meta.model import NO_PRODUCER
from pyspark_kafka_meta.typed.avro.encoder import avro_encoder
from pyspark_kafka_meta.typed.avro.schema import Enumeration, Primitive
from pyspark_kafka_meta.typed.encoding import ColumnEncoding
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.input_rows import CHUNK_BYTES, CHUNK_ROWS, InputRows, read_rows
from tests.partitions import T0

VALUE = SinkColumns(key=None, value=0, headers=None, topic=None, partition=None, timestamp=None)
TIMED = SinkColumns(key=None, value=0, headers=None, topic=None, partition=None, timestamp=1)
NOW_MS = 1_700_000_000_000
ID_HEADER = "__value_schema_id"


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


def test_typed_columns_are_encoded_and_errors_count_the_rows_of_the_task() -> None:
    long = avro_encoder(Primitive("long"), pa.int64())
    typed = replace(VALUE, typed={"value": ColumnEncoding("value", long, b"\0")})
    batches = [pa.record_batch({"value": pa.array(numbers, pa.int64())}) for numbers in ([1, None], [-1])]
    (chunk,) = read(batches, typed)
    assert chunk.records.value.to_pylist() == [b"\0\x02", None, b"\0\x01"]

    color = Enumeration("Color", ("RED",))
    enum = ColumnEncoding("key", avro_encoder(color, pa.string()), b"")
    colors = [pa.record_batch({"key": names, "value": names}) for names in (["RED", "RED"], ["RED", "BLUE"])]
    with pytest.raises(InvalidRowError, match=r"^row 3 cannot be written with the schema of key: the value is not a"):
        read(colors, replace(VALUE, key=0, typed={"key": enum}))


def test_headers_may_be_a_map() -> None:
    maps = pa.array([[("skipped", b"")], [("a", b"x"), ("b", None)], None, []], pa.map_(pa.string(), pa.binary()))
    (chunk,) = read(
        [pa.record_batch({"value": ["0", "1", "2", "3"], "headers": maps}).slice(1)], replace(VALUE, headers=1)
    )

    assert chunk.records.headers is not None
    assert chunk.records.headers.to_pylist() == [[{"key": "a", "value": b"x"}, {"key": "b", "value": None}], None, []]


def test_header_of_a_schema_follows_the_headers_of_the_row() -> None:
    long = ColumnEncoding("value", avro_encoder(Primitive("long"), pa.int64()), b"", b"\1guid")
    batch = pa.record_batch(
        {
            "value": pa.array([0, 1, 2, 3, None, 5, 6], pa.int64()),
            "headers": pa.array(
                [
                    [("skipped", b"")],
                    [("a", b"x"), ("b", None)],
                    None,
                    [],
                    [("c", b"y")],
                    [(ID_HEADER, b"\1guid"), ("d", b"z")],
                    [(ID_HEADER, b"\1guid"), (ID_HEADER, b"\1other")],
                ],
                records_arrow_schema(["headers"]).field(0).type,
            ),
        }
    ).slice(1)
    own = (ID_HEADER, b"\1guid")

    (chunk,) = read([batch], replace(VALUE, headers=1, typed={"value": long}))

    assert chunk.records.headers is not None
    assert [[tuple(each.values()) for each in row] for row in chunk.records.headers.to_pylist()] == [
        [("a", b"x"), ("b", None), own],
        [own],
        [own],
        [("c", b"y")],
        [own, ("d", b"z")],
        [own, (ID_HEADER, b"\1other"), own],
    ]


def test_headers_of_schemas_need_no_column_of_headers() -> None:
    encoder = avro_encoder(Primitive("long"), pa.int64())
    both = {name: ColumnEncoding(name, encoder, b"", name.encode()) for name in ("key", "value")}

    (chunk,) = read([pa.record_batch({"key": [1], "value": [2]})], replace(VALUE, key=0, value=1, typed=both))

    assert chunk.records.headers is not None
    assert chunk.records.headers.to_pylist() == [
        [{"key": "__key_schema_id", "value": b"key"}, {"key": ID_HEADER, "value": b"value"}]
    ]


def test_a_frame_takes_the_place_of_a_header_that_named_the_schema() -> None:
    """Readers prefer the header, which a row has that was read with it. Other columns keep theirs."""
    long = ColumnEncoding("value", avro_encoder(Primitive("long"), pa.int64()), b"\0\0\0\0\7")
    of_key, of_value, other = ("__key_schema_id", b"\1key"), (ID_HEADER, b"\1guid"), ("a", b"x")
    headers = [[of_value], [other, of_value, of_key], None, [], [of_value, of_value, other], [(ID_HEADER, None)]]
    batch = pa.record_batch(
        {
            "value": pa.array(range(6), pa.int64()),
            "headers": pa.array(headers, records_arrow_schema(["headers"]).field(0).type),
        }
    ).slice(1)

    (chunk,) = read([batch], replace(VALUE, headers=1, typed={"value": long}))

    assert chunk.records.headers is not None
    assert [[tuple(each.values()) for each in row or ()] for row in chunk.records.headers.to_pylist()] == [
        [other, of_key],
        [],
        [],
        [other],
        [],
    ]


def test_typed_rows_that_do_not_fit_together_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As rows of many defaults, which have no bytes in Spark's batch."""
    monkeypatch.setattr("pyspark_kafka_meta.typed.columnar.encoders.MAX_BYTES", 1)
    typed = replace(VALUE, typed={"value": ColumnEncoding("value", avro_encoder(Primitive("long"), pa.int64()), b"")})
    batches = [pa.record_batch({"value": pa.array(numbers, pa.int64())}) for numbers in ([1], [2, 3])]
    with pytest.raises(RecordTooLargeError, match=r"^rows 1 to 2 have too many bytes of value .*maxRecordsPerBatch$"):
        read(batches, typed)


def test_large_and_sliced_arrays_are_read() -> None:
    batch = pa.record_batch({"value": pa.array(["a", "b", "c"], pa.large_string())}).slice(1)

    (chunk,) = read([batch])

    assert chunk.records.value.to_pylist() == [b"b", b"c"]


def test_every_column_may_have_large_types() -> None:
    text, binary = pa.large_string(), pa.large_binary()
    header = pa.field("element", pa.struct([("key", text), ("value", binary)]), nullable=False)
    columns = SinkColumns(key=0, value=1, headers=2, topic=3, partition=None, timestamp=None)
    batch = pa.record_batch(
        {
            "key": pa.array(["k", None], text),
            "value": pa.array([b"1", b"2"]).cast(binary),
            "headers": pa.array([[("a", b"x"), ("b", None)], None], pa.list_(header)),
            "topic": pa.array(["t", "u"], text),
        }
    )

    (chunk,) = read([batch], columns)

    assert chunk.topic is not None and chunk.topic.type == pa.string()
    assert (chunk.records.key.type, chunk.records.value.type) == (pa.binary(), pa.binary())
    encoded = encode(chunk.records, np.zeros(2, np.int32), chunk.sizes, 1_000, Compression(Codec.NONE))
    data = encoded[0].to_bytes(NO_PRODUCER, -1)
    part = FetchedRecords(T0, data, read_batch_headers(data), 0, 2)
    (rows,) = decode([part], ["key", "value", "headers"])
    assert rows.to_pylist() == [
        {"key": b"k", "value": b"1", "headers": [{"key": "a", "value": b"x"}, {"key": "b", "value": None}]},
        {"key": None, "value": b"2", "headers": None},
    ]


def test_values_after_the_first_2_gib_of_a_large_column_are_read() -> None:
    memory = np.zeros(2_200_000_008, np.uint8)  # the kernel gives pages only to what is written
    memory[-8:] = np.frombuffer(b"firstsec", np.uint8)
    ends = np.array([0, 2_200_000_000, 2_200_000_005, 2_200_000_008])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(memory)]
    value = pa.Array.from_buffers(pa.large_binary(), 3, buffers)

    (chunk,) = read([pa.record_batch({"value": value}).slice(1)])

    assert chunk.records.value.to_pylist() == [b"first", b"sec"]


def test_record_of_more_than_2_gib_is_named() -> None:
    ends = pa.py_buffer(np.array([0, 1, 2_200_000_000]))
    value = pa.Array.from_buffers(pa.large_binary(), 2, [None, ends, pa.py_buffer(np.zeros(2_200_000_000, np.uint8))])

    with pytest.raises(RecordTooLargeError, match=r"^row 1 has 2200000\d\d\d bytes, and no record has"):
        list(read_rows([pa.record_batch({"value": value})], VALUE, 1_000_000, 8_388_608, lambda: NOW_MS))


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 1_000))
def test_large_batches_are_read_in_parts_with_every_row_once_in_order(sizes: list[int], part_bytes: int) -> None:
    value = pa.array([b"x" * size for size in sizes], pa.large_binary())

    chunks = read_rows([pa.record_batch({"value": value})] * 2, VALUE, 500, 2**31, lambda: NOW_MS, part_bytes)

    assert [len(value) for chunk in chunks for value in chunk.records.value.to_pylist()] == sizes * 2


@pytest.mark.slow
def test_batch_above_2_gib_is_read_in_little_memory() -> None:
    value_bytes, count = 8_000_000, 300
    ends = pa.py_buffer(np.arange(count + 1) * value_bytes)
    memory = pa.py_buffer(np.zeros(value_bytes * count, np.uint8))
    batch = pa.record_batch({"value": pa.Array.from_buffers(pa.large_binary(), count, [None, ends, memory])})
    before = pa.total_allocated_bytes()

    sizes, held = [], []
    for chunk in read_rows([batch], VALUE, CHUNK_BYTES, 2**31, lambda: NOW_MS):
        sizes += pc.binary_length(chunk.records.value).to_pylist()
        held.append(pa.total_allocated_bytes() - before)

    assert sizes == [value_bytes] * count
    assert max(held) < 2 * (256 << 20)


def timestamps(*times_us: int | None) -> pa.RecordBatch:
    times = pa.array(times_us, pa.timestamp("us", tz="Europe/Berlin"))
    return pa.record_batch({"value": pa.array([b"v"] * len(times)), "timestamp": times})


def test_timestamps_are_rounded_down_and_missing_ones_are_now() -> None:
    (chunk,) = read([timestamps(1_999, 0, None)], TIMED)

    assert chunk.records.timestamp_ms.tolist() == [1, 0, NOW_MS]


@pytest.mark.parametrize(
    ("time_us", "shown"),
    [(-1, "1969-12-31 23:59:59.999999"), (-100_000_000_000_000_000, "-1199-02-15 14:13:20.000000")],
)
def test_timestamp_before_1970_is_refused_with_its_row_and_value(time_us: int, shown: str) -> None:
    with pytest.raises(InvalidRowError, match=f"^row 4 has timestamp {shown} UTC, and Kafka has none"):
        read([timestamps(1, 2, 3), timestamps(None, time_us, -5)], TIMED)


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
