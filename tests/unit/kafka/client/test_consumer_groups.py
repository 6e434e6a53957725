"""A consumer group's offsets: a missing coordinator is waited for, a refusal is an error."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_kafka_meta.errors import BrokerError
from pyspark_kafka_meta.kafka.client import consumer_groups
from pyspark_kafka_meta.model import Position
from pyspark_kafka_meta.options import ClientOptions, SourceOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, RecentOffsets, SourceOffset
from pyspark_kafka_meta.spark import stream_reader
from pyspark_kafka_meta.spark.stream_reader import COMMIT_AGAIN_S, COMMIT_BACKOFF_S, KafkaMetaStreamReader
from tests.partitions import T0
from tests.unit.fake_network import FakeClock

OPTIONS = ClientOptions.parse({"kafka.bootstrap.servers": "b:9092"})
OF_A_GROUP = SourceOptions.parse(
    {"kafka.bootstrap.servers": "b:9092", "subscribe": "t", "commitOffsetsToGroup": "g"}
).for_stream()


T0_TO_5 = SourceOffset({T0: Position(5)}, {"t": None})


def new_reader(monkeypatch: pytest.MonkeyPatch) -> KafkaMetaStreamReader:
    """Of a query for which there is nothing to plan."""
    planner = SimpleNamespace(
        next_offset=lambda start, *_: start, flush_events=lambda: None, available_now=dict, recent=RecentOffsets()
    )
    monkeypatch.setattr(KafkaMetaStreamReader, "_planner", lambda self: planner)
    return KafkaMetaStreamReader(OF_A_GROUP, {})


def plan(reader: KafkaMetaStreamReader, finished: SourceOffset) -> None:
    """Plan the micro-batch that comes after those up to there."""
    reader.latestOffset(finished.as_dict(), ReadAllAvailable())


class Admin:
    """Responds with these error codes, then well."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.asked, self.made, self.polled = list(codes), 0, 0, 0
        self.timeouts: list[float] = []

    def __call__(self, settings: dict[str, object]) -> Admin:
        self.made += 1
        return self

    def poll(self, timeout: float) -> None:
        self.polled += 1

    def alter_consumer_group_offsets(self, requests: Any, request_timeout: float) -> dict[str, Future[Any]]:
        self.timeouts.append(request_timeout)
        self.asked += 1
        future: Future[Any] = Future()
        if self.codes:
            future.set_exception(KafkaException(KafkaError(self.codes.pop(0))))
        else:
            future.set_result(SimpleNamespace(topic_partitions=requests[0].topic_partitions))
        return {requests[0].group_id: future}


def test_a_commit_waits_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(15, 16, 14)
    monkeypatch.setattr(consumer_groups, "AdminClient", admin)
    monkeypatch.setattr(consumer_groups, "COORDINATOR_BACKOFF_S", 0.0)
    consumer_groups.ConsumerGroup(OPTIONS, "g").commit({T0: 5})

    assert admin.asked == 4
    assert 5 >= admin.timeouts[0] > admin.timeouts[-1] > 4, "micro-batches wait for it: all attempts share the time"


def test_one_client_serves_until_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin()
    monkeypatch.setattr(consumer_groups, "AdminClient", admin)
    group = consumer_groups.ConsumerGroup(OPTIONS, "g")

    made = []
    for codes in ([], [], [58], []):
        admin.codes += codes
        with suppress(BrokerError):
            group.commit({T0: 5})
        made.append(admin.made)

    assert made == [1, 1, 1, 2]
    assert admin.polled == 4, "librdkafka's log is handed on"


def test_a_refused_commit_names_the_group_and_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(30)
    monkeypatch.setattr(consumer_groups, "AdminClient", admin)

    with pytest.raises(
        BrokerError, match=r"offsets of consumer group g could not be committed: .*Check that the group"
    ):
        consumer_groups.ConsumerGroup(OPTIONS, "g").commit({T0: 5})
    assert admin.asked == 1


def test_a_stream_goes_on_where_no_client_for_its_commits_can_be_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(settings: dict[str, object]) -> None:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "the key does not match"))

    monkeypatch.setattr(consumer_groups, "AdminClient", refuse)

    plan(new_reader(monkeypatch), T0_TO_5)

    assert "librdkafka refuses the security options: the key does not match" in caplog.text


def test_a_commit_that_failed_does_not_hold_up_the_next_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    admin, clock = Admin(30), FakeClock()
    monkeypatch.setattr(consumer_groups, "AdminClient", admin)
    monkeypatch.setattr(stream_reader, "time", SimpleNamespace(monotonic=clock))
    reader = new_reader(monkeypatch)

    asked = []
    for _ in range(3):
        plan(reader, T0_TO_5)
        asked.append(admin.asked)
        clock.sleep(COMMIT_BACKOFF_S / 2)

    assert asked == [1, 1, 2]


def test_a_run_of_available_now_tries_once_more_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(30, 30)
    monkeypatch.setattr(consumer_groups, "AdminClient", admin)
    reader = new_reader(monkeypatch)
    reader.prepareForTriggerAvailableNow()
    plan(reader, T0_TO_5)
    plan(reader, T0_TO_5)

    assert admin.asked == 3
    assert reader._committed == {T0: 5}


def test_a_stream_commits_each_end_once_with_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin()
    monkeypatch.setattr(consumer_groups, "AdminClient", admin)
    reader = new_reader(monkeypatch)
    for finished in (T0_TO_5, T0_TO_5, SourceOffset({T0: Position(6)}, {"t": None})):
        plan(reader, finished)

    assert (admin.made, admin.asked) == (1, 2)


def test_an_idle_stream_commits_again_before_brokers_forget_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    admin, clock = Admin(), FakeClock()
    monkeypatch.setattr(consumer_groups, "AdminClient", admin)
    monkeypatch.setattr(stream_reader, "time", SimpleNamespace(monotonic=clock))
    reader = new_reader(monkeypatch)

    committed = []
    for _ in range(4):
        plan(reader, T0_TO_5)
        committed.append(admin.asked)
        clock.sleep(COMMIT_AGAIN_S / 2)

    assert committed == [1, 1, 2, 2]


@pytest.mark.parametrize("nothing", [BEGINNING, SourceOffset({}, {})], ids=["a new query", "a pattern without a match"])
def test_a_stream_that_has_read_nothing_commits_nothing(nothing: SourceOffset, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin()
    monkeypatch.setattr(consumer_groups, "AdminClient", admin)
    plan(new_reader(monkeypatch), nothing)

    assert admin.asked == 0
