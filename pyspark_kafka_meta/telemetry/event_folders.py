"""Local folders of event files: readable by their owner alone, and never at another place than the one that was named.

The folder itself may not be a symbolic link, and new files are made in it by its descriptor, so that a link put in
their way leads nowhere.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

KEPT_DAYS = 7
"""How long the default folder of an application stays after its last event, and after its last cache."""


def default_root() -> Path:
    """Parent of every application's default event folder, for this user on this machine."""
    return Path(tempfile.gettempdir()) / f"kafkameta-events-{os.getuid()}"


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """A descriptor of a folder that is there and no link. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield folder
    finally:
        os.close(folder)


class LocalFolder:
    """A folder that is made, for the owner alone, when there is something to write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, name: str, content: bytes) -> None:
        """Raises OSError: the file was not made, and nothing is left of it."""
        with open_folder(self.make()) as folder:
            unfinished = f".{name}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            try:
                with os.fdopen(os.open(unfinished, flags, 0o600, dir_fd=folder), "wb") as file:
                    file.write(content)
                os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with suppress(OSError):
                    os.unlink(unfinished, dir_fd=folder)
                raise

    def delete(self, name: str) -> None:
        """Raises OSError."""
        with open_folder(self.make()) as folder, suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)

    def make(self) -> Path:
        """See that the folder is there, and safe to write to. Raises OSError."""
        self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self._path


class DefaultFolder(LocalFolder):
    """The folder of one application below `default_root`, in a place where anybody may have made one before."""

    def __init__(self, application: str) -> None:
        self._root = default_root()
        super().__init__(self._root / re.sub(r"[^A-Za-z0-9_-]", "_", application))

    def make(self) -> Path:
        for path in (self._root, self._path):
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                if path == self._path:
                    _remove_old(self._root, time.time())
            _check_own(path)
        return self._path


def _check_own(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not a folder of this user alone: remove it, or set the option metricsPath")


def _remove_old(root: Path, now: float) -> None:
    for path in root.iterdir():
        with suppress(OSError), open_folder(path) as folder:  # no folder, or another process was first
            if os.fstat(folder).st_mtime < now - KEPT_DAYS * 24 * 3600:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while a cache lives there
                shutil.rmtree(path, ignore_errors=True)
