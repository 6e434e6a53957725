"""Headers as maps."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.arrow_arrays import header_maps
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, records_arrow_schema

Headers = list[tuple[str, bytes | None]]
TYPE = records_arrow_schema([HEADERS_COLUMN]).field(0).type


def as_maps(rows: list[Headers | None], skipped: int = 0) -> list[dict[str, bytes | None] | None]:
    structs = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
    maps = header_maps(pa.array(structs, TYPE)[skipped:])
    maps.validate(full=True)
    assert maps.type == pa.map_(pa.string(), pa.binary())
    pairs = maps.to_pylist()
    assert all(row is None or len(dict(row)) == len(row) for row in pairs), "Spark takes no key twice"
    return [None if row is None else dict(row) for row in pairs]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (None, None),
        ([], {}),
        ([("", b"")], {"": b""}),
        ([("trace-id", b"1"), ("b", None)], {"trace-id": b"1", "b": None}),
        ([("a", b"1"), ("b", b"2"), ("a", b"3")], {"a": b"3", "b": b"2"}),
        ([("a", b"1"), ("a", None)], {"a": None}),
    ],
)
def test_a_map_has_the_last_header_of_each_key(row: Headers | None, expected: dict[str, bytes | None] | None) -> None:
    assert as_maps([row]) == [expected]
    assert as_maps([[("a", b"0")], row, row], skipped=1) == [expected, expected]


_ROWS = st.none() | st.lists(st.tuples(st.sampled_from(["", "a", "b-c", "é"]), st.none() | st.binary(max_size=3)))


@given(st.lists(_ROWS, max_size=9))
def test_maps_are_those_of_python(rows: list[Headers | None]) -> None:
    assert as_maps(rows) == [None if row is None else dict(row) for row in rows]
