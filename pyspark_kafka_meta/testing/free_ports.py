"""Finds free ports of this machine."""

from __future__ import annotations

import itertools
import random
import socket

from pyspark_kafka_meta.testing.kafka_config import HOST

# Below the range of ephemeral ports: a client of a killed broker could otherwise get the broker's port as its own, and
# connect to itself.
_PORTS = range(20000, 29000)
# A port is returned again only after all others: until its process has started, nothing else shows that it is in use.
# Not the shared generator: processes with the same seed would choose the same ports.
_candidates = itertools.cycle(random.SystemRandom().sample(_PORTS, len(_PORTS)))


def free_ports(count: int) -> list[int]:
    free = (port for port in itertools.islice(_candidates, len(_PORTS)) if is_free(port))
    return [next(free) for _ in range(count)]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
