"""Every query of examples/queries.sql runs and finds what its first line asks, over the views of docs/observe.md."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from pyspark_kafka_meta.client_facts import LookupReason
from pyspark_kafka_meta.events.event import BrokerFetches, Event, EventKind, Origin, OtherReason, Role
from pyspark_kafka_meta.kafka.metadata.snapshot import SnapshotChanges, TopicRecreated
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.testing import MockCluster
from tests.spark.traces import wait_until_quiet
from tests.unit.written_events import learning, made, moving, write

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "observe.md").read_text().partition("\n## Queries\n")[2].partition("\n## ")[0]
SQL = (ROOT / "examples" / "queries.sql").read_text()
QUERIES = dict(re.findall(r"^-- ([^\n]*\?)\n(.*?);$", SQL, re.MULTILINE | re.DOTALL))
SETUP = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

VIEWS = ("refresh_events", "caches", "partitions", "lag")
OLD, NEW, GAPS = "a" * 32, "b" * 32, "c" * 32
FIRST = {"origin": Origin(role=Role.READER, executor_id="1", host="worker-1", pid=11)}
SECOND = {"origin": Origin(role=Role.READER, executor_id="2", host="worker-2", pid=22)}
OF_UNKNOWN_ID = {"origin": Origin(role=Role.READER, host="worker-3", pid=33)}

FOUND: dict[str, dict[str, Any]] = {
    "Who is stale, and since when?": {"executor_id": "1", "topic": "t", "partition": 0, "leader_now": 3},
    "Why are caches refreshed, and how often?": {"reason": "not_leader", "refreshes": 2, "failed": 0},
    # Approximately: percentile() of pyspark 4.2 gives 178.99999999999997.
    "Which brokers respond slowly, and what do refreshes cost them?": {
        "broker_host": "slow",
        "responses": 3,
        "p50_ms": 80.0,
        "p95_ms": pytest.approx(179.0),
        "bytes": 330,
        "throttled_ms": 21,
    },
    "Which recoveries took longest?": {"recovery_ms": 4_000.0, "cause_topic": "t", "executor_id": "2"},
    "Which executors disagree now?": {"topic": "t", "partition": 0},
    "How many caches are born?": {"executor_id": "2", "host": "worker-2", "caches": 1, "processes": 1},
    "Which events are lost?": {"cache_id": GAPS, "missing": 2, "counted_as_dropped": 1},
    "Who fetches how much, and who is throttled?": {
        "executor_id": "1",
        "broker_id": 3,
        "requests": 5,
        "bytes": 5_000,
        "throttled_ms": 70,
    },
    "How long do exactly-once commits take?": {
        "transactional_id": "orders",
        "kind": "transactions_committed",
        "batches": 2,
        "transactions": 5,
        "p50_ms": 30.0,
        "max_ms": 40.0,
        "copied_records": 7,
    },
    "What was lost, or recreated?": {
        "what": "lost",
        "topic": "t",
        "partition": 1,
        "detail": "from offset 5 to 9: aged",
    },
    "What is malformed, and does the registry respond?": {
        "kind": "malformed_records",
        "cause_topic": "t",
        "cause_partition": 1,
        "events": 2,
        "records": 42,
        "last_error": "offset 9: truncated",
    },
    "Which partitions lag behind?": {"topic": "t", "partition": 1, "records_behind": 2},
}
"""Columns that a row of each query must have, by question."""


def events(now_ms: int) -> list[Event]:
    """Executor 1 missed two elections that executor 2 saw, broker 9 is slow, and events of a third cache are lost."""
    slow = {"broker_id": 9, "broker_host": "slow", "request_bytes": 10, "response_bytes": 100, "throttle_ms": 7}
    fetched = {"fetches": (BrokerFetches(3, 5, 5_000),), "fetch_throttle_ms": 70}
    recovered = {"recovery_ms": 4_000.0}
    lost = {"cause_topic": "t", "cause_partition": 1, "lost_from_offset": 5, "lost_until_offset": 9, "error": "aged"}
    loss = {"kind": EventKind.DATA_LOSS, "reason": OtherReason.DATA_LOSS, **lost}
    committed = {"kind": EventKind.TRANSACTIONS_COMMITTED, "reason": OtherReason.TRANSACTION}
    orders = {**committed, "transactional_id": "orders"}
    place = {"cause_topic": "t", "cause_partition": 1}
    bad = {"kind": EventKind.MALFORMED_RECORDS, "reason": OtherReason.MALFORMED, **place, "malformed_records": 21}
    asked = {"kind": EventKind.SCHEMA_LOOKUP, "reason": LookupReason.QUERY_SCHEMA, "schema_subject": "t-value"}
    again = {"changes": SnapshotChanges(topics_recreated=(TopicRecreated("u", "old", "new"),))}
    return [
        made(OLD, 1, now_ms - 9_000, **learning("t", 1, 1), **FIRST),
        made(OLD, 2, now_ms - 2_000, **loss, **FIRST),
        made(OLD, 3, now_ms - 1_000, **again, **fetched, **FIRST),
        made(NEW, 1, now_ms - 9_500, kind=EventKind.BORN, reason=RefreshReason.BOOTSTRAP, **SECOND),
        made(NEW, 2, now_ms - 9_000, **learning("t", 1, 1), **SECOND),
        made(NEW, 3, now_ms - 5_000, **moving("t", 0, (1, 2), (0, 1)), **SECOND),
        made(NEW, 4, now_ms - 5_000, **{**moving("t", 0, (2, 3), (1, 2)), **recovered}, **SECOND),
        made(GAPS, 1, now_ms - 4_000, latency_ms=40.0, **slow),
        made(GAPS, 3, now_ms - 4_000, latency_ms=80.0, dropped_before=1, **slow),
        made(GAPS, 5, now_ms - 4_000, latency_ms=190.0, **slow),
        made("e" * 32, 1, now_ms - 3_500, **orders, transactions=2, transactions_ms=20.0, copied_records=0),
        made("e" * 32, 2, now_ms - 3_400, **orders, transactions=3, transactions_ms=40.0, copied_records=7),
        made("f" * 32, 1, now_ms - 3_300, **bad, error="offset 2: no frame"),
        made("f" * 32, 2, now_ms - 3_200, **bad, error="offset 9: truncated"),
        made("f" * 32, 3, now_ms - 3_100, **asked),
        made("d" * 32, 1, now_ms - 3_000, fetches=(BrokerFetches(8, 1, 10),), fetch_throttle_ms=9, **OF_UNKNOWN_ID),
    ]


@pytest.fixture(scope="module")
def views(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The views of the page over the events of a stream and `events`. The stream has read all records except two."""
    folder = tmp_path_factory.mktemp("queries")
    with MockCluster() as cluster:
        cluster.create_topic("t", partitions=2)
        cluster.move_leader("t", 0, 2)
        cluster.move_leader("t", 0, 3)
        produce(cluster, 3)
        rows = spark.readStream.format("kafkameta").options(
            **{"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "t", "startingOffsets": "earliest"},
            eventsPath=str(folder / "events"),
        )
        sink = rows.load().writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
        query = sink.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        wait_until_quiet(folder / "events")
        produce(cluster, 2)
        cluster_id = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=30).cluster_id
        made_up = events(int(time.time() * 1000))
        write(folder / "events", *(replace(event, cluster_id=cluster_id) for event in made_up))
        (setup,) = SETUP
        replaced = setup.replace("/data/events", str(folder / "events"))
        exec(replaced.replace("localhost:19092", cluster.bootstrap_servers), {"spark": spark, "query": query})
        for view in VIEWS:
            spark.catalog.cacheTable(view)
            assert spark.table(view).count() > 0  # reads the table once for all queries
    yield spark
    for view in VIEWS:
        spark.catalog.dropTempView(view)


def produce(cluster: MockCluster, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for _ in range(count):
        producer.produce("t", b"v", partition=1)
    assert producer.flush(30) == 0


def test_every_query_is_tried() -> None:
    assert list(QUERIES) == list(FOUND)
    assert SQL.count(";\n") == len(QUERIES)


@pytest.mark.parametrize("question", FOUND)
def test_a_query_finds_what_it_is_for(question: str, views: SparkSession) -> None:
    rows = [row.asDict(recursive=True) for row in views.sql(QUERIES[question]).collect()]
    assert [row for row in rows if FOUND[question].items() <= row.items()], rows


def test_only_the_cache_that_missed_the_elections_is_stale(views: SparkSession) -> None:
    rows = views.sql(QUERIES["Who is stale, and since when?"]).collect()
    assert [(row.executor_id, row.partition, row.known_since is None) for row in rows] == [("1", 0, False)]


def test_cache_of_a_recreated_topic_is_stale_with_any_epoch(views: SparkSession) -> None:
    other = "(SELECT * EXCEPT (topic_id, leader_epoch), 'old' AS topic_id, 99 AS leader_epoch FROM caches)"
    query = QUERIES["Who is stale, and since when?"].replace("caches AS cached", f"{other} AS cached")
    rows = views.sql(query).collect()

    assert {(row.topic, row.partition, row.known_since) for row in rows} == {("t", 0, None), ("t", 1, None)}


def test_disagreeing_caches_are_named_with_their_leaders(views: SparkSession) -> None:
    (row,) = views.sql(QUERIES["Which executors disagree now?"]).collect()
    assert {"reader 1 11 1@0", "reader 2 22 3@2"} <= set(row.views)


def test_an_executor_that_does_not_know_its_id_fetches_too(views: SparkSession) -> None:
    rows = views.sql(QUERIES["Who fetches how much, and who is throttled?"]).collect()
    assert (None, 8, 1, 10, 9) in rows


def test_recreated_topics_are_found_beside_lost_records(views: SparkSession) -> None:
    first, *_ = views.sql(QUERIES["What was lost, or recreated?"]).collect()
    assert (first.what, first.topic, first.detail) == ("recreated", "u", "old to new")
