"""The clients of one Python worker: kept between tasks and micro-batches, closed when no query uses them any more.

Spark hands a worker to any query that has a task for it, as Spark's `InternalKafkaConsumerPool` hands out consumers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.metadata.refresh_events import Origin
from pyspark_kafka_meta.options import ClientOptions, MetricsOptions
from pyspark_kafka_meta.telemetry.event_publisher import new_publisher

MAX_CLIENTS = 8
"""More than this are kept only while tasks use them all."""

ClientKey = tuple[int, ClientOptions, MetricsOptions | None]
"""Process id, the cluster's address with everything that connections are made of, and where the events go."""


@dataclass(slots=True)
class _Kept:
    client: KafkaClient
    users: int = 0
    idle_since: float = 0.0


class ClientPool:
    """The clients of one worker. Not thread-safe, as a worker runs one task at a time. A child of a fork leaves
    its parent's clients alone.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[ClientKey, _Kept] = {}  # the one used last is the last one

    @contextmanager
    def client(self, options: ClientOptions, metrics: MetricsOptions | None, origin: Origin) -> Iterator[KafkaClient]:
        """A client for one task: the one kept for these options, or a new one."""
        key = (os.getpid(), options, metrics)
        kept = self._kept.pop(key, None)
        self._close_unused()
        if kept is None:
            kept = _Kept(KafkaClient(options, new_publisher(metrics, origin)))
        self._kept[key] = kept
        kept.users += 1
        kept.client.publisher.origin = origin
        try:
            yield kept.client
        finally:
            kept.client.publisher.flush()
            kept.users -= 1
            kept.idle_since = self._clock()

    def _close_unused(self) -> None:
        """Close what no task has used for the max age of its metadata, and the longest unused of too many."""
        now, pid = self._clock(), os.getpid()
        idle = [key for key, kept in self._kept.items() if key[0] == pid and kept.users == 0]
        too_many = len(self._kept) - (MAX_CLIENTS - 1)
        for number, key in enumerate(idle):
            idle_ms = (now - self._kept[key].idle_since) * 1000
            if number < too_many or idle_ms >= key[1].metadata_max_age_ms:
                self._kept.pop(key).client.close()


worker_clients = ClientPool()
"""The pool of this process."""
