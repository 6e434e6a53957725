"""Fixtures of fault tests: a stream and a producer over a cluster that the test breaks, and a secured broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.harness import Scene, SteadyProducer, Stream, running
from tests.kafka.secured_kafka import SecuredKafka, secured_kafka


@pytest.fixture
def stage(
    breakable_kafka: LocalKafka, wait_for: Callable[..., object], tmp_path: Path
) -> Callable[..., AbstractContextManager[Scene]]:
    """Opens a scene: `with stage(topic) as scene`. The producer writes to `partitions` partitions of the first topic.
    `options` configure the stream."""

    def open_scene(topic: str, *others: str, partitions: int = 3, **options: str) -> AbstractContextManager[Scene]:
        servers = breakable_kafka.bootstrap_servers
        stream = Stream(servers, [topic, *others], tmp_path, **options)
        return running(stream, SteadyProducer(servers, topic, partitions), wait_for)

    return open_scene


@pytest.fixture(scope="session")
def secured(request: pytest.FixtureRequest) -> Iterator[SecuredKafka]:
    """A secured broker with the protocol of the test's parameter."""
    with secured_kafka(request.param) as cluster:
        yield cluster
