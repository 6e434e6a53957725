"""`describe_cluster` where bootstrap addresses refuse or fail."""

from __future__ import annotations

from collections import deque
from typing import NoReturn

import pytest

from pyspark_kafka_meta.errors import AuthenticationError, ConnectError, KafkaMetaError, TlsError
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables import cluster_query
from tests.unit.fake_wire import FakeWire

REBOOTSTRAP_REQUIRED = 129
OPTIONS = ClientOptions.parse({"kafka.bootstrap.servers": "broker-1:9092,broker-2:9092"})


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> FakeWire:
    fake = FakeWire()
    monkeypatch.setattr(cluster_query, "KafkaWire", lambda _: fake)
    return fake


def test_address_with_an_error_is_skipped(wire: FakeWire) -> None:
    wire.metadata_refusals[1] = deque([REBOOTSTRAP_REQUIRED])
    cluster = cluster_query.describe_cluster(OPTIONS, ())

    assert (cluster.address, len(cluster.response.brokers)) == (Address("broker-2", 9092), 3)


def test_connect_error_has_the_error_of_each_address(wire: FakeWire) -> None:
    for node_id in (1, 2):
        wire.metadata_refusals[node_id] = deque([REBOOTSTRAP_REQUIRED])
    told = r"no broker responded \(broker-1:9092 responded .*error 129.*; broker-2:9092 responded .*\): check the addr"
    with pytest.raises(ConnectError, match=told):
        cluster_query.describe_cluster(OPTIONS, ())


@pytest.mark.parametrize("error", [AuthenticationError("wrong password"), TlsError("unknown authority")])
def test_error_of_all_addresses_is_raised_at_once(
    error: KafkaMetaError, wire: FakeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = []

    def refuse(address: Address, *_: object) -> NoReturn:
        addresses.append(address)
        raise error

    monkeypatch.setattr(wire, "metadata", refuse)
    with pytest.raises(type(error), match=f"^{error}$"):
        cluster_query.describe_cluster(OPTIONS, ())
    assert addresses == [Address("broker-1", 9092)]
