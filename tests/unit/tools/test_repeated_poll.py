"""A thread that polls goes on after errors, and holds up no end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_kafka_meta.tools import repeated_poll
from pyspark_kafka_meta.tools.repeated_poll import RepeatedPoll


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
    monkeypatch.setattr(repeated_poll, "CLOSE_TIMEOUT_S", 0.01)
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
