"""A data folder and a process group that end with the process that created them, even if SIGKILL ends it.

A watcher process, this file run as a script, leads the group. After its parent's end it kills the group and removes the
folder. A parent-death signal (Linux `prctl`) would leave the folder, and is sent at the end of a mere thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

POLL_S = 0.25
REMOVAL_TIMEOUT_S = 10.0
PREFIX = "kafkameta-cluster-"


class ProcessGuard:
    """Start processes that must end with this process in the process group `group`; their data go to `folder`."""

    def __init__(self) -> None:
        remove_leftovers()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with (self.folder / "lock.new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            Path(lock.name).rename(self.folder / "lock")  # so that the file is always locked while this process lives
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(self.folder)],
                stdin=lock,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        self.group = self._watcher.pid

    def close(self) -> None:
        """Kill the group and remove the folder."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        self._watcher.wait()
        _remove(self.folder)


def remove_leftovers() -> None:
    """Remove the folders of killed watchers, whose locks are free."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        with contextlib.suppress(OSError), path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path.parent)


def watch(parent: int, folder: Path) -> None:
    """Wait until `parent` is not the parent of this process any more, then kill the group and remove the folder."""
    # The kernel sends SIGHUP to a group that loses its parent while a member, such as a paused broker, is stopped.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while os.getppid() == parent:
        time.sleep(POLL_S)
    group = os.getpgrp()
    if os.fork() == 0:
        os.setpgid(0, 0)  # out of the group, which is killed next together with this process's parent
        os.killpg(group, signal.SIGKILL)
        _remove(folder)


def _remove(folder: Path) -> None:
    """Retry: a killed node may still finish a write."""
    deadline = time.monotonic() + REMOVAL_TIMEOUT_S
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)


if __name__ == "__main__":
    watch(int(sys.argv[1]), Path(sys.argv[2]))
