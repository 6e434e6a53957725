"""Spark's types as text: DDL such as `id BIGINT, name STRING`, and what `simpleString()` returns.

They become what `DataType.jsonValue()` returns, without nullability and comments. Follows Spark's `StructType.fromDDL`.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|[<>,:()]|[^\s`'<>,:()]+)")
_NAMES = {
    "bigint": "long",
    "int": "integer",
    "smallint": "short",
    "tinyint": "byte",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
    "char": "string",
    "varchar": "string",
}
"""In `jsonValue()`, where they differ."""


def type_of_ddl(text: str) -> object:
    """Raises ValueError if it is no type."""
    tokens = _TOKEN.findall(text)
    if _TOKEN.sub("", text).strip():
        raise ValueError("not a type of Spark")
    parser = _Parser([*reversed(tokens)])
    is_type = len(tokens) == 1 or tokens[1:2] in (["<"], ["("])
    parsed = parser.type() if is_type else parser.struct()
    if parser.tokens:
        raise ValueError("not a type of Spark")
    return parsed


class _Parser:
    """Attributes:
    tokens: those that follow, the next one last.
    """

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def type(self) -> object:
        name = self._next().lower()
        if name == "struct":
            self._expect("<")
            parsed: object = self.struct()
            self._expect(">")
            return parsed
        if name in ("array", "map"):
            self._expect("<")
            first = self.type()
            if name == "array":
                parsed = {"type": "array", "elementType": first}
            else:
                self._expect(",")
                parsed = {"type": "map", "keyType": first, "valueType": self.type()}
            self._expect(">")
            return parsed
        name = _NAMES.get(name, name)
        arguments = self._arguments()
        if name != "decimal":
            return name
        precision, scale = [*arguments, "0"][:2] if arguments else ("10", "0")
        return f"decimal({precision},{scale})"

    def struct(self) -> object:
        fields = [self._field()]
        while self._skip(","):
            fields.append(self._field())
        return {"type": "struct", "fields": fields}

    def _field(self) -> object:
        name = self._next()
        self._skip(":")
        field = {"name": name[1:-1].replace("``", "`") if name[0] == "`" else name, "type": self.type()}
        if self._skip("not"):
            self._expect("null")
        if self._skip("comment"):
            self._next()
        return field

    def _arguments(self) -> list[str]:
        arguments: list[str] = []
        if self._skip("("):
            arguments.append(self._next())
            while self._skip(","):
                arguments.append(self._next())
            self._expect(")")
        return arguments

    def _next(self) -> str:
        if not self.tokens:
            raise ValueError("the type ends too early")
        return self.tokens.pop()

    def _skip(self, token: str) -> bool:
        """Whether the next token was this one."""
        return bool(self.tokens and self.tokens[-1].lower() == token and self.tokens.pop())

    def _expect(self, token: str) -> None:
        if not self._skip(token):
            raise ValueError(f"{token} is missing")
