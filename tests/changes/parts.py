"""PostgreSQL and Kafka Connect end with the process that started them, by `make changes`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kafka.cluster_tools import poll_until

START_AND_WAIT = """
import sys
import tests.changes
from connect import Connect
from postgres import Postgres

with Postgres(), Connect("127.0.0.1:1"):
    print("started", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """As tmp_path, but also for the user that PostgreSQL runs as."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)
        yield Path(name)


def test_no_process_survives_a_killed_parent(folder: Path) -> None:
    own = {**os.environ, "TMPDIR": str(folder)}
    command = [sys.executable, "-c", START_AND_WAIT]
    with subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        assert len(users_of(folder)) > 4
        parent.send_signal(signal.SIGKILL)
    poll_until(lambda: not users_of(folder) and not list(folder.iterdir()))


def users_of(folder: Path) -> list[Path]:
    """Processes with the folder in their command lines, or below it, as those of PostgreSQL's server are."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            named = str(folder) in (process / "cmdline").read_text(errors="replace")
            if named or (process / "cwd").readlink().is_relative_to(folder):
                found.append(process)
    return found
