"""KafkaWire keeps connections to brokers, and to nobody else."""

from __future__ import annotations

import time

import pytest

from pyspark_kafka_meta.metadata.model import Address
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.wire import brokers
from pyspark_kafka_meta.wire.brokers import KafkaWire
from pyspark_kafka_meta.wire.connection import Connection, ConnectionSettings


def test_connection_to_where_no_broker_is_any_more_is_closed(
    mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Connection] = []

    class Noted(Connection):
        def __init__(self, address: Address, settings: ConnectionSettings, deadline: float) -> None:
            super().__init__(address, settings, deadline)
            opened.append(self)

    monkeypatch.setattr(brokers, "Connection", Noted)
    wire = KafkaWire(ConnectionSettings("tests", connect_timeout_ms=5000, max_frame_bytes=1 << 20))
    alias = Address("localhost", int(mock_cluster.bootstrap_servers.split(",")[0].rpartition(":")[2]))
    answer = wire.metadata(alias, (), time.monotonic() + 10)
    assert alias not in {broker.address for broker in answer.brokers}
    for broker in answer.brokers:
        wire.metadata(broker.address, (), time.monotonic() + 10)

    assert [connection.fileno() >= 0 for connection in opened] == [False, True, True, True]
    wire.close()
