"""Removes the record batches of aborted transactions. Follows Kafka's `CompletedFetch.nextFetchedRecord`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from pyspark_kafka_meta.errors import CorruptBatchError
from pyspark_kafka_meta.kafka.records.batches import HEADER_BYTES, BatchHeader

_MARKER_KEY = struct.Struct(">hh")  # version, type
_ABORT = 0


def without_aborted_batches(
    headers: Iterable[BatchHeader], records: bytes | memoryview, aborted_transactions: Sequence[tuple[int, int]]
) -> list[BatchHeader]:
    """The batches that a read_committed consumer reads. Some control batches stay in the result.

    Args:
        headers: of one partition's fetched batches, in log order, control batches included.
        records: the bytes that the headers were read from.
        aborted_transactions: (producer id, first offset) pairs in any order. Each ends at its producer's abort marker.

    Raises:
        CorruptBatchError: a control batch has no readable marker.
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
