"""`parse_condition`: the text of a condition as a tree. A part of Spark's SQL, in which the same text means the same.

Spark imports options whenever it looks up a data source: this needs no pyarrow. Follows Spark's `SqlBaseParser.g4` and
`AstBuilder` with the default settings of `spark.sql.parser` and `spark.sql.timestampType`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn, TypeAlias


class Column(NamedTuple):
    """A column, or a field of structs."""

    path: tuple[str, ...]
    at: int


class Header(NamedTuple):
    """`headers['name']`: the value of the last header of this name, of type binary; null without one."""

    name: str
    at: int


class Literal(NamedTuple):
    """
    Attributes:
        type: Spark's name: tinyint, smallint, int, bigint, decimal, double, boolean, string, binary, date, timestamp,
            timestamp_ntz or void, which is that of NULL.
        value: of a date and of timestamps days or microseconds since 1970.
    """

    type: str
    value: Any
    at: int


class Comparison(NamedTuple):
    """`operator` is =, !=, <, <=, >, >= or <=>."""

    operator: str
    left: Node
    right: Node
    at: int


class In(NamedTuple):
    value: Node
    items: tuple[Literal, ...]
    at: int


class Like(NamedTuple):
    """`regex` of RE2 matches what the pattern does; None for NULL, which matches nothing."""

    value: Node
    regex: str | None
    at: int


class IsNull(NamedTuple):
    value: Node
    at: int


class Not(NamedTuple):
    value: Node
    at: int


class And(NamedTuple):
    parts: tuple[Node, ...]
    at: int


class Or(NamedTuple):
    parts: tuple[Node, ...]
    at: int


Node: TypeAlias = Column | Header | Literal | Comparison | In | Like | IsNull | Not | And | Or


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition and its text, in which `at` of a node is a position."""

    text: str
    node: Node

    def refused(self, node: Node, reason: str) -> ValueError:
        return _refused(self.text, node.at, reason)

    def conjuncts(self) -> tuple[Node, ...]:
        """Each must be true of a row that is kept."""
        return self.node.parts if isinstance(self.node, And) else (self.node,)


def all_of(conditions: Sequence[Condition]) -> Condition:
    """That each of them is true: columns fit each, as positions of nodes are those of its own text."""
    text = " AND ".join(f"({condition.text})" for condition in conditions)
    return Condition(text, And(tuple(part for condition in conditions for part in condition.conjuncts()), 0))


def columns_of(node: Node) -> set[str]:
    """The columns that a condition names, in lower case."""
    match node:
        case Literal():
            return set()
        case Column(path):
            return {path[0].lower()}
        case Header():
            return {"headers"}
        case Comparison(_, left, right):
            return columns_of(left) | columns_of(right)
        case And(parts) | Or(parts):
            return set[str]().union(*map(columns_of, parts))
    return columns_of(node.value)


def parse_condition(text: str) -> Condition:
    """Raises ValueError with the reason and the part that it is about."""
    return Condition(text, _Parser(text).condition())


def _refused(text: str, at: int, reason: str) -> ValueError:
    part = text[at : at + 40]
    return ValueError(f"{reason}, at character {at + 1}: {part}" if part else f"{reason}, at the end")


# --- tokens -----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
        (?P<string>'(?:[^'\\]|\\.|'')*')
      | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)(?P<suffix>bd|[lsyd])?(?![\w.])
      | (?P<name>[a-z_][a-z0-9_]*)(?!\w)
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<operator><=>|==|!=|<>|<=|>=|[=<>().,\[\]-])
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_KEYWORDS = frozenset(["AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"])
_OPERATORS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>"}
_SUPPORTED = (
    "is not supported here: a condition has columns, literals, =, !=, <, <=, >, >=, <=>, IN, BETWEEN, LIKE, IS NULL, "
    "AND, OR, NOT"
)


class _Token(NamedTuple):
    """`word` is in upper case for keywords and types, empty for what is neither name nor operator."""

    kind: str
    text: str
    word: str
    at: int
    suffix: str = ""


def _tokens(text: str) -> Iterator[_Token]:
    if "${" in text:
        raise _refused(text, text.index("${"), "Spark would replace a variable")
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise _refused(text, at, "this " + _SUPPORTED)
        kind = match.lastgroup if match.lastgroup != "suffix" else "number"
        assert kind is not None, "each alternative is a group"
        found = match[kind]
        word = found.upper() if kind in ("name", "operator") else ""
        yield _Token(kind, found, word, match.start(kind), (match["suffix"] or "").upper())
        if kind == "end":
            return
        at = match.end()


class _Parser:
    """By recursive descent; each method has a rule, and takes its tokens."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._place = 0
        self._depth = 0

    # --- tokens -------------------------------------------------------------------------------------------------------

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _take(self) -> _Token:
        token = self._next
        self._place += token.kind != "end"
        return token

    def _accept(self, *words: str) -> _Token | None:
        return self._take() if self._next.word in words else None

    def _expect(self, word: str) -> _Token:
        return self._accept(word) or self._fail(f"{word} is expected")

    def _string(self) -> _Token:
        return self._take() if self._next.kind == "string" else self._fail("a text in single quotes is expected")

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        raise _refused(self._text, self._next.at if at is None else at, reason)

    def _deeper(self, token: _Token) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"parts are nested more than {MAX_DEPTH} deep", token.at)

    # --- rules --------------------------------------------------------------------------------------------------------

    def condition(self) -> Node:
        node = self._disjunction()
        if self._next.kind != "end":
            self._fail(f"'{self._next.text}' {_SUPPORTED}")
        return node

    def _disjunction(self) -> Node:
        parts = [self._conjunction()]
        while self._accept("OR"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Or(tuple(parts), parts[0].at)

    def _conjunction(self) -> Node:
        parts = [self._negation()]
        while self._accept("AND"):
            parts.append(self._negation())
        flat = [part for each in parts for part in (each.parts if isinstance(each, And) else (each,))]
        return flat[0] if len(flat) == 1 else And(tuple(flat), flat[0].at)

    def _negation(self) -> Node:
        found = self._accept("NOT")
        if found is None:
            return self._predicate()
        self._deeper(found)
        node = Not(self._negation(), found.at)
        self._depth -= 1
        return node

    def _predicate(self) -> Node:
        value = self._comparison()
        if found := self._accept("IS"):
            is_negated = self._accept("NOT")
            self._expect("NULL")
            node: Node = IsNull(value, found.at)
        else:
            is_negated, found = self._accept("NOT"), self._accept("IN", "BETWEEN", "LIKE")
            if found is None:
                return self._fail(f"'{self._next.text}' {_SUPPORTED}") if is_negated else value
            node = {"IN": self._in, "BETWEEN": self._between, "LIKE": self._like}[found.word](value, found.at)
        return Not(node, is_negated.at) if is_negated else node

    def _in(self, value: Node, at: int) -> Node:
        self._expect("(")
        items = [self._item()]
        while self._accept(","):
            items.append(self._item())
        self._expect(")")
        return In(value, tuple(items), at)

    def _item(self) -> Literal:
        at, item = self._next.at, self._primary()
        return item if isinstance(item, Literal) else self._fail("IN needs literals", at)

    def _between(self, value: Node, at: int) -> Node:
        low = self._comparison()
        self._expect("AND")
        return And((Comparison(">=", value, low, at), Comparison("<=", value, self._comparison(), at)), at)

    def _like(self, value: Node, at: int) -> Node:
        if self._accept("NULL"):
            return Like(value, None, at)
        token, escape = self._string(), "\\"
        if self._accept("ESCAPE"):
            escape_token = self._string()
            escape = self._unescaped(escape_token)
            if len(escape) != 1:
                self._fail("ESCAPE needs one character", escape_token.at)
        return Like(value, self._regex(token, escape), at)

    def _regex(self, token: _Token, escape: str) -> str:
        parts = []
        if "\ufffd" in token.text:
            self._fail("LIKE does not support U+FFFD, by which Spark replaces bytes that are no UTF-8", token.at)
        characters = iter(self._unescaped(token))
        for character in characters:
            if character == escape:
                escaped = next(characters, "")
                if escaped not in ("%", "_", escape):
                    self._fail("an escape character must be before %, _ or itself", token.at)
                parts.append(re.escape(escaped))
            else:
                parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
        if len(parts) > MAX_PATTERN:
            self._fail(f"LIKE supports patterns of at most {MAX_PATTERN} characters", token.at)
        # Without `.*` at its ends RE2 looks for what is between them, which is many times as fast.
        return "(?s)" + rf"\A{''.join(parts)}\z".removeprefix(r"\A.*").removesuffix(r".*\z")

    def _comparison(self) -> Node:
        left, depth = self._primary(), self._depth
        while token := self._accept(*_OPERATORS):
            self._deeper(token)
            left = Comparison(_OPERATORS[token.word], left, self._primary(), token.at)
        self._depth = depth
        return left

    def _primary(self) -> Node:
        token = self._take()
        if token.word == "(":
            self._deeper(token)
            node = self._disjunction()
            self._depth -= 1
            self._expect(")")
            return node
        if token.word == "-" and self._next.kind == "number":
            return self._number(self._take(), "-", token.at)
        if token.word in ("TRUE", "FALSE"):
            return Literal("boolean", token.word == "TRUE", token.at)
        if token.word == "NULL":
            return Literal("void", None, token.at)
        if token.kind == "string":
            return Literal("string", self._unescaped(token), token.at)
        if token.kind == "number":
            return self._number(token, "", token.at)
        if token.kind == "name" and self._next.kind == "string":
            return self._typed_literal(token)
        if token.kind == "quoted" or (token.kind == "name" and token.word not in _KEYWORDS):
            return self._column(token)
        return self._fail(f"'{token.text}' {_SUPPORTED}" if token.text else "a value is expected", token.at)

    # --- columns and literals -----------------------------------------------------------------------------------------

    def _column(self, token: _Token) -> Node:
        path = [_name(token)]
        while self._accept("."):
            part = self._take()
            if part.kind not in ("name", "quoted"):
                self._fail("a field is expected", part.at)
            path.append(_name(part))
        if self._next.word == "(":
            self._fail("functions are not supported", token.at)
        if self._accept("["):
            if len(path) > 1 or path[0].lower() != "headers":
                self._fail("[] is supported for headers alone", token.at)
            name = self._unescaped(self._string())
            self._expect("]")
            return Header(name, token.at)
        return Column(tuple(path), token.at)

    def _number(self, token: _Token, sign: str, at: int) -> Literal:
        number, suffix, is_whole = Decimal(sign + token.text), token.suffix, token.text.isdigit()
        if suffix == "D" or ("e" in token.text.lower() and suffix != "BD"):
            literal = Literal("double", float(number), at)
            is_possible = suffix in ("", "D") and abs(literal.value) != float("inf")
        elif is_whole and suffix != "BD":
            kinds = [kind for kind, bits in _BITS.items() if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1)]
            kind = _SUFFIXES.get(suffix) or ("int" if "int" in kinds else "bigint" if "bigint" in kinds else "decimal")
            literal = Literal(kind, number if kind == "decimal" else int(number), at)
            is_possible = kind in kinds or (kind == "decimal" and len(number.as_tuple().digits) <= MAX_DIGITS)
        else:
            literal, parts = Literal("decimal", number, at), number.as_tuple()
            places = -parts.exponent if isinstance(parts.exponent, int) else -1
            is_possible = suffix in ("", "BD") and 0 <= places <= MAX_DIGITS >= len(parts.digits)
        return literal if is_possible else self._fail("the number is out of range of its type", at)

    def _typed_literal(self, token: _Token) -> Literal:
        text = self._string().text[1:-1]
        if token.word == "X":
            if re.fullmatch("(?:[0-9a-fA-F]{2})*", text) is None:
                self._fail("X needs pairs of hexadecimal digits", token.at)
            return Literal("binary", bytes.fromhex(text), token.at)
        try:
            match token.word:
                case "DATE":
                    return Literal("date", _days(text), token.at)
                case "TIMESTAMP" | "TIMESTAMP_LTZ":
                    return Literal("timestamp", _micros(text, _TIME + _ZONE), token.at)
                case "TIMESTAMP_NTZ":
                    return Literal("timestamp_ntz", _micros(text, _TIME), token.at)
        except ValueError as error:
            self._fail(str(error), token.at)
        return self._fail(f"literals of type {token.text} are not supported", token.at)

    def _unescaped(self, token: _Token) -> str:
        """As Spark's `unescapeSQLString`, without escapes of character codes."""
        parts = re.split(r"(\\.|'')", token.text[1:-1], flags=re.DOTALL)
        if unknown := set(parts[1::2]).difference(_ESCAPES):
            self._fail(f"write a character itself instead of {min(unknown)}", token.at)
        return "".join(_ESCAPES.get(part, part) for part in parts)


_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_SUFFIXES = {"Y": "tinyint", "S": "smallint", "L": "bigint"}
MAX_DIGITS = 38
"""Of a decimal."""
MAX_DEPTH = 50
"""Of parentheses, NOT and comparisons in each other: far from where Python ends a recursion."""
MAX_PATTERN = 1_000
"""Characters of a pattern of LIKE: with thousands of wildcards RE2 took 3 s for a text of 20 KB."""
_ESCAPES = {"''": "'", r"\'": "'", r"\\": "\\", r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\%": r"\%", r"\_": r"\_"}
_EPOCH = datetime(1970, 1, 1)
_DATE = r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
_TIME = _DATE + r"[ T]([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:\.([0-9]{1,6}))?"
_ZONE = r" ?(?:Z|UTC|([+-])([0-9]{2}):([0-9]{2}))"


def _name(token: _Token) -> str:
    return token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text


def _days(text: str) -> int:
    match = re.fullmatch(_DATE, text)
    if match is None:
        raise ValueError("a date is expected as 2030-01-31")
    return date(*map(int, match.groups())).toordinal() - _EPOCH.toordinal()


def _micros(text: str, pattern: str) -> int:
    """Of a time with the zone that the pattern asks for: what the time zone of a session is, workers do not know."""
    match = re.fullmatch(pattern, text)
    if match is None:
        zone = " with a zone, as Z or +02:00" if pattern.endswith(_ZONE) else " without a zone"
        raise ValueError(f"a time is expected as 2030-01-31 12:00:00{zone}")
    parts = [each or "0" for each in match.groups()]
    year, month, day, hour, minute, second, micros = map(int, [*parts[:6], parts[6].ljust(6, "0")])
    time = datetime(year, month, day, hour, minute, second, micros)
    sign, hours, minutes = parts[7:] or ["0", "0", "0"]
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    if int(minutes) > 59 or offset > timedelta(hours=18):
        raise ValueError("a zone is at most 18:00 from UTC")
    return (time - _EPOCH + (offset if sign == "-" else -offset)) // timedelta(microseconds=1)
