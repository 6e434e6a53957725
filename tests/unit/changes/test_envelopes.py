"""Envelopes of each encoding become the rows that a short oracle has, and damaged ones rows with a cause."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.envelopes import COLUMNS, ENCODINGS, UNAVAILABLE, Change, Encoding, changes, options_of, raw_batch
from pyspark_kafka_meta.arrow_reader import schemas_of
from pyspark_kafka_meta.changes.rows import OPS, ChangeRows, change_rows
from pyspark_kafka_meta.changes.schema import changes_schema
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.testing import MockRegistry
from tests.budget import cases

EPOCH, BATCH = datetime(1970, 1, 1, tzinfo=UTC), 5_000


class Reading:
    """Reads records of one encoding."""

    def __init__(self, rows: ChangeRows, encoding: Encoding, frames: tuple[bytes, bytes]) -> None:
        self._rows, self._encoding, self._frames = rows, encoding, frames

    def encoded(self, given: Sequence[Change]) -> tuple[list[bytes], list[bytes | None]]:
        keys, values = self._encoding.encode(given)
        key_frame, value_frame = self._frames
        return [key_frame + key for key in keys], [None if each is None else value_frame + each for each in values]

    def rows(self, keys: Sequence[bytes], values: Sequence[bytes | None], partition: int = 0) -> pa.RecordBatch:
        found = self._rows.convert(raw_batch(self._rows.raw_columns, keys, values, partition))
        found.validate(full=True)
        return found


@contextmanager
def reading(name: str) -> Iterator[Reading]:
    encoding = ENCODINGS[name]()
    with MockRegistry() as registry:
        options, frames = options_of(encoding, registry, onMalformedRecord="record")
        assert options.changes is not None
        readers = schemas_of(options, lambda *_: [])
        names = changes_schema(readers, options.changes).type.names
        ranges = [OffsetRange(TopicPartition("t", 0), None, 0, 1)]
        with change_rows(readers, options.changes, ranges, (), names, lambda _: None, lambda *_: None) as rows:
            yield Reading(rows, encoding, frames)


def oracle(records: Sequence[Change], name: str, is_typed: bool) -> Iterator[dict[str, Any]]:
    """The rows of a batch."""
    deleted, unsent = None, {"name": UNAVAILABLE, "data": UNAVAILABLE.encode(), "tags": [UNAVAILABLE]}
    for offset, (op, key, after, before) in enumerate(records):
        is_repeated, deleted = op == "tombstone" and key == deleted, key if op == "d" else None
        if is_repeated or op == "m":
            continue
        image = before if op == "d" else after
        row = {column: image[column] if image else None for column in COLUMNS}
        unavailable = [column for column in row if op != "r" and row[column] and row[column] == unsent.get(column)]
        row |= dict.fromkeys(unavailable) | {"id": key}
        if is_typed:
            day, at, seen = row["day"], row["at"], row["seen"]
            row["day"] = day if day is None else date(1970, 1, 1) + timedelta(day)
            row["at"] = at if at is None else (EPOCH + timedelta(microseconds=at)).replace(tzinfo=None)
            row["seen"] = seen and datetime.fromisoformat(seen)
        else:
            row["price"] = None if row["price"] is None else str(row["price"])
        if name == "protobuf" and image and "tags" not in unavailable:
            row["tags"] = row["tags"] or []
        yield {**row, "op": op, "deleted": op in ("d", "tombstone"), "offset": offset, "unavailable": unavailable}


def flat(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """With what the oracle knows of changes without an error."""
    change = rows.column("_change")
    assert pc.struct_field(change, "error").null_count == len(rows)
    known = {name: pc.struct_field(change, name) for name in ("op", "deleted", "offset", "unavailable")}
    return list(pa.table({**{name: rows.column(name) for name in COLUMNS}, **known}).to_pylist())


@pytest.mark.budget
@pytest.mark.timeout(3_000)  # a million take five minutes on a core of its own
@pytest.mark.parametrize("name", ENCODINGS)
def test_envelopes_are_the_rows_of_an_oracle(name: str) -> None:
    count = cases(2_000, 4_000, 1_000_000)
    with reading(name) as read:
        for seed in range(max(1, count // BATCH)):
            given = list(changes(seed, min(count, BATCH)))
            found = read.rows(*read.encoded(given), partition=seed)

            assert flat(found) == list(oracle(given, name, ENCODINGS[name]().is_typed)), f"seed {seed}"


def damaged(rng: random.Random, value: bytes) -> bytes:
    """A value that is cut off, has a byte more, less or another one, or is something else."""
    at = rng.randrange(len(value))
    return rng.choice(
        [
            value[:at],
            value[:at] + value[at + 1 :],
            value[:at] + rng.randbytes(1) + value[at:],
            value[:at] + rng.randbytes(1) + value[at + 1 :],
            rng.randbytes(rng.randrange(40)),
            b"",
            b"{}",
            b"null",
            b'{"op":"c","after":7}',
        ]
    )


@pytest.mark.budget
@pytest.mark.parametrize("name", ENCODINGS)
def test_damaged_envelopes_are_rows_with_a_cause_or_still_changes(name: str) -> None:
    """A damaged text may be another text; but no row is null without a cause, and none of the others changes."""
    rng, count = random.Random(name), cases(500, 1_000, 10_000)
    with reading(name) as read:
        given = [each for each in changes(7, 2 * count) if each.op in ("c", "u", "r")][:count]
        keys, values = read.encoded(given)
        bad = [row % 2 == 1 for row in range(len(given))]
        mixed = [damaged(rng, value or b"") if is_bad else value for value, is_bad in zip(values, bad, strict=True)]
        found, expected = read.rows(keys, mixed), list(oracle(given, name, ENCODINGS[name]().is_typed))
        told = {
            each: pc.struct_field(found.column("_change"), each) for each in ("offset", "op", "unavailable", "error")
        }
        is_good = pc.is_in(told["offset"], pa.array(np.flatnonzero(np.invert(bad))))
        assert flat(found.filter(is_good)) == [row for row, is_bad in zip(expected, bad, strict=True) if not is_bad]

        # Without the times, of which a damaged one may be outside of Python's years. A message of a table has no row.
        damaged_rows = pa.table({**told, "id": found.column("id"), "name": found.column("name")}).filter(
            pc.invert(is_good)
        )
        causes = 0
        for row in damaged_rows.to_pylist():
            assert row["id"] == given[row["offset"]].key
            if row["error"] is None:
                assert row["op"] in OPS
            else:
                causes += 1
                assert row["error"]["cause"]
                assert row["error"]["raw"] == mixed[row["offset"]]
                assert (row["op"], row["name"], row["unavailable"]) == (None, None, [])
        assert causes > 0.2 * count
