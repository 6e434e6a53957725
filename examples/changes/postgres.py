"""PostgreSQL as a process of its own, whose changes can be read, and sessions with it.

Needs PostgreSQL's programs, such as those of Debian's package postgresql.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pyspark_kafka_meta.testing import ClusterError
from pyspark_kafka_meta.testing.kafka_config import HOST
from pyspark_kafka_meta.testing.kafka_node import free_ports
from pyspark_kafka_meta.testing.process_guard import ProcessGuard

USER = "postgres"
TIMEOUT_S = 300.0
POLL_S = 0.1
SETTINGS = {
    "wal_level": "logical",
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "timezone": "UTC",
    "fsync": "off",
    "dynamic_shared_memory_type": "mmap",  # files of the data folder, which is removed
}


def find_programs() -> Path:
    """The folder of PostgreSQL's programs. Raises ClusterError: there is none."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve()] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise ClusterError("PostgreSQL is missing: apt-get install postgresql, or put its programs on PATH.")
    return found[-1].parent


class Postgres:
    """A server inside `with`. It leaves no process and no file behind, even if this process is killed."""

    def __init__(self) -> None:
        self.port = free_ports(1)[0]
        self._programs = find_programs()
        # A server refuses to run as root.
        self._user = USER if os.getuid() == 0 else None

    def __enter__(self) -> Self:
        self._guard = ProcessGuard()
        try:
            self._server = self._start(self._new_data_folder())
            self._wait_until_up()
        except BaseException:
            self._guard.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._server.send_signal(signal.SIGQUIT)  # ends its processes, and frees shared memory
        self._server.wait(TIMEOUT_S)
        self._guard.close()

    def session(self) -> Session:
        """A new connection."""
        return Session([str(self._programs / "psql"), f"postgresql://{USER}@{HOST}:{self.port}/postgres"])

    def _new_data_folder(self) -> Path:
        self._guard.folder.chmod(0o711)
        data = self._guard.folder / "data"
        data.mkdir(0o700)
        if self._user:
            shutil.chown(data, self._user)
        command = [str(self._programs / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-N", "-E", "UTF8"]
        created = subprocess.run([*command, "--locale=C"], cwd="/", user=self._user, capture_output=True, text=True)
        if created.returncode != 0:
            raise ClusterError(f"initdb failed: {created.stderr}")
        return data

    def _start(self, data: Path) -> subprocess.Popen[bytes]:
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(data), "-p", str(self.port), *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                user=self._user,
                process_group=self._guard.group,
            )

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        command = [str(self._programs / "pg_isready"), "-q", "-h", HOST, "-p", str(self.port)]
        while subprocess.run(command).returncode != 0:
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise ClusterError(f"PostgreSQL does not start. Its log:\n{self._log.read_text()}")
            time.sleep(POLL_S)

    @property
    def _log(self) -> Path:
        return self._guard.folder / "log"


class Session:
    """A connection, inside `with`: a transaction begun in it stays open until it ends it."""

    END = "end of the statement"

    def __init__(self, psql: Sequence[str]) -> None:
        command = [*psql, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
        self._psql = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._psql.kill()
        self._psql.communicate()

    def send(self, line: str) -> None:
        """Have a statement executed, or a command of psql, without waiting: `execute` waits for those before it too."""
        assert self._psql.stdin
        self._psql.stdin.write(f"{line}\n")
        self._psql.stdin.flush()

    def execute(self, sql: str) -> list[str]:
        """Lines of the result, columns separated by `|`. Raises ClusterError: a statement failed."""
        assert self._psql.stdout
        self.send(f"{sql};\n\\echo {self.END}")
        lines: list[str] = []
        for line in self._psql.stdout:
            if line == f"{self.END}\n":
                return lines
            lines.append(line.rstrip("\n"))
        raise ClusterError(f"PostgreSQL refused {sql}: {' '.join(lines)}")

    def wait_until_sent(self) -> None:
        """Wait until Debezium has sent all changes so far. It tells the database while changes go on."""
        (end,) = self.execute("SELECT pg_current_wal_lsn()")
        sent = f"SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn > '{end}'"
        deadline = time.monotonic() + TIMEOUT_S
        while self.execute(sent) == ["0"]:
            self.execute("SELECT FROM pg_logical_emit_message(true, 'next', '')")
            if time.monotonic() > deadline:
                raise ClusterError("Debezium does not read the changes.")
            time.sleep(POLL_S)
