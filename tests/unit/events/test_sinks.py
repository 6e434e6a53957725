"""No read waits long for a slow sink, and the events that a slow sink loses are counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import NoReturn

import pytest

from pyspark_kafka_meta.errors import OptionError, RecordTooLargeError
from pyspark_kafka_meta.events import sinks
from pyspark_kafka_meta.events.event import Event, Origin, Role
from pyspark_kafka_meta.events.publisher import TopicSink, new_publisher
from pyspark_kafka_meta.events.sinks import MAX_QUEUED_BATCHES, WAIT_S, BackgroundSink, CountedSink, LocalFolder
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import EventsOptions
from tests.unit.written_events import made

TIMEOUT_S = 60


class SlowSink:
    """Writes batches once `may_write` is set."""

    def __init__(self) -> None:
        self.is_called = threading.Event()
        self.may_write = threading.Event()
        self.written: Queue[tuple[int, int]] = Queue()
        self.is_closed = threading.Event()

    def write(self, events: Sequence[Event]) -> None:
        self.is_called.set()
        self.may_write.wait(TIMEOUT_S)
        for event in events:
            self.written.put((event.sequence, event.dropped_before))

    def close(self) -> None:
        self.is_closed.set()

    def next(self) -> tuple[int, int]:
        """Sequence of the next written event, and the losses that it reports."""
        return self.written.get(timeout=TIMEOUT_S)


@pytest.fixture
def slow() -> Iterator[SlowSink]:
    sink = SlowSink()
    yield sink
    sink.may_write.set()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The timeouts of all waits of sinks. The waits return at once."""
    waited: list[float | None] = []

    class ImpatientEvent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return self.is_set()

    class UnjoinedThread(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            waited.append(timeout)

    monkeypatch.setattr(sinks, "threading", SimpleNamespace(Event=ImpatientEvent, Thread=UnjoinedThread))
    return waited


def test_slow_sink_delays_only_the_first_task_and_briefly(slow: SlowSink, waits: list[float | None]) -> None:
    sink = BackgroundSink(slow)
    for sequence in range(1, 10):
        sink.write([made("c0ffee", sequence)])

    assert waits == [WAIT_S]
    slow.may_write.set()
    sink.close()
    assert [slow.next() for _ in range(9)] == [(sequence, 0) for sequence in range(1, 10)]
    assert slow.is_closed.wait(TIMEOUT_S)


def test_events_that_do_not_fit_the_queue_are_counted(slow: SlowSink) -> None:
    sink = BackgroundSink(slow)
    sink.write([made("c0ffee", 1)])
    assert slow.is_called.wait(TIMEOUT_S)
    queued = range(2, 2 + MAX_QUEUED_BATCHES)
    for sequence in (*queued, 97, 98, 99):
        sink.write([made("c0ffee", sequence)])
    slow.may_write.set()
    assert [slow.next() for _ in (1, *queued)] == [(sequence, 0) for sequence in (1, *queued)]
    sink.write([made("c0ffee", 100)])

    assert slow.next() == (100, 3)


@pytest.mark.parametrize(
    ("part", "method", "error"),
    [
        ("_sink", "write", MemoryError()),
        ("_sink", "write", ValueError("no JSON")),
        ("_sink", "write", SystemExit()),
        ("_losses", "report_in", MemoryError()),
    ],
)
def test_no_error_of_a_sink_ends_its_thread(
    slow: SlowSink,
    part: str,
    method: str,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: Sequence[Event]) -> NoReturn:
        raise error

    slow.may_write.set()
    monkeypatch.setattr(sinks, "WAIT_S", TIMEOUT_S)
    sink = BackgroundSink(slow)
    with monkeypatch.context() as failing:
        failing.setattr(getattr(sink._sink, part), method, fail)
        sink.write([made("c0ffee", 1), made("c0ffee", 2)])
        sink.write([made("c0ffee", 3)])
    sink.write([made("c0ffee", 4)])
    sink.write([made("c0ffee", 5)])
    sink.close()

    assert [slow.next(), slow.next()] == [(4, 3), (5, 0)]
    levels = [record.levelname for record in caplog.records if record.name == sinks.logger.name]
    assert levels == ["WARNING"], "once, until a write succeeds"


def test_events_of_a_large_batch_are_counted_if_memory_ends(slow: SlowSink, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Sequence[Event]) -> NoReturn:
        raise RecordTooLargeError("too large")

    def report_in(events: Sequence[Event]) -> Sequence[Event]:
        if len(events) == 1:
            raise MemoryError
        return events

    slow.may_write.set()
    sink = CountedSink(slow)
    with monkeypatch.context() as failing:
        failing.setattr(slow, "write", refuse)
        failing.setattr(sink._losses, "report_in", report_in)
        sink.write([made("c0ffee", 1), made("c0ffee", 2)])
    sink.write([made("c0ffee", 3)])

    assert slow.next() == (3, 2)


def test_thread_that_ended_for_want_of_memory_is_started_again(slow: SlowSink, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    slow.may_write.set()
    sink = BackgroundSink(slow)
    first = sink._thread
    assert first is not None
    with monkeypatch.context() as failing:
        failing.setattr(slow, "write", fail)
        failing.setattr(sinks.logger, "warning", fail)
        sink.write([made("c0ffee", 1)])
        first.join(TIMEOUT_S)
    sink.write([made("c0ffee", 2)])
    sink.write([made("c0ffee", 3)])

    assert [slow.next(), slow.next()] == [(2, 1), (3, 0)]
    sink.close()


def delay_s(options: EventsOptions) -> float:
    """How long nine flushes and a close take."""
    publisher = new_publisher(options, Origin(role=Role.READER))
    start = time.monotonic()
    for sequence in range(1, 10):
        publisher.publish(made("c0ffee", sequence))
        publisher.flush()
    publisher.close()
    return time.monotonic() - start


def test_hanging_local_folder_delays_a_read_briefly(
    tmp_path: Path, waits: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_return = threading.Event()
    monkeypatch.setattr(LocalFolder, "write", lambda *_: may_return.wait(TIMEOUT_S))
    waited_s = delay_s(EventsOptions(str(tmp_path), None, ()))
    may_return.set()

    assert waits == [WAIT_S, WAIT_S], "the first flush, and close"
    assert waited_s < TIMEOUT_S / 2


def test_hanging_login_delays_a_read_briefly(waits: list[float | None], monkeypatch: pytest.MonkeyPatch) -> None:
    may_fail, is_closed = threading.Event(), threading.Event()

    def write(*_: object) -> NoReturn:
        may_fail.wait(TIMEOUT_S)
        raise OptionError("no token came")

    monkeypatch.setattr(TopicSink, "_write", write)
    monkeypatch.setattr(TopicSink, "close", lambda _: is_closed.set())
    waited_s = delay_s(EventsOptions(None, "events", (Address("127.0.0.1", 1),)))
    may_fail.set()

    assert is_closed.wait(TIMEOUT_S)
    assert waits == [WAIT_S, WAIT_S], "the first flush, and close"
    assert waited_s < TIMEOUT_S / 2


def test_close_waits_for_the_thread(slow: SlowSink, monkeypatch: pytest.MonkeyPatch) -> None:
    close, join, is_joined = slow.close, threading.Thread.join, threading.Event()
    slow.may_write.set()
    monkeypatch.setattr(sinks, "WAIT_S", TIMEOUT_S)
    monkeypatch.setattr(slow, "close", lambda: (is_joined.wait(TIMEOUT_S), close()))
    monkeypatch.setattr(threading.Thread, "join", lambda *arguments: (is_joined.set(), join(*arguments)))
    sink = BackgroundSink(slow)
    sink.write([made("c0ffee", 1)])
    sink.close()

    assert slow.is_closed.is_set()


def test_events_are_counted_as_lost_until_a_thread_can_be_started(
    slow: SlowSink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    slow.may_write.set()
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        BackgroundSink(slow).close()
        sink = BackgroundSink(slow)
        for sequence in (1, 2):
            sink.write([made("c0ffee", sequence)])
    sink.write([made("c0ffee", 3)])
    sink.close()

    assert slow.next() == (3, 2)
    levels = [record.levelname for record in caplog.records if record.name == sinks.logger.name]
    assert levels == ["WARNING", "WARNING"], "one for each sink"
