"""A task reads its ranges through whatever the cluster does: nothing lost, nothing twice, nothing for ever."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from typing import Any

import pytest
from crc32c import crc32c

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    BrokerError,
    CorruptBatchError,
    DataLossError,
    KafkaMetaError,
    ReadTimeoutError,
    TlsError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.metadata.events import EventKind, RefreshReason
from pyspark_kafka_meta.metadata.model import NO_LEADER, Address, Broker, TopicPartition
from pyspark_kafka_meta.reading.losses import ANSWER_S, LOSS_GRACE_MS
from pyspark_kafka_meta.records.compression import Codec
from pyspark_kafka_meta.wire.codes import CORRUPT_MESSAGE
from pyspark_kafka_meta.wire.messages import DivergingEpoch, FetchAnswer, FetchRequest
from tests.unit.fake_cluster import StoredBatch
from tests.unit.logs import batch, sparse_batch
from tests.unit.records import handmade
from tests.unit.scene import HELD_BACK, T0, T1, T2, Fault, Scene, by_partition, rows, written

ONE_BATCH = {"kafka_max_partition_fetch_bytes": "100"}
"""Each Fetch answer holds one record batch of a partition."""
POLL_TIMEOUT_S = 120


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def with_partitions(**fields: object) -> Callable[[FetchAnswer], FetchAnswer]:
    """A change of every partition of every Fetch answer."""

    return lambda answer: replace(
        answer,
        partitions=tuple(replace(one, **fields) for one in answer.partitions),  # type: ignore[arg-type]
    )


def change(scene: Scene, how: Callable[[FetchAnswer], FetchAnswer]) -> None:
    scene.wire.change = how


def failing(code: int) -> Callable[[FetchAnswer], FetchAnswer]:
    return with_partitions(error_code=code, records=b"", leader_hint=None)


# --- the usual way ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, ONE_BATCH], ids=["all at once", "batch by batch"])
def test_every_record_comes_once_and_in_order(scene: Scene, options: dict[str, str]) -> None:
    scene.fill()

    assert by_partition(rows(scene.reader(**options).read(scene.ranges()))) == written()


def test_only_the_offsets_of_the_range_are_read(scene: Scene) -> None:
    scene.fill()

    assert by_partition(rows(scene.reader(**ONE_BATCH).read([scene.range(T0, 4, 8)]))) == {T0: written()[T0][4:8]}


def test_partitions_of_one_leader_share_its_fetches(scene: Scene) -> None:
    for partition in (T0, T1, T2):
        scene.cluster.move_leader(partition, 2)
    scene.fill()
    rows(scene.reader().read(scene.ranges()))

    assert scene.sent("Fetch") == [2]
    assert [one.partition for one in scene.wire.fetches[0][1].partitions] == [T0, T1, T2]


def test_each_leader_is_asked_for_its_own_partitions_by_id_and_epoch(scene: Scene) -> None:
    scene.fill()
    rows(scene.reader().read(scene.ranges()))
    topic_id = scene.cluster.topics["t"].topic_id

    assert {
        (node_id, one.partition, one.topic_id, one.leader_epoch)
        for node_id, request in scene.wire.fetches
        for one in request.partitions
    } == {(1, T0, topic_id, 0), (2, T1, topic_id, 0), (3, T2, topic_id, 0)}
    assert scene.sent("Metadata") == []


def test_next_fetch_is_on_its_way_before_rows_are_given_out(scene: Scene) -> None:
    scene.fill()
    reading = scene.reader(**ONE_BATCH).read([scene.range(T0)])
    next(reading)

    assert [request.partitions[0].fetch_offset for _, request in scene.wire.fetches] == [0, 3]


def test_partitions_that_got_records_go_to_the_end_of_the_line(scene: Scene) -> None:
    for partition in (T0, T1, T2):
        scene.cluster.move_leader(partition, 1)
    scene.write(T0, "a")
    reading = scene.reader().read([scene.range(T0, 0, 5), scene.range(T1, 0, 5), scene.range(T2, 0, 5)])
    next(reading)

    assert [one.partition for one in scene.wire.fetches[1][1].partitions] == [T1, T2, T0]


def test_idle_partitions_cost_one_parked_request_and_no_loop(scene: Scene) -> None:
    scene.write(T0, "a")
    scene.hold_back(T0, "b")
    reading = scene.reader(**HELD_BACK).read([scene.range(T0)])
    next(reading)
    began = scene.clock()
    with pytest.raises(ReadTimeoutError):
        next(reading)

    assert len(scene.wire.fetches) <= (scene.clock() - began) / 0.5 + 2


@pytest.mark.parametrize(
    "answered",
    [
        {"records": batch(["old"])},
        {"records": b"", "diverging_epoch": DivergingEpoch(0, 3)},
        {"records": b"", "high_watermark": 5},
    ],
    ids=["old records", "a truncation behind the reader", "nothing"],
)
def test_broker_that_says_the_same_again_and_again_is_asked_at_a_bounded_rate(
    scene: Scene, answered: dict[str, object]
) -> None:
    def same(answer: FetchAnswer) -> FetchAnswer:
        assert len(scene.wire.fetches) <= 11 * POLL_TIMEOUT_S
        return with_partitions(**answered)(answer)

    scene.fill()
    scene.wire.change = same
    with pytest.raises(ReadTimeoutError):
        rows(scene.reader().read([scene.range(T0, 3)]))


def test_records_that_come_while_the_fetch_is_parked_are_read(scene: Scene) -> None:
    scene.write(T0, "a")
    scene.hold_back(T0, "b")
    reading = scene.reader(**HELD_BACK).read([scene.range(T0)])
    first = next(reading)
    scene.wire.open_transactions.clear()

    assert rows(iter([first, *reading])) == [(T0, 0, "a"), (T0, 1, "b")]


def test_first_task_of_a_worker_learns_the_cluster_by_one_request(scene: Scene) -> None:
    scene.fill()

    assert by_partition(rows(scene.reader(scene.client()).read(scene.ranges()))) == written()
    assert scene.reasons() == [RefreshReason.BOOTSTRAP]


def test_topic_that_is_new_to_the_cache_is_asked_for_as_that(scene: Scene) -> None:
    client = scene.client()
    client.cache.track(["other"])
    client.cache.refresh(RefreshReason.BOOTSTRAP, scene.clock() + 1)
    scene.fill()

    assert by_partition(rows(scene.reader(client).read(scene.ranges()))) == written()
    assert scene.reasons() == [RefreshReason.BOOTSTRAP, RefreshReason.NEW_TOPIC]


def test_first_task_of_a_worker_learns_all_topics_of_the_query(scene: Scene) -> None:
    scene.cluster.create_topic("other", 2)
    scene.fill()
    client = scene.client()
    for _ in range(2):
        assert by_partition(rows(scene.reader(client).read([scene.range(T0)], ["t", "other"]))) == {T0: written()[T0]}

    assert len(client.cache.snapshot.partitions("other")) == 2
    assert scene.sent("Metadata") == [1]


@pytest.mark.parametrize("code", [3, 17, 29])
def test_topic_of_the_query_that_is_gone_does_not_disturb_tasks_of_others(scene: Scene, code: int) -> None:
    scene.wire.metadata_errors["gone"] = code
    scene.fill()
    client = scene.client()
    began = scene.clock()
    for _ in range(2):
        assert by_partition(rows(scene.reader(client).read(scene.ranges(), ["t", "gone"]))) == written()

    assert scene.clock() - began < 1
    assert scene.sent("Metadata") == [1]


# --- leaders move, brokers die ----------------------------------------------------------------------------------------


def test_leader_named_by_the_old_one_is_asked_without_a_metadata_request(scene: Scene) -> None:
    scene.fill()
    reader = scene.reader()
    scene.cluster.move_leader(T0, 3)
    read = rows(reader.read([scene.range(T0)]))

    assert by_partition(read) == {T0: written()[T0]}
    assert scene.sent("Fetch") == [1, 3]
    assert [api for api, _ in scene.wire.requests][:2] == ["Fetch", "Fetch"]
    event = scene.events[0]
    assert (event.kind, event.reason, event.cause_partition) == (EventKind.HINT, RefreshReason.LEADER_HINT, 0)


def test_without_a_hint_one_refresh_finds_the_new_leader(scene: Scene) -> None:
    scene.fill()
    scene.wire.change = with_partitions(leader_hint=None)
    reader = scene.reader()
    scene.cluster.move_leader(T0, 3)
    read = rows(reader.read([scene.range(T0)]))

    assert by_partition(read) == {T0: written()[T0]}
    assert [api for api, _ in scene.wire.requests] == ["Fetch", "Metadata", "Fetch"]
    [event] = scene.events
    assert (event.reason, event.cause_error_code, event.cause_node_id) == (RefreshReason.FENCED_EPOCH, 74, 1)
    assert (event.retries, [(one.broker_id, one.requests) for one in event.fetches]) == (1, [(1, 1)])
    assert event.changes.leaders_changed[0].new_leader_id == 3


def test_lost_connection_is_answered_by_asking_another_broker(scene: Scene) -> None:
    scene.fill()
    reader = scene.reader()
    scene.wire.down.add(1)
    scene.cluster.move_leader(T0, 2)
    read = rows(reader.read([scene.range(T0)]))

    assert by_partition(read) == {T0: written()[T0]}
    assert scene.sent("Fetch") == [1, 2]
    assert 1 not in scene.sent("Metadata")
    assert [(event.reason, event.cause_node_id) for event in scene.events] == [(RefreshReason.CONNECTION_LOST, 1)]


def test_no_leader_for_a_while_is_waited_for(scene: Scene) -> None:
    scene.fill()
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
    "leader dies": [lambda scene: scene.wire.down.add(1), lambda scene: scene.cluster.move_leader(T0, 3)],
    "leader hangs": [lambda scene: scene.wire.hung.add(1), lambda scene: scene.cluster.move_leader(T0, 3)],
    "leader dies and nobody leads for a while": [
        lambda scene: scene.wire.down.add(1),
        lambda scene: scene.cluster.move_leader(T0, NO_LEADER),
        lambda scene: scene.clock.at(9, lambda: scene.cluster.move_leader(T0, 2)),
    ],
    "leader restarts elsewhere": [
        lambda scene: scene.cluster.brokers.update(
            {1: replace(scene.cluster.brokers[1], address=Address("moved", 9092))}
        )
    ],
    "every broker dies for a while": [
        lambda scene: scene.wire.down.update({1, 2, 3}),
        lambda scene: scene.clock.at(15, scene.wire.down.clear),
    ],
    "a broker that lags behind answers": [
        lambda scene: scene.wire.cut_off(1),
        lambda scene: scene.cluster.move_leader(T0, 3),
    ],
    "not the leader, it says": [lambda scene: scene.script(T0, 6)],
    "one error after the other": [lambda scene: scene.script(T0, 6, 74, 75, 9, 78, 3, 100, 5, 56, -1, 7)],
}


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_nothing_is_lost_and_nothing_comes_twice(scene: Scene, fault: Fault, after: int) -> None:
    scene.fill()
    reading = scene.reader(**ONE_BATCH).read(scene.ranges())
    before = list(islice(reading, after))
    scene.undergo(fault)
    began = scene.clock()

    assert by_partition(rows(iter([*before, *reading]))) == written()
    assert scene.clock() - began < 60
    assert len(scene.wire.requests) < 80


def test_abandoned_read_drops_its_fetch_and_the_next_task_starts_clean(scene: Scene) -> None:
    scene.fill()
    client = scene.warm_client(**ONE_BATCH)
    reading = scene.reader(client, **ONE_BATCH).read(scene.ranges())
    next(reading)
    assert isinstance(reading, Generator)
    reading.close()

    assert by_partition(rows(scene.reader(client).read(scene.ranges()))) == written()


def test_throttled_answer_without_records_is_not_the_end_of_the_log(scene: Scene) -> None:
    scene.fill()
    answers = iter([True] * 10)
    scene.wire.change = lambda answer: (
        replace(with_partitions(records=b"")(answer), throttle_ms=50) if next(answers, False) else answer
    )

    assert by_partition(rows(scene.reader().read(scene.ranges()))) == written()


def test_throttled_follower_is_waited_for(scene: Scene) -> None:
    scene.fill()
    scene.wire.preferred_replicas[T1] = 3
    reading = scene.reader(kafka_client_rack="r", **ONE_BATCH).read([scene.range(T1)])
    read = [next(reading)]
    scene.wire.throttles[3] = deque([700])
    scene.wire.requests.clear()

    assert by_partition(rows(iter([*read, *reading]))) == {T1: written()[T1]}
    assert set(scene.sent("Fetch")) == {3}


def test_partition_that_leaves_a_throttled_broker_is_read_from_the_next(scene: Scene) -> None:
    scene.fill()
    client = scene.warm_client()
    scene.wire.throttles[1] = deque([60_000])
    scene.clock.at(1, lambda: scene.cluster.move_leader(T0, 2))
    scene.clock.at(1.5, lambda: client.cache.request_update(RefreshReason.ON_DEMAND, client.cache.snapshot.generation))
    began = scene.clock()

    assert by_partition(rows(scene.reader(client).read([scene.range(T0)]))) == {T0: written()[T0]}
    assert scene.clock() - began < 5


def test_error_of_the_whole_answer_is_paused_for_and_asked_again(scene: Scene) -> None:
    scene.fill()
    codes = iter([70, 7, -1])
    scene.wire.change = lambda answer: (
        replace(answer, partitions=(), error_code=code) if (code := next(codes, 0)) else answer
    )
    with pytest.raises(BrokerError, match=r"t-0 cannot be read: FETCH_SESSION_ID_NOT_FOUND \(error 70\)"):
        rows(scene.reader().read([scene.range(T0)]))

    began = scene.clock()
    assert by_partition(rows(scene.reader().read([scene.range(T0)]))) == {T0: written()[T0]}
    assert 0.2 <= scene.clock() - began < 11


def test_partition_that_the_answer_leaves_out_is_asked_for_again_after_a_pause(scene: Scene) -> None:
    scene.fill()
    scene.wire.change = lambda answer: replace(answer, partitions=())
    reader = scene.reader()
    with pytest.raises(ReadTimeoutError, match="t-0 at offset 0"):
        rows(reader.read([scene.range(T0)]))

    assert len(scene.wire.fetches) <= POLL_TIMEOUT_S / 0.8 + 5


@pytest.mark.parametrize("code", [-1, 7, 78, 89])
def test_pauses_after_an_error_double_up_to_the_longest_and_begin_anew_after_records(scene: Scene, code: int) -> None:
    scene.fill()
    asked: list[float] = []

    def fail_at_times(answer: FetchAnswer) -> FetchAnswer:
        asked.append(scene.clock())
        return answer if len(asked) == 8 else with_partitions(records=b"", error_code=code)(answer)

    scene.wire.change = fail_at_times
    with pytest.raises(ReadTimeoutError):
        rows(scene.reader(**ONE_BATCH).read([scene.range(T0)]))

    pauses = [later - earlier for earlier, later in pairwise(asked)]
    for pauses_in_a_row in (pauses[:7], pauses[8:15]):
        assert [round(pause, 1) for pause in pauses_in_a_row[:2]] == [0.1, 0.2]
        assert all(0.8 <= pause <= 1 for pause in pauses_in_a_row[4:])


def test_no_settings_lead_to_a_loop_without_pauses(scene: Scene) -> None:
    scene.fill()

    def refuse(answer: FetchAnswer) -> FetchAnswer:
        assert len(scene.wire.requests) <= 2 * 100 + 10, "in a second, while time may stand still"
        return with_partitions(records=b"", error_code=6)(answer)

    scene.wire.change = refuse
    eager = {"kafka_retry_backoff_ms": "0", "kafka_retry_backoff_max_ms": "0", "kafka_metadata_max_age_ms": "0"}
    with pytest.raises(ReadTimeoutError):
        rows(scene.reader(**eager, kafkaConsumer_pollTimeoutMs="1000").read([scene.range(T0)]))


def test_compacted_end_of_a_range_is_believed_after_the_time_of_grace_and_logged(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pyspark_kafka_meta.reading")
    scene.write(T0, "a")
    scene.cluster.append(T0, sparse_batch({0: "b", 9: "compacted away"}))
    last = scene.cluster.logs[T0].pop()
    kept = replace(last, until_offset=2, data=batch(["b"], base_offset=1))
    scene.cluster.logs[T0] += [kept, StoredBatch(11, 11, b"")]

    reader, began = scene.reader(), scene.clock()

    assert rows(reader.read([scene.range(T0)])) == [(T0, 0, "a"), (T0, 1, "b")]
    assert 0 <= scene.clock() - began - LOSS_GRACE_MS / 1000 <= 3
    assert len(scene.wire.fetches) <= 16
    assert "offsets 2 to 10 of t-0 hold no records any more" in caplog.text


def test_leader_that_sends_nothing_of_what_it_has_for_a_moment_loses_nothing(scene: Scene) -> None:
    scene.fill()
    scene.wire.change = with_partitions(records=b"")
    scene.clock.at(LOSS_GRACE_MS / 1000 - 1, lambda: change(scene, lambda answer: answer))

    assert by_partition(rows(scene.reader(scene.client()).read(scene.ranges()))) == written()


@pytest.mark.parametrize(
    "error", [AuthenticationError("refused"), TlsError("expired"), UnsupportedBrokerError("too old")]
)
def test_broker_that_no_later_time_heals_ends_the_read_at_once(scene: Scene, error: KafkaMetaError) -> None:
    reading = scene.reader().read(scene.ranges())
    scene.fail(1, error)

    with pytest.raises(type(error)):
        rows(reading)


# --- no progress ------------------------------------------------------------------------------------------------------

AT_T0 = "reading t-0 at offset 2 (of 0 to 5): "
AT_T1 = "reading t-1 at offset 0 (of 0 to 5): "
STALLS: dict[str, tuple[Fault, str]] = {
    "a transaction stays open": ([], AT_T1 + "the brokers send no records"),
    "a transaction stays open once the leader is back": (
        [lambda scene: scene.wire.down.add(1), lambda scene: scene.clock.at(9, scene.wire.down.clear)],
        AT_T1 + "the brokers send no records",
    ),
    "leader hangs": ([lambda scene: scene.wire.hung.add(1)], AT_T0 + "broker 1 did not answer a Fetch in time"),
    "leader is down": ([lambda scene: scene.wire.down.add(1)], AT_T0 + "cannot connect to broker-1:9092"),
    "no leader": ([lambda scene: scene.cluster.move_leader(T0, NO_LEADER)], AT_T0 + "LEADER_NOT_AVAILABLE (error 5)"),
    "leader is nowhere": ([lambda scene: scene.cluster.brokers.pop(1)], AT_T0 + "LEADER_NOT_AVAILABLE (error 5)"),
    "an error for ever": ([lambda scene: change(scene, failing(75))], AT_T1 + "UNKNOWN_LEADER_EPOCH (error 75)"),
    "not leader for ever": ([lambda scene: change(scene, failing(6))], AT_T1 + "NOT_LEADER_OR_FOLLOWER (error 6)"),
    "no broker answers": ([lambda scene: scene.wire.down.update({1, 2, 3})], AT_T1 + "broker 2 closed the connection"),
    "every broker hangs": ([lambda scene: scene.wire.hung.update({1, 2, 3})], AT_T1 + "broker 2 did not answer"),
}


@pytest.mark.parametrize(("fault", "text"), STALLS.values(), ids=STALLS.keys())
def test_no_progress_ends_at_the_poll_timeout_and_says_where_and_why(scene: Scene, fault: Fault, text: str) -> None:
    scene.write(T0, "a", "b")
    scene.hold_back(T0, "c", "d", "e")
    scene.hold_back(T1, "a", "b", "c", "d", "e")
    reading = scene.reader(**HELD_BACK).read([scene.range(T0), scene.range(T1)])
    next(reading)
    scene.undergo(fault)
    began = scene.clock()
    with pytest.raises(ReadTimeoutError) as raised:
        next(reading)

    assert f"no progress in 120000 ms {text}" in str(raised.value)
    for option in ("kafkaConsumer.pollTimeoutMs", "kafka.request.timeout.ms", "kafka.fetch.max.bytes"):
        assert option in str(raised.value)
    assert scene.clock() - began == pytest.approx(POLL_TIMEOUT_S, abs=0.01)
    assert len(scene.wire.requests) < 5 * POLL_TIMEOUT_S


def test_poll_timeout_is_the_users(scene: Scene) -> None:
    began = scene.clock() + 10
    with pytest.raises(ReadTimeoutError, match=r"no progress in 700 ms .* kafkaConsumer\.pollTimeoutMs"):
        rows(scene.reader(kafkaConsumer_pollTimeoutMs="700").read([scene.range(T0, 0, 1)]))

    assert scene.clock() - began == pytest.approx(0.7)


def test_time_that_the_consumer_takes_for_rows_is_no_stall(scene: Scene) -> None:
    scene.fill()
    read = []
    for one in scene.reader(**ONE_BATCH).read(scene.ranges()):
        read.append(one)
        scene.clock.sleep(10 * POLL_TIMEOUT_S)

    assert by_partition(rows(iter(read))) == written()


def test_progress_starts_the_poll_timeout_anew(scene: Scene) -> None:
    for count in range(5):
        scene.hold_back(T0, "late")
        scene.clock.at(10 + 0.9 * POLL_TIMEOUT_S * (count + 1), partial(commit_until, scene, count + 1))

    assert len(rows(scene.reader(**HELD_BACK).read([scene.range(T0)]))) == 5


def commit_until(scene: Scene, offset: int) -> None:
    scene.wire.open_transactions[T0] = offset


# --- lost records -----------------------------------------------------------------------------------------------------

KEEP_GOING = {"failOnDataLoss": "false"}
RECREATED = "offsets 3 to 11 of t-2 cannot be read: the topic was deleted and made again under its name"
DELETED = "offsets 3 to 11 of t-2 cannot be read: the topic or partition was deleted"


def recreate(scene: Scene, partitions: int) -> None:
    """Topic t is deleted and made again, with other records at the same offsets."""
    scene.cluster.create_topic("t", partitions)
    for number in range(partitions):
        scene.write(TopicPartition("t", number), *["foreign"] * 20)


def age_out(scene: Scene, before: int) -> None:
    """Record batches of t-2 that lie before this offset are gone."""
    scene.cluster.logs[T2] = [one for one in scene.cluster.logs[T2] if one.base_offset >= before]


def truncate(scene: Scene, *values: str) -> None:
    """Broker 1 is elected to lead t-2 without having seen more than its first three records, and writes these."""
    del scene.cluster.logs[T2][1:]
    scene.cluster.move_leader(T2, 1)
    scene.write(T2, *values)


LOSSES: dict[str, tuple[Fault, str, slice]] = {
    "topic made again": ([lambda scene: recreate(scene, 3)], RECREATED, slice(3, 12)),
    "topic made again, smaller": ([lambda scene: recreate(scene, 1)], RECREATED, slice(3, 12)),
    "topic deleted": ([lambda scene: scene.cluster.topics.pop("t")], DELETED, slice(3, 12)),
    "beginning aged out": (
        [lambda scene: age_out(scene, 6)],
        "offsets 3 to 5 of t-2 cannot be read: they aged out or were deleted; the log starts at offset 6 now",
        slice(3, 6),
    ),
    "all aged out": (
        [lambda scene: scene.write(T2, "later"), lambda scene: age_out(scene, 12)],
        "offsets 3 to 11 of t-2 cannot be read: they aged out or were deleted; the log starts at offset 12 now",
        slice(3, 12),
    ),
    "log became shorter": (
        [lambda scene: scene.cluster.logs[T2].clear(), lambda scene: change(scene, failing(1))],
        "offsets 3 to 11 of t-2 cannot be read: the log ends at offset 0 now",
        slice(3, 12),
    ),
    "log ends before the range": (
        [lambda scene: scene.cluster.logs[T2].__delitem__(slice(2, None))],
        "offsets 6 to 11 of t-2 cannot be read: the log ends at offset 6 now",
        slice(6, 12),
    ),
}


@pytest.mark.parametrize(("fault", "text"), [one[:2] for one in LOSSES.values()], ids=LOSSES.keys())
def test_lost_records_fail_the_task_and_the_error_says_which(scene: Scene, fault: Fault, text: str) -> None:
    scene.fill()
    old_id = scene.cluster.topics["t"].topic_id
    reading = scene.reader(**ONE_BATCH).read([scene.range(T2)])
    next(reading)
    scene.undergo(fault)
    began = scene.clock()
    with pytest.raises(DataLossError) as raised:
        list(reading)

    assert text in str(raised.value)
    assert "set the option failOnDataLoss to false" in str(raised.value)
    assert scene.clock() - began < LOSS_GRACE_MS / 1000 + 4
    if text == RECREATED:
        assert f"(topic id {old_id}, now {scene.cluster.topics['t'].topic_id})" in str(raised.value)


@pytest.mark.parametrize(("fault", "text", "lost"), LOSSES.values(), ids=LOSSES.keys())
def test_lost_records_are_skipped_on_request_and_no_other_row_takes_their_place(
    scene: Scene, caplog: pytest.LogCaptureFixture, fault: Fault, text: str, lost: slice
) -> None:
    scene.fill()
    reading = scene.reader(**ONE_BATCH, **KEEP_GOING).read([scene.range(T2)])
    first = next(reading)
    scene.undergo(fault)
    expected = written()[T2]
    del expected[lost]

    assert by_partition(rows(iter([first, *reading]))) == {T2: expected}
    assert [text in record.message for record in caplog.records if record.levelno == logging.WARNING] == [True]
    [event] = [one for one in scene.events if one.kind is EventKind.DATA_LOSS]
    assert event.lost_until_offset is not None
    skipped = f"offsets {event.lost_from_offset} to {event.lost_until_offset - 1} of {event.cause_topic}-"
    assert text in f"{skipped}{event.cause_partition} cannot be read: {event.error}"


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_policy_lets_a_task_go_on_without_the_rest_of_a_topic_that_was_made_again(scene: Scene, policy: str) -> None:
    scene.fill()
    reading = scene.reader(**ONE_BATCH, onTopicRecreated=policy).read([scene.range(T2)])
    first = next(reading)
    recreate(scene, 3)

    assert by_partition(rows(iter([first, *reading]))) == {T2: written()[T2][:3]}
    [event] = [one for one in scene.events if one.kind is EventKind.DATA_LOSS]
    assert (event.lost_from_offset, event.lost_until_offset) == (3, 12)


def test_topic_made_again_after_an_offset_was_out_of_range_is_known_as_that(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.fill()
    planned, send_offsets = scene.range(T0, 5), scene.wire.send_offsets
    scene.script(T0, 1)

    def just_too_late(*asked: Any) -> None:
        if scene.cluster.topics["t"].topic_id == planned.topic_id:
            scene.cluster.create_topic("t", 3)
        send_offsets(*asked)

    monkeypatch.setattr(scene.wire, "send_offsets", just_too_late)

    assert rows(scene.reader(onTopicRecreated="earliest").read([planned])) == []
    [event] = [one for one in scene.events if one.kind is EventKind.DATA_LOSS]
    assert (event.lost_from_offset, event.lost_until_offset) == (5, 12)
    assert "made again under its name" in str(event.error)


POLICY_DOES_NOT_COVER: dict[str, tuple[dict[str, str], Fault, str]] = {
    "a topic that is only deleted": (
        {"onTopicRecreated": "earliest"},
        [lambda scene: scene.cluster.topics.pop("t")],
        f"{DELETED}.*set the option failOnDataLoss to false",
    ),
    "fail, whatever failOnDataLoss says": (
        {"onTopicRecreated": "fail", **KEEP_GOING},
        [lambda scene: recreate(scene, 3)],
        f"{RECREATED}.*set the option onTopicRecreated to earliest or latest",
    ),
}


@pytest.mark.parametrize(("options", "fault", "said"), POLICY_DOES_NOT_COVER.values(), ids=POLICY_DOES_NOT_COVER.keys())
def test_policy_for_topics_that_were_made_again_ends_a_task_otherwise(
    scene: Scene, options: dict[str, str], fault: Fault, said: str
) -> None:
    scene.fill()
    reading = scene.reader(**ONE_BATCH, **options).read([scene.range(T2)])
    next(reading)
    scene.undergo(fault)

    with pytest.raises(DataLossError, match=said):
        list(reading)


@pytest.mark.parametrize("options", [{}, KEEP_GOING], ids=["fail", "skip"])
def test_log_truncated_behind_the_reader_is_read_again_from_there(scene: Scene, options: dict[str, str]) -> None:
    scene.fill(batches=2)
    reading = scene.reader(**ONE_BATCH, **options).read([scene.range(T2, 0, 9)])
    before = list(islice(reading, 2))
    truncate(scene, "new-3", "new-4")
    scene.write(T2, "new-5", "new-6", "new-7", "new-8")

    if options:
        new = [(offset, f"new-{offset}") for offset in range(3, 9)]
        assert by_partition(rows(reading)) == {T2: new}, "offsets 3 to 5 come again, with the records there are now"
        assert by_partition(rows(iter(before))) == {T2: written()[T2][:6]}
    else:
        with pytest.raises(DataLossError, match=r"offsets 3 to 5 of t-2 cannot be read: the log was truncated to"):
            rows(reading)


def grow(scene: Scene) -> None:
    scene.write(T0, *(f"{offset}" for offset in range(scene.cluster.bounds(T0)[1], 6)))


def lag_behind(scene: Scene) -> None:
    """Broker 2 is elected, and does not know for seven seconds what is committed: OFFSET_NOT_AVAILABLE (KIP-207)."""
    scene.cluster.move_leader(T0, 2)
    scene.script(T0, *[78] * 1000)
    scene.clock.at(7, lambda: scene.script(T0))
    scene.clock.at(7, partial(grow, scene))


def lag_behind_in_fetches(scene: Scene) -> None:
    """The same to a Fetch: broker 2 has all records, and for seven seconds gives out none of those behind offset 3."""
    grow(scene)
    scene.cluster.move_leader(T0, 2)
    scene.wire.replica_ends[2, T0] = 3
    scene.clock.at(7, scene.wire.replica_ends.clear)


SHORT_FOR_A_WHILE: dict[str, Fault] = {
    "what was cut is written again": [lambda scene: scene.clock.at(LOSS_GRACE_MS / 1000 - 1, partial(grow, scene))],
    "it grows now and then": [
        lambda scene: [scene.clock.at(seconds, lambda: scene.write(T0, "more")) for seconds in (4, 8, 12)]
    ],
    "the leader was elected a moment ago": [lag_behind],
    "the leader was elected a moment ago, and answers": [lag_behind_in_fetches],
}


@pytest.mark.parametrize("fault", SHORT_FOR_A_WHILE.values(), ids=SHORT_FOR_A_WHILE.keys())
def test_log_that_ends_before_the_range_for_a_moment_loses_nothing(scene: Scene, fault: Fault) -> None:
    scene.write(T0, "0", "1", "2")
    reading = scene.reader().read([scene.range(T0, 0, 6)])
    scene.undergo(fault)

    assert [offset for _, offset, _ in rows(reading)] == list(range(6))


@pytest.mark.parametrize("grows", [True, False])
def test_range_that_begins_behind_the_log_is_waited_for_as_long(scene: Scene, grows: bool) -> None:
    scene.write(T0, "0", "1", "2")
    reading = scene.reader().read([scene.range(T0, 4, 6)])
    if grows:
        scene.clock.at(LOSS_GRACE_MS / 1000 - 1, partial(grow, scene))

        assert [offset for _, offset, _ in rows(reading)] == [4, 5]
    else:
        with pytest.raises(DataLossError, match="offsets 4 to 5 of t-0 cannot be read: the log ends at offset 3 now"):
            rows(reading)
    assert len(scene.wire.requests) < 150, "ten times a second it is asked at most"


def test_log_that_ends_before_the_range_is_asked_about_now_and_then_after_new_metadata(scene: Scene) -> None:
    scene.write(T0, "0", "1", "2")
    with pytest.raises(DataLossError, match="offsets 3 to 5 of t-0 cannot be read: the log ends at offset 3 now"):
        rows(scene.reader().read([scene.range(T0, 0, 6)]))

    assert scene.reasons() == [RefreshReason.ON_DEMAND]
    assert len(scene.sent("ListOffsets")) <= 6
    assert len(scene.sent("Fetch")) <= 20


def test_log_truncated_before_the_range_is_read_from_its_start_and_what_was_replaced_is_named(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.fill(batches=2)
    planned = replace(scene.range(T2, 6, 9), start_epoch=0)
    truncate(scene, *(f"new-{offset}" for offset in range(3, 9)))
    began = scene.clock() + 10

    assert rows(scene.reader(**KEEP_GOING).read([planned])) == [(T2, offset, f"new-{offset}") for offset in (6, 7, 8)]
    assert scene.clock() - began < 1
    [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "offsets 3 to 5 of t-2 cannot be read: the log was truncated to offset 3" in warning
    assert "took the place of offsets 3 to 5" in warning


@pytest.mark.parametrize("options", [{}, KEEP_GOING], ids=["fail", "skip"])
def test_topic_that_was_deleted_before_a_new_worker_looked_is_lost_too(scene: Scene, options: dict[str, str]) -> None:
    scene.fill()
    ranges = scene.ranges()
    del scene.cluster.topics["t"]
    reading = scene.reader(scene.client(), **options).read(ranges)
    began = scene.clock()

    if options:
        assert list(reading) == []
    else:
        with pytest.raises(DataLossError, match=r"offsets 0 to 11 of t-0 cannot be read: .* was deleted"):
            list(reading)
    assert scene.clock() - began < LOSS_GRACE_MS / 1000 + 2


@pytest.mark.parametrize("options", [{}, KEEP_GOING], ids=["fail", "skip"])
def test_cache_that_still_has_the_topic_before_it_was_made_again_loses_nothing(
    scene: Scene, options: dict[str, str]
) -> None:
    client = scene.warm_client()
    scene.cluster.create_topic("t", 3)
    scene.fill()

    assert by_partition(rows(scene.reader(client, **options).read(scene.ranges()))) == written()


@pytest.mark.parametrize("options", [{}, KEEP_GOING], ids=["fail", "skip"])
def test_brokers_that_fetch_by_name_give_no_rows_of_a_topic_that_was_made_again(
    scene: Scene, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to Kafka 3.0. The range was planned before, and the new log is as long."""
    scene.fill()
    planned = scene.ranges()
    scene.cluster.create_topic("t", 3)
    scene.fill()
    send = scene.wire.send_fetch

    def send_by_name(broker: Broker, request: FetchRequest, deadline: float) -> None:
        named = tuple(replace(one, topic_id=None) for one in request.partitions)
        send(broker, replace(request, partitions=named), deadline)

    monkeypatch.setattr(scene.wire, "send_fetch", send_by_name)
    scene.wire.change = lambda answer: replace(answer, by_id=False)
    reading = scene.reader(**options).read(planned)

    if options:
        assert rows(reading) == []
    else:
        with pytest.raises(DataLossError, match="made again under its name"):
            list(reading)


@pytest.mark.parametrize("code", [3, 100])
def test_topic_that_brokers_do_not_know_for_a_moment_is_not_lost(scene: Scene, code: int) -> None:
    client = scene.warm_client()
    scene.cluster.create_topic("t", 3)
    scene.fill()
    scene.wire.change = failing(code)
    scene.clock.at(LOSS_GRACE_MS / 1000 - 1, lambda: change(scene, lambda answer: answer))

    assert by_partition(rows(scene.reader(client).read(scene.ranges()))) == written()


def test_broker_that_goes_on_not_knowing_a_topic_that_the_metadata_has_loses_nothing(scene: Scene) -> None:
    scene.fill()
    scene.wire.change = failing(100)
    scene.clock.at(10 + 4 * LOSS_GRACE_MS / 1000, lambda: change(scene, lambda answer: answer))

    assert by_partition(rows(scene.reader().read([scene.range(T0)]))) == {T0: written()[T0]}


@pytest.mark.parametrize("seed", range(8))
def test_leader_and_another_broker_that_lag_behind_lose_nothing(scene: Scene, seed: int) -> None:
    """The topic was made again. The planner knew it; of the brokers, one tells the old id, and the leader has not got
    the new log yet, so that metadata is asked again and again, and tells now this id, now that."""
    scene.fill()
    scene.wire.cut_off(1)
    scene.cluster.create_topic("t", 3)
    scene.fill()
    scene.wire.replica_errors[1, T0] = 100
    scene.clock.at(LOSS_GRACE_MS / 1000 + 3, scene.wire.replica_errors.clear)
    client = scene.client()
    client.cache._state._choice._rng.seed(seed)

    assert by_partition(rows(scene.reader(client, **KEEP_GOING).read([scene.range(T0)]))) == {T0: written()[T0]}


def test_moments_without_the_topic_are_not_added_up(scene: Scene) -> None:
    scene.hold_back(T0, "late")
    reading = scene.reader(**HELD_BACK).read([scene.range(T0)])
    topics = dict(scene.cluster.topics)
    for seconds in range(10, 100, 10):
        scene.clock.at(seconds, scene.cluster.topics.clear)
        scene.clock.at(seconds + 1, lambda: scene.cluster.topics.update(topics))
    scene.clock.at(100, scene.wire.open_transactions.clear)

    assert rows(reading) == [(T0, 0, "late")]


def test_broker_that_dies_after_it_did_not_know_the_topic_loses_nothing(scene: Scene) -> None:
    def answer_and_die(answer: FetchAnswer) -> FetchAnswer:
        scene.wire.down.add(1)
        return failing(3)(answer)

    scene.fill()
    scene.wire.change = answer_and_die
    scene.clock.at(30, scene.wire.down.clear)
    scene.clock.at(30, lambda: change(scene, lambda answer: answer))

    assert by_partition(rows(scene.reader().read([scene.range(T0)]))) == {T0: written()[T0]}


def test_out_of_range_though_the_log_has_the_offset_is_no_loss(scene: Scene) -> None:
    scene.fill()
    codes = iter([1, 1])
    scene.wire.change = lambda answer: failing(1)(answer) if next(codes, 0) else answer

    assert by_partition(rows(scene.reader().read([scene.range(T0)]))) == {T0: written()[T0]}


# --- what asking again does not heal ----------------------------------------------------------------------------------


def test_doubt_about_one_partition_does_not_hold_up_those_of_other_brokers(scene: Scene) -> None:
    scene.fill()

    def doubt_and_hang(answer: FetchAnswer) -> FetchAnswer:
        if answer.node_id != 1:
            return answer
        scene.wire.hung.add(1)
        return failing(1)(answer)

    scene.wire.change = doubt_and_hang
    began, read = scene.clock(), []
    for one in scene.reader(**ONE_BATCH).read(scene.ranges()):
        read += rows(iter([one]))
        if len(read) == 24:
            scene.wire.hung.clear()
            scene.wire.change = lambda answer: answer
            assert scene.clock() - began < 4 * ANSWER_S, "a minute would be the time-out of a question"

    assert by_partition(read) == written()


def test_topic_that_may_not_be_read_fails_at_once(scene: Scene) -> None:
    ranges = scene.ranges()
    scene.wire.metadata_errors["t"] = 29
    began = scene.clock()
    with pytest.raises(BrokerError, match=r"t-0 cannot be read: TOPIC_AUTHORIZATION_FAILED \(error 29\)") as raised:
        rows(scene.reader(scene.client()).read([replace(one, until_offset=5) for one in ranges]))

    assert raised.value.code == 29
    assert scene.clock() - began < 1


def test_corrupt_records_fail_the_task_and_the_next_task_starts_clean(scene: Scene) -> None:
    scene.fill()
    client = scene.warm_client()
    damaged = scene.cluster.logs[T1][0]
    scene.cluster.logs[T1][0] = replace(damaged, data=damaged.data[:-1] + b"?")
    with pytest.raises(CorruptBatchError, match="t-1 at offset 0: record batch with base offset 0: its checksum"):
        rows(scene.reader(client).read(scene.ranges()))

    scene.cluster.logs[T1][0] = damaged
    assert by_partition(rows(scene.reader(client).read(scene.ranges()))) == written()


# --- corrupt batches --------------------------------------------------------------------------------------------------


def damage_checksum(batch: StoredBatch) -> StoredBatch:
    return replace(batch, data=batch.data[:-1] + b"?")


def damage_records(batch: StoredBatch) -> StoredBatch:
    """The first record's length, with a checksum that is right."""
    data = batch.data[:61] + b"\x7f" + batch.data[62:]
    return replace(batch, data=data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:])


def damage_length(batch: StoredBatch) -> StoredBatch:
    return replace(batch, data=batch.data[:8] + bytes(4) + batch.data[12:])


DAMAGES = [damage_checksum, damage_records, damage_length]
Damage = Callable[[StoredBatch], StoredBatch]
SKIP = {"onCorruptBatch": "skip"}


def damaged(scene: Scene, damage: Damage, index: int) -> StoredBatch:
    """Damage one batch of T1, whose four batches have three records each. Returns what it was."""
    log = scene.cluster.logs[T1]
    before, log[index] = log[index], damage(log[index])
    return before


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("options", [{}, ONE_BATCH, HELD_BACK], ids=["all at once", "batch by batch", "committed"])
@pytest.mark.parametrize("index", range(4))
def test_batch_that_was_corrupt_on_its_way_is_read_the_second_time(
    scene: Scene, damage: Damage, options: dict[str, str], index: int
) -> None:
    scene.fill()
    reader = scene.reader(**options)
    good = damaged(scene, damage, index)

    def heal(answer: FetchAnswer) -> FetchAnswer:
        if any(one.partition == T1 and damage(good).data in one.records for one in answer.partitions):
            scene.cluster.logs[T1][index] = good
        return answer

    scene.wire.change = heal
    assert by_partition(rows(reader.read(scene.ranges()))) == written()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("options", [{}, ONE_BATCH], ids=["all at once", "batch by batch"])
@pytest.mark.parametrize("index", range(4))
def test_corrupt_batch_fails_with_topic_partition_and_offset_after_two_fetches_of_it(
    scene: Scene, damage: Damage, options: dict[str, str], index: int
) -> None:
    scene.fill()
    damaged(scene, damage, index)
    at = 3 * index
    with pytest.raises(CorruptBatchError, match=f"^t-1 at offset {at}: .* fetched twice.* go on without it") as raised:
        rows(scene.reader(**options).read(scene.ranges()))

    assert (raised.value.topic, raised.value.partition, raised.value.from_offset) == ("t", 1, at)
    asked = [one.fetch_offset for _, request in scene.wire.fetches for one in request.partitions if one.partition == T1]
    assert 1 <= asked.count(at) <= 2


@pytest.mark.parametrize("damage", [damage_checksum, damage_records])
@pytest.mark.parametrize("options", [{}, ONE_BATCH], ids=["all at once", "batch by batch"])
@pytest.mark.parametrize("index", range(4))
def test_corrupt_batch_is_skipped_alone_with_an_event_of_its_offsets(
    scene: Scene, damage: Damage, options: dict[str, str], index: int, caplog: pytest.LogCaptureFixture
) -> None:
    scene.fill()
    damaged(scene, damage, index)
    at = 3 * index
    expected = {**written(), T1: [row for row in written()[T1] if not at <= row[0] < at + 3]}

    assert by_partition(rows(scene.reader(**options, **SKIP).read(scene.ranges()))) == expected
    (event,) = [event for event in scene.events if event.kind is EventKind.DATA_LOSS]
    assert (event.cause_topic, event.cause_partition) == ("t", 1)
    assert (event.lost_from_offset, event.lost_until_offset) == (at, at + 3)
    assert f"base offset {at}" in str(event.error)
    assert "as onCorruptBatch says" in caplog.text


def test_batches_that_are_all_corrupt_are_progress_when_they_are_skipped(scene: Scene) -> None:
    scene.fill(batches=30)
    scene.cluster.logs[T1] = [damage_checksum(one) for one in scene.cluster.logs[T1]]

    assert rows(scene.reader(**SKIP, kafkaConsumer_pollTimeoutMs="500").read([scene.range(T1)])) == []
    lost = [(one.lost_from_offset, one.lost_until_offset) for one in scene.events if one.kind is EventKind.DATA_LOSS]
    assert lost == [(at, at + 3) for at in range(0, 90, 3)]


def test_corrupt_batch_whose_end_cannot_be_told_is_not_skipped(scene: Scene) -> None:
    scene.fill()
    damaged(scene, damage_length, 3)
    with pytest.raises(CorruptBatchError, match=r"t-1 at offset 9: .* start behind it"):
        rows(scene.reader(**SKIP).read(scene.ranges()))


@pytest.mark.parametrize("options", [{}, SKIP], ids=["fail", "skip"])
def test_batch_that_its_broker_calls_corrupt_fails_the_task_when_it_does_so_twice(
    scene: Scene, options: dict[str, str]
) -> None:
    scene.fill()
    scene.wire.error_codes[T1] = deque([CORRUPT_MESSAGE])
    assert by_partition(rows(scene.reader(**options).read(scene.ranges()))) == written()

    scene.wire.error_codes[T1] = deque([CORRUPT_MESSAGE] * 2)
    with pytest.raises(CorruptBatchError, match=r"^t-1 at offset 0: .*CORRUPT_MESSAGE.*twice.* start behind it"):
        rows(scene.reader(**options).read(scene.ranges()))


def test_corrupt_batch_of_a_follower_is_read_from_the_leader(scene: Scene) -> None:
    scene.fill()
    scene.wire.preferred_replicas[T1] = 3
    asked: list[int] = []

    def damage_of_follower(answer: FetchAnswer) -> FetchAnswer:
        if not any(one.partition == T1 and one.records for one in answer.partitions):
            return answer
        asked.append(answer.node_id)
        corrupt = [replace(one, records=memoryview(bytes(one.records[:-1]) + b"?")) for one in answer.partitions]
        return replace(answer, partitions=tuple(corrupt)) if answer.node_id == 3 else answer

    scene.wire.change = damage_of_follower
    read = rows(scene.reader(kafka_client_rack="r", **ONE_BATCH).read([scene.range(T1)]))
    assert by_partition(read) == {T1: written()[T1]}
    assert asked == [3, 2, 2, 2, 2]


def test_batch_that_decompresses_to_more_than_the_option_allows_is_corrupt(scene: Scene) -> None:
    scene.fill()
    bomb = handmade.batch([handmade.Row(offset, value=bytes(1000)) for offset in range(3)], Codec.ZSTD)
    scene.cluster.logs[T1][0] = replace(scene.cluster.logs[T1][0], data=bomb)
    with pytest.raises(CorruptBatchError, match=r"t-1 at offset 0: .* at most 2000 bytes"):
        rows(scene.reader(maxDecompressedBatchBytes="2000").read([scene.range(T1)]))
    assert len(rows(scene.reader(maxDecompressedBatchBytes="4000").read([scene.range(T1)]))) == 12
