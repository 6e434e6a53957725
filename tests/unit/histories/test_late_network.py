"""The clock, the network and the faults of histories."""

from __future__ import annotations

import math
import random

import pytest

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    LATEST_TIMESTAMP,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
)
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.model import TopicPartition
from tests.unit.fake_cluster import FakeCluster
from tests.unit.fake_network import FakeClock, FakeNetwork
from tests.unit.histories.faults import Faults
from tests.unit.histories.reading_history import ReadingHistory
from tests.unit.histories.writing_history import CODES, WritingHistory
from tests.unit.logs import batch

T0 = TopicPartition("t", 0)
END = OffsetsRequest((OffsetQuery(T0, LATEST_TIMESTAMP),))


@pytest.fixture
def network() -> FakeNetwork:
    """Topic t with a partition that broker 1 leads. Responses take 0.1 s."""
    cluster = FakeCluster()
    cluster.create_topic("t")
    made = FakeNetwork(cluster, FakeClock(), random.Random(0))
    made.set_latencies([0.1])
    return made


def ask(network: FakeNetwork) -> float:
    """Ask broker 1 for the end of the log. Returns the time."""
    network.offsets.send(network.cluster.brokers[1], END, network.clock.now + 30)
    return network.clock.now


def test_clock_ticks_at_each_look_of_a_client(network: FakeNetwork) -> None:
    first, second = network.clock(), network.clock()
    assert first < second == network.clock.now


def test_clock_calls_each_action_at_its_own_time(network: FakeNetwork) -> None:
    began, times = network.clock.now, list[float]()
    for seconds in (2.0, 1.0):
        network.clock.at(seconds, lambda: times.append(network.clock.now - began))
    network.clock.sleep(5)
    assert times == pytest.approx([1, 2])
    assert network.clock.now == began + 5


def test_response_takes_the_latency(network: FakeNetwork) -> None:
    sent_at = ask(network)
    assert network.offsets.receive([1], sent_at + 0.05) is None
    assert isinstance(network.offsets.receive([1], sent_at + 1), OffsetsResponse)
    assert network.clock.now == pytest.approx(sent_at + 0.1)


def test_response_that_has_arrived_needs_no_wait(network: FakeNetwork) -> None:
    ask(network)
    network.clock.sleep(5)
    now = network.clock()
    assert network.offsets.receive([1], now) is not None
    assert network.clock.now == now


def test_broker_that_hangs_for_a_while_responds_after_it(network: FakeNetwork) -> None:
    sent_at = ask(network)
    network.clock.at(0.05, lambda: network.hung.add(1))
    network.clock.at(3, lambda: network.hung.discard(1))
    assert isinstance(network.offsets.receive([1], sent_at + 10), OffsetsResponse)
    assert network.clock.now == pytest.approx(sent_at + 3)


def test_lost_connection_ends_the_wait_of_each_client(network: FakeNetwork) -> None:
    other = network.another()
    sent_at = ask(network)
    ask(other)
    network.clock.at(0.05, lambda: network.break_connections(1))
    for client in (network, other):
        failure = client.offsets.receive([1], math.inf)
        assert isinstance(failure, RequestFailure)
        assert isinstance(failure.error, ConnectError)
    assert network.clock.now == pytest.approx(sent_at + 0.05)


@pytest.mark.parametrize("handled", [0, 1, 2])
def test_broker_handles_the_oldest_requests_before_a_connection_breaks(network: FakeNetwork, handled: int) -> None:
    for number in range(2):
        entry = ProducePartition(T0, network.cluster.topics["t"].topic_id, batch([str(number)]))
        network.produce.send(network.cluster.brokers[1], ProduceRequest((entry,), -1, 1000), network.clock.now + 30)
    network.break_connections(1, handled)
    assert network.cluster.bounds(T0) == (0, handled)


def test_metadata_takes_the_latency(network: FakeNetwork) -> None:
    began = network.clock.now
    network.send_metadata(network.cluster.brokers[1].address, ["t"], began + 3)
    assert network.receive_metadata(began + 0.05) is None
    assert network.receive_metadata(began + 1) is not None
    assert network.clock.now == pytest.approx(began + 0.1)
    assert network.metadata_sent == [began]


def test_all_faults_end_when_the_brokers_are_healthy(network: FakeNetwork) -> None:
    faults = Faults(network, random.Random(0), CODES)
    faults.start(list(faults.kinds), 0.02, 20)
    network.clock.sleep(20)
    assert {text.split()[0] for _, text in faults.notes} > faults.kinds.keys()
    assert not network.down | network.hung | network.hung_metadata
    assert not network.error_codes | network.throttles
    assert network.cluster.partition(T0).leader_id in network.cluster.brokers
    network.clock.sleep(60)
    assert max(at for at, _ in faults.notes) <= faults.healed_at


@pytest.mark.parametrize("history", [ReadingHistory, WritingHistory])
def test_same_seed_gives_the_same_history(history: type[ReadingHistory] | type[WritingHistory]) -> None:
    first, again, other = (history(seed).run().faults.notes for seed in (3, 3, 4))
    assert first == again
    assert first != other
