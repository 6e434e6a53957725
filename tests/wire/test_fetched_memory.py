"""Successive Fetch responses use the same memory."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.records.reusable_buffer import ReusableBuffer
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.testing import MockCluster

VALUE_BYTES = 300_000
RESPONSES = 6


def test_responses_of_one_read_take_turns_in_the_same_memory(
    mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
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
