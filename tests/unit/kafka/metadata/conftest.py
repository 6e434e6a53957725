"""The scene of tests of caches."""

from __future__ import annotations

import pytest

from tests.unit.kafka.metadata.cache_scene import Scene


@pytest.fixture
def scene() -> Scene:
    """The cache has the metadata of a moment ago."""
    return Scene().bootstrapped()
