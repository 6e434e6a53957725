"""The calls of listeners of queries, outside of Spark's callbacks."""

from __future__ import annotations

import threading

import pytest

from pyspark_kafka_meta.tools.query_listeners import END_WAIT_S, MIN_END_WAIT_S, BackgroundCalls


def test_listeners_that_hang_share_the_time_that_the_end_of_a_run_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, waits_s, hang = 1_000.0, [], threading.Event()

    def join(_: threading.Thread, timeout_s: float) -> None:
        nonlocal now_s
        waits_s.append(timeout_s)
        now_s += timeout_s

    def call() -> None:
        hang.wait(60)

    monkeypatch.setattr(threading.Thread, "join", join)
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    for run_id in ("first", "first", "first", "second"):
        calls = BackgroundCalls("hangs")
        calls.put(call)
        calls.wait(run_id)
    hang.set()

    assert waits_s == [END_WAIT_S, MIN_END_WAIT_S, MIN_END_WAIT_S, END_WAIT_S]


def test_calls_are_made_once_a_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls, made = BackgroundCalls("test"), list[str]()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(threading.Thread, "start", refuse)
        calls.put(lambda: made.append("first"))
    calls.put(lambda: made.append("second"))
    calls.wait()

    assert made == ["first", "second"]
