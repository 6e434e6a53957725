"""Produce and InitProducerId over sockets: pipelines, full buffers, lost connections, wrong responses."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    ConnectError,
    KafkaMetaError,
    ProtocolError,
    RequestTimeoutError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.network import connection, sockets
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.apis import PRODUCE
from pyspark_kafka_meta.kafka.protocol.frame_codec import request_schema
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.kafka.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from pyspark_kafka_meta.model import Address, Broker, TopicPartition, TransactionVersion
from pyspark_kafka_meta.options import ClientOptions, SinkOptions
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.testing.listener_security import CertificateAuthority
from tests.partitions import T0, T1
from tests.unit.kafka.protocol.responses import T_ID, message, produced
from tests.unit.logs import batch
from tests.unit.scene import RecordingPublisher
from tests.wire.mock_brokers import LATER_S, SLOW_MS, SOON_S, Cluster, mock_brokers, within
from tests.wire.scripted_broker import (
    agree_on_mechanism,
    authenticate,
    frame,
    over_tls,
    read_message,
    scripted_broker,
    send_versions,
)

DEAF_S = 20.0
"""How long a broker reads nothing: far longer than a test takes that does not wait for it."""
IN_FLIGHT = 5
MEGABYTE = 1 << 20
AUTHORITY = CertificateAuthority()
TRUSTING = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.certificates": AUTHORITY.certificate}
PLAIN = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "alice",
    "kafka.sasl.password": "canary-password",
}


def new_network(**options: str) -> KafkaNetwork:
    parsed = ClientOptions.parse({"kafka.bootstrap.servers": "h:1", **options})
    return KafkaNetwork(ConnectionSettings("test", 60_000, max_frame_bytes=MEGABYTE, security=parsed.security))


@pytest.fixture
def network() -> Iterator[KafkaNetwork]:
    with contextlib.closing(new_network()) as made:
        yield made


def records(number: int, size: int = 100) -> bytes:
    """Bytes that no other request has. Scripted brokers do not look into batches."""
    return bytes([number]) * size


def request(content: bytes) -> ProduceRequest:
    return ProduceRequest((ProducePartition(T0, T_ID, content),), acks=-1, timeout_ms=1000)


def send(network: KafkaNetwork, address: Address, content: bytes, node_id: int = 1, timeout_s: float = LATER_S) -> None:
    network.produce.send(Broker(node_id, address), request(content), within(timeout_s))


def only(response: ProduceResponse | RequestFailure | None) -> ProducedPartition:
    assert isinstance(response, ProduceResponse), response
    [partition] = response.partitions
    return partition


def offsets(network: KafkaNetwork, count: int, node_id: int = 1) -> list[int]:
    """Base offsets of the next responses."""
    return [only(network.produce.receive([node_id], within(LATER_S))).base_offset for _ in range(count)]


def failure(network: KafkaNetwork, node_id: int = 1) -> KafkaMetaError:
    response = network.produce.receive([node_id], within(2 * LATER_S))
    assert isinstance(response, RequestFailure), response
    assert network.produce.receive([node_id], within(SOON_S)) is None, "a failure is of all requests in flight"
    return response.error


def read_produce(peer: socket.socket) -> tuple[int, bytes]:
    """Correlation id and records of the next request."""
    correlation_id, message = read_message(peer, request_schema(PRODUCE, PRODUCE.max_version).ProduceRequest)
    [topic] = message.topic_data
    [partition] = topic.partition_data
    return correlation_id, partition.records


def acknowledgement(correlation_id: int, offset: int) -> bytes:
    acknowledged: dict[str, Any] = {"error_code": ErrorCode.none, "record_errors": (), "error_message": None}
    return frame(message(PRODUCE, **produced((T_ID, 0)), base_offset=offset, **acknowledged), correlation_id)


def acknowledge(peer: socket.socket) -> None:
    """Respond to each request; the offset is the number in its records."""
    send_versions(peer)
    while True:
        correlation_id, content = read_produce(peer)
        assert content == content[:1] * len(content)
        peer.sendall(acknowledgement(correlation_id, content[0]))


# --- mock brokers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with mock_brokers(mock_cluster, monkeypatch) as made:
        yield made


def test_produced_records_are_read_back_with_their_offsets(cluster: Cluster) -> None:
    cluster.send_records(1, "a", "b")
    cluster.send_records(1, "c")
    responses = [cluster.network.produce.receive([1], within(LATER_S)) for _ in range(2)]

    assert [(only(response).error_code, only(response).base_offset) for response in responses] == [(0, 0), (0, 2)]
    assert cluster.log(T0, 1) == ["a", "b", "c"]
    assert [version for _, key, version in cluster.sent if key == PRODUCE.key] == [10, 10], "the newest of the mock"
    assert isinstance(responses[0], ProduceResponse)
    assert responses[0].request_bytes > len(batch(["a", "b"]))


def test_requests_in_flight_get_responses_in_their_order_and_wait_once(cluster: Cluster) -> None:
    cluster.send_records(1, "first")
    offsets(cluster.network, 1)
    cluster.mock.set_rtt_ms(1, 1000)
    began = time.monotonic()
    for number in range(IN_FLIGHT):
        cluster.send_records(1, str(number))

    assert time.monotonic() - began < 4, "sending waits for no response: four round trips take 4 s"
    assert offsets(cluster.network, IN_FLIGHT) == list(range(1, IN_FLIGHT + 1))
    assert time.monotonic() - began < 5, "five round trips, one after the other, take 5 s"
    cluster.mock.set_rtt_ms(1, 0)
    assert cluster.log(T0, 1) == ["first", *(str(number) for number in range(IN_FLIGHT))]


def test_broker_that_goes_down_fails_its_requests_once_and_no_others(cluster: Cluster) -> None:
    for node_id, partition in ((1, T0), (2, T1)):
        cluster.send_records(node_id, "a", partition=partition)
        offsets(cluster.network, 1, node_id)
    cluster.mock.set_rtt_ms(1, SLOW_MS)
    for number in range(IN_FLIGHT):
        cluster.send_records(1, str(number))
    cluster.send_records(2, "b", partition=T1)
    cluster.mock.broker_down(1)

    assert offsets(cluster.network, 1, node_id=2) == [1]
    assert isinstance(failure(cluster.network), ConnectError)
    cluster.send_records(1, "refused")
    assert str(failure(cluster.network)) == f"cannot connect to {cluster.broker(1).address}: Connection refused"
    cluster.mock.set_rtt_ms(1, 0)
    cluster.mock.broker_up(1)
    cluster.send_records(1, "again")
    assert offsets(cluster.network, 1)


def test_slow_broker_times_out_once_at_the_first_deadline_and_others_are_unhurt(cluster: Cluster) -> None:
    for node_id, partition in ((1, T0), (2, T1)):
        cluster.send_records(node_id, "a", partition=partition)
        offsets(cluster.network, 1, node_id)
    cluster.mock.set_rtt_ms(1, SLOW_MS)
    cluster.send_records(1, "late", timeout_s=SOON_S)
    cluster.send_records(1, "after it")
    cluster.send_records(2, "b", partition=T1)

    assert offsets(cluster.network, 1, node_id=2) == [1]
    began = time.monotonic()
    assert isinstance(failure(cluster.network), RequestTimeoutError)
    assert time.monotonic() - began < SLOW_MS / 2000


def test_metadata_that_arrives_interrupts_the_wait(cluster: Cluster) -> None:
    cluster.send_records(1, "a")
    offsets(cluster.network, 1)
    cluster.mock.set_rtt_ms(1, SLOW_MS)
    cluster.send_records(1, "b")
    began = time.monotonic()
    cluster.network.send_metadata(cluster.broker(2).address, ["t"], within(LATER_S))
    while (response := cluster.network.receive_metadata(within(0))) is None:
        assert cluster.network.produce.receive([1], within(LATER_S)) is None

    assert response.topics
    assert time.monotonic() - began < SLOW_MS / 2000


# --- full buffers -----------------------------------------------------------------------------------------------------


def test_broker_that_reads_nothing_delays_nobody_and_times_out(network: KafkaNetwork) -> None:
    with scripted_broker(acknowledge_one_and_stop_reading) as deaf, scripted_broker(acknowledge) as healthy:
        for address, node_id in ((deaf, 1), (healthy, 2)):
            send(network, address, records(0), node_id)
            assert offsets(network, 1, node_id) == [0]
        content, began = records(1, MEGABYTE), time.monotonic()
        for number in range(20):
            send(network, deaf, content)
            send(network, healthy, records(number), node_id=2)
        assert time.monotonic() - began < DEAF_S, "sending does not wait for the full buffer"
        responses = [network.produce.receive([1, 2], within(LATER_S)) for _ in range(20)]
        send(network, deaf, content, timeout_s=1)
        error = failure(network)

    assert [only(response).base_offset for response in responses] == list(range(20))
    assert isinstance(error, RequestTimeoutError)
    assert "did not answer a Produce in time" in str(error)


@pytest.mark.parametrize("megabytes", [4, 8, 16])
def test_time_that_the_caller_is_away_with_bytes_unsent_is_no_timeout(
    network: KafkaNetwork, monkeypatch: pytest.MonkeyPatch, megabytes: int
) -> None:
    """As a task does, the caller looks for a response without waiting, and is away for longer than the timeout."""
    monotonic, away_s, may_read = time.monotonic, 0.0, threading.Event()

    def read_late(peer: socket.socket) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        acknowledge_one(peer)
        assert may_read.wait(LATER_S)
        for number in (1, 2):
            peer.sendall(acknowledgement(read_produce(peer)[0], number))

    with scripted_broker(read_late) as address:
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + away_s)
        send(network, address, records(0))
        assert offsets(network, 1) == [0], "the connection is open"
        send(network, address, records(1, megabytes * MEGABYTE))
        send(network, address, records(2))
        for _ in range(3):
            away_s += 2 * LATER_S
            assert network.produce.receive([1], time.monotonic()) is None
        may_read.set()
        assert offsets(network, 2) == [1, 2]


def test_broker_that_reads_nothing_times_out_a_waiter(network: KafkaNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic, away_s = time.monotonic, 0.0
    with scripted_broker(acknowledge_one_and_stop_reading) as address:
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + away_s)
        send(network, address, records(0))
        assert offsets(network, 1) == [0], "the connection is open"
        send(network, address, records(1, 16 * MEGABYTE), timeout_s=1)
        away_s += 60
        assert network.produce.receive([1], time.monotonic()) is None
        began = time.monotonic()
        assert isinstance(failure(network), RequestTimeoutError)

    assert time.monotonic() - began < DEAF_S


def acknowledge_one(peer: socket.socket) -> None:
    send_versions(peer)
    peer.sendall(acknowledgement(read_produce(peer)[0], 0))


def acknowledge_one_and_stop_reading(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    acknowledge_one(peer)
    threading.Event().wait(DEAF_S)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_megabytes_in_flight_arrive_whole_and_in_order(protocol: str) -> None:
    may_read, received = threading.Event(), []

    def read_late(peer: socket.socket) -> None:
        send_versions(peer)
        assert may_read.wait(LATER_S)
        received.extend([read_produce(peer) for _ in range(IN_FLIGHT)])
        peer.sendall(b"".join(acknowledgement(correlation_id, content[0]) for correlation_id, content in received))

    behave = over_tls(AUTHORITY.issue("broker", ["127.0.0.1"]), read_late) if protocol == "SSL" else read_late
    options = TRUSTING if protocol == "SSL" else {}
    with contextlib.closing(new_network(**options)) as network, scripted_broker(behave) as address:
        for number in range(IN_FLIGHT):
            send(network, address, records(number, MEGABYTE + number))
        assert network.produce.receive([1], within(SOON_S)) is None
        may_read.set()
        # With TLS, all responses are in one record, so that the selector sees only the first.
        assert offsets(network, IN_FLIGHT) == list(range(IN_FLIGHT))

    assert [content for _, content in received] == [records(number, MEGABYTE + number) for number in range(IN_FLIGHT)]


def test_latency_counts_from_the_last_byte_sent(network: KafkaNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic, passed_s, may_read = time.monotonic, 0.0, threading.Event()

    def read_late(peer: socket.socket) -> None:
        acknowledge_one(peer)
        assert may_read.wait(LATER_S)
        correlation_id, _ = read_produce(peer)
        peer.sendall(acknowledgement(correlation_id, 1))

    with scripted_broker(read_late) as address:
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + passed_s)
        send(network, address, records(0))
        assert offsets(network, 1) == [0], "the connection is open"
        send(network, address, records(1, 32 * MEGABYTE))
        passed_s = LATER_S
        may_read.set()
        response = network.produce.receive([1], within(LATER_S))

    assert isinstance(response, ProduceResponse)
    assert response.latency_ms < LATER_S * 1000 / 2
    assert response.request_bytes > 32 * MEGABYTE


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux closes a connection whose peer has a full buffer")
def test_full_buffer_does_not_close_as_a_dead_host(network: KafkaNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that waits for its followers reads no further requests of the connection."""
    monkeypatch.setitem(sockets.TCP_OPTIONS, socket.TCP_USER_TIMEOUT, 200)
    may_read = threading.Event()

    def read_late(peer: socket.socket) -> None:
        send_versions(peer)
        assert may_read.wait(LATER_S)
        correlation_id, _ = read_produce(peer)
        peer.sendall(acknowledgement(correlation_id, 0))

    with scripted_broker(read_late) as address:
        send(network, address, records(0, 32 * MEGABYTE))
        assert network.produce.receive([1], within(1)) is None
        may_read.set()
        assert offsets(network, 1) == [0]


# --- the order of requests --------------------------------------------------------------------------------------------


def test_requests_wait_for_their_connection_in_order(network: KafkaNetwork) -> None:
    may_open, connections = threading.Event(), []

    def open_late(peer: socket.socket) -> None:
        connections.append(peer)
        assert may_open.wait(LATER_S)
        acknowledge(peer)

    with scripted_broker(open_late) as address:
        for number in range(IN_FLIGHT):
            send(network, address, records(number))
        assert network.produce.receive([1], within(SOON_S)) is None
        may_open.set()
        assert offsets(network, IN_FLIGHT) == list(range(IN_FLIGHT))
        send(network, address, records(IN_FLIGHT))
        assert offsets(network, 1) == [IN_FLIGHT]

    assert len(connections) == 1


def log_in(peer: socket.socket, lifetime_ms: int) -> None:
    agree_on_mechanism(peer)
    authenticate(peer, lambda _: b"", lifetime_ms=lifetime_ms)


def is_silent(peer: socket.socket) -> bool:
    peer.settimeout(SOON_S)
    try:
        peer.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        peer.settimeout(None)
    return False


@pytest.mark.parametrize("is_renewed", [True, False])
def test_session_is_renewed_only_when_nothing_is_in_flight(is_renewed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOGIN_AGAIN_AT", (0.0, 0.0))
    was_silent = []

    def behave(peer: socket.socket) -> None:
        send_versions(peer)
        for _ in range(2):  # the session is due at once: the login of the connection, then that of the first request
            log_in(peer, lifetime_ms=60_000)
        correlation_id, content = read_produce(peer)
        was_silent.append(is_silent(peer))
        peer.sendall(acknowledgement(correlation_id, content[0]))
        if not is_renewed:
            agree_on_mechanism(peer)
            authenticate(peer, lambda _: None)
            return
        log_in(peer, lifetime_ms=0)
        waiting = [read_produce(peer) for _ in range(2)]
        for correlation_id, content in waiting:
            peer.sendall(acknowledgement(correlation_id, content[0]))

    with contextlib.closing(new_network(**PLAIN)) as network, scripted_broker(behave) as address:
        for number in range(3):
            send(network, address, records(number))
        assert offsets(network, 1) == [0]
        if is_renewed:
            assert offsets(network, 2) == [1, 2]
        else:
            assert isinstance(failure(network), AuthenticationError), "of the requests after it"

    assert was_silent == [True], "the second request waits for the login, which waits for the first response"


def test_broker_that_moved_fails_its_requests_and_serves_at_its_new_address(network: KafkaNetwork) -> None:
    with scripted_broker(send_versions) as old, scripted_broker(acknowledge) as new:
        send(network, old, records(0))
        send(network, new, records(1))
        send(network, new, records(2))
        assert str(failure(network)) == f"broker 1 moved from {old} to {new}"
        send(network, new, records(3))
        assert offsets(network, 1) == [3]


def test_requests_of_a_cancelled_sender_are_dropped(network: KafkaNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    def cancel(*_: object) -> None:
        raise KeyboardInterrupt

    with scripted_broker(acknowledge) as address:
        send(network, address, records(0))
        assert offsets(network, 1) == [0]
        send(network, address, records(1))
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Connection, "send", cancel)
            send(network, address, records(2))
        assert network.produce.receive([1], within(SOON_S)) is None
        send(network, address, records(3))
        assert offsets(network, 1) == [3]


# --- brokers that respond wrongly -------------------------------------------------------------------------------------

Wrong = Callable[[socket.socket], None]


def close_before_the_second_response(peer: socket.socket) -> None:
    correlation_id, _ = read_produce(peer)
    for _ in range(IN_FLIGHT - 1):
        read_produce(peer)
    peer.sendall(acknowledgement(correlation_id, 0))
    peer.shutdown(socket.SHUT_RDWR)


def respond_in_the_wrong_order(peer: socket.socket) -> None:
    first, second, *_ = [read_produce(peer)[0] for _ in range(IN_FLIGHT)]
    peer.sendall(acknowledgement(first, 0) + acknowledgement(second + 1, 2) + acknowledgement(second, 1))


def respond_twice(peer: socket.socket) -> None:
    first, *_ = [read_produce(peer)[0] for _ in range(IN_FLIGHT)]
    peer.sendall(acknowledgement(first, 0) * 2)


def add_bytes(peer: socket.socket) -> None:
    first, second, *_ = [read_produce(peer)[0] for _ in range(IN_FLIGHT)]
    response = acknowledgement(second, 1) + b"\1"
    peer.sendall(acknowledgement(first, 0) + (len(response) - 4).to_bytes(4, "big") + response[4:])


def cut_off(peer: socket.socket) -> None:
    first, second, *_ = [read_produce(peer)[0] for _ in range(IN_FLIGHT)]
    peer.sendall(acknowledgement(first, 0) + acknowledgement(second, 1)[:-3])
    peer.shutdown(socket.SHUT_RDWR)


def name_another_partition(peer: socket.socket) -> None:
    first, second, *_ = [read_produce(peer)[0] for _ in range(IN_FLIGHT)]
    peer.sendall(acknowledgement(first, 0) + frame(message(PRODUCE, **produced((T_ID, 5))), second))


@pytest.mark.parametrize(
    ("misbehave", "kind", "text"),
    [
        (close_before_the_second_response, ConnectError, "closed the connection while waiting for its Produce resp"),
        (respond_in_the_wrong_order, ProtocolError, "answered request 4 instead of 3"),
        (respond_twice, ProtocolError, "answered request 2 instead of 3"),
        (add_bytes, ProtocolError, "has 1 extra bytes"),
        (cut_off, ConnectError, "closed the connection"),
        (name_another_partition, ProtocolError, "unrequested t-5"),
    ],
)
def test_wrong_response_is_one_failure_of_the_requests_after_it(
    network: KafkaNetwork, misbehave: Wrong, kind: type[KafkaMetaError], text: str
) -> None:
    connections = []

    def behave(peer: socket.socket) -> None:
        connections.append(peer)
        if len(connections) == 1:
            send_versions(peer)
            misbehave(peer)
        else:
            acknowledge(peer)

    with scripted_broker(behave) as address:
        for number in range(IN_FLIGHT):
            send(network, address, records(number))
        assert offsets(network, 1) == [0]
        error = failure(network)
        assert isinstance(error, kind)
        assert text in str(error)
        send(network, address, records(7))
        assert offsets(network, 1) == [7], "over a new connection"


def test_response_to_a_request_that_is_not_sent_yet_is_a_failure(network: KafkaNetwork) -> None:
    has_failed = threading.Event()

    def respond_too_early(peer: socket.socket) -> None:
        send_versions(peer)
        peer.sendall(acknowledgement(2, 0))
        has_failed.wait(LATER_S)  # the broker reads nothing until then

    with scripted_broker(respond_too_early) as address:
        send(network, address, records(0, 32 * MEGABYTE))
        error = failure(network)
        has_failed.set()

    assert isinstance(error, ProtocolError)
    assert str(error) == f"{address} answered Produce before it had the whole request"


def test_extra_bytes_after_the_last_response_are_no_response_to_the_next_request() -> None:
    """With TLS, they were decrypted with the response: no selector sees them."""

    def behave(peer: socket.socket) -> None:
        send_versions(peer)
        correlation_id, content = read_produce(peer)
        peer.sendall(acknowledgement(correlation_id, content[0]) + acknowledgement(correlation_id + 1, 99))

    secured = over_tls(AUTHORITY.issue("broker", ["127.0.0.1"]), behave)
    with contextlib.closing(new_network(**TRUSTING)) as network, scripted_broker(secured) as address:
        for number in range(3):
            send(network, address, records(number))
            assert offsets(network, 1) == [number]


V1, V2 = TransactionVersion.V1, TransactionVersion.V2
IDS = [f"orders/{number}/0" for number in range(8)]
PARTITION = TopicPartition("t", 0)
TIMEOUT_MS = 60_000
PATIENCE_S = 30.0


@pytest.fixture
def client(mock_cluster: MockCluster) -> Iterator[KafkaClient]:
    mock_cluster.create_topic("t", 1)
    options = SinkOptions.parse({"kafka.bootstrap.servers": mock_cluster.bootstrap_servers, "topic": "t"})
    with contextlib.closing(KafkaClient(options.client, RecordingPublisher([]))) as made:
        yield made


def soon(client: KafkaClient) -> float:
    return client.clock() + PATIENCE_S


def test_brokers_without_features_have_the_first_version(client: KafkaClient) -> None:
    assert client.coordinators.transaction_version(soon(client)) is V1


def test_brokers_that_lack_an_api_are_told_which_kafka_has_it(client: KafkaClient) -> None:
    producer = client.coordinators.fence(IDS[:1], TIMEOUT_MS, soon(client))[IDS[0]]

    with pytest.raises(UnsupportedBrokerError, match=r"no ListTransactions: .* Kafka 3\.0 or later"):
        client.coordinators.list_transactions(soon(client))
    with pytest.raises(UnsupportedBrokerError, match=r"no DescribeTransactions: .* Kafka 3\.0 or later"):
        client.coordinators.describe_transactions([IDS[0]], soon(client))
    with pytest.raises(UnsupportedBrokerError, match=r"EndTxn .* Apache Kafka 4\.0 or later"):
        client.coordinators.end_transactions({IDS[0]: producer}, True, V2, soon(client))


def test_records_of_the_second_version_are_not_sent_to_brokers_that_lack_it(client: KafkaClient) -> None:
    client.coordinators.fence(IDS[:1], TIMEOUT_MS, soon(client))
    broker = next(iter(client.cache.snapshot.brokers.values()))
    request = ProduceRequest((ProducePartition(PARTITION, None, b""),), -1, 1000, IDS[0], V2)
    client.network.produce.send(broker, request, soon(client))
    failure = client.network.produce.receive([broker.node_id], soon(client))

    assert isinstance(failure, RequestFailure)
    assert isinstance(failure.error, UnsupportedBrokerError)
    assert "needed is v12 to v12: use brokers of Apache Kafka 4.0 or later" in str(failure.error)
