"""A topic as a sink: events keyed by their cache, so that those of one cache stay in order.

librdkafka sends in threads of its own. What it could not deliver within `message.timeout.ms`, or what finds its queue
full, is lost and counted. A task waits a moment for deliveries, and only while they succeed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.metadata.refresh_events import RefreshEvent
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import SecurityOptions
from pyspark_kafka_meta.telemetry.event_sinks import LossCount

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

logger = logging.getLogger(__name__)

FLUSH_S = 0.2
CONNECT_PAUSE_S = 30.0
"""Between two attempts: one that waits for a token which does not come takes 10 s."""
REFUSED = "the brokers refuse the login: check the credentials; those of the query serve other clusters of events, too"
SETTINGS = {
    "client.id": "kafkameta-events",
    # In order, but not idempotent: that would hold up the first event by half a second, the life of some processes.
    "max.in.flight.requests.per.connection": 1,
    "message.timeout.ms": 30_000,
    # A topic that was missing is not looked for until then; the default is 5 minutes.
    "topic.metadata.refresh.interval.ms": 30_000,
    "queue.buffering.max.messages": 1_000,
    "queue.buffering.max.kbytes": 32 * 1024,
    # The first answer of a cache that reads thousands of partitions is one event: repetitive, and lz4 makes it small.
    "compression.type": "lz4",
    "message.max.bytes": 16 * 1024 * 1024,
}


class TopicSink:
    """Produces each event as one record: key the cache id, value the event as JSON. One whose acknowledgement is lost
    may be there twice, with the same cache id and sequence. Connecting may take long: a `BackgroundSink` is to call."""

    def __init__(self, bootstrap_servers: Sequence[Address], topic: str, security: SecurityOptions) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._security = security
        self._topic = topic
        self._producer: Producer | None = None
        self._connect_after = 0.0  # of the monotonic clock
        self._losses = LossCount()
        self._is_refused = False  # the producer's login
        self._is_slow = False  # no wait until the next delivery
        self._failing = False  # as is_slow, and a warning has said so

    def write(self, events: Sequence[RefreshEvent]) -> None:
        try:
            producer = self._producer = self._producer or self._connect()
        except Exception as error:  # the thread would end, and lose uncounted what follows
            why = str(error) if isinstance(error, OptionError) else type(error).__name__
            for event in events:
                self._lose(event, why)
            return
        producer.poll(0)  # calls `_delivered` for what has come of earlier events
        for event in self._losses.told_by(events):
            self._produce(producer, event)
        if not (self._is_slow or self._failing):
            self._is_slow = producer.flush(FLUSH_S) > 0
        if self._is_refused:
            from pyspark_kafka_meta.wire.security.librdkafka_config import REFUSAL_HOLDS_S

            self.close()
            self._is_refused, self._connect_after = False, time.monotonic() + REFUSAL_HOLDS_S

    def close(self) -> None:
        """What is not acknowledged soon is lost. It would keep the producer alive, and connecting, for ever: a record
        holds `_delivered`, and nothing would call it."""
        if self._producer is not None and self._producer.flush(FLUSH_S) > 0:
            self._producer.purge()
            self._producer.flush(FLUSH_S)
        self._producer = None

    def _connect(self) -> Producer:
        """When there is something to send: importing the client takes a while."""
        if time.monotonic() < self._connect_after:
            raise OptionError("it failed a moment ago")
        self._connect_after = time.monotonic() + CONNECT_PAUSE_S
        from confluent_kafka import Producer

        from pyspark_kafka_meta.wire.security.librdkafka_config import new_client

        settings = {**SETTINGS, "error_cb": self._on_error}
        return new_client(Producer, self._bootstrap_servers, self._security, settings)

    def _on_error(self, error: KafkaError) -> None:
        """Records a refused login, so that `flush` stops waiting. `poll` and `flush` call this. Missing tokens are
        reported here too; `wire.security.librdkafka_config` handles refused tokens."""
        has_password = self._security.sasl_password is not None
        if error.code() == error._AUTHENTICATION and has_password and self._producer is not None:
            self._is_refused = True
            self._producer.purge()

    def _produce(self, producer: Producer, event: RefreshEvent) -> None:
        from confluent_kafka import KafkaException

        try:
            producer.produce(
                self._topic,
                key=event.cache_id,
                value=event.to_json(),
                on_delivery=partial(self._delivered, event),
            )
        except BufferError:  # the queue is full
            self._lose(event, "too many wait for the topic already")
        except KafkaException as error:
            self._lose(event, str(error))
            if error.args[0].fatal():
                self._producer = None  # it will never send again

    def _delivered(self, event: RefreshEvent, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._lose(event, REFUSED if self._is_refused else str(error))
        else:
            self._is_slow = self._failing = False

    def _lose(self, event: RefreshEvent, why: str) -> None:
        self._losses.add([event])
        if not self._failing:
            logger.warning("refresh event %d did not reach topic %s: %s", event.sequence, self._topic, why)
        self._failing = True
