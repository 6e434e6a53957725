"""What Kafka Connect and Debezium mean by the types of columns, as Arrow arrays."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.changes.semantic_types import conversion
from pyspark_kafka_meta.typed.formats import ConnectType

CONNECT, TIME, DATA = "org.apache.kafka.connect.data", "io.debezium.time", "io.debezium.data"
MILLIS = 9_223_372_036_854_775
"""Of the last timestamp that Spark has."""
VARIABLE = pa.struct([("scale", pa.int32()), ("value", pa.binary())])


def converted(name: str, values: list[Any], kind: pa.DataType, parameters: Mapping[str, str] | None = None) -> Any:
    """The converted values and the rows that the type cannot hold."""
    made = conversion(kind, {"c": ConnectType(name, parameters or {})}, "c")
    assert made is not None
    array, bad = made.convert(pa.array(values, kind))
    array.validate(full=True)
    assert array.type == made.type
    return array, [row for row, is_bad in enumerate(bad) if is_bad]


def two_complement(number: int) -> bytes:
    return number.to_bytes((8 + (number + (number < 0)).bit_length()) // 8, "big", signed=True)


@pytest.mark.parametrize(
    ("name", "kind", "values", "expected"),
    [
        (f"{TIME}.Date", pa.int32(), [0, None, -1], [date(1970, 1, 1), None, date(1969, 12, 31)]),
        (f"{CONNECT}.Date", pa.int64(), [1], [date(1970, 1, 2)]),
        (f"{TIME}.IsoDate", pa.string(), ["2024-02-29Z", None], [date(2024, 2, 29), None]),
        (f"{TIME}.Time", pa.int32(), [0, 86_399_999, None], ["00:00:00.000", "23:59:59.999", None]),
        (f"{TIME}.MicroTime", pa.int64(), [1, 86_400_000_000], ["00:00:00.000001", "24:00:00.000000"]),
        (f"{TIME}.MicroTime", pa.int64(), [-3_020_399_000_001, None], ["-838:59:59.000001", None]),
        (f"{CONNECT}.Time", pa.int32(), [-1, 360_000_000], ["-00:00:00.001", "100:00:00.000"]),
        (f"{TIME}.NanoTime", pa.int64(), [3_600_000_000_001], ["01:00:00.000000001"]),
        (f"{TIME}.Timestamp", pa.int64(), [-1, None], [datetime(1969, 12, 31, 23, 59, 59, 999_000), None]),
        (f"{TIME}.MicroTimestamp", pa.int64(), [1], [datetime(1970, 1, 1, microsecond=1)]),
        (
            f"{TIME}.NanoTimestamp",
            pa.int64(),
            [1_999, -1],
            [datetime(1970, 1, 1, microsecond=1), datetime(1969, 12, 31, 23, 59, 59, 999_999)],
        ),
        (f"{CONNECT}.Timestamp", pa.int64(), [1_000], [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]),
        (f"{TIME}.IsoTimestamp", pa.string(), ["2024-02-29T12:00:00.5Z"], [datetime(2024, 2, 29, 12, 0, 0, 500_000)]),
        (
            f"{TIME}.ZonedTimestamp",
            pa.string(),
            ["2024-02-29T12:00:00.123456789+02:00", None, "2024-02-29T12:00:00Z"],
            [datetime(2024, 2, 29, 10, 0, 0, 123_456, UTC), None, datetime(2024, 2, 29, 12, tzinfo=UTC)],
        ),
    ],
    ids=lambda value: value.rpartition(".")[2] if isinstance(value, str) else "",
)
def test_times_of_the_calendar(name: str, kind: pa.DataType, values: list[Any], expected: list[Any]) -> None:
    array, bad = converted(name, values, kind)

    assert (array.to_pylist(), bad) == (expected, [])


@pytest.mark.parametrize(
    ("name", "kind", "values", "bad"),
    [
        (f"{TIME}.Date", pa.int64(), [2**31, 1, -(2**40), -(2**31) - 1], [0, 2, 3]),
        (f"{TIME}.Timestamp", pa.int64(), [MILLIS + 1, 1, -MILLIS - 1, -(2**63)], [0, 2, 3]),
        (f"{CONNECT}.Timestamp", pa.int64(), [2**63 - 1, 1, -MILLIS - 1], [0, 2]),
        (f"{TIME}.ZonedTimestamp", pa.string(), ["soon", "2024-02-29T12:00:00Z", "2024-02-30T12:00:00Z"], [0, 2]),
        (f"{TIME}.ZonedTimestamp", pa.string(), ["+294276-12-31T23:59:59Z", "-300000-01-01T00:00:00Z"], [0, 1]),
        (
            f"{TIME}.ZonedTimestamp",
            pa.string(),
            ["+10000-02-30T00:00:00Z", "-0043-03-15", "-0043-03-15T24:30Z"],
            [0, 2],
        ),
        (
            f"{TIME}.IsoDate",
            pa.string(),
            ["next week", "2023-02-29Z", "-9999999-01-01Z", "-0043-03-15T12:00Z"],
            [0, 1, 2, 3],
        ),
        (f"{CONNECT}.Decimal", pa.binary(), [b"", b"\x7f" + b"\xff" * 16, b"\1"], [0, 1]),
        (
            f"{DATA}.VariableScaleDecimal",
            VARIABLE,
            [{"scale": 2**30, "value": b"\1"}, {"scale": 0, "value": b""}],
            [0, 1],
        ),
    ],
)
def test_values_that_a_type_cannot_hold_are_named(
    name: str, kind: pa.DataType, values: list[Any], bad: list[int]
) -> None:
    array, found = converted(name, values, kind)

    assert found == bad
    assert [row for row, value in enumerate(array.is_null().to_pylist()) if value] == bad


@pytest.mark.parametrize(
    ("name", "kind", "values", "numbers"),
    [
        (f"{TIME}.Date", pa.int32(), [-(2**31), 2**31 - 1], [-(2**31), 2**31 - 1]),
        (
            f"{TIME}.IsoDate",
            pa.string(),
            ["-4712-01-01Z", "2024-02-29Z", "+5874897-12-31Z"],
            [-2_440_550, 19_782, 2_145_042_905],
        ),
        (f"{TIME}.Timestamp", pa.int64(), [-MILLIS, MILLIS], [-MILLIS * 1000, MILLIS * 1000]),
        (f"{CONNECT}.Timestamp", pa.int64(), [-MILLIS, MILLIS], [-MILLIS * 1000, MILLIS * 1000]),
        (f"{TIME}.MicroTimestamp", pa.int64(), [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        (f"{TIME}.NanoTimestamp", pa.int64(), [1 - 2**63, 2**63 - 2], [-9_223_372_036_854_776, 9_223_372_036_854_775]),
        (
            f"{TIME}.ZonedTimestamp",
            pa.string(),
            [
                "-0043-03-15T12:00:00.000001Z",
                "+10000-01-01T00:00:00+01:00",
                "0000-02-29T00:00:00Z",
                "2024-02-29T00:00:00Z",
            ],
            [-63_517_780_799_999_999, 253_402_297_200_000_000, -62_162_121_600_000_000, 1_709_164_800_000_000],
        ),
        (f"{TIME}.IsoTimestamp", pa.string(), ["+294247-01-10T04:00:54.775807Z"], [2**63 - 1]),
    ],
    ids=lambda value: value.rpartition(".")[2] if isinstance(value, str) else "",
)
def test_times_are_those_that_spark_has_also_where_python_has_none(
    name: str, kind: pa.DataType, values: list[Any], numbers: list[int]
) -> None:
    array, bad = converted(name, values, kind)

    assert (array.view(pa.int32() if pa.types.is_date(array.type) else pa.int64()).to_pylist(), bad) == (numbers, [])


@pytest.mark.parametrize(
    ("name", "kind", "least", "greatest"),
    [
        (f"{TIME}.MicroTimestamp", pa.int64(), -9223372036832400000, 9223372036825200000),
        (f"{TIME}.NanoTimestamp", pa.int64(), -(2**63), 2**63 - 1),
        (f"{TIME}.ZonedTimestamp", pa.string(), "-infinity", "infinity"),
        (f"{TIME}.IsoTimestamp", pa.string(), "-290308-12-21T19:59:27.6Z", "+294247-01-10T04:00:25.2Z"),
        (f"{TIME}.Date", pa.int32(), -625821272, -622191234),
        (f"{TIME}.Date", pa.int32(), -2147472691, -2147472692),
        (f"{TIME}.IsoDate", pa.string(), "-5877611-06-22Z", "-5877611-06-21Z"),
    ],
)
def test_infinite_times_are_the_first_and_the_last_ones(
    name: str, kind: pa.DataType, least: Any, greatest: Any
) -> None:
    array, bad = converted(name, [least, None, greatest], kind)

    is_date = pa.types.is_date(array.type)
    numbers = array.view(pa.int32() if is_date else pa.int64()).to_pylist()
    assert bad == []
    unit = 86_400_000_000 if is_date else 1
    assert numbers == [-9223372036832400000 // unit, None, 9223372036825200000 // unit]


@given(st.lists(st.one_of(st.none(), st.integers(-(2**136), 2**136), st.integers(-(10**6), 10**6))), st.integers(0, 38))
def test_decimals_are_exact_or_bad(numbers: list[int | None], scale: int) -> None:
    values = [None if number is None else two_complement(number) for number in numbers]
    parameters = {"scale": str(scale), "connect.decimal.precision": "38"}
    array, bad = converted(f"{CONNECT}.Decimal", values, pa.binary(), parameters)
    texts = [None if value is None else base64.b64encode(value).decode() for value in values]
    of_texts, bad_texts = converted(f"{CONNECT}.Decimal", texts, pa.string(), parameters)

    fits = [number is None or abs(number) < 10**38 for number in numbers]
    assert bad == [row for row, is_fit in enumerate(fits) if not is_fit] == bad_texts
    expected = [
        number if number is None else Decimal(f"{number}e-{scale}") if abs(number) < 10**38 else None
        for number in numbers
    ]
    assert array.to_pylist() == of_texts.to_pylist() == expected


def test_a_decimal_with_more_digits_than_its_precision_is_bad() -> None:
    parameters = {"scale": "2", "connect.decimal.precision": "4"}
    array, bad = converted(f"{CONNECT}.Decimal", [b"\x27\x0f", b"\x27\x10", b"\xd8\xf1"], pa.binary(), parameters)

    assert (array.type, bad) == (pa.decimal128(4, 2), [1])
    assert array.to_pylist() == [Decimal("99.99"), None, Decimal("-99.99")]


@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(-(2**136), 2**136), st.integers(-5, 60)))))
def test_decimals_of_any_scale_are_exact_texts(numbers: list[tuple[int, int] | None]) -> None:
    values = [None if each is None else {"scale": each[1], "value": two_complement(each[0])} for each in numbers]
    array, bad = converted(f"{DATA}.VariableScaleDecimal", values, VARIABLE)

    texts = array.to_pylist()
    assert (bad, [text is None for text in texts]) == ([], [each is None for each in numbers])
    for each, text in zip(numbers, texts, strict=True):
        assert each is None or (Decimal(text) == Decimal(f"{each[0]}e{-each[1]}") and "e" not in text.lower())


@pytest.mark.parametrize(
    ("scale", "text"), [(39, "0." + "0" * 36 + "300"), (-2, "30000"), (2046, f"0.{'0' * 2043}300")]
)
def test_decimals_of_a_scale_that_spark_does_not_have_are_texts(scale: int, text: str) -> None:
    array, bad = converted(f"{CONNECT}.Decimal", [two_complement(300), None], pa.binary(), {"scale": str(scale)})

    assert (array.to_pylist(), bad) == ([text, None], [])


def test_decimals_of_more_digits_than_spark_has_are_texts() -> None:
    """As MySQL's DECIMAL(65, 30)."""
    parameters = {"scale": "30", "connect.decimal.precision": "65"}
    numbers = [10**64 + 1, -5, 3 * 10**30, None]
    values = [None if number is None else two_complement(number) for number in numbers]
    array, bad = converted(f"{CONNECT}.Decimal", values, pa.binary(), parameters)

    expected = [f"1{'0' * 34}.{'0' * 29}1", f"-0.{'0' * 29}5", f"3.{'0' * 30}", None]
    assert (array.to_pylist(), bad) == (expected, [])
    texts = [None if value is None else base64.b64encode(value).decode() for value in values]
    assert converted(f"{CONNECT}.Decimal", texts, pa.string(), parameters)[0].to_pylist() == expected


def test_types_in_lists_structs_and_maps_are_converted_too() -> None:
    kind = pa.struct([("a", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.int32())), ("n", pa.string())])
    day = ConnectType(f"{TIME}.Date", {})
    made = conversion(kind, {"c.a.element": day, "c.m.value": day}, "c")
    rows = [{"a": [9]}, {"a": [0, None], "m": [("k", 1)], "n": "x"}, None, {"a": [], "m": None}, {"a": [1], "m": []}]

    assert made is not None
    array, bad = made.convert(pa.array(rows, kind).slice(1))
    array.validate(full=True)
    assert not bad.any()
    assert array.to_pylist() == [
        {"a": [date(1970, 1, 1), None], "m": [("k", date(1970, 1, 2))], "n": "x"},
        None,
        {"a": [], "m": None, "n": None},
        {"a": [date(1970, 1, 2)], "m": [], "n": None},
    ]


def test_a_bad_item_makes_its_row_bad() -> None:
    made = conversion(pa.list_(pa.int64()), {"c.element": ConnectType(f"{TIME}.Date", {})}, "c")

    assert made is not None
    _, bad = made.convert(pa.array([[2**40], [], [1, 2], None, [1, 2**40], []], pa.list_(pa.int64())).slice(1))
    assert bad.tolist() == [False, False, False, True, False]
    with_item = pa.ListArray.from_arrays([0, 1, 2], pa.array([2**40, 1]), mask=pa.array([True, False]))
    assert made.convert(with_item)[1].tolist() == [False, False]


@pytest.mark.parametrize("name", [f"{DATA}.Uuid", f"{DATA}.Json", f"{DATA}.Enum", f"{TIME}.Interval", "my.Type"])
def test_other_types_stay_what_they_are(name: str) -> None:
    assert conversion(pa.string(), {"c": ConnectType(name, {})}, "c") is None


@pytest.mark.parametrize("scale", ["None", "{}", "two"])
def test_decimals_of_no_known_scale_stay_bytes(scale: str) -> None:
    assert conversion(pa.binary(), {"c": ConnectType(f"{CONNECT}.Decimal", {"scale": scale})}, "c") is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{CONNECT}.Date", pa.date32()),
        (f"{CONNECT}.Timestamp", pa.timestamp("us", "UTC")),
        (f"{CONNECT}.Decimal", pa.decimal128(5, 2)),
        (f"{TIME}.MicroDuration", pa.int64()),
        (f"{TIME}.NanoDuration", pa.int64()),
        (f"{TIME}.Year", pa.int32()),
    ],
)
def test_types_that_a_format_knows_itself_stay(name: str, kind: pa.DataType) -> None:
    assert conversion(kind, {"c": ConnectType(name, {"scale": "2"})}, "c") is None
