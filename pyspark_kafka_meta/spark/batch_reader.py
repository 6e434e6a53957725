"""`KafkaMetaReader`: Spark's batch reader, and the planner and tasks that it shares with the stream reader.

Spark pickles readers and sends them to executors, so they hold options and no connection. Heavy imports wait until a
method needs them, because Spark imports this package whenever it looks up data sources.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_kafka_meta.options import ClientOptions, ProducerOptions, SourceOptions, default_options
from pyspark_kafka_meta.spark.records_table import Columns
from pyspark_kafka_meta.spark.task_latency import LowLatencyTask, avoid_plan_delays
from pyspark_kafka_meta.spark.user_errors import entry_points
from pyspark_kafka_meta.spark.worker_memory import worker_memory

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafka_meta.client_facts import SchemaLookup
    from pyspark_kafka_meta.model import OffsetRange
    from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
    from pyspark_kafka_meta.typed.formats import SchemaText
    from pyspark_kafka_meta.typed.reading import NewestSchema, QuerySchemas, RegisteredSchema, WriterSchemas


TOPIC_NAMES_BYTES = 4 * 1024 * 1024
"""Of a batch: what its tasks together carry of the names of all topics. With 5,000 topics, each of 500 tasks carried
190 kB uncompressed."""
SCHEMAS_BYTES = 4 * 1024 * 1024
"""Of a batch: what its tasks together carry of writers' schemas, which may have megabytes in each task."""


class Task(InputPartition):
    """The offset ranges of one Spark task, and the names of all topics of its query, or of none.

    With the names, a worker asks for all topics at once that its later tasks read. Without them, each of these tasks
    may cost a Metadata request for topics that are new to its worker.

    Attributes:
        driver: see `events.origin.driver_name`.
    """

    def __init__(self, ranges: Sequence[OffsetRange], names: bytes, driver: str, schemas: bytes = b"") -> None:
        """
        Args:
            names: see `_compressed`.
            schemas: see `_pickled`.
        """
        self.ranges = tuple(ranges)
        self.driver = driver
        self._names = names
        self._schemas = schemas

    @property
    def is_by_key(self) -> bool:
        """Whether the latest record of each key is read, and the keys are kept in memory."""
        return any(planned.latest_by_key for planned in self.ranges)

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(zlib.decompress(self._names).decode().split()) if self._names else frozenset()

    @property
    def schemas(self) -> tuple[RegisteredSchema, ...]:
        """Of the writers that the driver knows."""
        return pickle.loads(zlib.decompress(self._schemas)) if self._schemas else ()


@entry_points
class KafkaMetaReader(LowLatencyTask, DataSourceReader):
    """Reads from the starting to the ending offsets, which are resolved once, at planning."""

    def __init__(self, options: SourceOptions, columns: Columns, schemas: QuerySchemas | None = None) -> None:
        """`schemas` are of typed columns; None without these."""
        self._options = options
        self._columns = columns
        self._schemas = schemas

    def partitions(self) -> Sequence[InputPartition]:
        planner = new_planner(self._options, self._options.client)
        try:
            planned = planner.batch_ranges()
            topics = {planned_range.partition.topic for planned_range in planned}
            writers = () if self._schemas is None else new_writer_schemas(self._schemas, planner.report).current()
            return new_tasks(planner.tasks(planned), topics, writers)
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition, self._columns, self._schemas)


def new_planner(options: SourceOptions, client: ClientOptions) -> OffsetPlanner:
    """A planner with a client of its own, which the caller closes."""
    avoid_plan_delays()
    from pyspark_kafka_meta.events.origin import planner_origin
    from pyspark_kafka_meta.events.publisher import new_publisher
    from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
    from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner

    if options.typed.dead_letter_topic is not None:
        _require_topic(options.client, options.typed.dead_letter_topic)
    publisher = new_publisher(options.events, planner_origin())
    kafka = KafkaClient(client, publisher, options.topic_filter)
    if options.max_bytes_per_trigger is None:
        return OffsetPlanner(kafka, options)
    from pyspark_kafka_meta.read.fetching.batch_sizes import batch_sizes
    from pyspark_kafka_meta.read.planning.byte_limit import ByteLimit

    return OffsetPlanner(kafka, options, ByteLimit(options.max_bytes_per_trigger, partial(batch_sizes, kafka, options)))


def _require_topic(client: ClientOptions, topic: str) -> None:
    """Raises UnknownTopicError, BrokerError, ConnectError: as `ask_partitions`. With a client of its own, as that of a
    planner with subscribePattern does not know the topic."""
    from pyspark_kafka_meta.events.origin import planner_origin
    from pyspark_kafka_meta.events.publisher import client_without_events
    from pyspark_kafka_meta.write.topic_metadata import ask_partitions

    with closing(client_without_events(client, planner_origin())) as own:
        ask_partitions(own, [topic], client.default_api_timeout_ms)


def find_newest_schemas(
    options: SourceOptions, column: str, find: Callable[[bytes], SchemaText | None]
) -> list[NewestSchema]:
    """As `typed.reading.NewestSchemas`, with a client of its own."""
    from pyspark_kafka_meta.events.origin import planner_origin
    from pyspark_kafka_meta.events.publisher import new_publisher
    from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
    from pyspark_kafka_meta.read.fetching.newest_schemas import newest_schemas

    publisher = new_publisher(options.events, planner_origin())
    with closing(KafkaClient(options.client, publisher, options.topic_filter)) as client:
        return newest_schemas(client, options, column, find)


def new_tasks(
    planned: Iterable[Sequence[OffsetRange]], topics: Collection[str], schemas: Sequence[RegisteredSchema] = ()
) -> list[InputPartition]:
    """A task for each sequence of ranges. Call it in a planner's process, which knows its driver.

    As many tasks carry the names of all topics as `TOPIC_NAMES_BYTES` allows, and the schemas as `SCHEMAS_BYTES`: the
    first ones, which Spark starts first and in different workers. Workers keep both, and ask for what they lack.

    Args:
        schemas: that writers of the records may have used.
    """
    from pyspark_kafka_meta.events.origin import driver_name

    driver, names = driver_name(), _compressed(topics)
    known = _pickled(tuple(schemas))
    with_names, with_schemas = TOPIC_NAMES_BYTES // len(names), SCHEMAS_BYTES // max(1, len(known))
    return [
        Task(ranges, names if index < with_names else b"", driver, known if index < with_schemas else b"")
        for index, ranges in enumerate(planned)
    ]


def _compressed(topics: Collection[str]) -> bytes:
    """The names of topics, which contain no space."""
    return zlib.compress(" ".join(sorted(topics)).encode())


@lru_cache(1)
def _pickled(schemas: tuple[RegisteredSchema, ...]) -> bytes:
    """Compressed. Few micro-batches have new schemas, and with thousands of them this takes seconds."""
    return zlib.compress(pickle.dumps(schemas)) if schemas else b""


def read_partition(
    options: SourceOptions, partition: InputPartition, columns: Columns, schemas: QuerySchemas | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    if isinstance(partition, Task):  # Spark turns the empty plan of a batch into a partition of another class
        fetched = "kafka.fetch.max.bytes and kafka.max.partition.fetch.bytes"
        with worker_memory("the number of keys of each partition" if partition.is_by_key else fetched):
            yield from _read(options, partition, columns, schemas)


def _read(
    options: SourceOptions, task: Task, columns: Columns, schemas: QuerySchemas | None
) -> Iterator[pa.RecordBatch]:
    from pyspark_kafka_meta.arrow_reader import rows_of
    from pyspark_kafka_meta.events.event import Role
    from pyspark_kafka_meta.events.origin import task_origin
    from pyspark_kafka_meta.spark.client_pool import worker_clients

    if options.events is not None:
        options = replace(options, events=replace(options.events, driver=task.driver))
    with worker_clients.client(options.client, options.events, task_origin(Role.READER)) as client:
        write = None if options.typed.dead_letter_topic is None else partial(_write_letters, options)
        yield from rows_of(client, options, task.ranges, columns, schemas, task.topics, task.schemas, write)


def _write_letters(options: SourceOptions, letters: Sequence[pa.RecordBatch]) -> None:
    """As `typed.reading.WriteLetters`. With a second client, as requests of the reading one are in flight."""
    from pyspark_kafka_meta.events.event import Role
    from pyspark_kafka_meta.events.origin import task_origin
    from pyspark_kafka_meta.spark.client_pool import worker_clients
    from pyspark_kafka_meta.write.input_columns import RECORD_COLUMNS
    from pyspark_kafka_meta.write.task_writer import TaskWriter

    # A record may be larger than a sink allows by default. Brokers refuse larger requests (socket.request.max.bytes).
    # It may have come compressed, and brokers compare max.message.bytes with what is sent.
    producer = default_options(ProducerOptions, max_request_bytes=100_000_000, compression_type="zstd")
    with worker_clients.client(options.client, options.events, task_origin(Role.WRITER)) as client:
        TaskWriter(client, producer, RECORD_COLUMNS, options.typed.dead_letter_topic).write(letters)


def new_writer_schemas(schemas: QuerySchemas, report: Callable[[SchemaLookup], None]) -> WriterSchemas:
    """For the tasks of a planner, whose events show the requests, and those that found the query's own schemas."""
    from pyspark_kafka_meta.typed.reading import WriterSchemas

    for lookup in schemas.lookups:
        report(lookup)
    return WriterSchemas(schemas, report)
