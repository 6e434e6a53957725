"""KafkaNetwork against mock brokers: requests, responses, and how long each waits."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, ProtocolError, RequestTimeoutError
from pyspark_kafka_meta.kafka.network import connection, connection_diagnosis, in_flight_requests
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.apis import API_VERSIONS, FETCH, LIST_OFFSETS, METADATA
from pyspark_kafka_meta.kafka.protocol.fetch import FetchPartition, FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.frame_codec import request_schema
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    OffsetQuery,
    OffsetsRequest,
)
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.model import Address, Broker
from pyspark_kafka_meta.testing import MockCluster
from tests.partitions import T0, T1
from tests.wire.mock_brokers import LATER_S, SLOW_MS, SOON_S, Cluster, mock_brokers, only, rows, within
from tests.wire.scripted_broker import (
    TOPIC_ID,
    black_hole,
    fetch_frame,
    read_message,
    read_request,
    scripted_broker,
    send_versions,
)

T0_REQUEST = FetchRequest((FetchPartition(T0, TOPIC_ID, 0, 0, -1, 100),), 0, 1, 100, False)
"""To scripted brokers, which know the topic by this id."""
PATIENCE_MS = 60_000
"""Far longer than any test takes: a Fetch that is parked stays so."""


@pytest.fixture
def cluster(mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with mock_brokers(mock_cluster, monkeypatch) as made:
        yield made


@pytest.fixture
def network() -> Iterator[KafkaNetwork]:
    """To scripted brokers."""
    made = KafkaNetwork(ConnectionSettings("test", connect_timeout_ms=60_000, max_frame_bytes=1 << 24))
    yield made
    made.close()


# --- metadata ---------------------------------------------------------------------------------------------------------


def test_one_address_names_all_brokers_and_leaders(cluster: Cluster) -> None:
    response = cluster.learn()
    [topic] = response.topics

    assert [broker.node_id for broker in response.brokers] == [1, 2, 3]
    assert {str(broker.address) for broker in response.brokers} == set(cluster.mock.bootstrap_servers.split(","))
    assert [(partition.partition, partition.leader_id) for partition in topic.partitions] == [(0, 1), (1, 2)]
    assert (topic.name, topic.error_code, topic.topic_id is not None) == ("t", 0, True)
    assert response.api_version == METADATA.max_version
    assert min(response.request_bytes, response.response_bytes) > 20
    assert response.correlation_id > 1


def test_all_topics_or_none_can_be_asked_for(cluster: Cluster) -> None:
    cluster.mock.create_topic("u", partitions=1)
    ask = cluster.network.metadata

    assert {topic.name for topic in ask(cluster.broker(1).address, None, within(LATER_S)).topics} == {"t", "u"}
    assert ask(cluster.broker(1).address, [], within(LATER_S)).topics == ()


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_response_that_nobody_waits_for_is_not_taken_for_the_next(cluster: Cluster, monkeypatch: Any) -> None:
    cluster.produce(T0, "a", "b")

    def give_up(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(in_flight_requests, "next_events", give_up)
        cluster.offsets(1, OffsetQuery(T0, EARLIEST_TIMESTAMP))

    assert cluster.offsets(1, OffsetQuery(T0, LATEST_TIMESTAMP))[T0].offset == 2


def test_process_that_may_open_no_more_fails_that_request(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    request = OffsetsRequest((OffsetQuery(T1, LATEST_TIMESTAMP),), False)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socketpair", lambda: (_ for _ in ()).throw(OSError(24, "Too many open files")))
        cluster.network.offsets.send(cluster.broker(2), request, within(LATER_S))
    failure = cluster.network.offsets.receive([2], within(LATER_S))

    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, ConnectError)
    assert "raise the limit of open files" in str(failure.error)
    assert cluster.offsets(2, OffsetQuery(T1, LATEST_TIMESTAMP))[T1].offset == 0


# --- fetch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by_id", "version"), [(True, 16), (False, 12)])
def test_records_are_fetched_by_topic_id_or_by_name(cluster: Cluster, by_id: bool, version: int) -> None:
    cluster.produce(T1, "a", "b")
    response = cluster.fetch(2, cluster.ask(T1, by_id=by_id))
    partition = only(response)

    assert (partition.partition, partition.error_code, partition.high_watermark) == (T1, 0, 2)
    assert rows(partition) == [(0, "a"), (1, "b")]
    assert isinstance(response, FetchResponse)
    assert response.response_bytes > len(partition.records)
    assert [entry[2] for entry in cluster.sent if entry[1] == FETCH.key] == [version]


def test_old_leader_names_the_new_one_and_where_it_is(cluster: Cluster) -> None:
    cluster.mock.move_leader("t", 0, 3)
    partition = only(cluster.fetch(1, cluster.ask(T0)))

    assert partition.error_code in (6, 74)
    assert partition.leader_hint is not None
    assert partition.leader_hint.leader_id == 3
    assert partition.leader_hint.leader_epoch == cluster.epoch(T0) + 1
    assert partition.leader_hint.broker == cluster.broker(3)


# --- waiting for responses --------------------------------------------------------------------------------------------


def test_metadata_does_not_wait_behind_a_parked_fetch(cluster: Cluster) -> None:
    cluster.network.fetch.send(cluster.broker(1), cluster.ask(T0, wait_ms=PATIENCE_MS), within(LATER_S))
    cluster.learn()
    cluster.offsets(1, OffsetQuery(T0, LATEST_TIMESTAMP))

    assert cluster.network.fetch.receive([1], within(0)) is None, "the broker still waits for records"


def test_only_the_brokers_named_are_waited_for(cluster: Cluster) -> None:
    cluster.produce(T1, "a")
    cluster.network.fetch.send(cluster.broker(1), cluster.ask(T0, wait_ms=PATIENCE_MS), within(LATER_S))
    cluster.network.fetch.send(cluster.broker(2), cluster.ask(T1, wait_ms=PATIENCE_MS), within(LATER_S))

    assert cluster.network.fetch.receive([1], within(SOON_S)) is None
    assert cluster.network.fetch.receive([2], within(LATER_S)) is not None


def test_dropped_fetch_gets_no_response_and_the_next_one_does(cluster: Cluster) -> None:
    for value in ("a", "b"):
        cluster.produce(T0, value)
    cluster.network.fetch.send(cluster.broker(1), cluster.ask(T0), within(LATER_S))
    cluster.network.fetch.drop(1)
    cluster.network.fetch.drop(1)

    assert cluster.network.fetch.receive([1], within(SOON_S)) is None
    assert rows(only(cluster.fetch(1, cluster.ask(T0, offset=1)))) == [(1, "b")]


def test_second_fetch_does_not_get_the_response_to_the_first(cluster: Cluster) -> None:
    """As when a task ends early and its worker starts the next task."""
    cluster.produce(T0, "a", "b")
    for partition in (T0, T1):
        cluster.network.fetch.send(cluster.broker(1), cluster.ask(partition), within(LATER_S))
    response = cluster.network.fetch.receive([1], within(LATER_S))
    assert only(response).partition == T1
    assert cluster.network.fetch.receive([1], within(0)) is None


def test_broker_that_took_the_place_of_another_has_a_connection_of_its_own(cluster: Cluster) -> None:
    cluster.mock.move_leader("t", 1, 1)
    cluster.learn()
    cluster.produce(T1, "a")
    successor = Broker(9, cluster.broker(1).address)
    cluster.network.fetch.send(cluster.broker(1), cluster.ask(T0, wait_ms=PATIENCE_MS), within(LATER_S))
    cluster.network.fetch.send(successor, cluster.ask(T1), within(LATER_S))
    response = cluster.network.fetch.receive([1, 9], within(LATER_S))

    assert isinstance(response, FetchResponse)
    assert (response.node_id, rows(only(response))) == (9, [(0, "a")])


def test_broker_that_moved_is_asked_where_it_is_now(cluster: Cluster) -> None:
    cluster.produce(T1, "a")
    cluster.fetch(1, cluster.ask(T0))
    moved = Broker(1, cluster.broker(2).address)
    cluster.network.fetch.send(moved, cluster.ask(T1), within(LATER_S))
    response = cluster.network.fetch.receive([1], within(LATER_S))

    assert isinstance(response, FetchResponse)
    assert rows(only(response)) == [(0, "a")]


# --- brokers that do not respond --------------------------------------------------------------------------------------


def test_broker_that_is_down_cannot_be_asked(cluster: Cluster) -> None:
    broker = cluster.broker(2)
    cluster.mock.broker_down(2)
    refused = f"cannot connect to {broker.address}: Connection refused"
    questions: list[Callable[[], object]] = [
        lambda: cluster.network.metadata(broker.address, ["t"], within(LATER_S)),
        lambda: cluster.offsets(2, OffsetQuery(T1, LATEST_TIMESTAMP)),
    ]
    for question in questions:
        with pytest.raises(ConnectError, match=refused):
            question()
    failure = cluster.fetch(2, cluster.ask(T1))
    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, ConnectError)
    assert str(failure.error) == refused
    cluster.mock.broker_up(2)
    assert only(cluster.fetch(2, cluster.ask(T1))).error_code == 0


def test_fetch_fails_when_its_broker_goes_down_and_others_go_on(cluster: Cluster) -> None:
    cluster.produce(T1, "a")
    cluster.network.fetch.send(cluster.broker(1), cluster.ask(T0, wait_ms=PATIENCE_MS), within(LATER_S))
    cluster.mock.broker_down(1)
    failure = cluster.network.fetch.receive([1], within(LATER_S))

    assert isinstance(failure, RequestFailure)
    assert failure.node_id == 1
    assert isinstance(failure.error, ConnectError)
    assert str(cluster.broker(1).address) in str(failure.error)
    assert rows(only(cluster.fetch(2, cluster.ask(T1)))) == [(0, "a")]


def test_disconnect_is_a_failure_and_the_next_fetch_connects_anew(cluster: Cluster) -> None:
    cluster.produce(T0, "a")
    cluster.mock.push_request_errors(FETCH.key, -195)

    assert isinstance(cluster.fetch(1, cluster.ask(T0)), RequestFailure)
    assert rows(only(cluster.fetch(1, cluster.ask(T0)))) == [(0, "a")]


def test_broker_that_no_packet_reaches_holds_up_nobody_who_fetches(cluster: Cluster) -> None:
    cluster.produce(T1, "a")
    began = time.monotonic()
    with black_hole() as nowhere:
        cluster.network.fetch.send(Broker(1, nowhere), cluster.ask(T0), within(LATER_S))
        for _ in range(2):
            cluster.network.fetch.send(cluster.broker(2), cluster.ask(T1), within(LATER_S))
            response = cluster.network.fetch.receive([1, 2], within(LATER_S))
            assert isinstance(response, FetchResponse)
            assert (response.node_id, rows(only(response))) == (2, [(0, "a")])
        assert time.monotonic() - began < LATER_S / 2
        cluster.network.fetch.drop(1)
        cluster.network.fetch.send(Broker(1, nowhere), cluster.ask(T0), within(SOON_S))
        failure = cluster.network.fetch.receive([1], within(LATER_S))

    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, ConnectError)
    # On a busy machine, not even the address is resolved so soon.
    assert re.fullmatch(f"cannot connect to {nowhere}: .* in time", str(failure.error))


def test_connection_that_nobody_waits_for_any_more_is_closed_when_it_is_there(network: KafkaNetwork) -> None:
    may_respond, was_closed = threading.Event(), threading.Event()

    def respond_late(peer: socket.socket) -> None:
        may_respond.wait(LATER_S)
        send_versions(peer)
        read_request(peer)
        if peer.recv(1) == b"":
            was_closed.set()

    with scripted_broker(respond_late) as address:
        network.fetch.send(Broker(1, address), T0_REQUEST, within(LATER_S))
        network.close()
        may_respond.set()
        assert was_closed.wait(LATER_S)


def slow(cluster: Cluster) -> None:
    """Make broker 1 slow. All connections are open, so only its responses are late."""
    for node_id in (1, 2):
        cluster.network.metadata(cluster.broker(node_id).address, ["t"], within(LATER_S))
        cluster.fetch(node_id, cluster.ask(T0 if node_id == 1 else T1))
    cluster.mock.set_rtt_ms(1, SLOW_MS)


def test_slow_response_times_out_at_the_deadline_and_the_next_request_gets_its_own(cluster: Cluster) -> None:
    slow(cluster)
    # The first request has an open connection. The next needs a new one, because late responses may come on the first.
    # On a busy machine, its time is over before the connection is there.
    not_open = "does not answer|cannot connect to .* in time"
    for error, said in ((RequestTimeoutError, "did not answer Metadata in time"), (ConnectError, not_open)):
        began = time.monotonic()
        with pytest.raises(error, match=said):
            cluster.network.metadata(cluster.broker(1).address, ["t"], within(SOON_S))
        assert SOON_S <= time.monotonic() - began < SLOW_MS / 1000
    cluster.mock.set_rtt_ms(1, 0)
    cluster.learn()


def test_slow_fetch_times_out_and_other_brokers_are_unhurt(cluster: Cluster) -> None:
    cluster.produce(T1, "a")
    slow(cluster)
    cluster.network.fetch.send(cluster.broker(1), cluster.ask(T0), within(SOON_S))
    cluster.network.fetch.send(cluster.broker(2), cluster.ask(T1), within(LATER_S))
    began = time.monotonic()
    received = [cluster.network.fetch.receive([1, 2], within(LATER_S)) for _ in range(2)]
    responses = {response.node_id: response for response in received if response is not None}

    assert isinstance(responses[2], FetchResponse)
    assert isinstance(late := responses[1], RequestFailure)
    assert isinstance(late.error, RequestTimeoutError)
    assert time.monotonic() - began < SLOW_MS / 1000


def test_late_response_of_a_fetch_that_timed_out_is_never_taken_for_the_next_ones(cluster: Cluster) -> None:
    for value in ("a", "b"):
        cluster.produce(T0, value)
    slow(cluster)
    assert isinstance(cluster.fetch(1, cluster.ask(T0), timeout_s=SOON_S), RequestFailure)
    cluster.mock.set_rtt_ms(1, 0)

    assert rows(only(cluster.fetch(1, cluster.ask(T0, offset=1)))) == [(1, "b")]


# --- requests ---------------------------------------------------------------------------------------------------------


def test_brokers_get_exactly_the_requests_that_are_sent(cluster: Cluster) -> None:
    for node_id, partition in ((1, T0), (2, T1)):
        for _ in range(2):
            cluster.fetch(node_id, cluster.ask(partition))
        cluster.offsets(node_id, OffsetQuery(partition, LATEST_TIMESTAMP))
    cluster.learn()

    ids = {cluster.broker(node_id).address: node_id for node_id in (1, 2)}
    arrived = Counter((request.broker_id, request.api_key) for request in cluster.mock.requests())
    assert arrived == Counter((ids[address], key) for address, key, _ in cluster.sent)
    assert arrived == {
        **{(node_id, FETCH.key): 2 for node_id in (1, 2)},
        **{(node_id, LIST_OFFSETS.key): 1 for node_id in (1, 2)},
        (1, METADATA.key): 1,
        # One connection for requests one after the other. The connection to broker 1 was open before.
        (2, API_VERSIONS.key): 1,
    }


# --- scripted brokers -------------------------------------------------------------------------------------------------


def timed_failure(network: KafkaNetwork, address: Address) -> tuple[KafkaMetaError, float]:
    """How a Fetch from this broker fails, and after how many seconds."""
    network.fetch.send(Broker(1, address), T0_REQUEST, within(LATER_S))
    began = time.monotonic()
    response = network.fetch.receive([1], within(LATER_S))
    assert isinstance(response, RequestFailure)
    return response.error, time.monotonic() - began


def test_the_first_response_is_given_first(network: KafkaNetwork) -> None:
    may_respond = threading.Event()

    def respond(peer: socket.socket, after: threading.Event | None = None) -> None:
        send_versions(peer)
        _, _, correlation_id = read_request(peer)
        if after is not None:
            after.wait(LATER_S)
        peer.sendall(fetch_frame(correlation_id, 0))

    with scripted_broker(lambda peer: respond(peer, may_respond)) as late, scripted_broker(respond) as quick:
        for node_id, address in ((1, late), (2, quick)):
            network.fetch.send(Broker(node_id, address), T0_REQUEST, within(LATER_S))
        first = network.fetch.receive([1, 2], within(LATER_S))
        may_respond.set()
        second = network.fetch.receive([1, 2], within(LATER_S))

    assert isinstance(first, FetchResponse)
    assert isinstance(second, FetchResponse)
    assert (first.node_id, second.node_id) == (2, 1)
    assert network.fetch.receive([1, 2], within(LATER_S)) is None, "none is under way"


def test_slow_connection_leaves_the_response_its_time(network: KafkaNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic, passed_s = time.monotonic, 0.0
    has_request, may_respond = threading.Event(), threading.Event()

    def respond_late(peer: socket.socket) -> None:
        send_versions(peer)
        _, _, correlation_id = read_request(peer)
        has_request.set()
        may_respond.wait(LATER_S)
        peer.sendall(fetch_frame(correlation_id, 0))

    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + passed_s)
    with scripted_broker(respond_late) as address:
        network.fetch.send(Broker(1, address), T0_REQUEST, within(LATER_S))
        assert has_request.wait(LATER_S)
        passed_s = 0.6 * LATER_S  # to open the connection
        assert network.fetch.receive([1], within(1)) is None
        passed_s = 1.2 * LATER_S  # and again for the response
        assert network.fetch.receive([1], within(0)) is None
        may_respond.set()
        response = network.fetch.receive([1], within(LATER_S))

    assert only(response).partition == T0


def test_response_whose_deadline_passed_while_nobody_looked_is_still_read_to_its_end(
    network: KafkaNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monotonic, away_s = time.monotonic, 0.0
    has_begun, may_go_on = threading.Event(), threading.Event()

    def respond_in_two_parts(peer: socket.socket) -> None:
        send_versions(peer)
        peer.sendall(fetch_frame(read_request(peer)[2], 0))
        whole = fetch_frame(read_request(peer)[2], 0)
        peer.sendall(whole[:10])
        has_begun.set()
        may_go_on.wait(LATER_S)
        peer.settimeout(0.05)
        with suppress(TimeoutError):
            peer.recv(1)
        peer.sendall(whole[10:])

    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + away_s)
    with scripted_broker(respond_in_two_parts) as address:
        network.fetch.send(Broker(1, address), T0_REQUEST, within(LATER_S))
        assert only(network.fetch.receive([1], within(LATER_S))).partition == T0
        network.fetch.send(Broker(1, address), T0_REQUEST, within(LATER_S))
        assert has_begun.wait(LATER_S)
        away_s = 2 * LATER_S
        may_go_on.set()
        response = network.fetch.receive([1], within(LATER_S))

    assert only(response).partition == T0


def test_less_is_asked_of_a_late_broker_then_more_again(network: KafkaNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    passes_in_time, requested = 200_000, []

    def respond_over_a_slow_link(peer: socket.socket) -> None:
        send_versions(peer)
        while True:
            correlation_id, message = read_message(peer, request_schema(FETCH, FETCH.max_version).FetchRequest)
            requested.append(message.max_bytes)
            whole = fetch_frame(correlation_id, 0, records=bytes(message.max_bytes))
            monkeypatch.setattr(connection, "SILENCE_S", LATER_S if len(whole) <= passes_in_time else SOON_S)
            peer.sendall(whole[:passes_in_time])

    request = FetchRequest((FetchPartition(T0, TOPIC_ID, 0, 0, -1, 1 << 20),), 0, 1, 1 << 23, False)
    came = []
    with scripted_broker(respond_over_a_slow_link) as address:
        for _ in range(4):
            network.fetch.send(Broker(1, address), request, within(LATER_S))
            came.append(isinstance(network.fetch.receive([1], within(LATER_S)), FetchResponse))

    assert list(zip(requested, came, strict=True)) == [
        (1 << 20, False),
        (1 << 17, True),
        (1 << 18, False),
        (1 << 16, True),
    ]


@pytest.mark.parametrize("sent_bytes", [2, 4, 20])
def test_broker_that_falls_silent_in_a_response_is_left_long_before_the_time_out(
    network: KafkaNetwork, monkeypatch: pytest.MonkeyPatch, sent_bytes: int
) -> None:
    monkeypatch.setattr(connection, "SILENCE_S", SOON_S)

    def fall_silent(peer: socket.socket) -> None:
        send_versions(peer)
        _, _, correlation_id = read_request(peer)
        peer.sendall(fetch_frame(correlation_id, 0)[:sent_bytes])

    with scripted_broker(fall_silent) as address:
        error, took_s = timed_failure(network, address)

    assert isinstance(error, RequestTimeoutError)
    assert took_s < LATER_S / 2


def test_broker_that_falls_silent_is_not_asked_why_long(network: KafkaNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_diagnosis, "PROBE_S", SOON_S)
    connections = []

    def hang_up_then_fall_silent(peer: socket.socket) -> None:
        connections.append(peer)
        if len(connections) == 1:
            send_versions(peer)
            read_request(peer)
            peer.shutdown(socket.SHUT_RDWR)

    with scripted_broker(hang_up_then_fall_silent) as address:
        error, took_s = timed_failure(network, address)

    assert "closed the connection" in str(error)
    assert took_s < LATER_S / 2


@pytest.mark.parametrize(("partitions", "said"), [((0, 5), "unrequested t-5"), ((0, 0), "the same partition twice")])
def test_fetch_response_that_breaks_the_rules_is_a_failure_and_ends_the_connection(
    network: KafkaNetwork, partitions: tuple[int, ...], said: str
) -> None:
    connections = []

    def lie(peer: socket.socket) -> None:
        connections.append(peer)
        send_versions(peer)
        _, _, correlation_id = read_request(peer)
        peer.sendall(fetch_frame(correlation_id, *partitions))

    with scripted_broker(lie) as address:
        for attempt in (1, 2):
            error, _ = timed_failure(network, address)
            assert isinstance(error, ProtocolError)
            assert said in str(error)
            assert len(connections) == attempt
