"""Queries read every record whatever is wrong with the temporary folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.written_events import events_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]

ROOT = Path(__file__).parent.parent.parent
RECORDS = 50
FULL = "ulimit -f 0"  # each write to a file fails
MISSING = 'export PYTHONPATH="{site}:$PYTHONPATH"'
NO_FOLDERS = "import tempfile\ntempfile._candidate_tempdir_list = lambda: ['/no/such/folder']\n"


@pytest.mark.parametrize(
    ("trouble", "files", "roles"),
    [
        pytest.param(FULL, 0, set(), id="full"),
        pytest.param(MISSING, 0, {"planner", "reader"}, id="missing"),
        pytest.param(":", 100_000, set(), id="locked and huge"),
    ],
)
def test_batch_and_stream_read_every_record(
    kafka: Any,
    make_topic: Callable[..., str],
    produce: Callable[..., Any],
    tmp_path: Path,
    trouble: str,
    files: int,
    roles: set[str],
) -> None:
    """The trouble begins with the Python processes that Spark starts."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_FOLDERS)
    (tmp_path / "temporary").mkdir()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n{trouble.format(site=tmp_path / "site")}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o700)
    topic = make_topic(partitions=2)
    produce(topic, [str(number) for number in range(RECORDS)])
    program = [sys.executable, str(Path(__file__).parent / "batch_and_stream.py")]
    done = subprocess.run(
        [*program, kafka.bootstrap_servers, topic, str(tmp_path), str(files)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            **dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(python)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(tmp_path / "temporary"),
        },
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == [RECORDS, RECORDS]
    assert {event["role"] for event in events_in(tmp_path / "events")} == roles
