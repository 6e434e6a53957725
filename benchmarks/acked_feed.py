"""A steady feed of numbered records by an idempotent producer with acks=all, in its own process. Counts
acknowledged records."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from confluent_kafka import Message, Producer

TICK_S = 0.05
FLUSH_TIMEOUT_S = 300.0
MAX_QUEUED = 1_000_000
"""Limit of records that wait for a leader."""


class Acknowledged(NamedTuple):
    """The result for the records 0 to `sent` - 1.

    Attributes:
        unknown: numbers of records without an acknowledgement, which may be written or not.
    """

    sent: int
    unknown: frozenset[int]

    @property
    def records(self) -> int:
        return self.sent - len(self.unknown)


class AckedFeed:
    """Feeds `topic`, evenly over time and over its partitions, until `close`.

    Args:
        keys: number of keys, a multiple of `partitions`: the record n has the key n % keys. 0 for no keys.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, partitions: int, records_per_s: float, keys: int = 0
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, child = spawn.Pipe()
        arguments = (bootstrap_servers, topic, partitions, records_per_s, keys, child)
        self._process = spawn.Process(target=_feed, args=arguments, daemon=True)
        self._process.start()
        child.close()

    def close(self) -> Acknowledged:
        """Wait for the last acknowledgements."""
        self._connection.send("stop")
        if not self._connection.poll(FLUSH_TIMEOUT_S + 10):
            self._process.kill()
            raise TimeoutError("the producer did not stop")
        acknowledged: Acknowledged = self._connection.recv()
        self._process.join()
        return acknowledged


def _feed(
    bootstrap_servers: str, topic: str, partitions: int, records_per_s: float, keys: int, parent: Connection
) -> None:
    settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
    limits = {"queue.buffering.max.messages": MAX_QUEUED, "delivery.timeout.ms": int(FLUSH_TIMEOUT_S * 1000)}
    producer = Producer({"bootstrap.servers": bootstrap_servers, **settings, **limits})
    acked = bytearray()

    def on_delivery(error: Any, message: Message) -> None:
        value = message.value()
        if error is None and isinstance(value, bytes):
            acked[int(value)] = True

    start = time.monotonic()
    while not parent.poll(TICK_S):
        due = int((time.monotonic() - start) * records_per_s)
        sent = len(acked)
        acked.extend(bytes(due - sent))
        for number in range(sent, due):
            key = b"%d" % (number % keys) if keys else None
            producer.produce(topic, b"%d" % number, key, partition=number % partitions, on_delivery=on_delivery)
        producer.poll(0)
    producer.flush(FLUSH_TIMEOUT_S)
    parent.send(Acknowledged(len(acked), frozenset(number for number, is_acked in enumerate(acked) if not is_acked)))
