"""Where events are read from, if that place is not there; and the state when the cluster does not respond."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.errors import AuthenticationError, ConnectError, KafkaMetaError, OptionError
from pyspark_kafka_meta.tables.event_file_reader import EventFile, EventFolder
from pyspark_kafka_meta.tools import sources
from pyspark_kafka_meta.tools.cli import events
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.sources import FolderEvents, StateReader
from tests.unit.written_events import made, write


@pytest.mark.parametrize("command", ["events", "caches", "page --port 0"])
@pytest.mark.parametrize(
    ("scheme", "name", "why"),
    [
        ("", "typo", "No such file or directory"),
        ("file://", "typo", "No such file or directory"),
        ("", "x" * 300, "File name too long"),
    ],
)
def test_a_folder_that_is_not_there_is_a_mistake(
    command: str, scheme: str, name: str, why: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--path", f"{scheme}{tmp_path}/{name}"])
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
    assert f"cannot be read ({why}): correct --path" in result.stderr


def test_a_folder_that_is_followed_may_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(events, "sleep", interrupted)
    assert CliRunner().invoke(app, ["events", "--path", str(tmp_path / "later"), "--follow"]).exit_code == 0


def test_what_was_read_before_an_error_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "FILES_AT_ONCE", 1)
    for number in range(2):
        write(tmp_path, made(f"{number:032x}", 1))
    source = FolderEvents(str(tmp_path))
    with monkeypatch.context() as broken:
        read, lines = list[EventFile](), EventFolder.lines

        def one_file(folder: EventFolder, files: list[EventFile]) -> Iterator[bytes]:
            if read:
                raise PermissionError("access denied")
            read.extend(files)
            return lines(folder, files)

        broken.setattr(EventFolder, "lines", one_file)
        with pytest.raises(OptionError, match="no events can be read: access denied"):
            list(source.read())

    assert len(list(source.read())) == 2
    assert list(source.read()) == []


@pytest.mark.parametrize("command", ["events", "caches"])
def test_brokers_that_do_not_respond_are_told_of_soon(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "TOPIC_DEFAULTS", dict.fromkeys(sources.TOPIC_DEFAULTS, "300"))
    result = CliRunner().invoke(app, [command, "--events-topic", "t", "--bootstrap-servers", "127.0.0.1:1"])
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
    assert "no broker responded" in result.stderr


def test_without_a_path_there_may_be_no_folders_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "none"))
    result = CliRunner().invoke(app, ["events"])
    assert (result.exit_code, "no such events" in result.stderr) == (0, True)


@pytest.mark.parametrize(("error", "times"), [(ConnectError("nobody there"), 3), (AuthenticationError("no"), 1)])
def test_the_cluster_is_asked_again_only_where_that_may_help(
    error: KafkaMetaError, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def fail(*_: object) -> NoReturn:
        requests.append(1)
        raise error

    monkeypatch.setattr(sources, "describe_cluster", fail)
    options = {"kafka.bootstrap.servers": "b:9"}
    state_reader = StateReader(FolderEvents(str(tmp_path)), options, lambda _: (), lambda: ({}, {}, 0.0))

    assert [str(state_reader.read().trouble).startswith(str(error)) for _ in range(3)] == [True] * 3
    assert len(requests) == times
