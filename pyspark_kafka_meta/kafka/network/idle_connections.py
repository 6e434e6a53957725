"""`IdleConnections`: open connections without a request in flight, which the kinds of requests of a client share.

Brokers limit the connections of a host (`max.connections.per.ip`): a client has as many to a broker as it has requests
of different kinds in flight at a time, not one for each kind.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark_kafka_meta.kafka.network.connection import Connection
from pyspark_kafka_meta.model import Address


class IdleConnections:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._by_address: dict[Address, list[Connection]] = {}

    def take(self, address: Address) -> Connection | None:
        """The connection that was used last, if its broker has not closed it."""
        idle = self._by_address.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        return None

    def put(self, connection: Connection) -> None:
        self._by_address.setdefault(connection.address, []).append(connection)

    def close_except(self, addresses: Collection[Address]) -> None:
        """Close the connections to all other addresses."""
        for address in self._by_address.keys() - set(addresses):
            for connection in self._by_address.pop(address):
                connection.close()
