"""Clients whose bootstrap addresses are not all brokers."""

from __future__ import annotations

import time

import pytest

from pyspark_kafka_meta.errors import UnsupportedBrokerError
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin, Role
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.testing.kafka_config import HOST

STARTS = 20
"""Addresses are tried in random order."""


def known_brokers(servers: str) -> set[int]:
    client = client_without_events(ClientOptions.parse({"kafka.bootstrap.servers": servers}), Origin(role=Role.PLANNER))
    try:
        client.partitions([], client.api_deadline())
        return set(client.cache.snapshot.brokers)
    finally:
        client.close()


def test_a_controller_among_the_bootstrap_servers_is_passed_over(breakable_kafka: LocalKafka) -> None:
    controller = f"{HOST}:{breakable_kafka._layout.controller_port}"
    servers = f"{controller},{breakable_kafka.bootstrap_servers}"
    for _ in range(STARTS):
        known = known_brokers(servers)
        assert known and known <= set(breakable_kafka.broker_ids), "without one that has missed its heartbeats"


def test_a_controller_alone_is_named_at_once(breakable_kafka: LocalKafka) -> None:
    controller = f"{HOST}:{breakable_kafka._layout.controller_port}"
    began = time.monotonic()
    with pytest.raises(UnsupportedBrokerError, match=f"{controller} offers no Metadata, as a KRaft controller"):
        known_brokers(controller)
    assert time.monotonic() - began < 30, "the API timeout is 60 s"
