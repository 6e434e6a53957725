"""Where events go: the seam that every sink fills, the count of what was lost, and a folder as a sink."""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from pyspark_kafka_meta.metadata.refresh_events import RefreshEvent

logger = logging.getLogger(__name__)

MAX_FILES = 500
MAX_BYTES = 16 * 1024 * 1024
"""What a sink leaves in a folder at most, but for a newest file that is larger; its oldest files go."""


class EventSink(Protocol):
    """Neither method raises: what does not get through is counted as lost. One of a place that may take long is for a
    `BackgroundSink` to call, which waits no longer than a read may."""

    def write(self, events: Sequence[RefreshEvent]) -> None:
        """Take these events, at least one."""

    def close(self) -> None:
        """No more events will come."""


class LossCount:
    """Events that a sink lost, until one that gets through reports how many they were."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, events: Sequence[RefreshEvent]) -> None:
        """These did not get through, and neither did the losses that they reported."""
        self._count += sum(1 + event.dropped_before for event in events)

    def told_by(self, events: Sequence[RefreshEvent]) -> list[RefreshEvent]:
        """`events`, at least one, the first of which reports all losses so far."""
        count, self._count = self._count, 0
        return [replace(events[0], dropped_before=events[0].dropped_before + count), *events[1:]]


class Folder(Protocol):
    """A place for files. Methods raise OSError; its text may be logged, so it must not hold a secret."""

    def write(self, name: str, content: bytes) -> None:
        """Make a file that readers see as a whole or not at all."""

    def delete(self, name: str) -> None:
        """See that there is no such file; it may be gone already."""


class FolderSink:
    """Writes each batch of events as one file of JSON lines, `events-<writer>-<number>.jsonl`, numbered from 0 without
    a gap. After a file that failed another writer begins."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._kept: deque[tuple[str, int]] = deque()  # name and bytes of each file, of all writers, oldest first
        self._losses = LossCount()
        self._failing = False  # and a warning has said so
        self._begin_writer()

    def write(self, events: Sequence[RefreshEvent]) -> None:
        told = self._losses.told_by(events)
        content = "".join(event.to_json() + "\n" for event in told).encode()
        name = f"events-{self._writer_id}-{self._number:08d}.jsonl"
        try:
            self._folder.write(name, content)
        except Exception as error:  # the thread of a folder far away would end, and lose uncounted what follows
            self._losses.add(told)
            # Its file may be there: an object store copies it to its name, and may fail after that. A stream that has
            # read it would never see another of the same name.
            self._begin_writer()
            if not self._failing:
                why = error if isinstance(error, OSError) else type(error).__name__
                logger.warning("refresh events not written: %d (%s)", len(told), why)
            self._failing = True
            return
        self._failing = False
        self._number += 1
        self._kept.append((name, len(content)))
        self._delete_oldest()

    def close(self) -> None:
        """Nothing is open between two files."""

    def _begin_writer(self) -> None:
        self._writer_id, self._number = uuid.uuid4().hex, 0

    def _delete_oldest(self) -> None:
        while len(self._kept) > 1 and (len(self._kept) > MAX_FILES or sum(size for _, size in self._kept) > MAX_BYTES):
            name, _ = self._kept.popleft()
            try:
                self._folder.delete(name)
            except OSError as error:
                logger.warning("%s was not deleted: %s", name, error)
