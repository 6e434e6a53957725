"""A task that reads wakes up for whatever it does not send now, and one without progress ends at the poll time-out, and
says where and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ReadTimeoutError
from pyspark_kafka_meta.kafka.protocol.fetch import FetchResponse
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetsResponse
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.model import NO_LEADER, TopicPartition
from tests.partitions import T0, T1, T2
from tests.unit.fake_network import about_s
from tests.unit.read.fetching.responses import ONE_BATCH, POLL_TIMEOUT_S, change, failing
from tests.unit.scene import HELD_BACK, Fault, Scene, by_partition, rows, written

AT_T0 = "reading t-0 at offset 2 (of 0 to 5): "
AT_T1 = "reading t-1 at offset 0 (of 0 to 5): "
STALLS: dict[str, tuple[Fault, str]] = {
    "a transaction stays open": ([], AT_T1 + "the brokers send no records"),
    "a transaction stays open once the leader is back": (
        [lambda scene: scene.network.down.add(1), lambda scene: scene.clock.at(9, scene.network.down.clear)],
        AT_T1 + "the brokers send no records",
    ),
    "leader hangs": ([lambda scene: scene.network.hung.add(1)], AT_T0 + "broker 1 did not answer Fetch in time"),
    "leader is down": ([lambda scene: scene.network.down.add(1)], AT_T0 + "cannot connect to broker-1:9092"),
    "no leader": ([lambda scene: scene.cluster.move_leader(T0, NO_LEADER)], AT_T0 + "LEADER_NOT_AVAILABLE (error 5)"),
    "leader is nowhere": ([lambda scene: scene.cluster.brokers.pop(1)], AT_T0 + "LEADER_NOT_AVAILABLE (error 5)"),
    "an error for ever": ([lambda scene: change(scene, failing(75))], AT_T1 + "UNKNOWN_LEADER_EPOCH (error 75)"),
    "not leader for ever": ([lambda scene: change(scene, failing(6))], AT_T1 + "NOT_LEADER_OR_FOLLOWER (error 6)"),
    "no broker responds": ([lambda scene: scene.network.down.update({1, 2, 3})], AT_T1 + "broker 2 closed the connect"),
    "every broker hangs": ([lambda scene: scene.network.hung.update({1, 2, 3})], AT_T1 + "broker 2 did not answer"),
}


@pytest.mark.parametrize(("fault", "text"), STALLS.values(), ids=STALLS.keys())
def test_no_progress_ends_at_the_poll_timeout_and_says_where_and_why(scene: Scene, fault: Fault, text: str) -> None:
    scene.empty()
    scene.clock.tick_s = 0  # both partitions stall at the same time
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
    assert len(scene.network.requests) < 5 * POLL_TIMEOUT_S


def test_poll_timeout_is_the_users(scene: Scene) -> None:
    scene.empty()
    began = scene.clock() + 10
    with pytest.raises(ReadTimeoutError, match=r"no progress in 700 ms .* kafkaConsumer\.pollTimeoutMs"):
        rows(scene.reader(kafkaConsumer_pollTimeoutMs="700").read([scene.range(T0, 0, 1)]))

    assert scene.clock() - began == about_s(0.7)


def test_time_that_the_consumer_takes_for_rows_is_no_stall(scene: Scene) -> None:
    read = []
    for batch in scene.reader(**ONE_BATCH).read(scene.ranges()):
        read.append(batch)
        scene.clock.sleep(10 * POLL_TIMEOUT_S)

    assert by_partition(rows(iter(read))) == written()


def test_progress_starts_the_poll_timeout_anew(scene: Scene) -> None:
    scene.empty()
    for count in range(5):
        scene.hold_back(T0, "late")
        scene.clock.at(10 + 0.9 * POLL_TIMEOUT_S * (count + 1), partial(commit_until, scene, count + 1))

    assert len(rows(scene.reader(**HELD_BACK).read([scene.range(T0)]))) == 5


def commit_until(scene: Scene, offset: int, partition: TopicPartition = T0) -> None:
    scene.network.open_transactions[partition] = offset


def test_partition_without_a_leader_fails_the_read_although_others_make_progress(scene: Scene) -> None:
    scene.network.open_transactions[T1] = 0
    for count in range(12):
        scene.clock.at(50 * (count + 1), partial(commit_until, scene, count + 1, T1))
    reader = scene.reader(**HELD_BACK)
    scene.cluster.move_leader(T0, NO_LEADER)
    began, read = scene.clock(), 0
    with pytest.raises(ReadTimeoutError, match=r"no progress in 120000 ms reading t-0 at offset 0 .*error 5"):
        for batch in reader.read([scene.range(T0), scene.range(T1)]):
            read += batch.num_rows

    assert read > 0
    assert scene.clock() - began == pytest.approx(POLL_TIMEOUT_S, abs=1)


def test_partition_of_a_silent_leader_fails_the_read_although_others_make_progress(scene: Scene) -> None:
    scene.network.open_transactions[T1] = 0
    for count in range(12):
        scene.clock.at(50 * (count + 1), partial(commit_until, scene, count + 1, T1))
    reader = scene.reader(**HELD_BACK)
    scene.network.hung.add(1)
    began = scene.clock()
    with pytest.raises(ReadTimeoutError, match=r"reading t-0 at offset 0 .*did not answer"):
        rows(reader.read([scene.range(T0), scene.range(T1)]))

    assert scene.clock() - began == pytest.approx(POLL_TIMEOUT_S, abs=1)


def test_partition_that_waits_while_its_leader_responds_about_others_has_not_stalled(scene: Scene) -> None:
    scene.empty()
    for partition in (T1, T2):
        scene.cluster.move_leader(partition, 1)
    scene.fill(batches=6)

    def responded_late(response: FetchResponse) -> FetchResponse:
        """With the records of one partition, as if they filled it."""
        scene.clock.sleep(0.6 * POLL_TIMEOUT_S)
        first = next((fetched.partition for fetched in response.partitions if fetched.records), None)
        return replace(
            response,
            partitions=tuple(
                fetched if fetched.partition == first else replace(fetched, records=b"")
                for fetched in response.partitions
            ),
        )

    change(scene, responded_late)

    assert by_partition(rows(scene.reader(**ONE_BATCH).read(scene.ranges()))) == written(batches=6)


def test_partition_that_moves_to_a_busy_leader_has_not_stalled(scene: Scene) -> None:
    scene.network.open_transactions[T1] = 0
    reader = scene.reader(kafka_fetch_max_wait_ms="100000", **HELD_BACK)
    scene.cluster.move_leader(T0, NO_LEADER)
    scene.clock.at(59, partial(commit_until, scene, 1, T1))
    scene.clock.at(60, lambda: scene.cluster.move_leader(T0, 2))
    scene.clock.at(165, scene.network.open_transactions.clear)

    assert len(rows(reader.read([scene.range(T0), scene.range(T1)]))) == 24


def test_questions_about_other_partitions_are_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five partitions of one leader are out of range; each question about them takes 1.9 s."""
    scene = Scene(monkeypatch, partitions=6)
    partitions = [TopicPartition("t", number) for number in range(6)]
    for partition in partitions:
        scene.cluster.move_leader(partition, 2 if partition == partitions[5] else 1)
        scene.write(partition, "a", "b")
    reader = scene.reader(kafkaConsumer_pollTimeoutMs="15000")
    ranges = [scene.range(partition) for partition in partitions]
    scene.cluster.move_leader(partitions[5], NO_LEADER)
    scene.clock.at(0.2, lambda: scene.cluster.move_leader(partitions[5], 2))
    for partition in partitions[:5]:
        scene.script(partition, 1)
    receive = scene.network.offsets.receive

    def slowly(node_ids: Collection[int], deadline: float) -> OffsetsResponse | RequestFailure | None:
        scene.clock.wait_until(min(scene.clock() + 1.9, deadline))
        return receive(node_ids, deadline)

    monkeypatch.setattr(scene.network.offsets, "receive", slowly)

    assert len(rows(reader.read(ranges))) == 12


BATCHES = 100
THROTTLE_MS = 20


def throttled(response: FetchResponse) -> FetchResponse:
    return replace(response, throttle_ms=THROTTLE_MS)


@pytest.mark.parametrize("tick_s", [1e-4, 1e-3])
def test_fetch_is_sent_as_soon_as_its_pause_ends(scene: Scene, tick_s: float) -> None:
    """The consumer takes up to a fifth more than a pause for rows, so that pauses end at any step of the loop."""
    scene.empty()
    scene.fill(batches=BATCHES)
    reader = scene.reader(**ONE_BATCH)
    change(scene, throttled)
    scene.clock.tick_s = tick_s
    began, read = scene.clock.now, 0
    for batch in reader.read([scene.range(T0)]):
        read += batch.num_rows
        scene.clock.sleep(1.2 * THROTTLE_MS / 1000 * (read % 97) / 97)

    assert read == 3 * BATCHES
    assert scene.clock.now - began < BATCHES * 0.1


def test_time_that_the_process_does_not_run_is_no_stall(scene: Scene) -> None:
    """The process stops for longer than the timeout in the pause after an error. The next response takes 50 ms."""
    reader = scene.reader()
    fetches = scene.network.fetch
    scene.monkeypatch.setattr(fetches, "_ends_at", lambda node_id: fetches.in_flight[node_id][0].sent_at + 0.05)
    scene.script(T0, ErrorCode.request_timed_out)
    scene.clock.at(0.1, lambda: scene.clock.sleep(2 * POLL_TIMEOUT_S))

    assert len(rows(reader.read([scene.range(T0)]))) == 12
