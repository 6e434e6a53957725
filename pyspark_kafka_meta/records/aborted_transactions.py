"""Leave out the record batches of aborted transactions. Mirrors Kafka's `CompletedFetch.nextFetchedRecord`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from pyspark_kafka_meta.errors import CorruptBatchError
from pyspark_kafka_meta.records.record_batches import HEADER_BYTES, BatchHeader

_MARKER_KEY = struct.Struct(">hh")  # version, type
_ABORT = 0


def without_aborted(
    headers: Iterable[BatchHeader], records: bytes | memoryview, aborted_transactions: Sequence[tuple[int, int]]
) -> list[BatchHeader]:
    """The batches less those of aborted transactions, as read_committed wants. Control batches may stay in.

    Args:
        headers: of one partition of a fetch, in the order of the log, control batches included.
        records: the bytes that the headers were read from.
        aborted_transactions: (producer id, first offset) pairs, in any order; each ends at its producer's abort marker.

    Raises:
        CorruptBatchError: a control batch has no readable marker.
    """
    to_come = sorted(aborted_transactions, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()
    kept = []
    for header in headers:
        while to_come and to_come[-1][1] <= header.last_offset:
            aborting.add(to_come.pop()[0])
        if header.is_control and header.record_count and _is_abort_marker(header, records):
            aborting.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborting:
            continue
        kept.append(header)
    return kept


def _is_abort_marker(header: BatchHeader, records: bytes | memoryview) -> bool:
    """Whether a control batch aborts its producer's transaction, as the key of its first record says."""
    at = header.position + HEADER_BYTES  # brokers do not compress control batches
    try:
        at = _behind_varint(records, at) + 1  # length, attributes
        at = _behind_varint(records, _behind_varint(records, at))  # timestamp and offset delta
        key_length = records[at] >> 1 if records[at] & 0x81 == 0 else -1
        _, kind = _MARKER_KEY.unpack_from(memoryview(records)[at + 1 : min(at + 1 + key_length, header.end)])
    except (IndexError, struct.error):
        raise CorruptBatchError(
            f"control batch with base offset {header.base_offset}: no marker",
            from_offset=header.base_offset,
            until_offset=header.last_offset + 1,
        ) from None
    return bool(kind == _ABORT)


def _behind_varint(data: bytes | memoryview, at: int) -> int:
    while data[at] > 0x7F:
        at += 1
    return at + 1
