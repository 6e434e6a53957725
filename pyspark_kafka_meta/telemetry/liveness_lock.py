"""`LivenessLock`: shows that a metadata cache lives, so that caches of killed processes are detected.

Spark ends Python workers by SIGKILL, so a worker cannot report its end. Each cache locks a file named after it; the
kernel releases the lock with the process. The next cache that starts on this machine finds the unlocked file.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from pyspark_kafka_meta.telemetry.default_folder import DefaultFolder
from pyspark_kafka_meta.telemetry.folder_sink import open_folder

logger = logging.getLogger(__name__)

SUFFIX = ".alive"


class LivenessLock:
    """The lock of one cache, which also detects the dead caches of its application.

    Args:
        application: names the folder of the lock file, the default folder for events.
        destination: where the cache's events go. Dead caches with another destination are not reported: nobody would
            look for them among these events.
    """

    def __init__(self, application: str, destination: str) -> None:
        self._folder = DefaultFolder(application)
        self._suffix = f".{sha256(destination.encode()).hexdigest()[:16]}{SUFFIX}"
        self._held = ExitStack()

    def acquire(self, cache_id: str) -> tuple[str, ...]:
        """Lock the file of this cache. Returns the ids of dead caches, each to one caller alone; none where the folder
        cannot be used, because a read must not fail for that."""
        try:
            folder = self._folder.make()
            self._hold(folder, cache_id)
            return tuple(sorted(self._remove_dead(folder)))
        except OSError as error:
            logger.debug("dead caches cannot be detected: %s", error)
            return ()

    def release(self) -> None:
        """Remove the file: the cache was closed, so it is not reported as dead."""
        self._held.close()

    def _hold(self, folder: Path, cache_id: str) -> None:
        self._held.enter_context(suppress(OSError))  # a file that cannot be removed is reported as dead: no failure
        # Keeps the folder from expiring while a cache lives, even if the cache's events go elsewhere.
        fcntl.flock(self._held.enter_context(open_folder(folder)), fcntl.LOCK_SH)
        # Locked before the rename: other caches take an unlocked file for a dead cache's.
        path, unfinished = folder / f"{cache_id}{self._suffix}", folder / f".{cache_id}.tmp"
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        self._held.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        unfinished.rename(path)
        self._held.callback(path.unlink)

    def _remove_dead(self, folder: Path) -> Iterator[str]:
        for path in folder.glob(f"*{self._suffix}"):
            with suppress(OSError), _locked(path):  # OSError: the cache lives, or another process removes the file
                path.unlink()
                yield path.name.removesuffix(self._suffix)


def dead_caches(root: Path) -> set[str]:
    """The ids of dead caches on this machine, below `default_root`, that no cache has reported yet."""
    dead = set()
    for path in root.glob(f"*/*{SUFFIX}"):
        with suppress(OSError), _locked(path):
            dead.add(path.name.partition(".")[0])
    return dead


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Raises OSError: the file is locked, because its cache lives, or is gone."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
