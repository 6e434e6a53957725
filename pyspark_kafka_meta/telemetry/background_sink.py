"""`BackgroundSink`: a place for events may take long to answer, be it an object store, a network drive that hangs, or
brokers that want a token first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Full, Queue

from pyspark_kafka_meta.metadata.refresh_events import RefreshEvent
from pyspark_kafka_meta.telemetry.event_sinks import EventSink, LossCount

logger = logging.getLogger(__name__)

MAX_WAITING = 16
WAIT_S = 0.2


class BackgroundSink:
    """Writes to another sink in a thread of its own, batch after batch. A task waits a moment for its own batch, and
    not at all while an earlier one is still on its way."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._waiting: Queue[tuple[Sequence[RefreshEvent], threading.Event] | None] = Queue(MAX_WAITING)
        self._last = threading.Event()
        self._last.set()
        self._losses = LossCount()
        self._thread: threading.Thread | None = None
        try:
            self._start()
        except RuntimeError as error:  # there are as many as this process may have
            logger.warning("refresh events are not written until a thread is there to do it: %s", error)

    def write(self, events: Sequence[RefreshEvent]) -> None:
        told, done, in_time = self._losses.told_by(events), threading.Event(), self._last.is_set()
        try:
            self._start()
            self._waiting.put_nowait((told, done))
        except (RuntimeError, Full):
            self._losses.add(told)
            return
        self._last = done
        if in_time:
            done.wait(WAIT_S)

    def close(self) -> None:
        """What waits is still written, and then the other sink closed, if that takes no longer than a moment or the
        process lives on. If the queue is full, the thread is left running."""
        with suppress(Full):
            self._waiting.put_nowait(None)
        if self._thread is not None:
            self._thread.join(WAIT_S)

    def _start(self) -> None:
        """See that the thread runs. Raises RuntimeError."""
        if self._thread is None:
            # A daemon: the end of the process does not wait for a place that hangs.
            thread = threading.Thread(target=self._work, name="kafkameta-events", daemon=True)
            thread.start()
            self._thread = thread

    def _work(self) -> None:
        while (batch := self._waiting.get()) is not None:
            events, done = batch
            self._sink.write(events)
            done.set()
        self._sink.close()
