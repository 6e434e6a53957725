"""`kafkameta migrate-checkpoint`: where a query on Spark's own Kafka source stopped, so that kafkameta goes on there.

A checkpoint has a file for each micro-batch in `offsets`, and one in `commits` once the batch is done. The former has
a line `v1`, a line of settings, and one for each source of the query: `{"topic": {"0": 23}}` for a Kafka source, where
23 is the next offset. Batch 0 began where `sources/<number of the source>/0` says. Follows Spark's `OffsetSeqLog`,
`KafkaSourceOffset` and `KafkaSourceInitialOffsetWriter`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.options.start_specs import EARLIEST_OFFSET, parse_offsets
from pyspark_kafka_meta.planning.checkpoint_offsets import SourceOffset

Offsets = Mapping[TopicPartition, int]


def starting_offsets(checkpoint: Path) -> tuple[list[str], int | None]:
    """Where the query goes on, by Kafka source: the JSON for the option startingOffsets.

    Returns:
        The JSON texts, in the order of the sources, and the number of a batch that was planned and is not committed.

    Raises:
        CheckpointError: it is none of a query on Spark's own Kafka source, or of one that never began.
    """
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
    """Copy the checkpoint to `target`, its Kafka offsets made into those of kafkameta. It is there whole or not at all.

    All else stays: the query's id, its state, the numbers of its batches, and a batch that was planned and not
    committed. So a sink that knows batches by their number, as Spark's file sink does, neither skips nor repeats one.

    Raises:
        CheckpointError: as `starting_offsets`, or `target` exists, is in the checkpoint or cannot be made.
    """
    starting_offsets(checkpoint)
    with _in_one_line(f"{checkpoint} cannot be read"):
        translated = {batch: _translated(checkpoint, batch) for batch in _batches(checkpoint)}
    with _in_one_line(f"{checkpoint} cannot be copied to {target}"):
        if target.exists():
            raise CheckpointError(f"{target} exists: name a folder to be made")
        if checkpoint.resolve() in target.resolve().parents:
            raise CheckpointError(f"{target} is in the checkpoint itself: name a folder elsewhere")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}-") as scratch:
            copy = shutil.copytree(checkpoint, Path(scratch, target.name))
            for batch, text in translated.items():
                (copy / "offsets" / str(batch)).write_text(text)
                (copy / "offsets" / f".{batch}.crc").unlink(missing_ok=True)  # Hadoop's checksum of what it was
            copy.rename(target)


@contextmanager
def _in_one_line(trouble: str) -> Iterator[None]:
    """What files do not give, or take, becomes a CheckpointError."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{trouble} ({str(error)[:500]}): correct that first") from None


def _batches(checkpoint: Path) -> list[int]:
    """The numbers of the batches whose offsets are there, in order."""
    found = sorted(int(file.name) for file in (checkpoint / "offsets").glob("*") if file.name.isdecimal())
    if not found:
        raise CheckpointError(f"{checkpoint} has no offsets: name the checkpointLocation of a query that has run")
    return found


def _before(checkpoint: Path, batch: int) -> list[Offsets]:
    """Where `batch` begins, by source; empty for one that is no Kafka source."""
    if batch > 0:
        return [_kafka_offsets(line) for line in _lines(checkpoint, batch - 1)[2:]]
    sources = range(len(_lines(checkpoint, 0)) - 2)
    return [_initial_offsets(checkpoint / "sources" / str(number) / "0") for number in sources]


def _initial_offsets(file: Path) -> Offsets:
    # Spark puts a zero byte first, at which releases before 2.1 stumble.
    return _kafka_offsets(file.read_text().lstrip("\0").removeprefix("v1\n")) if file.exists() else {}


def _lines(checkpoint: Path, batch: int) -> list[str]:
    file = checkpoint / "offsets" / str(batch)
    if not file.exists():
        raise CheckpointError(f"{file} is missing, and the batch after it began there: restore the checkpoint")
    lines = file.read_text().splitlines()
    if lines[:1] != ["v1"] or len(lines) < 3:
        raise CheckpointError(f"{file} is of another format than v1: this release cannot migrate it")
    return lines


def _kafka_offsets(line: str) -> Offsets:
    """The offsets in one source's line; empty if it is not Kafka's. So is the `{}` from before SPARK-41375."""
    try:
        return dict(parse_offsets(line).by_partition)
    except ValueError:
        return {}


def _translated(checkpoint: Path, batch: int) -> str:
    """The text of the batch's file with the offsets of kafkameta, which say where partitions begin that are new."""
    lines = _lines(checkpoint, batch)
    is_first = batch == _batches(checkpoint)[0] > 0  # what it began with is gone, and will not be asked for
    before: Sequence[Offsets] = [{}] * len(lines) if is_first else _before(checkpoint, batch)
    for number, line in enumerate(lines[2:]):
        if ends := _kafka_offsets(line):
            lines[2 + number] = json.dumps(_source_offset(before[number], ends, batch).as_dict())
    return "\n".join(lines)


def _source_offset(begins: Offsets, ends: Offsets, batch: int) -> SourceOffset:
    # Spark's source reads a new partition from its start, wherever that is when the batch is read.
    new = {each: EARLIEST_OFFSET for each in ends if each not in begins}
    start = {**begins, **new} if batch == 0 else new
    return SourceOffset(
        positions={each: Position(offset) for each, offset in ends.items()},
        topic_ids={each.topic: None for each in ends},
        start={each: Position(offset) for each, offset in start.items() if each in ends},
    )


def _by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for each in sorted(offsets):
        topics.setdefault(each.topic, {})[str(each.partition)] = offsets[each]
    return topics
