"""`kafkameta doctor --executors` with a Python without the packages; tests/cluster/several_hosts.py has the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pyspark_kafka_meta.java_launcher import find_java

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

ROOT = Path(__file__).parents[2]


def test_an_executor_without_the_packages_is_named_with_its_python(tmp_path: Path) -> None:
    find_java()
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    started = {"PYSPARK_PYTHON": python, "PYSPARK_SUBMIT_ARGS": "--master local[1] pyspark-shell"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", **started}
    command = [sys.executable, "-m", "pyspark_kafka_meta", "doctor", "--executors"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    found = [row for row in rows if row["section"] == "Executors"]

    assert [(row["check"].partition(" on ")[0], row["verdict"]) for row in found] == [
        ("spark", "ok"),
        ("executor", "fail"),
    ], (done.stdout, done.stderr)
    assert python in found[1]["what"]
    assert "PYSPARK_PYTHON" in found[1]["fix"]
    assert done.returncode == 1
