"""Takes the refresh events of one cache out of a process: a structured log line at once, the rest at the end of a task.

A read never waits long for this and never fails because of it: the queue is bounded, and what cannot be kept or
written is counted and reported by the next event that gets through.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from pyspark_kafka_meta.metadata.refresh_events import EventKind, Origin, Outcome, RefreshEvent
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.telemetry.event_sinks import EventSink, LossCount
from pyspark_kafka_meta.telemetry.liveness import LivingCaches

event_logger = logging.getLogger("pyspark_kafka_meta.events")

MAX_PENDING_EVENTS = 1_000
ROUTINE_EVENTS_A_FILE = 100


class EventPublisher:
    """Publishes the events of one cache to every sink; without one, they are log lines alone.

    The child of a fork publishes nothing through its parent's publisher: the sinks are its parent's.

    Attributes:
        origin: of the events to come; set again for each task.
    """

    def __init__(self, sinks: Sequence[EventSink], origin: Origin, living: LivingCaches | None = None) -> None:
        self.origin = origin
        self._living = living
        self._sinks = tuple(sinks)
        self._pid = os.getpid()
        self._pending: deque[RefreshEvent] = deque()
        self._losses = LossCount()

    def publish(self, event: RefreshEvent) -> None:
        """Attach the origin, log the event and keep it for `flush`. Of too many, the oldest are dropped."""
        told = replace(event, origin=self.origin)
        if event.kind is EventKind.BORN and self._living is not None:
            told = replace(told, died_cache_ids=self._living.enter(event.cache_id))
        if event_logger.isEnabledFor(logging.INFO):
            event_logger.info("%s", told.to_json())
        self._pending.append(told)
        if len(self._pending) > MAX_PENDING_EVENTS:
            self._losses.add([self._pending.popleft()])
        if told.died_cache_ids:
            self.flush()  # no other cache will report them, and what killed them may kill this process as well

    def flush_news(self) -> None:
        """`flush`, but let refreshes by age that found nothing new wait for others: a file for each would be many."""
        news = [event for event in self._pending if not _is_routine(event)]
        if news or len(self._pending) >= ROUTINE_EVENTS_A_FILE:
            self.flush()

    def flush(self) -> None:
        """Give what is pending to the sinks."""
        events = tuple(self._pending)
        self._pending.clear()
        if events and self._pid == os.getpid():
            told = self._losses.told_by(events)
            for sink in self._sinks:
                sink.write(told)

    def close(self) -> None:
        """`flush`, and let the sinks go."""
        self.flush()
        if self._pid == os.getpid():
            for sink in self._sinks:
                sink.close()
            if self._living is not None:
                self._living.leave()


def _is_routine(event: RefreshEvent) -> bool:
    return event.reason is RefreshReason.MAX_AGE and event.outcome is Outcome.UNCHANGED
