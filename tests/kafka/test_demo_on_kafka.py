"""The demo's Apache Kafka: brokers that were killed lead again once restored, and a topic grows more than once."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.tools.demo.clusters import TOPIC, LocalKafkaCluster


def leaders(cluster: LocalKafkaCluster) -> list[int | None]:
    """By partition, as the first broker that responds sees it."""
    return [row.leader_id for row in partition_rows(ClientOptions.parse(cluster.options), [TOPIC])]


@pytest.mark.kafka
@pytest.mark.thorough
def test_a_restored_broker_leads_again_though_another_is_dead_and_a_topic_grows_twice(
    breakable_kafka: LocalKafka, wait_for: Any
) -> None:
    cluster = LocalKafkaCluster(breakable_kafka)
    cluster.kill(2)
    cluster.kill(4)
    cluster.restore(2)
    wait_for(lambda: leaders(cluster)[0] == leaders(cluster)[3] == 2)
    cluster.restore(4)
    added = [cluster.grow(), cluster.grow()]

    assert added == [TopicPartition(TOPIC, 4), TopicPartition(TOPIC, 5)]
