"""The interface of event sinks, the count of the events that they lose, and `BackgroundSink`, which keeps slow sinks
out of a task's way: an object store, a network drive that hangs, brokers that need a token first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Full, Queue
from typing import Protocol

from pyspark_kafka_meta.errors import KafkaMetaError, RecordTooLargeError
from pyspark_kafka_meta.events.event import Event

# Of this package. Loggers named after its modules would be below the logger of events, whose lines are JSON.
logger = logging.getLogger("pyspark_kafka_meta.sinks")

MAX_QUEUED_BATCHES = 16
WAIT_S = 0.2


class EventSink(Protocol):
    """A destination of events, for a `BackgroundSink`."""

    def write(self, events: Sequence[Event]) -> None:
        """Write at least one event. Raises any error: none of the events counts as written."""

    def close(self) -> None: ...


class LossCount:
    """Counts the events that a sink lost, until the next delivered event reports the count."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, events: Sequence[Event]) -> None:
        """Count lost events, and the losses that they would have reported."""
        self._count += sum(1 + event.dropped_before for event in events)

    def report_in(self, events: Sequence[Event]) -> list[Event]:
        """Returns `events`, of which the first reports the losses so far, and resets the count."""
        reporting = [replace(events[0], dropped_before=events[0].dropped_before + self._count), *events[1:]]
        self._count = 0
        return reporting


class CountedSink:
    """Writes to another sink, and raises nothing: what the sink refuses is lost, and counted in the next event that it
    takes. The first loss is logged."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._losses = LossCount()
        self._is_failing = False  # and a warning was logged

    def write(self, events: Sequence[Event]) -> None:
        batch = events
        try:
            batch = self._losses.report_in(events)
            self._sink.write(batch)
            self._is_failing = False
        except BaseException as error:  # of any type: these events are lost, the next may be written
            if isinstance(error, RecordTooLargeError) and len(batch) > 1:
                for event in batch:  # so that only those that are too large are lost
                    self.write([event])
            else:
                self._losses.add(batch)
                self._warn(len(batch), error)

    def _warn(self, lost: int, error: BaseException) -> None:
        if not self._is_failing:
            # The texts of other errors may contain what they found, such as a key in a URI.
            reason = str(error) if isinstance(error, OSError | KafkaMetaError) else type(error).__name__
            logger.warning("refresh events not written: %d (%s)", lost, reason)
        self._is_failing = True

    def close(self) -> None:
        self._sink.close()


class BackgroundSink:
    """Writes batches of events to another sink in a thread of its own. A task waits at most `WAIT_S` for its batch, and
    not at all while an earlier batch is unwritten."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = CountedSink(sink)
        self._queue: Queue[tuple[Sequence[Event], threading.Event] | None] = Queue(MAX_QUEUED_BATCHES)
        self._last_written = threading.Event()
        self._last_written.set()
        self._losses = LossCount()  # of what the queue had no room for
        self._thread: threading.Thread | None = None
        try:
            self._start()
        except RuntimeError as error:  # the process has as many threads as it may have
            logger.warning("refresh events are not written until a thread can be started: %s", error)

    def write(self, events: Sequence[Event]) -> None:
        batch, written, is_idle = self._losses.report_in(events), threading.Event(), self._last_written.is_set()
        try:
            self._start()
            self._queue.put_nowait((batch, written))
        except (RuntimeError, Full):
            self._losses.add(batch)
            return
        self._last_written = written
        if is_idle:
            written.wait(WAIT_S)

    def close(self) -> None:
        """Wait at most `WAIT_S` while the thread writes queued batches and closes the other sink; later it goes on
        alone, if the process lives. A full queue leaves the thread running."""
        with suppress(Full):
            self._queue.put_nowait(None)
        if self._thread is not None:
            self._thread.join(WAIT_S)

    def _start(self) -> None:
        """Start the thread if it does not run. Raises RuntimeError."""
        if self._thread is None or not self._thread.is_alive():  # memory may have ended in its handler of errors
            # A daemon: the end of the process does not wait for a destination that hangs.
            thread = threading.Thread(target=self._write_queued, name="kafkameta-events", daemon=True)
            thread.start()
            self._thread = thread

    def _write_queued(self) -> None:
        while (queued := self._queue.get()) is not None:
            batch, written = queued
            try:
                self._sink.write(batch)
            finally:
                written.set()
        self._sink.close()
