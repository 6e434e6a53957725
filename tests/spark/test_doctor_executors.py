"""`kafkameta doctor --executors`: two good executors, and a Python without the packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pyspark
import pytest

from pyspark_kafka_meta.java_launcher import find_java
from pyspark_kafka_meta.testing import MockCluster

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(400)]

ROOT = Path(__file__).parent.parent.parent


def run(master: str, python: str, folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and the rows about executors. SPARK_HOME is in `folder`, where executors write their logs."""
    find_java()
    home = folder / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": python,
        "PYSPARK_SUBMIT_ARGS": f"--master {master} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-m", "pyspark_kafka_meta", "doctor", "--executors", *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=350)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, [row for row in rows if row["section"] == "Executors"]


def test_each_executor_reports_its_python_and_which_brokers_it_reaches(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    master = "local-cluster[2,1,1024]"
    code, found = run(master, sys.executable, tmp_path, "--bootstrap-servers", mock_cluster.bootstrap_servers)

    assert (code, {row["verdict"] for row in found}) == (0, {"ok"})
    checks = [row["check"].partition(" on ")[0] for row in found]
    assert checks == ["spark", "executor 0", "executor 0", "executor 1", "executor 1"]
    assert [sys.executable in row["what"] for row in found if ":" not in row["check"]] == [False, True, True]
    assert {row["what"] for row in found if row["check"].endswith(": brokers")} == {"all 3 can be reached"}


def test_an_executor_without_the_packages_is_named_with_its_python(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    code, found = run("local[1]", python, tmp_path)

    assert len(found) == 2, found
    spark, executor = found
    assert (code, spark["verdict"], executor["verdict"]) == (1, "ok", "fail")
    assert executor["check"].startswith("executor on ")
    assert python in executor["what"]
    assert "PYSPARK_PYTHON" in executor["fix"]
