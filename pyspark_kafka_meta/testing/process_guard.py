"""A data folder and a process group that vanish with the process that made them, however that ends, even by SIGKILL.

A watcher, this file run as a script, leads the group; when its parent is gone it kills the group and removes the
folder. A parent-death signal (Linux `prctl`) would leave the folder, and would fire when a mere thread of it ends.
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


class Guard:
    """The folder is `folder`; processes that shall end with this one are started in the process group `group`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with (self.folder / "lock.new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            Path(lock.name).rename(self.folder / "lock")  # nobody ever sees it unlocked while this cluster lives
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


def sweep() -> None:
    """Remove folders whose watcher was killed too: their lock is free."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        with contextlib.suppress(OSError), path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path.parent)


def watch(parent: int, folder: Path) -> None:
    """Wait until `parent` is this process's parent no more, then clean up."""
    # The kernel sends SIGHUP to a group that loses its parent while a member is stopped, as a paused broker is.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while os.getppid() == parent:
        time.sleep(POLL_S)
    group = os.getpgrp()
    if os.fork() == 0:
        os.setpgid(0, 0)  # out of the group that is about to be killed, and this process's own parent with it
        os.killpg(group, signal.SIGKILL)
        _remove(folder)


def _remove(folder: Path) -> None:
    """Try until it works: a killed node may still finish the write that it is in."""
    deadline = time.monotonic() + REMOVAL_TIMEOUT_S
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)


if __name__ == "__main__":
    watch(int(sys.argv[1]), Path(sys.argv[2]))
