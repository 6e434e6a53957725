"""How a table of options is written and read: a dataclass field is a row, its metadata are the columns.

A misspelt option is an error here, where Spark's `KafkaSourceProvider` ignores it; refusals are worded after Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap, closest
from pyspark_kafka_meta.options.option_parsers import parse_choice, parse_label, parse_number
from pyspark_kafka_meta.options.unsupported import INSTEAD, NO_SINK, UNUSED
from pyspark_kafka_meta.validators import INT32_MAX

MAX_SHOWN = 200
"""Characters of a value, or of what is wrong in it, in an error."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row.

    Attributes:
        name: as documented; matched without regard to case.
        default: as a user would write it; None where there is none or the kind of query decides.
        parse: text to value; raises ValueError, with the part that is wrong where there are parts.
        error: said when `parse` raises; `{value}` stands for the text.
        doc: one line for the documentation.
    """

    name: str
    default: str | None
    parse: Callable[[str], Any]
    error: str
    doc: str

    def value(self, text: str) -> Any:
        """The value that `text` means. Raises OptionError."""
        try:
            return self.parse(text)
        except (ValueError, RecursionError) as error:
            detail = f" ({_shortened(str(error))})" if str(error) else ""
            raise OptionError(self.error.replace("{value}", _shortened(text)) + detail) from None


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def row(name: str, default: str | None, parse: Callable[[str], Any], error: str, doc: str) -> Any:
    return field(metadata={"option": Option(name, default, parse, error, doc)})


def whole(name: str, default: str | None, doc: str, low: int = 0, high: int = INT32_MAX) -> Any:
    """An option that is a whole number from `low` to `high`, both included."""
    error = f"Option '{name}' must be a whole number from {low} to {high}, got '{{value}}'"
    return row(name, default, partial(parse_number, low=low, high=high), error, doc)


def choice(name: str, choices: Mapping[str, Any], doc: str) -> Any:
    """An option that is one of the keys of `choices`, the first by default; the field gets the value beside it."""
    error = f"Option '{name}' must be {' or '.join(choices)}, got '{{value}}'"
    return row(name, next(iter(choices)), partial(parse_choice, values=choices), error, doc)


def label(name: str, doc: str, default: str | None = None) -> Any:
    """An option that is a name."""
    error = f"Option '{name}' must be at most 255 printable characters"
    return row(name, default, parse_label, error, doc)


def table_of(dataclass_type: type) -> dict[str, Option]:
    """The rows of a dataclass, by field."""
    return {each.name: each.metadata["option"] for each in fields(dataclass_type) if each.metadata}


def documented_names(table: Mapping[str, Option]) -> CaseInsensitiveMap[str]:
    """The name of each option as documented, by its name in any case."""
    return CaseInsensitiveMap({option.name: option.name for option in table.values()})


def read(options: CaseInsensitiveMap[str], table: Mapping[str, Option]) -> tuple[dict[str, Any], list[str]]:
    """Returns the value of each field (None: neither given nor defaulted), and one sentence for each thing wrong."""
    known = documented_names(table)
    problems = [_unknown(name, known) for name in options if name not in known]
    values: dict[str, Any] = {}
    for field_name, option in table.items():
        text = options.get(option.name, option.default)
        try:
            values[field_name] = None if text is None else option.value(text)
        except OptionError as error:
            problems.append(str(error))
    return values, problems


NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")
"""What the name of an option may be. Torn out of a file of properties, say, another may be part of a key or a password,
and is not repeated."""
_REFUSED = {
    "kafka.auto.offset.reset": ". Instead set the source option 'startingOffsets' to 'earliest' or 'latest' to specify "
    "where to start. It applies to a new query only; a restarted one goes on where its checkpoint says.",
    "kafka.key.deserializer": " as keys are deserialized as byte arrays. Use DataFrame operations to explicitly "
    "deserialize the keys.",
    "kafka.value.deserializer": " as values are deserialized as byte arrays. Use DataFrame operations to explicitly "
    "deserialize the values.",
}


def _unknown(name: str, known: Mapping[str, str]) -> str:
    """Why there is no option of this name, which one was meant, or which are the nearest. Never its value, which may be
    a secret."""
    if not NAME.fullmatch(name):
        return (
            "An option has a name that no option can have, and is not repeated here: check where the options come from."
        )
    lower = name.lower()
    kafka_name = lower.removeprefix("kafka.")
    if lower in _REFUSED:
        return f"Kafka option '{kafka_name}' is not supported{_REFUSED[lower]}"
    if kafka_name in INSTEAD:
        return f"Kafka option '{kafka_name}' is librdkafka's: use '{INSTEAD[kafka_name]}'."
    why = UNUSED.get(kafka_name)
    if kafka_name != lower and why is not None:
        return f"Kafka option '{kafka_name}' is not supported: {why}."
    if lower in ("topic", "topics"):
        return f"Unknown option '{name}': {NO_SINK}. To read topics, set 'subscribe'."
    if lower == "checkpointlocation":
        return f"Unknown option '{name}', which goes with the sink, on writeStream: {NO_SINK}."
    prefixed = f"kafka.{lower}"
    near = [known[prefixed]] if prefixed in known else closest(name, known, count=1, cutoff=0.8)
    if near:
        return f"Unknown option '{name}'. Did you mean '{near[0]}'?"
    peers = [key for key in known if key.startswith("kafka.") == lower.startswith("kafka.")]
    return f"Unknown option '{name}'. The nearest are {', '.join(closest(name, peers or known, count=3, cutoff=0))}."
