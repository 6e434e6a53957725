"""The default folder of an application's events and liveness locks, for temporary files, below `default_root`."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from pyspark_kafka_meta.telemetry.folder_sink import LocalFolder, open_folder

RETENTION_DAYS = 7
"""An application's folder is deleted after this time without an event, unless one of its caches lives."""


def default_root() -> Path:
    """Parent of the default folders of all applications of this user on this machine."""
    return Path(tempfile.gettempdir()) / f"kafkameta-events-{os.getuid()}"


def application_folder(application: str) -> Path:
    """Of the events of an application, which `event_origin.driver_name` names."""
    return default_root() / re.sub(r"[^A-Za-z0-9_-]", "_", application)


class DefaultFolder(LocalFolder):
    """The folder of one application below `default_root`, where any user may have created a folder before."""

    def __init__(self, application: str) -> None:
        self._root = default_root()
        super().__init__(application_folder(application))

    def make(self) -> Path:
        for path in (self._root, self._path):
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                if path == self._path:
                    _delete_expired(self._root, time.time())
            _check_private(path)
        return self._path


def _check_private(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a private folder of this user: remove it, or set the option metricsPath")


def _delete_expired(root: Path, now: float) -> None:
    for path in root.iterdir():
        with suppress(OSError), open_folder(path) as folder:  # not a folder, or another process deletes it
            if os.fstat(folder).st_mtime < now - RETENTION_DAYS * 24 * 3600:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while a cache of the application lives
                shutil.rmtree(path, ignore_errors=True)
