"""Names that match whatever their case, as the options of Spark's `CaseInsensitiveStringMap`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class CaseInsensitiveMap(Mapping[str, T]):
    """Values by name in any case. Iterates over the names as they were given."""

    def __init__(self, values: Mapping[str, T]) -> None:
        self._items = {name.lower(): (name, value) for name, value in values.items()}

    def __getitem__(self, name: str) -> T:
        return self._items[name.lower()][1]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def without(self, *names: str) -> dict[str, T]:
        return {name: value for name, value in self.items() if name not in CaseInsensitiveMap(dict.fromkeys(names))}


def closest(name: str, names: Iterable[str], count: int, cutoff: float = 0.6) -> list[str]:
    """At most `count` of `names`, the most similar one first; `cutoff` is the least similarity, from 0 to 1."""
    import difflib  # only a misspelt name needs it

    by_lower_case = {candidate.lower(): candidate for candidate in names}
    return [by_lower_case[near] for near in difflib.get_close_matches(name.lower(), by_lower_case, count, cutoff)]
