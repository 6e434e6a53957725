"""The scene of tests of clients, planners and task readers. Tests of reused workers use `ReaderScene`."""

from __future__ import annotations

import threading
import time

import pytest

from pyspark_kafka_meta.typed.registry import http as registry_http
from tests.unit.scene import Scene


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `time.sleep` of the test's thread is over at once, and afterwards it is so much later, as each pause between
    requests to a registry."""
    monotonic, sleep, slept_s, test = time.monotonic, time.sleep, list[float](), threading.get_ident()

    def pause(seconds: float) -> None:
        """Threads that earlier tests left sleep as ever: else they would turn the clock forward."""
        (slept_s.append if threading.get_ident() == test else sleep)(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    monkeypatch.setattr(registry_http, "sleep", pause)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + sum(slept_s))


@pytest.fixture
def topics_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver asks no broker for the topic of a write."""
    from pyspark_kafka_meta.spark import batch_writer, stream_writer

    for module in (batch_writer, stream_writer):
        monkeypatch.setattr(module, "require_topic", lambda _: None)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Topic t with twelve records in each partition."""
    made = Scene(monkeypatch)
    made.fill()
    return made
