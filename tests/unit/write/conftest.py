"""The scene of tests of writers."""

from __future__ import annotations

import pytest

from tests.unit.write.writer_scene import WriterScene


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> WriterScene:
    return WriterScene(monkeypatch)
