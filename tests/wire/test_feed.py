"""The demo's feed, at mock brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.demo.clusters import REPLICAS, TOPIC, EmbeddedCluster
from pyspark_kafka_meta.tools.demo.query import RecordFeed, records_per_round


def test_records_get_to_the_brokers(mock_cluster: MockCluster, wait_for: Callable[..., Any]) -> None:
    cluster = EmbeddedCluster(mock_cluster)
    with RecordFeed(cluster):
        wait_for(lambda: any(row.end_offset for row in partition_rows(ClientOptions.parse(cluster.options), [TOPIC])))


def test_of_records_that_brokers_refuse_the_first_error_is_printed(
    mock_cluster: MockCluster, wait_for: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = EmbeddedCluster(mock_cluster)
    mock_cluster.set_topic_error(TOPIC, 29)
    with RecordFeed(cluster):
        errors = wait_for(lambda: capsys.readouterr().err)

    assert "TOPIC_AUTHORIZATION_FAILED" in errors
    assert capsys.readouterr().err == ""


def test_each_partition_of_an_added_topic_gets_as_many_records_as_those_of_the_first() -> None:
    first, added = records_per_round(["clicks", "clicks-more-1"]).values()

    assert first == added * len(REPLICAS)
