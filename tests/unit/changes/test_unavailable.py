"""Which values of a column stand for one that was not sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka_meta.changes.unavailable import Placeholders

TEXT = "gone"


@pytest.mark.parametrize(
    ("kind", "placeholder", "others"),
    [
        (pa.map_(pa.string(), pa.string()), [(TEXT, TEXT)], [[], None, [("a", TEXT)], [(TEXT, "a"), ("b", "c")]]),
        (pa.list_(pa.string()), [TEXT], [[], None, ["a"], [TEXT, TEXT]]),
        (pa.string(), TEXT, ["", None, "a"]),
    ],
    ids=str,
)
def test_a_placeholder_is_found_among_other_values(kind: pa.DataType, placeholder: Any, others: list[Any]) -> None:
    with_it = pa.array([*others, placeholder, *others], kind)

    assert (flags := Placeholders(TEXT).in_column(with_it.slice(1))) is not None
    assert flags.nonzero()[0].tolist() == [len(others) - 1]
    assert Placeholders(TEXT).in_column(pa.array(others, kind)) is None
