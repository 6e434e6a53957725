"""Rules that every answer of a broker has to meet.

An answer may hold only what was asked for, each thing once; names, ids and offsets must be possible. What breaks a rule
is a `ProtocolError`, never a value passed on.
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


def broker(told: Any) -> Broker:
    """A broker, as Metadata and Fetch answers name them."""
    check(told.node_id >= 0, "a broker id of %d", told.node_id)
    check(_HOST.fullmatch(told.host) is not None, "an impossible host name for broker %d", told.node_id)
    check(0 < told.port < 65536, "port %d for broker %d", told.port, told.node_id)
    return Broker(int(told.node_id), Address(told.host, int(told.port)), label(told.rack, "rack"))


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
        raise ProtocolError(f"a broker's answer names {text % values}: the answer is dropped")


def ms(delta: timedelta) -> int:
    return delta // timedelta(milliseconds=1)
