"""Reads and checks the headers of fetched record batches, before any record is decoded; writes record batches.

Source: Kafka's message format v2 (`DefaultRecordBatch`, `ByteBufferLogInputStream`). All integers are big-endian:

    at  size
     0     8  base offset                 the checksum covers neither this field nor the next three
     8     4  length                      bytes after this field
    12     4  partition leader epoch
    16     1  magic                       2; at the same position in v0 and v1 messages
    17     4  CRC-32C                     of everything from the attributes to the end of the batch
    21     2  attributes                  bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
    23     4  last offset delta           unchanged when compaction removes the last record
    27     8  base timestamp              ms
    35     8  max timestamp               ms; under LogAppendTime the timestamp of every record
    43     8  producer id                 -1 without idempotence
    51     2  producer epoch
    53     4  base sequence
    57     4  count of records
    61        records                     compressed as one block unless the codec is none

`fields.py` has the layout of a record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crc32c import crc32c

from pyspark_kafka_meta.errors import CorruptBatchError, KafkaMetaError, UnsupportedRecordFormatError
from pyspark_kafka_meta.kafka.records.compression import Codec
from pyspark_kafka_meta.model import NO_EPOCH, ProducerIdAndEpoch

HEADER_BYTES = 61
TRANSACTIONAL = 0x10
"""The attribute of a batch that belongs to a transaction."""
MIN_RECORD_BYTES = 7
"""One byte each: length, attributes, timestamp delta, offset delta, key length, value length, header count."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_STARTS_AT = 12
_MAGIC_AT = 16
_CHECKSUM_COVERS_FROM = 21
_MAGIC = 2
_CODECS = tuple(Codec)
_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_CONTROL = 0x20
_MAX_OFFSET = 2**63 - 2  # the next offset must fit an int64


class BatchHeader(NamedTuple):
    """The position of a record batch in the fetched bytes, and the fields of its header.

    A named tuple, because a fetch can hold thousands: 0.5 us each, where a frozen dataclass takes 2 us.
    """

    position: int
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def end(self) -> int:
        """Position after the batch."""
        return self.position + _LENGTH_STARTS_AT + self.length

    @property
    def last_offset(self) -> int:
        """Inclusive; compaction may have removed the record at this offset."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> Codec:
        return _CODECS[self.attributes & _CODEC_MASK]

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)


def read_batch_headers(records: bytes | memoryview, check_crcs: bool = True) -> list[BatchHeader]:
    """The headers of the record batches before the first unreadable batch, with which the next fetch begins.

    Raises:
        CorruptBatchError: the first batch is truncated, or its lengths, counts, offsets or checksum are wrong. The text
            names its base offset.
        UnsupportedRecordFormatError: the first batch is of message format v0 or v1, or has an unknown codec.
    """
    view = memoryview(records)
    headers: list[BatchHeader] = []
    position, next_offset = 0, 0
    while position < len(view):
        try:
            header = _read_header(view, position, next_offset, check_crcs)
        except (CorruptBatchError, UnsupportedRecordFormatError):
            if headers:
                break
            raise
        headers.append(header)
        position, next_offset = header.end, header.last_offset + 1
    return headers


def _read_header(view: memoryview, position: int, next_offset: int, check_crcs: bool) -> BatchHeader:
    left = len(view) - position
    if left < HEADER_BYTES:  # messages of older formats may be shorter
        if left > _MAGIC_AT and view[position + _MAGIC_AT] != _MAGIC:
            raise _magic_problem(view[position + _MAGIC_AT])
        raise CorruptBatchError("a record batch is cut off")
    header = BatchHeader(position, *_HEADER.unpack_from(view, position))
    problem = _problem(header, next_offset, len(view))
    is_whole = not isinstance(problem, CorruptBatchError)
    if is_whole and header.magic == _MAGIC and check_crcs and not _checksum_matches(view, header):
        problem = CorruptBatchError("its checksum does not match its bytes")
    if problem is None:
        return header
    text = f"record batch with base offset {header.base_offset}: {problem}"
    if isinstance(problem, CorruptBatchError):
        # If only the checksum is wrong, the last offset may be wrong too: use it only if the record count agrees.
        agrees = is_whole and header.record_count == header.last_offset_delta + 1
        until_offset = _next_base_offset(view, header) or (header.last_offset + 1 if agrees else None)
        raise CorruptBatchError(text, from_offset=header.base_offset, until_offset=until_offset)
    raise type(problem)(text)


def _checksum_matches(view: memoryview, header: BatchHeader) -> bool:
    return bool(crc32c(view[header.position + _CHECKSUM_COVERS_FROM : header.end]) == header.crc)


def _next_base_offset(view: memoryview, corrupt: BatchHeader) -> int | None:
    """The base offset of the batch after a corrupt batch, or None if no valid batch, whole or truncated, begins there:
    the corrupt batch's length may be wrong too."""
    if not HEADER_BYTES <= corrupt.end - corrupt.position <= len(view) - corrupt.position - HEADER_BYTES:
        return None
    following = BatchHeader(corrupt.end, *_HEADER.unpack_from(view, corrupt.end))
    if _problem(following, corrupt.base_offset + 1, following.end) is not None:
        return None
    is_valid = following.end > len(view) or _checksum_matches(view, following)
    return following.base_offset if is_valid else None


def write_batch(
    payload: bytes | memoryview,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer: ProducerIdAndEpoch,
    base_sequence: int,
    record_count: int,
) -> bytes:
    """A record batch as a producer sends it: with base offset 0, which the leader replaces, like the leader epoch."""
    length = HEADER_BYTES - _LENGTH_STARTS_AT + len(payload)
    fields = (attributes, record_count - 1, base_timestamp, max_timestamp, *producer, base_sequence, record_count)
    covered = _HEADER.pack(0, length, NO_EPOCH, _MAGIC, 0, *fields)[_CHECKSUM_COVERS_FROM:]
    crc = crc32c(payload, crc32c(covered))
    return b"".join((_HEADER.pack(0, length, NO_EPOCH, _MAGIC, crc, *fields), payload))


def next_position(headers: Sequence[BatchHeader]) -> tuple[int, int]:
    """The offset after these batches, at least one, and the leader epoch of the last batch."""
    last = headers[-1]
    return last.last_offset + 1, last.leader_epoch


def _magic_problem(magic: int) -> KafkaMetaError:
    if magic in (0, 1):
        return UnsupportedRecordFormatError(
            f"message format v{magic} is not supported; brokers stored it while message.format.version was below 0.11; "
            "start after these records, or see docs/troubleshooting.md for how to read them"
        )
    return CorruptBatchError(f"its magic byte is {magic}")


def _problem(header: BatchHeader, next_offset: int, available_bytes: int) -> KafkaMetaError | None:
    """What is wrong with a header, if the offsets before `next_offset` belong to the batch before."""
    if header.magic != _MAGIC:
        return _magic_problem(header.magic)
    if header.end > available_bytes:
        return CorruptBatchError("it is cut off")
    records_bytes = header.length - (HEADER_BYTES - _LENGTH_STARTS_AT)
    offsets = header.last_offset_delta + 1
    codec = header.attributes & _CODEC_MASK
    if records_bytes < 0:
        return CorruptBatchError(f"its length of {header.length} bytes is less than its header's")
    if header.base_offset < next_offset or header.last_offset > _MAX_OFFSET or offsets < 1:
        return CorruptBatchError(f"it has {offsets} offsets, and offset {next_offset} or later was expected")
    if header.leader_epoch < -1:
        return CorruptBatchError(f"leader epoch {header.leader_epoch}")
    if codec >= len(_CODECS):
        return UnsupportedRecordFormatError(f"unknown compression codec {codec}; start after these records")
    if not 0 <= header.record_count <= offsets:
        return CorruptBatchError(f"{header.record_count} records at {offsets} offsets")
    if codec == Codec.NONE and (
        header.record_count * MIN_RECORD_BYTES > records_bytes or (records_bytes and not header.record_count)
    ):
        return CorruptBatchError(f"{header.record_count} records in {records_bytes} bytes")
    return None


_MARKER_KEY = struct.Struct(">hh")  # version, type
_ABORT = 0


def without_aborted_batches(
    headers: Iterable[BatchHeader], records: bytes | memoryview, aborted_transactions: Sequence[tuple[int, int]]
) -> list[BatchHeader]:
    """The batches that a read_committed consumer reads. Some control batches stay in the result. Follows Kafka's
    `CompletedFetch.nextFetchedRecord`. Raises CorruptBatchError: a control batch has no readable marker.

    Args:
        headers: of one partition's fetched batches, in log order, control batches included.
        records: the bytes that the headers were read from.
        aborted_transactions: (producer id, first offset) pairs in any order. Each ends at its producer's abort marker.
    """
    pending = sorted(aborted_transactions, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()
    kept = []
    for header in headers:
        while pending and pending[-1][1] <= header.last_offset:
            aborting.add(pending.pop()[0])
        if header.is_control and header.record_count and is_abort_marker(header, records):
            aborting.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborting:
            continue
        kept.append(header)
    return kept


def is_abort_marker(header: BatchHeader, records: bytes | memoryview) -> bool:
    """Whether the key of a control batch's first record is an abort marker."""
    at = header.position + HEADER_BYTES  # brokers do not compress control batches
    try:
        at = _skip_varint(records, at) + 1  # skip length, attributes
        at = _skip_varint(records, _skip_varint(records, at))  # skip timestamp and offset delta
        key_length = records[at] >> 1 if records[at] & 0x81 == 0 else -1
        _, marker_type = _MARKER_KEY.unpack_from(memoryview(records)[at + 1 : min(at + 1 + key_length, header.end)])
    except (IndexError, struct.error):
        raise CorruptBatchError(
            f"control batch with base offset {header.base_offset}: no marker",
            from_offset=header.base_offset,
            until_offset=header.last_offset + 1,
        ) from None
    return bool(marker_type == _ABORT)


def _skip_varint(data: bytes | memoryview, at: int) -> int:
    while data[at] > 0x7F:
        at += 1
    return at + 1
