"""Takes refresh events out of a process: a structured log line at once, a file of JSON lines at the end of each task.

A read never waits for this and never fails because of it: the queue is bounded, and what cannot be kept or written is
counted and told by the next event that gets through.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import uuid
from collections import deque
from dataclasses import replace
from pathlib import Path

from pyspark_kafka_meta.metadata.events import Origin, Outcome, RefreshEvent, RefreshReason

logger = logging.getLogger(__name__)
event_logger = logging.getLogger("pyspark_kafka_meta.events")

MAX_PENDING_EVENTS = 1_000
ROUTINE_EVENTS_A_FILE = 100


class EventPublisher:
    """Publishes the events of one cache. `origin` is set anew for each task."""

    def __init__(self, metrics_path: str | None, origin: Origin) -> None:
        self.origin = origin
        self._metrics_path = metrics_path
        self._pending: deque[RefreshEvent] = deque()
        self._dropped = 0

    def publish(self, event: RefreshEvent) -> None:
        """Attach the origin, log the event and keep it for `flush`."""
        told = replace(event, origin=self.origin, dropped_before=self._dropped)
        event_logger.info("%s", json.dumps(told.to_dict()))
        if len(self._pending) >= MAX_PENDING_EVENTS:
            self._dropped += 1
            return
        self._dropped = 0
        self._pending.append(told)

    def flush_news(self) -> None:
        """`flush`, but let refreshes by age that found nothing new wait for company: a file for each would be many."""
        news = [event for event in self._pending if not _is_routine(event)]
        if news or len(self._pending) >= ROUTINE_EVENTS_A_FILE:
            self.flush()

    def flush(self) -> None:
        """Write what is pending as one complete file: readers see all of it or nothing."""
        if not self._pending:
            return
        try:
            self._write("".join(json.dumps(event.to_dict()) + "\n" for event in self._pending))
        except OSError as error:
            self._dropped += sum(1 + event.dropped_before for event in self._pending)
            logger.warning("%d refresh events were not written: %s", len(self._pending), error)
        self._pending.clear()

    def _write(self, lines: str) -> None:
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = folder / f".{uuid.uuid4().hex}.tmp"
        try:
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(lines)
            unfinished.rename(folder / f"events-{os.getpid()}-{unfinished.stem[1:]}.jsonl")
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def _folder(self) -> Path:
        if self._metrics_path is not None:
            return Path(self._metrics_path)
        return Path(tempfile.gettempdir()) / "kafkameta-events" / (self.origin.application_id or "driver")


def _is_routine(event: RefreshEvent) -> bool:
    return event.reason is RefreshReason.MAX_AGE and event.outcome is Outcome.UNCHANGED
