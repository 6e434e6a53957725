"""`read_batch_headers` finds the record batches, and refuses corrupt headers before a record is decoded."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from pyspark_kafka_meta.errors import CorruptBatchError, UnsupportedRecordFormatError
from pyspark_kafka_meta.kafka.records.batches import next_position, read_batch_headers
from pyspark_kafka_meta.kafka.records.compression import Codec
from tests.unit.kafka.records.handmade import (
    BASE_MS,
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Row,
    batch,
    batch_of,
    record,
)

TWO = batch([Row(10), Row(11), Row(14)])
THREE = batch([Row(15, timestamp=BASE_MS + 7)], codec=Codec.ZSTD, leader_epoch=6, producer_id=77)


def test_headers_describe_the_batches() -> None:
    first, second = read_batch_headers(TWO + THREE)

    assert (first.position, first.end, first.base_offset, first.last_offset) == (0, len(TWO), 10, 14)
    assert (first.record_count, first.codec, first.leader_epoch, first.producer_id) == (3, Codec.NONE, 5, -1)
    assert (second.position, second.end, second.base_offset, second.last_offset) == (len(TWO), len(TWO + THREE), 15, 15)
    assert (second.record_count, second.codec, second.leader_epoch, second.producer_id) == (1, Codec.ZSTD, 6, 77)
    assert second.max_timestamp == BASE_MS + 7


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (0, (False, False, False)),
        (LOG_APPEND_TIME, (True, False, False)),
        (TRANSACTIONAL, (False, True, False)),
        (TRANSACTIONAL | CONTROL, (False, True, True)),
    ],
)
def test_attribute_bits_are_distinct(attributes: int, expected: tuple[bool, bool, bool]) -> None:
    (header,) = read_batch_headers(batch([Row(0)], attributes=attributes))

    assert (header.is_log_append_time, header.is_transactional, header.is_control) == expected


def test_no_bytes_have_no_batches() -> None:
    assert read_batch_headers(b"") == []


def test_truncated_last_batch_is_skipped() -> None:
    for kept in range(len(THREE)):
        assert len(read_batch_headers(TWO + THREE[:kept])) == 1


@pytest.mark.parametrize("kept", [1, 16, 17, 60, 61, 900])
def test_first_batch_larger_than_the_response_is_corrupt(kept: int) -> None:
    with pytest.raises(CorruptBatchError, match="cut off"):
        read_batch_headers(batch([Row(0, value=bytes(1000))])[:kept])


def test_next_position_is_after_the_last_batch_even_if_compaction_removed_its_last_record() -> None:
    compacted = batch([Row(20)], last_offset_delta=9, leader_epoch=8)

    assert next_position(read_batch_headers(TWO + compacted)) == (30, 8)


def test_next_position_is_after_an_empty_batch() -> None:
    empty = batch_of(b"", base_offset=40, last_offset_delta=4, record_count=0)

    assert next_position(read_batch_headers(empty)) == (45, 5)


def test_checksum_detects_a_flipped_bit() -> None:
    for at in range(21, len(TWO)):
        damaged = bytearray(TWO)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptBatchError, match="base offset 10"):
            read_batch_headers(bytes(damaged))


FOLLOWING = batch([Row(90)])
COMPACTED = {"last_offset_delta": 20}  # two records are left


@pytest.mark.parametrize(
    ("fields", "following", "until_offset"),
    [
        ({}, FOLLOWING, 90),
        ({}, b"", 72),
        (COMPACTED, FOLLOWING, 90),
        (COMPACTED, b"", None),
        ({"last_offset_delta": 2**30}, b"", None),
        (COMPACTED, FOLLOWING[:-1], 90),
        (COMPACTED, FOLLOWING[:60], None),
        ({}, FOLLOWING[:-1] + b"!", 72),
        ({}, batch([Row(70)]), 72),
        ({"length": 50}, FOLLOWING, None),
        ({"length": -1}, FOLLOWING, None),
    ],
)
def test_end_of_a_corrupt_batch_is_told(fields: dict[str, Any], following: bytes, until_offset: int | None) -> None:
    corrupt = bytearray(batch([Row(70), Row(71)], **fields))
    corrupt[17] ^= 1  # in the checksum

    with pytest.raises(CorruptBatchError) as raised:
        read_batch_headers(bytes(corrupt) + following)

    assert (raised.value.from_offset, raised.value.until_offset) == (70, until_offset)


def test_checksums_are_ignored_without_check_crcs() -> None:
    damaged = TWO[:17] + b"\x00\x00\x00\x00" + TWO[21:]

    with pytest.raises(CorruptBatchError, match="checksum"):
        read_batch_headers(damaged)
    assert len(read_batch_headers(damaged, check_crcs=False)) == 1


def legacy(magic: int, size: int) -> bytes:
    """A message of format v0 or v1: offset, size, CRC-32, magic, attributes and so on."""
    return struct.pack(">qiIbb", 3, size, 0, magic, 0) + bytes(size - 6)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [14, 22, 200])
def test_old_message_formats_are_refused_by_name(magic: int, size: int) -> None:
    message = f"message format v{magic} .*message.format.version"
    with pytest.raises(UnsupportedRecordFormatError, match=message) as raised:
        read_batch_headers(legacy(magic, size))

    assert "client" not in str(raised.value), "brokers convert what old producers send"


@pytest.mark.parametrize("following", [legacy(1, 30), legacy(0, 200), batch([Row(90)], attributes=5)])
def test_batches_before_an_unsupported_format_are_read(following: bytes) -> None:
    assert len(read_batch_headers(TWO + following)) == len(read_batch_headers(TWO))


@pytest.mark.parametrize("magic", [3, 127, -1])
def test_unknown_magic_is_corrupt(magic: int) -> None:
    with pytest.raises(CorruptBatchError, match=r"base offset 70: its magic byte") as raised:
        read_batch_headers(batch([Row(70)], magic=magic) + batch([Row(90)]))

    assert (raised.value.from_offset, raised.value.until_offset) == (70, 90)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(UnsupportedRecordFormatError, match=f"codec {codec}"):
        read_batch_headers(batch([Row(0)], attributes=codec))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 48}, "less than its header"),
        ({"length": 0}, "less than its header"),
        ({"length": -1}, "less than its header"),
        ({"length": -(2**31)}, "less than its header"),
        ({"record_count": -1, "last_offset_delta": 9}, "-1 records"),
        ({"record_count": 0}, "0 records in 8 bytes"),
        ({"record_count": 2, "last_offset_delta": 9}, "2 records in 8 bytes"),
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 1}, "2147483647 records"),
        ({"record_count": 3, "last_offset_delta": 1}, "3 records at 2 offsets"),
        ({"last_offset_delta": -1}, "0 offsets"),
        ({"base_offset": -1}, "-1"),
        ({"base_offset": 2**63 - 1}, "9223372036854775807"),
        ({"base_offset": 2**63 - 5, "last_offset_delta": 4}, "9223372036854775803"),
        ({"leader_epoch": -2}, "leader epoch -2"),
    ],
)
def test_inconsistent_batch_header_is_corrupt(fields: dict[str, int], message: str) -> None:
    with pytest.raises(CorruptBatchError, match=message):
        read_batch_headers(batch_of(record(Row(0)), **fields))


@pytest.mark.parametrize("delta", [-1, -2])
def test_empty_batch_without_offsets_is_corrupt(delta: int) -> None:
    with pytest.raises(CorruptBatchError, match=f"{delta + 1} offsets"):
        read_batch_headers(batch_of(b"", base_offset=50, last_offset_delta=delta, record_count=0))


def test_batch_without_a_leader_epoch_is_read() -> None:
    assert next_position(read_batch_headers(batch([Row(0)], leader_epoch=-1))) == (1, -1)


def test_largest_offset_is_read() -> None:
    (header,) = read_batch_headers(batch([Row(2**63 - 2)]))

    assert header.last_offset == 2**63 - 2


@pytest.mark.parametrize("offset", [0, 9, 10, 14])
def test_batch_with_earlier_offsets_than_the_batch_before_is_skipped(offset: int) -> None:
    assert len(read_batch_headers(TWO + batch([Row(offset)]))) == 1


def test_checksum_is_verified_before_the_codec() -> None:
    damaged = bytearray(TWO)
    damaged[22] |= 7

    with pytest.raises(CorruptBatchError, match="checksum"):
        read_batch_headers(bytes(damaged))
