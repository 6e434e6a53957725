"""Lists and reads the files of refresh events, and computes the offsets of a stream of event files.

A writer numbers its files from 0 without a gap, renames each complete file into place, and deletes its oldest files. So
an offset is the next number of each writer, as JSON with sorted keys, because Spark compares offsets as texts:
    {"initial": true,            only from `initialOffset`
     "start": {"<writer>": 3},   only at the end of batch 0: its start, which Spark does not store
     "version": 1,
     "writers": {"<writer>": 7}}
Follows Spark's `FileStreamSource`, which has to remember the name of every file instead.
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
    """A complete event file; `path` in its file system."""

    writer_id: str
    number: int
    path: str


@dataclass(frozen=True, slots=True)
class FilesOffset:
    """One end of a micro-batch.

    Attributes:
        writers: the number of the next file of each writer; other writers start at their oldest file.
        start: `writers` at the start of the batch that ends here; None if the batch starts at the offset before.
        initial: whether this is the offset of a query before its first batch.
    """

    writers: Mapping[str, int]
    start: Mapping[str, int] | None = None
    initial: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The layout above, with sorted keys, so that equal offsets are equal texts."""
        return {
            **({"initial": True} if self.initial else {}),
            **({"start": dict(sorted(self.start.items()))} if self.start is not None else {}),
            "version": VERSION,
            "writers": dict(sorted(self.writers.items())),
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> FilesOffset:
        """The inverse of `as_dict`. Raises CheckpointError."""
        try:
            whole_number(value["version"], VERSION, VERSION)
            start = value.get("start")
            return cls(_numbers(value["writers"]), start if start is None else _numbers(start), "initial" in value)
        except (KeyError, AttributeError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint contains an offset that is not one of refresh-event files ({error}): restore the "
                "checkpoint, or start with a new one"
            ) from error


def next_numbers(files: Collection[EventFile]) -> dict[str, int]:
    """The next file number of each writer after `files`."""
    return {file.writer_id: file.number + 1 for file in sorted(files)}


def advance(start: FilesOffset, files: Collection[EventFile], max_files: int | None) -> FilesOffset:
    """The end of the micro-batch that starts at `start`; `start` itself if there is no new file.

    Writers take turns, so that the limit starves no writer. A writer without any file left is dropped from the offset
    when the offset moves: deleted files cannot be read twice.
    """
    new = [file for file in files if file.number >= start.writers.get(file.writer_id, 0)]
    new.sort(key=lambda file: (file.number - start.writers.get(file.writer_id, 0), file.writer_id))
    taken = new[:max_files]
    if not taken and not start.initial:
        return start
    existing = {file.writer_id for file in files}
    kept = {writer_id: number for writer_id, number in start.writers.items() if writer_id in existing}
    return FilesOffset({**kept, **next_numbers(taken)}, start.writers if start.initial else None)


def files_between(start: FilesOffset, end: FilesOffset, files: Collection[EventFile]) -> list[EventFile]:
    """The files of the micro-batch between two offsets, in order."""
    begins = start.writers if end.start is None else end.start
    return sorted(
        file for file in files if begins.get(file.writer_id, 0) <= file.number < end.writers.get(file.writer_id, 0)
    )


def count_deleted(start: FilesOffset, end: FilesOffset, files: Collection[EventFile]) -> int:
    """Count of files between two offsets that are not in `files`: their writers deleted the files before the read."""
    begins = start.writers if end.start is None else end.start
    spans = [number - begins[writer_id] for writer_id, number in end.writers.items() if writer_id in begins]
    found = [file for file in files_between(start, end, files) if file.writer_id in begins]
    return sum(spans) - len(found)


class EventFolder:
    """The event files below a folder, at any depth.

    Args:
        root: a local path, or a URI that pyarrow knows; it may not exist yet.

    Methods raise OSError, whose text contains no key of a URI.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def files(self) -> list[EventFile]:
        """All complete files, in order."""
        found = self._list()
        numbers = next_numbers(found)
        if len(found) < sum(numbers.values()):
            # A listing may miss a file that is created at the same time. Each file exists before its writer's next one,
            # so a file that the second listing misses too was deleted.
            found |= self._list()
        return sorted(found)

    def has(self, name: str) -> bool:
        """Whether a file of this name, of any kind, is in the folder itself."""
        with self._file_system() as (system, path):
            return bool(system.get_file_info(f"{path}/{name}").is_file)

    def lines(self, files: Sequence[EventFile]) -> Iterator[bytes]:
        """The lines of `files`. A final warning counts the files that were deleted since they were listed."""
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
        names = [(entry.path, _NAME.fullmatch(entry.base_name)) for entry in entries if entry.is_file]
        return {EventFile(name[1], int(name[2]), path) for path, name in names if name is not None}

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
