"""A table of PostgreSQL, and random changes of it, by a seed.

A statement is right in each state of the table, such as an insert that ignores a key that exists. Each session has keys
of its own, so that open transactions do not wait for each other.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from random import Random

TABLE = "public.things"
KEYS = 150
"""Of a session."""
Value = Callable[[Random], str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and how its values become the same texts in PostgreSQL and in Spark.

    Attributes:
        value: an SQL literal.
        parse: makes equal what differs in the texts of both.
    """

    type: str
    value: Value
    postgres: str = "{}::text"
    spark: str = "CAST({} AS STRING)"
    parse: Callable[[str], object] = str


def double_of(text: str) -> bytes:
    """Its bytes: NaN is not equal to itself."""
    return struct.pack("d", float(text))


def real_of(text: str) -> bytes:
    return struct.pack("f", float(text))


def number(random: Random) -> str:
    return str(random.randint(-(10**11), 10**11) / 1000)


def free_number(random: Random) -> str:
    return f"{random.randint(-(10**9), 10**9)}e{random.randint(-20, 5)}::numeric"


def time(random: Random) -> str:
    return (
        f"'{random.randrange(24):02}:{random.randrange(60):02}:{random.randrange(60):02}.{random.randrange(10**6):06}'"
    )


def day(random: Random) -> str:
    return f"'{random.randint(2, 9998):04}-{random.randint(1, 12):02}-{random.randint(1, 28):02}'"


def moment(random: Random) -> str:
    return f"'{day(random)[1:-1]} {time(random)[1:-1]}'"


def zoned(random: Random) -> str:
    return f"'{moment(random)[1:-1]}{random.randint(-12, 12):+03}'"


def double(random: Random) -> str:
    special = ("'NaN'", "'Infinity'", "'-Infinity'", "0", "'-0'")
    return random.choice(special) if random.random() < 0.3 else repr(random.uniform(-1e6, 1e6))


def text(random: Random) -> str:
    return "'" + "".join(random.choices('ab \u00fc\U0001f600"\\/\t\n', k=random.randrange(8))) + "'"


def document(random: Random) -> str:
    return "'" + json.dumps({"a": [random.randrange(9), None, random.random()], "b": {"\u00fc": "x"}}) + "'"


def binary(random: Random) -> str:
    return rf"'\x{random.randbytes(random.randrange(8)).hex()}'"


def texts(random: Random) -> str:
    items = [random.choice(("NULL", "''", "'a b'", "'\"'")) for _ in range(random.randrange(4))]
    return f"ARRAY[{','.join(items)}]::text[]"


def numbers(random: Random) -> str:
    return f"ARRAY[{','.join(str(random.randint(-(2**31), 2**31 - 1)) for _ in range(random.randrange(4)))}]::integer[]"


def large_text(random: Random) -> str:
    return f"repeat('{random.choice('abc')}', {random.randint(2500, 3500)})"


def large_binary(random: Random) -> str:
    return f"decode(repeat('{random.randbytes(1).hex()}', {random.randint(2500, 3500)}), 'hex')"


MICROS = "(extract(epoch FROM {}) * 1000000)::bigint::text"
LARGE = {
    "large": Column("text", large_text, "md5({})", "md5({})"),
    "large_bytes": Column("bytea", large_binary, "md5({})", "md5({})"),
}
"""PostgreSQL sends them only if they change."""
COLUMNS: Mapping[str, Column] = {
    "amount": Column("numeric(14,3)", number),
    "free": Column("numeric", free_number, parse=Decimal),
    "at": Column("timestamptz", zoned, MICROS, "CAST(unix_micros({}) AS STRING)"),
    "local": Column("timestamp", moment, MICROS, "CAST(unix_micros(CAST({} AS TIMESTAMP)) AS STRING)"),
    "day": Column("date", day),
    "clock": Column("time", time, "to_char({}, 'HH24:MI:SS.US')"),
    "bytes": Column("bytea", binary, "encode({}, 'hex')", "lower(hex({}))"),
    "json": Column("json", document),
    "jsonb": Column("jsonb", document),
    "id_of": Column("uuid", lambda random: f"'{random.randbytes(16).hex()}'"),
    "texts": Column("text[]", texts, "to_json({})::text", "to_json({})", json.loads),
    "numbers": Column("integer[]", numbers, "to_json({})::text", "to_json({})", json.loads),
    "flag": Column("boolean", lambda random: random.choice(("true", "false"))),
    "short": Column("smallint DEFAULT 7", lambda random: str(random.randint(-32768, 32767))),
    "float": Column("real", double, parse=real_of),
    "double": Column("double precision", double, parse=double_of),
    "text": Column("text", text),
    "mood": Column("mood", lambda random: random.choice(("'sad'", "'happy'"))),
    **LARGE,
}
ADDED = {"added": Column("numeric(8,2)", lambda random: f"{random.randint(-99999, 99999) / 100}")}

CREATE = f"""
    CREATE TYPE mood AS ENUM ('sad', 'happy');
    CREATE TABLE {TABLE} (id bigint PRIMARY KEY, {", ".join(f"{name} {each.type}" for name, each in COLUMNS.items())});
    {" ".join(f"ALTER TABLE {TABLE} ALTER COLUMN {name} SET STORAGE EXTERNAL;" for name in LARGE)}
    CREATE TABLE public.signals (id text PRIMARY KEY, type text NOT NULL, data text)
"""


@dataclass(frozen=True, slots=True)
class Changes:
    """Random statements of a session, one of `sessions`, over `columns`."""

    random: Random
    session: int
    sessions: int
    columns: Mapping[str, Column]

    def statement(self) -> str:
        kinds = (self.insert, self._update, self._delete, self._change_key)
        (kind,) = self.random.choices(kinds, (3, 5, 1, 1))
        return kind()

    def _key(self) -> int:
        return self.session + self.sessions * self.random.randrange(KEYS)

    def _values(self, names: list[str]) -> dict[str, str]:
        random = self.random
        return {name: "NULL" if random.random() < 0.15 else self.columns[name].value(random) for name in names}

    def insert(self) -> str:
        values = {"id": str(self._key())} | self._values(list(self.columns))
        row = f"({', '.join(values)}) VALUES ({', '.join(values.values())})"
        return f"INSERT INTO {TABLE} {row} ON CONFLICT DO NOTHING"

    def _update(self) -> str:
        """Mostly without the large columns."""
        names = [name for name in self.columns if self.random.random() < (0.05 if name in LARGE else 0.2)]
        values = self._values(names or ["amount"])
        changed = ", ".join(f"{name} = {value}" for name, value in values.items())
        return f"UPDATE {TABLE} SET {changed} WHERE id = {self._key()}"

    def _delete(self) -> str:
        return f"DELETE FROM {TABLE} WHERE id = {self._key()}"

    def _change_key(self) -> str:
        """With new large values: PostgreSQL would not send the old ones again."""
        new, values = self._key(), self._values(list(LARGE))
        changed = ", ".join(f"{name} = {value}" for name, value in values.items())
        free = f"NOT EXISTS (SELECT FROM {TABLE} WHERE id = {new})"
        return f"UPDATE {TABLE} SET id = {new}, {changed} WHERE id = {self._key()} AND {free}"


def select(columns: Mapping[str, Column]) -> str:
    """A query of the table's rows, each a JSON array of its key and texts."""
    texts = ", ".join(column.postgres.format(name) for name, column in columns.items())
    return f"SELECT json_build_array(id, {texts}) FROM {TABLE}"


def rows(lines: list[str], columns: Mapping[str, Column]) -> dict[int, dict[str, object]]:
    """By key, from lines of `select`, or of the copy."""
    parsers = [(name, column.parse) for name, column in columns.items()]
    found = {}
    for key, *values in map(json.loads, lines):
        found[key] = {
            name: None if value is None else parse(value) for (name, parse), value in zip(parsers, values, strict=True)
        }
    return found
