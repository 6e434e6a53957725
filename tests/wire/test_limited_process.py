"""A process with few files, threads or addresses: its connections work, other calls raise typed errors, and Fetch
responses one after the other use the same memory."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.network.sockets import FailedAddresses, connect, is_readable
from pyspark_kafka_meta.kafka.records.reusable_buffer import ReusableBuffer
from pyspark_kafka_meta.model import Address, OffsetRange, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.testing import MockCluster
from tests.wire.limited_worker import PARTITIONS, RECORDS

LEAST_MIB = 512
"""Of a worker without Spark's own needs: docs/deployment.md asks for more."""


def test_open_connections_are_waited_for_though_no_file_is_left() -> None:
    here, there = socket.socketpair()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there.send(b"x")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        with pytest.raises(OSError, match="Too many open files"):
            socket.socketpair()
        assert [is_readable(here), is_readable(there)] == [True, False]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        here.close()
        there.close()


def test_no_thread_to_connect_with_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ConnectError, match="cannot start a thread, raise the limit"):
        connect(Address("localhost", 9), time.monotonic() + 5, FailedAddresses())


@pytest.fixture
def limited_copy(mock_cluster: MockCluster, request: pytest.FixtureRequest) -> Callable[[int, bytes], tuple[str, str]]:
    """Copies a topic of such values in a worker with so many MiB of addresses; returns its output and its errors."""

    def copy(limit_mib: int, value: bytes) -> tuple[str, str]:
        for topic in ("t", "copy"):
            mock_cluster.create_topic(topic, PARTITIONS)
        servers = mock_cluster.bootstrap_servers
        producer = Producer(
            {"bootstrap.servers": servers, "compression.type": "zstd", "message.max.bytes": 100_000_000}
        )
        for number in range(RECORDS * PARTITIONS):
            producer.produce("t", value if number == 0 else b"small", partition=number % PARTITIONS)
        assert producer.flush(30) == 0
        command = [sys.executable, "-m", "tests.wire.limited_worker", str(limit_mib), servers, "t", "copy"]
        done = subprocess.run(command, cwd=request.config.rootpath, capture_output=True, text=True, timeout=200)
        return done.stdout, done.stderr

    return copy


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
@pytest.mark.parametrize(
    ("value", "stdout", "error"),
    [(b"small", f"{RECORDS * PARTITIONS}\n", ""), (bytes(90_000_000), "", "WorkerMemoryError: a Python worker has no")],
    ids=["small records", "large record"],
)
def test_worker_of_512_mib_copies_small_records_and_names_the_setting_at_a_large_one(
    value: bytes, stdout: str, error: str, limited_copy: Callable[[int, bytes], tuple[str, str]]
) -> None:
    copied, errors = limited_copy(LEAST_MIB, value)

    assert copied == stdout, errors
    assert error in errors


VALUE_BYTES = 300_000
RESPONSES = 6


def test_responses_of_one_read_share_memory(mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    mock_cluster.create_topic("t")
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers, "linger.ms": 0})
    for _ in range(RESPONSES):
        producer.produce("t", bytes(VALUE_BYTES), partition=0)
        assert producer.flush(60) == 0
    addresses: list[int] = []
    of = ReusableBuffer.of

    def noted(self: ReusableBuffer, size: int) -> memoryview:
        given = of(self, size)
        if VALUE_BYTES < size < 2 * VALUE_BYTES:
            addresses.append(np.frombuffer(given, np.uint8).ctypes.data)
        return given

    monkeypatch.setattr(ReusableBuffer, "of", noted)
    one_a_time = {"kafka.max.partition.fetch.bytes": str(VALUE_BYTES)}
    options = SourceOptions.parse(
        {"kafka.bootstrap.servers": mock_cluster.bootstrap_servers, "subscribe": "t", **one_a_time}
    )
    with closing(client_without_events(options.client, Origin(role=Role.READER))) as client:
        batches = TaskReader(client, options, ["value"]).read([OffsetRange(TopicPartition("t", 0), None, 0, RESPONSES)])
        assert sum(batch.num_rows for batch in batches) == RESPONSES

    assert len(addresses) == RESPONSES
    assert len(set(addresses)) == 1
