"""The examples report a user's mistake in one line, before they start anything: no traceback, and no Spark."""

from __future__ import annotations

import runpy
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.testing.local_kafka import STANDARD_PORTS

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def error_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an example with arguments; returns the last line of its errors."""

    def run(example: str, *arguments: str | Path) -> str:
        monkeypatch.setattr("sys.argv", [example, *map(str, arguments)])
        with pytest.raises(SystemExit) as raised:
            runpy.run_path(str(EXAMPLES / example), run_name="__main__")
        printed, errors = capsys.readouterr()
        line = raised.value.code if isinstance(raised.value.code, str) else errors.splitlines()[-1]
        assert (printed, "\n" in line) == ("", False)
        return line

    return run


@pytest.fixture
def taken_ports() -> Iterator[None]:
    with ExitStack() as opened:
        for port in STANDARD_PORTS:
            with suppress(OSError):  # the port is in use already
                opened.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


@pytest.mark.usefixtures("taken_ports")
def test_second_local_kafka_suggests_any_ports(error_line: Callable[..., str]) -> None:
    line = error_line("local_kafka.py")
    assert "19092" in line
    assert "--any-ports" in line


@pytest.mark.parametrize("text", ["sasl.password: hunter2\n", None])
def test_secured_cluster_names_a_bad_properties_file_without_its_content(
    text: str | None, error_line: Callable[..., str], tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    if text is not None:
        file.write_text(text)
    line = error_line("secured_cluster.py", "--config", file)
    assert str(file) in line
    assert "NAME=VALUE" in line
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--by", "2"], ["--by 2", "topic-0", "2 partitions"]),
        (["--by", "key"], ["--by key", "key-hash", "sticky"]),
        (["--acks", "1", "--idempotence"], ["--idempotence", "--acks all"]),
    ],
)
def test_producer_names_choices_that_do_not_go_together(
    arguments: list[str], facts: list[str], error_line: Callable[..., str], mock_cluster: MockCluster
) -> None:
    mock_cluster.create_topic("topic-0", partitions=2)
    line = error_line("producer.py", "--bootstrap-servers", mock_cluster.bootstrap_servers, *arguments)
    assert [fact for fact in facts if fact not in line] == []
