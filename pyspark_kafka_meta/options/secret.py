"""`Secret`: text that shows nothing of itself. Pickles carry it, because Spark sends the options to its workers."""

from __future__ import annotations

from dataclasses import dataclass, field

HIDDEN = "[hidden]"
"""What stands for a secret, as in Kafka's `Password`."""


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A password, token or key. Only `reveal` gives it out; its repr, its str and what formats it do not."""

    _text: str = field(repr=False)

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__
