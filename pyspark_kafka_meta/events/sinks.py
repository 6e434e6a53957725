"""The interface of event sinks, the count of the events that they lose, and `BackgroundSink`, which keeps slow sinks
out of a task's way: an object store, a network drive that hangs, brokers that need a token first.

`FolderSink` writes events as files of JSON lines, to a local folder or to a folder of one of pyarrow's file systems.
Local folders are readable by their owner alone. A local folder may not be a symbolic link, and new files are created
relative to its descriptor, so that a link in their way is not followed.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Protocol

from pyspark_kafka_meta.errors import KafkaMetaError, RecordTooLargeError
from pyspark_kafka_meta.events.event import Event

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


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


MAX_FILES = 500
MAX_BYTES = 16 * 1024 * 1024
"""Limits of a sink's files in its folder. The sink deletes its oldest files, but never its newest."""


class Folder(Protocol):
    """Methods raise OSError. Its text is logged, so it must not contain a secret."""

    def write(self, name: str, content: bytes) -> None:
        """Create a file. Readers see the whole file or none."""

    def delete(self, name: str) -> None:
        """Delete a file, which may be gone already."""


def writer_prefix(cache_id: str) -> str:
    """What the writer ids of a cache begin with: names of files show whether their cache lives."""
    return sha256(cache_id.encode()).hexdigest()[:16]


class FolderSink:
    """Writes each batch of events as one file, `events-<writer>-<number>.jsonl`, numbered from 0 without a gap. After a
    failed write a new writer id begins."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._files: deque[tuple[str, int]] = deque()  # name and bytes of each written file, oldest first
        self._writer_id: str | None = None  # until the next write
        self._number = 0

    def write(self, events: Sequence[Event]) -> None:
        if self._writer_id is None:
            self._writer_id, self._number = writer_prefix(events[0].cache_id) + uuid.uuid4().hex[:16], 0
        name = f"events-{self._writer_id}-{self._number:08d}.jsonl"
        try:
            content = "".join(event.to_json() + "\n" for event in events).encode()
            self._folder.write(name, content)
        except BaseException:
            # The file may exist: an object store may fail after the copy to the final name. A stream that has read the
            # file would never read another one of the same name.
            self._writer_id = None
            raise
        self._number += 1
        self._files.append((name, len(content)))
        self._delete_oldest()

    def close(self) -> None:
        """Does nothing: no file is open between two writes."""

    def _delete_oldest(self) -> None:
        while len(self._files) > 1 and (
            len(self._files) > MAX_FILES or sum(size for _, size in self._files) > MAX_BYTES
        ):
            name, _ = self._files.popleft()
            try:
                self._folder.delete(name)
            except OSError as error:
                logger.warning("%s was not deleted: %s", name, error)


class LocalFolder:
    """A local folder, created for its owner alone at the first write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, name: str, content: bytes) -> None:
        """Leaves no partial file after any error."""
        with open_folder(self.make()) as folder:
            unfinished = f".{name}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            try:
                with os.fdopen(os.open(unfinished, flags, 0o600, dir_fd=folder), "wb") as file:
                    file.write(content)
                os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(unfinished, dir_fd=folder)
                raise

    def delete(self, name: str) -> None:
        """Raises OSError."""
        with open_folder(self.make()) as folder, suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)

    def make(self) -> Path:
        """Create the folder if it is missing. Raises OSError if it cannot be created or is not safe to write to."""
        self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self._path


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """A descriptor of an existing folder. Raises OSError, for a symbolic link too."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield folder
    finally:
        os.close(folder)


class RemoteFolder:
    """The folder at a URI that `pyarrow.fs.FileSystem.from_uri` accepts. Object stores need no folder to be created."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def write(self, name: str, content: bytes) -> None:
        """Raises OSError."""
        with file_system(self._uri) as (files, folder):
            unfinished = f"{folder}/.{name}.tmp"
            try:
                with files.open_output_stream(unfinished) as file:
                    file.write(content)
                files.move(unfinished, f"{folder}/{name}")
            except BaseException:
                with suppress(Exception):  # it may not exist; fsspec file systems raise exceptions of any type
                    files.delete_file(unfinished)
                raise

    def delete(self, name: str) -> None:
        """Raises OSError."""
        with file_system(self._uri) as (files, folder), suppress(FileNotFoundError):
            files.delete_file(f"{folder}/{name}")


def folder_at(location: str) -> Folder:
    """The folder of a `eventsPath`."""
    return RemoteFolder(location) if "://" in location else LocalFolder(Path(location))


@contextmanager
def file_system(location: str, place: str = "eventsPath") -> Iterator[tuple[FileSystem, str]]:
    """The file system of a local path, or of a URI that pyarrow knows, and the path in it.

    Args:
        place: what names the URI, for the error text.

    Raises:
        OSError: for every error of the file system. For a URI its text contains neither the URI, which may hold keys,
            nor the original text, which may repeat the URI.
    """
    from pyarrow.fs import FileSystem, LocalFileSystem

    if "://" not in location:
        yield LocalFileSystem(), str(Path(location).absolute())
        return
    try:
        yield FileSystem.from_uri(location)
    except Exception as error:  # fsspec file systems raise exceptions of any type
        scheme, kind = location.partition("://")[0], type(error).__name__
        raise OSError(f"{kind} from the {scheme} folder of {place}: check its URI and access to it") from None
