"""A node's files, where Kafka's own tool takes part."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from pyspark_kafka_meta.testing import ClusterError
from pyspark_kafka_meta.testing.kafka_node import JavaRuntime, format_controller


def test_a_tool_that_does_not_end_is_an_error_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> NoReturn:
        raise subprocess.TimeoutExpired(command, 60)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ClusterError, match="took over 60 s"):
        format_controller(Path("controller"), JavaRuntime(Path("java"), (), ()), "id", ())
