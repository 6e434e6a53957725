"""Where events are read from, if that place is not there, which are kept, and the state without the cluster."""

from __future__ import annotations

import os
import random
import time
import weakref
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.errors import AuthenticationError, ConnectError, KafkaMetaError, OptionError
from pyspark_kafka_meta.events.event import BrokerFetches, BrokerProduces, EventKind, FilteredRecords, Origin, Role
from pyspark_kafka_meta.events.sinks import writer_prefix
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.tables.caches_from_events import EventRow, KnownCaches
from pyspark_kafka_meta.tables.event_file_reader import EventFile, EventFolder
from pyspark_kafka_meta.tools import cluster_state, event_sources
from pyspark_kafka_meta.tools.cli import events
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.cluster_state import NewestEvents, caches_by_process, newest_leaders
from pyspark_kafka_meta.tools.event_sources import SILENT_KEPT_MS, FolderEvents, StateReader
from tests.partitions import T0, T1
from tests.unit.tools.states import FIRST, FIRST_IS_STALE, NOW_MS, SECOND, WRITER, state
from tests.unit.written_events import learning, made, moving, write


@pytest.mark.parametrize("command", ["events", "caches", "page --port 0"])
@pytest.mark.parametrize(
    ("scheme", "name", "why"),
    [
        ("", "typo", "No such file or directory"),
        ("file://", "typo", "No such file or directory"),
        ("", "x" * 300, "File name too long"),
    ],
)
def test_folder_that_is_not_there_is_a_mistake(command: str, scheme: str, name: str, why: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--path", f"{scheme}{tmp_path}/{name}"])
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
    assert f"cannot be read ({why}): correct --path" in result.stderr


def test_a_folder_that_is_followed_may_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(events, "sleep", interrupted)
    assert CliRunner().invoke(app, ["events", "--path", str(tmp_path / "later"), "--follow"]).exit_code == 0


def test_what_was_read_before_an_error_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_sources, "FILES_AT_ONCE", 1)
    for number in range(2):
        write(tmp_path, made(f"{number:032x}", 1))
    source = FolderEvents(str(tmp_path))
    with monkeypatch.context() as broken:
        read, lines = list[EventFile](), EventFolder.lines

        def one_file(folder: EventFolder, files: list[EventFile]) -> Iterator[bytes]:
            if read:
                raise PermissionError("access denied")
            read.extend(files)
            return lines(folder, files)

        broken.setattr(EventFolder, "lines", one_file)
        with pytest.raises(OptionError, match="no events can be read: access denied"):
            list(source.read())

    assert len(list(source.read())) == 2
    assert list(source.read()) == []


@pytest.mark.parametrize("command", ["events", "caches"])
def test_brokers_that_do_not_respond_are_told_of_soon(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_sources, "TOPIC_DEFAULTS", dict.fromkeys(event_sources.TOPIC_DEFAULTS, "300"))
    result = CliRunner().invoke(app, [command, "--events-topic", "t", "--bootstrap-servers", "127.0.0.1:1"])
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
    assert "no broker responded" in result.stderr


def test_without_a_path_there_may_be_no_folders_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "none"))
    result = CliRunner().invoke(app, ["events"])
    assert (result.exit_code, "no such events" in result.stderr) == (0, True)


@pytest.mark.parametrize(("error", "times"), [(ConnectError("nobody there"), 3), (AuthenticationError("no"), 1)])
def test_the_cluster_is_asked_again_only_where_that_may_help(
    error: KafkaMetaError, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def fail(*_: object) -> NoReturn:
        requests.append(1)
        raise error

    monkeypatch.setattr(event_sources, "describe_cluster", fail)
    options = {"kafka.bootstrap.servers": "b:9"}
    state_reader = StateReader(FolderEvents(str(tmp_path)), options, lambda _: (), lambda: ({}, {}, 0.0))

    assert [str(state_reader.read().trouble).startswith(str(error)) for _ in range(3)] == [True] * 3
    assert len(requests) == times


DEAD, LIVE = "a" * 32, "b" * 32
BORN = {"kind": EventKind.BORN, "reason": RefreshReason.BOOTSTRAP}


def test_a_dead_cache_stays_dead_whatever_comes_later() -> None:
    caches = KnownCaches()
    for event in (
        made(LIVE, 1, NOW_MS - 8_000, **BORN, died_cache_ids=(DEAD,)),
        made(DEAD, 1, NOW_MS - 9_000, **learning("t", 1, epoch=9)),
        made(LIVE, 2, NOW_MS - 7_000, **learning("t", 2, epoch=4)),
    ):
        caches.add([event.to_dict()])
    leaders = newest_leaders(caches.living()).values()

    assert [contents.last["cache_id"] for contents in caches.living()] == [LIVE]
    assert [(row.leader_id, row.leader_epoch) for row in leaders] == [(2, 4)]


def test_what_a_dead_cache_knew_is_forgotten_at_once() -> None:
    caches = KnownCaches()
    caches.add([made(DEAD, 1, NOW_MS, **learning("t", 1)).to_dict()])
    known = weakref.ref(caches.living()[0])
    caches.add([made(LIVE, 1, NOW_MS, **BORN, died_cache_ids=(DEAD,)).to_dict()])
    assert known() is None


def test_a_cache_that_is_silent_for_a_day_is_forgotten() -> None:
    caches = KnownCaches.of([made(DEAD, 1, NOW_MS - SILENT_KEPT_MS - 1).to_dict(), made(LIVE, 1, NOW_MS).to_dict()])
    caches.forget(NOW_MS - SILENT_KEPT_MS)

    assert [contents.last["cache_id"] for contents in caches.living()] == [LIVE]


def test_a_state_of_many_events_has_the_caches_of_newest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_sources, "READ_S", -1.0)
    now_ms = int(time.time() * 1000)
    for number, cache in enumerate((FIRST, SECOND)):
        write(tmp_path, made(cache, 1, now_ms, **learning("t", 1, 2, epoch=4)))
        write(tmp_path, made(cache, 2, now_ms, **moving("t", 1, (2, 3), (4, 5))))
        for file in tmp_path.glob(f"events-{writer_prefix(cache)}*"):
            os.utime(file, (now_ms / 1000 + number,) * 2)
    state_reader = StateReader(FolderEvents(str(tmp_path)), {}, lambda _: (), lambda: ({}, {}, 0.0))
    states, lists = [], []
    for _ in range(4):
        state = state_reader.read()
        lists.append(state.caches)
        states.append(([contents.last["cache_id"] for contents in state.caches], state.is_reading, len(state.events)))

    both = [FIRST, SECOND]
    assert states == [([SECOND], True, 2), (both, True, 4), (both, False, 4), (both, False, 4)]
    assert [one is other for one, other in pairwise(lists)] == [False, True, True], "the same list without news"
    assert {dict(contents.leaders)[T1] for contents in state.caches} == {(3, 5)}, "in order, whatever their files"


class Slow:
    """A folder of many files: to look for new ones takes `took_s`."""

    name = "folder"
    unreadable: Sequence[EventFile] = ()

    def __init__(self, took_s: float) -> None:
        self.now_s = 0.0
        self.looked_at_s: list[float] = []
        self._took_s = took_s

    def read(self) -> Iterator[EventRow]:
        self.looked_at_s.append(self.now_s)
        self.now_s += self._took_s
        return iter(())

    def close(self) -> None: ...


@pytest.mark.parametrize(("took_s", "looks"), [(0.01, 20), (0.4, 10), (3.0, 3)])
def test_looking_for_events_in_many_files_takes_a_fifth_of_the_time(
    took_s: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Slow(took_s)
    state_reader = StateReader(source, {}, lambda _: (), lambda: ({}, {}, 0.0))
    monkeypatch.setattr(time, "monotonic", lambda: source.now_s)
    while (poll_s := source.now_s) < 20:
        state_reader.read()
        source.now_s = max(poll_s + 1.0, source.now_s)

    assert len(source.looked_at_s) == looks


class OfADay:
    """A topic: the events of two caches in the order of time, the first of which are older than `SILENT_KEPT_MS`."""

    name = "topic"
    unreadable: Sequence[EventFile] = ()

    def read(self) -> Iterator[EventRow]:
        now_ms = int(time.time() * 1000)
        for began_ms in (now_ms - SILENT_KEPT_MS - 60_000, now_ms):
            for cache in (FIRST, SECOND):
                moved = moving("t", 1, (2, 3), (4, 5))
                old = made(cache, 1, began_ms, **learning("t", 1, 2, epoch=4))
                yield (made(cache, 2, began_ms, **moved) if began_ms == now_ms else old).to_dict()

    def close(self) -> None: ...


def test_no_cache_is_forgotten_while_older_events_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_sources, "READ_S", -1.0)
    state_reader = StateReader(OfADay(), {}, lambda _: (), lambda: ({}, {}, 0.0))
    states = [state_reader.read() for _ in range(4)]

    assert [dict(contents.leaders) for contents in states[-1].caches] == [{T0: (1, 4), T1: (3, 5)}] * 2


def test_the_newest_events_are_kept_each_once_in_the_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_state, "MAX_EVENTS", 3)
    events = [made(FIRST, number, NOW_MS + number).to_dict() for number in range(1, 20)]
    newest, shuffled = NewestEvents(), [*events, *events]
    random.Random(1).shuffle(shuffled)
    for event in shuffled:
        newest.add([event])

    assert [event["sequence"] for event in newest.in_order()] == [17, 18, 19]


def test_events_with_many_changes_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_state, "MAX_MEMBERS", 2)
    monkeypatch.setattr(cluster_state, "MAX_UNSHOWN", 1)
    newest = NewestEvents()
    newest.add(made(FIRST, number, NOW_MS + number, **moving("t", 1, (1, 2), (4, 5))).to_dict() for number in (1, 2, 3))
    newest.add([made(SECOND, 1, NOW_MS + 9, **learning("t", 1, 2)).to_dict()])
    kept = newest.in_order()

    assert [(event["cache_id"], event["sequence"]) for event in kept] == [(FIRST, 2), (FIRST, 3), (SECOND, 1)]
    assert [len(event["partitions_learned"]) for event in kept] == [0, 0, 0]


def test_events_of_large_clusters_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_state, "MAX_MEMBERS", 250)
    brokers = range(100)
    traffic = {
        "fetches": [BrokerFetches(broker, 1, 1) for broker in brokers],
        "produces": [BrokerProduces(broker, 1, 1) for broker in brokers],
        "filtered": [FilteredRecords("t", partition, 1) for partition in range(1_000)],
    }
    newest = NewestEvents()
    newest.add(made(FIRST, number, NOW_MS + number, **traffic).to_dict() for number in (1, 2, 3))
    kept = newest.in_order()

    assert [len(event["produces"]) for event in kept] == [100, 100], "the page shows them, so there are fewer events"
    assert [(event["fetches"], event["filtered"]) for event in kept] == [((), ())] * 2


def test_the_newest_event_is_kept_whatever_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_state, "MAX_MEMBERS", 0)
    newest = NewestEvents()
    newest.add(made(FIRST, number, NOW_MS + number, **moving("t", 1, (1, 2), (4, 5))).to_dict() for number in (1, 2))

    assert [event["sequence"] for event in newest.in_order()] == [2]


def test_an_executor_has_one_cache_whether_it_read_or_wrote_last() -> None:
    planner = made("c" * 32, 1, NOW_MS, **learning("t", 1), origin=Origin(role=Role.PLANNER, executor_id="driver"))
    wrote = made(FIRST, 2, NOW_MS - 7_000, **moving("t", 1, (2, 3), (4, 5)), **WRITER)
    before, after = (
        caches_by_process(state(*events, planner).cache_rows()) for events in (FIRST_IS_STALE, (*FIRST_IS_STALE, wrote))
    )

    assert list(before) == list(after) == ["planner", "executor 1", "executor 2"]
    assert [caches["executor 1"][T1].leader_epoch for caches in (before, after)] == [4, 5]


def test_events_of_executors_are_those_of_readers_and_writers() -> None:
    seen = state(
        made(FIRST, 1, NOW_MS - 1),
        made(FIRST, 2, NOW_MS),
        made(FIRST, 3, NOW_MS + 1, **WRITER),
        made(SECOND, 1, NOW_MS, origin=Origin(role=Role.PLANNER)),
    )

    assert [event["sequence"] for event in seen.of_executors(NOW_MS)] == [2, 3]
