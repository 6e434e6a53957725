"""The digest of rows: what it depends on, and what not."""

from __future__ import annotations

import datetime
import decimal
import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka_meta.model import NO_ROWS, RowDigest
from pyspark_kafka_meta.write.input_columns import TYPES, SinkColumns
from pyspark_kafka_meta.write.row_digest import BLOCK_ROWS, LONG_BYTES, RowDigester

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
COLUMNS = SinkColumns(**{name: at for at, name in enumerate(TYPES)})  # type: ignore[arg-type]  # typed has a default
VALUE_ALONE = SinkColumns(key=None, value=0, headers=None, topic=None, partition=None, timestamp=None)
ROW = {
    "key": b"k",
    "value": b"a value",
    "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}],
    "topic": "t",
    "partition": 1,
    "timestamp": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
}


def digest_of(batches: Iterable[pa.RecordBatch], columns: SinkColumns = COLUMNS) -> RowDigest:
    digester = RowDigester(columns)
    for _ in digester.passing(batches):
        pass
    return digester.digest


def of_rows(*rows: dict[str, Any]) -> RowDigest:
    return digest_of([pa.RecordBatch.from_pylist(list(rows), SCHEMA)])


def of_values(values: Sequence[Any], kind: pa.DataType | None = None) -> RowDigest:
    return digest_of([pa.record_batch([pa.array(values, kind or pa.binary())], ["value"])], VALUE_ALONE)


def require_different(digests: Iterable[RowDigest]) -> None:
    found = list(digests)
    assert len({digest.hash for digest in found}) == len(found)


def some_rows(count: int) -> list[dict[str, Any]]:
    rng = random.Random(1)
    return [
        {
            **ROW,
            "key": rng.choice([None, b"", b"%d" % number]),
            "value": rng.choice([None, b"", b"row %d" % number, bytes(number), b"x" * (LONG_BYTES + number)]),
            "headers": rng.choice([None, [], ROW["headers"], [{"key": "a", "value": None}]]),
            "partition": rng.choice([None, 0, number]),
        }
        for number in range(count)
    ]


@pytest.mark.parametrize("rows", [300, BLOCK_ROWS + 300])
def test_order_and_distribution_of_rows_do_not_matter(rows: int) -> None:
    batch, rng = pa.RecordBatch.from_pylist(some_rows(rows), SCHEMA), random.Random(2)
    whole = digest_of([batch])
    assert whole.rows == rows
    shuffled = batch.take(pa.array(rng.sample(range(rows), rows)))
    cuts = sorted({0, rows, *(rng.randrange(rows) for _ in range(20))})
    parts = [shuffled.slice(start, end - start) for start, end in itertools.pairwise(cuts)]
    assert digest_of(parts) == whole
    assert sum((digest_of([part]) for part in parts), NO_ROWS) == whole


def test_batches_pass_unchanged() -> None:
    batches = [pa.RecordBatch.from_pylist([ROW], SCHEMA)] * 2
    assert list(RowDigester(COLUMNS).passing(iter(batches))) == batches


def test_empty_batch_adds_nothing() -> None:
    assert of_rows() == NO_ROWS


def test_each_column_matters() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"key": b"l"},
        {"value": b"a walue"},
        {"headers": ROW["headers"][:1]},  # type: ignore[index]
        {"headers": ROW["headers"][::-1]},  # type: ignore[index]
        {"topic": "u"},
        {"partition": 2},
        {"timestamp": datetime.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=datetime.UTC)},
        *({name: None} for name in ROW),
    ]
    require_different(of_rows({**ROW, **change}) for change in changes)


def test_value_of_another_column_or_row_is_another_value() -> None:
    one, two = {**ROW, "key": b"1", "value": b"2"}, {**ROW, "key": b"3", "value": b"4"}
    require_different(
        [
            of_rows(one, two),
            of_rows({**one, "value": b"4"}, {**two, "value": b"2"}),
            of_rows({**one, "key": b"2", "value": b"1"}, two),
            of_rows({**one, "key": b"12", "value": b""}, two),
            of_rows(one, one),
            of_rows(two, two),
            of_rows(one),
            of_rows(one, one, two, two),
        ]
    )


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, 5 * LONG_BYTES])
def test_each_bit_and_the_length_of_a_value_matter(length: int) -> None:
    value, changed = bytes(range(256)) * (length // 256 + 1), list[bytes]()
    for at in {0, 3, 7, length // 2, length - 1} & set(range(length)):
        for bit in range(8):
            other = bytearray(value[:length])
            other[at] ^= 1 << bit
            changed.append(bytes(other))
    rest = [value[:length], value[: length - 1], value[:length] + b"\0", value[:length] + bytes(8)]
    require_different(of_values([each]) for each in {*changed, *rest})


def test_highest_bits_of_two_words_do_not_cancel_out() -> None:
    """As they would in a sum of products modulo 2^64."""
    flips = [bytes(16), *(bytes(7) + bytes([a]) + bytes(7) + bytes([b]) for a in range(1, 256) for b in (a, 256 - a))]
    require_different(of_values([flip]) for flip in set(flips))


def test_null_is_not_empty() -> None:
    require_different(of_values([value]) for value in (None, b"", b"\0"))


def test_large_types_and_strings_have_the_digest_of_the_bytes() -> None:
    values = [b"a", b"", None, b"x" * (LONG_BYTES + 1), b"b" * LONG_BYTES]
    for kind in (pa.large_binary(), pa.string(), pa.large_string()):
        given = [value if value is None or "binary" in str(kind) else value.decode() for value in values]
        assert of_values(given, kind) == of_values(values)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.null(), [None]),
        (pa.bool_(), [True, False, None]),
        (pa.int8(), [1, -1, None]),
        (pa.int16(), [1, 256, None]),
        (pa.int64(), [1, 2**32, -1, None]),
        (pa.float32(), [1.0, 2.0]),
        (pa.float64(), [1.0, 2.0]),
        (pa.date32(), [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)]),
        (pa.decimal128(38, 2), [decimal.Decimal("1.00"), decimal.Decimal(10**30), None]),
        (pa.duration("us"), [datetime.timedelta(1), datetime.timedelta(2)]),
        (pa.list_(pa.int32()), [[1, 2], [2, 1], [1], [], None, [None]]),
        (pa.list_(pa.list_(pa.string())), [[["a"], ["b"]], [["a", "b"]], [["a", "b"], []]]),
        (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [("a", 2)], [("b", 1)], []]),
        (pa.struct([("a", pa.int32()), ("b", HEADERS)]), [{"a": 1}, {"a": 2}, {"b": ROW["headers"]}, {}, None]),
    ],
    ids=str,
)
def test_values_of_each_type_are_told_apart_also_in_slices(kind: pa.DataType, values: list[Any]) -> None:
    single = [of_values([value], kind) for value in values]
    require_different(single)
    array = pa.array(values * 3, kind)
    for start in range(2 * len(values)):
        part = pa.record_batch([array.slice(start, len(values))], ["value"])
        assert digest_of([part], VALUE_ALONE) == sum(single, NO_ROWS)


def test_digest_stays_the_same_from_release_to_release() -> None:
    """A decision outlives the release that wrote it."""
    assert of_rows(ROW, {**ROW, "value": b"x" * 5_000}) == RowDigest(2, 5642584807134105783)
