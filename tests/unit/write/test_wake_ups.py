"""A task that writes waits exactly as long as it must, and takes no healthy broker for a hung one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka.protocol.produce import ProduceRequest
from pyspark_kafka_meta.model import Broker, RefreshReason, TopicPartition
from tests.partitions import T0, T1, T2
from tests.unit.write.writer_scene import SMALL_BATCHES, WriterScene, in_turn, numbered, rows

COUNT = 300
SHORT_PAUSES = {"kafka.retry.backoff.ms": "20", "kafka.retry.backoff.max.ms": "20"}
SLOW_ROWS_S = 3.0
T4 = TopicPartition("t", 4)


def take_time(scene: WriterScene, seconds: float, node_ids: tuple[int, ...] = (1, 2, 3)) -> None:
    """These brokers respond to a Produce after this time; they append the records when the request arrives."""
    produce = scene.network.produce
    ends_at, send, handle = produce._ends_at, produce.send, produce._handle
    handled: dict[int, object] = {}

    def send_and_handle(broker: Broker, request: ProduceRequest, deadline: float) -> None:
        send(broker, request, deadline)
        if broker.node_id not in scene.network.hung:
            handled[id(request)] = handle(broker.node_id, request)

    def slow_end(node_id: int) -> float:
        is_slow = node_id in node_ids and node_id not in scene.network.down
        return produce.in_flight[node_id][0].sent_at + seconds if is_slow else ends_at(node_id)

    scene.monkeypatch.setattr(produce, "_ends_at", slow_end)
    scene.monkeypatch.setattr(produce, "send", send_and_handle)
    scene.monkeypatch.setattr(produce, "_handle", lambda node_id, request: handled[id(request)])


def chunk_for_each_batch(scene: WriterScene) -> None:
    scene.monkeypatch.setattr("pyspark_kafka_meta.write.task_writer.CHUNK_BYTES", 1)


# --- pauses -----------------------------------------------------------------------------------------------------------


def throttling(scene: WriterScene) -> None:
    scene.network.throttles = {node_id: deque([20] * COUNT) for node_id in (1, 2, 3)}


def lacking_replicas(scene: WriterScene) -> None:
    for partition in (T0, T1, T2):
        scene.script(partition, *[code for _ in range(COUNT) for code in (0, ErrorCode.not_enough_replicas)])


@pytest.mark.parametrize("fault", [throttling, lacking_replicas])
@pytest.mark.parametrize("tick_s", [1e-4, 1e-3])
def test_batch_is_sent_after_its_pause(scene: WriterScene, fault: Callable[[WriterScene], None], tick_s: float) -> None:
    """Rows take up to a fifth more than a pause, so that pauses end at any step of the loop."""
    scene.write_task(numbered(3), **SHORT_PAUSES)
    fault(scene)
    scene.clock.tick_s = tick_s
    began = scene.clock.now

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(3, COUNT, 3):
            yield numbered(3, start=start)
            scene.clock.sleep(0.024 * (start % 97) / 97)

    full_at_once = {"kafka.buffer.memory": "1"}
    scene.write_from(batches(), ["value", "partition"], **SMALL_BATCHES, **SHORT_PAUSES, **full_at_once)

    assert scene.numbers() == in_turn(COUNT)
    assert scene.clock.now - began < COUNT / 3 * 0.1


# --- requests of two generations of metadata --------------------------------------------------------------------------


def break_connection(scene: WriterScene) -> None:
    scene.network.lost_responses = {2: 1}


def move(scene: WriterScene) -> None:
    for partition in (T1, T4):
        if scene.cluster.partition(partition).leader_id == 2:
            scene.cluster.move_leader(partition, 3)


def shut_down(scene: WriterScene) -> None:
    scene.network.down.add(2)
    move(scene)


def hang(scene: WriterScene) -> None:
    scene.network.hung.add(2)
    scene.clock.at(3.0, partial(move, scene))


@pytest.mark.parametrize("moves_before", [False, True])
@pytest.mark.parametrize("fault", [break_connection, shut_down, hang])
def test_lost_requests_of_two_generations_are_all_sent_again(
    scene: WriterScene, fault: Callable[[WriterScene], None], moves_before: bool
) -> None:
    """Broker 2 leads partitions 1 and 4. Metadata is refreshed between a request for each of them."""
    scene.cluster.create_topic("t", 6)
    take_time(scene, 1.5, node_ids=(2,))
    chunk_for_each_batch(scene)
    cache = scene.worker(scene.sink_options()).cache
    began = scene.clock()

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(value=[b"1", b"2"], partition=[1, 2])
        if moves_before:
            scene.cluster.move_leader(T1, 3)
        cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 5)
        yield rows(value=[b"4"], partition=[4])
        fault(scene)

    scene.write_from(batches(), ["value", "partition"])

    assert (scene.log(T1), scene.log(T2), scene.log(T4)) == ([b"1"], [b"2"], [b"4"])
    assert scene.clock() - began < 20


# --- slow rows --------------------------------------------------------------------------------------------------------


def slow_rows(scene: WriterScene, starts: range = range(0, 18, 3)) -> Iterator[pa.RecordBatch]:
    for start in starts:
        yield numbered(3, start=start)
        scene.clock.sleep(SLOW_ROWS_S)


def test_slow_rows_do_not_make_healthy_brokers_overdue(scene: WriterScene) -> None:
    take_time(scene, 0.005)
    chunk_for_each_batch(scene)

    scene.write_from(slow_rows(scene), ["value", "partition"])

    assert scene.numbers() == in_turn(18)
    assert scene.reasons() == [RefreshReason.BOOTSTRAP]


def test_broker_that_hangs_is_left_although_rows_are_slow(scene: WriterScene) -> None:
    scene.write_task(numbered(3))
    chunk_for_each_batch(scene)
    scene.network.hung.add(2)
    scene.clock.at(4.0, partial(scene.cluster.move_leader, T1, 3))
    began = scene.clock()

    scene.write_from(
        (numbered(3, start=start) for start in (3, 6) if not scene.clock.sleep(SLOW_ROWS_S)), ["value", "partition"]
    )

    assert scene.numbers() == in_turn(9)
    assert scene.clock() - began < 2 * SLOW_ROWS_S + 4
    assert RefreshReason.REQUEST_TIMEOUT in scene.reasons()


@pytest.mark.parametrize("options", [{"kafka.acks": "1"}, {}], ids=["acks=1", "idempotent"])
def test_batch_acknowledged_before_a_move_is_not_sent_again(scene: WriterScene, options: dict[str, str]) -> None:
    take_time(scene, 0.005)
    chunk_for_each_batch(scene)
    cache = scene.worker(scene.sink_options()).cache

    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(3)
        scene.clock.sleep(SLOW_ROWS_S)
        scene.cluster.move_leader(T1, 3)
        cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 5)
        yield numbered(3, start=3)

    scene.write_from(batches(), ["value", "partition"], **options)

    sent = [entry.partition for _, request in scene.network.produces for entry in request.partitions]
    assert (scene.numbers(), sent.count(T1)) == (in_turn(6), 2)
