"""examples/producer.py tells of a mistake in one line. What it writes is for the tests of all examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_kafka_meta.testing import MockCluster

PRODUCER = Path(__file__).parent.parent / "examples" / "producer.py"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--by", "2"], "--by 2: topic topic-0 has 2 partitions, from 0 on"),
        (["--by", "key"], "--by key: give key-hash, sticky or the number of a partition"),
        (["--acks", "1", "--idempotence"], "--idempotence needs --acks all"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(arguments: list[str], complaint: str, mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("topic-0", partitions=2)
    command = [sys.executable, str(PRODUCER), "--bootstrap-servers", mock_cluster.bootstrap_servers, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (done.returncode != 0, done.stdout) == (True, "")
    assert done.stderr.splitlines()[-1].endswith(complaint)
    assert "Traceback" not in done.stderr
