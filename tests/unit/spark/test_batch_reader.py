"""Tasks carry the name of their driver: planner and readers write their events to the same default folder."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.spark import batch_reader
from pyspark_kafka_meta.spark.batch_reader import new_tasks, read_partition
from pyspark_kafka_meta.telemetry.event_origin import driver_name


@pytest.mark.parametrize("given", [{}, {"metricsPath": "events"}])
def test_a_task_writes_its_events_where_its_planner_does(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SourceOptions.parse({"kafka.bootstrap.servers": "b:9", "subscribe": "t", **given})
    used: list[SourceOptions] = []

    def read(options: SourceOptions, *_: Any) -> Any:
        used.append(options)
        return iter(())

    monkeypatch.setattr(batch_reader, "_read_task", read)
    (task,) = new_tasks([()], ["t"])
    assert list(read_partition(options, task, {})) == []

    assert used[0].metrics is not None
    assert used[0].metrics.driver == driver_name()
