"""The clock, the wire and the faults of histories."""

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
from tests.unit.histories.faults import Faults
from tests.unit.histories.late_wire import LateWire, TickingClock
from tests.unit.histories.reading_history import ReadingHistory
from tests.unit.histories.writing_history import CODES, WritingHistory
from tests.unit.logs import batch

T0 = TopicPartition("t", 0)
END = OffsetsRequest((OffsetQuery(T0, LATEST_TIMESTAMP),))


@pytest.fixture
def wire() -> LateWire:
    """Topic t with a partition that broker 1 leads. Responses take 0.1 s."""
    cluster = FakeCluster()
    cluster.create_topic("t")
    clock = TickingClock(random.Random(0))
    clock.pause_share = 0.0
    made = LateWire(cluster, clock, random.Random(0))
    made.set_latencies([0.1])
    return made


def ask(wire: LateWire) -> float:
    """Ask broker 1 for the end of the log. Returns the time."""
    wire.offsets.send(wire.cluster.brokers[1], END, wire.clock.now + 30)
    return wire.clock.now


def test_clock_ticks_at_each_look_of_a_client(wire: LateWire) -> None:
    first, second = wire.clock.look(), wire.clock.look()
    assert first < second == wire.clock()


def test_clock_calls_each_action_at_its_own_time(wire: LateWire) -> None:
    began, times = wire.clock.now, list[float]()
    for seconds in (2.0, 1.0):
        wire.clock.at(seconds, lambda: times.append(wire.clock.now - began))
    wire.clock.sleep(5)
    assert times == pytest.approx([1, 2])
    assert wire.clock.now == began + 5


def test_response_takes_the_latency(wire: LateWire) -> None:
    sent_at = ask(wire)
    assert wire.offsets.receive([1], sent_at + 0.05) is None
    assert isinstance(wire.offsets.receive([1], sent_at + 1), OffsetsResponse)
    assert wire.clock.now == pytest.approx(sent_at + 0.1)


def test_response_that_has_arrived_needs_no_wait(wire: LateWire) -> None:
    ask(wire)
    wire.clock.sleep(5)
    now = wire.clock.look()
    assert wire.offsets.receive([1], now) is not None
    assert wire.clock.now == now


def test_broker_that_hangs_for_a_while_responds_after_it(wire: LateWire) -> None:
    sent_at = ask(wire)
    wire.clock.at(0.05, lambda: wire.hung.add(1))
    wire.clock.at(3, lambda: wire.hung.discard(1))
    assert isinstance(wire.offsets.receive([1], sent_at + 10), OffsetsResponse)
    assert wire.clock.now == pytest.approx(sent_at + 3)


def test_lost_connection_ends_the_wait_of_each_client(wire: LateWire) -> None:
    other = wire.another()
    sent_at = ask(wire)
    ask(other)
    wire.clock.at(0.05, lambda: wire.break_connections(1))
    for client in (wire, other):
        failure = client.offsets.receive([1], math.inf)
        assert isinstance(failure, RequestFailure)
        assert isinstance(failure.error, ConnectError)
    assert wire.clock.now == pytest.approx(sent_at + 0.05)


@pytest.mark.parametrize("handled", [0, 1, 2])
def test_broker_handles_the_oldest_requests_before_a_connection_breaks(wire: LateWire, handled: int) -> None:
    for number in range(2):
        entry = ProducePartition(T0, wire.cluster.topics["t"].topic_id, batch([str(number)]))
        wire.produce.send(wire.cluster.brokers[1], ProduceRequest((entry,), -1, 1000), wire.clock.now + 30)
    wire.break_connections(1, handled)
    assert wire.cluster.bounds(T0) == (0, handled)


def test_metadata_takes_the_latency(wire: LateWire) -> None:
    began = wire.clock.now
    wire.send_metadata(wire.cluster.brokers[1].address, ["t"], began + 3)
    assert wire.receive_metadata(began + 0.05) is None
    assert wire.receive_metadata(began + 1) is not None
    assert wire.clock.now == pytest.approx(began + 0.1)
    assert wire.metadata_sent == [began]


def test_all_faults_end_when_the_brokers_are_healthy(wire: LateWire) -> None:
    faults = Faults(wire, random.Random(0), CODES)
    faults.start(list(faults.kinds), 0.02, 20)
    wire.clock.sleep(20)
    assert {text.split()[0] for _, text in faults.notes} > faults.kinds.keys()
    assert not wire.down | wire.hung | wire.hung_metadata
    assert not wire.error_codes | wire.throttles
    assert wire.cluster.partition(T0).leader_id in wire.cluster.brokers
    wire.clock.sleep(60)
    assert max(at for at, _ in faults.notes) <= faults.healed_at


@pytest.mark.parametrize("history", [ReadingHistory, WritingHistory])
def test_same_seed_gives_the_same_history(history: type[ReadingHistory] | type[WritingHistory]) -> None:
    first, again, other = (history(seed).run().faults.notes for seed in (3, 3, 4))
    assert first == again
    assert first != other
