"""KafkaWire keeps connections to brokers, and to nobody else."""

from __future__ import annotations

import time

import pytest

from pyspark_kafka_meta.metadata.model import Address, Broker
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.wire import kafka_wire, requests
from pyspark_kafka_meta.wire.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.wire.kafka_wire import KafkaWire
from pyspark_kafka_meta.wire.messages import OffsetsAnswer, OffsetsRequest


def test_connection_to_where_no_broker_is_any_more_is_closed(
    mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Connection] = []

    class Noted(Connection):
        def __init__(self, address: Address, settings: ConnectionSettings, deadline: float) -> None:
            super().__init__(address, settings, deadline)
            opened.append(self)

    for module in (kafka_wire, requests):
        monkeypatch.setattr(module, "Connection", Noted)
    wire = KafkaWire(ConnectionSettings("tests", connect_timeout_ms=5000, max_frame_bytes=1 << 20))
    alias = Address("localhost", int(mock_cluster.bootstrap_servers.split(",")[0].rpartition(":")[2]))
    answer = wire.metadata(alias, (), time.monotonic() + 10)
    assert alias not in {broker.address for broker in answer.brokers}
    for broker in (Broker(9, alias), answer.brokers[0]):
        wire.send_offsets(broker, OffsetsRequest((), False), time.monotonic() + 10)
        assert isinstance(wire.receive_offsets([broker.node_id], time.monotonic() + 10), OffsetsAnswer)
    assert [connection.fileno() >= 0 for connection in opened] == [True, True, True]
    for broker in answer.brokers:
        wire.metadata(broker.address, (), time.monotonic() + 10)

    assert [connection.fileno() >= 0 for connection in opened] == [False, False, True, True, True, True]
    wire.close()
    assert not any(connection.fileno() >= 0 for connection in opened)
