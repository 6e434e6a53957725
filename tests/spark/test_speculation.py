"""Two concurrent attempts of a task by Spark's speculative execution: the sink has each row once, and the events name
both attempts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.counting import Requests
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.testing.kafka_node import free_ports
from tests.kafka.cluster_tools import all_brokers_know
from tests.spark.standalone import standalone_spark
from tests.tcp_proxy import TcpProxy, Watcher
from tests.unit.written_events import events_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]

ROOT = Path(__file__).parent.parent.parent
PARTITIONS, RECORDS = 3, 3_000
HOLD_TIMEOUT_S = 60
SUSPECTED_AFTER_S = 5
"""By then each attempt has refreshed the leader of the late Fetch, in an event that names the attempt."""


@dataclass
class SlowLeader:
    """Delays Fetch requests until `released`.

    Attributes:
        held: number of delayed Fetch requests, each of another connection and so of another attempt.
    """

    released: threading.Event = field(default_factory=threading.Event)
    held: int = 0

    def watch(self) -> Watcher:
        requests = Requests()

        def watch_chunk(chunk: bytes) -> None:
            if "Fetch" in set(requests.feed(chunk)) and not self.released.is_set():
                self.held += 1
                self.released.wait(HOLD_TIMEOUT_S)

        return watch_chunk


@pytest.fixture(scope="module")
def slow_leader() -> SlowLeader:
    return SlowLeader()


@pytest.fixture(scope="module")
def slow_kafka(slow_leader: SlowLeader) -> Iterator[LocalKafka]:
    """A cluster whose broker 2, the leader of partition 0 of `copied`, is behind the proxy of `slow_leader`."""
    proxy, ports = TcpProxy(slow_leader.watch), free_ports(PARTITIONS)
    users = {"alice": "canary-alice"}
    kafka = LocalKafka(
        ports=ports,
        security="SASL_PLAINTEXT",
        mechanisms=["PLAIN"],
        users=users,
        advertised_ports=[proxy.address.port, *ports[1:]],
    )
    proxy.target = kafka.address(kafka.broker_ids[0])
    with proxy, kafka:
        yield kafka


@pytest.fixture(scope="module")
def copied_topic(slow_kafka: LocalKafka, wait_for: Callable[..., Any]) -> str:
    """A topic whose partitions have different leaders. The slow leader has partition 0."""
    topic, ids = "copied", slow_kafka.broker_ids
    admin = AdminClient({"bootstrap.servers": slow_kafka.admin_servers})
    replicas = [[ids[number], ids[number - 1]] for number in range(PARTITIONS)]
    admin.create_topics([NewTopic(topic, PARTITIONS, replica_assignment=replicas)])[topic].result(60)
    wait_for(lambda: all_brokers_know(slow_kafka.admin_servers, topic, PARTITIONS))
    producer = Producer({"bootstrap.servers": slow_kafka.admin_servers})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return topic


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_spark(tmp_path_factory.mktemp("standalone")) as url:
        yield url


@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_two_attempts_of_a_task_leave_each_row_once(
    mode: str,
    master: str,
    slow_leader: SlowLeader,
    slow_kafka: LocalKafka,
    copied_topic: str,
    wait_for: Callable[..., Any],
    tmp_path: Path,
) -> None:
    slow_leader.released.clear()
    slow_leader.held = 0
    with copying(mode, master, slow_kafka, copied_topic, tmp_path) as copy:

        def both_attempts_fetch() -> bool:
            assert copy.poll() is None, (tmp_path / "spark.log").read_text()[:3000]
            return slow_leader.held == 2

        wait_for(both_attempts_fetch, timeout_s=90)
        suspected_at = time.monotonic() + SUSPECTED_AFTER_S
        wait_for(lambda: time.monotonic() > suspected_at)
        slow_leader.released.set()
        assert copy.wait(90) == 0, (tmp_path / "spark.log").read_text()[:3000]
    attempts = attempts_by_task(tmp_path)
    assert [numbers for numbers in attempts.values() if len(numbers) > 1] == [{0, 1}]
    assert json.loads((tmp_path / "copied.json").read_text()) == [
        [partition, offset] for partition in range(PARTITIONS) for offset in range(RECORDS // PARTITIONS)
    ]


@contextmanager
def copying(mode: str, master: str, kafka: LocalKafka, topic: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `speculative_copy.py`."""
    options = {
        **kafka.client_options("alice"),
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": topic,
        "eventsPath": str(folder / "events"),
        "startingOffsets": "earliest",
        "minPartitions": str(PARTITIONS),
    }
    (folder / "options.json").write_text(json.dumps(options))
    program = [sys.executable, str(Path(__file__).parent / "speculative_copy.py"), mode, master, str(folder)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
    with (
        (folder / "spark.log").open("w") as log,
        subprocess.Popen(program, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def attempts_by_task(folder: Path) -> dict[tuple[int, int], set[int]]:
    """Attempt numbers in the readers' events by stage and partition of Spark's tasks."""
    attempts: dict[tuple[int, int], set[int]] = defaultdict(set)
    for event in events_in(folder / "events"):
        if event["role"] == "reader" and event["task_attempt"] is not None:
            attempts[event["stage_id"], event["task_partition_id"]].add(event["task_attempt"])
    return attempts
