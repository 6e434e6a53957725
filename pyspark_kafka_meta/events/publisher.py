"""Makes events of what one client reports, and publishes them: a structured log line at once, files and records at the
end of a task.

A read never waits long for this and never fails because of it: the queue is bounded, and the next delivered event
reports how many events were lost.

`TopicSink` produces events to a topic, keyed by cache id, so that the events of one cache stay in order. It writes with
a client of its own, because a client serves one thread, and `BackgroundSink` calls the sink in another thread than the
task's. The events of this client are only logged: in the topic they would lead to more of them. Events that are not
acknowledged within `kafka.delivery.timeout.ms` are lost, and the sink pauses before it connects again. Until the pause
ends, further events are lost at once.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from pyspark_kafka_meta.client_facts import LookupReason
from pyspark_kafka_meta.errors import (
    AuthenticationError,
    ConnectError,
    DeliveryTimeoutError,
    KafkaMetaError,
    RecordTooLargeError,
)
from pyspark_kafka_meta.events.default_folder import DefaultFolder, LivenessLock
from pyspark_kafka_meta.events.event import (
    BrokerFetches,
    BrokerProduces,
    Event,
    EventKind,
    Fact,
    FilteredRecords,
    Origin,
    Outcome,
    TableChanges,
    head_of,
    outcome_of,
)
from pyspark_kafka_meta.events.origin import cli_origin, driver_name
from pyspark_kafka_meta.events.sinks import BackgroundSink, EventSink, FolderSink, LossCount, folder_at, logger
from pyspark_kafka_meta.kafka.client.client_state import ClientState, Traffic
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.metadata.cache_state import Refreshed
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.options import PLAINTEXT, ClientOptions, EventsOptions, ProducerOptions, default_options

event_logger = logging.getLogger("pyspark_kafka_meta.events")

MAX_PENDING_EVENTS = 1_000
MAX_PENDING_ROUTINE_EVENTS = 100
ROUTINE_REASONS = (RefreshReason.MAX_AGE, LookupReason.NEW_VERSIONS)
CLIENT = default_options(ClientOptions, security=PLAINTEXT)
"""Of a `TopicSink`, but for servers, login and client id."""
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

    def __init__(self, options: EventsOptions, origin: Origin) -> None:
        """
        Args:
            options: with a topic.
            origin: of the events of its client.
        """
        self._topic = str(options.topic)
        self._client_options = replace(
            CLIENT, security=options.security, bootstrap_servers=options.bootstrap_servers, client_id=options.client_id
        )
        self._origin = origin
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
        import pyarrow as pa

        from pyspark_kafka_meta.write.input_columns import SinkColumns
        from pyspark_kafka_meta.write.task_writer import TaskWriter

        client = self._client = self._client or client_without_events(self._client_options, self._origin)
        columns = SinkColumns(key=0, value=1, headers=None, topic=None, partition=None, timestamp=None)
        keys = pa.array([event.cache_id for event in events], pa.string())
        values = pa.array([event.to_json() for event in events], pa.string())
        rows = pa.record_batch([keys, values], ["key", "value"])
        TaskWriter(client, PRODUCER, columns, self._topic).write([rows])


class EventPublisher:
    """Makes the events of one client, numbers them, and publishes them to the log and to every sink.

    In a forked child the publisher of the parent writes nothing: its sinks belong to the parent.

    Attributes:
        origin: of the next events; set again for each task.
    """

    def __init__(self, sinks: Sequence[EventSink], origin: Origin, liveness: LivenessLock | None = None) -> None:
        self.origin = origin
        self._liveness = liveness
        self._sinks = tuple(sinks)
        self._pid = os.getpid()
        self._pending: deque[Event] = deque()
        self._losses = LossCount()
        self._sequence = 0
        self._lookups = 0  # of earlier events

    def observe(self, fact: Fact, client: ClientState) -> None:
        """Publish the event of a fact, with what the client counted since the last one. Errors are logged only."""
        self._sequence += 1
        try:
            self.publish(self._event(fact, client))
        except Exception:
            logger.warning("event %d was not published", self._sequence, exc_info=True)

    def _event(self, fact: Fact, client: ClientState) -> Event:
        cache, now, (kind, cause) = client.cache, client.clock(), head_of(fact)
        began, generation, fetched_at = now, cache.snapshot.generation, cache.snapshot.fetched_at
        if isinstance(fact, Refreshed):
            began, generation, fetched_at = fact.began, fact.generation_before, fact.fetched_before
        lookups, self._lookups = cache.lookups - self._lookups, cache.lookups
        traffic, client.traffic = client.traffic, Traffic()
        filtered = sorted(traffic.filtered.items())
        return Event(
            cache_id=client.cache_id,
            sequence=self._sequence,
            cluster_id=cache.snapshot.cluster_id,
            time_ms=int(time.time() * 1000),
            kind=kind,
            reason=cause.reason,
            cause_error_code=cause.error_code,
            cause_topic=None if cause.partition is None else cause.partition.topic,
            cause_partition=None if cause.partition is None else cause.partition.partition,
            cause_node_id=cause.node_id,
            outcome=outcome_of(fact),
            generation_before=generation,
            generation_after=cache.snapshot.generation,
            age_ms=(began - fetched_at) * 1000 if generation > 0 else None,
            idle_ms=None if cache.last_lookup is None else max(began - cache.last_lookup, 0) * 1000,
            lookups=lookups,
            fetches=tuple(BrokerFetches(node_id, *counted) for node_id, counted in sorted(traffic.fetches.items())),
            retries=traffic.retries,
            fetch_throttle_ms=traffic.fetch_throttle_ms,
            produces=tuple(BrokerProduces(node_id, *counted) for node_id, counted in sorted(traffic.produces.items())),
            produce_throttle_ms=traffic.produce_throttle_ms,
            transactions_begun=traffic.transactions_begun,
            table_changes=tuple(TableChanges(*of, records) for of, records in sorted(traffic.table_changes.items())),
            filtered=tuple(FilteredRecords(*partition, records) for partition, records in filtered),
            details=fact,
            origin=self.origin,
        )

    def publish(self, event: Event) -> None:
        """Log an event and keep it for `flush`. Above `MAX_PENDING_EVENTS` the oldest is lost."""
        if died := self._new_dead_caches(event):
            event = replace(event, died_cache_ids=died)
        if event_logger.isEnabledFor(logging.INFO):
            event_logger.info("%s", event.to_json())
        if self._sinks:  # nobody else takes pending events
            self._pending.append(event)
        if len(self._pending) > MAX_PENDING_EVENTS:
            self._losses.add([self._pending.popleft()])
        if died:
            self.flush()  # no other cache reports them, and what killed them may kill this process too

    def flush_news(self) -> None:
        """`flush`, unless all pending events are routine requests without a change: a file for each would be many."""
        are_routine = all(
            event.reason in ROUTINE_REASONS and event.outcome is Outcome.UNCHANGED for event in self._pending
        )
        if not are_routine or len(self._pending) >= MAX_PENDING_ROUTINE_EVENTS:
            self.flush()

    def flush(self) -> None:
        events = tuple(self._pending)
        self._pending.clear()
        if events and self._pid == os.getpid():
            batch = self._losses.report_in(events)
            for sink in self._sinks:
                sink.write(batch)

    def close(self) -> None:
        self.flush()
        if self._pid == os.getpid():
            for sink in self._sinks:
                sink.close()
            if self._liveness is not None:
                self._liveness.release()

    def _new_dead_caches(self, event: Event) -> tuple[str, ...]:
        if self._liveness is None or self._pid != os.getpid():
            return ()
        return self._liveness.acquire(event.cache_id) if event.kind is EventKind.BORN else self._liveness.take_dead()


def client_without_events(options: ClientOptions, origin: Origin | None = None) -> KafkaClient:
    """A client, of a command unless `origin` tells otherwise, whose events are only logged. The caller closes it."""
    return KafkaClient(options, EventPublisher((), origin or cli_origin()))


def new_publisher(options: EventsOptions | None, origin: Origin) -> EventPublisher:
    """A publisher with the sinks of the options, or with the application's default folder if they name none. Options of
    None are for readers of events: they publish no events."""
    if options is None:
        return EventPublisher((), origin)
    application = options.driver or driver_name()  # a planner does not know its application's id
    lock = LivenessLock(application, f"{options.path} {options.topic}")
    sinks: list[EventSink] = []
    if options.path is not None:
        sinks.append(FolderSink(folder_at(options.path)))
    if options.topic is not None:
        # It serves all queries of its process.
        own = Origin(
            role=origin.role,
            application_id=origin.application_id,
            executor_id=origin.executor_id,
            host=origin.host,
            pid=origin.pid,
        )
        sinks.append(TopicSink(options, own))
    if not sinks:
        sinks.append(FolderSink(DefaultFolder(application)))
    return EventPublisher([BackgroundSink(sink) for sink in sinks], origin, lock)
