"""`ClientPool`: keeps the clients of a Python worker between tasks and micro-batches, and closes unused clients.

Spark gives a worker tasks of any query. Follows Spark's `InternalKafkaConsumerPool`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark_kafka_meta.errors import OtherClusterError
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin
from pyspark_kafka_meta.options import ClientOptions, MetricsOptions

MAX_CLIENTS = 8
"""The pool keeps more only while tasks use them all."""

ClientKey = tuple[int, ClientOptions, MetricsOptions | None]
"""Process id, options of the connections, and where the events go."""


@dataclass(slots=True)
class _Entry:
    client: KafkaClient
    users: int = 0
    idle_since: float = 0.0


class ClientPool:
    """The clients of one worker. Not thread-safe, as a worker runs one task at a time. A forked child does not use its
    parent's clients.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[ClientKey, _Entry] = {}  # in the order of their last use

    @contextmanager
    def client(self, options: ClientOptions, metrics: MetricsOptions | None, origin: Origin) -> Iterator[KafkaClient]:
        """The client for these options, kept or new, for one task."""
        key = (os.getpid(), options, metrics)
        entry = self._entries.pop(key, None)
        self._close_unused()
        if entry is None:
            entry = _Entry(KafkaClient(options, new_publisher(metrics, origin)))
        self._entries[key] = entry
        entry.users += 1
        entry.client.publisher.origin = origin
        try:
            yield entry.client
        except OtherClusterError:
            # The next attempt uses the cluster that its addresses lead to by then.
            self._entries.pop(key, None)
            entry.client.close()
            raise
        finally:
            entry.client.publisher.flush()
            entry.users -= 1
            entry.idle_since = self._clock()

    def _close_unused(self) -> None:
        """Close clients idle for metadata.max.age.ms, and the longest idle above `MAX_CLIENTS`."""
        now, pid = self._clock(), os.getpid()
        idle = [key for key, entry in self._entries.items() if key[0] == pid and entry.users == 0]
        too_many = len(self._entries) - (MAX_CLIENTS - 1)
        for number, key in enumerate(idle):
            idle_ms = (now - self._entries[key].idle_since) * 1000
            if number < too_many or idle_ms >= key[1].metadata_max_age_ms:
                self._entries.pop(key).client.close()


worker_clients = ClientPool()
"""The pool of this process."""
