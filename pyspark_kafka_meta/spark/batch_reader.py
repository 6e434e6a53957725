"""`KafkaMetaReader`: Spark's batch reader, and the planner and tasks that it shares with the stream reader.

Spark pickles readers and sends them to executors, so they hold options and no connection. Heavy imports wait until a
method needs them, because Spark imports this package whenever it looks up data sources.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_kafka_meta.options import ClientOptions, SourceOptions
from pyspark_kafka_meta.spark.records_table import Columns
from pyspark_kafka_meta.spark.task_latency import LowLatencyTask, avoid_plan_delays
from pyspark_kafka_meta.spark.user_errors import entry_points
from pyspark_kafka_meta.spark.worker_memory import worker_memory

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafka_meta.model import OffsetRange
    from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner


TOPIC_NAMES_BYTES = 4 * 1024 * 1024
"""Of a batch: what its tasks together carry of the names of all topics. With 5,000 topics, each of 500 tasks carried
190 kB uncompressed."""


class Task(InputPartition):
    """The offset ranges of one Spark task, and the names of all topics of its query, or of none.

    With the names, a worker asks for all topics at once that its later tasks read. Without them, each of these tasks
    may cost a Metadata request for topics that are new to its worker.

    Attributes:
        driver: see `events.origin.driver_name`.
    """

    def __init__(self, ranges: Sequence[OffsetRange], names: bytes, driver: str) -> None:
        """
        Args:
            names: see `_compressed`.
        """
        self.ranges = tuple(ranges)
        self.driver = driver
        self._names = names

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(zlib.decompress(self._names).decode().split()) if self._names else frozenset()


@entry_points
class KafkaMetaReader(LowLatencyTask, DataSourceReader):
    """Reads from the starting to the ending offsets, which are resolved once, at planning."""

    def __init__(self, options: SourceOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        planner = new_planner(self._options, self._options.client)
        try:
            planned = planner.batch_ranges()
            topics = {planned_range.partition.topic for planned_range in planned}
            return new_tasks(planner.tasks(planned), topics)
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition, self._columns)


def new_planner(options: SourceOptions, client: ClientOptions) -> OffsetPlanner:
    """A planner with a client of its own, which the caller closes."""
    avoid_plan_delays()
    from pyspark_kafka_meta.events.origin import planner_origin
    from pyspark_kafka_meta.events.publisher import new_publisher
    from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
    from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner

    publisher = new_publisher(options.metrics, planner_origin())
    return OffsetPlanner(KafkaClient(client, publisher, options.topic_filter), options)


def new_tasks(planned: Iterable[Sequence[OffsetRange]], topics: Collection[str]) -> list[InputPartition]:
    """A task for each sequence of ranges. Call it in a planner's process, which knows its driver.

    As many tasks carry the names of all topics as `TOPIC_NAMES_BYTES` allows: the first ones, which Spark starts first
    and in different workers.
    """
    from pyspark_kafka_meta.events.origin import driver_name

    driver, names = driver_name(), _compressed(topics)
    with_names = TOPIC_NAMES_BYTES // len(names)
    return [Task(ranges, names if index < with_names else b"", driver) for index, ranges in enumerate(planned)]


def _compressed(topics: Collection[str]) -> bytes:
    """The names of topics, which contain no space."""
    return zlib.compress(" ".join(sorted(topics)).encode())


def read_partition(options: SourceOptions, partition: InputPartition, columns: Columns) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    if isinstance(partition, Task):  # Spark turns the empty plan of a batch into a partition of another class
        with worker_memory("kafka.fetch.max.bytes and kafka.max.partition.fetch.bytes"):
            yield from _read(options, partition, columns)


def _read(options: SourceOptions, task: Task, columns: Columns) -> Iterator[pa.RecordBatch]:
    from pyspark_kafka_meta.events.origin import task_origin
    from pyspark_kafka_meta.kafka.metadata.refresh_events import Role
    from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
    from pyspark_kafka_meta.spark.client_pool import worker_clients

    if options.metrics is not None:
        options = replace(options, metrics=replace(options.metrics, driver=task.driver))
    names = list(columns.values())
    with worker_clients.client(options.client, options.metrics, task_origin(Role.READER)) as client:
        for batch in TaskReader(client, options, list(columns)).read(task.ranges, task.topics):
            yield batch.rename_columns(names)
