"""Exactly-once writes through Spark: failed and repeated batches, a killed driver, two queries with one id, copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.exactly_once_query import Query, committed, running
from benchmarks.exactly_once_soak import DECIDED
from benchmarks.stepped_sink import last_kill, taken_steps
from tests.consumer import consume, consume_committed
from tests.spark.standalone import standalone_spark
from tests.spark.traces import run_to_the_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS, TASKS = 3_000, 3
TIMEOUT_MS = 60_000
IN_PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the driver's processes in /proc")


@pytest.fixture
def write(kafka: Any) -> Callable[..., None]:
    """Appends a DataFrame to a topic, whose name is the transactional id, with these options."""

    def append(rows: DataFrame, topic: str, **options: str) -> None:
        sink = rows.write.format("kafkameta").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        sink.options(**{"kafka.transactional.id": topic, "topic": topic, **options}).mode("append").save()

    return append


def visible(kafka: Any, topic: str) -> list[bytes]:
    """The values that a read_committed consumer reads, sorted, once no transaction holds it back."""
    return sorted(message.value() or b"" for message in consume_committed(kafka.bootstrap_servers, topic))


def numbered(spark: SparkSession, value: str = "CAST(id AS STRING)") -> DataFrame:
    return spark.range(0, ROWS, 1, TASKS).selectExpr("CAST(id AS STRING) AS key", f"{value} AS value")


KEYED_ROWS = [{"key": str(number), "value": str(number)} for number in range(ROWS)]
ALL_ROWS = sorted(b"%d" % number for number in range(ROWS))


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_failed_batch_is_invisible_and_holds_nobody_back(
    spark: SparkSession, kafka: Any, topic: str, write: Callable[..., None]
) -> None:
    bad_row = numbered(spark, f"IF(id = {ROWS - 1}, raise_error('bad row'), CAST(id AS STRING))")
    with pytest.raises(PySparkException, match="bad row"):
        write(bad_row, topic)
    assert consume(kafka.bootstrap_servers, topic), "the other tasks had written their rows"
    assert visible(kafka, topic) == []
    write(numbered(spark), topic)
    assert visible(kafka, topic) == ALL_ROWS


def test_foreach_batch_that_repeats_its_write_writes_once(
    spark: SparkSession, kafka: Any, make_topic: Any, produce: Any, write: Callable[..., None], tmp_path: Path
) -> None:
    """As after a crash between the write and Spark's own commit of the micro-batch."""
    source, target = make_topic(2), make_topic(2)
    produce(source, map(str, range(10)))

    def write_twice(rows: DataFrame, batch_id: int) -> None:
        for _ in range(2):
            write(rows.select("value"), target, txnAppId="app", txnVersion=str(batch_id))

    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": source, "startingOffsets": "earliest"}
    rows = spark.readStream.format("kafkameta").options(**options, maxOffsetsPerTrigger="6").load()
    sink = rows.writeStream.foreachBatch(write_twice).option("checkpointLocation", str(tmp_path))
    run_to_the_end(sink.trigger(availableNow=True).start, tmp_path)
    assert visible(kafka, target) == [b"%d" % number for number in range(10)]


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_second_query_with_the_same_id_fences_the_first(
    spark: SparkSession, kafka: Any, make_topic: Any, produce: Any, wait_for: Any, tmp_path: Path
) -> None:
    source, target = make_topic(1), make_topic(1)

    def start(name: str) -> StreamingQuery:
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": source}
        rows = spark.readStream.format("kafkameta").options(**options, startingOffsets="earliest").load()
        sink = rows.select("value").writeStream.format("kafkameta").option("topic", target)
        sink = sink.option("kafka.bootstrap.servers", kafka.bootstrap_servers).option("kafka.transactional.id", target)
        return sink.option("checkpointLocation", str(tmp_path / name)).start()

    produce(source, ["1"])
    older = start("older")
    wait_for(lambda: visible(kafka, target) == [b"1"])
    newer = start("newer")
    wait_for(lambda: visible(kafka, target) == [b"1", b"1"])
    produce(source, ["2"])
    error = wait_for(older.exception)
    newer.processAllAvailable()
    newer.stop()
    assert "FencedError" in str(error)
    assert f"query {newer.id} has written with the same kafka.transactional.id since" in str(error)
    assert visible(kafka, target) == [b"1", b"1", b"2"]


@pytest.mark.slow
def test_a_checkpoint_that_lacks_the_last_batch_fails_instead_of_dropping_its_rows(
    spark: SparkSession, kafka: Any, make_topic: Any, produce: Any, tmp_path: Path
) -> None:
    source, target = make_topic(1), make_topic(1)

    def run(**options: str) -> None:
        given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": source, "startingOffsets": "earliest"}
        rows = spark.readStream.format("kafkameta").options(**given).load().select("value")
        sink = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": target, "kafka.transactional.id": target}
        stream = rows.writeStream.format("kafkameta").options(**sink, **options)
        query = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(120), "the query did not end"

    def forget(*logs: str) -> None:
        """The last batch, in these logs of the checkpoint."""
        for log in logs:
            (tmp_path / log / "1").unlink()
            (tmp_path / log / ".1.crc").unlink(missing_ok=True)

    for row in ("1", "2"):
        produce(source, [row])
        run()
    forget("commits")
    run()  # the same rows, as after a crash of the driver
    forget("commits", "offsets")
    produce(source, ["3"])
    with pytest.raises(PySparkException, match=r"ChangedBatchError.* with other rows \(1 then, 2 now\)"):
        run()
    assert visible(kafka, target) == [b"1", b"2"]
    run(onChangedBatch="skip")
    assert visible(kafka, target) == [b"1", b"2"]


@IN_PROC
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_driver_killed_between_decision_and_commit_costs_no_record_and_repeats_none(
    kafka: Any, make_topic: Any, produce: Any, tmp_path: Path
) -> None:
    source, target = make_topic(3), make_topic(3)
    query = Query(kafka.bootstrap_servers, source, target, target, TIMEOUT_MS)
    produce(source, KEYED_ROWS)
    DECIDED.arm(tmp_path)
    with running(tmp_path, query, available_now=True) as run:
        assert run.wait_until_begun(), run.log[-3000:]
        assert run.ends_within(240), "the driver was not killed"
    assert last_kill(tmp_path) == DECIDED
    assert committed(tmp_path) == 0
    assert consume(kafka.bootstrap_servers, target, "read_committed") == []
    with running(tmp_path, query, available_now=True) as run:
        assert run.ends_within(240), "the query did not end"
        assert run.exit_code == 0, run.log[-3000:]
    assert visible(kafka, target) == ALL_ROWS


@IN_PROC
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_speculative_copy_that_overtakes_its_task_writes_no_row_twice(
    kafka: Any, make_topic: Any, produce: Any, tmp_path: Path
) -> None:
    """The first attempt of task 0 pauses, amid its rows or with all in its open transaction. Its copy commits."""
    source, target = make_topic(3), make_topic(3)
    produce(source, KEYED_ROWS)
    with standalone_spark(tmp_path) as master:
        query = Query(kafka.bootstrap_servers, source, target, target, TIMEOUT_MS, master, pauses=1.0, pause_s=120)
        with running(tmp_path, query, available_now=True) as run:
            assert run.ends_within(240), "the query did not end"
            assert run.exit_code == 0, run.log[-3000:]
    assert sum(step.later_attempts for step in taken_steps(tmp_path)) == 1
    assert visible(kafka, target) == ALL_ROWS
