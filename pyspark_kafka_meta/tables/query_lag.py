"""How far a streaming query is behind: its offsets beside the ends of the logs, and the age of its next record."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from uuid import UUID

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.model import OffsetRange, Position, Positions, TopicPartition, is_other_topic
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.table_rows import LagRow, PartitionRow, by_partition

logger = logging.getLogger(__name__)

PATIENCE_MS = 10_000
"""How long a leader may take to return the next record."""


def of_same_topics(live: Iterable[PartitionRow], topic_ids: Mapping[str, UUID | None]) -> list[PartitionRow]:
    """Without the partitions of topics recreated since: their offsets do not compare with those before."""
    ids = {topic: topic_id and str(topic_id) for topic, topic_id in topic_ids.items()}
    return [row for row in live if not is_other_topic(ids[row.topic], row.topic_id)]


def unread(read_up_to: Positions, live: Iterable[PartitionRow]) -> list[TopicPartition]:
    """The partitions that hold a record after `read_up_to`, as far as their leaders report."""
    ends = _ends(live)
    return [each for each, position in read_up_to.items() if (ends.get(each) or 0) > position.offset]


def lag_rows(
    read_up_to: Positions, live: Iterable[PartitionRow], timestamps: Mapping[TopicPartition, float], now: float
) -> list[LagRow]:
    """The lag of each partition, in order.

    Args:
        timestamps: of the next records that could be read, seconds since 1970 UTC.
        now: seconds since 1970 UTC.
    """
    ends = _ends(live)
    rows = []
    for each, position in sorted(read_up_to.items()):
        end = ends.get(each)
        behind = None if end is None else max(0, end - position.offset)
        seconds = 0.0 if behind == 0 else None
        if behind and each in timestamps:
            seconds = max(0.0, now - timestamps[each])
        rows.append(
            LagRow(
                topic=each.topic,
                partition=each.partition,
                next_offset=position.offset,
                end_offset=end,
                records_behind=behind,
                seconds_behind=seconds,
            )
        )
    return rows


def next_timestamps(
    options: Mapping[str, str], offset: SourceOffset, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, float]:
    """The timestamps of the next records of `partitions`, seconds since 1970 UTC. Missing where there is no record at
    that offset, and where the leaders did not give it in time."""
    from pyspark_kafka_meta.client.kafka_client import KafkaClient
    from pyspark_kafka_meta.fetching.task_reader import TaskReader
    from pyspark_kafka_meta.telemetry.event_origin import planner_origin
    from pyspark_kafka_meta.telemetry.event_publisher import EventPublisher

    if not partitions:
        return {}
    topics = ",".join(sorted({partition.topic for partition in partitions}))
    parsed = SourceOptions.parse({**options, "subscribe": topics})
    source = replace(parsed, metrics=None, fail_on_data_loss=False, poll_timeout_ms=PATIENCE_MS)
    ranges = [_next_one(each, offset) for each in partitions]
    found: dict[TopicPartition, float] = {}
    publisher = EventPublisher((), planner_origin())
    with closing(KafkaClient(source.client, publisher)) as client:
        try:
            for batch in TaskReader(client, source, ["topic", "partition", "timestamp"]).read(ranges):
                # In microseconds: Spark knows later times than Python's datetime.
                numbers = batch.set_column(2, "timestamp", batch.column("timestamp").cast("int64"))
                for row in numbers.to_pylist():
                    found[TopicPartition(row["topic"], row["partition"])] = row["timestamp"] / 1_000_000
        except KafkaMetaError as error:
            logger.warning("not every next record could be read for its timestamp: %s", error)
    return found


def _next_one(partition: TopicPartition, offset: SourceOffset) -> OffsetRange:
    position: Position = offset.positions[partition]
    return OffsetRange(
        partition,
        offset.topic_ids[partition.topic],
        position.offset,
        position.offset + 1,
        position.leader_epoch,
    )


def _ends(live: Iterable[PartitionRow]) -> dict[TopicPartition, int | None]:
    return {one: row.end_offset for one, row in by_partition(live).items()}
