"""The fixtures that pytest finds in this package. They import nothing until a test uses them.

To configure a cluster, define a fixture of the same name in your `conftest.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark_kafka_meta.testing import LocalKafka, MockCluster


@pytest.fixture
def mock_kafka() -> Iterator[MockCluster]:
    """Three mock brokers without transactions in this process, for one test."""
    from pyspark_kafka_meta.testing import MockCluster

    with MockCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def local_kafka() -> Iterator[LocalKafka]:
    """Apache Kafka with three brokers, for all tests of a process. `create_topic` makes topics for one test; a test
    that breaks brokers calls `restore` at its end."""
    from pyspark_kafka_meta.testing import LocalKafka

    with LocalKafka() as cluster:
        yield cluster


@pytest.fixture
def kafka_topic(local_kafka: LocalKafka) -> str:
    """The name of a new topic of `local_kafka` with three partitions."""
    return local_kafka.create_topic(partitions=3)
