"""The examples report a user's mistake in one line, before they start anything."""

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


def error_line(example: str, *arguments: str | Path) -> str:
    """The only line of output: no traceback, and no Spark."""
    command = [sys.executable, EXAMPLES / example, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    return line


@pytest.fixture
def taken_ports() -> Iterator[None]:
    with ExitStack() as opened:
        for port in STANDARD_PORTS:
            with suppress(OSError):  # the port is in use already
                opened.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


def test_second_local_kafka_suggests_any_ports(taken_ports: None) -> None:
    line = error_line("local_kafka.py")
    assert "19092" in line
    assert "--any-ports" in line


@pytest.mark.parametrize("text", ["sasl.password: hunter2\n", None])
def test_secured_cluster_names_a_bad_properties_file_without_its_content(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    if text is not None:
        file.write_text(text)
    line = error_line("secured_cluster.py", "--config", file)
    assert str(file) in line
    assert "NAME=VALUE" in line
    assert "hunter2" not in line
