"""Readers of brokers that send wrong, many or slow responses: each ends in a typed error in time, without a storm."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import (
    BrokerError,
    CorruptBatchError,
    KafkaMetaError,
    ReadTimeoutError,
    ResponseTooLargeError,
)
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import EventPublisher
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.kafka_network import KafkaNetwork
from pyspark_kafka_meta.kafka.protocol.frame_codec import METADATA
from pyspark_kafka_meta.model import NO_EPOCH, Address, OffsetRange, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from tests.unit.kafka.records import handmade
from tests.wire.scripted_broker import (
    TOPIC_ID,
    Behaviour,
    fetch_frame,
    leader_frame,
    metadata_frame,
    read_request,
    scripted_broker,
    send_versions,
)

POLL_TIMEOUT_S, REQUEST_TIMEOUT_S = 1.0, 0.5
DEADLINE_S = 60
"""At most 2 s, with a margin for a busy machine. A read that hangs never ends."""
RESPONSES = 3
"""After so many wrong ones, the clock of the client says that the read has taken too long."""
PAUSES_S, MAX_REQUESTS = 0.15, 40
"""From the first of these to the last: pauses begin with 0.1 s, and vary by a fifth. A hot loop makes hundreds."""
Respond = Callable[[socket.socket, int], None]
"""Sends the response of a Fetch request with this correlation id."""


@dataclass(slots=True)
class Clock:
    """Of a client: real time, and what a test adds."""

    passed_s: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.passed_s


def serving(respond: Respond) -> Behaviour:
    def behave(peer: socket.socket) -> None:
        send_versions(peer, metadata=12)
        while True:
            key, _, correlation_id = read_request(peer)
            if key == METADATA.key:
                peer.sendall(leader_frame(correlation_id, peer))
            else:
                respond(peer, correlation_id)

    return behave


def read(address: Address, fetch_max_bytes: int = 50 << 20, clock: Callable[[], float] = time.monotonic) -> list[Any]:
    """One offset of t-0."""
    given = {
        "kafka.bootstrap.servers": str(address),
        "subscribe": "t",
        "kafka.request.timeout.ms": str(int(REQUEST_TIMEOUT_S * 1000)),
        "kafka.fetch.max.wait.ms": "100",
        "kafka.fetch.max.bytes": str(fetch_max_bytes),
        "kafka.default.api.timeout.ms": str(int(POLL_TIMEOUT_S * 1000)),
        "kafkaConsumer.pollTimeoutMs": str(int(POLL_TIMEOUT_S * 1000)),
    }
    options = SourceOptions.parse(given).for_batch()
    client = KafkaClient(options.client, EventPublisher((), Origin(role=Role.READER)), clock=clock)
    try:
        span = OffsetRange(TopicPartition("t", 0), TOPIC_ID, 0, 1, NO_EPOCH)
        return [row for table in TaskReader(client, options, ["value"]).read([span]) for row in table.to_pylist()]
    finally:
        client.close()


def flood(peer: socket.socket, correlation_id: int) -> None:
    while True:
        peer.sendall(bytes(1 << 20))


def send(make: Callable[[int], bytes]) -> Respond:
    return lambda peer, correlation_id: peer.sendall(make(correlation_id))


def refuse_by_an_unknown_code(correlation_id: int) -> bytes:
    """The protocol library does not encode codes that it does not know."""
    known = ErrorCode.share_session_limit_reached
    frame = fetch_frame(correlation_id, 0, code=known)
    return frame.replace(known.to_bytes(2, "big"), (4711).to_bytes(2, "big"))


BAD = handmade.batch([handmade.Row(0)])[:-1] + b"?"
HOSTILE: dict[str, tuple[Respond, type[KafkaMetaError], str]] = {
    "2 GB frame": (send(lambda _: b"\x7f\xff\xff\xff" + bytes(100)), ReadTimeoutError, "announced 2147483647 bytes"),
    "2 GB response": (
        send(lambda number: b"\x7f\xff\xff\xff" + number.to_bytes(4, "big")),
        ResponseTooLargeError,
        r"Fetch with 2147483647 bytes, more than the limit of 119537664 .*raise kafka\.fetch\.max\.bytes to 2080374783",
    ),
    "largest frame, never sent": (
        send(lambda _: (100 << 20).to_bytes(4, "big")),
        ReadTimeoutError,
        "did not answer",
    ),
    "flood": (flood, ReadTimeoutError, "bytes"),
    "silence": (lambda *_: None, ReadTimeoutError, "did not answer"),
    "no partition": (send(lambda number: fetch_frame(number)), ReadTimeoutError, "UNKNOWN_SERVER_ERROR"),
    "unknown error code": (send(refuse_by_an_unknown_code), BrokerError, "t-0 cannot be read: error 4711"),
    "corrupt batch": (send(lambda number: fetch_frame(number, 0, records=BAD)), CorruptBatchError, "t-0 at offset 0"),
    "nothing, though there is something": (
        send(lambda number: fetch_frame(number, 0, records=b"")),
        ReadTimeoutError,
        "t-0 at offset 0",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_fetch_responses_end_in_a_typed_error_by_the_deadline(name: str) -> None:
    respond, kind, text = HOSTILE[name]
    clock, requested_at = Clock(), list[float]()

    def respond_until_time_is_over(peer: socket.socket, correlation_id: int) -> None:
        requested_at.append(time.monotonic())
        if len(requested_at) == RESPONSES:
            clock.passed_s += DEADLINE_S
        respond(peer, correlation_id)

    with scripted_broker(serving(respond_until_time_is_over)) as address:
        began = time.monotonic()
        with pytest.raises(kind, match=text):
            read(address, clock=clock)
        assert time.monotonic() - began < DEADLINE_S
    assert len(requested_at) < MAX_REQUESTS
    assert len(requested_at) < RESPONSES or requested_at[RESPONSES - 1] - requested_at[0] >= PAUSES_S


def test_a_response_may_be_64_mib_larger_than_the_records_its_fetch_asks_for() -> None:
    respond = send(lambda number: (70 << 20).to_bytes(4, "big") + number.to_bytes(4, "big"))
    with scripted_broker(serving(respond)) as address:
        limit, needed = 1000 + (64 << 20), (70 - 64) << 20
        with pytest.raises(
            ResponseTooLargeError, match=rf"limit of {limit} .*raise kafka\.fetch\.max\.bytes to {needed}"
        ):
            read(address, fetch_max_bytes=1000)
        with pytest.raises(ReadTimeoutError, match="did not answer"):  # the size is accepted
            read(address, fetch_max_bytes=needed)


def test_a_response_that_comes_twice_is_read_once() -> None:
    with scripted_broker(serving(send(lambda number: fetch_frame(number, 0) * 2))) as address:
        assert read(address) == [{"value": b"v"}]


def ask(address: Address, times: int = 1) -> None:
    network = KafkaNetwork(ConnectionSettings("test", connect_timeout_ms=10_000, max_frame_bytes=100 << 20))
    try:
        for _ in range(times):
            network.metadata(address, [], time.monotonic() + 30)
    finally:
        network.close()


def test_responses_that_come_twice_are_not_taken_for_those_of_the_next_request() -> None:
    def behave(peer: socket.socket) -> None:
        send_versions(peer, metadata=12)
        _, _, correlation_id = read_request(peer)
        peer.sendall(metadata_frame(correlation_id) * 2)

    with scripted_broker(behave) as address:
        ask(address, times=3)
