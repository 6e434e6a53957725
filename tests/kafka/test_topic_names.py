"""Names of topics that brokers refuse, or that their responses cannot hold."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from pyspark_kafka_meta.errors import BrokerError
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin, Role
from pyspark_kafka_meta.options import ClientOptions


@pytest.mark.parametrize("name", ["a b", "x" * 250, "x" * 40_000], ids=["space", "250", "40000"])
def test_name_that_kafka_does_not_allow_fails_at_once_and_delays_no_other_topic(
    kafka: Any, topic: str, name: str
) -> None:
    options = ClientOptions.parse({"kafka.bootstrap.servers": kafka.bootstrap_servers})
    began = time.monotonic()
    with closing(client_without_events(options, Origin(role=Role.PLANNER))) as client:
        for _ in range(2):
            with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION") as raised:
                client.partitions([topic, name], client.api_deadline())
            assert len(str(raised.value)) < 500
            assert len(client.partitions([topic], client.api_deadline())) == 3
    assert time.monotonic() - began < 30, "the API timeout is 60 s"
