"""Rows and conditions of the option `where`: those that tests of values know the result of, and generated ones. Spark
confirms both."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pyspark_kafka_meta.where.masks import bind
from pyspark_kafka_meta.where.syntax import parse_condition

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
STRUCT = pa.struct([("x", pa.int64()), ("Y", pa.struct([("z", pa.string())])), ("a b", pa.float64())])
NAN, HUGE = float("nan"), 2**53
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [0, 1, -1, 127, -128, 5]),
    "i16": (pa.int16(), [0, 1, -1, 32767, 100]),
    "i32": (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31), 16777217]),
    "i64": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), HUGE, HUGE + 1]),
    "f32": (pa.float32(), [0.0, -0.0, NAN, float("inf"), 1.5, 0.10000000149011612, 16777216.0]),
    "f64": (pa.float64(), [0.0, -0.0, NAN, float("-inf"), 1.5, 0.1, 9007199254740992.0]),
    "small": (pa.decimal128(5, 2), [Decimal(text) for text in ("0.00", "1.50", "-1.50", "999.99", "0.10", "1.00")]),
    "large": (pa.decimal128(38, 10), [Decimal(0), Decimal("1.5"), Decimal("9" * 28 + ".9999999999"), Decimal("-1.5")]),
    "s": (pa.string(), ["", "a", "B", "é", "😀", "a%b", "a_b", "ab\n", "a\\b", "It's", "\ue000", "ab"]),
    "key": (pa.binary(), [b"", b"a", b"ab", b"\xff", "é".encode(), b"a\xffb", b"\x00"]),
    "flag": (pa.bool_(), [True, False]),
    "d": (pa.date32(), [0, 18262, -1, 18263]),
    "ts": (pa.timestamp("us", "UTC"), [0, 1577836800000000, -1, 1577836800000001]),
    "ntz": (pa.timestamp("us"), [0, 1577836800000000, -1]),
    "v": (
        STRUCT,
        [{"x": 1, "Y": {"z": "a"}, "a b": 1.5}, {"x": None, "Y": None, "a b": NAN}, {"x": 7, "Y": {"z": None}}],
    ),
    "headers": (
        HEADERS,
        [[], [{"key": "t", "value": b"a"}], [{"key": "T", "value": None}, {"key": "t", "value": b"b"}]],
    ),
}
"""By column its type and values; nulls are added."""

CASES = {
    "i32 = 1": "-+-----+----?",
    "I32 == -1 OR i32 IS NULL": "--+-----+---+",
    "i32 <=> NULL": "------------+",
    "i32 IN (0, 1, NULL)": "++????++?????",
    "i32 NOT IN (0, 1)": "--++++--++++?",
    "i32 NOT BETWEEN 0 AND 1": "--++++--++++?",
    "i8 = i64": "+++---------?",
    "i64 = 9007199254740993": "------+-----?",
    "i64 = f64": "+-----++----?",
    "i64 IN (1, 9007199254740992D)": "-+---++-+---?",
    "i32 > 1.5": "---+-+---+-+?",
    "i32 < 1e0": "+-+-+-+-+-+-?",
    "f64 = f64": "++++++++++++?",
    "f64 > 1e300": "--+------+--?",
    "f64 <= -0.0": "++-+---++-+-?",
    "f64 IN (0D, 1.5)": "++--+--++--+?",
    "f32 = 0.1": "------------?",
    "f32 = f64": "+++-+--+++-+?",
    "f32 < 1": "++---+-++---?",
    "small = 1.5": "-+-----+----?",
    "small IN (1, 1.50)": "-+---+-+---+?",
    "small >= i32": "++--+-++--+-?",
    "large > small": "--+--++-+-+-?",
    "large = 9999999999999999999999999999.9999999999": "--+---+---+-?",
    "s < 'a'": "+-+------+--?",
    "s > 'é'": "----+-----+-?",
    "s = 'It''s'": "---------+--?",
    r"s = 'ab\n'": "-------+----?",
    "s LIKE 'a_b'": "-----++-+---?",
    r"s LIKE 'a\_b'": "------+-----?",
    r"s LIKE 'a\\%b'": "-----+------?",
    "s LIKE 'a/%b' ESCAPE '/'": "-----+------?",
    "s LIKE '_'": "-++++-----+-?",
    "s LIKE '%b%'": "-----++++--+?",
    "s NOT LIKE 'a%'": "+-+++----++-?",
    "s LIKE NULL": "?????????????",
    "key = 'a'": "-+------+---?",
    "key < X'FF'": "+++-++++++-+?",
    "key LIKE 'a_b'": "-----+------?",
    "key = s": "++----------?",
    "flag": "+-+-+-+-+-+-?",
    "NOT flag": "-+-+-+-+-+-+?",
    "flag < TRUE": "-+-+-+-+-+-+?",
    "flag = (i32 = 0)": "++-+-+++-+-+?",
    "d = DATE '2020-1-1'": "-+---+---+--?",
    "d <> DATE '1970-01-01'": "-+++-+++-+++?",
    "ts >= TIMESTAMP '2019-12-31 19:00:00-05:00'": "-+-+-+-+-+-+?",
    "ts < TIMESTAMP '1970-01-01 00:00:00 UTC'": "--+---+---+-?",
    "ntz = TIMESTAMP_NTZ '2020-01-01 00:00:00'": "-+--+--+--+-?",
    "v.x = 1": "+?-+?-+?-+?-?",
    "v.y.z IS NULL": "-++-++-++-+++",
    "V.`a b` = 1.5": "+-?+-?+-?+-??",
    "v IS NOT NULL": "++++++++++++-",
    "headers['t'] = 'a'": "?+-?+-?+-?+-?",
    "headers['t'] IS NULL": "+--+--+--+--+",
    "headers['T'] <=> NULL": "+++++++++++++",
    "headers IS NULL": "------------+",
    "NULL": "?????????????",
    "NULL = NULL": "?????????????",
    "NULL <=> NULL": "+++++++++++++",
    "NULL BETWEEN NULL AND 1": "?????????????",
    "NULL AND FALSE": "-------------",
    "NULL OR i32 = 1": "?+?????+?????",
    "1 = 1.0": "+++++++++++++",
    "TRUE": "+++++++++++++",
    "NOT i32 = 1 AND NULL": "?-?????-?????",
    "i32 = 1 IS NULL": "------------+",
}
"""Of these conditions, in which of `FIXED` they are true (+), false (-) and null (?)."""
FIXED = pa.RecordBatch.from_pydict(
    {
        name: pa.array([values[row % len(values)] for row in range(12)] + [None], kind)
        for name, (kind, values) in COLUMNS.items()
    }
)
MARKS = {True: "+", False: "-", None: "?"}


def masked(text: str, batch: pa.RecordBatch) -> list[bool | None]:
    """What the engine of `where` finds."""
    condition = parse_condition(text)
    mask: list[bool | None] = bind(condition, condition.node, batch.schema)(batch).to_pylist()
    return mask


def rows(count: int, rng: random.Random) -> pa.RecordBatch:
    """Rows of these values in any combination; a fifth is null."""
    arrays = {
        name: pa.array([None if rng.random() < 0.2 else rng.choice(values) for _ in range(count)], kind)
        for name, (kind, values) in COLUMNS.items()
    }
    return pa.RecordBatch.from_pydict(arrays)


class Conditions:
    """Makes texts of conditions, most of which are supported."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def condition(self, depth: int = 3) -> str:
        chance = self._rng.random()
        if depth and chance < 0.3:
            word = self._case(self._rng.choice(["AND", "OR"]))
            return f" {word} ".join(self.condition(depth - 1) for _ in range(self._rng.randint(2, 3)))
        if depth and chance < 0.45:
            return f"{self._case('NOT')} {self._in_parentheses(depth)}"
        if depth and chance < 0.5:
            return f" {self._operator()} ".join(self._in_parentheses(depth) for _ in range(2))
        return self._in_parentheses(depth) if depth and chance < 0.55 else self._predicate()

    def _in_parentheses(self, depth: int) -> str:
        return f"({self.condition(depth - 1)})"

    def _case(self, word: str) -> str:
        return self._rng.choice([word, word, word.lower(), word.title()])

    def _predicate(self) -> str:
        column, literals = self._rng.choice(list(LITERALS.items()))
        column = self._rng.choice([column, column, column.upper()]) if "[" not in column else column
        negated = self._rng.choice(["", "", f"{self._case('NOT')} "])
        first, second = (self._rng.choice([*literals, "NULL"] if self._rng.random() < 0.2 else literals) for _ in "12")
        match self._rng.randrange(8):
            case 0:
                return f"{column} {self._case('IS')} {negated}{self._case('NULL')}"
            case 1:
                return f"{column} {negated}{self._case('BETWEEN')} {first} AND {second}"
            case 2:
                count = self._rng.choice([1, 2, 3, 15])
                # Without spark.sql.ansi.enabled, Spark takes no texts among bytes here, though it does beside =.
                members = [each for each in literals if each[0] == "X"] or literals
                items = [self._rng.choice([*members, "NULL"]) for _ in range(count)]
                return f"{column} {negated}{self._case('IN')} ({', '.join(items)})"
            case 3 if column.lower() in TEXTS:
                return f"{column} {negated}{self._case('LIKE')} {self._rng.choice(PATTERNS)}"
            case 4:
                return f"{column} {self._operator()} {self._rng.choice(COMPARED.get(column.lower(), [column]))}"
            case 5:
                return f"{first} {self._operator()} {column}"
            case _:
                return f"{column} {self._operator()} {first}"

    def _operator(self) -> str:
        return self._rng.choice(["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"])


_NUMBERS = [
    "0",
    "1",
    "-1",
    "1.5",
    "-1.50",
    "0.1",
    "127",
    "5Y",
    "100S",
    "1L",
    "1BD",
    "16777217",
    "2147483648",
    "1e0",
    "2.5D",
]
_BIG = [*_NUMBERS, "9007199254740993", "-9223372036854775808", "9223372036854775807", "1e19", "0.10", ".5", "1."]
_TEXTS = ["''", "'a'", "'B'", "'é'", "'😀'", r"'a\\b'", "'It''s'", r"'ab\n'", "'a%b'", "'\ue000'"]
PATTERNS = [
    "'a%'",
    "'%b'",
    "'%'",
    "'_'",
    "''",
    "'a_b'",
    r"'a\_b'",
    r"'a\\%b'",
    r"'a\\\\b'",
    "'a/_b' ESCAPE '/'",
    "'%\n'",
]
PATTERNS += ["'%_%'", "'.%'", "'a|b'", "'%é'", "'a__'", "NULL"]
LITERALS: dict[str, list[str]] = {
    **dict.fromkeys(("i8", "i16", "i32", "i64"), _BIG),
    "f32": ["0", "1", "-0.0", "1.5", "0.1", "16777216", "1e0", "0.1D", "-1"],
    "f64": [*_BIG, "-0D"],
    "small": [number for number in _BIG if "e" not in number and "D" not in number.replace("BD", "")],
    "large": ["0", "1", "1.5", "-1.5", "1.50BD", "9999999999999999999999999999.9999999999"],
    **dict.fromkeys(("s", "`V`.y.Z"), _TEXTS),
    "key": [*_TEXTS, "X'FF'", "X''", "X'61'"],
    "headers['t']": ["'a'", "'b'", "X'61'", "''"],
    "flag": ["TRUE", "false"],
    "d": ["DATE '1970-01-01'", "DATE'2020-1-2'"],
    "ts": [
        "TIMESTAMP '1970-01-01 00:00:00Z'",
        "timestamp'2020-01-01T05:00:00+05:00'",
        "TIMESTAMP_LTZ '2020-1-1 0:0:0.000001 UTC'",
    ],
    "ntz": ["TIMESTAMP_NTZ '2020-01-01 00:00:00'", "timestamp_ntz '1969-12-31 23:59:59.999999'"],
    "v.x": ["1", "7", "1.5"],
    "v.`a b`": ["1.5", "0", "1e0"],
}
TEXTS = ("s", "key", "`v`.y.z", "headers['t']")
COMPARED = {
    **dict.fromkeys(("i8", "i16", "i32", "i64"), ("i8", "i16", "i32", "i64", "f64", "small", "v.x", "f32")),
    **dict.fromkeys(("f32", "f64"), ("f32", "f64", "v.`A b`", "i64", "small")),
    **dict.fromkeys(("s", "key"), ("s", "key", "v.y.z", "headers['t']")),
    "small": ["i32", "small", "large", "i64", "f64"],
    "large": ["small", "i8", "large", "i64"],
}
