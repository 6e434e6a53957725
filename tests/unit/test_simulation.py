"""The simulation: counts of requests, small cases by hand, and the same decisions as `MetadataCache`."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import MetadataResponse as MetadataMessage
from kio.schema.metadata.v12.response import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic
from kio.serial import entity_writer

from benchmarks.simulation.clients import FIXED_BACKOFF, KAFKAMETA, NO_HINTS, PLAIN, TASK_TOPICS, CacheModel, Variant
from benchmarks.simulation.cluster import HOST_BYTES, SESSION_S, TOPIC_BYTES, Scenario, response_bytes
from benchmarks.simulation.figures import figures, requests_by_time
from benchmarks.simulation.run import Log, Simulation
from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.kafka.metadata.cache import MetadataCache
from pyspark_kafka_meta.kafka.protocol.frame_codec import milliseconds
from pyspark_kafka_meta.model import (
    Address,
    Broker,
    LeaderHint,
    MetadataResponse,
    PartitionMetadata,
    RefreshReason,
    TopicMetadata,
    TopicPartition,
)
from tests.unit.kafka.metadata.cache_scene import client_options

FRAME_BYTES = 4 + 4 + 1
"""Length, correlation id, and no tagged field."""

SMALL = Scenario(executors=10, brokers=6, topics=4, partitions=120, idle_topics=8, restarts=6, calm_s=30.0)
ONE = Scenario(
    executors=1,
    workers_per_executor=1,
    brokers=2,
    topics=1,
    partitions=1,
    idle_topics=0,
    restarts=1,
    calm_s=60.0,
    fetch_wait_s=0.0,
    lag_s=0.0,
)
ONE_KILLED = replace(ONE, abrupt=True)
SMALL_KILLED = replace(SMALL, abrupt=True)
VARIANTS = {variant.name: variant for variant in (KAFKAMETA, NO_HINTS, FIXED_BACKOFF, PLAIN, TASK_TOPICS)}


@cache
def simulated(scenario: Scenario, variant: Variant) -> Log:
    return Simulation(scenario, variant).run()


@pytest.mark.parametrize("scenario", [SMALL, SMALL_KILLED], ids=["controlled", "killed"])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_attempt_of_a_cache_is_one_request_at_one_broker_or_was_refused(name: str, scenario: Scenario) -> None:
    log = simulated(scenario, VARIANTS[name])

    requests = len(log.request_s)
    assert log.attempts == requests + log.refused
    assert requests <= log.responses + log.under_way <= requests + log.refused
    assert len(log.request_broker) == len(log.request_bytes) == requests
    assert log.refused > 0, "some were asked while they were down"


@pytest.mark.parametrize("scenario", [SMALL, SMALL_KILLED], ids=["controlled", "killed"])
def test_every_stall_heals(scenario: Scenario) -> None:
    log = simulated(scenario, KAFKAMETA)

    assert log.unhealed == 0
    assert len(log.heal_s) >= scenario.partitions, "each partition moved twice under its reader, who noticed"
    assert min(log.heal_s) > 0


def test_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    first, again, other = (Simulation(ONE, KAFKAMETA, seed).run() for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_kafkameta_heals_no_slower_and_asks_for_less_than_a_plain_client() -> None:
    ours, plain = (figures(simulated(SMALL, variant), SMALL.calm_s, SMALL.end_s) for variant in (KAFKAMETA, PLAIN))

    assert ours.heal_mean_ms <= plain.heal_mean_ms
    assert ours.heal_p99_ms <= plain.heal_p99_ms
    assert ours.mean_mb < plain.mean_mb
    assert ours.peak_mb < plain.peak_mb


def test_backoff_asks_for_a_fraction_while_a_killed_broker_stays_in_metadata() -> None:
    ours, fixed = (len(simulated(SMALL_KILLED, variant).request_s) for variant in (KAFKAMETA, FIXED_BACKOFF))

    assert ours < fixed / 2


def restart_requests(log: Log, scenario: Scenario) -> list[float]:
    """Seconds after the restart began, those of the move away alone."""
    return [round(at - scenario.calm_s, 3) for at in log.request_s if 0 <= at - scenario.calm_s < 15]


def test_by_hand_a_hint_heals_after_one_round_trip_and_is_confirmed_by_one_request() -> None:
    log = Simulation(ONE, KAFKAMETA).run()

    assert [round(heal_s, 3) for heal_s in log.heal_s] == [0.005, 0.005], "away, and back"
    assert len(restart_requests(log, ONE)) == 1


def test_by_hand_without_a_hint_it_takes_a_refresh_and_a_fetch() -> None:
    log = Simulation(ONE, NO_HINTS).run()

    assert [round(heal_s, 3) for heal_s in log.heal_s] == [0.010, 0.010]
    assert len(restart_requests(log, ONE)) == 1


def test_by_hand_a_fixed_backoff_asks_ninety_times_until_the_session_of_a_killed_broker_ends() -> None:
    # Noticed after 5 ms. Then each 105 ms (a response and the backoff) a request, and 5 ms later its response: the
    # first response after 9.3 s is number 90, at 9.355 s, and the fetch from the new leader takes 5 ms more.
    log = Simulation(ONE_KILLED, FIXED_BACKOFF).run()

    requests = restart_requests(log, ONE_KILLED)
    assert requests[:3] == [0.005, 0.11, 0.215]
    assert len(requests) == 90
    assert round(log.heal_s[0], 3) == 9.36


def test_by_hand_an_exponential_backoff_asks_a_dozen_times_and_is_a_pause_late_at_most() -> None:
    log = Simulation(ONE_KILLED, KAFKAMETA).run()

    assert 11 <= len(restart_requests(log, ONE_KILLED)) <= 15
    assert SESSION_S < log.heal_s[0] < SESSION_S + 1.1


def test_figures_count_by_seconds_of_the_span() -> None:
    log = Log()
    for time, broker in ((9.9, 0), (10.0, 0), (10.5, 1), (10.9, 1), (12.0, 0), (20.0, 0)):
        log.request_s.append(time)
        log.request_broker.append(broker)
        log.request_bytes.append(1_000_000)
    for since, heal in ((9.0, 5.0), (11.0, 0.25), (12.0, 0.75)):
        log.stall_s.append(since)
        log.heal_s.append(heal)

    row = figures(log, 10.0, 20.0)

    assert (row.mean, row.peak_1_s, row.peak_10_s, row.broker_peak_1_s) == (0.4, 3, 0.4, 2)
    assert (row.mean_mb, row.peak_mb) == (0.4, 3.0)
    assert (row.stalls, row.heal_mean_ms, row.heal_worst_ms) == (2, 500.0, 750.0)
    assert requests_by_time(log, 0.0, 35.0, 10).tolist() == [0.1, 0.4, 0.1]


def test_response_size_is_that_of_the_wire_format() -> None:
    replicas = {"leader_id": 1, "leader_epoch": 7, "replica_nodes": (1, 2, 3), "isr_nodes": (1, 2, 3)}
    partitions = tuple(
        MetadataResponsePartition(error_code=ErrorCode.none, partition_index=number, **replicas)
        for number in range(500)
    )
    topic = {"error_code": ErrorCode.none, "topic_id": UUID(int=7), "partitions": partitions}
    topics = tuple(MetadataResponseTopic(name=f"{number:0{TOPIC_BYTES}}", **topic) for number in range(20))
    address = {"host": "h" * HOST_BYTES, "port": 9092}
    brokers = tuple(MetadataResponseBroker(node_id=node_id, **address) for node_id in range(100))
    response = MetadataMessage(throttle_time=milliseconds(0), brokers=brokers, cluster_id="c" * 22, topics=topics)
    body = io.BytesIO()
    entity_writer(MetadataMessage)(body, response)

    assert response_bytes(100, 20, 10_000) == FRAME_BYTES + len(body.getvalue())


BROKERS = [Broker(node_id, Address(f"broker-{node_id}", 9092)) for node_id in range(5)]
PARTITIONS = [TopicPartition("t", number) for number in range(6)]


class Pair:
    """A `MetadataCache` and a `CacheModel` that live through the same."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.down: set[Address] = set()
        self.addresses: list[Address] = []
        self.epochs = [1] * len(PARTITIONS)
        self.known = [0] * len(PARTITIONS)
        bootstrap = [broker.address for broker in BROKERS[:2]]
        self.model = CacheModel(Variant("any"), bootstrap, 0, seed)
        self.cache = MetadataCache(
            self, client_options(*bootstrap), lambda fact: None, clock=lambda: self.now, rng=random.Random(seed)
        )
        self.cache.track(["t"])
        self.model.track(1, self.now)

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        self.addresses.append(address)

    def receive_metadata(self, deadline: float) -> MetadataResponse:
        if self.addresses[-1] in self.down:
            raise ConnectError(f"{self.addresses[-1]} is down")
        told = tuple(PartitionMetadata(number, epoch % 5, epoch) for number, epoch in enumerate(self.epochs))
        return MetadataResponse("c", 0, tuple(BROKERS), (TopicMetadata("t", UUID(int=1), told),), 12, 1, 40, 400)

    def not_leader(self, number: int) -> None:
        generation = self.cache.snapshot.generation
        self.cache.request_update(RefreshReason.NOT_LEADER, generation, PARTITIONS[number], 6, self.known[number] % 5)
        self.model.report(RefreshReason.NOT_LEADER, number, None, self.now)

    def connection_lost(self, number: int) -> None:
        node_id = self.known[number] % 5
        self.cache.request_update(RefreshReason.CONNECTION_LOST, self.cache.snapshot.generation, node_id=node_id)
        self.model.report(RefreshReason.CONNECTION_LOST, number, BROKERS[node_id].address, self.now)

    def hint(self, number: int) -> None:
        self.known[number] = self.epochs[number] = self.epochs[number] + 1
        leader, generation = BROKERS[self.known[number] % 5], self.cache.snapshot.generation
        assert self.cache.take_hint(
            PARTITIONS[number], LeaderHint(leader.node_id, self.known[number], leader), generation
        )
        self.model.take_hint(number, self.now)

    def nothing(self, number: int) -> None:
        """Time passes."""

    def refresh_if_due(self) -> None:
        if self.model.due_at(self.now) > self.now:
            return
        brokers = [broker.address for broker in BROKERS] if self.model.generation else []
        address = self.model.begin(brokers, self.now)
        self.cache.refresh_if_due(self.now + 60)
        assert self.addresses[-1] == address
        if address in self.down:
            self.model.refused(brokers, self.now)
            return
        newer = [number for number, epoch in enumerate(self.epochs) if epoch > self.known[number]]
        anything = bool(newer) or self.model.generation == 0
        self.model.on_response(self.model.reported.intersection(newer), anything, self.now)
        self.known = list(self.epochs)


@pytest.mark.parametrize("seed", range(10))
def test_a_simulated_cache_asks_whom_and_when_a_metadata_cache_does(seed: int) -> None:
    rng, pair = random.Random(seed), Pair(seed)
    pair.refresh_if_due()
    for step in range(400):
        pair.now += rng.choice([0.01, 0.05, 0.3, 2.0, 200.0])
        number = rng.randrange(len(PARTITIONS))
        if rng.random() < 0.3:
            pair.epochs[number] += 1
        if rng.random() < 0.1:
            pair.down = {broker.address for broker in rng.sample(BROKERS, rng.randrange(6))}
        events: list[Callable[[int], None]] = [pair.not_leader, pair.connection_lost, pair.hint, pair.nothing]
        rng.choice(events)(number)
        assert pair.cache.time_to_next_update_ms() == round((pair.model.due_at(pair.now) - pair.now) * 1000, 3), step
        pair.refresh_if_due()

    assert len(pair.addresses) == pair.model.attempts > 150
