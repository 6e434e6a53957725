"""No read waits long for a place that is slow, and what that place is too slow for is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import NoReturn

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.metadata.refresh_events import Origin, RefreshEvent, Role
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import MetricsOptions
from pyspark_kafka_meta.telemetry import background_sink
from pyspark_kafka_meta.telemetry.background_sink import MAX_WAITING, WAIT_S, BackgroundSink
from pyspark_kafka_meta.telemetry.event_folders import LocalFolder
from pyspark_kafka_meta.telemetry.publisher_factory import new_publisher
from pyspark_kafka_meta.telemetry.topic_sink import TopicSink
from tests.unit.written_events import made

PATIENCE_S = 10


class SlowSink:
    """Takes a batch when it is let."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.may_go_on = threading.Event()
        self.told: Queue[tuple[int, int]] = Queue()
        self.is_closed = threading.Event()

    def write(self, events: Sequence[RefreshEvent]) -> None:
        self.is_asked.set()
        self.may_go_on.wait(PATIENCE_S)
        for one in events:
            self.told.put((one.sequence, one.dropped_before))

    def close(self) -> None:
        self.is_closed.set()

    def next(self) -> tuple[int, int]:
        """Sequence of the next event that was written, and the losses that it told."""
        return self.told.get(timeout=PATIENCE_S)


@pytest.fixture
def slow() -> Iterator[SlowSink]:
    sink = SlowSink()
    yield sink
    sink.may_go_on.set()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The time-outs of what sinks waited for, all of which pass at once."""
    waited: list[float | None] = []

    class Moment(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return self.is_set()

    class Worker(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            waited.append(timeout)

    monkeypatch.setattr(background_sink, "threading", SimpleNamespace(Event=Moment, Thread=Worker))
    return waited


def test_slow_store_holds_up_one_task_for_a_moment_and_the_next_not_at_all(
    slow: SlowSink, waits: list[float | None]
) -> None:
    sink = BackgroundSink(slow)
    for sequence in range(1, 10):
        sink.write([made("c0ffee", sequence)])

    assert waits == [WAIT_S]
    slow.may_go_on.set()
    sink.close()
    assert [slow.next() for _ in range(9)] == [(sequence, 0) for sequence in range(1, 10)]
    assert slow.is_closed.wait(PATIENCE_S)


def test_what_a_store_is_too_slow_for_is_counted(slow: SlowSink) -> None:
    sink = BackgroundSink(slow)
    sink.write([made("c0ffee", 1)])
    assert slow.is_asked.wait(PATIENCE_S)
    kept = range(2, 2 + MAX_WAITING)
    for sequence in (*kept, 97, 98, 99):
        sink.write([made("c0ffee", sequence)])
    slow.may_go_on.set()
    assert [slow.next() for _ in (1, *kept)] == [(sequence, 0) for sequence in (1, *kept)]
    sink.write([made("c0ffee", 100)])

    assert slow.next() == (100, 3)


def held_up_s(options: MetricsOptions) -> float:
    """How long nine flushes and the end take."""
    publisher = new_publisher(options, Origin(role=Role.READER))
    began = time.monotonic()
    for sequence in range(1, 10):
        publisher.publish(made("c0ffee", sequence))
        publisher.flush()
    publisher.close()
    return time.monotonic() - began


def test_a_local_folder_that_hangs_holds_up_a_read_for_a_moment(
    tmp_path: Path, waits: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(LocalFolder, "write", lambda *_: answers.wait(PATIENCE_S))
    waited_s = held_up_s(MetricsOptions(str(tmp_path), None, ()))
    answers.set()

    assert waits == [WAIT_S, WAIT_S], "the first flush, and the end"
    assert waited_s < PATIENCE_S / 2


def test_a_topic_whose_login_hangs_holds_up_a_read_for_a_moment(
    waits: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, ended = threading.Event(), threading.Event()

    def connect(_: TopicSink) -> NoReturn:
        may_go_on.wait(PATIENCE_S)
        raise OptionError("no token came")

    monkeypatch.setattr(TopicSink, "_connect", connect)
    monkeypatch.setattr(TopicSink, "close", lambda _: ended.set())
    waited_s = held_up_s(MetricsOptions(None, "events", (Address("127.0.0.1", 1),)))
    may_go_on.set()

    assert ended.wait(PATIENCE_S)
    assert waits == [WAIT_S, WAIT_S], "the first flush, and the end"
    assert waited_s < PATIENCE_S / 2


def test_the_end_waits_for_what_is_flushed_when_a_sink_is_closed(
    slow: SlowSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, join, is_waited_for = slow.close, threading.Thread.join, threading.Event()
    slow.may_go_on.set()
    monkeypatch.setattr(background_sink, "WAIT_S", PATIENCE_S)
    monkeypatch.setattr(slow, "close", lambda: (is_waited_for.wait(PATIENCE_S), close()))
    monkeypatch.setattr(threading.Thread, "join", lambda *arguments: (is_waited_for.set(), join(*arguments)))
    sink = BackgroundSink(slow)
    sink.write([made("c0ffee", 1)])
    sink.close()

    assert slow.is_closed.is_set()


def test_without_a_thread_to_write_with_events_are_lost_and_counted_until_there_is_one(
    slow: SlowSink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    slow.may_go_on.set()
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        BackgroundSink(slow).close()
        sink = BackgroundSink(slow)
        for sequence in (1, 2):
            sink.write([made("c0ffee", sequence)])
    sink.write([made("c0ffee", 3)])
    sink.close()

    assert slow.next() == (3, 2)
    told = [one.levelname for one in caplog.records if one.name == background_sink.__name__]
    assert told == ["WARNING", "WARNING"], "one for each sink"
