"""The scene of tests of clients and planners. Tests of task readers use `ReaderScene`."""

from __future__ import annotations

import pytest

from tests.unit.scene import Scene


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Topic t with twelve records in each partition."""
    made = Scene(monkeypatch)
    made.fill()
    return made
