"""The sink in a Spark session: killed workers, errors of tasks, caches that read and write, timestamps, types."""

from __future__ import annotations

import datetime
import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka_meta.model import TopicPartition
from tests.consumer import consume
from tests.kafka.cluster_tools import log_ends
from tests.unit.written_events import events_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 30_000
UTC = datetime.UTC


@pytest.fixture
def write(kafka: Any) -> Callable[..., None]:
    """Appends a DataFrame to topics, with these options."""

    def append(rows: DataFrame, **options: str) -> None:
        sink = rows.write.format("kafkameta").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        sink.options(**options).mode("append").save()

    return append


def values(kafka: Any, topic: str) -> list[bytes]:
    return [message.value() or b"" for message in consume(kafka.bootstrap_servers, topic)]


# --- failures ---------------------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    found = list[int]()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, file.read_text().split())
    return found


def python_workers() -> list[int]:
    """The children of pyspark.daemon, a child of the JVM, which is a child of this process."""
    daemons = [daemon for jvm in children(os.getpid()) for daemon in children(jvm)]
    return [worker for daemon in daemons for worker in children(daemon)]


@pytest.mark.slow
def test_killed_workers_cost_no_row(
    spark: SparkSession, kafka: Any, topic: str, write: Callable[..., None], wait_for: Any
) -> None:
    """Spark repeats the tasks: the rows that they had written are written again."""

    def kill_writers() -> None:
        wait_for(lambda: log_ends(kafka.bootstrap_servers, topic)[TopicPartition(topic, 0)] > 100, timeout_s=120)
        for worker in python_workers():
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)

    rows = spark.range(ROWS).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 3 AS INT) AS partition")
    slowly = {"kafka.buffer.memory": "2000"}
    with ThreadPoolExecutor(1) as executor:
        killed = executor.submit(kill_writers)
        write(rows, topic=topic, **slowly)
        killed.result(120)
    written = values(kafka, topic)
    assert set(written) == {b"%d" % number for number in range(ROWS)}
    assert len(written) > ROWS, "the killed tasks had written rows"


def test_error_of_a_task_is_one_sentence_with_topic_partition_row_and_cause(
    spark: SparkSession, make_topic: Any, write: Callable[..., None]
) -> None:
    topic = make_topic(3, {"max.message.bytes": "1000"})
    with pytest.raises(PySparkException) as caught:
        write(spark.sql("SELECT repeat('v', 2000) AS value, 1 AS partition"), topic=topic)
    before, _, sentence = str(caught.value).partition("pyspark_kafka_meta.errors.")
    assert "Traceback" not in before
    assert ".py" not in sentence.partition("JVM stacktrace")[0]
    text = (
        rf"RecordTooLargeError: {topic}-1 refuses row 0, whose record has \d+ bytes: MESSAGE_TOO_LARGE .*: raise "
        rf"max\.message\.bytes of topic {topic}, or write less"
    )
    assert re.fullmatch(text, sentence.splitlines()[0]), sentence


# --- readers and writers ----------------------------------------------------------------------------------------------


def test_a_worker_that_reads_and_writes_has_one_cache(
    spark: SparkSession, kafka: Any, make_topic: Any, produce: Any, wait_for: Any, tmp_path: Path
) -> None:
    """Spark gives any free worker a task's reader or writer. Metadata that ages soon makes events in both roles."""
    source, target = make_topic(2), make_topic(2)
    produce(source, map(str, range(2_000)))
    both = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.metadata.max.age.ms": "200",
        "eventsPath": str(tmp_path / "events"),
    }
    limits = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    rows = spark.readStream.format("kafkameta").options(**both, **limits).load().select("key", "value", "timestamp")
    sink = rows.writeStream.format("kafkameta").options(**both, topic=target)
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def roles() -> dict[tuple[int, str], set[str]]:
        """Roles by process and cache."""
        found = defaultdict(set)
        for event in events_in(tmp_path / "events"):
            if event["role"] in ("reader", "writer"):
                found[event["pid"], event["cache_id"]].add(event["role"])
        return found

    wait_for(lambda: {"reader", "writer"} in roles().values() or query.exception())
    query.stop()
    assert query.exception() is None
    assert len(dict(roles().keys())) == len(roles()), "one cache in each process"
    assert {event["query_id"] for event in events_in(tmp_path / "events") if event["role"] == "writer"} == {query.id}
    written = values(kafka, target)
    assert len(written) == len(set(written)) > 0


def test_timestamps_are_written_and_missing_ones_are_now(
    spark: SparkSession, kafka: Any, make_topic: Any, write: Callable[..., None]
) -> None:
    """Spark's own sink of release 4.2 ignores the column."""
    topic = make_topic(1, {"retention.ms": "-1"})
    rows = "SELECT 'v' AS value, timestamp'2024-01-02 03:04:05.678901' AS timestamp UNION ALL SELECT 'v', NULL"
    before = datetime.datetime.now(UTC)
    write(spark.sql(rows), topic=topic)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic}
    read = spark.read.format("kafkameta").options(**options).load().selectExpr("unix_millis(timestamp) AS ms")
    given, now = sorted(datetime.datetime.fromtimestamp(row.ms / 1000, UTC) for row in read.collect())
    assert given == datetime.datetime(2024, 1, 2, 3, 4, 5, 678000, UTC)
    assert before - datetime.timedelta(milliseconds=1) <= now <= datetime.datetime.now(UTC)
