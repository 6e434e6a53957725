"""Tables of options: a field of a dataclass is a row, its metadata are the columns.

An unknown option is an error, while Spark's `KafkaSourceProvider` ignores it. Error texts follow Spark's. A known
option without effect is a warning: people share the options of a cluster among reads, writes and tables.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, partial
from typing import Any, TypeVar

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.model import shortened
from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap, closest
from pyspark_kafka_meta.options.parsers import parse_choice, parse_label, parse_number
from pyspark_kafka_meta.options.unsupported_properties import REPLACEMENTS, UNSUPPORTED
from pyspark_kafka_meta.validators import INT32_MAX

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Option:
    """An option.

    Attributes:
        name: as documented; matched in any case.
        default: as text; None if there is no default or it depends on the kind of query.
        parse: converts the text; raises ValueError with the invalid part.
        error: error text of an invalid value; `{value}` is replaced by the text.
        doc: description in the documentation.
    """

    name: str
    default: str | None
    parse: Callable[[str], Any]
    error: str
    doc: str

    def value(self, text: str) -> Any:
        """Parses `text`. Raises OptionError."""
        try:
            return self.parse(text)
        except (ValueError, RecursionError) as error:
            detail = f" ({shortened(str(error))})" if str(error) else ""
            raise OptionError(self.error.replace("{value}", shortened(text)) + detail) from None


def row(name: str, default: str | None, parse: Callable[[str], Any], error: str, doc: str) -> Any:
    return field(metadata={"option": Option(name, default, parse, error, doc)})


def whole(name: str, default: str | None, doc: str, low: int = 0, high: int = INT32_MAX) -> Any:
    """An option whose value is a whole number from `low` to `high`, both inclusive."""
    error = f"Option '{name}' must be a whole number from {low} to {high}, got '{{value}}'"
    return row(name, default, partial(parse_number, low=low, high=high), error, doc)


def choice(name: str, choices: Mapping[str, Any], doc: str) -> Any:
    """An option whose value is a key of `choices`, by default the first; the field has the value of that key."""
    error = f"Option '{name}' must be {' or '.join(choices)}, got '{{value}}'"
    return row(name, next(iter(choices)), partial(parse_choice, values=choices), error, doc)


def label(name: str, doc: str, default: str | None = None) -> Any:
    """An option whose value is a name."""
    error = f"Option '{name}' must be at most 255 printable characters"
    return row(name, default, parse_label, error, doc)


def table_of(dataclass_type: type) -> dict[str, Option]:
    """The options of a dataclass by field."""
    return {field.name: field.metadata["option"] for field in fields(dataclass_type) if field.metadata}


def documented_names(table: Mapping[str, Option]) -> CaseInsensitiveMap[str]:
    """The name of each option as documented, by its name in any case."""
    return CaseInsensitiveMap({option.name: option.name for option in table.values()})


def parse_options(options: Mapping[str, str], table: Mapping[str, Option]) -> tuple[dict[str, Any], list[str]]:
    """Returns the value of each field (None without value and default), and a sentence for each problem.

    Args:
        options: by name in any case.
    """
    options, known = CaseInsensitiveMap(options), documented_names(table)
    problems = [_unknown(name, known) for name in options if name not in known]
    values: dict[str, Any] = {}
    for field_name, option in table.items():
        text = options.get(option.name, option.default)
        try:
            values[field_name] = None if text is None else option.value(text)
        except OptionError as error:
            problems.append(str(error))
    return values, problems


def with_effect(options: CaseInsensitiveMap[str], others: Mapping[str, str], place: str) -> CaseInsensitiveMap[str]:
    """The options without those that only `others` has; a warning names each of these, once in a process.

    Args:
        others: documented names, by name in any case.
        place: where the options have no effect.
    """
    ignored = [others[name] for name in options if name in others]
    for name in ignored:
        _warn_once(f"Option '{name}' has no effect {place}")
    return CaseInsensitiveMap(options.without(*ignored))


@cache
def _warn_once(text: str) -> None:
    """Spark makes a data source for each query, and for each micro-batch that is written."""
    logger.warning("%s", text)


def taken(kind: type[T], parsed: dict[str, Any]) -> T:
    """The dataclass of these values by field, which are removed from `parsed`."""
    return kind(**{field.name: parsed.pop(field.name) for field in fields(kind)})  # type: ignore[arg-type]


NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")
"""A possible name of an option. Any other text is not repeated in errors: it may be part of a key or a password, for
example in a broken properties file."""
_REFUSED = {
    "kafka.auto.offset.reset": ". Instead set the source option 'startingOffsets' to 'earliest' or 'latest' to specify "
    "where to start. It applies to new queries only; a restarted query continues from its checkpoint.",
    "kafka.key.deserializer": " as keys are deserialized as byte arrays. Use DataFrame operations to explicitly "
    "deserialize the keys.",
    "kafka.key.serializer": " as keys are serialized with ByteArraySerializer. Use DataFrame operations to serialize "
    "the keys to string or binary.",
    "kafka.value.serializer": " as values are serialized with ByteArraySerializer. Use DataFrame operations to "
    "serialize the values to string or binary.",
    "kafka.value.deserializer": " as values are deserialized as byte arrays. Use DataFrame operations to explicitly "
    "deserialize the values.",
}


_SYNONYMS = {"topics": "subscribe"}


def _unknown(name: str, known: Mapping[str, str]) -> str:
    """The error text of an unknown option: the reason, or similar names. Never the value, which may be a secret."""
    if not NAME.fullmatch(name):
        return (
            "The name of an option is invalid. It is not repeated, because it may be a secret: check the source of the "
            "options."
        )
    lower = name.lower()
    kafka_name = lower.removeprefix("kafka.")
    if lower in _REFUSED:
        return f"Kafka option '{kafka_name}' is not supported{_REFUSED[lower]}"
    if kafka_name in REPLACEMENTS:
        return f"Kafka option '{kafka_name}' is librdkafka's: use '{REPLACEMENTS[kafka_name]}'."
    reason = UNSUPPORTED.get(kafka_name)
    if kafka_name != lower and reason is not None:
        return f"Kafka option '{kafka_name}' is not supported: {reason}."
    prefixed = f"kafka.{lower}"
    same = next((known[other] for other in (prefixed, _SYNONYMS.get(lower, "")) if other in known), None)
    near = closest(name, known, count=1, cutoff=0.8) if same is None else [same]
    if near:
        return f"Unknown option '{name}'. Did you mean '{near[0]}'?"
    peers = [key for key in known if key.startswith("kafka.") == lower.startswith("kafka.")]
    return f"Unknown option '{name}'. The nearest are {', '.join(closest(name, peers or known, count=3, cutoff=0))}."
