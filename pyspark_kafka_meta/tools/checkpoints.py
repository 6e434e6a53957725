"""Checkpoints of streaming queries, without Spark: how far a query lags behind; and for `kafkameta migrate-checkpoint`
the translation of a checkpoint of Spark's own Kafka source.

In the files of `tables.lag`, Spark's Kafka source has the next offsets, `{"topic": {"0": 23}}`, and
`sources/<number of the source>/0` has the start of batch 0. Follows Spark's `KafkaSourceOffset` and
`KafkaSourceInitialOffsetWriter`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.options.offsets import EARLIEST_OFFSET, parse_offsets
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.lag import QueryProgress, query_lag, read_checkpoint
from pyspark_kafka_meta.tables.rows import LagRow

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class CheckpointLag:
    """The lag of a query at one time."""

    progress: QueryProgress
    rows: list[LagRow]


def checkpoint_lag(checkpoint: str, cluster: Mapping[str, str]) -> CheckpointLag:
    """The lag now. Raises KafkaMetaError: as `read_checkpoint` and `query_lag`."""
    progress = read_checkpoint(checkpoint)
    return CheckpointLag(progress, query_lag(cluster, progress.offsets))


def starting_offsets(checkpoint: Path) -> tuple[list[str], int | None]:
    """The next offsets of each Kafka source, as JSON for the option startingOffsets. Returns the JSON texts, in the
    order of the sources, and the number of a batch that was planned but not committed. Raises CheckpointError: not the
    checkpoint of a query of Spark's Kafka source, or the query never began."""
    with files_in_one_line(f"{checkpoint} cannot be read"):
        last = batches(checkpoint)[-1]
        pending = None if (checkpoint / "commits" / str(last)).exists() else last
        found = [offsets for offsets in _before(checkpoint, last + (pending is None)) if offsets]
    if not found:
        raise CheckpointError(f"no source of the query in {checkpoint} is Spark's own Kafka source: nothing to migrate")
    return [json.dumps(_by_topic(offsets)) for offsets in found], pending


def write_checkpoint(checkpoint: Path, target: Path) -> None:
    """Copy the checkpoint to `target`, with kafkameta's offsets.

    Query id, state, batch numbers and an uncommitted batch stay. So a sink that identifies batches by number, such as
    Spark's file sink, neither skips nor repeats a batch. Raises CheckpointError: as `starting_offsets` and
    `copy_with_offsets`.
    """
    starting_offsets(checkpoint)
    with files_in_one_line(f"{checkpoint} cannot be read"):
        texts = {batch: translated(checkpoint, batch) for batch in batches(checkpoint)}
    copy_with_offsets(checkpoint, target, texts)


def copy_with_offsets(checkpoint: Path, target: Path, texts: Mapping[int, str]) -> None:
    """Copy the checkpoint to `target`, with these files of offsets alone, by batch. The copy appears complete or not at
    all. Raises CheckpointError: `target` exists, is in the checkpoint or elsewhere, or cannot be created."""
    with files_in_one_line(f"{checkpoint} cannot be copied to {target}"):
        if target.exists():
            raise CheckpointError(f"{target} exists: name a new folder")
        if str(target).partition("/")[0].endswith(":"):  # of a URI
            raise CheckpointError(f"{target} is no folder of this machine: name one, and copy it from there")
        if checkpoint.resolve() in target.resolve().parents:
            raise CheckpointError(f"{target} is in the checkpoint itself: name a folder elsewhere")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}-") as scratch:
            copy = shutil.copytree(checkpoint, Path(scratch, target.name))
            for batch in batches(checkpoint):
                (copy / "offsets" / f".{batch}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the old content
                if batch in texts:
                    (copy / "offsets" / str(batch)).write_text(texts[batch])
                else:
                    (copy / "offsets" / str(batch)).unlink()
            copy.rename(target)


@contextmanager
def files_in_one_line(problem: str) -> Iterator[None]:
    """Turn errors of files into CheckpointError."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{problem} ({str(error)[:500]}): correct this first") from None


def batches(checkpoint: Path) -> list[int]:
    """The numbers of the batches with an offsets file, in order."""
    if not checkpoint.is_dir():
        raise CheckpointError(f"{checkpoint} is no folder of this machine: correct the path, or copy it here first")
    found = sorted(int(file.name) for file in (checkpoint / "offsets").glob("*") if file.name.isdecimal())
    if not found:
        raise CheckpointError(f"{checkpoint} has no offsets: name the checkpointLocation of a query that has run")
    return found


def _before(checkpoint: Path, batch: int) -> list[Offsets]:
    """The start of `batch` by source; empty for sources that are not Kafka."""
    if batch > 0:
        return [_kafka_offsets(line) for line in offset_lines(checkpoint, batch - 1)[2:]]
    files = [checkpoint / "sources" / str(number) / "0" for number in range(len(offset_lines(checkpoint, 0)) - 2)]
    # Spark writes a zero byte first, which makes releases before 2.1 fail.
    texts = [file.read_text().lstrip("\0").removeprefix("v1\n") if file.exists() else "" for file in files]
    return list(map(_kafka_offsets, texts))


def offset_lines(checkpoint: Path, batch: int) -> list[str]:
    """The lines of the batch's file: the version, settings, and one for each source."""
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


def translated(checkpoint: Path, batch: int) -> str:
    """The text of the batch's file with kafkameta's offsets, which contain the start of new partitions."""
    lines = offset_lines(checkpoint, batch)
    is_first = batch == batches(checkpoint)[0] > 0  # its start was deleted, and is not needed
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
