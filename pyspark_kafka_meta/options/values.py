"""Checked values out of text and JSON that others wrote: what options and checkpoints are made of.

Every function here raises ValueError for what it cannot take, and says which part is wrong where there are parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Any, TypeVar

from pyspark_kafka_meta.metadata.model import Address, TopicPartition

T = TypeVar("T")

EARLIEST_OFFSET = -2
"""In an offsets option: the first offset that the log still holds."""
LATEST_OFFSET = -1
"""In an offsets option: the end of the log when the query is planned."""
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class OffsetsSpec:
    """Where to begin or to end, as the user put it.

    Attributes:
        everywhere: `EARLIEST_OFFSET` or `LATEST_OFFSET` for every partition; None when given by partition.
        by_partition: sorted (partition, offset) pairs; an offset may be one of the two above.
    """

    everywhere: int | None = None
    by_partition: tuple[tuple[TopicPartition, int], ...] = ()


def whole_number(value: object, low: int, high: int) -> int:
    """`value`, an int (not a bool) from `low` to `high`, both included."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r} is not a whole number from {low} to {high}")
    return value


def topic_name(name: str) -> str:
    """`name`, if Kafka lets a topic have it (`org.apache.kafka.common.internals.Topic`)."""
    if re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) is None or name in (".", ".."):
        raise ValueError(f"{name!r} is not a topic name")
    return name


def partition_key(key: str) -> int:
    """The partition that a JSON key names, written as Kafka writes it: no sign, no leading zero."""
    if re.fullmatch(r"0|[1-9][0-9]{0,9}", key) is None:
        raise ValueError(f"{key!r} is not a partition")
    return whole_number(int(key), 0, INT32_MAX)


def parse_number(text: str, low: int, high: int) -> int:
    if re.fullmatch(r"-?[0-9]{1,20}", text.strip()) is None or not low <= int(text) <= high:
        raise ValueError
    return int(text)


def parse_choice(text: str, values: Mapping[str, Any]) -> Any:
    """What `values` has under `text`, in lower case."""
    if text.strip().lower() not in values:
        raise ValueError
    return values[text.strip().lower()]


def parse_label(text: str) -> str:
    """At most 255 printable characters."""
    if not text.isprintable() or len(text) > 255:
        raise ValueError
    return text


def parse_location(text: str) -> str:
    """A folder, or a URI with something behind its scheme."""
    if not text.strip() or ("://" in text and re.fullmatch(r"[a-z][a-z0-9+.-]*://\S+", text) is None):
        raise ValueError
    return text


def parse_addresses(text: str) -> tuple[Address, ...]:
    """`host:port,[ipv6]:port`, each address once, in the order given."""
    return _some(tuple(dict.fromkeys(_address(item.strip()) for item in text.split(",") if item.strip())))


def parse_topics(text: str) -> tuple[str, ...]:
    """`topic,topic`, each once, in the order given."""
    return _some(tuple(dict.fromkeys(topic_name(name.strip()) for name in text.split(",") if name.strip())))


def parse_assigned(text: str) -> tuple[TopicPartition, ...]:
    """JSON `{"topic": [0, 1]}`, sorted, each partition once."""
    numbers = [(topic, number) for topic, numbers in _by_topic(text, list).items() for number in numbers]
    return _some(
        tuple(sorted({TopicPartition(topic, whole_number(number, 0, INT32_MAX)) for topic, number in numbers}))
    )


def parse_offsets(text: str) -> OffsetsSpec:
    """`earliest`, `latest`, or JSON `{"topic": {"0": 23, "1": -1}}`."""
    word = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}.get(text.strip().lower())
    if word is not None:
        return OffsetsSpec(word)
    offsets = {
        TopicPartition(topic, partition_key(key)): whole_number(offset, EARLIEST_OFFSET, INT64_MAX)
        for topic, partitions in _by_topic(text, dict).items()
        for key, offset in partitions.items()
    }
    return OffsetsSpec(by_partition=_some(tuple(sorted(offsets.items()))))


def name_partitions(partitions: Collection[TopicPartition]) -> str:
    """The first ten by name and how many more there are, for error texts."""
    names = [str(partition) for partition in sorted(partitions)]
    return (", ".join(names[:10]) or "none") + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _some(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise ValueError
    return values


def _address(item: str) -> Address:
    match = re.fullmatch(r"(?:\[([^]]+)]|([A-Za-z0-9._-]+)):([0-9]{1,5})", item)
    if match is None:
        raise ValueError(f"{item!r} is not one")
    ipv6, host, port = match.groups()
    return Address(str(IPv6Address(ipv6)) if ipv6 else host, whole_number(int(port), 1, 65535))


def _by_topic(text: str, kind: type[T]) -> dict[str, T]:
    """The JSON object in `text`: topics, and under each a `kind` (list or dict)."""
    value = json.loads(text, object_pairs_hook=_unique)
    if not isinstance(value, dict) or not all(isinstance(part, kind) for part in value.values()):
        raise ValueError
    return {topic_name(topic): part for topic, part in value.items()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are unique: of two equal ones json.loads would silently keep the last."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name appears twice")
    return dict(pairs)
