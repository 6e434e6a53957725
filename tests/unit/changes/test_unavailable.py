"""Which values of a column stand for one that was not sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka_meta.changes.unavailable import Placeholders

TEXT = "n\xe9"
BYTES = [0x6E, 0xC3 - 256, 0xA9 - 256]
"""As Java has them in arrays of numbers."""


@pytest.mark.parametrize(
    ("kind", "placeholder", "others"),
    [
        (pa.map_(pa.string(), pa.string()), [(TEXT, TEXT)], [[], None, [("a", TEXT)], [(TEXT, "a"), ("b", "c")]]),
        (pa.list_(pa.int8()), BYTES, [[], None, [1, 2, 3], BYTES[:2]]),
        (pa.list_(pa.int64()), BYTES, [[], None, [*TEXT.encode()]]),
        (pa.list_(pa.string()), [TEXT], [[], None, ["a"], [TEXT, TEXT]]),
        (pa.string(), TEXT, ["", None, "a"]),
        (pa.string(), '{"n\xe9":"n\xe9"}', ["{}"]),
    ],
    ids=str,
)
def test_a_placeholder_is_found_among_other_values(kind: pa.DataType, placeholder: Any, others: list[Any]) -> None:
    with_it = pa.array([*others, placeholder, *others], kind)

    assert (flags := Placeholders(TEXT.encode()).in_column(with_it.slice(1))) is not None
    assert flags.nonzero()[0].tolist() == [len(others) - 1]
    assert Placeholders(TEXT.encode()).in_column(pa.array(others, kind)) is None


def test_a_placeholder_that_is_no_text_has_the_bytes_of_one_that_can_be_written() -> None:
    """As `new String(bytes)` makes it."""
    placeholders = Placeholders(b"\xffa")

    assert placeholders.in_column(pa.array(["\ufffda"])) is not None
    assert placeholders.in_column(pa.array([b"\xffa"])) is not None
