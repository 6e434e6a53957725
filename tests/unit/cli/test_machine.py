"""What `kafkameta doctor` tells of a machine without Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafka_meta.cli.checks.machine import machine_findings


def test_how_to_get_java_is_told_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    *_, java = machine_findings()

    assert java.what == f"{tmp_path}/bin/java does not run"
    assert java.fix == "install Java 17 or later and put it on PATH, or set JAVA_HOME"
