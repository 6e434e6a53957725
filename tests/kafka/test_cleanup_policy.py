"""The configuration of a topic, which tells records that compaction removed from storage that is slow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin, Role
from pyspark_kafka_meta.options import ClientOptions
from tests.kafka.cluster_tools import Cluster

pytestmark = pytest.mark.kafka


def test_cleanup_policy_is_that_of_the_topic_or_its_brokers(kafka: Cluster, make_topic: Callable[..., str]) -> None:
    options = ClientOptions.parse({"kafka.bootstrap.servers": kafka.bootstrap_servers})
    with closing(client_without_events(options, Origin(role=Role.READER))) as client:
        policies = [
            client.cleanup_policy(topic)
            for topic in (make_topic(), make_topic(config={"cleanup.policy": "compact,delete"}), "no-such-topic")
        ]

    assert policies == ["delete", "compact,delete", None]
