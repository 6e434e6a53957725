"""Which metadata caches of an application live on this machine, so that one whose process was killed is missed.

Spark ends Python workers by SIGKILL, which leaves them no time to say a word. So a cache holds a lock on a file named
after it, which the kernel lets go with the process; the next cache that is born here finds it, and reports it.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from pyspark_kafka_meta.telemetry.event_folders import DefaultFolder, open_folder

logger = logging.getLogger(__name__)

SUFFIX = ".alive"


class LivingCaches:
    """The lock that shows that the one cache of a publisher lives, and those of other caches.

    Args:
        application: names the folder, the default one for events.
        outlet: where the events go. Caches whose events go elsewhere are not reported: no one looks for that there.
    """

    def __init__(self, application: str, outlet: str) -> None:
        self._folder = DefaultFolder(application)
        self._suffix = f".{sha256(outlet.encode()).hexdigest()[:16]}{SUFFIX}"
        self._held = ExitStack()

    def enter(self, cache_id: str) -> tuple[str, ...]:
        """From now on the cache lives. Returns the ids of those that have died since the last look, each to one
        caller alone; nothing where the folder cannot be used, as this is worth no failure."""
        try:
            folder = self._folder.make()
            self._hold(folder, cache_id)
            return tuple(sorted(self._bury(folder)))
        except OSError as error:
            logger.debug("caches that died cannot be told: %s", error)
            return ()

    def leave(self) -> None:
        """The cache ends in good order, which others need not report."""
        self._held.close()

    def _hold(self, folder: Path, cache_id: str) -> None:
        self._held.enter_context(suppress(OSError))  # a file that stays is reported as dead, which is worth no failure
        # Held so that the folder is not removed as old while a cache lives, even one whose events go elsewhere.
        fcntl.flock(self._held.enter_context(open_folder(folder)), fcntl.LOCK_SH)
        # Locked before it has its name: a file that others see without a lock is that of a dead cache.
        path, unfinished = folder / f"{cache_id}{self._suffix}", folder / f".{cache_id}.tmp"
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        self._held.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        unfinished.rename(path)
        self._held.callback(path.unlink)

    def _bury(self, folder: Path) -> Iterator[str]:
        for path in folder.glob(f"*{self._suffix}"):
            with suppress(OSError), _locked(path):  # or its cache lives, or another process was first
                path.unlink()
                yield path.name.removesuffix(self._suffix)


def dead_caches(root: Path) -> set[str]:
    """The ids of those that died on this machine, below `default_root`, and that no cache has reported yet."""
    dead = set()
    for path in root.glob(f"*/*{SUFFIX}"):
        with suppress(OSError), _locked(path):
            dead.add(path.name.partition(".")[0])
    return dead


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Raises OSError: it is locked, so its cache lives, or it is gone."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
