"""Settings of brokers that clients run into: each is named by the error, soon."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import ConnectError, RequestTooLargeError
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import ClientOptions, SinkOptions
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.write.input_columns import SinkColumns
from pyspark_kafka_meta.write.task_writer import TaskWriter
from tests.kafka.cluster_tools import create_topic

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

MAX_REQUEST_BYTES = 500_000
MAX_CONNECTIONS = 6
VALUE = SinkColumns(key=None, value=0, headers=None, topic=None, partition=None, timestamp=None)
LIMITS = {"socket.request.max.bytes": str(MAX_REQUEST_BYTES), "max.connections.per.ip": str(MAX_CONNECTIONS)}


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka(1, config=LIMITS) as cluster:
        create_topic(cluster, "t", [cluster.broker_ids])
        yield cluster


def client(kafka: LocalKafka, **options: str) -> KafkaClient:
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, **options}
    return client_without_events(ClientOptions.parse(given), Origin(role=Role.WRITER))


def write(kafka: LocalKafka, rows: int, **options: str) -> int:
    """The number of written rows, each of 100 kB."""
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": "t", **options}
    sink = SinkOptions.parse(given)
    column = pa.array([bytes(100_000)] * rows, pa.binary())
    with closing(client(kafka)) as writing:
        written = TaskWriter(writing, sink.producer, VALUE, "t").write([pa.record_batch([column], ["value"])])
    return sum(offsets.records for offsets in written.values())


def take_all_connections(held: ExitStack, address: Address) -> None:
    """Holds connections until the broker has refused three in a row: it may still count those of the test before."""
    refused = 0
    while refused < 3:
        taken = held.enter_context(socket.create_connection((address.host, address.port), timeout=1))
        try:
            refused += taken.recv(1) == b""
        except ConnectionResetError:
            refused += 1
        except TimeoutError:
            refused = 0


def test_a_request_above_the_limit_of_the_brokers_names_size_and_setting_at_once(kafka: LocalKafka) -> None:
    began = time.monotonic()
    with pytest.raises(RequestTooLargeError, match=r"a request of \d{6,7} bytes, .* socket\.request\.max\.bytes"):
        write(kafka, 100)
    assert time.monotonic() - began < 30

    assert write(kafka, 100, **{"kafka.max.request.size": "400000", "kafka.batch.size": "300000"}) == 100


def test_connections_above_the_limit_of_the_broker_are_refused_with_its_name(kafka: LocalKafka) -> None:
    (broker,) = kafka.broker_ids
    with ExitStack() as held:
        take_all_connections(held, kafka.address(broker))
        refused = held.enter_context(closing(client(kafka, **{"kafka.default.api.timeout.ms": "6000"})))
        with pytest.raises(ConnectError, match=r"too many \(max\.connections\.per\.ip, max\.connections\)"):
            refused.partitions(["t"], refused.api_deadline())
    with closing(client(kafka)) as accepted:
        assert len(accepted.partitions(["t"], accepted.api_deadline())) == 1
