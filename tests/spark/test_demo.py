"""`kafkameta demo` plays all scenes, reports the observed changes and leaves no files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "pyspark_kafka_meta", "demo"]
SUMMARY = re.compile(r"^ *(\d+) +(.*?)  +(\d+\.\d s|NO)", re.MULTILINE)


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "140", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}


def played(folder: Path, *arguments: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    """Without pipes for its output, which would wait for processes that the demo leaves behind."""
    out, error = folder / "stdout", folder / "stderr"
    with out.open("w") as stdout, error.open("w") as stderr:
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=answers,
            stdout=stdout,
            stderr=stderr,
            text=True,
            timeout=500,
            env=environment(folder),
            cwd=folder,
        )
    return subprocess.CompletedProcess(done.args, done.returncode, out.read_text(), error.read_text())


def left_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith("kafkameta-")]


def test_all_scenes_are_played_and_seen_on_embedded_brokers_in_a_pipe(tmp_path: Path) -> None:
    done = played(tmp_path, "--all")
    scenes = SUMMARY.findall(done.stdout)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "\x1b" not in done.stdout, "no escape codes in a pipe"
    assert [int(number) for number, _, _ in scenes] == [*range(1, 13)]
    assert "NO" not in {seen for _, _, seen in scenes}
    assert re.search(r"executor \d knew first; executor \d was stale for", done.stdout)
    assert left_in(tmp_path) == []


def processes_of(folder: Path) -> list[str]:
    """Spark's processes have the folder in their settings."""
    listed = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True)
    return [command for command in listed.stdout.splitlines() if str(folder) in command]


@pytest.mark.kafka
def test_all_scenes_are_played_and_seen_on_real_brokers(tmp_path: Path) -> None:
    done = played(tmp_path, "--cluster", "kafka", "--all")
    scenes = SUMMARY.findall(done.stdout)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert [int(number) for number, _, _ in scenes] == [*range(1, 14)]
    assert left_in(tmp_path) == []


def test_q_ends_an_interactive_demo_after_the_scenes_that_were_asked_for(tmp_path: Path) -> None:
    done = played(tmp_path, "--interactive", answers="\nq\n")

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert [int(number) for number, _, _ in SUMMARY.findall(done.stdout)] == [1]
    assert processes_of(tmp_path) == []


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    with (
        (tmp_path / "stderr").open("w") as log,
        subprocess.Popen(
            COMMAND, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(tmp_path), cwd=tmp_path
        ) as process,
    ):
        try:
            assert process.stdout is not None
            next(line for line in process.stdout if line.startswith("1. "))
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert process.wait(60) == 130, (tmp_path / "stderr").read_text()[-3000:]
        finally:
            process.kill()
    assert left_in(tmp_path) == []
