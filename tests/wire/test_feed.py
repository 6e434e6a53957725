"""The demo's feed, at mock brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.demo.clusters import REPLICAS, TOPIC, EmbeddedCluster
from pyspark_kafka_meta.tools.demo.query import RecordFeed, records_per_round


def test_records_that_brokers_took_are_counted(mock_cluster: MockCluster, wait_for: Callable[..., Any]) -> None:
    with RecordFeed(EmbeddedCluster(mock_cluster)) as feed:
        wait_for(lambda: feed.produced)


def test_records_that_brokers_refuse_are_not_counted_and_the_first_error_is_printed(
    mock_cluster: MockCluster, wait_for: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = EmbeddedCluster(mock_cluster)
    mock_cluster.set_topic_error(TOPIC, 29)
    with RecordFeed(cluster) as feed:
        errors = wait_for(lambda: capsys.readouterr().err)

    assert "TOPIC_AUTHORIZATION_FAILED" in errors
    assert (feed.produced, capsys.readouterr().err) == (0, "")


def test_each_partition_of_an_added_topic_gets_as_many_records_as_those_of_the_first() -> None:
    first, added = records_per_round(["clicks", "clicks-more-1"]).values()

    assert first == added * len(REPLICAS)
