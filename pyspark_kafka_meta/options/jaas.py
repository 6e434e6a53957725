"""Reads `sasl.jaas.config`, the login of Kafka's Java clients: `PlainLoginModule required username="u" password="p";`

Follows Kafka's `JaasConfig`, which uses Java's `StreamTokenizer`. Errors never repeat the text, because it holds a
password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafka_meta.options.parsers import Secret

_TOKEN = re.compile(
    r"""
    (?P<space> \s+ | //[^\n]* | /\*.*?\*/ ) |
    "(?P<double> (?:[^"\\\r\n]|\\.)* )" | '(?P<single> (?:[^'\\\r\n]|\\.)* )' |
    (?P<word> [\w.$-]+ ) | (?P<sign> [=;] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
EXTENSION = "extension_"
"""Entries that begin with it are SASL extensions."""


@dataclass(frozen=True, slots=True)
class JaasLogin:
    """The class name of a login module without the package, and its options as secrets."""

    module: str
    options: tuple[tuple[str, Secret], ...]

    def get(self, name: str) -> Secret | None:
        return dict(self.options).get(name)

    @property
    def extensions(self) -> str:
        """SASL extensions as name=value, separated by commas."""
        found = ((name.removeprefix(EXTENSION), value) for name, value in self.options if name.startswith(EXTENSION))
        return ",".join(f"{name}={value.reveal()}" for name, value in found)


def parse_jaas(text: str) -> JaasLogin:
    """Parses a configuration of one login module. Raises ValueError: the text is invalid; the message has the place,
    not the text."""
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[1].lower() not in ("required", "requisite", "sufficient", "optional"):
        raise ValueError('a login module, "required" and options must come first')
    if tokens[-1] != _END:
        raise ValueError("it must end with ';' and have one login module")
    options: dict[str, Secret] = {}
    rest = tokens[2:-1]
    for name, sign, value in zip(rest[::3], rest[1::3], rest[2::3], strict=False):
        if sign != _EQUALS or {_EQUALS, _END} & {name, value}:
            raise ValueError(f'option {len(options) + 1} is not name="value"')
        options[name] = Secret(value)
    if len(rest) % 3:
        raise ValueError(f'option {len(options) + 1} is not name="value"')
    return JaasLogin(tokens[0].rpartition(".")[2], tuple(sorted(options.items())))


def jaas_text(module: str, options: Mapping[str, str]) -> str:
    """The inverse of `parse_jaas`."""
    escaped = {name: re.sub(r'(["\\])', r"\\\1", value) for name, value in options.items()}
    return " ".join([module, "required", *(f'{name}="{value}"' for name, value in escaped.items())]) + ";"


_EQUALS, _END = "\0=", "\0;"  # differ from every word and quoted text


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"it is invalid from character {position + 1} on: is a quote or comment not closed?")
        position = match.end()
        if match["sign"]:
            tokens.append("\0" + match["sign"])
        elif match["space"] is None:
            quoted = match["double"] if match["double"] is not None else match["single"]
            tokens.append(match["word"] if quoted is None else _unescape(quoted))
    return tokens


def _unescape(quoted: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped: str = match[1]
        return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPES.get(escaped, escaped)

    return re.sub(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", plain, quoted, flags=re.DOTALL)
