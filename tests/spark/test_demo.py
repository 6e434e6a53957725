"""`make demo`: plays to its end by itself, shows what a leader move caused, leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark


def test_the_demo_ends_by_itself_and_tells_what_the_leader_move_caused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyspark_kafka_meta", "demo", "--seconds", "8"]
    root = str(Path(__file__).parent.parent.parent)
    environment = {**os.environ, "COLUMNS": "140", "PYTHONPATH": root, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "\x1b" not in done.stdout, "no escape codes in a pipe"
    assert re.search(r"micro-batch 0: \d+ rows", done.stdout)
    produced, read = map(int, re.search(r"produced (\d+) records, read (\d+)", done.stdout).groups())  # type: ignore[union-attr]
    assert 0 < read <= produced
    events = done.stdout.split("What the metadata caches did")[1]
    assert "bootstrap" in events
    assert re.search(r"(not_leader|leader_hint|fenced_epoch).*clicks-0: \d to \d", events)
    assert not list(tmp_path.glob("kafkameta-demo-*"))
