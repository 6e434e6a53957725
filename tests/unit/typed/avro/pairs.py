"""Random Avro schemas, schemas that they evolve to, and encoded values: what decoders are compared with fastavro on.

Where fastavro differs from Avro's specification or from Java, the schemas avoid it: no union has two types of which one
can be promoted to the other, because fastavro takes the first that fits, and Java the one that is the same.
"""

from __future__ import annotations

import io
import math
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import fastavro
import numpy as np

from tests.unit.typed.avro.written import long, sized

EPOCH = datetime(1970, 1, 1)
DAY = {"time-millis": 86_400_000, "time-micros": 86_400_000_000}
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL = {
    "int": ("date", "time-millis"),
    "long": ("time-micros", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"),
    "bytes": ("decimal",),
    "string": ("uuid",),
}
PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
FAMILIES = {"int": "number", "long": "number", "float": "number", "double": "number", "bytes": "text", "string": "text"}


class SchemaPair:
    """A random writer's schema, a reader's schema that it may evolve to, and values of the writer."""

    def __init__(self, seed: int) -> None:
        self._random, self._names = Random(seed), 0
        self.writer = self._record(3)
        self.reader = self._evolved(self.writer)

    def payload(self) -> bytes:
        """The encoding of a random value of the writer."""
        return encode(self.writer, self._value(self.writer), self._random)

    def plain_payload(self) -> bytes:
        """The same, as our encoder writes it."""
        return encode(self.writer, self._value(self.writer), None)

    # Schemas

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def _type(self, depth: int) -> Any:
        kinds = ["primitive", "logical", "enum", "fixed"]
        if depth:
            kinds += ["array", "map", "record", "union", "nullable", "nullable"]
        match self._random.choice(kinds):
            case "primitive":
                return self._random.choice(PRIMITIVES)
            case "logical":
                return self._logical()
            case "enum":
                symbols = [f"S{index}" for index in range(self._random.randint(1, 5))]
                return {"type": "enum", "name": self._name("E"), "symbols": symbols}
            case "fixed":
                return {"type": "fixed", "name": self._name("F"), "size": self._random.choice((0, 1, 5, 16))}
            case "array":
                return {"type": "array", "items": self._type(depth - 1)}
            case "map":
                return {"type": "map", "values": self._type(depth - 1)}
            case "record":
                return self._record(depth - 1)
            case "nullable":
                branches = ["null", self._no_union(depth - 1)]
                return branches if branches[1] != "null" else "null"
            case _:
                return self._union(depth - 1)

    def _no_union(self, depth: int) -> Any:
        while isinstance(found := self._type(depth), list):
            pass
        return found

    def _logical(self) -> Any:
        kind = self._random.choice(("int", "long", "long", "bytes", "string", "fixed"))
        if kind == "fixed":
            size = self._random.choice((2, 9, 16, 20))
            precision = min(38, math.floor(math.log10(2) * (8 * size - 1)))
            name = self._name("F")
            return {
                "type": kind,
                "name": name,
                "size": size,
                "logicalType": "decimal",
                "precision": precision,
                "scale": 1,
            }
        schema: dict[str, Any] = {"type": kind, "logicalType": self._random.choice(LOGICAL[kind])}
        if kind == "bytes":
            precision = self._random.choice((1, 5, 18, 19, 38))
            schema |= {"precision": precision, "scale": self._random.randint(0, precision)}
        return schema

    def _union(self, depth: int) -> Any:
        branches: dict[str, Any] = {}
        for _ in range(self._random.randint(2, 4)):
            branch = self._no_union(depth)
            branches.setdefault(branch_family(branch), branch)
        return list(branches.values())

    def _record(self, depth: int) -> Any:
        fields = [
            {"name": self._name("f"), "type": self._type(depth)}
            for _ in range(self._random.randint(0 if depth < 3 else 1, 5))
        ]
        return {"type": "record", "name": self._name("R"), "fields": fields}

    # Evolution

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _evolved(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return self._evolved_union(schema)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "record":
            return self._evolved_record(schema)
        if kind == "enum" and self._chance(0.5):
            symbols = [*self._random.sample(schema["symbols"], self._random.randint(1, len(schema["symbols"]))), "new"]
            return {**schema, "symbols": symbols, **({"default": "new"} if self._chance(0.7) else {})}
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return {**schema, part: self._evolved(schema[part])}
        if kind in PROMOTED and isinstance(schema, str) and self._chance(0.3):
            return self._random.choice(PROMOTED[kind])
        if kind == "long" and schema != "long" and "timestamp" in schema["logicalType"] and self._chance(0.3):
            was = schema["logicalType"]
            return {**schema, "logicalType": was.replace("millis", "micros"), "was": was}
        if kind not in ("null", "array", "map") and self._chance(0.15):
            return ["null", schema] if self._chance(0.5) else [schema, "null"]
        return schema

    def _evolved_union(self, branches: list[Any]) -> Any:
        kept = [self._evolved_branch(branch) for branch in branches]
        if self._chance(0.3):
            self._random.shuffle(kept)
        if len(kept) > 1 and self._chance(0.2):
            kept.pop()
        families = {branch_family(branch) for branch in kept}
        if "null" not in families and self._chance(0.3):
            kept.append("null")
        return kept[0] if len(kept) == 1 and self._chance(0.5) else kept

    def _evolved_branch(self, branch: Any) -> Any:
        while isinstance(found := self._evolved(branch), list):
            pass
        return found

    def _evolved_record(self, schema: Any) -> Any:
        fields = []
        for field in schema["fields"]:
            if self._chance(0.15):
                continue
            evolved = {"name": field["name"], "type": self._evolved(field["type"])}
            if self._chance(0.15):
                evolved = {**evolved, "name": self._name("g"), "aliases": ["unused", field["name"]]}
            fields.append(evolved)
        for _ in range(self._random.choice((0, 0, 1, 2))):
            kind = self._type(1)
            fields.append({"name": self._name("d"), "type": kind, "default": self._default(kind)})
        if self._chance(0.3):
            self._random.shuffle(fields)
        return {**schema, "fields": fields}

    def _default(self, schema: Any) -> Any:
        """A default, as JSON."""
        if isinstance(schema, list):
            return self._default(schema[0])
        kind = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case "bytes" | "fixed":
                size = schema["size"] if kind == "fixed" else 1
                return "\0" * (size - 1) + chr(self._random.randint(0, 9)) if size else ""
            case "array":
                return [self._default(schema["items"]) for _ in range(self._random.randint(0, 2))]
            case "map":
                return {f"k{index}": self._default(schema["values"]) for index in range(self._random.randint(0, 2))}
            case "record":
                return {field["name"]: self._default(field["type"]) for field in schema["fields"]}
            case "string":
                return "\u00e4 default"
            case "double":
                value = self._value(schema)
                return value if math.isfinite(value) else -1e300  # JSON has no other
            case _:
                return self._value(schema)

    # Values; of a union, with the index of the branch

    def _value(self, schema: Any) -> Any:  # noqa: C901 - a case for each type
        random = self._random
        if isinstance(schema, list):
            index = random.randrange(len(schema))
            return index, self._value(schema[index])
        kind = schema if isinstance(schema, str) else schema["type"]
        logical = None if isinstance(schema, str) else schema.get("logicalType")
        if logical == "decimal":
            most = 10 ** schema["precision"] - 1
            return random.choice((0, 1, -1, most, -most, random.randint(-most, most)))
        if logical:
            return self._logical_value(logical)
        match kind:
            case "null":
                return None
            case "boolean":
                return random.random() < 0.5
            case "int" | "long":
                bits = random.randint(0, 31 if kind == "int" else 63)
                return random.randint(-(2**bits), 2**bits - 1)
            case "float":
                return struct.unpack("<f", struct.pack("<f", random.uniform(-1e9, 1e9)))[0]
            case "double":
                return random.choice((random.uniform(-1e300, 1e300), 0.0, -0.0, math.inf))
            case "bytes" | "string":
                return random.choice(
                    ("", "a", "na\u00efve \u20ac", "\U0001f600" * 3, "x" * random.choice((63, 64, 100)))
                )
            case "fixed":
                return random.randbytes(schema["size"])
            case "enum":
                return random.choice(schema["symbols"])
            case "array":
                return [self._value(schema["items"]) for _ in range(self._length())]
            case "map":
                return {f"k{index}": self._value(schema["values"]) for index in range(self._length())}
        return {field["name"]: self._value(field["type"]) for field in schema["fields"]}

    def _logical_value(self, logical: str) -> Any:
        random = self._random
        if logical == "uuid":
            return str(UUID(int=random.getrandbits(128)))
        if "timestamp" in logical:
            return random.choice((0, 1, -1)) * random.randrange(80_000_000_000)
        return random.randint(-700_000, 2_900_000) if logical == "date" else random.randrange(86_400_000)

    def _length(self) -> int:
        return self._random.choice((0, 0, 1, 1, 2, 3, 5))


def branch_family(branch: Any) -> str:
    """Of which a union has one type."""
    kind = branch if isinstance(branch, str) else branch["type"]
    return kind if kind in ("null", "boolean", "array", "map") else FAMILIES.get(kind, "named")


def encode(schema: Any, value: Any, random: Random | None) -> bytes:  # noqa: C901 - a case for each type
    """The encoding of a value: arrays and maps in random blocks, some of them with their size, and decimals in more
    bytes than they need; without randomness in one block, and as few bytes as `BigInteger.toByteArray`."""
    if isinstance(schema, list):
        index, value = value
        return long(index) + encode(schema[index], value, random)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind in ("bytes", "fixed") and isinstance(value, int):
        size = (value if value >= 0 else ~value).bit_length() // 8 + (random.choice((1, 1, 1, 3)) if random else 1)
        encoded = value.to_bytes(schema["size"] if kind == "fixed" else size, "big", signed=True)
        return encoded if kind == "fixed" else sized(encoded)
    match kind:
        case "null":
            return b""
        case "boolean":
            return bytes([value])
        case "int" | "long":
            return long(value)
        case "float" | "double":
            return struct.pack(f"<{kind[0]}", value)
        case "bytes" | "string":
            return sized(value.encode())
        case "fixed":
            return bytes(value)
        case "enum":
            return long(schema["symbols"].index(value))
        case "array":
            return blocks([encode(schema["items"], item, random) for item in value], random)
        case "map":
            return blocks([sized(key.encode()) + encode(schema["values"], value[key], random) for key in value], random)
    return b"".join(encode(field["type"], value[field["name"]], random) for field in schema["fields"])


def blocks(items: list[bytes], random: Random | None) -> bytes:
    encoded = b""
    while items:
        count = random.randint(1, len(items)) if random else len(items)
        block, items = b"".join(items[:count]), items[count:]
        is_sized = random is not None and random.random() < 0.3
        encoded += long(-count) + long(len(block)) + block if is_sized else long(count) + block
    return encoded + b"\0"


def read_with_fastavro(payload: bytes, writer: Any, reader: Any) -> Any:
    """The value; EOFError if bytes follow it."""
    stream = io.BytesIO(payload)
    value = fastavro.schemaless_reader(stream, writer, reader)
    if stream.tell() != len(payload):
        raise EOFError
    return value


def same(ours: Any, theirs: Any, schema: Any) -> bool:
    """Whether a decoded value is the one of fastavro, which has other types for some logical types, and leaves defaults
    as they are in JSON."""
    if ours is None or theirs is None:
        return ours is theirs
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) == 1:
            return same(ours, theirs, branches[0])
        (member,) = (member for member, value in ours.items() if value is not None)
        return same(ours[member], theirs, branches[int(member.removeprefix("member"))])
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "array":
        return len(ours) == len(theirs) and all(
            same(one, other, schema["items"]) for one, other in zip(ours, theirs, strict=True)
        )
    if kind == "map":
        ours = dict(ours)
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key], schema["values"]) for key in ours)
    if kind == "record":
        return all(same(ours[field["name"]], theirs[field["name"]], field["type"]) for field in schema["fields"])
    if isinstance(theirs, UUID):
        return UUID(ours) == theirs
    if isinstance(theirs, time) and not 0 <= ours < DAY[schema["logicalType"]]:
        return True  # fastavro has no other times
    return bool(ours == plain(theirs, schema, kind)) or (ours != ours and theirs != theirs)


def plain(theirs: Any, schema: Any, kind: str) -> Any:
    """A scalar of fastavro as ours."""
    logical = None if isinstance(schema, str) else schema.get("logicalType")
    if isinstance(theirs, str) and kind in ("bytes", "fixed"):
        theirs = theirs.encode("latin-1")
        if logical == "decimal":
            return Decimal(int.from_bytes(theirs, "big", signed=True)).scaleb(-schema["scale"])
    match logical:
        case "date":
            return date.fromordinal(EPOCH.toordinal() + theirs) if isinstance(theirs, int) else theirs
        case "time-millis" | "time-micros" if isinstance(theirs, time):
            micros = ((theirs.hour * 60 + theirs.minute) * 60 + theirs.second) * 10**6 + theirs.microsecond
            return micros // 1000 if logical == "time-millis" else micros
        case str() if "timestamp" in logical and isinstance(theirs, int):
            micros = theirs * (1000 if "millis" in logical else 1)
            at = datetime.fromtimestamp(0, UTC) + np.timedelta64(micros, "us").astype(object)
            return at if logical.startswith("timestamp") else at.replace(tzinfo=None)
    return float(np.float32(theirs)) if kind == "float" else theirs
