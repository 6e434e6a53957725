"""The scene of tests of clients and planners. Tests of task readers use `ReaderScene`."""

from __future__ import annotations

import time

import pytest

from tests.unit.scene import Scene


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `time.sleep` is over at once, and afterwards it is so much later."""
    monotonic, slept_s = time.monotonic, list[float]()
    monkeypatch.setattr(time, "sleep", slept_s.append)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + sum(slept_s))


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Topic t with twelve records in each partition."""
    made = Scene(monkeypatch)
    made.fill()
    return made
