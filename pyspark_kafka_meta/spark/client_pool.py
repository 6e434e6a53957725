"""`ClientPool`: keeps the clients of a process between tasks and micro-batches, and closes unused clients.

Spark gives a Python worker tasks of any query. Follows Spark's `InternalKafkaConsumerPool`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import OtherClusterError
from pyspark_kafka_meta.events.event import Origin
from pyspark_kafka_meta.events.publisher import new_publisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.options import ClientOptions, EventsOptions, SinkOptions

if TYPE_CHECKING:
    from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter

MAX_CLIENTS = 8
"""The pool keeps at most as many unused clients."""
KEEP_CONNECTIONS_S = 5.0
"""How long an unused client keeps its connections. Spark keeps idle workers for a minute, and brokers limit the
connections of a host (max.connections.per.ip): other processes would wait for theirs."""

ClientKey = tuple[int, ClientOptions, EventsOptions | None]
"""Process id, options of the connections, and where the events go."""


@dataclass(slots=True, eq=False)
class _Pooled:
    """
    Attributes:
        committers: of the client, by the options of their sinks.
        since_s: of its last use.
    """

    key: ClientKey
    client: KafkaClient
    committers: dict[SinkOptions, BatchCommitter]
    since_s: float = 0.0

    def is_old(self, now_s: float) -> bool:
        """Whether no task used the client for metadata.max.age.ms."""
        return (now_s - self.since_s) * 1000 >= self.key[1].metadata_max_age_ms


class ClientPool:
    """The clients of one process that no task uses now: a client is for one task at a time, and tasks may be threads. A
    forked child does not use its parent's clients.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._unused: list[_Pooled] = []  # in the order of their last use
        self._timer: threading.Timer | None = None  # for the connections of unused clients

    @contextmanager
    def client(self, options: ClientOptions, events: EventsOptions | None, origin: Origin) -> Iterator[KafkaClient]:
        """The client for these options, kept or new, for one task."""
        with self._lent(options, events, origin) as pooled:
            yield pooled.client

    @contextmanager
    def committer(self, options: SinkOptions, origin: Origin) -> Iterator[BatchCommitter]:
        """The committer of this sink, which remembers what it has read of the decisions topic as long as its client is
        kept."""
        from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter

        of_any_batch = replace(options.transaction, txn_app_id=None, txn_version=None)
        with self._lent(options.client, options.events, origin) as pooled:
            committer = BatchCommitter(pooled.client, options)
            yield pooled.committers.setdefault(replace(options, transaction=of_any_batch), committer)

    @contextmanager
    def _lent(self, options: ClientOptions, events: EventsOptions | None, origin: Origin) -> Iterator[_Pooled]:
        key = (os.getpid(), options, events)
        pooled = self._take(key) or _Pooled(key, KafkaClient(options, new_publisher(events, origin)), {})
        client = pooled.client
        client.publisher.origin = origin
        is_kept = True
        try:
            yield pooled
        except OtherClusterError:
            is_kept = False  # the next attempt uses the cluster that its addresses lead to by then
            raise
        finally:
            client.publisher.flush()
            if is_kept:
                self._give_back(pooled)
            else:
                client.close()

    def _take(self, key: ClientKey) -> _Pooled | None:
        """The client of this key that was used last."""
        with self._lock:
            unused = next((entry for entry in reversed(self._unused) if entry.key == key), None)
            if unused is not None:
                self._unused.remove(unused)
            return unused

    def _give_back(self, pooled: _Pooled) -> None:
        """Keep the client, and close old clients, and the longest unused above `MAX_CLIENTS`."""
        with self._lock:
            now_s, own = self._clock(), self._own()
            too_many = len(own) - (MAX_CLIENTS - 1)
            closed = [entry for number, entry in enumerate(own) if number < too_many or entry.is_old(now_s)]
            self._unused = [entry for entry in self._unused if entry not in closed]
            pooled.since_s = now_s
            self._unused.append(pooled)
            if self._timer is None or not self._timer.is_alive():  # a fork leaves the threads of its parent behind
                self._start_timer()
        for entry in closed:
            entry.client.close()

    def _own(self) -> list[_Pooled]:
        """The clients that a fork's parent did not leave."""
        return [entry for entry in self._unused if entry.key[0] == os.getpid()]

    def _start_timer(self) -> None:
        self._timer = threading.Timer(KEEP_CONNECTIONS_S, self._close_connections)
        self._timer.daemon = True
        with suppress(RuntimeError):  # no thread can start: the task must not fail for it
            self._timer.start()

    def _close_connections(self) -> None:
        """Close the connections of clients that no task used for `KEEP_CONNECTIONS_S`, and come back for the others."""
        with self._lock:
            self._timer = None
            own, due_s = self._own(), self._clock() - KEEP_CONNECTIONS_S
            for entry in own:
                if entry.since_s <= due_s:
                    entry.client.network.close_idle()
            if any(entry.since_s > due_s for entry in own):
                self._start_timer()


worker_clients = ClientPool()
"""The pool of this process."""
