"""Pairs of Avro schemas that fastavro and Java resolve differently, or that no reader should resolve."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.typed.avro.pairs import PRIMITIVES, PROMOTED, SchemaPair

NAMESPACES = ("m", "m", "m", "n", "n.o")
RARE, OFTEN = 0.04, 0.3


class WildPair(SchemaPair):
    """Unions have types of which one can be promoted to the other, and several records that look alike; types move to
    other namespaces, and get other names with or without aliases; aliases collide; fields get other types."""

    def _name(self, kind: str) -> str:
        name = super()._name(kind)
        return name if kind in "fgd" else f"{self._random.choice(NAMESPACES)}.{name}"

    def _union(self, depth: int) -> Any:
        branches: dict[str, Any] = {}
        for _ in range(self._random.randint(2, 5)):
            branch = self._random.choice(PRIMITIVES) if self._chance(OFTEN) else self._no_union(depth)
            branches.setdefault(branch_kind(branch), branch)
            if isinstance(branch, dict) and branch["type"] == "record" and self._chance(OFTEN):
                twin = {**branch, "name": self._renamed(branch["name"])}
                branches.setdefault(branch_kind(twin), json.loads(json.dumps(twin)))
        return list(branches.values())

    def _renamed(self, name: str) -> str:
        """In another namespace or not, with another name or not."""
        namespace, _, short = name.rpartition(".")
        if self._chance(0.7):
            namespace = self._random.choice(NAMESPACES)
        return f"{namespace}.{short}" if self._chance(0.5) else f"{namespace}.{super()._name(short[0])}"

    def _evolved(self, schema: Any) -> Any:
        if self._chance(RARE / 4):
            return self._type(1)
        evolved = super()._evolved(schema)
        if isinstance(evolved, dict) and "name" in evolved and self._chance(2 * RARE):
            was = evolved["name"]
            evolved = {**evolved, "name": self._renamed(was)}
            if self._chance(0.5):
                evolved["aliases"] = [self._random.choice((was, was, was.rpartition(".")[2]))]
        return evolved

    def _evolved_union(self, branches: list[Any]) -> Any:
        evolved = super()._evolved_union(branches)
        if isinstance(evolved, list):
            if self._chance(OFTEN):
                evolved.insert(0, self._random.choice(PROMOTED[self._random.choice(list(PROMOTED))]))
            unique = {branch_kind(branch): branch for branch in evolved}
            if unique.keys() - {"null"} == {"float", "double"}:
                del unique["float"]  # Java would make an int a float, and lose digits
            evolved = list(unique.values())
        return evolved

    def _evolved_record(self, schema: Any) -> Any:
        evolved = super()._evolved_record(schema)
        fields = evolved["fields"]
        if fields and self._chance(RARE):
            alias = self._random.choice(schema["fields"] or fields)["name"]
            self._random.choice(fields).setdefault("aliases", []).append(alias)
        if fields and self._chance(RARE / 2):
            self._random.choice(fields).pop("default", None)
        return evolved


def branch_kind(branch: Any) -> str:
    """Of which a union has one."""
    kind = branch if isinstance(branch, str) else branch["type"]
    return f"{kind} {branch['name']}" if isinstance(branch, dict) and "name" in branch else kind
