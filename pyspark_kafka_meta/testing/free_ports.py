"""Free ports of this machine."""

from __future__ import annotations

import random
import socket

from pyspark_kafka_meta.testing.kafka_config import HOST

# Below the range from which systems pick ports for outgoing connections: a client of a killed broker could otherwise be
# given the very port that it connects to, and so be connected to itself.
_FREE_PORTS = range(20000, 29000)


def free_ports(count: int) -> list[int]:
    # Not the shared generator: processes that seed it alike would choose alike.
    candidates = random.SystemRandom().sample(_FREE_PORTS, len(_FREE_PORTS))
    free = (port for port in candidates if is_free(port))
    return [next(free) for _ in range(count)]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
