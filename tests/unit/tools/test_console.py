"""How commands end. What must not be cut short ends first: Ctrl-C and SIGTERM wait for it, and are not lost."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.tools import checkpoints
from pyspark_kafka_meta.tools.cli import cluster, events
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.console import WARNINGS, defer_signals
from pyspark_kafka_meta.tools.doctor import run_checks

ENDS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def came() -> Iterator[list[int]]:
    """The signals that arrived, in order."""
    numbers: list[int] = []
    before = {end: signal.signal(end, lambda number, _: numbers.append(number)) for end in ENDS}
    yield numbers
    for end, handler in before.items():
        signal.signal(end, handler)


@pytest.mark.parametrize("number", ENDS)
def test_a_signal_comes_when_the_block_is_over_and_the_next_one_at_once(came: list[int], number: int) -> None:
    with defer_signals():
        signal.raise_signal(number)
        assert came == []
    assert came == [number]

    signal.raise_signal(number)
    assert came == [number, number]


def test_of_several_signals_in_a_block_and_one_within_it_the_first_one_comes_after_both(came: list[int]) -> None:
    with defer_signals():
        with defer_signals():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
                signal.raise_signal(number)
        assert came == []

    assert came == [signal.SIGTERM]


def test_a_signal_comes_after_a_block_that_failed_too_and_the_next_one_at_once(came: list[int]) -> None:
    with pytest.raises(ValueError, match="no answer"), defer_signals():
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("no answer")
    assert came == [signal.SIGTERM]

    signal.raise_signal(signal.SIGINT)
    assert came == [signal.SIGTERM, signal.SIGINT]


def test_another_thread_than_the_main_one_goes_through_the_block_too(came: list[int]) -> None:
    def go_through() -> str:
        with defer_signals():
            return "done"

    with ThreadPoolExecutor() as pool:
        assert pool.submit(go_through).result() == "done"
    signal.raise_signal(signal.SIGINT)
    assert came == [signal.SIGINT]


def interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def test_a_warning_of_the_package_says_whose_it_is_and_steers_no_terminal(tmp_path: Path) -> None:
    (tmp_path / f"events-{'0' * 32}-00000001.jsonl").write_text("no event")
    told = CliRunner().invoke(app, ["events", "--path", str(tmp_path)]).stderr.splitlines()
    assert "kafkameta: skipped lines that are not refresh events: 1" in told

    record = logging.LogRecord("pyspark_kafka_meta.x", logging.WARNING, "x.py", 1, "%s", ("\x1b[2J",), None)
    with redirect_stderr(StringIO()) as screen:
        WARNINGS.handle(record)
    assert screen.getvalue() == "kafkameta: \\x1b[2J\n"


def test_the_version_is_that_of_the_package() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"pyspark-kafka-meta {version('pyspark-kafka-meta')}\n")


@pytest.mark.parametrize(
    ("command", "busy", "code"),
    [
        (["doctor"], (run_checks, "machine_findings"), 130),
        (["migrate-checkpoint", "old"], (checkpoints, "starting_offsets"), 130),
        (["events", "--path", "."], (events, "show_events"), 130),
        (["events", "--path", ".", "--follow"], (events, "sleep"), 0),
        (["metadata", "--bootstrap-servers", "b:9"], (cluster, "look_at"), 130),
        (["metadata", "--bootstrap-servers", "b:9", "--watch", "1"], (cluster, "look_at"), 0),
        (["metadata", "--bootstrap-servers", "b:9", "--watch", "1", "--count", "2"], (cluster, "look_at"), 130),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_ctrl_c_is_a_good_end_only_of_what_runs_until_then(
    command: list[str], busy: tuple[object, str], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(*busy, interrupted)
    assert CliRunner().invoke(app, command).exit_code == code
