"""Batches and streams with the installed release of pyspark, by `make compat`: the rows of Spark's own source, each
record once through restarts, failures and killed drivers, Trigger.AvailableNow, and checkpoints that change the
release. Imported tests and their fixtures run unchanged."""

# ruff: noqa: F401, F811

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka_meta.spark.stream_api import PASSES_START
from tests.spark.conftest import jvm_jars, jvm_source
from tests.spark.killed_driver import start
from tests.spark.test_conformance import (
    compacted_topic,
    log_append_time_topic,
    plain_topic,
    test_rows_equal_those_of_a_confluent_consumer,
    transactional_topic,
)
from tests.spark.test_exactly_once import (
    test_a_checkpoint_that_lacks_the_last_batch_fails_instead_of_dropping_its_rows,
    test_a_driver_killed_between_decision_and_commit_costs_no_record_and_repeats_none,
    test_a_second_query_with_the_same_id_fences_the_first,
    test_foreach_batch_that_repeats_its_write_writes_once,
    write,
)
from tests.spark.test_killed_drivers import test_killed_drivers_cost_no_record_and_repeat_none
from tests.spark.test_options_live import sink, source, test_small_batches_wait_until_there_is_enough_to_read
from tests.spark.test_parity_batch import in_order, test_rows_are_those_of_sparks_own_source, topics
from tests.spark.test_parity_sink import (
    lines,
    ours,
    sinks,
    test_complete_mode_appends_the_whole_result_as_sparks_own_sink_does,
    test_s1_s8_a_stream_writes_to_the_topic_column_and_counts_its_rows,
    test_spark_reads_the_same_rows_whichever_sink_wrote_them,
    written,
)
from tests.spark.test_parity_stream import (
    query,
    test_mb2_latest_begins_after_what_is_there_and_goes_on_after_a_stop,
    test_mb9_initial_offsets_are_kept_though_nothing_came_until_a_stop,
    test_mb11_batches_are_limited_as_sparks_own_source_limits_them,
    test_mb17_a_batch_that_failed_is_planned_again_after_partitions_were_added,
    test_mb18_an_idle_source_beside_a_busy_one_neither_stalls_nor_rewinds,
    test_mb25_a_stream_joined_with_itself_reads_each_record_on_both_sides,
)
from tests.spark.test_side_stream import test_side_stream_survives_its_own_restarts_without_a_gap_or_a_repeat
from tests.spark.test_streaming import (
    forget_last_commit,
    pipeline,
    test_a_batch_whose_commit_was_lost_is_read_again_as_it_was_planned,
    test_a_query_whose_planner_is_killed_fails_and_goes_on_from_its_checkpoint,
    test_each_record_once_when_stopped_at_any_point,
    test_latest_is_pinned_even_if_batch_0_never_commits,
)
from tests.spark.traces import Query, logged, rows_by_batch, run_to_the_end

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parent.parent.parent
OTHER_PYTHON = os.environ.get("OTHER_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
"""With another release of pyspark."""
WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


def run_once(python: str, kafka: Any, topic: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    program = [python, str(ROOT / "tests" / "spark" / "killed_driver.py"), kafka.bootstrap_servers, topic, str(folder)]
    done = subprocess.run([*program, "once"], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def test_streams_read_the_rows_of_sparks_own_source_through_restarts_limits_and_a_new_topic(
    spark: SparkSession, jvm_source: str, kafka: Any, make_topic: Any, produce: Any, tmp_path: Path
) -> None:
    prefix = f"both-{uuid.uuid4().hex}"
    options = {"subscribePattern": f"{prefix}-.*", "includeHeaders": "true", "maxOffsetsPerTrigger": "40"}
    both = [Query(spark, tmp_path / name, kafka.bootstrap_servers, name) for name in (jvm_source, "kafkameta")]
    sizes: list[list[int]] = [[], []]
    made = {make_topic(3, name=f"{prefix}-a"): 3}
    for turn in range(3):
        for topic, partitions in made.items():
            for partition in range(partitions):
                records = ({"key": f"{turn}", "value": f"{number}", "headers": [("h", b"1")]} for number in range(25))
                produce(topic, records, partition)
        for one, counts in zip(both, sizes, strict=True):
            stream = one.start(one.frame(**options), processingTime="0 seconds")
            stream.processAllAvailable()
            stream.stop()
            counts += rows_by_batch(stream)
        made[make_topic(1, name=f"{prefix}-{turn}")] = 1
    theirs, ours = (in_order(spark.read.parquet(str(one.folder / "rows"))) for one in both)
    assert len(theirs) == 25 * (3 + 4 + 5)
    assert ours == theirs
    assert sizes[1] == sizes[0]


def test_available_now_reads_all_in_one_micro_batch_and_an_unfinished_one_before_it(
    query: Query, topic: str, produce: Any
) -> None:
    rows = query.frame(subscribe=topic).selectExpr("CAST(value AS STRING) AS value")
    checkpoint = query.folder / "checkpoint"
    produce(topic, ["a", "b"])
    first = query.start(rows, availableNow=True)
    assert first.awaitTermination(120)
    assert rows_by_batch(first) == [2]
    forget_last_commit(checkpoint)
    produce(topic, ["c"])
    assert query.start(rows, availableNow=True).awaitTermination(120)
    assert logged(checkpoint, "commits") == (2 if PASSES_START else 1), "the run of the unfinished micro-batch ends"
    query.run_rows(rows)
    assert query.values() == ["a", "b", "c"]


def test_available_now_with_a_limit_reads_all_or_warns_that_it_reads_a_part(
    kafka: Any, topic: str, produce: Any, tmp_path: Path
) -> None:
    produce(topic, map(str, range(100)), partition=0)
    run = run_once(sys.executable, kafka, topic, tmp_path)
    warning = "ends after one micro-batch, which maxOffsetsPerTrigger limits: raise the limit"
    assert (run.stdout, warning in run.stderr) == (("[40, 40, 20]\n", False) if PASSES_START else ("[40]\n", True))


@pytest.mark.skipif(PASSES_START, reason="the source needs no wrapper")
def test_available_now_of_sparks_wrapper_is_refused_in_a_restart(
    spark: SparkSession, query: Query, topic: str, produce: Any
) -> None:
    rows = query.frame(subscribe=topic).selectExpr("CAST(value AS STRING) AS value")
    produce(topic, ["a"])
    spark.conf.set(WRAPPER, "true")
    try:
        assert query.start(rows, availableNow=True).awaitTermination(120)
        produce(topic, ["b"])
        with pytest.raises(StreamingQueryException, match=f"set {WRAPPER} to false: with it, pyspark"):
            query.start(rows, availableNow=True).awaitTermination(120)
    finally:
        spark.conf.unset(WRAPPER)
    query.run_rows(rows)
    assert query.values() == ["a", "b"]


def test_two_topics_are_joined_through_limits_and_restarts(query: Query, make_topic: Any, produce: Any) -> None:
    made = make_topic(1), make_topic(1)
    for turn in range(2):
        for topic in made:
            produce(topic, [f"{turn}-{number}" for number in range(6)])
        left, right = (
            query.frame(subscribe=topic, maxOffsetsPerTrigger=limit).selectExpr("CAST(value AS STRING) AS value")
            for topic, limit in zip(made, (2, 5), strict=True)
        )
        query.run_rows(left.join(right, on="value"))
    assert query.values() == [f"{turn}-{number}" for turn in range(2) for number in range(6)]


def test_foreach_batch_reads_a_micro_batch_twice_and_an_older_one_later(query: Query, topic: str, produce: Any) -> None:
    kept: list[DataFrame] = []
    counts = []

    def count(batch: DataFrame, _: int) -> None:
        kept.append(batch)
        counts.append([batch.count(), batch.count(), kept[0].count()])

    produce(topic, map(str, range(100)), partition=0)
    sink = query.frame(subscribe=topic, maxOffsetsPerTrigger="40").writeStream.foreachBatch(count)
    stream = sink.option("checkpointLocation", str(query.folder / "checkpoint")).start()
    stream.processAllAvailable()
    stream.stop()
    assert counts == [[40, 40, 40], [40, 40, 40], [20, 20, 40]]


@pytest.mark.timeout(600)
def test_a_checkpoint_goes_on_with_another_release_and_back(
    spark: SparkSession, kafka: Any, topic: str, produce: Any, tmp_path: Path
) -> None:
    """Also with a micro-batch that the other release left unfinished."""
    expected = []
    for turn in range(3):
        values = [f"{turn}-{number}" for number in range(50)]
        produce(topic, values)
        expected += values
        if turn % 2 == 0:
            run_once(OTHER_PYTHON, kafka, topic, tmp_path)
        else:
            own = start(spark, kafka.bootstrap_servers, topic, tmp_path, availableNow=True)
            assert own.awaitTermination(120), "the query did not end"
        forget_last_commit(tmp_path / "checkpoint")
    run_to_the_end(
        lambda: start(spark, kafka.bootstrap_servers, topic, tmp_path, availableNow=True), tmp_path / "checkpoint"
    )
    rows = spark.read.parquet(str(tmp_path / "rows"))
    assert Counter(row.value for row in rows.collect()) == Counter(expected)
    assert rows.select("partition", "offset").distinct().count() == len(expected)
