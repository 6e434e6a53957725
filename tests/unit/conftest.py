"""The scene in which clients and planners are tested; task readers have another one."""

from __future__ import annotations

import pytest

from tests.unit.scene import Scene


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Topic t with twelve records in each partition."""
    made = Scene(monkeypatch)
    made.fill()
    return made
