"""Checks of values from options, checkpoints and responses. A check returns the value or raises ValueError."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

T = TypeVar("T")

INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION_KEY = re.compile(r"0|[1-9][0-9]{0,9}")


def whole_number(value: object, low: int, high: int) -> int:
    """`value`, an int (not a bool) from `low` to `high`, both included."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r} is not a whole number from {low} to {high}")
    return value


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows the topic name (`org.apache.kafka.common.internals.Topic`)."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def topic_name(name: str) -> str:
    if not is_topic_name(name):
        raise ValueError(f"{name!r} is not a topic name")
    return name


def partition_key(key: str) -> int:
    """The partition number of a JSON key: no sign, no leading zero."""
    if _PARTITION_KEY.fullmatch(key) is None:
        raise ValueError(f"{key!r} is not a partition")
    return whole_number(int(key), 0, INT32_MAX)


def non_empty(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise ValueError
    return values


def json_by_topic(text: str, *types: type[T]) -> dict[str, T]:
    """A non-empty JSON object whose names are topics and whose values have one of `types`."""
    if not text.lstrip().startswith("{"):
        raise ValueError  # without the message of the JSON parser, which does not help a user
    topics = json.loads(text, object_pairs_hook=_unique_names)
    if not isinstance(topics, dict) or not topics or not all(isinstance(value, types) for value in topics.values()):
        raise ValueError
    return {topic_name(topic): value for topic, value in topics.items()}


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without duplicate names: json.loads would silently keep the last value."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name appears twice")
    return dict(pairs)
