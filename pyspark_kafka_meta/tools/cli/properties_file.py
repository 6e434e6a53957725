"""Parses properties files, as Kafka's tools do. Follows `java.util.Properties`, but only `=` ends a name."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE = re.compile(r"\s*[#!].*|(?:[^\\\n]|\\[\s\S]?)+")
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\n[ \t]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> Iterator[tuple[str, str]]:
    """Names and values. A backslash at the end of a line continues it, except in comments; two stand for a backslash.

    Raises:
        ValueError: a line is not NAME=VALUE; the text is its number.
    """
    for line in _LINE.finditer(text):
        if (pair := _CONTINUED.sub(r"\1", line[0]).lstrip()) and pair[0] not in "#!":
            try:
                name, value = split_pair(pair)
            except ValueError:
                raise ValueError(text.count("\n", 0, line.start()) + 1) from None
            yield name, _ESCAPE.sub(_unescaped, value.lstrip())


def split_pair(text: str) -> tuple[str, str]:
    """Name and value of NAME=VALUE. Raises ValueError, without the text, which may be a secret."""
    name, sign, value = text.partition("=")
    if not name.strip() or not sign:
        raise ValueError("not NAME=VALUE")
    return name.strip(), value


def _unescaped(found: re.Match[str]) -> str:
    escape = found[1]
    return chr(int(escape[1:], 16)) if len(escape) > 1 else _NAMED.get(escape, escape)
