"""How far a streaming query has come, by its checkpoint and without Spark.

A checkpoint has a file for each planned micro-batch in `offsets`, and another one in `commits` once the micro-batch is
done. An offsets file has a line with its version, a line of settings, and a line for each source: `<offset>` in v1,
`<name>:<offset>` in v2. Follows Spark's `OffsetSeqLog`, `CommitLog` and `StreamMetadata`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.events.sinks import file_system
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset
from pyspark_kafka_meta.tables.lag import source_offset

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_VERSIONS = ("v1", "v2")


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
    offsets = _positions(_sources(before), _sources(running) if planned != finished else {})
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


def _sources(text: str) -> dict[str, SourceOffset]:
    """The offsets in an offsets file, by the number or name of the source. Other sources are left out."""
    lines = text.splitlines()
    if lines and lines[0] not in _VERSIONS:
        raise CheckpointError(f"the checkpoint has offsets of {lines[0][:20]}: this release reads v1 and v2")
    found = {}
    for number, line in enumerate(lines[2:]):
        name, _, text = line.partition(":") if lines[0] == "v2" else (str(number), "", line)
        if (offset := source_offset(text)) is not None:
            found[name] = offset
    return found


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
