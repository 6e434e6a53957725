"""The table of options: a field of a dataclass is a row, its metadata are the columns. And the options of one query.

A row says everything about its option: names, section of the documentation, queries in which it has an effect, default,
parser, error text and purpose. Parsing, hints about misspelt names, warnings and documentation follow from the rows.

An unknown option is an error, while Spark's `KafkaSourceProvider` ignores it. Error texts follow Spark's. A known
option without effect is a warning: people share the options of a cluster among reads, writes and tables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Flag, StrEnum, auto
from functools import cache, partial
from typing import Any, TypedDict, TypeVar, Unpack

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.model import shortened
from pyspark_kafka_meta.options.parsers import parse_choice, parse_number, parse_secret, parse_short_text, parse_text
from pyspark_kafka_meta.options.unknown_options import CaseInsensitiveMap, unknown_option
from pyspark_kafka_meta.value_checks import INT32_MAX

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Section(StrEnum):
    """The sections of the documentation, in its order."""

    TOPICS = "Topics and tables"
    START_AND_END = "Start and end"
    TASKS = "Micro-batches and tasks"
    TYPED_VALUES = "Typed values"
    CHANGES = "Changes of databases"
    FAILURES = "Data loss and errors"
    WRITING = "Writing"
    GROUPS_AND_EVENTS = "Groups and events"
    SECURITY = "Security"
    FETCHES = "Fetches"
    CONNECTIONS = "Connections"


class Query(Flag):
    """The kinds of queries, by what they read or write."""

    NONE = 0
    RECORDS_BATCH = auto()
    RECORDS_STREAM = auto()
    LATEST = auto()
    EVENT_FILES_BATCH = auto()
    EVENT_FILES_STREAM = auto()
    EVENT_TOPIC_BATCH = auto()
    EVENT_TOPIC_STREAM = auto()
    FOLDED_FROM_FILES = auto()
    FOLDED_FROM_TOPIC = auto()
    BROKERS = auto()
    PARTITIONS = auto()
    TRANSACTIONS = auto()
    AT_LEAST_ONCE = auto()
    EXACTLY_ONCE = auto()

    EACH_RECORD = RECORDS_BATCH | RECORDS_STREAM
    RECORDS = EACH_RECORD | LATEST
    EVENT_FILES = EVENT_FILES_BATCH | EVENT_FILES_STREAM
    EVENT_TOPIC = EVENT_TOPIC_BATCH | EVENT_TOPIC_STREAM
    STREAMS = RECORDS_STREAM | EVENT_FILES_STREAM | EVENT_TOPIC_STREAM
    FROM_FILES = EVENT_FILES | FOLDED_FROM_FILES
    FROM_TOPIC = EVENT_TOPIC | FOLDED_FROM_TOPIC
    CLUSTER = BROKERS | PARTITIONS | TRANSACTIONS
    FETCHES = RECORDS | FROM_TOPIC | CLUSTER
    WRITES = AT_LEAST_ONCE | EXACTLY_ONCE
    CONNECTED = FETCHES | WRITES


# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """An option.

    Attributes:
        name: as documented; matched in any case.
        default: as text; None if there is no default or it depends on the kind of query.
        parse: converts the text; raises ValueError with the invalid part.
        error: error text of an invalid value; `{value}` is replaced by the text.
        queries: in which it has an effect.
        needs: names of other options: it has no effect unless one of them is set.
        needs_values: texts, to one of which it must be set; without them, to any value but its default.
        excludes: names of other options, none of which may be given beside it.
        pair: name of another option: both are given, or none.
    """

    name: str
    default: str | None
    parse: Callable[[str], Any]
    error: str
    doc: str
    section: Section
    queries: Query
    needs: tuple[str, ...] = ()
    needs_values: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    pair: str | None = None

    def value(self, text: str) -> Any:
        """Parses `text`. Raises OptionError."""
        try:
            return self.parse(text)
        except (ValueError, RecursionError) as error:
            detail = f" ({shortened(str(error))})" if str(error) else ""
            raise OptionError(self.error.replace("{value}", shortened(text)) + detail) from None

    def default_value(self) -> Any:
        return None if self.default is None else self.value(self.default)


OPTIONS: dict[str, Option] = {}
"""All options by documented name, in the order of the documentation within each section. `options/__init__.py` fills it
with the rows of the dataclasses, which all need it."""

CHECKPOINT_LOCATION = "checkpointLocation"
"""Spark passes the location of a stream's checkpoint to its sink. No option of ours."""


class Columns(TypedDict, total=False):
    """What a row says otherwise than the others beside it."""

    section: Section
    queries: Query
    needs: tuple[str, ...]
    needs_values: tuple[str, ...]
    excludes: tuple[str, ...]
    pair: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Makes rows of one section whose options have an effect in the same queries, and need the same options: fields for
    a dataclass."""

    section: Section
    queries: Query
    needs: tuple[str, ...] = ()
    needs_values: tuple[str, ...] = ()

    def option(
        self,
        name: str,
        default: str | None,
        parse: Callable[[str], Any],
        error: str,
        doc: str,
        **columns: Unpack[Columns],
    ) -> Any:
        own = (self.section, self.queries, self.needs, self.needs_values)
        return option_field(replace(Option(name, default, parse, error, doc, *own), **columns))

    def number(
        self, name: str, default: str | None, doc: str, low: int = 0, high: int = INT32_MAX, **columns: Unpack[Columns]
    ) -> Any:
        """An option whose value is a whole number from `low` to `high`, both inclusive."""
        error = f"Option '{name}' must be a whole number from {low} to {high}, got '{{value}}'"
        return self.option(name, default, partial(parse_number, low=low, high=high), error, doc, **columns)

    def choice(self, name: str, choices: Mapping[str, Any], doc: str, **columns: Unpack[Columns]) -> Any:
        """An option whose value is a key of `choices`, by default the first; the field has the value of that key."""
        error = f"Option '{name}' must be {' or '.join(choices)}, got '{{value}}'"
        return self.option(name, next(iter(choices)), partial(parse_choice, values=choices), error, doc, **columns)

    def flag(self, name: str, default: bool, doc: str, **columns: Unpack[Columns]) -> Any:
        """An option that is true or false."""
        return self.choice(name, {str(value).lower(): value for value in (default, not default)}, doc, **columns)

    def short_text(self, name: str, doc: str, default: str | None = None, **columns: Unpack[Columns]) -> Any:
        """An option whose value is any text of one line, such as a name."""
        error = f"Option '{name}' must be at most 255 printable characters"
        return self.option(name, default, parse_short_text, error, doc, **columns)

    def text(self, name: str, doc: str, **columns: Unpack[Columns]) -> Any:
        """An option without a default, whose value is any text."""
        return self.option(name, None, parse_text, f"Option '{name}' must not be empty", doc, **columns)

    def secret(self, name: str, doc: str, **columns: Unpack[Columns]) -> Any:
        return self.option(name, None, parse_secret, f"Option '{name}' must not be empty", doc, **columns)


def option_field(option: Option) -> Any:
    """A field with this row, which other dataclasses may have too."""
    return field(metadata={"option": option})


def renamed_row(option: Option, rename: Callable[[str], str], doc: str, **columns: Any) -> Any:
    """The row of an option that is another one under a new name, as the others that it names."""
    others = {name: tuple(map(rename, getattr(option, name))) for name in ("needs", "excludes")}
    pair = option.pair and rename(option.pair)
    error = option.error.replace(option.name, rename(option.name))
    return option_field(
        replace(option, name=rename(option.name), error=error, doc=doc, pair=pair, **{**others, **columns})
    )


@cache
def options_of(kind: type) -> Mapping[str, Option]:
    """The options of a dataclass by field."""
    return {field.name: field.metadata["option"] for field in fields(kind) if field.metadata}


def option_names(*kinds: type) -> list[str]:
    """The names of the options of these dataclasses."""
    return [option.name for kind in kinds for option in options_of(kind).values()]


def default_options(kind: type[T], **others: Any) -> T:
    """The dataclass with the default of each option.

    Args:
        others: the other fields, and fields that differ from the default.
    """
    untyped: type = kind  # for mypy, whose type[T] is not hashable
    return kind(**{name: option.default_value() for name, option in options_of(untyped).items()} | others)


# --- the options of a query -------------------------------------------------------------------------------------------


class GivenOptions:
    """The options of a query as its user gave them, from which each dataclass takes its own. Collects what is wrong.

    Until `raise_problems` has returned, fields may be None because their value is invalid.
    """

    def __init__(self, options: Mapping[str, str], query: Query, place: str | None = None) -> None:
        """
        Args:
            options: by name in any case.
            place: the query for a warning about options of other queries, such as "a read"; None if these are refused
                as unknown options.
        """
        named = CaseInsensitiveMap(options)
        self._texts = named if place is None else without_effectless(named, query, place)
        self.query = query
        self._known = _options_with_effect(query)
        names = CaseInsensitiveMap({name: name for name in self._known})
        self._problems = [unknown_option(name, names) for name in self._texts if name not in self._known]
        self._values = dict(_defaults())
        given = {self._known[name].name: text for name, text in self._texts.items() if name in self._known}
        for option in self._known.values():
            if option.name in given:
                try:
                    self._values[option.name] = option.value(given[option.name])
                except OptionError as error:
                    del self._values[option.name]
                    self._problems.append(str(error))
        self._contradictions = list(self._broken_rules())

    def _broken_rules(self) -> Iterator[str]:
        """A sentence for each rule of the table that the given options break. What an option needs counts in queries
        that may have it."""
        given = {option.name for option in self._known.values() if option.name in self._texts}
        for name, option in self._known.items():
            needs = [other for other in option.needs if other in self._known]
            if name in given and needs and not any(self._is_set(other, option.needs_values) for other in needs):
                needed = " or ".join(f"'{other}'" for other in needs)
                values = f" {' or '.join(option.needs_values)}" if option.needs_values else ""
                yield f"Option '{name}' has no effect without {needed}{values}: set it or remove the option"
            if name in given:
                yield from (
                    f"Set either '{name}' or '{other}', not both" for other in option.excludes if other in given
                )
            if option.pair is not None and len(given & {name, option.pair}) == 1:
                yield f"Options '{name}' and '{option.pair}' must be set together"

    def _is_set(self, name: str, texts: Sequence[str]) -> bool:
        """Whether the option has the value of one of these texts, without them another than its default; or an invalid
        value."""
        if name not in self._values:
            return True
        value = self._values[name]
        return value in map(OPTIONS[name].value, texts) if texts else value != _defaults()[name]

    def values(self, kind: type) -> dict[str, Any]:
        """The values of the options of a dataclass by field; None if there is neither a value nor a default."""
        return {field: self._values.get(option.name) for field, option in options_of(kind).items()}

    def value(self, kind: type, field: str) -> Any:
        """As `values`, of one field."""
        return self._values.get(options_of(kind)[field].name)

    def given(self, kind: type, *fields: str) -> list[str]:
        """The documented names of those options of these fields that the user gave."""
        options = options_of(kind)
        return [options[field].name for field in fields if options[field].name in self._texts]

    def has_invalid(self, kind: type) -> bool:
        """Whether a value of an option of the dataclass is invalid."""
        return any(option.name not in self._values for option in options_of(kind).values())

    def refuse(self, contradictions: Iterable[str]) -> None:
        """Note a sentence for each contradiction among valid values."""
        self._contradictions += contradictions

    def raise_problems(self) -> None:
        """Raises OptionError: a line for each unknown option, invalid value and contradiction, in this order."""
        raise_problems(self._problems + self._contradictions)


@cache
def _options_with_effect(query: Query) -> CaseInsensitiveMap[Option]:
    """The options of a kind of queries by name. Spark makes a data source twice for each micro-batch that is written,
    and all options are many."""
    return CaseInsensitiveMap({name: option for name, option in OPTIONS.items() if option.queries & query})


@cache
def _defaults() -> Mapping[str, Any]:
    """The default values of all options by name."""
    return {name: option.default_value() for name, option in OPTIONS.items()}


def raise_problems(problems: Iterable[str]) -> None:
    """Raises OptionError with one line for each problem, if there is one."""
    if text := "\n".join(problems):
        raise OptionError(text)


def without_effectless(options: CaseInsensitiveMap[str], query: Query, place: str) -> CaseInsensitiveMap[str]:
    """The options without the known options that have no effect in `query`; a warning names each of these, once in a
    process.

    Args:
        place: the query for the warning.
    """
    known = _options_with_effect(query)
    others = [name for name in OPTIONS if name in options and name not in known]
    ignored = [*others, *(name for name in (CHECKPOINT_LOCATION,) if name in options)]
    for name in ignored:
        _warn_once(f"Option '{name}' has no effect in {place}")
    return CaseInsensitiveMap(options.without(*ignored))


@cache
def _warn_once(text: str) -> None:
    """Spark makes a data source for each query, and for each micro-batch that is written."""
    logger.warning("%s", text)
