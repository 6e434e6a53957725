"""Published events are complete and private, and publishing never fails a read."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pyspark_kafka_meta.events import default_folder, sinks
from pyspark_kafka_meta.events import publisher as event_publisher
from pyspark_kafka_meta.events.default_folder import LivenessLock
from pyspark_kafka_meta.events.event import Event, EventKind, Origin, Role
from pyspark_kafka_meta.events.publisher import EventPublisher, new_publisher
from pyspark_kafka_meta.events.sinks import CountedSink, FolderSink, LocalFolder
from pyspark_kafka_meta.options import EventsOptions
from tests.unit.written_events import events_in, made

TIMEOUT_S = 60
ORIGIN = Origin(role=Role.READER, application_id="app-1", executor_id="7", stage_id=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Created by the publisher."""
    return tmp_path / "some" / "events"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than tasks wait for their events to be written, and caches for their lock."""
    for module in (sinks, default_folder):
        monkeypatch.setattr(module, "WAIT_S", TIMEOUT_S)


@pytest.fixture
def publisher(folder: Path) -> EventPublisher:
    """Writes in this thread, without a `BackgroundSink`."""
    return EventPublisher([CountedSink(FolderSink(LocalFolder(folder)))], ORIGIN)


def rows(folder: Path) -> list[dict[str, Any]]:
    """The events of all files, by sequence."""
    return sorted(events_in(folder), key=itemgetter("sequence"))


def publish(publisher: EventPublisher, first: int, last: int) -> None:
    for sequence in range(first, last + 1):
        publisher.publish(made("c0ffee", sequence))


def test_each_flush_of_new_events_writes_one_file(folder: Path, publisher: EventPublisher) -> None:
    publisher.flush()
    assert not folder.exists()
    for sequence in (1, 2):
        publish(publisher, sequence, sequence)
        publisher.flush()
        publisher.flush()

    assert len(list(folder.iterdir())) == 2
    assert len(rows(folder)) == 2


@pytest.mark.parametrize("mode", [None, 0o755], ids=["new folder", "existing folder"])
def test_files_are_private_in_a_private_folder(folder: Path, publisher: EventPublisher, mode: int | None) -> None:
    if mode is not None:
        folder.mkdir(parents=True)
        folder.chmod(mode)
    publish(publisher, 1, 1)
    publisher.flush()
    [file] = folder.iterdir()

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == (mode or 0o700)


def test_without_a_path_events_go_to_a_folder_named_after_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[..., object]
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    planned = EventsOptions(None, None, (), driver="driver-host-42")
    for options, origin in ((planned, ORIGIN), (EventsOptions(None, None, ()), Origin(role=Role.PLANNER))):
        publisher = new_publisher(options, origin)
        publish(publisher, 1, 1)
        publisher.flush()
    wait_for(lambda: len(list(tmp_path.rglob("*.jsonl"))) == 2)

    root = tmp_path / f"kafkameta-events-{os.getuid()}"
    own = re.sub(r"[^A-Za-z0-9_-]", "_", f"driver-{socket.gethostname()}-{os.getppid()}")
    assert {path.parent for path in tmp_path.rglob("*.jsonl")} == {root / "driver-host-42", root / own}


def test_relative_path_is_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    publisher = new_publisher(EventsOptions("events", None, ()), ORIGIN)
    publish(publisher, 1, 1)
    publisher.close()

    assert len(list((tmp_path / "events").glob("*.jsonl"))) == 1


def test_event_is_one_structured_log_line_at_once(publisher: EventPublisher, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="pyspark_kafka_meta.events"):
        publish(publisher, 4, 4)
    [line] = [record.getMessage() for record in caplog.records]

    assert json.loads(line)["sequence"] == 4
    assert "\n" not in line


def test_full_queue_drops_the_oldest_and_the_next_event_reports_how_many(
    folder: Path, publisher: EventPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_publisher, "MAX_PENDING_EVENTS", 3)
    publish(publisher, 1, 8)
    publisher.flush()
    publish(publisher, 9, 10)
    publisher.flush()

    losses = [(row["sequence"], row["dropped_before"]) for row in rows(folder)]
    assert losses == [(6, 5), (7, 0), (8, 0), (9, 0), (10, 0)]


def test_without_sinks_an_event_is_only_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    silent = EventPublisher((), ORIGIN)
    with caplog.at_level(logging.INFO, logger="pyspark_kafka_meta.events"):
        publish(silent, 1, 2)
    assert len(silent._pending) == 0
    silent.close()

    assert len(caplog.records) == 2
    assert list(tmp_path.iterdir()) == []


class RecordingSink:
    """Records the sequences of its events."""

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.is_closed = False

    def write(self, events: Sequence[Event]) -> None:
        self.sequences += [event.sequence for event in events]

    def close(self) -> None:
        self.is_closed = True


def test_every_sink_gets_every_event_and_is_closed() -> None:
    both = RecordingSink(), RecordingSink()
    publisher = EventPublisher(both, ORIGIN)
    publish(publisher, 1, 2)
    publisher.close()

    assert [(sink.sequences, sink.is_closed) for sink in both] == [([1, 2], True)] * 2


def test_new_cache_reports_dead_not_closed_ones(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(default_folder, "default_root", lambda: tmp_path / "root")
    options = EventsOptions(str(folder), None, ())
    born = replace(made("c0ffee", 1), kind=EventKind.BORN)
    first, second, third = (new_publisher(options, ORIGIN) for _ in range(3))
    assert first._liveness is not None
    with monkeypatch.context() as killed:  # the kernel releases the locks of a process, and removes no file
        killed.setattr(Path, "unlink", lambda _: None)
        first.publish(replace(born, cache_id="first"))
        first._liveness.release()
    second.publish(replace(born, cache_id="second"))
    second.close()
    third.publish(replace(born, cache_id="third"))
    third.close()

    assert {row["cache_id"]: row["died_cache_ids"] for row in rows(folder)} == {"second": ["first"], "third": []}


@pytest.mark.parametrize("trouble", ["missing", "hanging"])
def test_events_need_no_temporary_folder(folder: Path, trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    responds = threading.Event()

    def temporary_folder() -> NoReturn:
        if trouble == "hanging":
            responds.wait(TIMEOUT_S)
        raise FileNotFoundError("No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", temporary_folder)
    monkeypatch.setattr(default_folder, "WAIT_S", 0.001)
    publisher = new_publisher(EventsOptions(str(folder), None, ()), ORIGIN)
    publisher.publish(made("c0ffee", 1, kind=EventKind.BORN))
    publisher.close()
    responds.set()

    assert [(row["sequence"], row["died_cache_ids"]) for row in rows(folder)] == [(1, [])]


def test_without_a_temporary_folder_default_events_are_lost_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def temporary_folder() -> NoReturn:
        raise FileNotFoundError("No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", temporary_folder)
    publisher = new_publisher(EventsOptions(None, None, ()), ORIGIN)
    publisher.publish(made("c0ffee", 1, kind=EventKind.BORN))
    publisher.close()

    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "refresh events not written: 1 (No usable temporary directory found in ['/tmp'])"
    ]


class FakeLock(LivenessLock):
    """Finds a dead cache soon, or later."""

    def __init__(self, *dead: tuple[str, ...]) -> None:
        super().__init__("app", "a folder")
        self.dead = list(dead)
        self.is_released = False

    def acquire(self, cache_id: str) -> tuple[str, ...]:
        return self.take_dead()

    def take_dead(self) -> tuple[str, ...]:
        return self.dead.pop(0)

    def release(self) -> None:
        self.is_released = True


@pytest.mark.parametrize(
    ("found", "reported"), [([("dead",), ()], [(1, ["dead"])]), ([(), ("dead",)], [(1, []), (2, ["dead"])])]
)
def test_dead_caches_are_reported_at_once_or_in_the_event_after_they_are_found(
    folder: Path, found: list[tuple[str, ...]], reported: list[tuple[int, list[str]]]
) -> None:
    publisher = EventPublisher([CountedSink(FolderSink(LocalFolder(folder)))], ORIGIN, FakeLock(*found))
    publisher.publish(made("c0ffee", 1, kind=EventKind.BORN))
    publisher.publish(made("c0ffee", 2))

    assert [(row["sequence"], row["died_cache_ids"]) for row in rows(folder)] == reported


def test_child_of_a_fork_leaves_sinks_and_lock_to_its_parent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FakeLock((), ("dead",))
    publisher = EventPublisher([CountedSink(FolderSink(LocalFolder(folder)))], ORIGIN, lock)
    publish(publisher, 1, 1)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        publish(publisher, 2, 2)
        publisher.close()

    assert (folder.exists(), lock.dead, lock.is_released) == (False, [("dead",)], False)


def test_client_of_a_topic_sink_belongs_to_the_process_of_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    origins: list[Origin] = []

    def topic_sink(_: EventsOptions, origin: Origin) -> RecordingSink:
        origins.append(origin)
        return RecordingSink()

    monkeypatch.setattr(event_publisher, "TopicSink", topic_sink)
    of_process = replace(ORIGIN, stage_id=None, host="worker", pid=7)
    new_publisher(EventsOptions(None, "events", ()), replace(of_process, stage_id=3, query_id="q")).close()

    assert origins == [of_process]


def test_only_events_go_to_the_logger_of_events() -> None:
    """Its lines are JSON: users parse them."""
    loggers = logging.root.manager.loggerDict

    assert "pyspark_kafka_meta.events" in loggers
    assert [name for name in loggers if name.startswith("pyspark_kafka_meta.events.")] == []
