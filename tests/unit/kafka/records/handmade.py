"""Builds record batches in which any field may be wrong, with a correct checksum."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cramjam
from crc32c import crc32c
from kio.records.schema import Record

from pyspark_kafka_meta.kafka.records.batches import BatchHeader, read_batch_headers
from pyspark_kafka_meta.kafka.records.compression import Codec
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, RECORD_COLUMNS
from pyspark_kafka_meta.model import TopicPartition

ALL_COLUMNS = (*RECORD_COLUMNS, HEADERS_COLUMN)
TOPIC_PARTITION = TopicPartition("topic-0", 1)
BASE_MS = 1_700_000_000_000
LAST_OFFSET = 2**63 - 2
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_AT, _CRC_COVERS_FROM, _RECORDS_AT = 17, 21, 61


def lz4_like_java(data: bytes) -> bytes:
    """One LZ4 frame of independent blocks of 64 KiB, without checksums."""
    frame = b"\x04\x22\x4d\x18\x60\x40\x82"
    for at in range(0, len(data), 65536):
        plain = data[at : at + 65536]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            frame += struct.pack("<I", len(block)) + block
        else:
            frame += struct.pack("<I", len(plain) | 1 << 31) + plain
    return frame + bytes(4)


def xerial_snappy(data: bytes, block_bytes: int = 32768) -> bytes:
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), block_bytes):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + block_bytes]))
        framed += struct.pack(">i", len(block)) + block
    return framed


COMPRESS: dict[Codec, Callable[[bytes], bytes]] = {
    Codec.NONE: bytes,
    Codec.GZIP: lambda data: bytes(cramjam.gzip.compress(data)),
    Codec.SNAPPY: xerial_snappy,
    Codec.LZ4: lz4_like_java,
    Codec.ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One record; `timestamp` in ms. `headers` of a record without headers are None, as in the table."""

    offset: int
    key: bytes | None = None
    value: bytes | None = b"v"
    timestamp: int = BASE_MS
    headers: tuple[tuple[str, bytes | None], ...] | None = None


ROWS = [
    Row(0, b"key-0", b"value-0", headers=(("header-0", b"of-0"), ("header-1", None))),
    Row(1, None, b"value-1"),
    Row(2, b"key-2", None),
    Row(3, b"", b"", headers=(("", b""),)),
    Row(4, b"key-4" * 20, b"value-4" * 50),
]
"""Records of each kind."""


def varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while raw > 0x7F:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes((*encoded, raw))


def nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(row: Row, base_offset: int = 0, base_timestamp: int = BASE_MS) -> bytes:
    headers = row.headers or ()
    body = b"\x00" + varint(row.timestamp - base_timestamp) + varint(row.offset - base_offset)
    body += nullable(row.key) + nullable(row.value) + varint(len(headers))
    body += b"".join(nullable(key.encode()) + nullable(value) for key, value in headers)
    return varint(len(body)) + body


def batch_of(body: bytes, **fields: int) -> bytes:
    """A record batch with this (compressed) body. `fields` are named as in `BatchHeader`."""
    defaults = BatchHeader(0, 0, len(body) + 49, 5, 2, 0, 0, 0, BASE_MS, BASE_MS, -1, -1, -1, 1)
    return repair_crc(_HEADER.pack(*defaults._replace(**fields)[1:]) + body)


def batch(rows: Sequence[Row], codec: Codec = Codec.NONE, attributes: int = 0, **fields: int) -> bytes:
    """A record batch of these rows as from a producer, with `fields` in its header changed."""
    base_offset = fields.get("base_offset", rows[0].offset)
    base_timestamp = fields.get("base_timestamp", rows[0].timestamp)
    body = b"".join(record(row, base_offset, base_timestamp) for row in rows)
    derived = {
        "base_offset": base_offset,
        "attributes": attributes | codec,
        "last_offset_delta": rows[-1].offset - base_offset,
        "base_timestamp": base_timestamp,
        "max_timestamp": max(row.timestamp for row in rows),
        "record_count": len(rows),
    }
    return batch_of(COMPRESS[codec](body), **(derived | fields))


def marker(offset: int, producer_id: int, commit: bool, producer_epoch: int = 0) -> bytes:
    """The control batch of a transaction coordinator that ends a transaction."""
    rows = [Row(offset, key=struct.pack(">hh", 0, int(commit)), value=struct.pack(">hi", 0, 0))]
    return batch(rows, attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id, producer_epoch=producer_epoch)


def repair_crc(batch_bytes: bytes) -> bytes:
    crc = struct.pack(">I", crc32c(batch_bytes[_CRC_COVERS_FROM:]))
    return batch_bytes[:_CRC_AT] + crc + batch_bytes[_CRC_COVERS_FROM:]


def fetched(records: bytes, check_crcs: bool = True, **fields: Any) -> FetchedRecords:
    """Records fetched without an end offset; `fields` as in `FetchedRecords`."""
    defaults: dict[str, Any] = {"partition": TOPIC_PARTITION, "from_offset": 0, "until_offset": LAST_OFFSET}
    return FetchedRecords(records=records, headers=read_batch_headers(records, check_crcs), **(defaults | fields))


def rows_of(parts: FetchedRecords | Sequence[FetchedRecords]) -> list[Row]:
    """The rows of `decode`, without partition and timestamp type."""
    rows = []
    for part in [parts] if isinstance(parts, FetchedRecords) else parts:
        for table in decode([part], ALL_COLUMNS):
            table.validate(full=True)
            columns = (table[name].to_pylist() for name in ("offset", "key", "value", HEADERS_COLUMN))
            micros = table["timestamp"].cast("int64").to_pylist()
            for time_us, offset, key, value, headers in zip(micros, *columns, strict=True):
                pairs = headers and tuple((header["key"], header["value"]) for header in headers)
                rows.append(Row(offset, key, value, time_us // 1000, pairs))
    return rows


def from_kio(record: Record) -> Row:
    """A record that kio read, with a timestamp of whole seconds."""
    headers = tuple(((header.key or b"").decode(), header.value) for header in record.headers)
    return Row(record.offset, record.key, record.value, int(record.timestamp.timestamp()) * 1000, headers or None)
