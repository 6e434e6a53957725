"""Driver, planner, committer and workers of a query use the package's own client alone: no process of it imports
confluent-kafka, whose client would keep another metadata cache."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.consumer import consume

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PROGRAM = Path(__file__).with_name("own_client_query.py")
ROOT = Path(__file__).parents[2]
REPORT = """
import os
with open(os.environ["IMPORTS_OF_CONFLUENT_KAFKA"], "a") as file:
    file.write(f"{os.getpid()} imported confluent_kafka\\n")
raise ImportError("a query imported confluent_kafka")
"""
VALUES = sorted(map(str, range(100)))


@pytest.mark.thorough
def test_no_process_of_a_query_imports_another_client(
    kafka: Any, make_topic: Callable[..., str], produce: Any, tmp_path: Path
) -> None:
    source, copies, events = make_topic(), make_topic(), make_topic()
    produce(source, VALUES)
    stub, imports = tmp_path / "stub", tmp_path / "imports"
    stub.mkdir()
    (stub / "confluent_kafka.py").write_text(REPORT)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(stub), str(ROOT)]),
        "IMPORTS_OF_CONFLUENT_KAFKA": str(imports),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, PROGRAM, kafka.bootstrap_servers, source, copies, events, str(tmp_path / "checkpoint")]
    offsets = [TopicPartition(source, number) for number in range(3)]
    with closing(Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": copies})) as group:
        group.committed(offsets, timeout=60)  # the group has a coordinator: the query waits for it five seconds at most
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
        committed = group.committed(offsets, timeout=60)

    assert f"copied: {VALUES}" in done.stdout, done.stderr[-3000:]
    assert not imports.exists(), imports.read_text()
    assert sum(partition.offset for partition in committed if partition.offset > 0) == len(VALUES)
    told = b"".join(message.value() or b"" for message in consume(kafka.bootstrap_servers, events, "read_committed"))
    roles = {role for role in ("planner", "committer", "reader", "events") if f'"role": "{role}"'.encode() in told}
    assert roles == {"planner", "committer", "reader", "events"}
