"""The configuration of a topic, which tells records that compaction removed from storage that is slow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.metadata.refresh_events import Origin, Role
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.testing import LocalKafka

pytestmark = pytest.mark.kafka


def test_cleanup_policy_is_that_of_the_topic_or_its_brokers(
    local_kafka: LocalKafka, make_topic: Callable[..., str]
) -> None:
    options = ClientOptions.parse({"kafka.bootstrap.servers": local_kafka.bootstrap_servers})
    with closing(client_without_events(options, Origin(role=Role.READER))) as client:
        policies = [
            client.cleanup_policy(topic)
            for topic in (make_topic(), make_topic(config={"cleanup.policy": "compact,delete"}), "no-such-topic")
        ]

    assert policies == ["delete", "compact,delete", None]
