"""A task reads on through whatever the brokers do: nothing lost, nothing twice, nothing for ever."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator
from dataclasses import replace
from itertools import islice, pairwise

import pytest

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    BrokerError,
    KafkaMetaError,
    ReadTimeoutError,
    TlsError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.events.event import EventKind
from pyspark_kafka_meta.kafka.client.kafka_client import POLICY_AGE_S, KafkaClient
from pyspark_kafka_meta.kafka.protocol.fetch import FetchResponse
from pyspark_kafka_meta.model import NO_LEADER, Address, MetadataResponse, RefreshReason, TopicPartition
from pyspark_kafka_meta.read.fetching.lost_records import LOSS_GRACE_MS
from tests.partitions import T0, T1, T2
from tests.unit.fake_cluster import StoredBatch
from tests.unit.logs import batch, sparse_batch
from tests.unit.read.fetching.responses import ONE_BATCH, POLL_TIMEOUT_S, change, with_partitions
from tests.unit.scene import Fault, Scene, by_partition, rows, written


def test_leader_named_by_the_old_one_is_asked_without_a_metadata_request(scene: Scene) -> None:
    reader = scene.reader()
    scene.cluster.move_leader(T0, 3)
    read = rows(reader.read([scene.range(T0)]))

    assert by_partition(read) == {T0: written()[T0]}
    assert scene.sent("Fetch") == [1, 3]
    assert [api for api, _ in scene.network.requests][:2] == ["Fetch", "Fetch"]
    event = scene.events[0]
    assert (event.kind, event.reason, event.cause_partition) == (EventKind.HINT, RefreshReason.LEADER_HINT, 0)


def test_brokers_that_keep_silent_about_metadata_delay_no_partition_whose_leader_a_hint_named(scene: Scene) -> None:
    reader = scene.reader()
    scene.network.hung_metadata |= {1, 2, 3}
    scene.cluster.move_leader(T0, 3)
    began = scene.clock()
    read = rows(reader.read(scene.ranges()))

    assert by_partition(read) == written()
    assert scene.clock() - began < 0.5
    assert len(scene.sent("Metadata")) == 1


def test_partition_without_a_leader_waits_for_metadata_while_others_are_read(scene: Scene) -> None:
    reader = scene.reader()
    scene.network.hung_metadata |= {1, 2, 3}
    scene.network.change = with_partitions(leader_hint=None)
    scene.clock.at(4, scene.network.hung_metadata.clear)
    scene.cluster.move_leader(T0, 3)
    began, came_after_s, read = scene.clock(), {T0: 0.0, T1: 0.0, T2: 0.0}, []
    for row in (row for arrow_batch in reader.read(scene.ranges()) for row in rows(iter([arrow_batch]))):
        read.append(row)
        came_after_s[row[0]] = scene.clock() - began

    assert by_partition(read) == written()
    assert came_after_s[T1] < 0.5
    assert came_after_s[T2] < 0.5
    assert came_after_s[T0] > 3


def test_without_a_hint_one_refresh_finds_the_new_leader(scene: Scene) -> None:
    scene.network.change = with_partitions(leader_hint=None)
    reader = scene.reader()
    scene.cluster.move_leader(T0, 3)
    read = rows(reader.read([scene.range(T0)]))

    assert by_partition(read) == {T0: written()[T0]}
    assert [api for api, _ in scene.network.requests] == ["Fetch", "Metadata", "Fetch"]
    [event] = scene.events
    assert (event.reason, event.cause_error_code, event.cause_node_id) == (RefreshReason.FENCED_EPOCH, 74, 1)
    assert (event.retries, [(fetch.broker_id, fetch.requests) for fetch in event.fetches]) == (1, [(1, 1)])
    assert event.details.changes.leaders_changed[0].new_leader_id == 3


def test_after_a_lost_connection_another_broker_is_asked(scene: Scene) -> None:
    reader = scene.reader()
    scene.network.down.add(1)
    scene.cluster.move_leader(T0, 2)
    read = rows(reader.read([scene.range(T0)]))

    assert by_partition(read) == {T0: written()[T0]}
    assert scene.sent("Fetch") == [1, 2]
    assert 1 not in scene.sent("Metadata")
    assert [(event.reason, event.cause_node_id) for event in scene.events] == [(RefreshReason.CONNECTION_LOST, 1)]


def test_no_leader_for_a_while_is_waited_for(scene: Scene) -> None:
    reader = scene.reader()
    scene.cluster.move_leader(T0, NO_LEADER)
    began = scene.clock()
    scene.clock.at(20, lambda: scene.cluster.move_leader(T0, 2))

    assert by_partition(rows(reader.read([scene.range(T0)]))) == {T0: written()[T0]}
    assert scene.clock() - began < 22
    assert len(scene.sent("Metadata")) < 30


FAULTS: dict[str, Fault] = {
    "leader moves": [lambda scene: scene.cluster.move_leader(T0, 2)],
    "leader moves there and back": [
        lambda scene: scene.cluster.move_leader(T0, 2),
        lambda scene: scene.cluster.move_leader(T0, 1),
    ],
    "every leader moves": [
        lambda scene: scene.cluster.move_leader(T0, 2),
        lambda scene: scene.cluster.move_leader(T1, 3),
        lambda scene: scene.cluster.move_leader(T2, 1),
    ],
    "leader dies": [lambda scene: scene.network.down.add(1), lambda scene: scene.cluster.move_leader(T0, 3)],
    "leader hangs": [lambda scene: scene.network.hung.add(1), lambda scene: scene.cluster.move_leader(T0, 3)],
    "leader dies and nobody leads for a while": [
        lambda scene: scene.network.down.add(1),
        lambda scene: scene.cluster.move_leader(T0, NO_LEADER),
        lambda scene: scene.clock.at(9, lambda: scene.cluster.move_leader(T0, 2)),
    ],
    "leader restarts elsewhere": [
        lambda scene: scene.cluster.brokers.update(
            {1: replace(scene.cluster.brokers[1], address=Address("moved", 9092))}
        )
    ],
    "every broker dies for a while": [
        lambda scene: scene.network.down.update({1, 2, 3}),
        lambda scene: scene.clock.at(15, scene.network.down.clear),
    ],
    "a broker that lags behind responds": [
        lambda scene: scene.network.cut_off(1),
        lambda scene: scene.cluster.move_leader(T0, 3),
    ],
    "not the leader, it says": [lambda scene: scene.script(T0, 6)],
    "one error after the other": [lambda scene: scene.script(T0, 6, 74, 75, 9, 78, 3, 100, 5, 56, -1, 7)],
}


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_nothing_is_lost_and_nothing_comes_twice(scene: Scene, fault: Fault, after: int) -> None:
    reading = scene.reader(**ONE_BATCH).read(scene.ranges())
    before = list(islice(reading, after))
    scene.undergo(fault)
    began = scene.clock()

    assert by_partition(rows(iter([*before, *reading]))) == written()
    assert scene.clock() - began < 60
    assert len(scene.network.requests) < 80


def test_abandoned_read_drops_its_fetch_and_the_next_task_starts_clean(scene: Scene) -> None:
    client = scene.warm_client(**ONE_BATCH)
    reading = scene.reader(client, **ONE_BATCH).read(scene.ranges())
    next(reading)
    assert isinstance(reading, Generator)
    reading.close()

    assert by_partition(rows(scene.reader(client).read(scene.ranges()))) == written()


def test_throttled_response_without_records_is_not_the_end_of_the_log(scene: Scene) -> None:
    responses = iter([True] * 10)
    scene.network.change = lambda response: (
        replace(with_partitions(records=b"")(response), throttle_ms=50) if next(responses, False) else response
    )

    assert by_partition(rows(scene.reader().read(scene.ranges()))) == written()


def test_throttled_follower_is_waited_for(scene: Scene) -> None:
    scene.network.preferred_replicas[T1] = 3
    reading = scene.reader(kafka_client_rack="r", **ONE_BATCH).read([scene.range(T1)])
    read = [next(reading)]
    scene.network.throttles[3] = deque([700])
    scene.network.requests.clear()

    assert by_partition(rows(iter([*read, *reading]))) == {T1: written()[T1]}
    assert set(scene.sent("Fetch")) == {3}


def test_follower_that_stays_behind_is_left_although_its_choice_expires_sooner(scene: Scene) -> None:
    scene.network.preferred_replicas[T1] = 3
    scene.network.replica_ends[3, T1] = 6
    reader = scene.reader(kafka_client_rack="r", kafka_metadata_max_age_ms="1000", **ONE_BATCH)
    began = scene.clock()

    assert by_partition(rows(reader.read([scene.range(T1)]))) == {T1: written()[T1]}
    assert scene.clock() - began < 5


REFUSALS = [
    TlsError("the certificate of broker-3:9092 has expired: renew it on the broker"),
    AuthenticationError("broker-3:9092 refused the login"),
    UnsupportedBrokerError("broker-3:9092 is too old"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_partition_of_a_follower_that_fails_for_good_is_read_from_the_leader(
    error: KafkaMetaError, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.network.preferred_replicas[T1] = 3
    reading = scene.reader(kafka_client_rack="r", **ONE_BATCH).read([scene.range(T1)])
    read = [next(reading)]
    scene.fail(3, *[error] * 100)
    scene.network.requests.clear()

    assert by_partition(rows(iter([*read, *reading]))) == {T1: written()[T1]}
    assert scene.sent("Fetch").count(3) == 1
    assert caplog.messages == [f"{error}. Asking other brokers"]


@pytest.mark.parametrize(("leader", "partitions"), [(3, [T1, T2]), (2, [T1])], ids=["of another one", "of this one"])
def test_follower_that_fails_for_good_fails_it_too(scene: Scene, leader: int, partitions: list[TopicPartition]) -> None:
    scene.network.preferred_replicas[T1] = 3
    reading = scene.reader(kafka_client_rack="r", **ONE_BATCH).read([scene.range(each) for each in partitions])
    next(reading)
    for node_id in {3, leader}:
        scene.fail(node_id, *[TlsError(f"the certificate of broker-{node_id}:9092 has expired")] * 100)

    with pytest.raises(TlsError, match=f"broker-{leader}:9092 has expired"):
        list(reading)


def test_partition_that_leaves_a_throttled_broker_is_read_from_the_next(scene: Scene) -> None:
    client = scene.warm_client()
    scene.network.throttles[1] = deque([60_000])
    scene.clock.at(1, lambda: scene.cluster.move_leader(T0, 2))
    scene.clock.at(1.5, lambda: client.cache.request_update(RefreshReason.ON_DEMAND, client.cache.snapshot.generation))
    began = scene.clock()

    assert by_partition(rows(scene.reader(client).read([scene.range(T0)]))) == {T0: written()[T0]}
    assert scene.clock() - began < 5


def test_error_of_the_whole_response_is_paused_for_and_asked_again(scene: Scene) -> None:
    codes = iter([70, 7, -1])
    scene.network.change = lambda response: (
        replace(response, partitions=(), error_code=code) if (code := next(codes, 0)) else response
    )
    with pytest.raises(BrokerError, match=r"t-0 cannot be read: FETCH_SESSION_ID_NOT_FOUND \(error 70\)"):
        rows(scene.reader().read([scene.range(T0)]))

    began = scene.clock()
    assert by_partition(rows(scene.reader().read([scene.range(T0)]))) == {T0: written()[T0]}
    assert 0.2 <= scene.clock() - began < 11


def test_partition_that_the_response_leaves_out_is_asked_for_again_after_a_pause(scene: Scene) -> None:
    scene.network.change = lambda response: replace(response, partitions=())
    reader = scene.reader()
    with pytest.raises(ReadTimeoutError, match="t-0 at offset 0"):
        rows(reader.read([scene.range(T0)]))

    assert len(scene.network.fetches) <= POLL_TIMEOUT_S / 0.8 + 5


@pytest.mark.parametrize("code", [-1, 7, 78, 89])
def test_pauses_after_an_error_double_up_to_the_longest_and_begin_anew_after_records(scene: Scene, code: int) -> None:
    asked: list[float] = []

    def fail_at_times(response: FetchResponse) -> FetchResponse:
        asked.append(scene.clock())
        return response if len(asked) == 8 else with_partitions(records=b"", error_code=code)(response)

    scene.network.change = fail_at_times
    with pytest.raises(ReadTimeoutError):
        rows(scene.reader(**ONE_BATCH).read([scene.range(T0)]))

    pauses = [later - earlier for earlier, later in pairwise(asked)]
    for pauses_in_a_row in (pauses[:7], pauses[8:15]):
        assert [round(pause, 1) for pause in pauses_in_a_row[:2]] == [0.1, 0.2]
        assert all(0.8 <= round(pause, 3) <= 1 for pause in pauses_in_a_row[4:])


def test_pauses_are_as_long_as_the_options_say(scene: Scene) -> None:
    scene.empty()
    scene.write(T0, "a")
    reader = scene.reader(kafka_retry_backoff_ms="400", kafka_retry_backoff_max_ms="600")
    scene.script(T0, -1, -1, -1)
    began = scene.clock()

    assert len(rows(reader.read([scene.range(T0)]))) == 1
    assert scene.clock() - began == pytest.approx(0.4 + 0.6 + 0.6, rel=0.2)


def test_no_settings_lead_to_a_loop_without_pauses(scene: Scene) -> None:

    def refuse(response: FetchResponse) -> FetchResponse:
        assert len(scene.network.requests) <= 2 * 100 + 10, "in a second, while time may stand still"
        return with_partitions(records=b"", error_code=6)(response)

    scene.network.change = refuse
    eager = {"kafka_retry_backoff_ms": "0", "kafka_retry_backoff_max_ms": "0", "kafka_metadata_max_age_ms": "0"}
    with pytest.raises(ReadTimeoutError):
        rows(scene.reader(**eager, kafkaConsumer_pollTimeoutMs="1000").read([scene.range(T0)]))


def compact_the_end(scene: Scene, policy: str | None) -> None:
    """Compaction has removed the last records of t-0, whose topic has this cleanup.policy, None if the user may not
    see it."""
    scene.monkeypatch.setattr(KafkaClient, "cleanup_policy", lambda client, topic: policy)
    scene.empty()
    scene.write(T0, "a")
    scene.cluster.append(T0, sparse_batch({0: "b", 9: "compacted away"}))
    last = scene.cluster.logs[T0].pop()
    kept = replace(last, until_offset=2, data=batch(["b"], base_offset=1))
    scene.cluster.logs[T0] += [kept, StoredBatch(11, 11, b"")]


@pytest.mark.parametrize("policy", ["compact,delete", None])
def test_compacted_end_of_a_range_is_believed_after_the_time_of_grace_and_recorded(
    scene: Scene, caplog: pytest.LogCaptureFixture, policy: str | None
) -> None:
    compact_the_end(scene, policy)
    reader, began = scene.reader(), scene.clock()

    assert rows(reader.read([scene.range(T0)])) == [(T0, 0, "a"), (T0, 1, "b")]
    assert 0 <= scene.clock() - began - LOSS_GRACE_MS / 1000 <= 3
    assert len(scene.network.fetches) <= 16
    [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "offsets 2 to 10 of t-0 hold no records any more" in warning
    [event] = [event for event in scene.events if event.kind is EventKind.DATA_LOSS]
    assert (event.details.lost_from_offset, event.details.lost_until_offset) == (2, 11)
    assert "compaction" in str(event.details.error)


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}])
def test_empty_responses_of_an_uncompacted_topic_are_waited_through(scene: Scene, options: dict[str, str]) -> None:
    compact_the_end(scene, "delete")
    reader, began = scene.reader(**options), scene.clock()

    with pytest.raises(ReadTimeoutError, match="t-0 at offset 2"):
        rows(reader.read([scene.range(T0)]))
    assert scene.clock() - began >= POLL_TIMEOUT_S


def test_gap_is_passed_after_its_topic_is_compacted_again(scene: Scene) -> None:
    """The remedy for a topic that is compacted no more: its gaps stay, and look like slow storage."""
    asked = KafkaClient.cleanup_policy
    compact_the_end(scene, None)
    scene.monkeypatch.setattr(KafkaClient, "cleanup_policy", asked)
    scene.network.configs["t"] = {"cleanup.policy": "delete"}
    scene.clock.at(20, lambda: scene.network.configs.update({"t": {"cleanup.policy": "compact"}}))
    reader, began = scene.reader(), scene.clock()

    assert rows(reader.read([scene.range(T0)])) == [(T0, 0, "a"), (T0, 1, "b")]
    assert POLICY_AGE_S <= scene.clock() - began < POLICY_AGE_S + 10


def test_leader_that_sends_nothing_of_what_it_has_for_a_moment_loses_nothing(scene: Scene) -> None:
    scene.network.change = with_partitions(records=b"")
    scene.clock.at(LOSS_GRACE_MS / 1000 - 1, lambda: change(scene, lambda response: response))

    assert by_partition(rows(scene.reader(scene.client()).read(scene.ranges()))) == written()


@pytest.mark.parametrize(
    "error", [AuthenticationError("refused"), TlsError("expired"), UnsupportedBrokerError("too old")]
)
def test_broker_that_no_later_time_heals_ends_the_read_at_once(scene: Scene, error: KafkaMetaError) -> None:
    reading = scene.reader().read(scene.ranges())
    scene.fail(1, error)

    with pytest.raises(type(error)):
        rows(reading)


def test_topic_that_may_not_be_read_fails_at_once(scene: Scene) -> None:
    ranges = scene.ranges()
    scene.network.metadata_errors["t"] = 29
    began = scene.clock()
    with pytest.raises(BrokerError, match=r"t-0 cannot be read: TOPIC_AUTHORIZATION_FAILED \(error 29\)") as raised:
        rows(scene.reader(scene.client()).read([replace(planned, until_offset=5) for planned in ranges]))

    assert raised.value.code == 29
    assert scene.clock() - began < 1


def test_refresh_at_the_end_of_a_task_fails_no_task_whose_rows_were_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = scene.warm_client()
    reading = scene.reader(client, **ONE_BATCH).read(scene.ranges())
    read = rows(iter([next(reading)]))

    def too_old_at_the_end(deadline: float) -> MetadataResponse | None:
        if deadline > scene.clock():
            raise UnsupportedBrokerError("too old")
        return None

    monkeypatch.setattr(scene.network, "receive_metadata", too_old_at_the_end)
    scene.network.hung_metadata |= {1, 2, 3}
    client.cache.request_update(RefreshReason.NOT_LEADER, client.cache.snapshot.generation, T0, 6)
    read += rows(reading)

    assert by_partition(read) == written()
