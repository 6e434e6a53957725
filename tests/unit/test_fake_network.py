"""The fake network behaves as brokers do."""

from __future__ import annotations

import math
import random
from collections import deque

import pytest

from pyspark_kafka_meta.errors import ConnectError, RequestTimeoutError
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse
from pyspark_kafka_meta.kafka.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    OffsetQuery,
    OffsetsRequest,
    PartitionOffset,
)
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest
from pyspark_kafka_meta.model import LeaderHint
from tests.partitions import T0
from tests.read_cases import BATCH_SIZES, CASES, Described, Fetched, Listed, Log
from tests.unit.fake_cluster import FakeCluster
from tests.unit.fake_network import FakeClock, FakeNetwork, about_s
from tests.unit.logs import batch

BATCH = bytes(23) + (9).to_bytes(4, "big") + bytes(34)
"""The header of a record batch that claims ten records."""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_responses_are_those_of_the_table(case: Fetched | Listed | Described) -> None:
    """Real brokers agree on it."""
    network = FakeNetwork()
    topic_id = network.cluster.create_topic("t")
    for size in BATCH_SIZES:
        network.cluster.append(T0, batch(["v"] * size))
    brokers = network.cluster.brokers

    assert case.of(Log(network, network.clock, T0, topic_id, brokers[1], brokers[2], epoch=0)) == case.expected


def a_network() -> FakeNetwork:
    network = FakeNetwork()
    network.cluster.create_topic("t")
    network.cluster.append(T0, BATCH)
    network.cluster.append(T0, BATCH)
    return network


def an_entry(network: FakeNetwork, offset: int = 0, epoch: int = 0) -> FetchPartition:
    return FetchPartition(T0, network.cluster.topics["t"].topic_id, offset, epoch, -1, 1_000)


def send(network: FakeNetwork, *entries: FetchPartition, node_id: int = 1) -> None:
    request = FetchRequest(entries, max_wait_ms=500, min_bytes=1, max_bytes=1_000_000, read_committed=False)
    network.fetch.send(network.cluster.brokers[node_id], request, network.clock() + 30)


def fetched(network: FakeNetwork, entry: FetchPartition, node_id: int = 1) -> FetchedPartition:
    send(network, entry, node_id=node_id)
    response = network.fetch.receive([node_id], network.clock() + 30)
    assert isinstance(response, FetchResponse)
    return response.partitions[0]


def test_fetch_at_the_end_waits_and_is_empty() -> None:
    network = a_network()
    send(network, an_entry(network, offset=20))
    began = network.clock()

    assert network.fetch.receive([1], began + 0.2) is None
    response = network.fetch.receive([1], began + 30)
    assert isinstance(response, FetchResponse)
    assert (response.partitions[0].records, response.partitions[0].high_watermark) == (b"", 20)
    assert network.clock() == about_s(began + 0.5)


def test_old_leader_returns_a_leader_hint() -> None:
    network = a_network()
    network.cluster.move_leader(T0, 2)
    refused = fetched(network, an_entry(network))

    assert refused.error_code == 74
    assert refused.leader_hint == LeaderHint(2, 1, network.cluster.brokers[2])
    assert fetched(network, an_entry(network, epoch=2)).error_code == 75
    assert fetched(network, an_entry(network, epoch=-1)).error_code == 0, "an ex-leader serves who sends no epoch"


@pytest.mark.parametrize(("offset", "code"), [(4, 1), (10, 0), (20, 0), (21, 1)])
def test_fetch_outside_the_log_is_out_of_range(offset: int, code: int) -> None:
    network = a_network()
    del network.cluster.logs[T0][0]

    assert fetched(network, an_entry(network, offset=offset)).error_code == code


def test_each_scripted_code_is_returned_once() -> None:
    network = a_network()
    network.error_codes[T0] = deque([6])

    assert [fetched(network, an_entry(network)).error_code for _ in range(2)] == [6, 0]


def test_hung_broker_times_out_and_a_stopped_broker_fails_at_once() -> None:
    network = a_network()
    send(network, an_entry(network))
    began = network.clock()
    network.hung.add(1)
    failure = network.fetch.receive([1], began + 60)
    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, RequestTimeoutError)
    assert network.clock() == about_s(began + 30)

    network.down.add(1)
    send(network, an_entry(network))
    failure = network.fetch.receive([1], began + 60)
    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, ConnectError)
    assert network.clock() == about_s(began + 30)


def listed(network: FakeNetwork, node_id: int, timestamp: int) -> PartitionOffset:
    epoch = network.cluster.partition(T0).leader_epoch
    request = OffsetsRequest((OffsetQuery(T0, timestamp, epoch),), False)
    network.offsets.send(network.cluster.brokers[node_id], request, network.clock() + 1)
    response = network.offsets.receive([node_id], network.clock() + 1)
    assert isinstance(response, ApiResponse)
    return response.result[T0]


def test_new_leader_reports_no_end_before_the_start_of_its_epoch() -> None:
    network = a_network()
    network.replica_ends[2, T0] = 10
    network.cluster.move_leader(T0, 2)
    network.cluster.append(T0, BATCH)

    assert listed(network, 2, LATEST_TIMESTAMP).error_code == 78
    assert listed(network, 2, 2**62).error_code == 78, "the record may lie after its high watermark"
    assert listed(network, 2, 0).offset == 0
    assert listed(network, 2, EARLIEST_TIMESTAMP).error_code == 0
    network.replica_ends[2, T0] = 20
    assert listed(network, 2, LATEST_TIMESTAMP).offset == 20, "not the end of its log"
    del network.cluster.logs[T0][1:]
    assert listed(network, 2, LATEST_TIMESTAMP).offset == 10, "not after the end of a truncated log"


# --- brokers that are late, and change meanwhile ----------------------------------------------------------------------

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
    assert isinstance(network.offsets.receive([1], sent_at + 1), ApiResponse)
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
    assert isinstance(network.offsets.receive([1], sent_at + 10), ApiResponse)
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
