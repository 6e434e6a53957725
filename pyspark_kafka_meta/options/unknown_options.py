"""Names of options: matched in any case, and the error text of an unknown name.

For options of other clients that have no effect here, the text says why, or what to use instead: refused_options.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import TypeVar

T = TypeVar("T")
REGISTRY = "schema.registry."


class CaseInsensitiveMap(Mapping[str, T]):
    """Values by name in any case, as in Spark's `CaseInsensitiveStringMap`. Iterates over the names as given."""

    def __init__(self, values: Mapping[str, T]) -> None:
        self._items = {name.lower(): (name, value) for name, value in values.items()}

    def __getitem__(self, name: str) -> T:
        return self._items[name.lower()][1]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def without(self, *names: str) -> dict[str, T]:
        dropped = {name.lower() for name in names}
        return {name: value for name, value in self.items() if name.lower() not in dropped}


def closest(name: str, names: Iterable[str], count: int, cutoff: float = 0.6) -> list[str]:
    """At most `count` of `names`, the most similar one first; `cutoff` is the least similarity, from 0 to 1."""
    import difflib  # only a misspelt name needs it

    by_lower_case = {candidate.lower(): candidate for candidate in names}
    return [by_lower_case[near] for near in difflib.get_close_matches(name.lower(), by_lower_case, count, cutoff)]


def unknown_option(name: str, known: Mapping[str, str]) -> str:
    """The error text of an unknown option: the reason, or similar names. Never the value, which may be a secret."""
    if not NAME.fullmatch(name):
        return (
            "The name of an option is invalid. It is not repeated, because it may be a secret: check the source of the "
            "options."
        )
    lower = name.lower()
    if (refusal := _kafka_refusal(lower) or _registry_refusal(lower)) is not None:
        return refusal
    prefixes = ("kafka.", REGISTRY)
    others = [*(prefix + lower for prefix in prefixes), *(lower.removeprefix(prefix) for prefix in prefixes)]
    same = next((known[other] for other in (*others, _SYNONYMS.get(lower, "")) if other in known), None)
    near = closest(name, known, count=1, cutoff=0.8) if same is None else [same]
    if near:
        return f"Unknown option '{name}'. Did you mean '{near[0]}'?"
    peers = [key for key in known if key.startswith("kafka.") == lower.startswith("kafka.")]
    return f"Unknown option '{name}'. The nearest are {', '.join(closest(name, peers or known, count=3, cutoff=0))}."


def _kafka_refusal(name: str) -> str | None:
    kafka_name = name.removeprefix("kafka.")
    if name in _REFUSED:
        return f"Kafka option '{kafka_name}' is not supported{_REFUSED[name]}"
    if (replacement := refused("librdkafka").get(kafka_name)) is not None:
        return f"Kafka option '{kafka_name}' is librdkafka's: use '{replacement}'."
    if kafka_name != name and (reason := _reason("kafka", kafka_name)):
        return f"Kafka option '{kafka_name}' is not supported: {reason}."
    return None


def _registry_refusal(name: str) -> str | None:
    """Of an option of Confluent's or Apicurio's registry clients."""
    own_name = name.removeprefix(REGISTRY)
    is_tls = own_name != name and own_name.startswith("ssl.")
    if is_tls and (replacement := refused("librdkafka").get(own_name)) is not None:
        return f"Option '{name}' is librdkafka's: use '{replacement.replace('kafka.', REGISTRY)}'."
    reason = _reason("confluent", name) or _reason("confluent", own_name)
    if is_tls:
        reason = reason or _reason("kafka", own_name)
    if own_name.startswith("request.header."):
        reason = "requests have no further headers"
    if name.startswith("apicurio."):
        reason = "use schema.registry.url, with Apicurio's Confluent API at /apis/ccompat/v7, and valueFraming"
    return None if reason is None else f"Option '{name}' of schema registry clients is not supported: {reason}."


def _reason(client: str, name: str) -> str | None:
    """Of the name itself, or of its family."""
    return next((reason for pattern, reason in refused(client).items() if fnmatchcase(name, pattern)), None)


@cache
def refused(client: str) -> Mapping[str, str]:
    """Sentence by name, or by pattern of a family, of the options of `kafka`, `librdkafka` or `confluent`."""
    import tomllib  # only an unknown name needs it
    from importlib.resources import files

    text = files("pyspark_kafka_meta.options").joinpath("refused_options.toml").read_text("utf-8")
    return {name: sentence for sentence, names in tomllib.loads(text)[client].items() for name in names}


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
