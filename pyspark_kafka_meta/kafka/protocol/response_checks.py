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
from pyspark_kafka_meta.model import Address, Broker, LeaderHint

_HOST = re.compile(r"[!-~]{1,255}")
_MAX_TEXT = 255
_MAX_PRINTED = 500

K = TypeVar("K")
V = TypeVar("V")


def broker(entry: Any) -> Broker:
    """A broker of a response to Metadata, Fetch, Produce or FindCoordinator; the last names no rack."""
    check(entry.node_id >= 0, "a broker id of %d", entry.node_id)
    check(_HOST.fullmatch(entry.host) is not None, "an impossible host name for broker %d", entry.node_id)
    check(0 < entry.port < 65536, "port %d for broker %d", entry.port, entry.node_id)
    return Broker(
        int(entry.node_id), Address(entry.host, int(entry.port)), checked_text(getattr(entry, "rack", None), "rack")
    )


def checked_text(text: str | None, what: str) -> str | None:
    check(text is None or (len(text) <= _MAX_TEXT and text.isprintable()), f"an impossible {what}")
    return text


def printable(text: str) -> str:
    """The text of a broker for an error or a log: shortened, with an escape for each unprintable character."""
    return repr(text[:_MAX_PRINTED])[1:-1]


def endpoints(message: Any) -> dict[int, Broker]:
    """The brokers of the leader hints of a response, by node id (KIP-951)."""
    return {known.node_id: known for known in map(broker, getattr(message, "node_endpoints", ()))}


def leader_hint(leader: Any, known: dict[int, Broker]) -> LeaderHint | None:
    """The leader that a response names for a partition, with its address if `known` has it."""
    if leader.leader_id < 0:
        return None
    check(leader.leader_epoch >= -1, "a leader epoch of %d", leader.leader_epoch)
    return LeaderHint(int(leader.leader_id), int(leader.leader_epoch), known.get(leader.leader_id))


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
        raise ProtocolError(f"a broker's response contains {printable(text % values)}: the response is dropped")


def ms(delta: timedelta) -> int:
    return delta // timedelta(milliseconds=1)
