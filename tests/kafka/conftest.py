"""Fixtures of fault tests: a stream and a producer over a cluster, and a secured broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_kafka_meta.write import transactional_producer
from pyspark_kafka_meta.write.exactly_once import step_runner
from tests.kafka.cluster_tools import Cluster, create_topic, log_ends
from tests.kafka.harness import PARTITIONS, OpenWorker, Scene, SteadyProducer, Stream, Worker, running
from tests.kafka.secured_kafka import SecuredKafka, secured_kafka


@pytest.fixture(autouse=True)
def patient_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort that takes too long is repeated for the next batch. Most tests have none."""
    for module in (step_runner, transactional_producer):
        monkeypatch.setattr(module, "ABORT_S", 60.0)


@pytest.fixture
def stage(
    kafka: Cluster, wait_for: Callable[..., object], tmp_path: Path
) -> Callable[..., AbstractContextManager[Scene]]:
    """Opens a scene: `with stage(topic) as scene`. The producer writes to `partitions` partitions of the first topic.
    `options` configure the stream."""

    def open_scene(topic: str, *others: str, partitions: int = 3, **options: str) -> AbstractContextManager[Scene]:
        servers = kafka.bootstrap_servers
        stream = Stream(servers, [topic, *others], tmp_path, **options)
        return running(stream, SteadyProducer(servers, topic, partitions), wait_for)

    return open_scene


@pytest.fixture
def open_worker(kafka: Cluster) -> Iterator[OpenWorker]:
    """Opens a worker for tasks that write to a new topic. `replicas` are of each partition, by default all brokers, of
    which each leads as many partitions as the others. `config` is of the topic, `options` of the sink."""
    with ExitStack() as stack:

        def open_one(
            replicas: Sequence[Sequence[int]] = (), config: Mapping[str, str] | None = None, **options: str
        ) -> Worker:
            topic, ids = f"written-{uuid.uuid4().hex}", kafka.broker_ids
            in_turn = [ids[number % len(ids) :] + ids[: number % len(ids)] for number in range(PARTITIONS)]
            create_topic(kafka, topic, replicas or in_turn, config)
            log_ends(kafka.bootstrap_servers, topic)  # the leaders lead: no first request is refused
            worker = Worker(kafka.bootstrap_servers, topic, **options)
            stack.callback(worker.client.close)
            return worker

        yield open_one


@pytest.fixture(scope="module")
def secured_broker() -> Iterator[SecuredKafka]:
    with secured_kafka() as cluster:
        yield cluster


@pytest.fixture
def secured(request: pytest.FixtureRequest, secured_broker: SecuredKafka) -> SecuredKafka:
    """A secured broker, at the listener with the protocol of the test's parameter."""
    return replace(secured_broker, protocol=request.param)
