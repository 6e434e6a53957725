"""examples/producer.py reports a user's mistake in one line. tests/spark/test_examples.py tests what it writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_kafka_meta.testing import MockCluster

PRODUCER = Path(__file__).parent.parent / "examples" / "producer.py"


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--by", "2"], ["--by 2", "topic-0", "2 partitions"]),
        (["--by", "key"], ["--by key", "key-hash", "sticky"]),
        (["--acks", "1", "--idempotence"], ["--idempotence", "--acks all"]),
    ],
)
def test_mistake_is_reported_without_a_traceback(
    arguments: list[str], facts: list[str], mock_cluster: MockCluster
) -> None:
    mock_cluster.create_topic("topic-0", partitions=2)
    command = [sys.executable, str(PRODUCER), "--bootstrap-servers", mock_cluster.bootstrap_servers, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)

    assert (done.returncode != 0, done.stdout) == (True, "")
    assert [fact for fact in facts if fact not in done.stderr.splitlines()[-1]] == []
    assert "Traceback" not in done.stderr
