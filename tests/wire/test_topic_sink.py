"""Events to a topic of mock brokers: they arrive keyed and in order, trouble there never holds up a read, and
`kafkameta events` and `caches` show them without Spark."""

from __future__ import annotations

import itertools
import json
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from pyspark_kafka_meta.errors import AuthorizationError, UnknownHostError
from pyspark_kafka_meta.events import publisher, sinks
from pyspark_kafka_meta.events.event import Event, Origin, Role
from pyspark_kafka_meta.events.publisher import TopicSink, new_publisher
from pyspark_kafka_meta.events.sinks import CountedSink
from pyspark_kafka_meta.kafka.network.security.oauth_tokens import TokenRefusedError
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import PLAINTEXT, ClientOptions, EventsOptions, SecurityOptions
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.cli import events as events_module
from pyspark_kafka_meta.tools.cli.main import app
from tests.unit.written_events import learning, made, moving, sequences
from tests.wire.scripted_broker import parrot, scripted_broker

ORIGIN = Origin(role=Role.READER, executor_id="7")
TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC = 29, 3
NOBODY = Address("127.0.0.1", 1)


def addresses(cluster: MockCluster) -> tuple[Address, ...]:
    pairs = [server.rsplit(":", 1) for server in cluster.bootstrap_servers.split(",")]
    return tuple(Address(host, int(port)) for host, port in pairs)


def records(cluster: MockCluster, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Key and value of the first `count` records of topic events."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "test"}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition("events", 0, 0)])
        found = consumer.consume(count, timeout=30)
        return [((message.key() or b"").decode(), json.loads(message.value() or b"")) for message in found]
    finally:
        consumer.close()


def rows_until(cluster: MockCluster, cache_id: str, sequence: int) -> list[dict[str, Any]]:
    """The events of one cache, in the order of the topic, up to the event of this sequence."""
    for count in itertools.count(1):
        rows = [row for key, row in records(cluster, count) if key == cache_id]
        if rows and rows[-1]["sequence"] == sequence:
            break
    return rows


def topic_sink_of(servers: Sequence[Address], security: SecurityOptions = PLAINTEXT) -> TopicSink:
    options = EventsOptions(None, "events", tuple(servers), security)
    return TopicSink(options, ORIGIN)


def new_sink(servers: Sequence[Address], security: SecurityOptions = PLAINTEXT) -> CountedSink:
    return CountedSink(topic_sink_of(servers, security))


@pytest.fixture
def cluster(mock_cluster: MockCluster) -> MockCluster:
    mock_cluster.create_topic("events", partitions=1)
    return mock_cluster


def test_event_that_does_not_fit_in_memory_is_counted(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Event) -> NoReturn:
        raise MemoryError

    sink = new_sink(addresses(cluster))
    with monkeypatch.context() as full:
        full.setattr(Event, "to_json", refuse)
        sink.write([made("c0ffee", 1), made("c0ffee", 2)])
    sink.write([made("c0ffee", 3)])

    sink.close()
    rows = rows_until(cluster, "c0ffee", 3)
    assert [(row["sequence"], row["dropped_before"]) for row in rows] == [(3, 2)]


def test_events_arrive_in_order_with_their_cache_as_key(cluster: MockCluster) -> None:
    publisher = new_publisher(EventsOptions(None, "events", addresses(cluster)), ORIGIN)
    for cache_id, sequence in (("a", 1), ("b", 1), ("a", 2)):
        publisher.publish(made(cache_id, sequence))
    publisher.close()
    found = records(cluster, 3)

    assert [(key, row["cache_id"], row["sequence"]) for key, row in found] == [
        ("a", "a", 1),
        ("b", "b", 1),
        ("a", "a", 2),
    ]


def test_events_of_the_sinks_own_client_are_only_logged(cluster: MockCluster, caplog: pytest.LogCaptureFixture) -> None:
    sink = new_sink(addresses(cluster))
    with caplog.at_level(logging.INFO, logger="pyspark_kafka_meta.events"):
        for sequence in range(1, 4):
            sink.write([made("a", sequence)])
        sink.close()
    own = [json.loads(line) for line in caplog.messages]

    assert [(row["kind"], row["sequence"]) for row in own] == [("born", 1), ("refresh", 2), ("closed", 3)]
    sink.write([made("a", 4)])
    sink.close()
    assert [(key, row["sequence"]) for key, row in records(cluster, 4)] == [("a", number) for number in range(1, 5)]


def unknown_topic(cluster: MockCluster) -> None:
    cluster.set_topic_error("events", UNKNOWN_TOPIC)


def unauthorised_topic(cluster: MockCluster) -> None:
    cluster.set_topic_error("events", TOPIC_AUTHORIZATION_FAILED)


def cluster_down(cluster: MockCluster) -> None:
    for broker_id in (1, 2, 3):
        cluster.broker_down(broker_id)


def heal(cluster: MockCluster) -> None:
    cluster.set_topic_error("events", 0)
    for broker_id in (1, 2, 3):
        cluster.broker_up(broker_id)


@pytest.mark.parametrize("fault", [unknown_topic, unauthorised_topic, cluster_down])
def test_trouble_holds_up_nobody_and_the_next_event_that_arrives_tells_the_loss(
    cluster: MockCluster,
    fault: Callable[[MockCluster], None],
    wait_for: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(cluster)
    sink = new_sink(addresses(cluster))
    with monkeypatch.context() as impatient:
        quick = replace(publisher.PRODUCER, delivery_timeout_ms=500, max_block_ms=500)
        impatient.setattr(publisher, "PRODUCER", quick)
        for kind in publisher.PAUSES_S:
            impatient.setitem(publisher.PAUSES_S, kind, 0.5)
        sink.write([made("a", 1), made("a", 2)])
        sink.write([made("a", 3)])
    assert sink._is_failing
    heal(cluster)
    sequences = iter(range(4, 1000))

    def arrives() -> bool:
        sink.write([made("a", next(sequences))])
        return not sink._is_failing

    wait_for(arrives)
    last = next(sequences)
    sink.write([made("a", last)])
    sink.close()
    rows = rows_until(cluster, "a", last)
    assert rows[0]["sequence"] > 3
    assert len(rows) + sum(row["dropped_before"] for row in rows) == last


def test_event_that_is_too_large_is_lost_alone(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(publisher, "PRODUCER", replace(publisher.PRODUCER, max_request_bytes=5000))
    sink = new_sink(addresses(cluster))
    sink.write([made("a", 1), made("a", 2, cause_topic="x" * 6_000), made("a", 3)])
    sink.close()

    rows = rows_until(cluster, "a", 3)
    assert [(row["sequence"], row["dropped_before"]) for row in rows] == [(1, 0), (3, 1)]
    assert "refresh events not written: 1 (" in caplog.text


def test_closed_sink_has_no_connection(cluster: MockCluster) -> None:
    sink = topic_sink_of(addresses(cluster))
    sink.write([made("a", 1)])
    client, closed = sink._client, list[int]()
    assert client is not None
    close = client.network.close

    def count_and_close() -> None:
        closed.append(1)
        close()

    client.network.close = count_and_close  # type: ignore[method-assign]
    sink.close()

    assert (sink._client, closed) == (None, [1])


def test_store_that_cannot_be_read_costs_events_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trusted = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": str(tmp_path / "gone.pem")}
    client = ClientOptions.parse({"kafka.bootstrap.servers": str(NOBODY), **trusted})
    sink = new_sink(client.bootstrap_servers, client.security)
    for sequence in (1, 2):
        sink.write([made("c", sequence)])
    sink.close()

    [event] = sink._losses.report_in([made("c", 3)])
    assert event.dropped_before == 2
    [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("refresh events not written: ")
    assert "kafka.ssl.truststore.location" in warning


def test_login_that_is_refused_is_not_tried_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    logins = list[int]()

    def refuse(peer: socket.socket) -> None:
        logins.append(1)
        parrot("canary")(peer)

    with scripted_broker(refuse) as address:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
        login |= {"sasl.password": "canary", "bootstrap.servers": str(address)}
        client = ClientOptions.parse({f"kafka.{name}": value for name, value in login.items()})
        sink = new_sink([address], client.security)
        for sequence in range(1, 6):
            sink.write([made("c", sequence)])
    assert len(logins) == 1
    [event] = sink._losses.report_in([made("c", 6)])
    assert event.dropped_before == 5
    [warning] = [record.message for record in caplog.records if record.name == sinks.logger.name]
    assert warning.startswith("refresh events not written: ")
    assert "refused the PLAIN login" in warning
    assert "canary" not in caplog.text


def test_sink_pauses_after_an_error_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    now, errors = [0.0], list[Exception]()

    def fail(*_: object) -> NoReturn:
        raise errors[-1]

    monkeypatch.setattr(publisher, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(TopicSink, "_write", fail)
    for error, pause_s in (
        (TokenRefusedError("refused"), 300),
        (UnknownHostError("unknown"), 5),
        (AuthorizationError("forbidden", 29), 30),
        (MemoryError(), 0),
    ):
        errors.append(error)
        sink = topic_sink_of([NOBODY])
        with pytest.raises(type(error)):
            sink.write([made("c", 1)])
        assert sink._connect_after == now[0] + pause_s


TERMINAL = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "160", "LINES": "50"}


class EventsTopic:
    """A topic of events with two partitions on mock brokers."""

    def __init__(self, cluster: MockCluster) -> None:
        cluster.create_topic("events", partitions=2)
        self.cluster = cluster

    def publish(self, *events: Event) -> None:
        self.publish_rows(*(event.to_dict() for event in events))

    def publish_rows(self, *events: dict[str, Any]) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap_servers})
        for event in events:
            producer.produce("events", key=event["cache_id"], value=json.dumps(event))
        assert producer.flush(30) == 0

    def run(self, command: str, *arguments: str, env: dict[str, str] | None = None) -> Any:
        place = ["--events-topic", "events", "--bootstrap-servers", self.cluster.bootstrap_servers]
        return CliRunner().invoke(app, [command, *place, *arguments], env=env)


@pytest.fixture
def events_topic(mock_cluster: MockCluster) -> EventsTopic:
    return EventsTopic(mock_cluster)


def test_events_of_a_topic_are_shown_in_order(events_topic: EventsTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    events_topic.publish(*(made(f"{number:032x}", number, 1_000 * number) for number in range(1, 6)))
    rounds = iter([6, 7])

    def sleep(_: float) -> None:
        number = next(rounds, None)
        if number is None:
            raise KeyboardInterrupt
        events_topic.publish(made("c" * 32, number, 1_000 * number))

    monkeypatch.setattr(events_module, "sleep", sleep)
    result = events_topic.run("events", "--follow")

    assert (result.exit_code, sequences(result.stdout)) == (0, [1, 2, 3, 4, 5, 6, 7])


def test_a_topic_that_is_not_there_is_one_line_and_exit_code_1(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("events")
    mock_cluster.set_topic_error("events", 29)
    place = ["--events-topic", "events", "--bootstrap-servers", mock_cluster.bootstrap_servers]
    result = CliRunner().invoke(app, ["events", *place])

    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "TOPIC_AUTHORIZATION_FAILED" in result.stderr


def test_only_what_is_behind_the_live_cluster_is_stale(events_topic: EventsTopic) -> None:
    now_ms = int(time.time() * 1000)
    events_topic.cluster.create_topic("t", partitions=2)
    events_topic.cluster.move_leader("t", 0, 1)
    events_topic.cluster.move_leader("t", 0, 2)  # epoch 2
    events_topic.publish(
        made("a" * 32, 1, now_ms - 9_000, **learning("t", 1, 3, epoch=0)),
        made("b" * 32, 1, now_ms - 9_000, **learning("t", 1, 3, epoch=0)),
        made("b" * 32, 2, now_ms - 5_000, **moving("t", 0, (1, 2), (0, 2))),
        made("c" * 32, 1, now_ms - 90_000, cluster_id="another", **learning("t", 1, 3, epoch=2)),
        made("d" * 32, 1, now_ms - 9_000, cluster_id="another", **learning("t", 1, 3, epoch=0)),
    )
    (row,) = map(json.loads, events_topic.run("caches", "--stale").stdout.splitlines())
    table = " ".join(events_topic.run("caches", "--stale", env=TERMINAL).stdout.split())

    assert (row["cache_id"], row["partition"], row["leader_epoch"]) == ("a" * 32, 0, 0)
    assert (row["live_leader_id"], row["live_leader_epoch"]) == (2, 2)
    assert 5_000 <= row["behind_ms"] < 60_000
    assert "aaaaaaaa t-0 1@0* 2@2" in table


def test_caches_that_are_up_to_date_are_said_to_be(events_topic: EventsTopic) -> None:
    events_topic.cluster.create_topic("t")
    events_topic.cluster.move_leader("t", 0, 1)  # epoch 1
    events_topic.publish(made("a" * 32, 1, int(time.time() * 1000), **learning("t", 1, epoch=1)))
    result = events_topic.run("caches", "--stale", env=TERMINAL)
    assert (result.exit_code, result.stdout.strip()) == (0, "No cache is behind the cluster.")
