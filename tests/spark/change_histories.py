"""Random histories of tables of a database and the changes that it sends, as the option `changes` makes rows of them.

Many histories are in one topic, told apart by the first column of the key, so that one Spark job tries all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

CHANGE_TYPE = (
    "struct<op:string,deleted:boolean,sequence:bigint,snapshot:string,unavailable:array<string>,changed_at:timestamp,"
    "captured_at:timestamp,source:struct<lsn:bigint>,transaction:struct<id:string>,topic:string,partition:int,"
    "offset:bigint>"
)
LARGE = ("large `text`", "a.list")
NAMES = ("history", "id", "small", *LARGE)
COLUMNS = "history INT NOT NULL, id STRING NOT NULL, small INT, `large ``text``` STRING, `a.list` ARRAY<DOUBLE>"
SCHEMA = f"{COLUMNS}, _change {CHANGE_TYPE} NOT NULL"
WITH_NULL_KEYS = SCHEMA.replace("NOT NULL, ", ", ")
"""With truncates, or malformed records."""
KEYS = ("history", "id")
IDS = "abc"
NULLS = (None, None, None)
DELETES = ("d", "tombstone")
AT = datetime(2030, 1, 1)

Key = tuple[int, str | None]
Table = dict[Key, tuple[Any, ...]]
"""The columns after the key, by key."""


class Change(NamedTuple):
    """`op` is None for a malformed record."""

    op: str | None
    key: Key
    values: tuple[Any, ...] = ()
    unavailable: tuple[str, ...] = ()

    @property
    def partition(self) -> int:
        return int(self.key[1] == "b")


@dataclass
class Database:
    """A table of a database, and the changes it has sent."""

    history: int
    random: random.Random
    table: Table = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def step(self) -> None:
        key = self.history, self.random.choice(IDS)
        if key not in self.table:
            self.insert(key, self.values())
        elif self.random.random() < 0.3:
            self.delete(key)
        elif self.random.random() < 0.2:
            self.change_key(key)
        else:
            self.update(key)

    def values(self) -> tuple[Any, ...]:
        large = self.random.choice([None, "", "x", "yz"]), self.random.choice([None, [], [float("nan")], [1.0, None]])
        return self.random.choice([None, 0, 1, 2]), *large

    def insert(self, key: Key, values: tuple[Any, ...]) -> None:
        self.table[key] = values
        self.changes.append(Change(self.random.choice("ccr"), key, values))

    def update(self, key: Key) -> None:
        unavailable = tuple(name for name in LARGE if self.random.random() < 0.5)
        old, new = self.table[key], self.values()
        pairs = zip(NAMES[2:], old, new, strict=True)
        self.table[key] = tuple(before if name in unavailable else after for name, before, after in pairs)
        self.changes.append(Change("u", key, self.table[key], unavailable))

    def delete(self, key: Key) -> None:
        del self.table[key]
        self.changes += [Change("d", key), Change("tombstone", key)][: self.random.choice([1, 2])]

    def change_key(self, key: Key) -> None:
        """To a free key, with all values again, as of a table with REPLICA IDENTITY FULL."""
        free = [other for name in IDS if (other := (self.history, name)) not in self.table]
        if free:
            values = self.table[key]
            self.delete(key)
            self.insert(self.random.choice(free), values)

    def truncate(self) -> None:
        self.table.clear()
        self.changes.append(Change("t", (self.history, "")))

    def repeat(self) -> None:
        """Send the last changes again, as Debezium does after a crash."""
        self.changes += self.changes[-self.random.randint(1, 6) :]


def history(number: int) -> tuple[Table, list[Change]]:
    """What a table of a database is in the end, and its changes."""
    database = Database(number, random.Random(number))
    for _ in range(database.random.randint(1, 30)):
        database.step()
        if database.random.random() < 0.1:
            database.repeat()
    return database.table, database.changes


def applied(table: Table, changes: Sequence[Change]) -> Table:
    """The table after the changes, one by one."""
    after = dict(table)
    for change in changes:
        if change.op == "t":
            after.clear()
        elif change.op in DELETES:
            after.pop(change.key, None)
        else:
            triples = zip(NAMES[2:], change.values, after.get(change.key, NULLS), strict=True)
            after[change.key] = tuple(old if name in change.unavailable else new for name, new, old in triples)
    return after


def rows(changes: Sequence[Change], first_offset: int = 0) -> list[tuple[Any, ...]]:
    """Rows of `SCHEMA`, without the values that were not sent."""
    return [row(change, offset) for offset, change in enumerate(changes, first_offset)]


def row(change: Change, offset: int) -> tuple[Any, ...]:
    key = (None, None) if change.op == "t" else change.key
    pairs = zip(NAMES[2:], change.values or NULLS, strict=True)
    sent = [None if name in change.unavailable else value for name, value in pairs]
    about = (change.op, change.op in DELETES, offset, None, list(change.unavailable), AT, AT, (offset,), None, "t")
    return (*key, *sent, (*about, change.partition, offset))


def as_table(rows: Iterable[Any]) -> Table:
    return {(row["history"], row["id"]): tuple(row[name] for name in NAMES[2:]) for row in rows}


def comparable(table: Table) -> dict[Key, str]:
    """NaN is NaN."""
    return {key: repr(values) for key, values in table.items()}
