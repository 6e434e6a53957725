"""A thread that polls goes on after errors, and holds up no end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.tools import event_sources
from pyspark_kafka_meta.tools.demo import query
from pyspark_kafka_meta.tools.demo.query import ROUNDS_PER_S, RecordFeed
from pyspark_kafka_meta.tools.event_sources import RepeatedPoll
from pyspark_kafka_meta.tools.page.state_poller import CLUSTER_POLL_S, POLL_S, ClusterPoll, StatePoller

CLUSTER: Any = SimpleNamespace(options={"kafka.bootstrap.servers": "b:9"})


class Poll(RepeatedPoll):
    """Polls `get`; an error ends it if `ends` is true."""

    def __init__(self, get: Callable[[], object], ends: bool = False) -> None:
        super().__init__("kafkameta-test-poll", 0.0)
        self.polls = 0
        self.errors: list[Exception] = []
        self._get, self._ends = get, ends

    def poll(self) -> None:
        self.polls += 1
        self._get()

    def on_error(self, error: Exception) -> bool:
        self.errors.append(error)
        return not self._ends


@pytest.mark.parametrize(("ends", "is_over"), [(False, lambda poll: poll.polls > 3), (True, lambda poll: poll.errors)])
def test_an_error_ends_polls_only_if_it_should(ends: bool, is_over: Any, wait_for: Callable[..., Any]) -> None:
    with Poll(lambda: 1 / 0, ends) as poll:
        wait_for(lambda: is_over(poll))
        if ends:
            wait_for(lambda: "kafkameta-test-poll" not in {thread.name for thread in threading.enumerate()})

    assert len(poll.errors) == 1 if ends else len(poll.errors) > 2


def test_a_poll_that_hangs_does_not_hold_up_the_end_and_its_error_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Poll, "close_timeout_s", 0.01)
    asked, responded = threading.Event(), threading.Event()

    def hang() -> None:
        asked.set()
        responded.wait(60)
        raise ConnectionError("what is polled is closed")

    with Poll(hang) as poll:
        assert asked.wait(60)
        began = time.monotonic()
    assert time.monotonic() - began < 30
    responded.set()
    poll._thread.join(60)

    assert (poll.polls, poll.errors) == (1, [])


@pytest.mark.parametrize(
    ("poll", "took_s", "pause_s"),
    [
        (StatePoller(list, False), 0.25, POLL_S - 0.25),  # type: ignore[arg-type]
        (StatePoller(list, False), 5.0, 0.0),  # type: ignore[arg-type]
        (ClusterPoll(list, lambda: None), 0.25, CLUSTER_POLL_S),
        (ClusterPoll(list, lambda: None), 5.0, CLUSTER_POLL_S),
        (RecordFeed(CLUSTER), 5.0, 1 / ROUNDS_PER_S),
    ],
)
def test_brokers_that_respond_late_get_a_pause(
    poll: RepeatedPoll, took_s: float, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, pauses = 100.0, list[float]()

    def respond_late() -> None:
        nonlocal now_s
        now_s += took_s
        raise ConnectError("no broker responded")

    monkeypatch.setattr(event_sources, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(query, "client_without_events", MagicMock())
    monkeypatch.setattr(poll, "poll", respond_late)
    stopped = SimpleNamespace(is_set=lambda: len(pauses) == 2, wait=pauses.append)
    monkeypatch.setattr(poll, "_stopped", stopped)
    poll._run()

    assert pauses == [pause_s] * 2


def test_the_demos_feed_closes_its_client_after_its_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client has one thread."""
    client, began, may_end = MagicMock(), threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        may_end.wait(60)

    monkeypatch.setattr(query, "client_without_events", client)
    feed = RecordFeed(CLUSTER)
    assert not client.called
    monkeypatch.setattr(feed, "poll", hang)
    monkeypatch.setattr(feed, "close_timeout_s", 0.01)
    with feed:
        assert began.wait(60)
    assert not client().close.called
    may_end.set()
    feed._thread.join(60)
    assert client().close.called
