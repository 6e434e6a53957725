"""The default folder of an application's events and liveness locks, for temporary files, below `default_root`.

An application that runs for months has the caches of many short-lived processes, and nobody asked for this folder. So
each new cache deletes the oldest files of caches that have ended.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from pyspark_kafka_meta.events.folder_sink import LocalFolder, open_folder, writer_prefix

RETENTION_DAYS = 7
"""An application's folder is deleted after this time without an event, unless one of its caches lives. In the folder,
files of caches that have ended are deleted after this time."""
MAX_ENDED_FILES = 5_000
MAX_ENDED_BYTES = 64 * 1024 * 1024
"""Limits of the files of ended caches in an application's folder: a day of 8 short-lived workers every 2 minutes."""
_EVENTS = re.compile(r"\.?events-([0-9a-f]{16})")
"""Files of events, finished or not, and the prefix of their writers."""


class StoredFile(NamedTuple):
    """A file of events, ordered by age: `modified`, in seconds since 1970 UTC, comes first."""

    modified: float
    name: str
    bytes: int


def default_root() -> Path:
    """Parent of the default folders of all applications of this user on this machine. Raises OSError if the machine has
    no folder for temporary files that can be written."""
    return Path(tempfile.gettempdir()) / f"kafkameta-events-{os.getuid()}"


def application_folder(application: str) -> Path:
    """Of the events of an application, which `origin.driver_name` names. Raises OSError as `default_root`."""
    return default_root() / re.sub(r"[^A-Za-z0-9_-]", "_", application)


class DefaultFolder(LocalFolder):
    """The folder of one application below `default_root`, where any user may have created a folder before."""

    def __init__(self, application: str) -> None:
        self._application = application

    def make(self) -> Path:
        folder = application_folder(self._application)
        for path in (folder.parent, folder):
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                if path == folder:
                    _delete_expired(folder.parent, time.time())
            _check_private(path)
        return folder


def delete_old_files(folder: Path, living: Collection[str], now: float) -> None:
    """Delete the files of ended caches beyond the limits. Raises OSError.

    Args:
        folder: of an application.
        living: the ids of its living caches, whose own sinks limit their files.
        now: seconds since 1970 UTC.
    """
    kept = set(map(writer_prefix, living))
    ended = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if (name := _EVENTS.match(entry.name)) and name[1] not in kept:
                with suppress(FileNotFoundError):  # another process deletes it
                    status = entry.stat(follow_symlinks=False)
                    ended.append(StoredFile(status.st_mtime, entry.name, status.st_size))
    for file in beyond_limits(ended, now):
        (folder / file.name).unlink(missing_ok=True)


def beyond_limits(files: Iterable[StoredFile], now: float) -> list[StoredFile]:
    """The files that are too many, too large together, or too old, oldest first; pure."""
    newest_first = sorted(files, reverse=True)
    totals = accumulate(file.bytes for file in newest_first)
    oldest = now - RETENTION_DAYS * 24 * 3600
    kept = sum(
        number <= MAX_ENDED_FILES and total <= MAX_ENDED_BYTES and file.modified >= oldest
        for number, (file, total) in enumerate(zip(newest_first, totals, strict=True), 1)
    )
    return newest_first[kept:][::-1]


def _check_private(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a private folder of this user: remove it, or set the option eventsPath")


def _delete_expired(root: Path, now: float) -> None:
    for path in root.iterdir():
        with suppress(OSError), open_folder(path) as folder:  # not a folder, or another process deletes it
            if os.fstat(folder).st_mtime < now - RETENTION_DAYS * 24 * 3600:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while a cache of the application lives
                shutil.rmtree(path, ignore_errors=True)
