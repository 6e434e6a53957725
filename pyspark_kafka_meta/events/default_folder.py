"""The default folder of an application's events, below `default_root` in the folder for temporary files, and the locks
in it by which metadata caches show that they live.

An application that runs for months has the caches of many short-lived processes, and nobody asked for this folder. So
each new cache deletes the oldest files of caches that have ended.

Spark ends Python workers by SIGKILL, so a worker cannot report its end. Each cache locks a file named after it; the
kernel releases the lock with the process. The next cache that starts on this machine finds the unlocked file, and
reports the dead cache to readers anywhere. A process id with its start time would not show as much: containers may
share a folder and a host name, and see each other's ids as unused; macOS has no /proc; only the machine could look.
Threads lock and unlock, and end, because the folder may be missing, full, huge or on a drive that hangs.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from pyspark_kafka_meta.events.sinks import WAIT_S, LocalFolder, logger, open_folder, writer_prefix

RETENTION_DAYS = 7
"""An application's folder is deleted after this time without an event, unless one of its caches lives. In the folder,
files of caches that have ended are deleted after this time."""
MAX_ENDED_FILES = 5_000
MAX_ENDED_BYTES = 64 * 1024 * 1024
"""Limits of the files of ended caches in an application's folder: a day of 8 short-lived workers every 2 minutes."""
_EVENTS = re.compile(r"\.?events-([0-9a-f]{16})")
"""Files of events, finished or not, and the prefix of their writers."""
SUFFIX = ".alive"
_LOCK_FILES = f"alive-*/*{SUFFIX}"
"""Below the folder of an application."""


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
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
                raise PermissionError(
                    f"{path} is not a private folder of this user: remove it, or set the option eventsPath"
                )
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


def _delete_expired(root: Path, now: float) -> None:
    for path in root.iterdir():
        with suppress(OSError), open_folder(path) as folder:  # not a folder, or another process deletes it
            if os.fstat(folder).st_mtime < now - RETENTION_DAYS * 24 * 3600:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while a cache of the application lives
                shutil.rmtree(path, ignore_errors=True)


# --- living and dead caches -------------------------------------------------------------------------------------------


class LivenessLock:
    """The lock of one cache, which also detects the dead caches of its application, and limits the files of its ended
    caches. No method raises or waits longer than `WAIT_S`: a cache works without a lock too.

    Args:
        application: names the folder of the lock file, below the default folder for events.
        destination: where the cache's events go. Dead caches with another destination are not reported: nobody would
            look for them among these events.
    """

    def __init__(self, application: str, destination: str) -> None:
        self._folder = DefaultFolder(application)
        self._locks = f"alive-{sha256(destination.encode()).hexdigest()[:16]}"  # small, so that it is listed at once
        self._dead = SimpleQueue[tuple[str, ...]]()
        self._held = ExitStack()
        self._holding: threading.Thread | None = None

    def acquire(self, cache_id: str) -> tuple[str, ...]:
        """Lock the file of this cache. Returns the ids of dead caches, each to one caller alone; none if the folder
        cannot be used, and none yet if it takes long."""
        self._holding = _started(partial(self._hold, cache_id))
        if self._holding is not None:
            with suppress(Empty):
                return self._dead.get(timeout=WAIT_S)
        return ()

    def take_dead(self) -> tuple[str, ...]:
        """The ids of dead caches that were found after `acquire` returned, once."""
        with suppress(Empty):
            return self._dead.get_nowait()
        return ()

    def release(self) -> None:
        """Remove the file: the cache was closed, so it is not reported as dead."""
        if (holding := self._holding) is None:
            return
        if (closing := _started(partial(self._close, holding))) is not None:
            closing.join(WAIT_S)
        else:  # this thread does not wait long: a lock that is not held yet ends with the process
            self._close(holding, WAIT_S)

    def _close(self, holding: threading.Thread, timeout_s: float | None = None) -> None:
        """Not under the thread that locks: it would take the file, unlocked and not removed, for a dead cache's."""
        holding.join(timeout_s)
        if not holding.is_alive():
            self._held.close()

    def _hold(self, cache_id: str) -> None:
        try:
            folder = self._folder.make()
            locks = self._lock(folder, cache_id, self._held)
            self._dead.put(tuple(sorted(_remove_dead(locks))))
            delete_old_files(folder, [path.stem for path in folder.glob(_LOCK_FILES)], time.time())
        except Exception as error:
            logger.debug("the default folder of events cannot be used: %s", error)
            self._dead.put(())

    def _lock(self, folder: Path, cache_id: str, held: ExitStack) -> Path:
        """Returns the folder of the lock file."""
        held.enter_context(suppress(OSError))  # a file that cannot be removed is reported as dead: no failure
        # Keeps the folder from expiring while a cache lives, even if the cache's events go elsewhere.
        descriptor = held.enter_context(open_folder(folder))
        with suppress(BlockingIOError):  # another program locks it
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        locks = folder / self._locks
        locks.mkdir(mode=0o700, exist_ok=True)
        # Locked before the rename: other caches take an unlocked file for a dead cache's.
        path, unfinished = locks / f"{cache_id}{SUFFIX}", locks / f".{cache_id}.tmp"
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        held.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unfinished.rename(path)
        held.callback(path.unlink)
        return locks


def dead_caches() -> set[str]:
    """The ids of dead caches on this machine that no cache has reported yet; none if there is no temporary folder."""
    dead = set()
    with suppress(OSError):
        for path in default_root().glob(f"*/{_LOCK_FILES}"):
            with suppress(OSError), _locked(path):
                dead.add(path.stem)
    return dead


def _remove_dead(locks: Path) -> Iterator[str]:
    for path in locks.glob(f"*{SUFFIX}"):
        with suppress(OSError), _locked(path):  # OSError: the cache lives, or another process removes the file
            path.unlink()
            yield path.stem


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Raises OSError: the file is locked, because its cache lives, or is gone."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _started(work: Callable[[], None]) -> threading.Thread | None:
    """The thread that does it; None if this process has as many threads as it may have."""
    thread = threading.Thread(target=work, name="kafkameta-liveness", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        logger.debug("dead caches cannot be detected: %s", error)
        return None
    return thread
