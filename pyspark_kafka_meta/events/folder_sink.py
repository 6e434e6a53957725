"""Writes refresh events as files of JSON lines, to a local folder or to a folder of one of pyarrow's file systems.

Local folders are readable by their owner alone. A local folder may not be a symbolic link, and new files are created
relative to its descriptor, so that a link in their way is not followed.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyspark_kafka_meta.events.event import Event
from pyspark_kafka_meta.events.sinks import logger

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

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
