"""Where the tools read refresh events, folders or a topic, and with them the state of a cluster; without Spark. And the
thread in which the exporter, the page and the demo poll."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol, Self

from pyspark_kafka_meta.errors import AuthenticationError, KafkaMetaError, OptionError
from pyspark_kafka_meta.events.default_folder import default_root
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.model import Positions
from pyspark_kafka_meta.options import ClientOptions, EventTableOptions, FetchOptions, SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, SourceOffset, ranges
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner, stream_planner_options
from pyspark_kafka_meta.tables.caches_from_events import CacheContents, EventRow, KnownCaches, runs
from pyspark_kafka_meta.tables.cluster_query import broker_rows, describe_cluster, partition_rows
from pyspark_kafka_meta.tables.event_file_reader import (
    LATE_MS,
    EventFile,
    EventFolder,
    FilesOffset,
    advance,
    by_latest_writer,
)
from pyspark_kafka_meta.tables.parsed_events import parse_events
from pyspark_kafka_meta.tables.rows import BrokerRow, PartitionRow
from pyspark_kafka_meta.tools.cluster_state import ClusterState, NewestEvents, known_brokers, newest_leaders
from pyspark_kafka_meta.tools.console import note, timeout_options

FILES_AT_ONCE = 200
NAMED = 3
"""This many of the other applications are named."""
SPARK_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
"""The main class of a driver's JVM."""
TOPIC_DEFAULTS = {**timeout_options(10_000), "kafkaConsumer.pollTimeoutMs": "10000"}
CLUSTER_TIMEOUT_MS = 2_000
READ_S, MAX_READ_S = 1.0, 8.0
"""A state waits this long for events. While there are more, the first one has some of the caches, and each further one
waits twice as long."""
MAX_REST_S = 5.0
"""Looks for events take a fifth of the time, unless they take more than a second: 0.3 s for 50,000 files."""
SILENT_KEPT_MS = 24 * 3_600_000
"""A cache without an event for this long is forgotten. Most have been killed; the planner of a query that runs once an
hour is silent for an hour."""

Progress = Callable[[], tuple[Positions, Positions, float]]
"""As `DemoQuery.progress`."""


class EventSource(Protocol):
    """A place that refresh events are read from.

    Attributes:
        name: for people.
        unreadable: files that were skipped, to be read again by the next call.
    """

    name: str
    unreadable: Sequence[EventFile]

    def read(self) -> Iterator[EventRow]:
        """The events since the last call, at first all events; with all fields, those of each cache in order."""

    def close(self) -> None: ...


def open_events(
    options: Mapping[str, str],
    must_exist: bool,
    all_applications: bool = False,
    skips_unreadable: bool = False,
    since_ms: int = 0,
) -> EventSource:
    """The place that options of the table `refresh_events` name. Raises OptionError.

    Args:
        must_exist: whether a local folder that is named must exist; else it may come later. Object stores have no
            folders that could be missing.
        all_applications: whether the default folders of all applications are read, or only of the latest.
        skips_unreadable: as of `FolderEvents`.
        since_ms: earlier events may be left out; ms since 1970 UTC.
    """
    if "eventsTopic" in options:
        since = {"startingTimestamp": str(since_ms), "startingOffsetsByTimestampStrategy": "latest"}
        options = {**TOPIC_DEFAULTS, **options, **(since if since_ms else {})}
    parsed = EventTableOptions.parse(options)
    if parsed.topic is not None:
        return TopicEvents(parsed.topic)
    path = parsed.path or str(default_root())
    if must_exist and path == parsed.path and "://" not in path:
        try:
            Path(path).stat()
        except OSError as error:
            raise OptionError(f"{path} cannot be read ({error.strerror}): correct --path") from None
    is_default = parsed.path is None
    hidden = _other_applications() if is_default and not all_applications else ()
    return FolderEvents(path, hidden, skips_unreadable, since_ms)


def _default_folders() -> list[Path]:
    """Of applications on this machine, the one that was written last first."""
    with_events = [path.parent for path in default_root().glob("*/events-*.jsonl")]
    return sorted(set(with_events), key=_written_at, reverse=True)


def folder_of_application(application: str) -> Path | None:
    """The default folder of the latest application with this name or id; None if there is none."""
    folders = _default_folders()
    return next((one for one in folders if application == _name_of(one) or application == _id_of(one)), None)


def _other_applications() -> list[str]:
    """The names of the default folders, except the folder that was written last. A note names their applications."""
    latest, others = (folders := _default_folders())[:1], folders[1:]
    if others:
        names = ", ".join(map(_described, others[:NAMED]))
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        note(
            f"the latest application is {_described(*latest)}; others, newest first: {names}{more}; "
            "--application NAME shows one, --all-applications all"
        )
    return [folder.name for folder in others]


def _written_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:  # removed since it was listed
        return 0


def _described(folder: Path) -> str:
    name = _name_of(folder)
    return _id_of(folder) if name is None else f"{name} ({_id_of(folder)})"


def _id_of(folder: Path) -> str:
    """The id of the application that wrote there; the folder's name while only its planner has written."""
    ids = (event["application_id"] for event in FolderEvents(str(folder)).read())
    return next((found for found in ids if found is not None), folder.name)


def _name_of(folder: Path) -> str | None:
    """The name of the application that wrote there, or of its program; None once its driver has ended."""
    pid = folder.name.rpartition("-")[2]
    try:
        return application_name(Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
    except (OSError, ValueError):
        return None


def application_name(command: Sequence[str]) -> str | None:
    """The name of a Spark application, or of its program, by the command line of its driver; else None."""
    if SPARK_SUBMIT not in command:
        return None
    named = [word.partition("=")[2] for word in command if word.startswith("spark.app.name=")]
    named += [value for option, value in pairwise(command) if option == "--name"]
    named += [Path(word).name for word in command if word.endswith(".py")]
    return next(iter(named), None)


class FolderEvents:
    """The event files below a folder.

    Args:
        hidden: folders in it that are not read.
        skips_unreadable: whether a file that cannot be read delays only its own events, or is an error.
        since_ms: files that were written a day before this time are not read; ms since 1970 UTC.
    """

    def __init__(
        self, root: str, hidden: Collection[str] = (), skips_unreadable: bool = False, since_ms: int = 0
    ) -> None:
        scheme, sign, _ = root.partition("://")
        self.name = f"the {scheme} folder of --path" if sign else root  # a URI may hold keys
        self._folder = EventFolder(root)
        self._hidden = hidden
        self._skips_unreadable = skips_unreadable
        self._offset = FilesOffset({}, max(0, since_ms - LATE_MS))
        self.unreadable: Sequence[EventFile] = ()

    def read(self) -> Iterator[EventRow]:
        """The caches with the newest files come first. Raises OptionError: the folder cannot be read."""
        try:
            files = self._folder.files(self._offset)
            if self._hidden:
                files = [file for file in files if Path(file.path).parent.name not in self._hidden]
            new = by_latest_writer([*self.unreadable, *filter(self._offset.is_new, files)])
            end, self.unreadable = advance(self._offset, files, None, int(time.time() * 1000)), ()
            for start in range(0, len(new), FILES_AT_ONCE):
                yield from self._events(new[start : start + FILES_AT_ONCE])
        except OSError as error:
            raise OptionError(f"no events can be read: {error}") from None
        self._offset = end  # only now: after an error in between all of it is read again

    def close(self) -> None:
        """Nothing is open between two files."""

    def _events(self, files: Sequence[EventFile]) -> Iterator[EventRow]:
        try:
            yield from parse_events(self._folder.lines(files))
        except OSError:
            if not self._skips_unreadable:
                raise
            for file in files:  # some a second time
                try:
                    yield from parse_events(self._folder.lines([file]))
                except OSError:
                    self.unreadable = [*self.unreadable, file]


class TopicEvents:
    """The records of an events topic. Reading them publishes no event."""

    def __init__(self, options: SourceOptions) -> None:
        self.name = f"topic {options.topics[0]}"
        self._client = client_without_events(stream_planner_options(options.client))
        self._planner = OffsetPlanner(self._client, options.for_stream())
        self._reader = TaskReader(self._client, options, ["value"])
        self.unreadable: Sequence[EventFile] = ()
        self._offset: SourceOffset | None = None

    def read(self) -> Iterator[EventRow]:
        """Raises KafkaMetaError: there is no such topic, it may not be read, or no broker responds."""
        start = self._offset or BEGINNING
        end = self._planner.next_offset(start, None, limited=False)
        yield from parse_events(
            value for batch in self._reader.read(ranges(start, end)) for value in batch.column("value").to_pylist()
        )
        self._offset = end

    def close(self) -> None:
        self._client.close()


class StateReader:
    """Args:
    source: of the events.
    options: of the cluster, `kafka.*`; empty to take brokers and leaders from the caches.
    topics: to show, given what the caches know.
    progress: of the query.
    """

    def __init__(
        self,
        source: EventSource,
        options: Mapping[str, str],
        topics: Callable[[Sequence[CacheContents]], Collection[str]],
        progress: Progress,
    ) -> None:
        self._source = source
        self._client = ClientOptions.parse({**options, **timeout_options(CLUSTER_TIMEOUT_MS)}) if options else None
        self._read_committed = FetchOptions.parse(options).read_committed
        self._topics = topics
        self._progress = progress
        self._runs: Iterator[Sequence[EventRow]] | None = None
        self._read_s = READ_S
        self._rest_until_s = 0.0
        self._known = KnownCaches()
        self._caches: Sequence[CacheContents] = ()
        self._newest = NewestEvents()
        self._brokers: Sequence[BrokerRow] = ()
        self._partitions: Sequence[PartitionRow] = ()
        self._refused: str | None = None

    def read(self) -> ClusterState:
        """The state now. Raises KafkaMetaError: the query ended, or the events cannot be read."""
        begins, positions, records_per_s = self._progress()
        now_ms = int(time.time() * 1000)
        has_news = self._read_events()
        if self._runs is None:  # else a topic may still have newer events of a cache
            self._known.forget(now_ms - SILENT_KEPT_MS)
        caches = self._known.living()
        if has_news or caches != self._caches:
            self._caches = caches
        trouble = self._ask(self._caches, has_news)
        return ClusterState(
            now_ms=now_ms,
            brokers=self._brokers,
            partitions=self._partitions,
            trouble=trouble,
            events=self._newest.in_order(),
            caches=self._caches,
            is_reading=self._runs is not None,
            positions=positions,
            begins=begins,
            records_per_s=records_per_s,
        )

    def _read_events(self) -> bool:
        """Returns whether there were new events."""
        began_s, has_news = time.monotonic(), False
        if began_s < self._rest_until_s:
            return False
        left, self._runs = self._runs or runs(self._source.read()), None
        for run in left:
            self._known.add(run)
            self._newest.add(run)
            has_news = True
            if time.monotonic() > began_s + self._read_s:
                self._runs, self._read_s = left, min(2 * self._read_s, MAX_READ_S)
                break
        else:
            self._read_s = READ_S
            took_s = (ended_s := time.monotonic()) - began_s
            self._rest_until_s = ended_s + min(MAX_REST_S, max(0.0, 5 * took_s - READ_S))
        return has_news

    def _ask(self, caches: Sequence[CacheContents], has_news: bool) -> str | None:
        """Ask the cluster; returns why it did not respond. After a refused login it is not asked again: repeated
        attempts may lock the account."""
        if self._client is None:
            if has_news:
                self._partitions = tuple(newest_leaders(caches).values())
                self._brokers = known_brokers(self._newest.in_order(), self._partitions)
            return None
        if self._refused is not None:
            return self._refused
        try:
            self._brokers = broker_rows(describe_cluster(self._client, ()))
            topics = tuple(self._topics(caches))
            self._partitions = partition_rows(self._client, topics, self._read_committed) if topics else ()
        except AuthenticationError as error:
            self._refused = f"{error} (not tried again: restart the command)"
            return self._refused
        except KafkaMetaError as error:
            return str(error)
        return None


class RepeatedPoll:
    """Polls inside `with`: every `interval_s`, and at once after a poll that took longer. With `from_end` the interval
    begins at the end of a poll, so that slow brokers get a pause, too."""

    close_timeout_s = 2.0
    """Closing waits this long for a poll; brokers that do not respond take longer."""

    def __init__(self, name: str, interval_s: float, *, from_end: bool = False) -> None:
        self._interval_s = interval_s
        self._from_end = from_end
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(self.close_timeout_s)

    def poll(self) -> None:
        raise NotImplementedError

    def on_error(self, error: Exception) -> bool:
        """After an error of `poll`, which does not end the thread: returns whether to poll again."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                self.poll()
            except Exception as error:
                if self._stopped.is_set() or not self.on_error(error):  # once stopped, what it polls may be closed
                    return
            took_s = 0.0 if self._from_end else time.monotonic() - began
            self._stopped.wait(max(0.0, self._interval_s - took_s))
