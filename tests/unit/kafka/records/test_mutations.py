"""Seeded mutations of fetched records raise a typed error or return rows that the bytes contain."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.records import boundaries
from pyspark_kafka_meta.kafka.records.compression import Codec
from pyspark_kafka_meta.kafka.records.decoder import decode
from tests.budget import cases
from tests.unit.kafka.records.handmade import (
    ALL_COLUMNS,
    COMPRESS,
    ROWS,
    TRANSACTIONAL,
    Row,
    batch,
    batch_of,
    fetched,
    marker,
    record,
    repair_crc,
    rows_of,
)

pytestmark = pytest.mark.budget

CASES_OF_EACH_KIND = cases(200, 400, 10_000)
WRITTEN = {data for row in ROWS for data in (row.key, row.value)}
BODY = b"".join(record(row) for row in ROWS)
INTERESTING = b"\x00\x01\x02\x03\x7e\x7f\x80\x81\xfe\xff"


def log_of(*codecs: Codec) -> bytes:
    """Batches of the same rows, the second in an aborted transaction."""
    records = b""
    for number, codec in enumerate(codecs):
        rows = [Row(row.offset + 10 * number, row.key, row.value, row.timestamp, row.headers) for row in ROWS]
        records += batch(rows, codec, attributes=TRANSACTIONAL * (number == 1), producer_id=9)
    return records + marker(10 * len(codecs), 9, commit=False)


def mutate(data: bytes, rng: random.Random) -> bytes:
    mutated = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(mutated) or 1)
        match rng.randrange(7) if mutated else 3:
            case 0:
                mutated[at] ^= 1 << rng.randrange(8)
            case 1:
                mutated[at] = rng.choice(INTERESTING)
            case 2:
                mutated[at] = rng.randrange(256)
            case 3:
                mutated[at:at] = rng.randbytes(rng.randrange(1, 6))
            case 4:
                del mutated[at : at + rng.randrange(1, 12)]
            case 5:
                mutated[at:at] = mutated[at : at + rng.randrange(1, 100)]
            case 6:
                mutated[at : at + 4] = struct.pack(">i", rng.choice((-1, 0, 2**31 - 1, -(2**31), rng.randrange(1000))))
    return bytes(mutated)


def damaged_fetch(rng: random.Random) -> bytes:
    """Mutated bytes anywhere in a fetch, checksums unchanged."""
    return mutate(log_of(*rng.choices(tuple(Codec), k=3)), rng)


def damaged_batch(rng: random.Random) -> bytes:
    """Mutated bytes anywhere in the second of three batches, with a correct checksum."""
    first, second, third = (batch([Row(at + row.offset, row.key, row.value) for row in ROWS]) for at in (0, 10, 20))
    return first + repair_crc(mutate(second, rng)) + third


def damaged_records(rng: random.Random) -> bytes:
    """Mutated bytes of the records before compression; header, checksum and the other batches are correct."""
    codec = rng.choice(tuple(Codec))
    middle = batch_of(
        COMPRESS[codec](mutate(BODY, rng)),
        attributes=codec,
        base_offset=10,
        last_offset_delta=4,
        record_count=len(ROWS),
    )
    return batch(ROWS) + middle + batch([Row(20)])


def outcome(records: bytes, check_crcs: bool) -> str:
    """The name of the KafkaMetaError, or "rows" for ordered rows. Other exceptions fail the test."""
    try:
        part = fetched(
            records, check_crcs, from_offset=2, until_offset=23, aborted_transactions=((9, 10),), read_committed=True
        )
        rows = rows_of(part)
    except KafkaMetaError as error:
        return type(error).__name__
    offsets = [row.offset for row in rows]
    assert offsets == sorted(set(offsets))
    assert all(2 <= offset < 23 for offset in offsets)
    return "rows"


@pytest.mark.parametrize("kind", [damaged_fetch, damaged_batch, damaged_records])
@pytest.mark.parametrize("check_crcs", [True, False])
@pytest.mark.parametrize("guess", [True, False])
def test_damaged_bytes_raise_a_typed_error_or_return_ordered_rows(
    kind: Callable[[random.Random], bytes], check_crcs: bool, guess: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if guess:
        monkeypatch.setattr(boundaries, "MIN_GUESSED_RECORDS", 1)
    outcomes = set()
    for seed in range(CASES_OF_EACH_KIND):
        outcomes.add(outcome(kind(random.Random(seed)), check_crcs))

    assert {"rows", "CorruptBatchError"} <= outcomes


def test_with_checksums_damaged_bytes_return_no_key_or_value_that_was_not_written() -> None:
    for seed in range(CASES_OF_EACH_KIND):
        records = damaged_fetch(random.Random(seed))
        try:
            tables = list(decode([fetched(records)], ["key", "value"]))
        except KafkaMetaError:
            continue
        assert {data for table in tables for column in table for data in column.to_pylist()} <= WRITTEN


def test_without_checksums_rows_contain_only_fetched_bytes() -> None:
    """An index out of bounds would return other memory."""
    for seed in range(CASES_OF_EACH_KIND):
        records = damaged_batch(random.Random(seed))
        try:
            tables = list(decode([fetched(records, check_crcs=False)], ALL_COLUMNS))
        except KafkaMetaError:
            continue
        for table in tables:
            assert all(data in records for name in ("key", "value") for data in table[name].drop_null().to_pylist())


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_damaged_compressed_data_raise_a_typed_error_or_return_rows(codec: Codec) -> None:
    compressed = COMPRESS[codec](BODY)
    for seed in range(CASES_OF_EACH_KIND // 2):
        body = mutate(compressed, random.Random(seed))
        outcome(batch_of(body, attributes=codec, last_offset_delta=4, record_count=len(ROWS)), check_crcs=True)
