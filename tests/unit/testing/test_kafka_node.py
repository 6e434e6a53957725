"""Formatting of a controller's folder."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from pyspark_kafka_meta.testing import ClusterError
from pyspark_kafka_meta.testing.kafka_node import JavaRuntime, format_controller


def test_hanging_storage_tool_raises_cluster_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> NoReturn:
        raise subprocess.TimeoutExpired(command, 60)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ClusterError, match="took over 60 s"):
        format_controller(Path("controller"), JavaRuntime(Path("java"), (), ()), "id", ())
