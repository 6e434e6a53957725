"""Written rows are read back, and the same rows by kio, which has its own reader and writer."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, Record, RecordHeader
from kio.records.writers import write_new_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from pyspark_kafka_meta.kafka.records.compression import Codec
from tests.budget import cases
from tests.unit.kafka.records.handmade import CONTROL, TRANSACTIONAL, Row, batch, fetched, from_kio, rows_of

pytestmark = pytest.mark.budget

BYTES = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=70) | st.just(bytes(9000))
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), BYTES), min_size=1, max_size=4).map(tuple)
MAX_MS = (2**63 - 1) // 1000


@st.composite
def logs(draw: st.DrawFn, times: st.SearchStrategy[int]) -> list[list[Row]]:
    """The rows of several record batches, with offset gaps as after compaction."""
    offset = draw(st.integers(0, 2**40))
    batches = []
    for size in draw(st.lists(st.integers(1, 6), max_size=6)):
        rows = []
        for _ in range(size):
            rows.append(Row(offset, draw(BYTES), draw(BYTES), draw(times), draw(HEADERS)))
            offset += draw(st.sampled_from([1, 1, 1, 2, 70, 10_000]))
        batches.append(rows)
    return batches


@given(log=logs(st.integers(-MAX_MS // 2, MAX_MS // 2)), data=st.data())
@settings(max_examples=cases(30, 60, 1500))
def test_rows_inside_the_range_are_read_back(log: list[list[Row]], data: st.DataObject) -> None:
    records = b"".join(batch(rows, data.draw(st.sampled_from(Codec))) for rows in log)
    written = [row for rows in log for row in rows]
    edges = [0, 2**62, *(row.offset + step for row in written for step in (0, 1))]
    from_offset, until_offset = data.draw(st.sampled_from(edges)), data.draw(st.sampled_from(edges))

    decoded = rows_of(fetched(records, from_offset=from_offset, until_offset=until_offset))

    assert decoded == [row for row in written if from_offset <= row.offset < until_offset]


@given(log=logs(st.integers(0, 2**31).map(lambda seconds: seconds * 1000)))
@settings(max_examples=cases(20, 40, 1000))
def test_batches_of_kio_are_read(log: list[list[Row]]) -> None:
    buffer = io.BytesIO()
    for rows in log:
        write_new_batch(buffer, as_kio(rows))

    assert rows_of(fetched(buffer.getvalue())) == [row for rows in log for row in rows]


@given(log=logs(st.integers(0, 2**31).map(lambda seconds: seconds * 1000)))
@settings(max_examples=cases(10, 20, 500))
def test_kio_reads_the_same_rows_from_handmade_batches(log: list[list[Row]]) -> None:
    for rows in log:
        records = batch(rows)
        read, size = read_batch(records, 0)
        assert size == len(records)
        assert rows_of(fetched(records)) == [from_kio(record) for record in read.records]


@given(
    steps=st.lists(st.tuples(st.sampled_from([7, 8]), st.sampled_from(["send", "commit", "abort"])), max_size=25),
    plain=st.sets(st.integers(0, 25)),
)
@settings(max_examples=cases(30, 60, 1500))
def test_read_committed_equals_a_model_of_transactions(steps: list[tuple[int, str]], plain: set[int]) -> None:
    """The model keeps the offsets of two producers until they commit or abort."""
    log, visible, aborted = b"", set(), []
    open_offsets: dict[int, list[int]] = {7: [], 8: []}
    for offset, (producer_id, step) in enumerate(steps):
        if offset in plain:
            log += batch([Row(offset)])
            visible.add(offset)
        elif step == "send":
            log += batch([Row(offset)], attributes=TRANSACTIONAL, producer_id=producer_id)
            open_offsets[producer_id].append(offset)
        else:
            key = bytes((0, 0, 0, step == "commit"))
            log += batch([Row(offset, key=key)], attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id)
            ended, open_offsets[producer_id] = open_offsets[producer_id], []
            if step == "commit":
                visible.update(ended)
            elif ended:
                aborted.append((producer_id, ended[0]))
    # The last stable offset: the broker sends no record after the start of an open transaction.
    last_stable = min((offsets[0] for offsets in open_offsets.values() if offsets), default=len(steps))
    part = fetched(log, until_offset=last_stable, aborted_transactions=tuple(aborted[::-1]), read_committed=True)

    assert [row.offset for row in rows_of(part)] == sorted(offset for offset in visible if offset < last_stable)


def as_kio(rows: Sequence[Row]) -> NewRecordBatch:
    return NewRecordBatch(
        producer_id=i64(-1),
        producer_epoch=i16(-1),
        base_sequence=i32(-1),
        attributes=i16(0),
        records=tuple(
            Record(
                attributes=i8(0),
                timestamp=TZAwareMicros.parse(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=row.timestamp)),
                offset=i64(row.offset),
                key=row.key,
                value=row.value,
                headers=tuple(RecordHeader(key=key.encode(), value=value) for key, value in row.headers or ()),
            )
            for row in rows
        ),
    )
