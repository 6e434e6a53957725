"""Parsers of option values. A parser raises ValueError for an invalid text, and names the invalid part.

And `Secret`, the value of a password, which no text shows.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Any, TypeVar
from urllib.parse import unquote

from pyspark_kafka_meta.model import Address, TopicPartition
from pyspark_kafka_meta.options.unknown_options import CaseInsensitiveMap, closest
from pyspark_kafka_meta.value_checks import INT32_MAX, json_by_topic, non_empty, topic_name, whole_number

T = TypeVar("T")

_REMOTE_SCHEME = re.compile(r"s3|gs|gcs|abfss?|hdfs|viewfs|hf|fsspec\+.+")
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


HIDDEN = "[hidden]"
"""Displayed for a secret, as in Kafka's `Password`."""


class Secret:
    """A password, token or key. Only `reveal` returns the text. It is pickled, because Spark sends the options to
    workers. Not a dataclass, whose text `asdict` would return."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__


def parse_text(text: str) -> str:
    """Any text but blanks."""
    if not text.strip():
        raise ValueError
    return text


def parse_word(text: str, pattern: str) -> str:
    """A text that the pattern matches as a whole, without the blanks around it."""
    word = text.strip()
    if re.fullmatch(pattern, word) is None:
        raise ValueError
    return word


def parse_secret(text: str) -> Secret:
    return Secret(parse_text(text))


def parse_number(text: str, low: int, high: int) -> int:
    if re.fullmatch(r"-?[0-9]{1,20}", text.strip()) is None or not low <= int(text) <= high:
        raise ValueError
    return int(text)


def parse_choice(text: str, values: Mapping[str, Any]) -> Any:
    """The value of the choice `text`, in any case."""
    word, choices = text.strip(), CaseInsensitiveMap(values)
    if word not in choices:
        near = closest(word, choices, count=1)
        raise ValueError(f"did you mean '{near[0]}'?" if near else "")
    return choices[word]


def parse_acks(text: str) -> int:
    """-1 for all in-sync replicas."""
    if text.strip() == "0":
        raise ValueError("without acknowledgements a task does not know whether its rows were written")
    acks: int = parse_choice(text, {"all": -1, "-1": -1, "1": 1})
    return acks


def parse_duration_ms(text: str) -> int:
    """Milliseconds, or a number with a unit as in Spark: `100ms`, `30s`, `15m`, `15min`, `1h`, `2d`."""
    match = re.fullmatch(r"([0-9]{1,12})([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS_MS:
        raise ValueError
    return int(match[1]) * _UNITS_MS[match[2]]


def parse_placeholder(text: str) -> bytes:
    """The bytes of any text, or of `hex:` and their digits, as Debezium's
    `PostgresConnectorConfig.getUnavailableValuePlaceholder` has them."""
    if not text.startswith("hex:"):
        return parse_text(text).encode()
    return bytes.fromhex(parse_word(text.removeprefix("hex:"), "([0-9a-fA-F]{2})+"))


def parse_id(text: str) -> str:
    """An id of at most 255 printable characters, not empty."""
    return parse_short_text(parse_text(text).strip())


def parse_short_text(text: str) -> str:
    """At most 255 printable characters."""
    if not text.isprintable() or len(text) > 255:
        raise ValueError
    return text


def parse_location(text: str) -> str:
    """A local path, also from a `file:` URI, or a URI of `pyarrow.fs.FileSystem.from_uri`."""
    location = text.strip()
    scheme, colon, rest = location.partition(":")
    if not colon or re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme) is None:
        return _local_path(location)
    if scheme == "file":
        if re.match(r"(//)?/(?!/)", rest) is None:
            raise ValueError("a local folder is file:///folder, without a host, or /folder")
        return _local_path(unquote(rest.removeprefix("//")))
    if scheme in ("s3a", "s3n"):
        raise ValueError(f"write s3:// for {scheme}://")
    if _REMOTE_SCHEME.fullmatch(scheme) is None:
        raise ValueError(
            "pyarrow has no file system of that scheme, but s3, gs, gcs, abfs, abfss, hdfs, viewfs, hf and fsspec+...; "
            "use the path of a mounted file system, and ./ before a folder with such a name"
        )
    if re.fullmatch(r"//\S+", rest) is None:
        raise ValueError
    return location


def _local_path(text: str) -> str:
    if not text or "://" in text or "\0" in text:
        raise ValueError
    return text


def parse_addresses(text: str) -> tuple[Address, ...]:
    """`host:port,[ipv6]:port` in the given order, without duplicates."""
    if "@" in text:  # a password may precede it
        raise ValueError("an address must have no login: use kafka.sasl.username and kafka.sasl.password")
    return non_empty(tuple(dict.fromkeys(_address(item.strip()) for item in text.split(",") if item.strip())))


def parse_topics(text: str) -> tuple[str, ...]:
    """`topic,topic` in the given order, without duplicates."""
    return non_empty(tuple(dict.fromkeys(topic_name(name.strip()) for name in text.split(",") if name.strip())))


def parse_pattern(text: str) -> str:
    """A regular expression with the same meaning in Java and Python: nested sets are refused."""
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
    """JSON `{"topic": [0, 1]}`, sorted, without duplicates."""
    numbers = [(topic, number) for topic, numbers in json_by_topic(text, list).items() for number in numbers]
    return non_empty(
        tuple(sorted({TopicPartition(topic, whole_number(number, 0, INT32_MAX)) for topic, number in numbers}))
    )


def parse_topic_config(text: str) -> tuple[tuple[str, str], ...]:
    """JSON `{"retention.ms": -1, "cleanup.policy": "compact"}`, sorted."""
    settings = json.loads(text) if text.lstrip().startswith("{") else None
    if not isinstance(settings, dict) or not all(isinstance(value, str | int | float) for value in settings.values()):
        raise ValueError
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    return tuple(sorted(texts.items()))


def _address(item: str) -> Address:
    # Kafka's `Utils.getHost` ignores a protocol too.
    match = re.fullmatch(r"(?:[A-Za-z0-9%._-]*://)?(?:\[([^]]+)]|([A-Za-z0-9._-]{1,253})):([0-9]{1,5})", item)
    if match is None:
        raise ValueError(f"{item!r} is not an address")
    ipv6, host, port = match.groups()
    return Address(str(IPv6Address(ipv6)) if ipv6 else host, whole_number(int(port), 1, 65535))
