"""`LivenessLock`: shows that a metadata cache lives, so that caches of killed processes are detected.

Spark ends Python workers by SIGKILL, so a worker cannot report its end. Each cache locks a file named after it; the
kernel releases the lock with the process. The next cache that starts on this machine finds the unlocked file, and
reports the dead cache to readers anywhere. A process id with its start time would not show as much: containers may
share a folder and a host name, and see each other's ids as unused; macOS has no /proc; only the machine could look.

Threads lock and unlock, and end, because the temporary folder may be missing, full, huge or on a drive that hangs.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from queue import Empty, SimpleQueue

from pyspark_kafka_meta.events.default_folder import DefaultFolder, default_root, delete_old_files
from pyspark_kafka_meta.events.folder_sink import open_folder
from pyspark_kafka_meta.events.sinks import WAIT_S, logger

SUFFIX = ".alive"
_LOCK_FILES = f"alive-*/*{SUFFIX}"
"""Below the folder of an application."""


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
        self._is_released = False

    def acquire(self, cache_id: str) -> tuple[str, ...]:
        """Lock the file of this cache. Returns the ids of dead caches, each to one caller alone; none if the folder
        cannot be used, and none yet if it takes long."""
        if _started(partial(self._hold, cache_id)) is not None:
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
        self._is_released = True
        if (thread := _started(self._held.close)) is not None:
            thread.join(WAIT_S)

    def _hold(self, cache_id: str) -> None:
        try:
            folder = self._folder.make()
            locks = self._lock(folder, cache_id, self._held)
            self._dead.put(tuple(sorted(_remove_dead(locks))))
            delete_old_files(folder, [path.stem for path in folder.glob(_LOCK_FILES)], time.time())
        except Exception as error:
            logger.debug("the default folder of events cannot be used: %s", error)
            self._dead.put(())
        if self._is_released:  # meanwhile, as the folder took long
            self._held.close()

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
