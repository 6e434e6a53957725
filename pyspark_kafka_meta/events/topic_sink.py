"""Produces refresh events to a topic, keyed by cache id, so that the events of one cache stay in order.

The sink writes with a client of its own, because a client serves one thread, and `BackgroundSink` calls the sink in
another thread than the task's. The metadata cache of this client reports to the same topic, without a loop: its events
wait in memory until the next events of the query's cache are written, and are then written alone. So a partition that
is stuck for them loses no event of the query. Only the events of the client's end do not wait.

Events that are not acknowledged within `kafka.delivery.timeout.ms` are lost and counted, and the sink pauses before it
connects again. Until the pause ends, further events are lost at once.
"""

from __future__ import annotations

import time
from collections import deque
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
from pyspark_kafka_meta.events.sinks import EventSink, LossCount, logger
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.metadata.refresh_events import Publisher, RefreshEvent
from pyspark_kafka_meta.options import PLAINTEXT, ClientOptions, EventsOptions, ProducerOptions, default_options

if TYPE_CHECKING:
    import pyarrow as pa

MAX_OWN_EVENTS = 100
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

    def __init__(self, options: EventsOptions, publisher: Callable[[EventSink], Publisher]) -> None:
        """
        Args:
            options: with a topic.
            publisher: makes the publisher of the own cache, with this sink.
        """
        self._topic = str(options.topic)
        self._client_options = replace(
            CLIENT,
            security=options.security,
            bootstrap_servers=options.bootstrap_servers,
            client_id=options.client_id,
        )
        self._publisher = publisher
        self._client: KafkaClient | None = None
        self._connect_after = 0.0  # seconds of the monotonic clock
        self._own = OwnEvents(self._write_own)
        self._losses = LossCount()
        self._is_failing = False  # a warning was logged

    def write(self, events: Sequence[RefreshEvent]) -> None:
        batch = self._losses.report_in(events)
        if time.monotonic() < self._connect_after:
            self._losses.add(batch)
            return
        try:
            self._write(batch)
            self._is_failing = False
            self._write_own()
        except RecordTooLargeError as error:
            self._write_one_by_one(batch, error)
        except Exception as error:  # any error would end the thread of a `BackgroundSink`, and lose events uncounted
            self._lose(batch, error)
            self._disconnect()
            pauses = (PAUSES_S[kind] for kind in type(error).__mro__ if kind in PAUSES_S)
            self._connect_after = time.monotonic() + next(pauses, 0.0)

    def close(self) -> None:
        """Write the last events of the sink's own cache, and close its client."""
        self._disconnect()

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def _write(self, events: Sequence[RefreshEvent]) -> None:
        # The first write imports these modules: they take a while.
        from pyspark_kafka_meta.write.input_columns import SinkColumns
        from pyspark_kafka_meta.write.task_writer import TaskWriter

        client = self._client = self._client or KafkaClient(self._client_options, self._publisher(self._own))
        columns = SinkColumns(key=0, value=1, headers=None, topic=None, partition=None, timestamp=None)
        TaskWriter(client, PRODUCER, columns, self._topic).write([_rows(events)])

    def _write_one_by_one(self, events: Sequence[RefreshEvent], error: RecordTooLargeError) -> None:
        """After one of these events was too large: it alone is lost."""
        if len(events) == 1:
            self._lose(events, error)
        else:
            for event in events:
                self.write([event])

    def _write_own(self) -> None:
        """Write the events of the own cache, unless events are lost at the moment: then the next client writes them."""
        if self._client is None or self._is_failing:
            return
        self._client.publisher.flush()
        own = self._own.take()
        try:
            if own:
                self._write(own)
        except Exception as error:
            self._own.lose(own)
            logger.debug("events of the sink's own cache are lost: %s", error)

    def _lose(self, events: Sequence[RefreshEvent], error: Exception) -> None:
        self._losses.add(events)
        if not self._is_failing:
            reason = str(error) if isinstance(error, KafkaMetaError) else type(error).__name__
            logger.warning("refresh event %d did not reach topic %s: %s", events[0].sequence, self._topic, reason)
        self._is_failing = True


class OwnEvents(EventSink):
    """Keeps the events of the cache of a sink's own client until the sink writes them."""

    def __init__(self, write_own: Callable[[], None]) -> None:
        self.pending: deque[RefreshEvent] = deque()
        self._write_own = write_own
        self._losses = LossCount()

    def write(self, events: Sequence[RefreshEvent]) -> None:
        self.pending += self._losses.report_in(events)
        while len(self.pending) > MAX_OWN_EVENTS:
            self._losses.add([self.pending.popleft()])

    def take(self) -> list[RefreshEvent]:
        """The events so far, which are no longer kept."""
        taken = list(self.pending)
        self.pending.clear()
        return taken

    def lose(self, events: Sequence[RefreshEvent]) -> None:
        """Count events that were taken and not written."""
        self._losses.add(events)

    def close(self) -> None:
        """The client closes, and can write for the last time."""
        self._write_own()


def _rows(events: Sequence[RefreshEvent]) -> pa.RecordBatch:
    import pyarrow as pa

    keys = pa.array([event.cache_id for event in events], pa.string())
    values = pa.array([event.to_json() for event in events], pa.string())
    return pa.record_batch([keys, values], ["key", "value"])
