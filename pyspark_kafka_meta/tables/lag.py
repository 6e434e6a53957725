"""How far a streaming query is behind: from its offsets, the log ends, and the age of its next records; and how far it
has come, by its checkpoint and without Spark.

A checkpoint has a file for each planned micro-batch in `offsets`, and another one in `commits` once the micro-batch is
done. An offsets file has a line with its version, a line of settings, and a line for each source: `<offset>` in v1,
`<name>:<offset>` in v2. Follows Spark's `OffsetSeqLog`, `CommitLog` and `StreamMetadata`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pyspark_kafka_meta.errors import CheckpointError, KafkaMetaError
from pyspark_kafka_meta.events.origin import planner_origin
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.events.sinks import file_system
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange, Positions, TopicPartition, is_other_topic
from pyspark_kafka_meta.options import ClusterOptions, ReadOptions, default_options
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset, offsets_in, source_offset
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.tables.rows import LagRow, PartitionRow, by_partition

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


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

    def __str__(self) -> str:
        bound = "at least" if self.unknown_ages or self.unknown else "at most"
        parts = [f"{self.records} records behind"]
        parts += [] if self.oldest_s is None else [f"{bound} {self.oldest_s:.1f} s"]
        parts += [f"{self.unknown} partitions without an end"] if self.unknown else []
        return ", ".join(parts)


def end_offsets(progress: Any) -> Iterator[SourceOffset]:
    """The end offset of each kafkameta source in a progress report of a query."""
    for source in progress["sources"]:
        if (offset := source_offset(source["endOffset"])) is not None:
            yield offset


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


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """What a query has finished.

    Attributes:
        batch_id: the last finished micro-batch; None before the first.
        offsets: the next offsets of each kafkameta source. A partition whose first micro-batch runs is at its start.
    """

    query_id: str
    batch_id: int | None
    offsets: tuple[SourceOffset, ...]


def read_checkpoint(location: str) -> QueryProgress:
    """The progress of the query with this `checkpointLocation`.

    Args:
        location: a local path, or a URI that pyarrow knows.

    Raises:
        CheckpointError: the folder cannot be read, or is no checkpoint of a query that has begun and reads kafkameta.
    """
    try:
        with file_system(location.rstrip("/") or location, "the checkpoint") as (files, folder):
            metadata = _text(files, f"{folder}/metadata")
            planned = _last_batch(files, f"{folder}/offsets")  # first: its batch may be finished meanwhile
            finished = _last_batch(files, f"{folder}/commits")
            before, running = (
                "" if batch is None else _text(files, f"{folder}/offsets/{batch}") for batch in (finished, planned)
            )
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"the checkpoint cannot be read ({error}): correct its location") from None
    offsets = _positions(offsets_in(before), offsets_in(running) if planned != finished else {})
    if not offsets:
        raise CheckpointError("the checkpoint has no offsets of kafkameta yet: name that of a query that reads with it")
    return QueryProgress(_query_id(metadata), finished, offsets)


def _positions(before: Mapping[str, SourceOffset], running: Mapping[str, SourceOffset]) -> tuple[SourceOffset, ...]:
    """For each source, the end of the finished micro-batch, and the start of partitions that the running one reads from
    elsewhere."""
    found = []
    for name in sorted({*before, *running}):
        old, new = before.get(name, BEGINNING), running.get(name, BEGINNING)
        started = {partition: position for partition, position in new.start.items() if position.offset >= 0}
        positions, ids = {**old.positions, **started}, {**old.topic_ids, **new.topic_ids}
        found.append(SourceOffset(positions, {partition.topic: ids[partition.topic] for partition in positions}))
    return tuple(offset for offset in found if offset.positions)


def _query_id(metadata: str) -> str:
    try:
        return str(json.loads(metadata)["id"])
    except (ValueError, TypeError, KeyError):
        raise CheckpointError("the checkpoint has no query id in its file metadata: restore the checkpoint") from None


def _last_batch(files: FileSystem, folder: str) -> int | None:
    from pyarrow.fs import FileSelector

    entries = files.get_file_info(FileSelector(folder, allow_not_found=True))
    return max((int(entry.base_name) for entry in entries if entry.base_name.isdecimal()), default=None)


def _text(files: FileSystem, path: str) -> str:
    with files.open_input_stream(path) as stream:
        return str(stream.read().decode())
