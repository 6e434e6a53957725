"""Offsets as Spark stores them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1800000000000,"conf":{}}'
"""The second line of an offsets file."""


def text(offset: SourceOffset) -> str:
    """What is stored and compared."""
    return json.dumps(offset.as_dict())


def parsed(stored: str) -> SourceOffset:
    return SourceOffset.parse(json.loads(stored))


def restored(offset: SourceOffset) -> SourceOffset:
    """As Spark hands it back."""
    return parsed(text(offset))


def offsets_in(stored: str, topic: str) -> list[int]:
    """By partition."""
    return [
        position.offset for partition, position in sorted(parsed(stored).positions.items()) if partition[0] == topic
    ]


def write_checkpoint(
    folder: Path, batches: Mapping[int, SourceOffset | str], finished: int | None, query_id: str = "query-1"
) -> str:
    """Write the checkpoint of a query as Spark does, or add to it, and return its location.

    Args:
        batches: the end of each planned micro-batch, or the text of its file.
        finished: the last finished micro-batch; None before the first.
    """
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    write_file(folder / "metadata", json.dumps({"id": query_id}))
    for batch, end in batches.items():
        content = end if isinstance(end, str) else f"v1\n{SETTINGS}\n{text(end)}"
        write_file(folder / "offsets" / str(batch), content)
        if finished is not None and batch <= finished:
            write_file(folder / "commits" / str(batch), 'v1\n{"nextBatchWatermarkMs":0}')
    return str(folder)


def write_file(file: Path, content: str) -> None:
    """At once, as Spark does: a reader sees no part of a file."""
    part = file.with_name(f".{file.name}.tmp")
    part.write_text(content)
    part.replace(file)
