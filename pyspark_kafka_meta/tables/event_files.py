"""The files of refresh events: found, put into a stream's offsets, and read.

A writer numbers its files from 0 without a gap, renames each into place when it is complete, and deletes its oldest. So
an offset is the next number of each writer, as JSON with its names in order, because Spark compares offsets as texts:
    {"initial": true,            only in what `initialOffset` returns
     "start": {"<writer>": 3},   only in the end of batch 0: where it began, which Spark stores nowhere else
     "version": 1,
     "writers": {"<writer>": 7}}
Follows Spark's `FileStreamSource`, which has to remember every file by name instead.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.telemetry.folder_sink import file_system
from pyspark_kafka_meta.validators import INT64_MAX, whole_number

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

logger = logging.getLogger(__name__)

VERSION = 1
_NAME = re.compile(r"events-([0-9a-f]{32})-([0-9]{8,18})\.jsonl")


@dataclass(frozen=True, slots=True, order=True)
class EventFile:
    """One complete file; `path` is that of its file system."""

    writer_id: str
    number: int
    path: str


@dataclass(frozen=True, slots=True)
class FilesOffset:
    """One end of a micro-batch.

    Attributes:
        writers: the number of the next file of each writer; one that is not named begins at its oldest file.
        start: the same, where the batch that ends here begins; None where that is the offset before.
        initial: whether this is what a query begins with, before any batch.
    """

    writers: Mapping[str, int]
    start: Mapping[str, int] | None = None
    initial: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The layout above, in the order that makes equal offsets equal texts."""
        return {
            **({"initial": True} if self.initial else {}),
            **({"start": dict(sorted(self.start.items()))} if self.start is not None else {}),
            "version": VERSION,
            "writers": dict(sorted(self.writers.items())),
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> FilesOffset:
        """What `as_dict` made. Raises CheckpointError."""
        try:
            whole_number(value["version"], VERSION, VERSION)
            start = value.get("start")
            return cls(_numbers(value["writers"]), start if start is None else _numbers(start), "initial" in value)
        except (KeyError, AttributeError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint holds an offset that is none of refresh-event files ({error}): restore it, or start "
                "with a new one"
            ) from error


def latest(files: Collection[EventFile]) -> dict[str, int]:
    """The next number of each writer, after all of `files`."""
    return {file.writer_id: file.number + 1 for file in sorted(files)}


def advance(start: FilesOffset, files: Collection[EventFile], max_files: int | None) -> FilesOffset:
    """The end of the micro-batch that begins at `start`; `start` itself where there is nothing new.

    Writers take turns, so that none starves under the limit. Those of which no file is left are forgotten whenever the
    offset moves: what is gone cannot be read twice.
    """
    new = [file for file in files if file.number >= start.writers.get(file.writer_id, 0)]
    new.sort(key=lambda file: (file.number - start.writers.get(file.writer_id, 0), file.writer_id))
    taken = new[:max_files]
    if not taken and not start.initial:
        return start
    left = {file.writer_id for file in files}
    kept = {writer_id: number for writer_id, number in start.writers.items() if writer_id in left}
    return FilesOffset({**kept, **latest(taken)}, start.writers if start.initial else None)


def between(start: FilesOffset, end: FilesOffset, files: Collection[EventFile]) -> list[EventFile]:
    """The files of the micro-batch between two logged offsets, in order."""
    begins = start.writers if end.start is None else end.start
    return sorted(
        file for file in files if begins.get(file.writer_id, 0) <= file.number < end.writers.get(file.writer_id, 0)
    )


def count_deleted(start: FilesOffset, end: FilesOffset, files: Collection[EventFile]) -> int:
    """How many files between two offsets are not among `files`: their writers deleted them before they were read."""
    begins = start.writers if end.start is None else end.start
    spans = [number - begins[writer_id] for writer_id, number in end.writers.items() if writer_id in begins]
    found = [file for file in between(start, end, files) if file.writer_id in begins]
    return sum(spans) - len(found)


class EventFolder:
    """The event files below a folder, at any depth.

    Args:
        root: a local path, or a URI that pyarrow knows. It need not exist yet.

    What it cannot read is an OSError, whose text holds no key out of a URI.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def files(self) -> list[EventFile]:
        """All complete files, in order."""
        found = self._list()
        numbers = latest(found)
        if len(found) < sum(numbers.values()):
            # A listing may miss what appears while it is made. A file is there before the next one of its writer is:
            # what a second look misses too was deleted.
            found |= self._list()
        return sorted(found)

    def lines(self, files: Sequence[EventFile]) -> Iterator[bytes]:
        """The lines of `files`. In the end, a warning counts the files that are gone by now."""
        deleted = 0
        with self._file_system() as (system, _):
            for file in files:
                try:
                    with system.open_input_stream(file.path) as stream:
                        content = stream.read()
                except FileNotFoundError:
                    deleted += 1
                else:
                    yield from content.splitlines()
        warn_of_deleted(deleted)

    def _list(self) -> set[EventFile]:
        from pyarrow.fs import FileSelector

        with self._file_system() as (system, path):
            entries = system.get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
        named = [(entry.path, _NAME.fullmatch(entry.base_name)) for entry in entries if entry.is_file]
        return {EventFile(name[1], int(name[2]), path) for path, name in named if name is not None}

    def _file_system(self) -> AbstractContextManager[tuple[FileSystem, str]]:
        from pyarrow.fs import LocalFileSystem

        if "://" in self._root:
            return file_system(self._root)
        return nullcontext((LocalFileSystem(), str(Path(self._root).absolute())))


def warn_of_deleted(count: int) -> None:
    if count:
        logger.warning("files of refresh events that their writers deleted before they were read: %d", count)


def _numbers(value: Mapping[str, Any]) -> dict[str, int]:
    return {writer_id: whole_number(number, 0, INT64_MAX) for writer_id, number in value.items()}
