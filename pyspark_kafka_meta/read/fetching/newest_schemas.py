"""`newest_schemas`: looks for schemas in the newest keys or values of topics, at the ends of their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import HEARTBEAT_TOPICS, LATEST_OFFSET, OffsetsSpec, SourceOptions
from pyspark_kafka_meta.options.offsets import LastOffsetsSpec
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
from pyspark_kafka_meta.typed.formats import SchemaText
from pyspark_kafka_meta.typed.reading import NewestSchema

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_OFFSETS, GROWTH = 10, 10
"""Of each partition: so many are read first, and so many times as many after each attempt without success, because the
newest records may be tombstones, and compaction and transactions leave offsets without records."""
MAX_OFFSETS = 10_000
"""Of each partition: a topic of values without schemas is not read as a whole."""


class Found(NamedTuple):
    """`timestamp` is in microseconds since 1970 UTC."""

    timestamp: int
    partition: TopicPartition
    offset: int
    text: SchemaText


def newest_schemas(
    client: KafkaClient, options: SourceOptions, column: str, find: Callable[[bytes], SchemaText | None]
) -> list[NewestSchema]:
    """As `typed.reading.NewestSchemas`: the newest by timestamps, in the order of topics. A partition whose newest
    records have none is read further back, up to the time of the newest one in others. Heartbeats of changes have no
    rows, and no schema of them."""
    options = replace(options, ending_offsets=OffsetsSpec(LATEST_OFFSET), fail_on_data_loss=False, where=None)
    found: dict[str, Found] = {}
    read_back_to: dict[TopicPartition, int] = {}

    def may_have_newer(partition: TopicPartition) -> bool:
        if options.changes is not None and partition.topic.startswith(HEARTBEAT_TOPICS):
            return False
        best = found.get(partition.topic)
        return best is None or read_back_to.get(partition, best.timestamp + 1) > best.timestamp

    offsets, is_left = FIRST_OFFSETS, True
    while is_left and offsets <= MAX_OFFSETS:
        last = replace(options, starting_offsets=LastOffsetsSpec(offsets))
        ranges = [each for each in OffsetPlanner(client, last).batch_ranges() if may_have_newer(each.partition)]
        columns = ["topic", "partition", "offset", "timestamp", column]
        for batch in TaskReader(client, last, columns).read([each for each in ranges if each.size]):
            places = map(TopicPartition, batch.column("topic").to_pylist(), batch.column("partition").to_pylist())
            for place, time in zip(places, batch.column("timestamp").cast("int64").to_pylist(), strict=True):
                read_back_to[place] = min(time, read_back_to.get(place, time))
            for each in _newest(batch, column, find):
                topic = each.partition.topic
                found[topic] = max(each, found.get(topic, each), key=lambda one: one[:3])
        is_left = any(each.size == offsets and may_have_newer(each.partition) for each in ranges)
        offsets *= GROWTH
    in_order = (found[topic] for topic in sorted(found))
    return [NewestSchema(each.text, f"{each.partition} at offset {each.offset}") for each in in_order]


def _newest(batch: pa.RecordBatch, column: str, find: Callable[[bytes], SchemaText | None]) -> Iterator[Found]:
    """The newest of each topic in a batch."""
    batch = batch.filter(batch.column(column).is_valid())
    times, topics = batch.column("timestamp").cast("int64").to_pylist(), set[str]()
    for time, row in sorted(zip(times, range(len(batch)), strict=True), reverse=True):
        topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
        text = None if topic in topics else find(batch.column(column)[row].as_py())
        if text is not None:
            topics.add(topic)
            yield Found(time, TopicPartition(topic, partition), offset, text)
