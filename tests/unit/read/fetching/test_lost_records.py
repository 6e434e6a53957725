"""A task whose records are lost fails, or continues after them if the options allow it."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import pytest

from pyspark_kafka_meta.errors import ConnectError, DataLossError
from pyspark_kafka_meta.events.event import EventKind
from pyspark_kafka_meta.kafka.protocol.fetch import FetchRequest, FetchResponse
from pyspark_kafka_meta.model import Address, Broker, MetadataResponse, RefreshReason, TopicMetadata, TopicPartition
from pyspark_kafka_meta.read.fetching.fetch_sender import MAX_REPORT_AGE_S
from pyspark_kafka_meta.read.fetching.lost_records import CONFIRM_TIMEOUT_S, LOSS_GRACE_MS
from tests.partitions import T0, T1, T2
from tests.unit.read.fetching.responses import ONE_BATCH, change, failing
from tests.unit.scene import HELD_BACK, Fault, Scene, by_partition, rows, written

KEEP_GOING = {"failOnDataLoss": "false"}
RECREATED = "offsets 3 to 11 of t-2 cannot be read: the topic was deleted and recreated under its name"
DELETED = "offsets 3 to 11 of t-2 cannot be read: the topic or partition was deleted"


def recreate(scene: Scene, partitions: int) -> None:
    """Topic t is deleted and recreated, with other records at the same offsets."""
    scene.cluster.create_topic("t", partitions)
    for number in range(partitions):
        scene.write(TopicPartition("t", number), *["foreign"] * 20)


def age_out(scene: Scene, before: int) -> None:
    """Record batches of t-2 that lie before this offset are gone."""
    scene.cluster.logs[T2] = [batch for batch in scene.cluster.logs[T2] if batch.base_offset >= before]


def truncate(scene: Scene, *values: str) -> None:
    """Broker 1 is elected to lead t-2 without having seen more than its first three records, and writes these."""
    del scene.cluster.logs[T2][1:]
    scene.cluster.move_leader(T2, 1)
    scene.write(T2, *values)


LOSSES: dict[str, tuple[Fault, str, slice]] = {
    "topic recreated": ([lambda scene: recreate(scene, 3)], RECREATED, slice(3, 12)),
    "topic recreated, smaller": ([lambda scene: recreate(scene, 1)], RECREATED, slice(3, 12)),
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


@pytest.mark.parametrize(("fault", "text"), [case[:2] for case in LOSSES.values()], ids=LOSSES.keys())
def test_lost_records_fail_the_task_and_the_error_says_which(scene: Scene, fault: Fault, text: str) -> None:
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
    reading = scene.reader(**ONE_BATCH, **KEEP_GOING).read([scene.range(T2)])
    first = next(reading)
    scene.undergo(fault)
    expected = written()[T2]
    del expected[lost]

    assert by_partition(rows(iter([first, *reading]))) == {T2: expected}
    assert [text in record.message for record in caplog.records if record.levelno == logging.WARNING] == [True]
    [event] = [event for event in scene.events if event.kind is EventKind.DATA_LOSS]
    assert event.details.lost_until_offset is not None
    skipped = (
        f"offsets {event.details.lost_from_offset} to {event.details.lost_until_offset - 1} of {event.cause_topic}-"
    )
    assert text in f"{skipped}{event.cause_partition} cannot be read: {event.details.error}"


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_policy_lets_a_task_go_on_without_the_rest_of_a_topic_that_was_recreated(scene: Scene, policy: str) -> None:
    reading = scene.reader(**ONE_BATCH, onTopicRecreated=policy).read([scene.range(T2)])
    first = next(reading)
    recreate(scene, 3)

    assert by_partition(rows(iter([first, *reading]))) == {T2: written()[T2][:3]}
    assert scene.losses() == [(T2, 3, 12)]


def test_topic_recreated_after_an_offset_was_out_of_range_is_known_as_that(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, send = scene.range(T0, 5), scene.network.offsets.send
    scene.script(T0, 1)

    def just_too_late(*requested: Any) -> None:
        if scene.cluster.topics["t"].topic_id == planned.topic_id:
            scene.cluster.create_topic("t", 3)
        send(*requested)

    monkeypatch.setattr(scene.network.offsets, "send", just_too_late)

    assert rows(scene.reader(onTopicRecreated="earliest").read([planned])) == []
    [event] = [event for event in scene.events if event.kind is EventKind.DATA_LOSS]
    assert (event.details.lost_from_offset, event.details.lost_until_offset) == (5, 12)
    assert "recreated under its name" in str(event.details.error)


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


@pytest.mark.parametrize(
    ("options", "fault", "error_text"), POLICY_DOES_NOT_COVER.values(), ids=POLICY_DOES_NOT_COVER.keys()
)
def test_policy_of_recreation_may_fail(scene: Scene, options: dict[str, str], fault: Fault, error_text: str) -> None:
    reading = scene.reader(**ONE_BATCH, **options).read([scene.range(T2)])
    next(reading)
    scene.undergo(fault)

    with pytest.raises(DataLossError, match=error_text):
        list(reading)


@pytest.mark.parametrize("options", [{}, KEEP_GOING], ids=["fail", "skip"])
def test_log_truncated_behind_the_reader_is_read_again_from_there(scene: Scene, options: dict[str, str]) -> None:
    scene.empty()
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
    """The same to a Fetch: broker 2 has all records, and for seven seconds gives out none of those after offset 3."""
    grow(scene)
    scene.cluster.move_leader(T0, 2)
    scene.network.replica_ends[2, T0] = 3
    scene.clock.at(7, scene.network.replica_ends.clear)


SHORT_FOR_A_WHILE: dict[str, Fault] = {
    "what was cut is written again": [lambda scene: scene.clock.at(LOSS_GRACE_MS / 1000 - 1, partial(grow, scene))],
    "it grows now and then": [
        lambda scene: [scene.clock.at(seconds, lambda: scene.write(T0, "more")) for seconds in (4, 8, 12)]
    ],
    "the leader was elected a moment ago": [lag_behind],
    "the leader was elected a moment ago, and responds": [lag_behind_in_fetches],
}


@pytest.mark.parametrize("fault", SHORT_FOR_A_WHILE.values(), ids=SHORT_FOR_A_WHILE.keys())
def test_log_that_ends_before_the_range_for_a_moment_loses_nothing(scene: Scene, fault: Fault) -> None:
    scene.empty()
    scene.write(T0, "0", "1", "2")
    reading = scene.reader().read([scene.range(T0, 0, 6)])
    scene.undergo(fault)

    assert [offset for _, offset, _ in rows(reading)] == list(range(6))


@pytest.mark.parametrize("grows", [True, False])
def test_range_that_begins_after_the_log_is_waited_for_as_long(scene: Scene, grows: bool) -> None:
    scene.empty()
    scene.write(T0, "0", "1", "2")
    reading = scene.reader().read([scene.range(T0, 4, 6)])
    if grows:
        scene.clock.at(LOSS_GRACE_MS / 1000 - 1, partial(grow, scene))

        assert [offset for _, offset, _ in rows(reading)] == [4, 5]
    else:
        with pytest.raises(DataLossError, match="offsets 4 to 5 of t-0 cannot be read: the log ends at offset 3 now"):
            rows(reading)
    assert len(scene.network.requests) < 150, "ten times a second it is asked at most"


def test_log_that_ends_before_the_range_is_asked_about_now_and_then_after_new_metadata(scene: Scene) -> None:
    scene.empty()
    scene.write(T0, "0", "1", "2")
    with pytest.raises(DataLossError, match="offsets 3 to 5 of t-0 cannot be read: the log ends at offset 3 now"):
        rows(scene.reader().read([scene.range(T0, 0, 6)]))

    assert scene.reasons() == [RefreshReason.ON_DEMAND, RefreshReason.ON_DEMAND], "at first, and once it counts as lost"
    assert len(scene.sent("ListOffsets")) <= 6
    assert len(scene.sent("Fetch")) <= 20


def test_log_that_ends_before_the_range_is_fetched_ten_times_a_second_though_brokers_may_not_wait(scene: Scene) -> None:
    scene.empty()
    scene.write(T0, "0", "1", "2")
    with pytest.raises(DataLossError):
        rows(scene.reader(kafka_fetch_max_wait_ms="0").read([scene.range(T0, 0, 6)]))

    assert len(scene.sent("Fetch")) <= 1.2 * 10 * LOSS_GRACE_MS / 1000


def test_log_truncated_before_the_range_names_what_was_replaced(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.empty()
    scene.fill(batches=2)
    planned = replace(scene.range(T2, 6, 9), start_epoch=0)
    truncate(scene, *(f"new-{offset}" for offset in range(3, 9)))
    began = scene.clock() + 10

    assert rows(scene.reader(**KEEP_GOING).read([planned])) == [(T2, offset, f"new-{offset}") for offset in (6, 7, 8)]
    assert scene.clock() - began < 1
    [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "offsets 3 to 5 of t-2 cannot be read: the log was truncated to offset 3" in warning
    assert "replaced offsets 3 to 5" in warning


@pytest.mark.parametrize("options", [{}, KEEP_GOING], ids=["fail", "skip"])
def test_topic_that_was_deleted_before_a_new_worker_looked_is_lost_too(scene: Scene, options: dict[str, str]) -> None:
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
def test_cache_that_has_the_topic_before_recreation_loses_nothing(scene: Scene, options: dict[str, str]) -> None:
    client = scene.warm_client()
    scene.cluster.create_topic("t", 3)
    scene.fill()

    assert by_partition(rows(scene.reader(client, **options).read(scene.ranges()))) == written()


def fetch_by_name(scene: Scene) -> None:
    """As brokers up to Kafka 3.0."""
    send = scene.network.fetch.send

    def send_by_name(broker: Broker, request: FetchRequest, deadline: float) -> None:
        named = tuple(replace(requested, topic_id=None) for requested in request.partitions)
        send(broker, replace(request, partitions=named), deadline)

    scene.monkeypatch.setattr(scene.network.fetch, "send", send_by_name)
    scene.network.change = lambda response: replace(response, by_id=False)


LAGGING = [(), (2, 3), (1, 2), (1, 3)]
"""Brokers that do not know yet that the topic was recreated."""


@pytest.mark.parametrize("lagging", LAGGING)
@pytest.mark.parametrize("options", [{}, KEEP_GOING], ids=["fail", "skip"])
def test_brokers_that_fetch_by_name_give_no_rows_of_a_topic_that_was_recreated(
    scene: Scene, options: dict[str, str], lagging: tuple[int, ...]
) -> None:
    """The range was planned before, the new log is as long, and the cache knows the old topic."""
    planned, client = scene.ranges(), scene.warm_client()
    leader = next(broker for broker in (1, 2, 3) if broker not in lagging)
    for broker in lagging:
        scene.network.cut_off(broker)
    scene.clock.at(20, scene.network.catch_up)
    scene.cluster.create_topic("t", 3)
    scene.fill()
    scene.clock.sleep(MAX_REPORT_AGE_S)
    fetch_by_name(scene)
    reading = scene.reader(client, **options).read([planned[leader - 1]])

    if options:
        assert rows(reading) == []
    else:
        with pytest.raises(DataLossError, match="recreated under its name"):
            list(reading)
    assert len(scene.network.requests) < 20 * 15, "in 20 seconds"


def test_broker_that_fetches_by_name_is_asked_for_the_topic_itself(scene: Scene) -> None:
    client = scene.warm_client()
    fetch_by_name(scene)

    assert by_partition(rows(scene.reader(client, **ONE_BATCH).read(scene.ranges()))) == written()
    assert sorted(scene.sent("Metadata")) == [1, 2, 3], "each once in a while"


def test_brokers_that_fetch_by_name_are_followed_through_elections_and_waits(scene: Scene) -> None:
    """Responses without records say nothing about the topic."""
    scene.empty()
    client = scene.warm_client()
    fetch_by_name(scene)
    planned = scene.range(T0, 0, 2)
    scene.cluster.move_leader(T0, 3)
    scene.clock.at(1.5, lambda: scene.write(T0, "a", "b"))
    began = scene.clock()

    assert rows(scene.reader(client).read([planned])) == [(T0, 0, "a"), (T0, 1, "b")]
    assert scene.clock() - began < 2.5
    assert set(scene.reasons()) == {RefreshReason.LEADER_HINT, RefreshReason.ON_DEMAND}


@pytest.mark.parametrize("fault", ["unknown", "down"])
def test_records_by_name_wait_until_their_broker_reports_the_topic(scene: Scene, fault: str) -> None:
    """Its own metadata has no such topic for a moment, as while the topic is recreated; or another broker responds."""
    client = scene.warm_client()
    fetch_by_name(scene)
    real, address = scene.network.metadata, scene.cluster.brokers[1].address
    until = scene.clock() + 3

    def metadata(to: Address, *arguments: Any) -> MetadataResponse:
        if to != address or scene.clock() >= until:
            return real(to, *arguments)
        if fault == "down":
            raise ConnectError("broker-1 refuses Metadata alone")
        return replace(real(to, *arguments), topics=(TopicMetadata("t", None, (), 3),))

    scene.monkeypatch.setattr(scene.network, "metadata", metadata)
    began = scene.clock()

    assert by_partition(rows(scene.reader(client).read([scene.range(T0)]))) == {T0: written()[T0]}
    assert 3 <= scene.clock() - began < 5
    assert len(scene.network.requests) < 60


def test_time_for_the_topic_of_one_broker_does_not_count_as_a_stall_of_others(scene: Scene) -> None:
    """Broker 2 takes 3 seconds, four times, to report the topic. Broker 1 sends its records 13 seconds later."""
    scene.empty()
    scene.write(T1, "by name")
    scene.hold_back(T0, "late")
    client = scene.warm_client()
    fetch_by_name(scene)
    scene.network.hung_metadata.add(2)
    scene.clock.at(12, scene.network.hung_metadata.clear)
    scene.clock.at(13, scene.network.open_transactions.clear)
    reader = scene.reader(client, **HELD_BACK, kafkaConsumer_pollTimeoutMs="13000")

    assert sorted(rows(reader.read([scene.range(T0), scene.range(T1)]))) == [(T0, 0, "late"), (T1, 0, "by name")]


@pytest.mark.parametrize("code", [3, 100])
def test_topic_that_brokers_do_not_know_for_a_moment_is_not_lost(scene: Scene, code: int) -> None:
    client = scene.warm_client()
    scene.cluster.create_topic("t", 3)
    scene.fill()
    scene.network.change = failing(code)
    scene.clock.at(LOSS_GRACE_MS / 1000 - 1, lambda: change(scene, lambda response: response))

    assert by_partition(rows(scene.reader(client).read(scene.ranges()))) == written()


@pytest.mark.parametrize("id_is_known", [True, False], ids=["by id", "from a migrated checkpoint"])
def test_broker_that_goes_on_not_knowing_a_known_topic_loses_nothing(scene: Scene, id_is_known: bool) -> None:
    scene.network.change = failing(100 if id_is_known else 3)
    scene.clock.at(10 + 4 * LOSS_GRACE_MS / 1000, lambda: change(scene, lambda response: response))
    planned = scene.range(T0) if id_is_known else replace(scene.range(T0), topic_id=None)

    assert by_partition(rows(scene.reader().read([planned]))) == {T0: written()[T0]}


@pytest.mark.parametrize("seed", range(8))
def test_leader_and_another_broker_that_lag_behind_lose_nothing(scene: Scene, seed: int) -> None:
    """The topic was recreated. The planner knew it; of the brokers, one tells the old id, and the leader has not got
    the new log yet, so that metadata is asked again and again, and tells now this id, now that."""
    scene.network.cut_off(1)
    scene.cluster.create_topic("t", 3)
    scene.fill()
    scene.network.replica_errors[1, T0] = 100
    scene.clock.at(LOSS_GRACE_MS / 1000 + 3, scene.network.replica_errors.clear)
    client = scene.client()
    client.cache._choice._rng.seed(seed)

    assert by_partition(rows(scene.reader(client, **KEEP_GOING).read([scene.range(T0)]))) == {T0: written()[T0]}


def test_moments_without_the_topic_are_not_added_up(scene: Scene) -> None:
    scene.empty()
    scene.hold_back(T0, "late")
    reading = scene.reader(**HELD_BACK).read([scene.range(T0)])
    topics = dict(scene.cluster.topics)
    for seconds in range(10, 100, 10):
        scene.clock.at(seconds, scene.cluster.topics.clear)
        scene.clock.at(seconds + 1, lambda: scene.cluster.topics.update(topics))
    scene.clock.at(100, scene.network.open_transactions.clear)

    assert rows(reading) == [(T0, 0, "late")]


def test_broker_that_dies_after_it_did_not_know_the_topic_loses_nothing(scene: Scene) -> None:
    def respond_and_die(response: FetchResponse) -> FetchResponse:
        scene.network.down.add(1)
        return failing(3)(response)

    scene.network.change = respond_and_die
    scene.clock.at(30, scene.network.down.clear)
    scene.clock.at(30, lambda: change(scene, lambda response: response))

    assert by_partition(rows(scene.reader().read([scene.range(T0)]))) == {T0: written()[T0]}


def test_out_of_range_though_the_log_has_the_offset_is_no_loss(scene: Scene) -> None:
    codes = iter([1, 1])
    scene.network.change = lambda response: failing(1)(response) if next(codes, 0) else response

    assert by_partition(rows(scene.reader().read([scene.range(T0)]))) == {T0: written()[T0]}


def test_doubt_about_one_partition_does_not_hold_up_those_of_other_brokers(scene: Scene) -> None:

    def doubt_and_hang(response: FetchResponse) -> FetchResponse:
        if response.node_id != 1:
            return response
        scene.network.hung.add(1)
        return failing(1)(response)

    scene.network.change = doubt_and_hang
    began, read = scene.clock(), []
    for batch in scene.reader(**ONE_BATCH).read(scene.ranges()):
        read += rows(iter([batch]))
        if len(read) == 24:
            scene.network.hung.clear()
            scene.network.change = lambda response: response
            assert scene.clock() - began < 4 * CONFIRM_TIMEOUT_S, "a minute would be the time-out of a question"

    assert by_partition(read) == written()
