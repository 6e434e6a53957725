"""Where events are read from, if that place is not there."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.cli import events
from pyspark_kafka_meta.cli.main import app


@pytest.mark.parametrize("command", ["events", "caches"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_that_does_not_exist_is_a_mistake(command: str, scheme: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [command, "--path", f"{scheme}{tmp_path}/typo"])
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
    assert "does not exist: correct --path" in result.stderr


def test_one_that_is_followed_may_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(events, "sleep", interrupted)
    assert CliRunner().invoke(app, ["events", "--path", str(tmp_path / "later"), "--follow"]).exit_code == 0


def test_without_a_path_there_may_be_no_folders_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "none"))
    result = CliRunner().invoke(app, ["events"])
    assert (result.exit_code, "no such events" in result.stderr) == (0, True)
