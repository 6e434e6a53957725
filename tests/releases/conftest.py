"""A cluster of each Kafka release in RELEASES, instead of the cluster that other tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.conftest import open_worker, patient_aborts

__all__ = ["open_worker", "patient_aborts"]

RELEASES = os.environ.get("RELEASES", "4.1.1").split()
QUICK_FAILOVER = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "zookeeper.session.timeout.ms": "4000",
}


@pytest.fixture(scope="session", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in RELEASES])
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def local_kafka(release: str) -> Iterator[LocalKafka]:
    with LocalKafka(config=QUICK_FAILOVER, version=release) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka(local_kafka: LocalKafka) -> LocalKafka:
    return local_kafka
