"""How far a streaming query is behind: from its offsets, the log ends, and the age of its next records."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

from pyspark_kafka_meta.errors import CheckpointError, KafkaMetaError
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange, Positions, TopicPartition, is_other_topic
from pyspark_kafka_meta.options import ClusterOptions, ReadOptions, default_options
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.tables.rows import LagRow, PartitionRow, by_partition

logger = logging.getLogger(__name__)

RECORD_TIMEOUT_MS = 10_000
"""For a leader to return the next record."""
FETCH_BYTES = 64 * 1024
"""Soft limit for each partition of a Fetch of its next record: a batch of the usual 16 KiB fits, and ten thousand
partitions do not return their backlog. A leader returns larger batches too, one in each response (KIP-74)."""


def query_lag(options: Mapping[str, str], offsets: Iterable[SourceOffset]) -> list[LagRow]:
    """The lag of a query whose sources have read up to `offsets`, beside the cluster now.

    Args:
        options: `kafka.*`, of the query's cluster.

    Raises:
        KafkaMetaError: an option is invalid, or no broker responded.
    """
    cluster = ClusterOptions.parse(options)
    rows = []
    for offset in offsets:
        partitions = partition_rows(cluster.client, sorted(offset.topic_ids), cluster.fetch.read_committed)
        live = without_recreated_topics(partitions, offset.topic_ids)
        timestamps = next_record_timestamps(cluster, offset, partitions_behind(offset.positions, live))
        rows += lag_rows(offset.positions, live, timestamps, time.time())
    return rows


class LagSummary(NamedTuple):
    """The lag of a query in all its partitions.

    Attributes:
        records: as far as known.
        oldest_s: age of the oldest next unread record whose age is known; None if none is.
        unknown_ages: number of partitions whose next unread record has an unknown age.
        unknown: number of partitions whose end is not known.
    """

    records: int
    oldest_s: float | None
    unknown_ages: int
    unknown: int

    @classmethod
    def of(cls, rows: Collection[LagRow]) -> LagSummary:
        oldest_s = max((row.seconds_behind for row in rows if row.seconds_behind is not None), default=None)
        unknown = sum(row.records_behind is None for row in rows)
        unknown_ages = sum(row.seconds_behind is None for row in rows) - unknown
        return cls(sum(row.records_behind or 0 for row in rows), oldest_s, unknown_ages, unknown)


def end_offsets(progress: Any) -> Iterator[SourceOffset]:
    """The end offset of each kafkameta source in a progress report of a query."""
    for source in progress["sources"]:
        if (offset := source_offset(source["endOffset"])) is not None:
            yield offset


def source_offset(text: str | None) -> SourceOffset | None:
    """An offset as Spark stores and reports it; None if it is not of this source, or has no partitions."""
    try:
        offset = SourceOffset.parse(json.loads(text or "null"))
    except (ValueError, CheckpointError):
        return None
    return offset if offset.positions else None


def without_recreated_topics(live: Iterable[PartitionRow], topic_ids: Mapping[str, UUID | None]) -> list[PartitionRow]:
    """`live` without partitions of recreated topics: their offsets do not compare with the old topic's."""
    ids = {topic: topic_id and str(topic_id) for topic, topic_id in topic_ids.items()}
    return [row for row in live if not is_other_topic(ids[row.topic], row.topic_id)]


def partitions_behind(positions: Positions, live: Iterable[PartitionRow]) -> list[TopicPartition]:
    """The partitions whose log ends after the query's position."""
    ends = _ends(positions, live)
    return [partition for partition, position in positions.items() if (ends.get(partition) or 0) > position.offset]


def lag_rows(
    positions: Positions, live: Iterable[PartitionRow], timestamps: Mapping[TopicPartition, float], now: float
) -> list[LagRow]:
    """The lag of each partition, in order.

    Args:
        timestamps: of the next records, where known, seconds since 1970 UTC.
        now: seconds since 1970 UTC.
    """
    ends = _ends(positions, live)
    rows = []
    for partition, position in sorted(positions.items()):
        end = ends.get(partition)
        behind = None if end is None else max(0, end - position.offset)
        seconds = 0.0 if behind == 0 else None
        if behind and partition in timestamps:
            seconds = max(0.0, now - timestamps[partition])
        rows.append(
            LagRow(
                topic=partition.topic,
                partition=partition.partition,
                next_offset=position.offset,
                end_offset=end,
                records_behind=behind,
                seconds_behind=seconds,
            )
        )
    return rows


def next_record_timestamps(
    cluster: ClusterOptions, offset: SourceOffset, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, float]:
    """The timestamps of the next records of `partitions`, seconds since 1970 UTC; missing if that offset has no record,
    or its leader does not return the record in time."""
    from pyspark_kafka_meta.events.origin import planner_origin
    from pyspark_kafka_meta.events.publisher import client_without_events
    from pyspark_kafka_meta.read.fetching.task_reader import TaskReader

    if not partitions:
        return {}
    fetch = replace(cluster.fetch, max_partition_fetch_bytes=FETCH_BYTES)
    options = default_options(ReadOptions, fetch=fetch)
    options = replace(options, fail_on_data_loss=False, poll_timeout_ms=RECORD_TIMEOUT_MS)
    positions = {partition: offset.positions[partition] for partition in partitions}
    ranges = [
        OffsetRange(part, offset.topic_ids[part.topic], at.offset, at.offset + 1, at.leader_epoch, at.known_epoch)
        for part, at in positions.items()
    ]
    timestamps: dict[TopicPartition, float] = {}
    with closing(client_without_events(cluster.client, planner_origin())) as client:
        try:
            for batch in TaskReader(client, options, ["topic", "partition", "timestamp"]).read(ranges):
                # As integers, us: Spark has later times than Python's datetime.
                rows = batch.set_column(2, "timestamp", batch.column("timestamp").cast("int64"))
                for row in rows.to_pylist():
                    timestamps[TopicPartition(row["topic"], row["partition"])] = row["timestamp"] / 1_000_000
        except KafkaMetaError as error:
            logger.warning("cannot read the timestamps of all next records: %s", error)
    return timestamps


def _ends(positions: Positions, live: Iterable[PartitionRow]) -> dict[TopicPartition, int | None]:
    """The ends of the logs, without those of leaders that were replaced before the query read up to `positions`."""
    return {
        partition: row.end_offset
        for partition, row in by_partition(live).items()
        if (position := positions.get(partition)) is not None
        and (row.leader_epoch in (None, NO_EPOCH) or row.leader_epoch >= position.known_epoch)
    }
