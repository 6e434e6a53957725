"""Checkpoints of streaming queries, without Spark: how far a query lags behind; and for `kafkameta migrate-checkpoint`
the translation of a checkpoint of Spark's own Kafka source, and of one for a mirror of its cluster.

In the files of `tables.lag`, Spark's Kafka source has the next offsets, `{"topic": {"0": 23}}`, and
`sources/<number of the source>/0` has the start of batch 0. Follows Spark's `KafkaSourceOffset` and
`KafkaSourceInitialOffsetWriter`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.options.offsets import EARLIEST_OFFSET, parse_offsets
from pyspark_kafka_meta.options.tables import ClusterOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.read.planning.data_loss import MAX_NAMED
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.tables.lag import QueryProgress, query_lag, read_checkpoint, source_offset
from pyspark_kafka_meta.tables.rows import LagRow, PartitionRow, by_partition

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class CheckpointLag:
    """The lag of a query at one time."""

    progress: QueryProgress
    rows: list[LagRow]


def checkpoint_lag(checkpoint: str, cluster: Mapping[str, str]) -> CheckpointLag:
    """The lag now. Raises KafkaMetaError: as `read_checkpoint` and `query_lag`.

    Args:
        checkpoint: as of `read_checkpoint`.
        cluster: `kafka.*` options.
    """
    progress = read_checkpoint(checkpoint)
    return CheckpointLag(progress, query_lag(cluster, progress.offsets))


def starting_offsets(checkpoint: Path) -> tuple[list[str], int | None]:
    """The next offsets of each Kafka source, as JSON for the option startingOffsets. Returns the JSON texts, in the
    order of the sources, and the number of a batch that was planned but not committed. Raises CheckpointError: not the
    checkpoint of a query of Spark's Kafka source, or the query never began."""
    with _in_one_line(f"{checkpoint} cannot be read"):
        if not checkpoint.is_dir():
            raise CheckpointError(f"{checkpoint} is no folder of this machine: correct the path, or copy it here first")
        last = _batches(checkpoint)[-1]
        pending = None if (checkpoint / "commits" / str(last)).exists() else last
        found = [offsets for offsets in _before(checkpoint, last + (pending is None)) if offsets]
    if not found:
        raise CheckpointError(f"no source of the query in {checkpoint} is Spark's own Kafka source: nothing to migrate")
    return [json.dumps(_by_topic(offsets)) for offsets in found], pending


def write_checkpoint(checkpoint: Path, target: Path) -> None:
    """Copy the checkpoint to `target`, with kafkameta's offsets. The copy appears complete or not at all.

    Query id, state, batch numbers and an uncommitted batch stay. So a sink that identifies batches by number, such as
    Spark's file sink, neither skips nor repeats a batch. Raises CheckpointError: as `starting_offsets`, or `target`
    exists, is in the checkpoint or cannot be created.
    """
    starting_offsets(checkpoint)
    with _in_one_line(f"{checkpoint} cannot be read"):
        translated = {batch: _translated(checkpoint, batch) for batch in _batches(checkpoint)}
    _copy(checkpoint, target, translated)


def write_for_mirror(checkpoint: Path, target: Path, options: Mapping[str, str]) -> CheckpointLag:
    """Copy the checkpoint of a kafkameta query to `target`, for another cluster whose logs have the same offsets.

    The copy is without topic ids and leader epochs, which are of the first cluster; the query takes those of the mirror
    with the next records. Query id, state, batch numbers and an uncommitted batch stay.

    Args:
        options: `kafka.*`, of the mirror.

    Returns:
        The lag in the mirror. By the age of the next records users see whether they are those that the query needs: no
        cluster knows where its records came from.

    Raises:
        CheckpointError: a log of the mirror does not reach from the next offset of the query to the last planned one;
            or as `write_checkpoint`.
        KafkaMetaError: as `query_lag`.
    """
    cluster = ClusterOptions.parse(options)
    with _in_one_line(f"{checkpoint} cannot be read"):
        progress = read_checkpoint(str(checkpoint))
        batches = _batches(checkpoint)
        planned = [offset for line in _lines(checkpoint, batches[-1])[2:] if (offset := source_offset(line))]
        moved = {batch: "\n".join(map(_line_for_mirror, _lines(checkpoint, batch))) for batch in batches}
    topics = sorted({topic for offset in planned for topic in offset.topic_ids})
    logs = by_partition(partition_rows(cluster.client, topics, cluster.fetch.read_committed))
    begins = [part for offset in progress.offsets for part in offset.positions.items()]
    ends = [part for offset in planned for part in offset.positions.items()]
    if problems := list(_outside(begins, ends, logs)):
        named = "; ".join([*problems[:MAX_NAMED], *(["..."] if problems[MAX_NAMED:] else [])])
        raise CheckpointError(
            f"{named}: the query would lose records or read them twice. Wait until the mirror has all, or begin with a "
            "new checkpoint and startingTimestamp"
        )
    _copy(checkpoint, target, moved)
    return CheckpointLag(progress, query_lag(options, map(_for_mirror, progress.offsets)))


def _outside(
    begins: Iterable[tuple[TopicPartition, Position]],
    ends: Iterable[tuple[TopicPartition, Position]],
    logs: Mapping[TopicPartition, PartitionRow],
) -> Iterator[str]:
    """What is wrong with the logs for a query that has read to `begins`, and planned to `ends`."""
    for partition, position in ends:
        log = logs.get(partition)
        if log is None or log.start_offset is None or log.end_offset is None:
            yield f"{partition} has no log there ({(log and log.error) or 'no such partition'})"
        elif log.end_offset < position.offset:
            yield f"the log of {partition} ends at offset {log.end_offset} there, before offset {position.offset}"
    for partition, position in begins:
        log = logs.get(partition)
        if log is not None and (log.start_offset or 0) > position.offset:
            yield f"the log of {partition} begins at offset {log.start_offset} there, after offset {position.offset}"


def _line_for_mirror(line: str) -> str:
    offset = source_offset(line)
    return line if offset is None else json.dumps(_for_mirror(offset).as_dict())


def _for_mirror(offset: SourceOffset) -> SourceOffset:
    return replace(
        offset,
        positions={partition: Position(position.offset) for partition, position in offset.positions.items()},
        topic_ids=dict.fromkeys(offset.topic_ids),
        start={partition: Position(position.offset) for partition, position in offset.start.items()},
    )


def _copy(checkpoint: Path, target: Path, translated: Mapping[int, str]) -> None:
    """The checkpoint with these offsets files."""
    with _in_one_line(f"{checkpoint} cannot be copied to {target}"):
        if target.exists():
            raise CheckpointError(f"{target} exists: name a new folder")
        if checkpoint.resolve() in target.resolve().parents:
            raise CheckpointError(f"{target} is in the checkpoint itself: name a folder elsewhere")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}-") as scratch:
            copy = shutil.copytree(checkpoint, Path(scratch, target.name))
            for batch, text in translated.items():
                (copy / "offsets" / str(batch)).write_text(text)
                (copy / "offsets" / f".{batch}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the old content
            copy.rename(target)


@contextmanager
def _in_one_line(problem: str) -> Iterator[None]:
    """Turn errors of files into CheckpointError."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{problem} ({str(error)[:500]}): correct this first") from None


def _batches(checkpoint: Path) -> list[int]:
    """The numbers of the batches with an offsets file, in order."""
    found = sorted(int(file.name) for file in (checkpoint / "offsets").glob("*") if file.name.isdecimal())
    if not found:
        raise CheckpointError(f"{checkpoint} has no offsets: name the checkpointLocation of a query that has run")
    return found


def _before(checkpoint: Path, batch: int) -> list[Offsets]:
    """The start of `batch` by source; empty for sources that are not Kafka."""
    if batch > 0:
        return [_kafka_offsets(line) for line in _lines(checkpoint, batch - 1)[2:]]
    files = [checkpoint / "sources" / str(number) / "0" for number in range(len(_lines(checkpoint, 0)) - 2)]
    # Spark writes a zero byte first, which makes releases before 2.1 fail.
    texts = [file.read_text().lstrip("\0").removeprefix("v1\n") if file.exists() else "" for file in files]
    return list(map(_kafka_offsets, texts))


def _lines(checkpoint: Path, batch: int) -> list[str]:
    file = checkpoint / "offsets" / str(batch)
    if not file.exists():
        raise CheckpointError(f"{file} is missing, but has the start of the next batch: restore the checkpoint")
    lines = file.read_text().splitlines()
    if lines[:1] != ["v1"] or len(lines) < 3:
        raise CheckpointError(f"{file} does not have format v1: this release cannot migrate it")
    return lines


def _kafka_offsets(line: str) -> Offsets:
    """The offsets in the line of a source; empty if the source is not Kafka, or for `{}` from before SPARK-41375."""
    try:
        return dict(parse_offsets(line).by_partition)
    except ValueError:
        return {}


def _translated(checkpoint: Path, batch: int) -> str:
    """The text of the batch's file with kafkameta's offsets, which contain the start of new partitions."""
    lines = _lines(checkpoint, batch)
    is_first = batch == _batches(checkpoint)[0] > 0  # its start was deleted, and is not needed
    before: Sequence[Offsets] = [{}] * len(lines) if is_first else _before(checkpoint, batch)
    for number, line in enumerate(lines[2:]):
        if ends := _kafka_offsets(line):
            lines[2 + number] = json.dumps(_source_offset(before[number], ends, batch).as_dict())
    return "\n".join(lines)


def _source_offset(begins: Offsets, ends: Offsets, batch: int) -> SourceOffset:
    # Spark's source reads a new partition from the start of its log at the time of the batch.
    new = {partition: EARLIEST_OFFSET for partition in ends if partition not in begins}
    start = {**begins, **new} if batch == 0 else new
    return SourceOffset(
        positions={partition: Position(offset) for partition, offset in ends.items()},
        topic_ids={partition.topic: None for partition in ends},
        start={partition: Position(offset) for partition, offset in start.items() if partition in ends},
    )


def _by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return topics
