"""`kafkameta events` and `caches` over a topic and beside live brokers, without Spark."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from pyspark_kafka_meta.events.event import Event
from pyspark_kafka_meta.testing import MockCluster
from pyspark_kafka_meta.tools.cli import events as events_module
from pyspark_kafka_meta.tools.cli.main import app
from tests.unit.written_events import learning, made, moving, sequences

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


def test_events_of_a_topic_are_shown_newest_last_and_followed(
    events_topic: EventsTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
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
