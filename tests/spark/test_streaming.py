"""A streaming query reads each record once: with restarts at any point, a crash in batch 0, and a rate limit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.checkpoints import offsets_in
from tests.spark.traces import Query, logged, rows_by_batch
from tests.unit.written_events import events_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def pipeline(spark: SparkSession, kafka: Any, topic: str, tmp_path: Path) -> Query:
    query = Query(spark, tmp_path, kafka.bootstrap_servers)
    query.options["subscribe"] = topic
    return query


@pytest.mark.slow
def test_each_record_once_when_stopped_at_any_point(pipeline: Query, topic: str, produce: Any, wait_for: Any) -> None:
    expected: list[str] = []
    chance = random.Random(7)
    for round_number, log in enumerate(("offsets", "", "commits", "offsets", "")):
        values = [f"{round_number}-{number}" for number in range(400)]
        produce(topic, values)
        expected += values
        before = logged(pipeline.checkpoint, log)
        query = pipeline.start(processingTime="0 seconds")
        # Stop after a batch is planned or committed, or after a random time, maybe while a batch is planned.
        if log:
            wait_for(lambda log=log, before=before: logged(pipeline.checkpoint, log) > before)
        query.awaitTermination(chance.choice([0.001, 0.1, 0.5]))  # type: ignore[arg-type]
        query.stop()
    pipeline.run()
    assert Counter(pipeline.values()) == Counter(expected)


def test_a_batch_whose_commit_was_lost_is_read_again_as_it_was_planned(
    pipeline: Query, topic: str, produce: Any
) -> None:
    produce(topic, ["a", "b", "c"])
    pipeline.run()
    produce(topic, ["d"])
    pipeline.run()
    forget_last_commit(pipeline.checkpoint)
    produce(topic, ["e"])
    pipeline.run()
    assert sorted(pipeline.values()) == ["a", "b", "c", "d", "e"]


@pytest.mark.slow
def test_latest_is_pinned_even_if_batch_0_never_commits(
    pipeline: Query, topic: str, produce: Any, wait_for: Any
) -> None:
    """After such a crash Spark requests the initial offset again: it stores none for a Python source."""
    pipeline.options["startingOffsets"] = "latest"
    produce(topic, ["before the query"])
    offset_log = pipeline.checkpoint / "offsets" / "0"

    def crash(batch: DataFrame, batch_id: int) -> None:
        raise RuntimeError("crashed between the offset log and the commit")

    crashing = pipeline.frame().writeStream.foreachBatch(crash)
    query = crashing.option("checkpointLocation", str(pipeline.checkpoint)).start()
    wait_for(lambda: query.exception() is not None)
    assert offset_log.exists()
    assert not (pipeline.checkpoint / "commits" / "0").exists()

    produce(topic, ["while it was down"])
    pipeline.run()
    assert pipeline.values() == ["while it was down"]


KILLED_DRIVER = """
import os, signal, sys
from pyspark.sql import DataFrame, SparkSession

servers, topic, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
source = spark.readStream.format("kafkameta").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
rows = source.option("startingOffsets", "latest").load().writeStream
query = rows.foreachBatch(lambda batch, batch_id: os.kill(os.getpid(), signal.SIGKILL))
query.option("checkpointLocation", checkpoint).start().awaitTermination(120)
"""


@pytest.mark.thorough
def test_latest_is_pinned_even_if_the_driver_is_killed_in_batch_0(
    pipeline: Query, kafka: Any, topic: str, produce: Any
) -> None:
    pipeline.options["startingOffsets"] = "latest"
    produce(topic, ["before the query"])
    arguments = [kafka.bootstrap_servers, topic, str(pipeline.checkpoint)]
    driver = subprocess.run([sys.executable, "-c", KILLED_DRIVER, *arguments], capture_output=True, timeout=120)
    assert driver.returncode == -signal.SIGKILL, driver.stderr[-2000:]
    assert (pipeline.checkpoint / "offsets" / "0").exists()
    assert not (pipeline.checkpoint / "commits" / "0").exists()

    produce(topic, ["while it was down"])
    pipeline.run()
    assert pipeline.values() == ["while it was down"]


def pids(events: Path, role: str) -> set[int]:
    """Pids of the processes whose caches have this role."""
    return {event["pid"] for event in events_in(events) if event["role"] == role}


def test_killed_workers_cost_no_record_and_repeat_none(
    pipeline: Query, topic: str, produce: Any, wait_for: Any
) -> None:
    events = pipeline.folder / "events"
    pipeline.options |= {"eventsPath": str(events), "maxOffsetsPerTrigger": "40"}
    query = pipeline.start(processingTime="0 seconds")
    killed: set[int] = set()
    expected = []
    while len(killed) < 3 or reader_attempts(events) == {0}:  # a worker that is killed between tasks costs no attempt
        assert len(killed) < 30, "Spark retried no task of a killed worker, or events do not name the attempts"
        values = [f"{len(killed)}-{value}" for value in range(120)]
        produce(topic, values)
        expected += values
        for pid in wait_for(lambda: pids(events, "reader") - killed):
            with suppress(ProcessLookupError):  # an idle worker ends after a minute
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    query.processAllAvailable()
    query.stop()
    assert Counter(pipeline.values()) == Counter(expected)


def reader_attempts(events: Path) -> set[int]:
    """Attempt numbers of the tasks whose caches published events."""
    return {event["task_attempt"] for event in events_in(events) if event["role"] == "reader"}


@pytest.mark.slow
def test_a_query_whose_planner_is_killed_fails_and_goes_on_from_its_checkpoint(
    pipeline: Query, topic: str, produce: Any, wait_for: Any
) -> None:
    events = pipeline.folder / "events"
    pipeline.options |= {"eventsPath": str(events), "maxOffsetsPerTrigger": "40"}
    produce(topic, [f"before {number}" for number in range(240)])
    query = pipeline.start(processingTime="0 seconds")
    (planner,) = wait_for(lambda: pids(events, "planner"))
    wait_for(lambda: logged(pipeline.checkpoint, "commits") > 1)
    os.kill(planner, signal.SIGKILL)
    produce(topic, ["after"])
    wait_for(lambda: query.exception() is not None)
    pipeline.run()
    assert Counter(pipeline.values()) == Counter(["after", *(f"before {number}" for number in range(240))])


def test_available_now_keeps_the_rate_limit_ends_and_reports_its_offsets(
    pipeline: Query, topic: str, produce: Any
) -> None:
    produce(topic, [str(number) for number in range(15)], partition=0)
    pipeline.options["maxOffsetsPerTrigger"] = "5"
    query = pipeline.start(availableNow=True)
    assert query.awaitTermination(120)
    assert rows_by_batch(query) == [5, 5, 5]
    assert sorted(map(int, pipeline.values())) == list(range(15))
    sources = [progress["sources"][0] for progress in query.recentProgress if progress["numInputRows"]]
    ends = [offsets_in(source["endOffset"], topic)[0] for source in sources]
    assert ends == [5, 10, 15]
    assert [offsets_in(source["startOffset"], topic)[0] for source in sources[1:]] == ends[:-1]
    assert [offsets_in(source["latestOffset"], topic)[0] for source in sources] == [15, 15, 15]


def forget_last_commit(checkpoint: Path) -> None:
    """The state after a crash between the commit of the sink and the commit of the query."""
    commits = checkpoint / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    (commits / str(last)).unlink()
    for leftover in commits.glob(f".{last}.*"):
        leftover.unlink()
