"""Produces refresh events to a topic, keyed by cache id, so that the events of one cache stay in order.

librdkafka sends in threads of its own, also between tasks. The sink's own writer could not: it sends only while a task
waits for it, and needs the client whose events these are. An event that is not delivered within `message.timeout.ms`,
or that finds the queue full, is lost and counted. A task waits at most `FLUSH_S` for deliveries, and only while
deliveries succeed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.events.sinks import LossCount, logger
from pyspark_kafka_meta.kafka.metadata.refresh_events import RefreshEvent
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import SecurityOptions

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

FLUSH_S = 0.2
CONNECT_BACKOFF_S = 30.0
"""Between two attempts: an attempt that waits in vain for a token takes 10 s."""
REFUSED_LOGIN = "the brokers refuse the login: check the credentials of the query, which metricsTopic uses too"
SETTINGS = {
    "client.id": "kafkameta-events",
    # In order, but not idempotent: idempotence delays the first event by 0.5 s, the life of some processes.
    "max.in.flight.requests.per.connection": 1,
    "message.timeout.ms": 30_000,
    # How soon a missing topic is found once it is created; the default is 5 minutes.
    "topic.metadata.refresh.interval.ms": 30_000,
    "queue.buffering.max.messages": 1_000,
    "queue.buffering.max.kbytes": 32 * 1024,
    # The first event of a cache can hold thousands of partitions; its text repeats, so that lz4 makes it small.
    "compression.type": "lz4",
    "message.max.bytes": 16 * 1024 * 1024,
}


class TopicSink:
    """Produces each event as one record: key the cache id, value the event as JSON. A record whose acknowledgement is
    lost may be written twice, with the same cache id and sequence. Wrap in `BackgroundSink`: connecting may take long.
    """

    def __init__(self, bootstrap_servers: Sequence[Address], topic: str, security: SecurityOptions) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._security = security
        self._topic = topic
        self._producer: Producer | None = None
        self._connect_after = 0.0  # seconds of the monotonic clock
        self._losses = LossCount()
        self._is_login_refused = False
        self._is_slow = False  # no wait until the next delivery
        self._is_failing = False  # no wait until the next delivery, and a warning was logged

    def write(self, events: Sequence[RefreshEvent]) -> None:
        try:
            producer = self._producer = self._producer or self._connect()
        except Exception as error:  # any error would end the thread of a `BackgroundSink`, and lose events uncounted
            reason = str(error) if isinstance(error, OptionError) else type(error).__name__
            for event in events:
                self._lose(event, reason)
            return
        producer.poll(0)  # calls `_on_delivery` for earlier events
        for event in self._losses.report_in(events):
            self._produce(producer, event)
        if not (self._is_slow or self._is_failing):
            self._is_slow = producer.flush(FLUSH_S) > 0
        if self._is_login_refused:
            from pyspark_kafka_meta.kafka.network.security.librdkafka_config import REFUSAL_HOLDS_S

            self.close()
            self._is_login_refused, self._connect_after = False, time.monotonic() + REFUSAL_HOLDS_S

    def close(self) -> None:
        """Wait at most `FLUSH_S`, then drop the records that are not acknowledged. A queued record refers to
        `_on_delivery`, and so would keep the producer alive, and connecting, for ever."""
        if self._producer is not None and self._producer.flush(FLUSH_S) > 0:
            self._producer.purge()
            self._producer.flush(FLUSH_S)
        self._producer = None

    def _connect(self) -> Producer:
        """Called at the first write: importing the client takes a while."""
        if time.monotonic() < self._connect_after:
            raise OptionError("connecting failed a moment ago")
        self._connect_after = time.monotonic() + CONNECT_BACKOFF_S
        from confluent_kafka import Producer

        from pyspark_kafka_meta.kafka.network.security.librdkafka_config import new_client

        settings = {**SETTINGS, "error_cb": self._on_error}
        return new_client(Producer, self._bootstrap_servers, self._security, settings)

    def _on_error(self, error: KafkaError) -> None:
        """Records a refused login, so that `flush` stops waiting. `poll` and `flush` call this. Missing tokens are
        reported here too; `kafka.network.security.librdkafka_config` handles refused tokens."""
        has_password = self._security.sasl_password is not None
        if error.code() == error._AUTHENTICATION and has_password and self._producer is not None:
            self._is_login_refused = True
            self._producer.purge()

    def _produce(self, producer: Producer, event: RefreshEvent) -> None:
        try:
            producer.produce(
                self._topic,
                key=event.cache_id,
                value=event.to_json(),
                on_delivery=partial(self._on_delivery, event),
            )
        except BufferError:  # the queue is full
            self._lose(event, "the producer's queue is full")
        except Exception as error:  # of any type, MemoryError too: this event is lost, the next may be delivered
            from confluent_kafka import KafkaException

            is_kafka = isinstance(error, KafkaException)
            self._lose(event, str(error) if is_kafka else type(error).__name__)
            if is_kafka and error.args[0].fatal():
                self._producer = None  # a fatal error: this producer never sends again

    def _on_delivery(self, event: RefreshEvent, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._lose(event, REFUSED_LOGIN if self._is_login_refused else str(error))
        else:
            self._is_slow = self._is_failing = False

    def _lose(self, event: RefreshEvent, reason: str) -> None:
        self._losses.add([event])
        if not self._is_failing:
            logger.warning("refresh event %d did not reach topic %s: %s", event.sequence, self._topic, reason)
        self._is_failing = True
