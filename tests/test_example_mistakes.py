"""The examples tell of a mistake in one line, before they start anything."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from pyspark_kafka_meta.testing.local_kafka import STANDARD_PORTS

EXAMPLES = Path(__file__).parent.parent / "examples"


def complaint(example: str, *arguments: str | Path) -> str:
    """The one line that it says, and no Spark beside it."""
    command = [sys.executable, EXAMPLES / example, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    return line


@pytest.fixture
def taken_ports() -> Iterator[None]:
    with ExitStack() as opened:
        for port in STANDARD_PORTS:
            with suppress(OSError):  # somebody else has it
                opened.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


def test_a_second_local_kafka_names_its_own_option_for_free_ports(taken_ports: None) -> None:
    line = complaint("local_kafka.py")
    assert line.startswith("Port 19092 is in use: ")
    assert line.endswith("or say --any-ports for free ones.")


@pytest.mark.parametrize("text", ["sasl.password: hunter2\n", None])
def test_the_secured_cluster_looks_at_its_file_first_and_repeats_no_line(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    if text is not None:
        file.write_text(text)
    line = complaint("secured_cluster.py", "--config", file)
    assert str(file) in line
    assert line.endswith("NAME=VALUE")
    assert "hunter2" not in line
