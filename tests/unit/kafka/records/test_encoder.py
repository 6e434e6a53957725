"""Encoded rows are read back by our decoder and by kio, and equal the bytes of a plain writer."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch

from pyspark_kafka_meta.errors import InvalidRowError
from pyspark_kafka_meta.kafka.records.batches import HEADER_BYTES, read_batch_headers
from pyspark_kafka_meta.kafka.records.compression import Codec, Compression
from pyspark_kafka_meta.kafka.records.encoder import (
    EncodedBatch,
    Records,
    compressed_share,
    encode,
    record_sizes,
    split,
)
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, records_arrow_schema
from pyspark_kafka_meta.model import NO_PRODUCER, ProducerIdAndEpoch
from tests.budget import cases
from tests.unit.kafka.records.handmade import BASE_MS, Row, batch, fetched, from_kio, nullable, rows_of, varint

pytestmark = pytest.mark.budget

HEADERS_TYPE = records_arrow_schema([HEADERS_COLUMN]).field(0).type
BYTES = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=70) | st.just(bytes(9000))
HEADERS = st.none() | st.lists(st.tuples(st.sampled_from(["", "k", "key"]) | st.text(max_size=5), BYTES), max_size=4)
MAX_MS = (2**63 - 1) // 1000
LARGE = 10**7
MIXED = [
    Row(0, b"key-0", b"value-0", BASE_MS, (("k", b"1"), ("k", None), ("", b""))),
    Row(1, None, None, BASE_MS - 5),
    Row(2, b"", b"", 0, None),
    Row(3, b"k" * 70, b"v" * 9000, BASE_MS + 10**6, (("k" * 200, b"v" * 200),)),
]


def records_of(rows: Sequence[Row], padding: int = 0) -> Records:
    """The rows as slices of longer arrays, with as many other records before and after."""
    padded = [Row(0, b"other", b"other", headers=(("other", b"other"),))] * padding
    padded = [*padded, *rows, *padded]
    headers = [row.headers and [{"key": key, "value": value} for key, value in row.headers] for row in padded]
    columns = pa.record_batch(
        [
            pa.array([row.key for row in padded], pa.binary()),
            pa.array([row.value for row in padded], pa.binary()),
            pa.array(headers, HEADERS_TYPE),
        ],
        ["key", "value", "headers"],
    ).slice(padding, len(rows))
    timestamp_ms = np.array([row.timestamp for row in rows], np.int64)
    return Records(columns["key"], columns["value"], columns["headers"], timestamp_ms)


def encode_rows(
    rows: Sequence[Row],
    codec: Codec = Codec.NONE,
    partition: Sequence[int] | None = None,
    max_batch_bytes: int = LARGE,
    padding: int = 0,
    share: float = 1.0,
) -> list[EncodedBatch]:
    records = records_of(rows, padding)
    numbers = np.array([0] * len(rows) if partition is None else partition, np.int32)
    return encode(records, numbers, record_sizes(records), max_batch_bytes, Compression(codec), share)


def read(encoded: EncodedBatch) -> list[Row]:
    """The decoded rows with their index among the encoded rows in place of the offset."""
    rows = rows_of(fetched(encoded.to_bytes(NO_PRODUCER, -1)))
    assert [row.offset for row in rows] == list(range(encoded.record_count))
    return [
        Row(index, row.key, row.value, row.timestamp, row.headers)
        for index, row in zip(encoded.rows.tolist(), rows, strict=True)
    ]


@st.composite
def some_rows(draw: st.DrawFn, times: st.SearchStrategy[int], min_size: int = 0) -> list[Row]:
    rows = []
    for index in range(draw(st.integers(min_size, 12))):
        headers = draw(HEADERS)
        rows.append(Row(index, draw(BYTES), draw(BYTES), draw(times), None if headers is None else tuple(headers)))
    return rows


def as_read(row: Row) -> Row:
    """An empty list of headers is read as null."""
    return Row(row.offset, row.key, row.value, row.timestamp, row.headers or None)


ANY_TIME = st.integers(-MAX_MS // 2, MAX_MS // 2) | st.integers(BASE_MS - 100, BASE_MS + 100)


@given(rows=some_rows(ANY_TIME), codec=st.sampled_from(Codec), data=st.data())
@settings(max_examples=cases(60, 120, 3000))
def test_rows_are_read_back_in_the_order_of_their_partition(rows: list[Row], codec: Codec, data: st.DataObject) -> None:
    number = st.sampled_from([0, 1, 2, 300, 70_000])
    partition = data.draw(st.lists(number, min_size=len(rows), max_size=len(rows)))
    max_batch_bytes = data.draw(st.sampled_from([1, 100, 200, 9500, LARGE]))

    share = data.draw(st.sampled_from([1.0, 0.3, 0.01]))

    batches = encode_rows(rows, codec, partition, max_batch_bytes, data.draw(st.integers(0, 2)), share)

    assert all(encoded.size_bytes <= max_batch_bytes or encoded.record_count == 1 for encoded in batches)
    expected = sorted(zip(partition, map(as_read, rows), strict=True), key=lambda pair: (pair[0], pair[1].offset))
    assert [(encoded.partition, row) for encoded in batches for row in read(encoded)] == expected


@given(rows=some_rows(ANY_TIME), data=st.data())
@settings(max_examples=cases(20, 40, 1000))
def test_batches_are_as_large_as_the_limit_allows(rows: list[Row], data: st.DataObject) -> None:
    partition = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    limit = data.draw(st.sampled_from([1, 100, 200, 9500]))
    sizes = record_sizes(records_of(rows))

    batches = encode_rows(rows, Codec.NONE, partition, limit)

    for encoded in batches:
        full_bytes = HEADER_BYTES + int(sizes[encoded.rows].sum())
        assert encoded.size_bytes == HEADER_BYTES + encoded.records_bytes <= full_bytes
        assert full_bytes <= limit or encoded.record_count == 1
    for encoded, following in pairwise(batches):
        with_next_bytes = HEADER_BYTES + int(sizes[encoded.rows].sum() + sizes[following.rows[0]])
        assert with_next_bytes > limit or following.partition > encoded.partition


@given(rows=some_rows(st.integers(BASE_MS - 10**7, BASE_MS + 10**7), min_size=1))
@settings(max_examples=cases(30, 60, 1500))
def test_bytes_equal_those_of_a_plain_writer(rows: list[Row]) -> None:
    (encoded,) = encode_rows(rows)

    assert encoded.to_bytes(ProducerIdAndEpoch(2**40, 7), 123) == batch(
        rows, leader_epoch=-1, producer_id=2**40, producer_epoch=7, base_sequence=123
    )


@given(rows=some_rows(st.integers(0, 2**31).map(lambda seconds: seconds * 1000), min_size=1))
@settings(max_examples=cases(20, 40, 1000))
def test_kio_reads_the_rows(rows: list[Row]) -> None:
    (encoded,) = encode_rows(rows)

    data = encoded.to_bytes(NO_PRODUCER, -1)
    read_by_kio, size = read_batch(data, 0)

    assert size == len(data)
    assert [from_kio(each) for each in read_by_kio.records] == [as_read(row) for row in rows]


@pytest.mark.parametrize("codec", Codec)
def test_header_of_a_batch(codec: Codec) -> None:
    (encoded,) = encode_rows(MIXED, codec)

    data = encoded.to_bytes(ProducerIdAndEpoch(77, 3), 2**31 - 1)
    (header,) = read_batch_headers(data)

    assert len(data) == encoded.size_bytes == header.end
    assert (header.base_offset, header.leader_epoch, header.attributes) == (0, -1, codec)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 2**31 - 1)
    assert (header.base_timestamp, header.max_timestamp) == (BASE_MS, BASE_MS + 10**6)
    assert (header.record_count, header.last_offset_delta) == (4, 3)


@given(rows=some_rows(st.integers(BASE_MS - 10**7, BASE_MS + 10**7), min_size=1), codec=st.sampled_from(Codec))
@settings(max_examples=cases(10, 20, 500))
def test_batch_of_a_transaction_differs_in_its_attributes_alone(rows: list[Row], codec: Codec) -> None:
    (encoded,) = encode_rows(rows, codec)
    plain, transactional = (
        encoded.to_bytes(ProducerIdAndEpoch(77, 3), 5, is_transactional=each) for each in (False, True)
    )
    (plain_header,), (header,) = read_batch_headers(plain), read_batch_headers(transactional)

    assert (header.is_transactional, plain_header.is_transactional) == (True, False)
    assert header.attributes == plain_header.attributes | 0x10
    assert header._replace(attributes=0, crc=0) == plain_header._replace(attributes=0, crc=0)
    assert rows_of(fetched(transactional)) == rows_of(fetched(plain))


def test_batch_of_no_producer_has_no_sequence() -> None:
    (header,) = read_batch_headers(encode_rows(MIXED)[0].to_bytes(NO_PRODUCER, -1))

    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)


@pytest.mark.parametrize("codec", Codec)
def test_large_values_among_small_values(codec: Codec) -> None:
    large = bytes(range(256)) * 4096
    rows = [Row(index, b"key", large if index % 10 == 3 else b"small", BASE_MS) for index in range(40)]

    batches = encode_rows(rows, codec, [index % 3 for index in range(40)], max_batch_bytes=16_384)

    assert sorted((row for encoded in batches for row in read(encoded)), key=lambda row: row.offset) == rows
    assert {encoded.record_count for encoded in batches if encoded.records_bytes > 16_384} == {1}


def test_many_rows_for_many_partitions() -> None:
    rows = [Row(index, b"%d" % index, b"%d" % (index * index), BASE_MS + index % 7) for index in range(20_000)]
    partition = [index * 7919 % 1000 for index in range(20_000)]

    batches = encode_rows(rows, Codec.LZ4, partition)

    assert [encoded.partition for encoded in batches] == list(range(1000))
    assert [row for encoded in batches for row in read(encoded)] == sorted(
        rows, key=lambda row: (partition[row.offset], row.offset)
    )


def test_records_without_a_headers_column() -> None:
    records = records_of(MIXED[1:3])
    without = Records(records.key, records.value, None, records.timestamp_ms)

    (encoded,) = encode(without, np.zeros(2, np.int32), record_sizes(without), LARGE, Compression(Codec.NONE))

    assert record_sizes(without).tolist() == record_sizes(records).tolist()
    assert encoded.to_bytes(NO_PRODUCER, -1) == encode_rows(MIXED[1:3])[0].to_bytes(NO_PRODUCER, -1)


def test_no_records_are_no_batches() -> None:
    assert encode_rows([]) == []
    assert encode_rows([], padding=2) == []


def test_arrays_of_spark_without_any_byte() -> None:
    """Arrow's stream format leaves out empty buffers."""
    nulls = pa.record_batch([pa.nulls(3, pa.binary()), pa.array([b""] * 3), pa.nulls(3, HEADERS_TYPE)], ["k", "v", "h"])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, nulls.schema) as writer:
        writer.write_batch(nulls)
    key, value, headers = pa.ipc.open_stream(sink.getvalue()).read_next_batch().columns
    records = Records(key, value, headers, np.full(3, BASE_MS))

    (encoded,) = encode(records, np.zeros(3, np.int32), record_sizes(records), LARGE, Compression(Codec.LZ4))

    assert read(encoded) == [Row(index, None, b"", BASE_MS) for index in range(3)]


@pytest.mark.parametrize("key", [None, b"", b"k", bytes(63), bytes(64), bytes(9000)])
@pytest.mark.parametrize("headers", [None, (), (("k", None),), tuple(("k", b"v" * 100) for _ in range(100))])
def test_size_is_the_largest_possible(key: bytes | None, headers: tuple[tuple[str, bytes | None], ...] | None) -> None:
    fields = [nullable(key), nullable(b"value"), varint(len(headers or ()))]
    fields += [nullable(name.encode()) + nullable(value) for name, value in headers or ()]

    (size,) = record_sizes(records_of([Row(0, key, b"value", BASE_MS, headers)]))

    assert size == 5 + 1 + 10 + 5 + sum(map(len, fields))


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("header", [{"key": None, "value": b"v"}, None])
def test_null_key_of_a_header_is_an_error_of_its_row(padding: int, header: dict[str, bytes | None] | None) -> None:
    good = [{"key": "k", "value": b"v"}]
    headers = pa.array([None] * padding + [good, [], None, [*good, header], good], HEADERS_TYPE)[padding:]
    column = pa.nulls(5, pa.binary())

    with pytest.raises(InvalidRowError, match="row 3: the key of a header is null"):
        record_sizes(Records(column, column, headers, np.zeros(5, np.int64)))


def test_headers_under_a_null_are_not_written() -> None:
    """Arrow allows a null list to have elements in memory."""
    present = pa.array([[{"key": "a", "value": b"1"}], [{"key": None, "value": b"2"}]], HEADERS_TYPE)
    headers = pa.ListArray.from_arrays(present.offsets, present.values, type=HEADERS_TYPE, mask=pa.array([False, True]))
    records = Records(pa.nulls(2, pa.binary()), pa.nulls(2, pa.binary()), headers, np.zeros(2, np.int64))

    (encoded,) = encode(records, np.zeros(2, np.int32), record_sizes(records), LARGE, Compression(Codec.NONE))

    assert [row.headers for row in read(encoded)] == [(("a", b"1"),), None]


def test_chunk_beyond_2_gib_is_refused() -> None:
    records = records_of(MIXED)

    with pytest.raises(ValueError, match="encode at most 2147483647 bytes"):
        encode(records, np.zeros(4, np.int32), np.full(4, 2**29), LARGE, Compression(Codec.NONE))


@given(rows=some_rows(ANY_TIME, min_size=2), codec=st.sampled_from(Codec))
@settings(max_examples=cases(20, 40, 1000))
def test_split_batches_have_the_same_rows(rows: list[Row], codec: Codec) -> None:
    other = Row(0, b"of another partition")
    _, encoded = encode_rows([other, *rows], codec, [0, *[5] * len(rows)])

    first, second = split(encoded)

    assert (first.record_count, second.record_count) == (len(rows) // 2, len(rows) - len(rows) // 2)
    assert {first.partition, second.partition, first.compression, second.compression} == {5, Compression(codec)}
    assert [*first.rows, *second.rows] == list(encoded.rows)
    assert read(first) + read(second) == read(encoded)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_batches_of_rows_that_compress_equally_are_nearly_full(codec: Codec) -> None:
    rows = [Row(index, b"%016d" % (index * 7919), b"value" * 40) for index in range(20_000)]
    first = encode_rows(rows, codec, max_batch_bytes=20_000)

    batches = encode_rows(rows, codec, max_batch_bytes=20_000, share=compressed_share(first))

    assert len(batches) < len(first) / 2
    assert all(14_000 < encoded.size_bytes <= 20_000 for encoded in batches[:-1])


def test_nothing_is_expected_to_grow() -> None:
    assert compressed_share(encode_rows([Row(0, None, b"")], Codec.GZIP)) == 1
    assert compressed_share(encode_rows(MIXED, Codec.NONE)) == 1


def test_batch_is_split_until_each_record_is_alone() -> None:
    (encoded,) = encode_rows(MIXED, Codec.ZSTD)

    quarters = [quarter for half in split(encoded) for quarter in split(half)]

    assert [row for quarter in quarters for row in read(quarter)] == MIXED
    assert [quarter.record_count for quarter in quarters] == [1, 1, 1, 1]
