"""Produces refresh events to a topic, keyed by cache id, so that the events of one cache stay in order.

The sink writes with a client of its own, because a client serves one thread, and `BackgroundSink` calls the sink in
another thread than the task's. The events of this client are only logged: in the topic they would lead to more of them.

Events that are not acknowledged within `kafka.delivery.timeout.ms` are lost, and the sink pauses before it connects
again. Until the pause ends, further events are lost at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    ConnectError,
    DeliveryTimeoutError,
    KafkaMetaError,
    RecordTooLargeError,
)
from pyspark_kafka_meta.events.event import Event
from pyspark_kafka_meta.kafka.client.client_state import Publisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.options import PLAINTEXT, ClientOptions, EventsOptions, ProducerOptions, default_options

if TYPE_CHECKING:
    import pyarrow as pa

CLIENT = default_options(ClientOptions, security=PLAINTEXT)
"""Of the sink, but for servers, login and client id."""
PRODUCER = default_options(
    ProducerOptions,
    # In order, but not idempotent: a producer id would cost one more request in the short life of some processes.
    max_in_flight=1,
    idempotent=False,
    delivery_timeout_ms=30_000,
    max_block_ms=30_000,
    # The first event of a cache can hold thousands of partitions; its text repeats, so that lz4 makes it small.
    compression_type="lz4",
    max_request_bytes=16 * 1024 * 1024,
)
PAUSES_S: dict[type[Exception], float] = {
    AuthenticationError: 300.0,  # repeated logins may lock the account
    ConnectError: 5.0,
    DeliveryTimeoutError: 5.0,
    KafkaMetaError: 30.0,
}
"""Pause after an error, by its first class that is listed."""


class TopicSink:
    """Produces each event as one record: key the cache id, value the event as JSON. A record whose acknowledgement is
    lost may be written twice, with the same cache id and sequence. Wrap in `BackgroundSink`: a write may take as long
    as the timeouts of `PRODUCER` together."""

    def __init__(self, options: EventsOptions, log: Callable[[], Publisher]) -> None:
        """
        Args:
            options: with a topic.
            log: makes a publisher that only logs.
        """
        self._topic = str(options.topic)
        self._client_options = replace(
            CLIENT, security=options.security, bootstrap_servers=options.bootstrap_servers, client_id=options.client_id
        )
        self._log = log
        self._client: KafkaClient | None = None
        self._connect_after = 0.0  # seconds of the monotonic clock

    def write(self, events: Sequence[Event]) -> None:
        if time.monotonic() < self._connect_after:
            raise ConnectError("the writer of events pauses after an error")
        try:
            self._write(events)
        except RecordTooLargeError:
            raise  # the connections are fine
        except Exception as error:
            self.close()
            pauses = (PAUSES_S[kind] for kind in type(error).__mro__ if kind in PAUSES_S)
            self._connect_after = time.monotonic() + next(pauses, 0.0)
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def _write(self, events: Sequence[Event]) -> None:
        # The first write imports these modules: they take a while.
        from pyspark_kafka_meta.write.input_columns import SinkColumns
        from pyspark_kafka_meta.write.task_writer import TaskWriter

        client = self._client = self._client or KafkaClient(self._client_options, self._log())
        columns = SinkColumns(key=0, value=1, headers=None, topic=None, partition=None, timestamp=None)
        TaskWriter(client, PRODUCER, columns, self._topic).write([_rows(events)])


def _rows(events: Sequence[Event]) -> pa.RecordBatch:
    import pyarrow as pa

    keys = pa.array([event.cache_id for event in events], pa.string())
    values = pa.array([event.to_json() for event in events], pa.string())
    return pa.record_batch([keys, values], ["key", "value"])
