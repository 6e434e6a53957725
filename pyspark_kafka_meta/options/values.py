"""Checked values out of text and JSON that others wrote: what options and checkpoints are made of.

Every function here raises ValueError for what it cannot take, and says which part is wrong where there are parts.
"""

from __future__ import annotations

import difflib
import json
import re
import warnings
from collections.abc import Collection, Mapping
from ipaddress import IPv6Address
from typing import Any, TypeVar
from urllib.parse import unquote

from pyspark_kafka_meta.metadata.model import Address, TopicPartition

T = TypeVar("T")

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION_KEY = re.compile(r"0|[1-9][0-9]{0,9}")
_REMOTE_SCHEME = re.compile(r"s3|gs|gcs|abfss?|hdfs|viewfs|hf|fsspec\+.+")
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


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


def parse_number(text: str, low: int, high: int) -> int:
    if re.fullmatch(r"-?[0-9]{1,20}", text.strip()) is None or not low <= int(text) <= high:
        raise ValueError
    return int(text)


def parse_choice(text: str, values: Mapping[str, Any]) -> Any:
    """What `values` has under `text`, without regard to case."""
    words, word = {each.lower(): each for each in values}, text.strip().lower()
    if word not in words:
        near = difflib.get_close_matches(word, words, n=1)
        raise ValueError(f"did you mean '{words[near[0]]}'?" if near else "")
    return values[words[word]]


def parse_duration_ms(text: str) -> int:
    """Milliseconds, or a number with a unit as Spark writes them: `100ms`, `30s`, `15m`, `15min`, `1h`, `2d`."""
    match = re.fullmatch(r"([0-9]{1,12})([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS_MS:
        raise ValueError
    return int(match[1]) * _UNITS_MS[match[2]]


def parse_group(text: str) -> str:
    """The name of a consumer group, not empty."""
    if not text.strip():
        raise ValueError
    return parse_label(text.strip())


def parse_label(text: str) -> str:
    """At most 255 printable characters."""
    if not text.isprintable() or len(text) > 255:
        raise ValueError
    return text


def parse_location(text: str) -> str:
    """A local path, which a `file:` URI becomes too, or a URI that `pyarrow.fs.FileSystem.from_uri` knows."""
    location = text.strip()
    scheme, colon, rest = location.partition(":")
    if not colon or re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme) is None:
        return _local_path(location)
    if scheme == "file":
        if re.match(r"(//)?/(?!/)", rest) is None:
            raise ValueError("a folder of this machine is file:///folder, without a host, or /folder")
        return _local_path(unquote(rest.removeprefix("//")))
    if scheme in ("s3a", "s3n"):
        raise ValueError(f"write s3:// for {scheme}://")
    if _REMOTE_SCHEME.fullmatch(scheme) is None:
        raise ValueError(
            "pyarrow has no file system of that scheme, but s3, gs, gcs, abfs, abfss, hdfs, viewfs, hf and fsspec+...; "
            "one that is mounted is named by its path, and a folder with such a name by ./ before it"
        )
    if re.fullmatch(r"//\S+", rest) is None:
        raise ValueError
    return location


def _local_path(text: str) -> str:
    if not text or "://" in text or "\0" in text:
        raise ValueError
    return text


def parse_addresses(text: str) -> tuple[Address, ...]:
    """`host:port,[ipv6]:port`, each address once, in the order given."""
    if "@" in text:  # what stands before it may be a password
        raise ValueError("an address has no login in it: kafka.sasl.username and kafka.sasl.password are for that")
    return some(tuple(dict.fromkeys(_address(item.strip()) for item in text.split(",") if item.strip())))


def parse_topics(text: str) -> tuple[str, ...]:
    """`topic,topic`, each once, in the order given."""
    return some(tuple(dict.fromkeys(topic_name(name.strip()) for name in text.split(",") if name.strip())))


def parse_pattern(text: str) -> str:
    """A regular expression that means the same in Java, where Python reads it at all: sets within sets do not."""
    if not text.strip():
        raise ValueError("Pattern to subscribe is empty")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        try:
            re.compile(text)
        except (re.error, FutureWarning, OverflowError) as error:
            raise ValueError(str(error)) from None
    return text


def parse_assigned(text: str) -> tuple[TopicPartition, ...]:
    """JSON `{"topic": [0, 1]}`, sorted, each partition once."""
    numbers = [(topic, number) for topic, numbers in by_topic(text, list).items() for number in numbers]
    return some(tuple(sorted({TopicPartition(topic, whole_number(number, 0, INT32_MAX)) for topic, number in numbers})))


def name_partitions(partitions: Collection[TopicPartition]) -> str:
    """The first ten by name and how many more there are, for error texts."""
    names = [str(partition) for partition in sorted(partitions)]
    return (", ".join(names[:10]) or "none") + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def some(values: tuple[T, ...]) -> tuple[T, ...]:
    """`values`, of which there must be one at least."""
    if not values:
        raise ValueError
    return values


def _address(item: str) -> Address:
    # Kafka's `Utils.getHost` passes over a protocol, too.
    match = re.fullmatch(r"(?:[A-Za-z0-9%._-]*://)?(?:\[([^]]+)]|([A-Za-z0-9._-]+)):([0-9]{1,5})", item)
    if match is None:
        raise ValueError(f"{item!r} is not one")
    ipv6, host, port = match.groups()
    return Address(str(IPv6Address(ipv6)) if ipv6 else host, whole_number(int(port), 1, 65535))


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
