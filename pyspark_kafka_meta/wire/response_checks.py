"""Check decoded responses of brokers.

A response may contain only requested topics and partitions, each once. Names, ids and offsets must be possible. A
violation raises `ProtocolError`: the response is not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.model import Address, Broker

_HOST = re.compile(r"[!-~]{1,255}")
_MAX_LABEL = 255

K = TypeVar("K")
V = TypeVar("V")


def broker(entry: Any) -> Broker:
    """A broker of a Metadata or Fetch response."""
    check(entry.node_id >= 0, "a broker id of %d", entry.node_id)
    check(_HOST.fullmatch(entry.host) is not None, "an impossible host name for broker %d", entry.node_id)
    check(0 < entry.port < 65536, "port %d for broker %d", entry.port, entry.node_id)
    return Broker(int(entry.node_id), Address(entry.host, int(entry.port)), label(entry.rack, "rack"))


def label(text: str | None, what: str) -> str | None:
    check(text is None or (len(text) <= _MAX_LABEL and text.isprintable()), f"an impossible {what}")
    return text


def grouped(items: Iterable[V], key: Callable[[V], K]) -> list[tuple[K, list[V]]]:
    groups: dict[K, list[V]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.items())


def unique(items: Iterable[V], key: Callable[[V], Any], what: str) -> tuple[V, ...]:
    found = tuple(items)
    check(len({key(item) for item in found}) == len(found), "the same %s twice", what)
    return found


def check(holds: bool, text: str, *values: object) -> None:
    if not holds:
        raise ProtocolError(f"a broker's response contains {text % values}: the response is dropped")


def ms(delta: timedelta) -> int:
    return delta // timedelta(milliseconds=1)
