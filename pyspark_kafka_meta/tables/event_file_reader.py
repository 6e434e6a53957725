"""Lists and reads the files of refresh events, and computes the offsets of a stream of event files.

A writer numbers its files from 0 without a gap, renames each complete file into place, and deletes its oldest files. So
an offset is the next number of each writer, as JSON with sorted keys, because Spark compares offsets as texts:
    {"initial": true,          only from `initialOffset`
     "read_until_ms": 170...,  ms since 1970 UTC
     "start": {"read_until_ms": 169..., "writers": {"<writer>": 3}},
                               only at the end of batch 0: its start, which Spark does not store
     "version": 2,
     "writers": {"<writer>": 7}}
Writers end without a sign, and new ones come as long as an application runs. So an offset forgets a writer whose files
were all modified up to `read_until_ms`, and such files of writers that it does not name have been read. If a forgotten
writer writes again, its next file was modified later.

Follows Spark's `FileStreamSource`, which has to remember the name of every file instead, and forgets files by age too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_kafka_meta.errors import CheckpointError
from pyspark_kafka_meta.events.sinks import file_system
from pyspark_kafka_meta.value_checks import INT64_MAX, whole_number

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo

logger = logging.getLogger(__name__)

VERSION = 2
LATE_MS = 24 * 3600 * 1000
"""A file that appears although it was modified this long before the newest file may be taken for a file that was read.
More than a time zone, to which a clock may have been set by mistake."""
_NAME = re.compile(r"events-([0-9a-f]{32})-([0-9]{8,18})\.jsonl")


class EventFile(NamedTuple):
    """A complete event file; `path` in its file system.

    Attributes:
        modified_ms: ms since 1970 UTC; the end of time if its file system does not tell.
    """

    writer_id: str
    number: int
    path: str
    modified_ms: int = INT64_MAX

    @property
    def cache(self) -> str:
        """What the ids of all writers of one cache begin with (`writer_prefix`)."""
        return self.writer_id[:16]


@dataclass(frozen=True, slots=True)
class FilesOffset:
    """One end of a micro-batch.

    Attributes:
        writers: the number of the next file of each writer.
        read_until_ms: files of other writers that were modified later are new; ms since 1970 UTC.
        start: the start of the batch that ends here; None if the batch starts at the offset before.
        initial: whether this is the offset of a query before its first batch.
    """

    writers: Mapping[str, int]
    read_until_ms: int = 0
    start: FilesOffset | None = None
    initial: bool = False

    def is_new(self, file: EventFile) -> bool:
        """Whether the file comes after this offset."""
        number = self.writers.get(file.writer_id)
        return file.modified_ms > self.read_until_ms if number is None else file.number >= number

    def forget(self, files: Iterable[EventFile], read_until_ms: int) -> FilesOffset:
        """This offset without the writers that have no file, or only `files` that were modified up to this time. No
        such file may be new."""
        until_ms = max(self.read_until_ms, read_until_ms)
        recent = {file.writer_id for file in files if file.modified_ms > until_ms}
        writers = {writer_id: number for writer_id, number in self.writers.items() if writer_id in recent}
        return FilesOffset(writers, until_ms)

    def as_dict(self) -> dict[str, Any]:
        """The layout above, with sorted keys, so that equal offsets are equal texts."""
        initial = {"initial": True} if self.initial else {}
        start = {} if self.start is None else {"start": self.start._position()}
        return dict(sorted({**initial, **start, **self._position(), "version": VERSION}.items()))

    def _position(self) -> dict[str, Any]:
        return {"read_until_ms": self.read_until_ms, "writers": dict(sorted(self.writers.items()))}

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> FilesOffset:
        """The inverse of `as_dict`. Raises CheckpointError."""
        try:
            whole_number(value["version"], VERSION, VERSION)
            start = value.get("start")
            return cls(*_position(value), None if start is None else cls(*_position(start)), "initial" in value)
        except (KeyError, AttributeError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint contains an offset that is not one of refresh-event files ({error}): restore the "
                "checkpoint, or start with a new one"
            ) from error


BEGINNING = FilesOffset({})


def next_numbers(files: Collection[EventFile]) -> dict[str, int]:
    """The next file number of each writer after `files`."""
    return {file.writer_id: file.number + 1 for file in sorted(files)}


def latest_offset(files: Collection[EventFile], now_ms: int) -> FilesOffset:
    """The initial offset after all `files`."""
    latest = FilesOffset(next_numbers(files)).forget(files, _oldest_late_ms(files, now_ms))
    return replace(latest, initial=True)


def advance(start: FilesOffset, files: Collection[EventFile], max_files: int | None, now_ms: int) -> FilesOffset:
    """The end of the micro-batch that starts at `start`; `start` itself if there is no new file.

    Writers take turns, so that the limit starves no writer. When the offset moves, it forgets writers without a file,
    which cannot be read twice, and writers whose files are all old.
    """
    new = sorted(
        filter(start.is_new, files),
        key=lambda file: (file.number - start.writers.get(file.writer_id, 0), file.writer_id),
    )
    chosen, left = (new, []) if max_files is None else (new[:max_files], new[max_files:])
    if not chosen and not start.initial:
        return start
    before_left_ms = min((file.modified_ms for file in left), default=INT64_MAX) - 1
    kept = start.forget(files, min(_oldest_late_ms(files, now_ms), before_left_ms))
    writers = {**kept.writers, **next_numbers(chosen)}
    return FilesOffset(writers, kept.read_until_ms, replace(start, initial=False) if start.initial else None)


def files_between(start: FilesOffset, end: FilesOffset, files: Collection[EventFile]) -> list[EventFile]:
    """The files of the micro-batch between two offsets, in order."""
    begin = end.start or start
    return sorted(file for file in files if begin.is_new(file) and file.number < end.writers.get(file.writer_id, 0))


def by_latest_writer(files: Collection[EventFile]) -> list[EventFile]:
    """The files in order, those of the cache with the newest file first."""
    latest_ms: dict[str, int] = {}
    for file in files:
        latest_ms[file.cache] = max(file.modified_ms, latest_ms.get(file.cache, 0))
    return sorted(files, key=lambda file: (-latest_ms[file.cache], file))


def count_deleted(start: FilesOffset, end: FilesOffset, files: Collection[EventFile]) -> int:
    """Count of files between two offsets that are not in `files`: they were deleted before the read. Nobody knows how
    many files a writer deleted that `start` does not name."""
    begins = (end.start or start).writers
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
        self._found: dict[str, EventFile] = {}  # by the last listing

    def files(self, start: FilesOffset = BEGINNING) -> list[EventFile]:
        """All complete files, in order. Files after `start` are complete up to the newest of each writer."""
        found = self._list()
        new = list(filter(start.is_new, found.values()))
        if len(new) < sum(number - start.writers.get(writer, 0) for writer, number in next_numbers(new).items()):
            # A listing may miss a file that is created at the same time. Each file exists before its writer's next one,
            # so a file that the second listing misses too was deleted.
            found = found | self._list()
        return sorted(found.values())

    def has(self, name: str) -> bool:
        """Whether a file of this name, of any kind, is in the folder itself."""
        with file_system(self._root) as (system, path):
            return bool(system.get_file_info(f"{path}/{name}").is_file)

    def lines(self, files: Sequence[EventFile]) -> Iterator[bytes]:
        """The lines of `files`. A final warning counts the files that were deleted since they were listed."""
        deleted = 0
        with file_system(self._root) as (system, _):
            for file in files:
                try:
                    with system.open_input_stream(file.path) as stream:
                        content = stream.read()
                except FileNotFoundError:
                    deleted += 1
                else:
                    yield from content.splitlines()
        warn_of_deleted(deleted)

    def _list(self) -> dict[str, EventFile]:
        """By path."""
        from pyarrow.fs import FileSelector

        with file_system(self._root) as (system, path):
            entries = system.get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
        found, self._found = self._found, {}
        for entry in entries:
            path = entry.path
            if (file := found.get(path) or _event_file(path, entry)) is not None:
                self._found[path] = file
        return self._found


def _event_file(path: str, entry: FileInfo) -> EventFile | None:
    """None for any other file. A file never changes."""
    if not entry.is_file or (name := _NAME.fullmatch(entry.base_name)) is None:
        return None
    modified_ms = int(entry.mtime_ns // 1_000_000) if entry.mtime_ns else INT64_MAX  # None or 0: not known
    return EventFile(name[1], int(name[2]), path, modified_ms)


def warn_of_deleted(count: int) -> None:
    if count:
        logger.warning("files of refresh events that were deleted before they were read: %d", count)


def _position(value: Mapping[str, Any]) -> tuple[dict[str, int], int]:
    writers = {writer_id: whole_number(number, 0, INT64_MAX) for writer_id, number in value["writers"].items()}
    return writers, whole_number(value["read_until_ms"], 0, INT64_MAX)


def _oldest_late_ms(files: Iterable[EventFile], now_ms: int) -> int:
    """Files may still appear that were modified later. A file from the future changes nothing."""
    return min(now_ms, max((file.modified_ms for file in files), default=0)) - LATE_MS
