"""The registry of tests of typed values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_kafka_meta.testing.mock_registry import MockRegistry


@pytest.fixture
def registry() -> Iterator[MockRegistry]:
    with MockRegistry() as registry:
        yield registry
