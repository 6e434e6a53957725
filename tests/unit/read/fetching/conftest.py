"""The scene in which tasks are tested."""

from __future__ import annotations

import pytest

from tests.unit.scene import Scene


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Topic t, without a record yet."""
    return Scene(monkeypatch)
