"""Validate values from options, checkpoints and broker responses.

Every function that returns the value raises ValueError for a bad one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, TypeVar

from pyspark_kafka_meta.model import TopicPartition

T = TypeVar("T")

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
    """Whether Kafka lets a topic have this name (`org.apache.kafka.common.internals.Topic`)."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def topic_name(name: str) -> str:
    """`name`, if it is one."""
    if not is_topic_name(name):
        raise ValueError(f"{name!r} is not a topic name")
    return name


def partition_key(key: str) -> int:
    """The partition that a JSON key names, written as Kafka writes it: no sign, no leading zero."""
    if _PARTITION_KEY.fullmatch(key) is None:
        raise ValueError(f"{key!r} is not a partition")
    return whole_number(int(key), 0, INT32_MAX)


def name_partitions(partitions: Collection[TopicPartition]) -> str:
    """The first ten by name and how many more there are, for error texts."""
    names = [str(partition) for partition in sorted(partitions)]
    return (", ".join(names[:10]) or "none") + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def some(values: tuple[T, ...]) -> tuple[T, ...]:
    """`values`, of which there must be one at least."""
    if not values:
        raise ValueError
    return values


def by_topic(text: str, *kinds: type[T]) -> dict[str, T]:
    """The JSON object in `text`: topics, and under each a value of one of `kinds`, not empty."""
    if not text.lstrip().startswith("{"):
        raise ValueError  # what a parser of JSON says of anything else helps nobody
    value = json.loads(text, object_pairs_hook=_unique)
    if not isinstance(value, dict) or not value or not all(isinstance(part, kinds) for part in value.values()):
        raise ValueError
    return {topic_name(topic): part for topic, part in value.items()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are unique: of two equal ones json.loads would silently keep the last."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name appears twice")
    return dict(pairs)
