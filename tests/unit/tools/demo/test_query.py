"""What is told of the demo's query: how far it is, and why it failed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tools.demo.clusters import UserCluster
from pyspark_kafka_meta.tools.demo.query import RESTARTS, DemoQuery, QueryFailedError, root_cause

OURS = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform it: Traceback
  File "/opt/pyspark_kafka_meta/errors.py", line 7, in offsets
pyspark_kafka_meta.errors.ConnectError: cannot connect to b:9092

During handling of the above exception, another exception occurred:

pyspark_kafka_meta.errors.NoLeaderError: no offsets of t-0 in 60000 ms: b:9092 is down
 SQLSTATE: 38000
=== Streaming Query ===
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (OURS, "no offsets of t-0 in 60000 ms: b:9092 is down"),
        ("\nJob aborted due to stage failure\n\tat org.apache", "Job aborted due to stage failure"),
        (
            "Job aborted\nPython worker failed to connect back.",
            "Spark's Python processes did not start within 10 s, 6 times; this machine is too busy: stop other "
            "programs, and start the demo again",
        ),
    ],
    ids=["ours", "Spark's", "a busy machine"],
)
def test_the_cause_is_told_rather_than_what_spark_was_doing(text: str, told: str) -> None:
    assert root_cause(text) == told


def test_a_query_that_had_to_wait_for_its_first_record_began_with_its_first_batch() -> None:
    t0 = TopicPartition("t", 0)
    offset = SourceOffset({t0: Position(9)}, {"t": None}, start={t0: Position(4)})
    reports = [report(None), report("null"), report(json.dumps(offset.as_dict()))]
    stream: Any = DemoQuery.__new__(DemoQuery)
    stream._begins, stream._records_per_s = {}, 0.0
    for seen, progress in ((0, ({}, {}, 0.0)), (2, ({}, {}, 0.0)), (3, (offset.start, offset.positions, 7.0))):
        last = reports[seen - 1] if seen else None
        stream._query = SimpleNamespace(exception=lambda: None, lastProgress=last, recentProgress=reports[:seen])

        assert stream.progress() == progress


def test_the_query_writes_nothing_to_a_cluster_of_yours(tmp_path: Path) -> None:
    spark = MagicMock()
    DemoQuery(
        spark, UserCluster({"kafka.bootstrap.servers": "b:9"}, "orders"), tmp_path / "events", tmp_path / "checkpoint"
    )

    rows = spark.readStream.format("kafkameta").options().load()
    rows.writeStream.format.assert_called_once_with("noop")
    rows.selectExpr.assert_not_called()


def test_the_sink_has_its_cluster_s_further_options(tmp_path: Path) -> None:
    spark = MagicMock()
    cluster: Any = SimpleNamespace(
        options={"kafka.bootstrap.servers": "b:9"},
        selection={"subscribe": "clicks"},
        sink_options={"kafka.transactional.id": "demo"},
        copies=["copies"],
    )
    DemoQuery(spark, cluster, tmp_path / "events", tmp_path / "checkpoint")
    rows = spark.readStream.format().options
    written = rows().load().selectExpr().repartition().writeStream.format().options

    assert written.call_args.kwargs.items() >= cluster.sink_options.items()
    assert not rows.call_args_list[0].kwargs.keys() & cluster.sink_options.keys()


def test_a_query_whose_python_processes_start_too_slowly_is_started_again() -> None:
    stream: Any = DemoQuery.__new__(DemoQuery)
    stream._begins, stream._records_per_s, stream._restarts = {}, 0.0, 0
    starts = []

    def start() -> Any:
        starts.append(1)
        return SimpleNamespace(exception=lambda: "Python worker failed to connect back", lastProgress=None)

    stream._query, stream._sink = start(), SimpleNamespace(start=start)
    for _ in range(RESTARTS):
        assert stream.progress() == ({}, {}, 0.0)

    with pytest.raises(QueryFailedError, match="too busy"):
        stream.progress()
    assert len(starts) == 1 + RESTARTS


def report(end_offset: str | None) -> Any:
    rows = 0 if end_offset in (None, "null") else 5
    source = SimpleNamespace(endOffset=end_offset)
    return SimpleNamespace(sources=[source], numInputRows=rows, processedRowsPerSecond=7.0)
