"""Bad networks, records larger than the fetch limits, quotas: a stream continues, delayed at most."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.cluster_tools import all_brokers_know, poll_until, set_quota
from tests.kafka.harness import Scene, SteadyProducer, Stream, running
from tests.tcp_proxy import Network, TcpProxy

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

BROKERS = 2
USER = "alice"
SHORT_TIMEOUTS = {
    "kafka.request.timeout.ms": "3000",
    "kafka.socket.connection.setup.timeout.ms": "2000",
    "kafka.fetch.max.wait.ms": "100",
}


@dataclass(frozen=True, slots=True)
class ProxiedKafka:
    """Brokers behind proxies. Producers and administrators connect without the proxies.

    Attributes:
        proxies: by node id.
    """

    kafka: LocalKafka
    proxies: dict[int, TcpProxy]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(str(proxy.address) for proxy in self.proxies.values())

    def create_topic(self, partitions: int = 2, config: dict[str, str] | None = None) -> str:
        """Broker n of `broker_ids` leads partition n."""
        topic, ids = f"network-{uuid.uuid4().hex}", self.kafka.broker_ids
        replicas = [[ids[number % BROKERS], ids[(number + 1) % BROKERS]] for number in range(partitions)]
        admin = AdminClient({"bootstrap.servers": self.kafka.admin_servers})
        request = NewTopic(topic, partitions, replica_assignment=replicas, config=config or {})
        admin.create_topics([request])[topic].result(60)
        poll_until(lambda: all_brokers_know(self.kafka.admin_servers, topic, partitions))
        return topic

    def stream(self, topic: str, folder: Path, **options: str) -> Stream:
        login = self.kafka.client_options(USER)
        return Stream(self.bootstrap_servers, [topic], folder, **{**SHORT_TIMEOUTS, **login, **options})


@pytest.fixture(scope="module")
def proxied() -> Iterator[ProxiedKafka]:
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy()) for _ in range(BROKERS)]
        ports = [proxy.address.port for proxy in proxies]
        users = {USER: "secret"}
        kafka = LocalKafka(
            BROKERS, security="SASL_PLAINTEXT", mechanisms=["PLAIN"], users=users, advertised_ports=ports
        )
        for proxy, node_id in zip(proxies, kafka.broker_ids, strict=True):
            proxy.target = kafka.address(node_id)
        stack.enter_context(kafka)
        yield ProxiedKafka(kafka, dict(zip(kafka.broker_ids, proxies, strict=True)))


@pytest.fixture
def stage(
    proxied: ProxiedKafka, wait_for: Callable[..., Any], tmp_path: Path
) -> Iterator[Callable[[], AbstractContextManager[Scene]]]:
    def open_scene() -> AbstractContextManager[Scene]:
        topic = proxied.create_topic()
        producer = SteadyProducer(proxied.kafka.admin_servers, topic, BROKERS)
        return running(proxied.stream(topic, tmp_path), producer, wait_for)

    yield open_scene
    for proxy in proxied.proxies.values():
        proxy.network = Network.GOOD


ROUNDS = 3
"""The network is bad for this many refreshes: the first may have been due anyway."""
BROKEN = [network for network in Network if network not in (Network.GOOD, Network.SLOW)]


@pytest.mark.parametrize("network", BROKEN, ids=lambda network: network.name.lower())
def test_r14_a_bad_network_to_one_leader_is_survived(
    proxied: ProxiedKafka, stage: Callable[[], AbstractContextManager[Scene]], network: Network
) -> None:
    broken = proxied.kafka.broker_ids[0]
    with stage() as scene:
        before = refreshes(scene)
        proxied.proxies[broken].network = network
        scene.wait_for(lambda: refreshes(scene) >= before + ROUNDS)
        proxied.proxies[broken].network = Network.GOOD
        scene.read_on()
    scene.assert_invariants()


def refreshes(scene: Scene) -> int:
    """Metadata responses that both caches have applied."""
    clients = (scene.stream.planner_client, scene.stream.reader_client)
    return sum(client.cache.snapshot.generation for client in clients)


def test_r14_a_slow_network_is_read(proxied: ProxiedKafka, stage: Callable[[], AbstractContextManager[Scene]]) -> None:
    with stage() as scene:
        for proxy in proxied.proxies.values():
            proxy.network = Network.SLOW
        scene.read_on()
    scene.assert_invariants()


def test_r20_a_client_over_its_quota_is_slowed_and_loses_nothing(proxied: ProxiedKafka, tmp_path: Path) -> None:
    topic = proxied.create_topic(1)
    written = [f"{number}-" + "x" * 50_000 for number in range(60)]
    producer = Producer({"bootstrap.servers": proxied.kafka.admin_servers, "log_level": 0})
    for text in written:
        producer.produce(topic, text, partition=0)
    assert producer.flush(30) == 0
    set_quota(proxied.kafka, USER, "consumer_byte_rate", 200_000)
    stream = proxied.stream(topic, tmp_path, **{"kafka.max.partition.fetch.bytes": "500000"})
    try:
        stream.run_until(lambda: len(stream.rows) == len(written), timeout_s=60)
        stream.reader_client.cache.refresh(RefreshReason.ON_DEMAND, time.monotonic() + 10)
        stream.reader_client.publisher.flush()
    finally:
        set_quota(proxied.kafka, USER, "consumer_byte_rate", None)
        stream.close()
    assert [row.value for row in stream.rows] == written
    assert sum(event["fetch_throttle_ms"] for event in stream.events()) > 0
