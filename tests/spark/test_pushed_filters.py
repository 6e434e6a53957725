"""Filters that Spark pushes down: the rows are those that it would choose itself, out of fewer that are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

SETTING = "spark.sql.python.filterPushdown.enabled"
NOON_MS = 1_715_947_200_000
TIME = "timestamp_millis({})".format
RECORDS = 6
"""In each of two partitions of two topics, the third of them later than the next two."""

FILTERS: dict[str, tuple[str, int]] = {
    "topic = '{topic}'": (2 * RECORDS, 2 * RECORDS),
    "topic IN ('{topic}', 'other') AND partition = 1": (RECORDS, RECORDS),
    "partition IN (1, 7) AND offset >= 4": (4, 4),
    "offset > 1 AND offset <= 3 AND value IS NOT NULL": (8, 8),
    "offset = 5": (4, 4),
    f"timestamp >= {TIME(NOON_MS + 30)}": (16, 8),
    f"timestamp > {TIME(NOON_MS + 50)}": (4, 0),
    "partition = 0 OR offset = 1": (4 * RECORDS, 2 * RECORDS + 2),
}
"""How many offsets are planned, and how many rows come of them."""


@pytest.fixture(scope="module")
def topics(make_topic: Any, produce: Any) -> tuple[str, str]:
    made = make_topic(2, {"retention.ms": "-1"}), make_topic(2, {"retention.ms": "-1"})
    for topic in made:
        for partition in (0, 1):
            for number, after_ms in enumerate((0, 10, 35, 20, 25, 50)):
                produce(topic, [{"value": f"{number}", "timestamp": NOON_MS + after_ms}], partition)
    return made


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(SETTING, "true")
    yield spark
    spark.conf.unset(SETTING)


def load(spark: SparkSession, kafka: Any, topics: tuple[str, str], pushed: bool) -> DataFrame:
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": ",".join(topics)}
    # A task for each offset that is planned, so that they can be counted.
    options |= {"maxRecordsPerPartition": "1", "pushDownPredicate": str(pushed).lower()}
    return spark.read.format("kafkameta").options(**options).load()


@pytest.mark.parametrize(("condition", "planned", "read"), [(one, *counts) for one, counts in FILTERS.items()])
def test_pushed_filters_change_what_is_planned_and_not_what_comes(
    pushing: SparkSession, kafka: Any, topics: tuple[str, str], condition: str, planned: int, read: int
) -> None:
    condition = condition.replace("{topic}", topics[0])
    pushed, other = (load(pushing, kafka, topics, choice).where(condition) for choice in (True, False))

    rows = pushed.collect()
    assert len(rows) == read
    assert sorted(rows) == sorted(other.collect())
    assert pushed.rdd.getNumPartitions() == planned
    assert other.rdd.getNumPartitions() == 4 * RECORDS


def test_a_query_that_would_push_filters_says_which_of_sparks_settings_is_off(
    spark: SparkSession, kafka: Any, topics: tuple[str, str]
) -> None:
    with pytest.raises(PySparkException, match=SETTING):
        load(spark, kafka, topics, pushed=True).collect()
