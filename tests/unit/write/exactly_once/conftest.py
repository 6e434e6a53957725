"""The scene of tests of committers."""

from __future__ import annotations

import pytest

from tests.unit.write.exactly_once.commit_scene import CommitScene


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> CommitScene:
    return CommitScene(monkeypatch)
