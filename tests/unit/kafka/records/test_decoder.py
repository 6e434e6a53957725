"""`decode` returns the rows of fetched bytes, and refuses corrupt bytes."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_kafka_meta.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    KafkaMetaError,
    UnsupportedRecordFormatError,
)
from pyspark_kafka_meta.kafka.records import boundaries, columns, decoder
from pyspark_kafka_meta.kafka.records.compression import Codec
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, Selection, decode
from pyspark_kafka_meta.kafka.records.reusable_buffer import OWN_REFERENCES, ReusableBuffer
from pyspark_kafka_meta.kafka.records.schema import records_arrow_schema
from pyspark_kafka_meta.model import TopicPartition
from tests.unit.kafka.records.handmade import (
    ALL_COLUMNS,
    BASE_MS,
    COMPRESS,
    LOG_APPEND_TIME,
    ROWS,
    TOPIC_PARTITION,
    Row,
    batch,
    batch_of,
    fetched,
    nullable,
    record,
    rows_of,
    varint,
)


@pytest.fixture(autouse=True, params=["plain loop", "numpy", "guesses"])
def finding_starts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way to find record starts, in tests with few record batches."""
    if request.param != "plain loop":
        monkeypatch.setattr(boundaries, "MIN_TOGETHER", 1)
    if request.param == "guesses":
        monkeypatch.setattr(boundaries, "MIN_GUESSED_RECORDS", 1)


def decoded(part: FetchedRecords, *names: str) -> pa.Table:
    return pa.Table.from_batches(decode([part], names), schema=records_arrow_schema(names))


# Values


def test_all_columns_of_one_record() -> None:
    row = Row(42, b"k", b"v", BASE_MS + 5, (("trace", b"1"),))

    (table,) = decode([fetched(batch([row]))], ALL_COLUMNS)

    assert table.schema.equals(records_arrow_schema(ALL_COLUMNS), check_metadata=True)
    assert table.to_pylist() == [
        {
            "key": b"k",
            "value": b"v",
            "topic": "topic-0",
            "partition": 1,
            "offset": 42,
            "timestamp": datetime(2023, 11, 14, 22, 13, 20, 5000, tzinfo=UTC),
            "timestampType": 0,
            "headers": [{"key": "trace", "value": b"1"}],
        }
    ]


@pytest.mark.parametrize("names", [ALL_COLUMNS, ("value",), ()])
@pytest.mark.parametrize("kept", [{0, 3, 14}, set(range(15)), set[int]()])
def test_kept_records_are_those_of_the_selection_in_all_columns(names: tuple[str, ...], kept: set[int]) -> None:
    shifted = [[replace(row, offset=5 * number + row.offset) for row in ROWS] for number in range(3)]
    part = fetched(b"".join(map(batch, shifted)))
    seen: list[tuple[int, bool]] = []
    selection = Selection(
        ("offset", "headers"),
        lambda rows: np.isin(rows.column(0).to_numpy(), list(kept)),
        lambda rows, are_kept: seen.extend(zip(rows.column(0).to_pylist(), are_kept.tolist(), strict=True)),
    )

    found = list(decode([part], names, selection=selection))

    expected = decoded(part, *ALL_COLUMNS).filter(pc.field("offset").isin(list(kept))).select(names)
    assert pa.Table.from_batches(found, records_arrow_schema(names)).equals(expected)
    assert sum(rows.num_rows for rows in found) == len(kept)
    assert all(rows.num_rows for rows in found)
    assert seen == [(offset, offset in kept) for offset in range(15)]


def test_null_and_empty_are_distinct() -> None:
    rows = [Row(0, None, None), Row(1, b"", b""), Row(2, b"k", None), Row(3, None, b"v"), Row(4, b"", None)]

    assert rows_of(fetched(batch(rows))) == rows


def test_records_without_headers_have_null_and_duplicate_keys_keep_their_order() -> None:
    rows = [
        Row(0, headers=(("a", b"1"), ("b", None), ("a", b""), ("", b"2"))),
        Row(1, headers=None),
        Row(2, headers=(("schlüssel", b"x" * 300),)),
    ]

    assert rows_of(fetched(batch(rows))) == rows


@pytest.mark.parametrize("name", [None, "trace", "__key_schema_id", "__value_schema_id"])
def test_headers_are_decoded_for_schema_ids_if_one_may_be_there(name: str | None) -> None:
    rows = [Row(0, b"k", b"v", headers=None if name is None else ((name, b"1"),)), Row(1, b"k", b"v")]

    (table,) = decode([fetched(batch(rows))], ["headers", "schemaIdHeaders"])

    is_decoded = name is not None and name.endswith("_schema_id")
    assert table["schemaIdHeaders"].to_pylist() == (table["headers"].to_pylist() if is_decoded else [None, None])
    assert table["schemaIdHeaders"].type == table["headers"].type


def test_records_with_few_and_with_very_many_headers() -> None:
    def headers(count: int) -> tuple[tuple[str, bytes | None], ...]:
        return tuple((f"key-{at % 7}", None if at % 5 == 0 else bytes(at % 11)) for at in range(count))

    counts = [0, 1, 1000, 31, 0, 32, 33, 2, 64, 1]
    rows = [Row(offset, headers=headers(count) or None) for offset, count in enumerate(counts)]

    assert rows_of(fetched(batch(rows[:3]) + batch(rows[3:]))) == rows


def test_header_key_that_is_not_utf8_is_replaced() -> None:
    body = b"\x00\x00\x00" + nullable(None) + nullable(b"v") + varint(2)
    body += nullable(b"\xff!") + nullable(None) + nullable(b"ok") + nullable(b"1")

    (row,) = rows_of(fetched(batch_of(varint(len(body)) + body)))

    assert row.headers == (("\ufffd!", None), ("ok", b"1"))


@pytest.mark.parametrize("size", [0, 1, 56, 57, 63, 64, 8184, 8185, 8192, 1_048_570, 1_048_580, 3_000_000])
def test_values_of_any_length_between_small_ones(size: int) -> None:
    rows = [Row(0, b"a", b"1"), Row(1, b"k" * 70, bytes(size)), Row(2, b"b", b"2")]

    assert rows_of(fetched(batch(rows))) == rows


@pytest.mark.parametrize("codec", Codec)
def test_every_codec(codec: Codec) -> None:
    rows = [Row(offset, b"key %d" % (offset % 7), b"value " * (offset % 11)) for offset in range(500)]

    assert rows_of(fetched(batch(rows, codec))) == rows


def test_codecs_may_change_from_batch_to_batch() -> None:
    rows = [Row(offset, value=b"%d" % offset) for offset in range(50)]
    batches = [batch(rows[at : at + 10], codec) for at, codec in zip(range(0, 50, 10), Codec, strict=True)]

    assert rows_of(fetched(b"".join(batches))) == rows


# Time


@pytest.mark.parametrize("ms", [-1, 0, 1, -62_135_596_800_000, 253_402_300_799_999, 9_223_372_036_854_775])
def test_milliseconds_become_microseconds_even_before_1970(ms: int) -> None:
    table = decoded(fetched(batch([Row(0, timestamp=ms)])), "timestamp", "timestampType")

    assert table["timestamp"].cast("int64").to_pylist() == [ms * 1000]
    assert table["timestampType"].to_pylist() == [0]


def test_timestamps_may_go_backwards() -> None:
    rows = [Row(0, timestamp=BASE_MS), Row(1, timestamp=BASE_MS - 10**9), Row(2, timestamp=BASE_MS + 10**9)]

    assert rows_of(fetched(batch(rows))) == rows


def test_log_append_time_is_the_batchs_max_timestamp_for_all_its_records() -> None:
    records = batch([Row(0), Row(1, timestamp=BASE_MS + 1)], attributes=LOG_APPEND_TIME, max_timestamp=BASE_MS + 999)
    records += batch([Row(2)])

    table = decoded(fetched(records), "timestamp", "timestampType")

    assert table["timestampType"].to_pylist() == [1, 1, 0]
    assert table["timestamp"].cast("int64").to_pylist() == [(BASE_MS + 999) * 1000] * 2 + [BASE_MS * 1000]


@pytest.mark.parametrize(
    ("base_ms", "delta_ms"),
    [
        (9_223_372_036_854_776, 0),
        (-9_223_372_036_854_776, 0),
        (BASE_MS * 1_000_000, 0),  # nanoseconds taken for milliseconds
        (2**62, 2**62),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
    ],
)
def test_timestamp_that_overflows_is_an_error_that_names_the_record(base_ms: int, delta_ms: int) -> None:
    body = record(Row(3, timestamp=base_ms + delta_ms), 3, base_ms)
    part = fetched(batch([Row(0)]) + batch_of(body, base_offset=3, base_timestamp=base_ms))

    with pytest.raises(
        UnsupportedRecordFormatError, match=r"topic-0-1, .* of offset 3, .*leave out the timestamp column"
    ):
        decoded(part, "timestamp")
    assert decoded(part, "offset")["offset"].to_pylist() == [0, 3]


def test_timestamp_outside_the_range_is_ignored() -> None:
    records = batch([Row(0, timestamp=2**62), Row(1)], base_timestamp=BASE_MS)

    assert decoded(fetched(records, from_offset=1), "timestamp", "offset")["offset"].to_pylist() == [1]


# Ranges and order


@pytest.mark.parametrize(("from_offset", "until_offset"), [(0, 30), (3, 27), (10, 20), (12, 13), (29, 30), (9, 11)])
def test_range_cuts_inside_batches(from_offset: int, until_offset: int) -> None:
    rows = [Row(offset) for offset in range(30)]
    records = b"".join(batch(rows[at : at + 10]) for at in (0, 10, 20))

    decoded_rows = rows_of(fetched(records, from_offset=from_offset, until_offset=until_offset))

    assert decoded_rows == rows[from_offset:until_offset]


@pytest.mark.parametrize(("from_offset", "until_offset"), [(30, 40), (5, 5), (0, 0), (6, 9)])
def test_range_without_records_has_no_rows(from_offset: int, until_offset: int) -> None:
    records = batch([Row(0), Row(5), Row(9)]) + batch([Row(10)], last_offset_delta=19)

    assert rows_of(fetched(records, from_offset=from_offset, until_offset=until_offset)) == []


def test_corrupt_records_outside_the_range_are_ignored() -> None:
    damaged = [batch_of(bytes(9), base_offset=offset) for offset in (0, 20)]
    part = fetched(damaged[0] + batch([Row(10)]) + damaged[1], from_offset=1, until_offset=20)

    assert rows_of(part) == [Row(10)]


def test_compaction_leaves_gaps_and_empty_batches() -> None:
    empty = batch_of(b"", base_offset=20, last_offset_delta=9, record_count=0)
    records = batch([Row(3), Row(7)], base_offset=0, last_offset_delta=19) + empty + batch([Row(30)])

    assert [row.offset for row in rows_of(fetched(records))] == [3, 7, 30]


def test_truncated_last_batch_has_no_rows() -> None:
    assert [row.offset for row in rows_of(fetched(batch([Row(0)]) + batch([Row(1)])[:-1]))] == [0]


def test_partitions_keep_their_order() -> None:
    partitions = [TopicPartition("b", 7), TopicPartition("a", 0), TopicPartition("a", 1)]
    parts = [
        fetched(batch([Row(n), Row(n + 1)]), partition=partition)
        for n, partition in zip((50, 0, 9), partitions, strict=True)
    ]

    (table,) = decode(parts, ["topic", "partition", "offset"])

    assert [tuple(row.values()) for row in table.to_pylist()] == [
        *(("b", 7, 50), ("b", 7, 51), ("a", 0, 0), ("a", 0, 1), ("a", 1, 9), ("a", 1, 10))
    ]


def test_no_bytes_have_no_rows() -> None:
    assert list(decode([], ALL_COLUMNS)) == []
    assert list(decode([fetched(b"")], ALL_COLUMNS)) == []


@pytest.mark.parametrize("names", [("value",), ("offset", "key"), ("headers",), ALL_COLUMNS[::-1]])
def test_columns_keep_their_order(names: tuple[str, ...]) -> None:
    table = decoded(fetched(batch([Row(0), Row(1)])), *names)

    assert table.column_names == list(names)
    assert table.num_rows == 2


@pytest.mark.parametrize(("chunk_bytes", "chunk_records"), [(1, 10**6), (100, 10**6), (10**6, 1), (10**6, 25)])
def test_rows_are_equal_in_any_chunks(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, chunk_records: int) -> None:
    rows = [Row(offset, b"k", b"value" * (offset % 9), headers=(("h", b"1"),)) for offset in range(100)]
    batches = [batch(rows[at : at + 10], Codec.LZ4 if at % 20 else Codec.NONE) for at in range(0, 100, 10)]
    monkeypatch.setattr(decoder, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(decoder, "CHUNK_RECORDS", chunk_records)
    part = fetched(b"".join(batches))

    assert len(list(decode([part], ["offset"]))) > 2
    assert rows_of(part) == rows


@pytest.mark.parametrize(("value_bytes", "records"), [(100, 10), (300, 7)])
def test_chunks_of_few_records_are_larger(monkeypatch: pytest.MonkeyPatch, value_bytes: int, records: int) -> None:
    monkeypatch.setattr(decoder, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(decoder, "FEW_RECORDS", 8)
    part = fetched(b"".join(batch([Row(offset, value=bytes(value_bytes))]) for offset in range(20)))

    assert next(decode([part], ["offset"])).num_rows == records


def test_yielded_rows_do_not_change_while_more_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "CHUNK_BYTES", 1)
    rows = [Row(offset, b"%d" % offset, b"%d" % offset) for offset in range(20)]
    part = fetched(b"".join(batch([row]) for row in rows))

    tables = list(decode([part], ["key", "value"]))

    assert [table["value"][0].as_py() for table in tables] == [row.value for row in rows]


# Corrupt bytes


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_batch_above_the_limit_is_not_corrupt(codec: Codec) -> None:
    part = fetched(batch([Row(7, value=bytes(5000))], codec))

    assert list(decode([part], ["offset"], max_decompressed_bytes=6000))
    with pytest.raises(
        BatchTooLargeError, match=r"^topic-0-1 at offset 7: .*than 4000 bytes; set .* maxDecompressedBatchBytes"
    ) as raised:
        list(decode([part], ["offset"], max_decompressed_bytes=4000))
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.topic, error.partition, error.offset, str(error)) == ("topic-0", 1, 7, str(raised.value))


def test_limit_is_not_for_batches_without_a_codec() -> None:
    part = fetched(batch([Row(0, value=bytes(5000))]))

    assert list(decode([part], ["offset"], max_decompressed_bytes=4000))


def test_batch_too_large_for_32_bit_positions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_MAX_BUFFER_BYTES", decoder.MIN_BUFFER_BYTES)

    with pytest.raises(UnsupportedRecordFormatError, match="larger than can be decoded"):
        list(decode([fetched(batch([Row(0)]))], ["offset"]))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_larger_batches_than_usual_are_read_between_others(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("CHUNK_BYTES", 500), ("MIN_BUFFER_BYTES", 100), ("USUAL_BYTES", 1000)):
        monkeypatch.setattr(decoder, name, size)
    rows = [Row(offset, b"%d" % offset, bytes(size)) for offset, size in enumerate((10, 20, 9000, 30, 1500, 40))]
    part = fetched(b"".join(batch([row], codec) for row in rows))

    assert rows_of(part) == rows


@pytest.mark.parametrize("limit", [decoder.MAX_DECOMPRESSED_BYTES, 200_000])
def test_batches_without_a_codec_follow_one_that_was_compressed_more_than_usual(limit: int) -> None:
    rows = [Row(0, value=bytes(190_000)), *(Row(offset, value=bytes(300_000)) for offset in range(1, 5))]
    part = fetched(b"".join(batch([row], Codec.NONE if row.offset else Codec.ZSTD) for row in rows))

    assert [len(found) for found in decode([part], ["offset"], limit)] == [4, 1]


@pytest.mark.parametrize("codec", Codec)
def test_memory_is_reserved_for_what_was_fetched(codec: Codec) -> None:
    memory = ReusableBuffer()
    few, many = (fetched(batch([Row(0, value=bytes(size))], codec)) for size in (10, 3_000_000))

    assert list(decode([few], ["value"], memory=memory))
    assert len(memory.whole(0)) < 2**20 + 100
    assert list(decode([many], ["value"], memory=memory))
    assert 3_000_000 < len(memory.whole(0)) < 7_000_000


class WatchedBuffer(ReusableBuffer):
    """Notes whether its memory is in use when it is requested again: then it would be allocated anew."""

    def __init__(self) -> None:
        super().__init__()
        self.in_use: list[bool] = []

    def whole(self, min_size: int) -> memoryview:
        self.in_use.append(sys.getrefcount(self._bytes) > OWN_REFERENCES)
        return super().whole(min_size)


def test_chunks_take_turns_in_memory_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("CHUNK_BYTES", 500), ("MIN_BUFFER_BYTES", 100)):
        monkeypatch.setattr(decoder, name, size)
    rows = [Row(offset, b"%d" % offset, bytes(offset * 100)) for offset in range(100)]
    part, memory = fetched(b"".join(batch([row], Codec.ZSTD) for row in rows)), WatchedBuffer()

    chunks = len(list(decode([part], ["value"], memory=memory)))

    assert len(memory.in_use) > chunks > 50
    assert not any(memory.in_use)
    assert len(memory.whole(0)) > 9900


# Slices of large batches


SLICED = [
    Row(offset, b"%d" % offset, bytes(offset % 40), headers=tuple(("k", b"%d" % n) for n in range(offset % 30)) or None)
    for offset in range(100)
]


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, size in ((decoder, "SLICE_RECORDS", 7), (decoder, "SLICE_BYTES", 900)):
        monkeypatch.setattr(module, name, size)
    monkeypatch.setattr(columns, "SLICE_STRINGS", 16)
    monkeypatch.setattr(boundaries, "MAX_LISTED", 3)
    monkeypatch.setattr(boundaries, "MAX_INTP_ITEMS", 5)


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("size", [1, 10, 33, 100])
def test_rows_of_slices_are_those_of_the_whole(size: int) -> None:
    part = fetched(b"".join(batch(SLICED[at : at + size]) for at in range(0, 100, size)))

    assert max(rows.num_rows for rows in decode([part], ALL_COLUMNS)) <= 7
    assert rows_of(part) == SLICED
    assert rows_of(replace(part, from_offset=13, until_offset=71)) == SLICED[13:71]


ALL_WITH_HEADERS = Selection(("headers",), lambda rows: np.ones(rows.num_rows, np.bool_), lambda *_: None)


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("bad", [0, 6, 7, 8, 50, 99])
@pytest.mark.parametrize(("names", "selection"), [(ALL_COLUMNS, None), (["offset"], ALL_WITH_HEADERS)])
def test_corrupt_batch_of_many_slices_returns_no_row(
    names: Sequence[str], selection: Selection | None, bad: int
) -> None:
    good = batch(SLICED[:2], base_offset=0)
    bodies = [record(row) for row in SLICED]
    bodies[bad] = record(Row(bad, headers=(("k", None),)))[:-1] + b"\x03"  # the value's length is -2
    corrupt = batch_of(b"".join(bodies), base_offset=2, record_count=100, last_offset_delta=99)

    tables = decode([fetched(good + corrupt)], names, selection=selection)
    assert next(tables)["offset"].to_pylist() == [0, 1]
    with pytest.raises(CorruptBatchError, match="base offset 2"):
        next(tables)


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("at", [7, 8])
def test_offsets_that_do_not_increase_between_slices_are_corrupt(at: int) -> None:
    body = b"".join(record(Row(offset - (offset == at))) for offset in range(20))

    with pytest.raises(CorruptBatchError, match="offsets do not increase"):
        list(decode([fetched(batch_of(body, last_offset_delta=19, record_count=20))], ["value"]))


@pytest.mark.usefixtures("slices")
def test_header_keys_that_are_not_utf_8_are_replaced_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_DECODED_BYTES", 2)
    keys = [b"a\xffb", b"\xe2\x82", "\u20ac\U0001f600".encode(), b"", b"\xf0\x9f\x98x\xff"] * 5
    body = b"\x00\x00\x00\x01\x01" + varint(len(keys)) + b"".join(nullable(key) + nullable(None) for key in keys)
    (rows,) = decode([fetched(batch_of(varint(len(body)) + body))], ["headers"])

    expected = [{"key": key.decode("utf-8", "replace"), "value": None} for key in keys]
    assert rows["headers"].to_pylist() == [expected]


@pytest.mark.parametrize("counts", [(3,), (1, 4)])
def test_rows_without_columns_are_counted(counts: tuple[int, ...]) -> None:
    parts = [fetched(batch([Row(offset) for offset in range(count)])) for count in counts]

    assert sum(rows.num_rows for rows in decode(parts, [])) == sum(counts)


GOOD = record(Row(0, b"key", b"value"))
BAD_BODIES = {
    "length beyond the batch": varint(200) + GOOD[1:],
    "length one too short": varint(len(GOOD) - 2) + GOOD[1:],
    "length one too long": varint(len(GOOD)) + GOOD[1:],
    "negative length": varint(-9) + GOOD[1:],
    "length zero": varint(0) + GOOD[1:],
    "length of five bytes": b"\xff\xff\xff\xff\x7f" + GOOD[1:],
    "length of six bytes": b"\xb0\x80\x80\x80\x80\x00" + GOOD[1:],
    "bytes left over": GOOD + b"\x00",
    "cut off": GOOD[:-1],
    "timestamp of eleven bytes": b"\x1e\x00" + b"\x80" * 10 + b"\x00\x01\x01\x00",
    "offset of six bytes": b"\x14\x00\x00" + b"\x80" * 5 + b"\x01\x01\x00",
    "key length -2": b"\x0c\x00\x00\x00\x03\x00\x00",
    "key beyond the record": b"\x0c\x00\x00\x00\x10\x00\x00",
    "key up to the record's end": b"\x0c\x00\x00\x00\x04\x00\x00",
    "key length 2^31 - 1": b"\x14\x00\x00\x00\xfe\xff\xff\xff\x0f\x01\x00",
    "value length -2": b"\x0c\x00\x00\x00\x01\x03\x00",
    "value beyond the record": b"\x0c\x00\x00\x00\x01\x08\x00",
    "value length 2^31 - 1": b"\x14\x00\x00\x00\x01\xfe\xff\xff\xff\x0f\x00",
    "negative header count": b"\x0c\x00\x00\x00\x01\x01\x01",
    "headers that are not there": b"\x0c\x00\x00\x00\x01\x01\x02",
    "header count 2^31 - 1": b"\x14\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f",
    "bytes after no headers": b"\x0e\x00\x00\x00\x01\x01\x00\x00",
    "negative offset": b"\x0c\x00\x00\x01\x01\x01\x00",
    "offset after the last": b"\x0c\x00\x00\x16\x01\x01\x00",
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_inconsistent_record_is_corrupt(body: bytes) -> None:
    before, after = batch([Row(0), Row(1)]), batch([Row(90)])
    for codec in (Codec.NONE, Codec.ZSTD):
        bad = batch_of(COMPRESS[codec](body), base_offset=70, attributes=codec, last_offset_delta=10)
        with pytest.raises(CorruptBatchError, match=r"topic-0-1, record batch with base offset 70: "):
            rows_of(fetched(before + bad + after))


BAD_HEADERS = {
    "null key": nullable(None) + nullable(b"v"),
    "key length -2": b"\x03\x00",
    "key beyond the record": b"\x10" + nullable(b"v"),
    "value length -2": nullable(b"k") + b"\x03",
    "value too short": nullable(b"k") + b"\x02vv",
    "value beyond the record": nullable(b"k") + b"\x10v",
    "length of six bytes": b"\x80\x80\x80\x80\x80\x00" + nullable(b"v"),
    "lengths up to the end": b"\x80\x80",
}


@pytest.mark.parametrize("headers", BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_inconsistent_record_headers_are_corrupt(headers: bytes) -> None:
    for good in (0, 1, 32, 100):
        body = b"\x00\x00\x02\x01\x01" + varint(good + 1) + (nullable(b"k") + nullable(b"v")) * good + headers
        rows = record(Row(5, headers=(("a", b"1"),)), 5) + varint(len(body)) + body
        bad = batch_of(rows, base_offset=5, last_offset_delta=1, record_count=2)

        with pytest.raises(CorruptBatchError, match=r"topic-0-1, record batch with base offset 5: "):
            list(decode([fetched(bad + batch([Row(9, value=bytes(99))]))], ["headers"]))


@pytest.mark.parametrize("offsets", [(0, 0), (1, 0), (0, 2, 1), (-1, 0), (0, 1, 11)])
def test_offsets_that_do_not_increase_inside_the_batch_are_corrupt(offsets: tuple[int, ...]) -> None:
    body = b"".join(record(Row(offset)) for offset in offsets)
    part = fetched(batch_of(body, last_offset_delta=10, record_count=len(offsets)))

    with pytest.raises(CorruptBatchError, match="offsets do not increase"):
        list(decode([part], ["value"]))


@pytest.mark.parametrize("claimed", [1, 2, 4, 5, 100, 2**31 - 1])
def test_wrong_count_of_records_is_corrupt(claimed: int) -> None:
    rows = [Row(0), Row(1), Row(2)]
    for codec in Codec:
        with pytest.raises(CorruptBatchError, match="base offset 0"):
            rows_of(fetched(batch(rows, codec, record_count=claimed, last_offset_delta=2**31 - 1)))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_empty_data_that_claim_records_are_corrupt(codec: Codec) -> None:
    with pytest.raises(CorruptBatchError, match="1 records in 0 bytes"):
        rows_of(fetched(batch_of(COMPRESS[codec](b""), attributes=codec)))


def test_rows_before_an_error_are_yielded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "CHUNK_BYTES", 1)
    tables = decode([fetched(batch([Row(0)]) + batch_of(b"\x00" * 9, base_offset=1))], ["offset"])

    assert next(tables)["offset"].to_pylist() == [0]
    with pytest.raises(KafkaMetaError, match=str(TOPIC_PARTITION)):
        next(tables)
