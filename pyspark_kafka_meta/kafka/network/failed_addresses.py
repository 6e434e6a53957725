"""`FailedAddresses`: which address of a host name failed last. The next connection to the name begins after it.

Without this, each connection begins with the address that the resolver names first, which may accept connections and
stay silent, or lose all packets. Follows `client.dns.lookup=use_all_dns_ips` of Kafka's `ClusterConnectionStates`,
which moves on to the next address after a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from pyspark_kafka_meta.model import Address

Candidate: TypeAlias = tuple[int, Any]
"""A socket family and an address of a host, as `socket.connect` takes it."""

MAX_NAMES = 1_000


class FailedAddresses:
    """Of one client, whose threads open connections: no method leaves it in between two states."""

    def __init__(self) -> None:
        self._last: dict[Address, Candidate] = {}

    def __len__(self) -> int:
        return len(self._last)

    def add(self, name: Address, failed: Candidate) -> None:
        """Take an address that refused a connection, or did not respond, or not as a broker does."""
        if len(self._last) >= MAX_NAMES:
            self._last.clear()
        self._last[name] = failed

    def in_order(self, name: Address, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The addresses of a name, as the resolver returns them, in the order to try them. An address that works stays
        first."""
        failed = self._last.get(name)
        after = next((index + 1 for index, candidate in enumerate(candidates) if candidate == failed), 0)
        return [*candidates[after:], *candidates[:after]]
