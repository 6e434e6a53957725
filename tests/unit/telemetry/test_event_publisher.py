"""Events on their way out: complete files, nobody else's to read, and no trouble ever for the read that made them."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafka_meta.metadata.refresh_events import EventKind, Origin, RefreshEvent, Role
from pyspark_kafka_meta.options import MetricsOptions
from pyspark_kafka_meta.telemetry import event_folders, event_publisher
from pyspark_kafka_meta.telemetry.event_folders import LocalFolder
from pyspark_kafka_meta.telemetry.event_publisher import EventPublisher
from pyspark_kafka_meta.telemetry.event_sinks import FolderSink
from pyspark_kafka_meta.telemetry.liveness import LivingCaches
from pyspark_kafka_meta.telemetry.publisher_factory import new_publisher
from tests.unit.written_events import events_in, made

ORIGIN = Origin(role=Role.READER, application_id="app-1", executor_id="7", stage_id=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Made by the publisher."""
    return tmp_path / "some" / "events"


@pytest.fixture
def published(folder: Path) -> EventPublisher:
    """With a sink that has written when it returns."""
    return EventPublisher([FolderSink(LocalFolder(folder))], ORIGIN)


def rows(folder: Path) -> list[dict[str, Any]]:
    """Those of all files, by number."""
    return sorted(events_in(folder), key=itemgetter("sequence"))


def publish(to: EventPublisher, first: int, last: int) -> None:
    for sequence in range(first, last + 1):
        to.publish(made("c0ffee", sequence))


def test_events_are_written_with_their_origin(folder: Path, published: EventPublisher) -> None:
    publish(published, 1, 2)
    published.origin = Origin(role=Role.PLANNER)
    publish(published, 3, 3)
    published.flush()

    assert [(row["sequence"], row["reason"], row["executor_id"]) for row in rows(folder)] == [
        (1, "max_age", "7"),
        (2, "max_age", "7"),
        (3, "max_age", None),
    ]
    assert rows(folder)[0] == json.loads(made("c0ffee", 1, origin=ORIGIN).to_json())


def test_each_flush_is_a_file_of_its_own_and_nothing_new_is_none(folder: Path, published: EventPublisher) -> None:
    published.flush()
    assert not folder.exists()
    for sequence in (1, 2):
        publish(published, sequence, sequence)
        published.flush()
        published.flush()

    assert len(list(folder.iterdir())) == 2
    assert len(rows(folder)) == 2


def test_files_and_their_folder_are_the_owners_alone(folder: Path, published: EventPublisher) -> None:
    publish(published, 1, 1)
    published.flush()
    [file] = folder.iterdir()

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_folder_that_is_there_keeps_its_mode(folder: Path, published: EventPublisher) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    publish(published, 1, 1)
    published.flush()

    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_without_a_path_events_go_to_a_folder_named_after_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[..., object]
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    planned = MetricsOptions(None, None, (), driver="driver-host-42")
    for options, origin in ((planned, ORIGIN), (MetricsOptions(None, None, ()), Origin(role=Role.PLANNER))):
        to = new_publisher(options, origin)
        publish(to, 1, 1)
        to.flush()
    wait_for(lambda: len(list(tmp_path.rglob("*.jsonl"))) == 2)

    root = tmp_path / f"kafkameta-events-{os.getuid()}"
    own = re.sub(r"[^A-Za-z0-9_-]", "_", f"driver-{socket.gethostname()}-{os.getppid()}")
    assert {path.parent for path in tmp_path.rglob("*.jsonl")} == {root / "driver-host-42", root / own}


def test_a_relative_path_begins_where_the_process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    to = new_publisher(MetricsOptions("events", None, ()), ORIGIN)
    publish(to, 1, 1)
    to.close()

    assert len(list((tmp_path / "events").glob("*.jsonl"))) == 1


def test_event_is_one_structured_log_line_at_once(published: EventPublisher, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="pyspark_kafka_meta.events"):
        publish(published, 4, 4)
    [line] = [record.getMessage() for record in caplog.records]

    assert json.loads(line)["sequence"] == 4
    assert "\n" not in line


def test_full_queue_drops_the_oldest_and_the_next_event_tells_how_many(
    folder: Path, published: EventPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_publisher, "MAX_PENDING_EVENTS", 3)
    publish(published, 1, 8)
    published.flush()
    publish(published, 9, 10)
    published.flush()

    told = [(row["sequence"], row["dropped_before"]) for row in rows(folder)]
    assert told == [(6, 5), (7, 0), (8, 0), (9, 0), (10, 0)]


def test_without_sinks_an_event_is_a_log_line_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    silent = EventPublisher((), ORIGIN)
    with caplog.at_level(logging.INFO, logger="pyspark_kafka_meta.events"):
        publish(silent, 1, 2)
    silent.close()

    assert len(caplog.records) == 2
    assert list(tmp_path.iterdir()) == []


def test_child_of_a_fork_writes_nothing_through_its_parents_sinks(
    folder: Path, published: EventPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(published, 1, 1)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        publish(published, 2, 2)
        published.close()

    assert not folder.exists()


class NotedSink:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.is_closed = False

    def write(self, events: Sequence[RefreshEvent]) -> None:
        self.sequences += [one.sequence for one in events]

    def close(self) -> None:
        self.is_closed = True


def test_every_sink_gets_every_event_and_its_end() -> None:
    sinks = NotedSink(), NotedSink()
    to = EventPublisher(sinks, ORIGIN)
    publish(to, 1, 2)
    to.close()

    assert [(sink.sequences, sink.is_closed) for sink in sinks] == [([1, 2], True)] * 2


@pytest.mark.parametrize("obstacle", ["a file in the way", "a folder that may not be written", "a disk that is full"])
def test_what_cannot_be_written_raises_nothing_leaves_nothing_and_is_counted(
    folder: Path,
    published: EventPublisher,
    obstacle: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        if obstacle == "a file in the way":
            folder.parent.write_text("")
        elif obstacle == "a folder that may not be written":
            broken.setattr("os.open", refuse)
        else:
            broken.setattr("os.rename", refuse)
        publish(published, 1, 3)
        published.flush()
        publish(published, 4, 4)
        published.flush()
    assert [record.levelname for record in caplog.records] == ["WARNING"], "once, until one gets through"

    if folder.parent.is_file():
        folder.parent.unlink()
    publish(published, 5, 6)
    published.flush()
    assert [(row["sequence"], row["dropped_before"]) for row in rows(folder)] == [(5, 4), (6, 0)]
    assert len(list(folder.iterdir())) == 1


def test_a_new_cache_tells_of_one_that_died_and_its_publisher_lets_it_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(event_folders, "default_root", lambda: tmp_path / "root")
    options = MetricsOptions(str(folder), None, ())
    born = replace(made("c0ffee", 1), kind=EventKind.BORN)
    first, second, third = (new_publisher(options, ORIGIN) for _ in range(3))
    assert first._living is not None
    with monkeypatch.context() as killed:  # the kernel lets go of what a process holds, and removes no file
        killed.setattr(Path, "unlink", lambda _: None)
        first.publish(replace(born, cache_id="first"))
        first._living.leave()
    second.publish(replace(born, cache_id="second"))
    second.close()
    third.publish(replace(born, cache_id="third"))
    third.close()

    assert {row["cache_id"]: row["died_cache_ids"] for row in rows(folder)} == {"second": ["first"], "third": []}


def test_who_died_is_told_at_once_as_what_killed_it_may_kill_this_process_too(folder: Path) -> None:
    class Living(LivingCaches):
        def enter(self, cache_id: str) -> tuple[str, ...]:
            return ("dead",)

    to = EventPublisher([FolderSink(LocalFolder(folder))], ORIGIN, Living("app", "a folder"))
    to.publish(made("c0ffee", 1, kind=EventKind.BORN))
    to.publish(made("c0ffee", 2))

    assert [(row["sequence"], row["died_cache_ids"]) for row in rows(folder)] == [(1, ["dead"])]
