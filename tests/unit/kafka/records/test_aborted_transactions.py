"""read_committed returns all rows but those of aborted transactions and markers, as in Kafka's `FetcherTest`."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.errors import CorruptBatchError
from pyspark_kafka_meta.kafka.records.compression import Codec
from pyspark_kafka_meta.kafka.records.decoder import decode
from tests.unit.kafka.records.handmade import (
    CONTROL,
    TRANSACTIONAL,
    Row,
    batch,
    batch_of,
    fetched,
    marker,
    rows_of,
    varint,
)

ALICE, BOB = 1001, 1002


def sent(producer_id: int, *offsets: int, codec: Codec = Codec.NONE) -> bytes:
    """A batch inside a transaction."""
    rows = [Row(offset, value=b"%d" % offset) for offset in offsets]
    return batch(rows, codec, attributes=TRANSACTIONAL, producer_id=producer_id)


def plain(*offsets: int, producer_id: int = -1) -> bytes:
    return batch([Row(offset) for offset in offsets], producer_id=producer_id)


def commit(offset: int, producer_id: int) -> bytes:
    return marker(offset, producer_id, commit=True)


def abort(offset: int, producer_id: int) -> bytes:
    return marker(offset, producer_id, commit=False)


CASES = {
    "committed": ([sent(ALICE, 0, 1), commit(2, ALICE)], [], [0, 1]),
    "aborted": ([sent(ALICE, 0, 1), abort(2, ALICE)], [(ALICE, 0)], []),
    "aborted, compressed": ([sent(ALICE, 0, 1, codec=Codec.LZ4), abort(2, ALICE), plain(3)], [(ALICE, 0)], [3]),
    "aborted in several batches": ([sent(ALICE, 0), sent(ALICE, 1, 2), abort(3, ALICE)], [(ALICE, 0)], []),
    "committed after one": ([sent(ALICE, 0), abort(1, ALICE), sent(ALICE, 2), commit(3, ALICE)], [(ALICE, 0)], [2]),
    "aborted after one": ([sent(ALICE, 0), commit(1, ALICE), sent(ALICE, 2), abort(3, ALICE)], [(ALICE, 2)], [0]),
    "interleaved, one aborted": (
        [sent(ALICE, 0), sent(BOB, 1), sent(ALICE, 2), commit(3, BOB), sent(ALICE, 4), abort(5, ALICE), plain(6)],
        [(ALICE, 0)],
        [1, 6],
    ),
    "interleaved, both aborted, listed in any order": (
        [sent(ALICE, 0), sent(BOB, 1), abort(2, ALICE), sent(BOB, 3), sent(ALICE, 4), abort(5, BOB), commit(6, ALICE)],
        [(BOB, 1), (ALICE, 0)],
        [4],
    ),
    "two of one producer, listed in any order": (
        [sent(ALICE, 0), abort(1, ALICE), sent(ALICE, 2), commit(3, ALICE), sent(ALICE, 4), abort(5, ALICE)],
        [(ALICE, 4), (ALICE, 0)],
        [2],
    ),
    "abort marker of a transaction without data": ([abort(0, ALICE), sent(ALICE, 1), commit(2, ALICE)], [], [1]),
    "two abort markers in a row": ([sent(ALICE, 0), abort(1, ALICE), abort(2, ALICE), plain(3)], [(ALICE, 0)], [3]),
    "markers only": ([commit(0, ALICE), abort(1, BOB)], [], []),
    "without a transaction, by a producer whose transaction was aborted": (
        [sent(ALICE, 0), plain(1, producer_id=ALICE), abort(2, ALICE)],
        [(ALICE, 0)],
        [1],
    ),
    "begun before what was fetched": ([sent(ALICE, 5), abort(6, ALICE), plain(7)], [(ALICE, 2)], [7]),
    "abort marker not fetched yet": ([sent(ALICE, 0), sent(ALICE, 1)], [(ALICE, 0)], []),
    "first offset compacted away": (
        [batch([Row(3)], attributes=TRANSACTIONAL, producer_id=ALICE, base_offset=0, last_offset_delta=5)],
        [(ALICE, 4)],
        [],
    ),
    "marker compacted away": (
        [
            sent(ALICE, 0),
            batch_of(b"", base_offset=1, record_count=0, attributes=TRANSACTIONAL | CONTROL, producer_id=ALICE),
            plain(2),
        ],
        [(ALICE, 0)],
        [2],
    ),
}


@pytest.mark.parametrize(("batches", "aborted", "expected"), CASES.values(), ids=CASES.keys())
def test_committed_rows_are_returned(batches: list[bytes], aborted: list[tuple[int, int]], expected: list[int]) -> None:
    part = fetched(b"".join(batches), aborted_transactions=tuple(aborted), read_committed=True)

    assert [row.offset for row in rows_of(part)] == expected


def test_read_uncommitted_returns_all_rows_but_markers() -> None:
    records = sent(ALICE, 0) + sent(BOB, 1) + abort(2, ALICE) + commit(3, BOB) + plain(4)

    assert [row.offset for row in rows_of(fetched(records))] == [0, 1, 4]


def test_range_starts_and_ends_at_markers() -> None:
    records = abort(0, BOB) + sent(ALICE, 1, 2) + commit(3, ALICE)

    for from_offset, until_offset in [(0, 4), (1, 3), (0, 3), (1, 4)]:
        part = fetched(records, from_offset=from_offset, until_offset=until_offset, read_committed=True)
        assert [row.offset for row in rows_of(part)] == [1, 2]


KEYS = {
    "no key": varint(-1),
    "empty key": varint(0),
    "short key": varint(3) + bytes(3),
    "marker after a negative length": varint(-5) + bytes(4),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_control_batch_without_a_readable_marker_is_corrupt(key: bytes) -> None:
    record = bytes(3) + key + varint(-1) + varint(0)  # attributes, deltas, key, no value, no headers
    body = varint(len(record)) + record
    control = batch_of(body, base_offset=7, attributes=TRANSACTIONAL | CONTROL, producer_id=ALICE)

    rows = []
    with pytest.raises(CorruptBatchError, match="base offset 7") as raised:
        for rows_before in decode([fetched(plain(5) + control + plain(9), read_committed=True)], ["offset"]):
            rows += rows_before["offset"].to_pylist()

    assert rows == [5]
    assert (raised.value.from_offset, raised.value.until_offset) == (7, 8)
