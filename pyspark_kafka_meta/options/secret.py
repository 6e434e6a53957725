"""`Secret`: text that is never displayed. It is pickled, because Spark sends the options to workers."""

from __future__ import annotations

HIDDEN = "[hidden]"
"""Displayed for a secret, as in Kafka's `Password`."""


class Secret:
    """A password, token or key. Only `reveal` returns the text. Not a dataclass, whose text `asdict` would return."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__
