"""Random Avro schemas, types of columns that can be written with them, and values for Arrow and for fastavro."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WIDE = Context(prec=38)
TEXTS = ["", "a", "abc", "äöü €", "x" * 70, "null", "\0"]
LACKING: list[tuple[Any, Any]] = [
    (["null", "string"], None),
    (["string", "null"], "x" * 20),
    ("long", -5),
    ("double", 1.5),
    ("boolean", True),
    ({"type": "array", "items": "int"}, [1, -200]),
    ({"type": "map", "values": ["null", "string"]}, {"a": None}),
    ({"type": "array", "items": "string"}, []),
]
"""Types and defaults of fields that columns lack."""


@dataclass(frozen=True)
class Part:
    """A schema, and a type of columns that can be written with it.

    Attributes:
        draw: a random value, as Arrow takes it and as fastavro takes it.
    """

    schema: Any
    type: pa.DataType
    draw: Callable[[], tuple[Any, Any]]


class Cases:
    """All that one seed draws."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = 0

    def record(self, depth: int = 3) -> Part:
        parts = {f"f{index}": self._any(depth - 1) for index in range(self._random.randint(0, 6))}
        fields = [{"name": name, "type": part.schema} for name, part in parts.items()]
        if self._random.random() < 0.3:
            kind, default = self._random.choice(LACKING)
            lacking = {"name": "lacking", "type": kind, "default": default}
            if default is None and self._random.random() < 0.5:
                del lacking["default"]
            fields.insert(self._random.randint(0, len(fields)), lacking)
        given = list(parts)
        self._random.shuffle(given)

        def draw() -> tuple[Any, Any]:
            drawn = {name: parts[name].draw() for name in given}
            return {name: arrow for name, (arrow, _) in drawn.items()}, {
                name: avro for name, (_, avro) in drawn.items()
            }

        schema = {"type": "record", "name": self._name(), "fields": fields}
        return Part(schema, pa.struct([pa.field(name, parts[name].type) for name in given]), draw)

    def _any(self, depth: int) -> Part:
        kinds = [self._scalar, self._scalar, self._scalar, self._optional]
        if depth > 0:
            kinds += [self.record, self._array, self._map, self._optional, self._union]
        return self._random.choice(kinds)(depth)

    def _array(self, depth: int) -> Part:
        items = self._any(depth - 1)

        def draw() -> tuple[Any, Any]:
            drawn = [items.draw() for _ in range(self._random.choice([0, 1, 2, 3, 70]))]
            return [arrow for arrow, _ in drawn], [avro for _, avro in drawn]

        return Part({"type": "array", "items": items.schema}, pa.list_(items.type), draw)

    def _map(self, depth: int) -> Part:
        values = self._any(depth - 1)

        def draw() -> tuple[Any, Any]:
            drawn = {key: values.draw() for key in self._random.sample(TEXTS, self._random.randint(0, 3))}
            return [(key, arrow) for key, (arrow, _) in drawn.items()], {key: avro for key, (_, avro) in drawn.items()}

        return Part({"type": "map", "values": values.schema}, pa.map_(pa.string(), values.type), draw)

    def _optional(self, depth: int) -> Part:
        part = self._any(depth) if depth > 0 else self._scalar(0)
        if isinstance(part.schema, list):
            return part
        schema = self._shuffled(["null", part.schema])

        def draw() -> tuple[Any, Any]:
            if self._random.random() < 0.3:
                return None, None
            arrow, avro = part.draw()
            return arrow, (branch_name(part.schema), avro)

        return Part(schema, part.type, draw)

    def _union(self, depth: int) -> Part:
        numbers = self._same("long", pa.int64(), lambda: -5), self._same("double", pa.float64(), lambda: 0.5)
        texts = self._same("string", pa.string(), lambda: "text"), self._same("bytes", pa.binary(), lambda: b"bytes")
        named = self.record(depth - 1), self._enum()
        members = [self._array(depth - 1), self._map(depth - 1), *numbers, *texts, *named]
        members = self._random.sample(members, self._random.randint(3, len(members)))
        schema = [part.schema for part in members]
        if is_nullable := self._random.random() < 0.5:
            schema.insert(self._random.randint(0, len(schema)), "null")

        def draw() -> tuple[Any, Any]:
            if is_nullable and self._random.random() < 0.2:
                return None, None
            chosen = self._random.randrange(len(members))
            arrow, avro = members[chosen].draw()
            return {f"member{chosen}": arrow}, (branch_name(members[chosen].schema), avro)

        return Part(schema, pa.struct([(f"member{index}", part.type) for index, part in enumerate(members)]), draw)

    def _enum(self, depth: int = 0) -> Part:
        symbols = [f"S{index}" for index in range(self._random.choice([1, 3, 200]))]
        schema = {"type": "enum", "name": self._name(), "symbols": symbols}
        return self._same(schema, pa.string(), lambda: self._random.choice(symbols))

    def _scalar(self, depth: int) -> Part:
        kinds = [self._integer, self._float, self._text, self._fixed, self._enum, self._decimal, self._time]
        return self._random.choice(kinds)(depth)

    def _integer(self, depth: int) -> Part:
        kind, given = self._random.choice(
            [("int", pa.int8()), ("int", pa.int16()), ("int", pa.int32()), ("long", pa.int32()), ("long", pa.int64())]
        )
        limit = 2 ** (given.bit_width - 1)
        edges = [0, -1, 63, 64, -64, -65, limit - 1, -limit]
        return self._same(kind, given, lambda: self._random.choice([*edges, self._random.randint(-limit, limit - 1)]))

    def _float(self, depth: int) -> Part:
        kind, given = self._random.choice(
            [("float", pa.float32()), ("double", pa.float32()), ("double", pa.float64()), ("boolean", pa.bool_())]
        )
        if kind == "boolean":
            return self._same(kind, given, lambda: self._random.random() < 0.5)
        return self._same(kind, given, lambda: self._random.choice([0.0, -0.0, 1.5, -(2.0**70), float("inf")]))

    def _text(self, depth: int) -> Part:
        kind, given = self._random.choice([("string", pa.string()), ("bytes", pa.binary())])
        if given == pa.string():
            return self._same(kind, given, lambda: self._random.choice(TEXTS))
        return self._same(kind, given, lambda: self._random.randbytes(self._random.choice([0, 1, 8, 63, 64, 200])))

    def _fixed(self, depth: int) -> Part:
        size = self._random.choice([1, 8, 12, 16])
        schema = {"type": "fixed", "name": self._name(), "size": size}
        return self._same(schema, pa.binary(), lambda: self._random.randbytes(size))

    def _decimal(self, depth: int) -> Part:
        precision = self._random.choice([1, 2, 9, 18, 19, 38])
        scale = self._random.randint(0, precision)
        logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
        schema: dict[str, Any] = {"type": "bytes", **logical}
        if self._random.random() < 0.5:
            size = (10**precision).bit_length() // 8 + self._random.choice([1, 5])
            schema = {"type": "fixed", "name": self._name(), "size": size, **logical}
        given_scale = self._random.randint(0, scale)
        digits = min(precision - scale + given_scale, 38)
        given = pa.decimal128(max(digits, given_scale, 1), given_scale)
        edges = [0, 1, -1, 127, 128, -128, -129, 10**digits - 1, 1 - 10**digits]
        fitting = [unscaled for unscaled in edges if abs(unscaled) < 10**digits]

        def draw() -> tuple[Any, Any]:
            unscaled = self._random.choice(fitting)
            number = Decimal(unscaled).scaleb(-given_scale, WIDE)
            return number, number if schema["type"] == "fixed" else java_bytes(unscaled * 10 ** (scale - given_scale))

        return Part(schema, given, draw)

    def _time(self, depth: int) -> Part:
        us = timedelta(microseconds=1)

        def instant() -> datetime:
            return EPOCH + us * self._random.choice([0, -1, 999, -1001, self._random.randint(-(10**16), 10**17)])

        unit = self._random.choice(["millis", "micros"])
        integer = "int" if unit == "millis" else "long"
        a_day_us = self._random.randint(0, 86_400_000_000 - 1)
        return self._random.choice(
            [
                self._same({"type": "long", "logicalType": f"timestamp-{unit}"}, pa.timestamp("us", "UTC"), instant),
                self._same(
                    {"type": "long", "logicalType": f"local-timestamp-{unit}"},
                    pa.timestamp("us"),
                    lambda: instant().replace(tzinfo=None),
                ),
                self._same(
                    {"type": "int", "logicalType": "date"},
                    pa.date32(),
                    lambda: date(1970, 1, 1) + timedelta(days=self._random.choice([0, -1, -700_000, 2_000_000])),
                ),
                self._same(
                    {"type": integer, "logicalType": f"time-{unit}"},
                    pa.time64("ns"),
                    lambda: (datetime.min + us * self._random.randint(0, a_day_us)).time(),
                ),
            ]
        )

    def _same(self, schema: Any, given: pa.DataType, draw: Callable[[], Any]) -> Part:
        """Both Arrow and fastavro take the same value."""

        def both() -> tuple[Any, Any]:
            value = draw()
            return value, value

        return Part(schema, given, both)

    def _shuffled(self, items: list[Any]) -> list[Any]:
        self._random.shuffle(items)
        return items

    def _name(self) -> str:
        self._names += 1
        return f"t{self._names}"


def branch_name(schema: Any) -> str:
    """Of a branch of a union, for fastavro."""
    name: str = schema if isinstance(schema, str) else schema.get("name", schema["type"])
    return name


def java_bytes(number: int) -> bytes:
    """`BigInteger.toByteArray`. fastavro writes one byte more for some negative numbers."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)
