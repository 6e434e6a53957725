"""Publishes the refresh events of one cache: a structured log line at once, files and records at the end of a task.

A read never waits long for this and never fails because of it: the queue is bounded, and the next delivered event
reports how many events were lost.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pyspark_kafka_meta.events.default_folder import DefaultFolder
from pyspark_kafka_meta.events.folder_sink import FolderSink, folder_at
from pyspark_kafka_meta.events.liveness_lock import LivenessLock
from pyspark_kafka_meta.events.origin import driver_name, events_origin
from pyspark_kafka_meta.events.sinks import BackgroundSink, EventSink, LossCount
from pyspark_kafka_meta.events.topic_sink import TopicSink
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.metadata.refresh_events import EventKind, Origin, Outcome, RefreshEvent
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.options import ClientOptions, EventsOptions

event_logger = logging.getLogger("pyspark_kafka_meta.events")

MAX_PENDING_EVENTS = 1_000
MAX_PENDING_ROUTINE_EVENTS = 100
ROUTINE_REASONS = (RefreshReason.MAX_AGE, RefreshReason.NEW_VERSIONS)


class EventPublisher:
    """Publishes events to the log and to every sink.

    In a forked child the publisher of the parent writes nothing: its sinks belong to the parent.

    Attributes:
        origin: of the next events; set again for each task.
    """

    def __init__(self, sinks: Sequence[EventSink], origin: Origin, liveness: LivenessLock | None = None) -> None:
        self.origin = origin
        self._liveness = liveness
        self._sinks = tuple(sinks)
        self._pid = os.getpid()
        self._pending: deque[RefreshEvent] = deque()
        self._losses = LossCount()

    def publish(self, event: RefreshEvent) -> None:
        """Attach the origin, log the event and keep it for `flush`. Above `MAX_PENDING_EVENTS` the oldest is lost."""
        event = replace(event, origin=self.origin, died_cache_ids=self._new_dead_caches(event))
        if event_logger.isEnabledFor(logging.INFO):
            event_logger.info("%s", event.to_json())
        self._pending.append(event)
        if len(self._pending) > MAX_PENDING_EVENTS:
            self._losses.add([self._pending.popleft()])
        if event.died_cache_ids:
            self.flush()  # no other cache reports them, and what killed them may kill this process too

    def flush_news(self) -> None:
        """`flush`, unless all pending events are routine requests without a change: a file for each would be many."""
        news = [event for event in self._pending if not _is_routine(event)]
        if news or len(self._pending) >= MAX_PENDING_ROUTINE_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Write the pending events to the sinks."""
        events = tuple(self._pending)
        self._pending.clear()
        if events and self._pid == os.getpid():
            batch = self._losses.report_in(events)
            for sink in self._sinks:
                sink.write(batch)

    def close(self) -> None:
        """`flush`, and close the sinks."""
        self.flush()
        if self._pid == os.getpid():
            for sink in self._sinks:
                sink.close()
            if self._liveness is not None:
                self._liveness.release()

    def _new_dead_caches(self, event: RefreshEvent) -> tuple[str, ...]:
        if self._liveness is None or self._pid != os.getpid():
            return ()
        return self._liveness.acquire(event.cache_id) if event.kind is EventKind.BORN else self._liveness.take_dead()


def client_without_events(options: ClientOptions, origin: Origin) -> KafkaClient:
    """A client whose events are only logged. The caller closes it."""
    return KafkaClient(options, EventPublisher((), origin))


def new_publisher(options: EventsOptions | None, origin: Origin) -> EventPublisher:
    """A publisher with the sinks of the options, or with the application's default folder if they name none. Options of
    None are for readers of events: they publish no events."""
    if options is None:
        return EventPublisher((), origin)
    application = options.driver or driver_name()  # a planner does not know its application's id
    new_lock = partial(LivenessLock, application, f"{options.path} {options.topic}")
    sinks: list[EventSink] = []
    if options.path is not None:
        sinks.append(FolderSink(folder_at(options.path)))
    if options.topic is not None:
        own_origin = events_origin(origin)
        sinks.append(TopicSink(options, lambda own: EventPublisher([own], own_origin, new_lock())))
    if not sinks:
        sinks.append(FolderSink(DefaultFolder(application)))
    return EventPublisher([BackgroundSink(sink) for sink in sinks], origin, new_lock())


def _is_routine(event: RefreshEvent) -> bool:
    return event.reason in ROUTINE_REASONS and event.outcome is Outcome.UNCHANGED
