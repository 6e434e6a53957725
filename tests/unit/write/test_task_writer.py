"""Tasks that write to fake brokers, healthy and faulty: each row once, in order within its partition."""

from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import (
    AuthorizationError,
    BrokerError,
    ConnectError,
    DataLossError,
    DeliveryTimeoutError,
    InvalidRowError,
    KafkaMetaError,
    RecordTooLargeError,
    UnknownTopicError,
)
from pyspark_kafka_meta.kafka.protocol.produce import ProducedPartition, ProduceRequest
from pyspark_kafka_meta.model import NO_LEADER, RefreshReason, TopicPartition
from pyspark_kafka_meta.write.partition_queue import AcknowledgedRange
from tests.partitions import T0, T1, T2, T3, U0
from tests.unit.fake_network import about_s
from tests.unit.write.writer_scene import SMALL_BATCHES, WriterScene, in_turn, numbered, rows

COUNT = 300


# --- healthy brokers --------------------------------------------------------------------------------------------------


def test_rows_get_to_their_partitions_in_order_and_their_offsets_are_reported(scene: WriterScene) -> None:
    written = scene.write_task(numbered(COUNT))

    assert scene.numbers() == in_turn(COUNT)
    assert written == dict.fromkeys((T0, T1, T2), AcknowledgedRange(0, 100, 100))


def test_every_column_arrives(scene: WriterScene) -> None:
    headers = [[("a", b"1"), ("a", None)], None]
    batch = rows(key=[b"k", None], value=[None, b""], headers=headers, partition=[0, 0], timestamp=[1_500, None])
    scene.write_task(batch)

    first, second = scene.log(T0, "key", "value", "headers", "timestamp")
    assert (first["key"], first["value"], first["headers"]) == (
        b"k", None, [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    )  # fmt: skip
    assert (second["key"], second["value"], second["headers"]) == (None, b"", None)
    assert [int(row["timestamp"].timestamp() * 1000) for row in (first, second)] == [1, 1_700_000_000_000]


def test_topic_column_spreads_rows_over_topics(scene: WriterScene) -> None:
    scene.cluster.create_topic("u")
    scene.write_task(rows(topic=["u", "t", "u"], value=[b"1", b"2", b"3"], partition=[0, 2, None]), topic="")

    assert (scene.log(U0), scene.log(T2)) == ([b"1", b"3"], [b"2"])


def to_topics(topics: Sequence[str], count: int, keyed: bool = True) -> pa.RecordBatch:
    """Rows with their number as value, for each topic in turn."""
    numbers = [str(number).encode() for number in range(count)]
    of_rows = [topics[number % len(topics)] for number in range(count)]
    return rows(topic=of_rows, value=numbers, key=numbers if keyed else [None] * count)


@pytest.mark.parametrize("keyed", [True, False])
def test_rows_of_many_topics_arrive_in_order_by_one_metadata_request(scene: WriterScene, keyed: bool) -> None:
    topics = [f"topic-{number}" for number in range(300)]
    for topic in topics:
        scene.cluster.create_topic(topic, 2)

    for _ in range(2):
        scene.write_task(to_topics(topics[:200], 2_000, keyed), to_topics(topics[:200], 2_000, keyed), topic="")
    assert scene.reasons() == [RefreshReason.BOOTSTRAP]
    scene.write_task(to_topics(topics, 3_000, keyed), topic="")

    assert scene.reasons() == [RefreshReason.BOOTSTRAP, RefreshReason.NEW_TOPIC]
    for number, topic in enumerate(topics):
        logs = [[int(value) for value in scene.log(TopicPartition(topic, partition))] for partition in (0, 1)]
        written = [*range(number, 2_000, 200)] * 4 if number < 200 else []
        assert sorted(logs[0] + logs[1]) == sorted([*written, *range(number, 3_000, 300)])
        assert keyed is False or not set(logs[0]) & set(logs[1])


def test_new_partitions_of_several_topics_come_by_one_metadata_request(scene: WriterScene) -> None:
    for topic in ("t", "u"):
        scene.cluster.create_topic(topic, 1)
    scene.write_task(to_topics(["t", "u"], 2), topic="")
    for topic in ("t", "u"):
        scene.cluster.create_topic(topic, 3)
    asked = len(scene.sent("Metadata"))

    scene.write_task(rows(topic=["u", "t", "u"], value=[b"1", b"2", b"3"], partition=[2, 1, 0]), topic="")

    assert (scene.log(TopicPartition("u", 2)), scene.log(T1)) == ([b"1"], [b"2"])
    assert len(scene.sent("Metadata")) == asked + 1


def test_same_key_gets_to_the_same_partition_as_with_kafkas_producer(scene: WriterScene) -> None:
    scene.write_task(rows(key=[b"21", b"foobar", b"abc", b"foobar"], value=[b"1", b"2", b"3", b"4"]))

    # (murmur2(key) & 0x7fffffff) % 3 with the hashes of Kafka's UtilsTest
    expected = {b"1": (-973932308 & 0x7FFFFFFF) % 3, b"2": (-790332482 & 0x7FFFFFFF) % 3, b"3": 479470107 % 3}
    found = {value: partition.partition for partition in (T0, T1, T2) for value in scene.log(partition)}
    assert found == expected | {b"4": expected[b"2"]}


def test_sequences_continue_in_the_next_task_without_another_producer_id(scene: WriterScene) -> None:
    scene.write_task(numbered(30))
    scene.write_task(numbered(30, start=30))

    assert scene.numbers() == in_turn(60)
    assert len(scene.sent("InitProducerId")) == len(scene.sent("Metadata")) == 1
    headers = scene.batch_headers(T0)
    assert len({header.producer_id for header in headers}) == 1
    assert [header.base_sequence for header in headers] == [0, 10]


def test_leaders_alone_get_produce_requests(scene: WriterScene) -> None:
    scene.cluster.move_leader(T1, 1)
    scene.write_task(numbered(COUNT))

    leaders = {partition: scene.cluster.partition(partition).leader_id for partition in (T0, T1, T2)}
    for node_id, request in scene.network.produces:
        assert {leaders[entry.partition] for entry in request.partitions} == {node_id}


def test_at_most_five_requests_are_in_flight_and_buffered_bytes_are_bounded(scene: WriterScene) -> None:
    in_flight = []
    send = scene.network.produce.send

    def counting(*args: object) -> None:
        send(*args)  # type: ignore[arg-type]
        in_flight.append(max(map(len, scene.network.produce.in_flight.values()), default=0))

    scene.monkeypatch.setattr(scene.network.produce, "send", counting)
    scene.write_task(*(numbered(100, start=start) for start in range(0, 1_000, 100)), **SMALL_BATCHES)

    assert scene.numbers() == in_turn(1_000)
    assert max(in_flight) == 5


def arrow_and_numpy_bytes() -> int:
    """The allocated memory, of numpy since `tracemalloc.start`."""
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    traces = tracemalloc.take_snapshot().filter_traces([domain]).traces
    return int(pa.total_allocated_bytes()) + sum(trace.size for trace in traces)


def test_stuck_partition_keeps_no_chunk_in_memory(scene: WriterScene) -> None:
    """Each chunk leaves one small batch behind."""
    scene.cluster.create_topic("t", 100)
    scene.script(T1, *[ErrorCode.not_enough_replicas] * 1_000)
    chunk_bytes = 1_000_000
    chunk = rows(value=[b"x" * 1_000] * 1_000, partition=[n % 100 for n in range(1_000)])
    held_bytes = 0

    def chunks() -> Iterator[pa.RecordBatch]:
        nonlocal held_bytes
        tracemalloc.start()
        before = arrow_and_numpy_bytes()
        for _ in range(20):
            scene.clock.sleep(0.1)
            yield chunk
        held_bytes = arrow_and_numpy_bytes() - before
        tracemalloc.stop()
        scene.network.error_codes.clear()

    scene.write_from(chunks(), ["value", "partition"], **{"kafka.buffer.memory": str(chunk_bytes)})

    assert len(scene.log(T1)) == 200
    assert held_bytes < 3 * chunk_bytes


def test_buffer_smaller_than_the_rows_loses_nothing(scene: WriterScene) -> None:
    batches = [rows(value=[bytes([n]) * 15_000], partition=[0]) for n in range(100)]
    scene.write_task(*batches, **{"kafka.buffer.memory": "16384"})

    assert [value[0] for value in scene.log(T0)] == list(range(100))


def test_no_partition_waits_for_later_rows_of_another_one(scene: WriterScene) -> None:
    scene.cluster.move_leader(T0, 1)
    scene.cluster.move_leader(T1, 1)

    def chunks() -> Iterator[pa.RecordBatch]:
        for _ in range(10):
            scene.clock.sleep(0.01)
            yield rows(value=[b"x" * 150] * 12, partition=[0, 1] * 6)

    one_at_a_time = {"kafka.buffer.memory": "3000", "kafka.max.request.size": "250"}
    scene.write_from(chunks(), ["value", "partition"], **SMALL_BATCHES, **one_at_a_time)

    sent = [entry.partition for _, request in scene.network.produces for entry in request.partitions]
    lead = [sent[:n].count(T0) - sent[:n].count(T1) for n in range(len(sent))]
    assert max(map(abs, lead)) <= 5


def test_no_rows_write_nothing(scene: WriterScene) -> None:
    assert scene.write_task(numbered(0)) == {}
    assert scene.network.requests == []


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed(scene: WriterScene, codec: str) -> None:
    scene.write_task(numbered(COUNT), **{"kafka.compression.type": codec})

    assert scene.numbers() == in_turn(COUNT)
    assert {header.codec.name.lower() for header in scene.batch_headers(T0)} == {codec}


def test_writing_without_idempotence_needs_no_producer_id(scene: WriterScene) -> None:
    scene.write_task(numbered(COUNT), **{"kafka.acks": "1"}, **SMALL_BATCHES)

    assert scene.numbers() == in_turn(COUNT)
    assert scene.sent("InitProducerId") == []
    assert {(header.producer_id, header.base_sequence) for header in scene.batch_headers(T0)} == {(-1, -1)}
    assert {request.acks for _, request in scene.network.produces} == {1}


# --- faults -----------------------------------------------------------------------------------------------------------

RETRIABLE = [
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
    ErrorCode.not_leader_or_follower,
    ErrorCode.kafka_storage_error,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_producer_id,
]


@pytest.mark.parametrize("code", RETRIABLE)
@pytest.mark.parametrize(("before", "times"), [(0, 1), (30, 1), (30, 2), (30, 7)])
def test_retriable_error_loses_and_repeats_none(scene: WriterScene, code: ErrorCode, before: int, times: int) -> None:
    """Also of the first batch of a producer."""
    scene.write_task(numbered(before))
    scene.script(T1, *[code] * times)

    scene.write_task(numbered(COUNT, start=before), **SMALL_BATCHES)

    assert scene.numbers() == in_turn(COUNT + before)


def test_batch_acknowledged_late_is_not_written_twice_when_later_responses_are_lost(scene: WriterScene) -> None:
    """A broker recognises the last five batches of a producer, and no older batch."""
    scene.write_task(numbered(30))
    scene.script(T1, ErrorCode.request_timed_out)
    scene.clock.at(0.05, lambda: scene.network.lost_responses.update({2: 5, 3: 5}))

    scene.write_task(numbered(COUNT, start=30), **SMALL_BATCHES)

    assert scene.numbers() == in_turn(COUNT + 30)


def test_time_spent_waiting_for_rows_counts_to_no_deadline(scene: WriterScene) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, COUNT, 100):
            yield numbered(100, start=start)
            scene.script(T1, *[ErrorCode.not_enough_replicas] * 2)
            scene.clock.sleep(600)

    scene.write_from(batches(), ["value", "partition"], **SMALL_BATCHES, **{"kafka.buffer.memory": "1000"})

    assert scene.numbers() == in_turn(COUNT)


@pytest.mark.parametrize("handled", [0, 1, 3, 5])
def test_lost_responses_are_no_reason_to_write_twice(scene: WriterScene, handled: int) -> None:
    """The connection breaks after the broker appended some of the requests in flight."""
    if handled:
        scene.network.lost_responses = {2: handled, 3: handled}
    else:
        scene.fail(2, ConnectError("broken"))

    scene.write_task(numbered(COUNT), **SMALL_BATCHES)

    assert scene.numbers() == in_turn(COUNT)
    assert RefreshReason.CONNECTION_LOST in scene.reasons()


def test_batch_that_a_response_leaves_out_is_sent_again_at_the_pace_of_metadata(scene: WriterScene) -> None:
    produce, left_out = scene.network.produce, list[float]()
    handle = produce._handle

    def incomplete(node_id: int, request: ProduceRequest) -> tuple[ProducedPartition, ...]:
        results = handle(node_id, request)
        if scene.clock.now < until and any(each.partition == T1 for each in results):
            left_out.append(scene.clock.now)
            return tuple(each for each in results if each.partition != T1)
        return results

    until = scene.clock.now + 5
    scene.monkeypatch.setattr(produce, "_handle", incomplete)
    scene.write_task(numbered(30))

    assert scene.numbers() == in_turn(30)
    assert 5 <= len(left_out) <= 50


def fail_over(scene: WriterScene, failing: set[int], after_s: float) -> None:
    """Broker 2 fails, and broker 3 leads its partitions later."""
    failing.add(2)
    for partition in (T0, T1, T2):
        if scene.cluster.partition(partition).leader_id == 2:
            scene.clock.at(after_s, partial(scene.cluster.move_leader, partition, 3))


def be_without_a_leader(scene: WriterScene) -> None:
    scene.cluster.move_leader(T1, NO_LEADER)
    scene.clock.at(20.0, lambda: scene.cluster.move_leader(T1, 1))


LEADERS: dict[str, tuple[Callable[[WriterScene], object], RefreshReason, float]] = {
    "moved": (lambda scene: scene.cluster.move_leader(T1, 3), RefreshReason.LEADER_HINT, 1),
    "killed": (lambda scene: fail_over(scene, scene.network.down, 5.0), RefreshReason.CONNECTION_LOST, 8),
    # kafka.request.timeout.ms is 30 s
    "hung": (lambda scene: fail_over(scene, scene.network.hung, 9.0), RefreshReason.REQUEST_TIMEOUT, 15),
    "none": (be_without_a_leader, RefreshReason.NO_LEADER, 23),
}


@pytest.mark.parametrize(("happens", "reason", "within_s"), LEADERS.values(), ids=LEADERS)
def test_another_leader_is_found_soon(
    scene: WriterScene, happens: Callable[[WriterScene], object], reason: RefreshReason, within_s: float
) -> None:
    scene.write_task(numbered(30))
    happens(scene)
    began = scene.clock()
    scene.write_task(numbered(COUNT, start=30), **SMALL_BATCHES)

    assert scene.numbers() == in_turn(COUNT + 30)
    assert reason in scene.reasons()[1:2] if reason is RefreshReason.LEADER_HINT else reason in scene.reasons()
    assert scene.clock() - began < within_s


def test_throttling_broker_gets_no_request_meanwhile(scene: WriterScene) -> None:
    scene.network.throttles = {node_id: deque([3_000]) for node_id in (1, 2, 3)}
    began = scene.clock()

    scene.write_task(*(numbered(100, start=start) for start in (0, 100, 200)), **SMALL_BATCHES)

    assert scene.numbers() == in_turn(COUNT)
    assert scene.clock() - began >= 3


def test_batch_that_is_too_large_for_the_topic_is_split_until_it_fits(scene: WriterScene) -> None:
    scene.cluster.max_message_bytes["t"] = 400
    scene.write_task(numbered(COUNT))

    assert scene.numbers() == in_turn(COUNT)
    assert max(len(batch.data) for batch in scene.cluster.logs[T0]) <= 400


def lose_the_response(scene: WriterScene) -> None:
    scene.network.lost_responses[scene.cluster.partition(T0).leader_id] = 1


APPENDED: dict[str, Callable[[WriterScene], None]] = {
    "time out of followers": lambda scene: scene.script(T0, ErrorCode.request_timed_out),
    "lost response": lose_the_response,
}


@pytest.mark.parametrize("append", APPENDED.values(), ids=APPENDED)
def test_batch_that_the_log_may_hold_is_not_halved(scene: WriterScene, append: Callable[[WriterScene], None]) -> None:
    append(scene)
    scene.clock.at(0.05, lambda: scene.cluster.max_message_bytes.update(t=400))

    with pytest.raises(BrokerError, match=r"^t-0 refuses .* from row 0 on: OUT_OF_ORDER_SEQ.*: the log may hold them"):
        scene.write_task(numbered(COUNT))

    assert scene.numbers()[T0] == in_turn(COUNT)[T0]


def test_batch_that_the_log_does_not_hold_is_split_after_a_failed_request(scene: WriterScene) -> None:
    scene.fail(scene.cluster.partition(T0).leader_id, ConnectError("broken"))
    scene.clock.at(0.05, lambda: scene.cluster.max_message_bytes.update(t=400))

    scene.write_task(numbered(COUNT))

    assert scene.numbers() == in_turn(COUNT)


def test_broker_that_forgot_the_producer_gets_a_new_epoch(scene: WriterScene) -> None:
    scene.write_task(numbered(30))
    scene.script(T1, ErrorCode.out_of_order_sequence_number)

    scene.write_task(numbered(COUNT, start=30), **SMALL_BATCHES)

    assert scene.numbers() == in_turn(COUNT + 30)
    assert {header.producer_epoch for header in scene.batch_headers(T1)} == {0, 1}
    assert {header.producer_epoch for header in scene.batch_headers(T0)} == {0}


def test_added_partitions_are_used_once_the_cache_knows_them(scene: WriterScene) -> None:
    scene.write_task(numbered(30))
    scene.cluster.create_topic("t", 4)
    scene.clock.sleep(400)

    scene.write_task(rows(value=[b"new"], partition=[3]))

    assert scene.log(T3) == [b"new"]


# --- errors -----------------------------------------------------------------------------------------------------------

BAD_ROWS = {
    "null topic": (
        rows(value=[b"1", b"2"], topic=["t", None]), {"topic": ""},
        InvalidRowError, "null topic present in the data, in row 1",
    ),
    "partition below 0": (
        rows(value=[b"1", b"2"], partition=[0, -1]), {}, InvalidRowError, "row 1 has partition -1",
    ),
    "partition that does not exist": (
        rows(value=[b"1", b"2"], partition=[0, 3]), {},
        UnknownTopicError, "row 1 is for partition 3, and topic t has 3 partitions",
    ),
    "null key of a header": (
        rows(value=[b"1", b"2"], headers=[None, [(None, b"1")]]), {},
        InvalidRowError, "^row 1: the key of a header is null",
    ),
    "record larger than allowed": (
        rows(value=[b"1", b"x" * 9_000_000]), {}, RecordTooLargeError, "row 1 makes a record of up to 9000",
    ),
    "partition that one of its topics lacks": (
        rows(value=[b"1", b"2"], topic=["t", "u"], partition=[2, 2]), {"topic": ""},
        UnknownTopicError, "row 1 is for partition 2, and topic u has 1 partitions",
    ),
    "topic name that Kafka does not allow": (
        rows(value=[b"1", b"2"], topic=["t", "x" * 300]), {"topic": ""},
        InvalidRowError, r"x\.\.\.' is no name of a topic: use up to 249 of the characters",
    ),
    "unknown topic": (rows(value=[b"1"], topic=["nope"]), {"topic": ""}, UnknownTopicError, "nope does not exist"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ROWS)
def test_row_that_cannot_be_written_is_named(scene: WriterScene, case: str) -> None:
    batch, options, kind, text = BAD_ROWS[case]
    scene.cluster.create_topic("u", 1)

    with pytest.raises(kind, match=text):
        scene.write_task(batch, **options)


def test_topic_that_may_not_be_written_fails_at_once(scene: WriterScene) -> None:
    scene.network.metadata_errors["t"] = ErrorCode.topic_authorization_failed
    began = scene.clock()

    with pytest.raises(AuthorizationError, match=r"topic t cannot be written: .* allow it WRITE"):
        scene.write_task(numbered(3))

    assert scene.clock() == about_s(began)


REFUSALS: dict[ErrorCode, type[KafkaMetaError]] = {
    ErrorCode.topic_authorization_failed: AuthorizationError,
    ErrorCode.invalid_record: BrokerError,
    ErrorCode.policy_violation: BrokerError,
}


@pytest.mark.parametrize("code", REFUSALS)
def test_refused_batch_fails_the_task_and_the_next_has_another_id(scene: WriterScene, code: ErrorCode) -> None:
    scene.script(T1, code)
    with pytest.raises(REFUSALS[code], match="t-1 refuses a record batch of 100 rows from row 1 on"):
        scene.write_task(numbered(COUNT))

    scene.write_task(numbered(30))

    assert len(scene.sent("InitProducerId")) == 2


def test_records_that_are_not_acknowledged_in_time_fail_the_task(scene: WriterScene) -> None:
    scene.script(T1, *[ErrorCode.not_enough_replicas] * 1_000)
    began = scene.clock()

    with pytest.raises(DeliveryTimeoutError, match=r"t-1 did not acknowledge .* NOT_ENOUGH_REPLICAS"):
        scene.write_task(numbered(COUNT))

    assert 120 <= scene.clock() - began < 122


def test_unreachable_cluster_fails_within_max_block_ms(scene: WriterScene) -> None:
    scene.network.down |= {1, 2, 3}
    began = scene.clock()

    with pytest.raises(ConnectError):
        scene.write_task(numbered(3), **{"kafka.max.block.ms": "5000"})

    assert scene.clock() - began <= 5


def test_deleted_topic_fails_the_task_after_a_moment(scene: WriterScene) -> None:
    scene.write_task(numbered(30))
    del scene.cluster.topics["t"]
    began = scene.clock()

    with pytest.raises(UnknownTopicError, match=r"t-[012] does not exist any more"):
        scene.write_task(numbered(30))

    assert scene.clock() - began < 10


def test_topic_that_is_recreated_before_any_acknowledgement_gets_all_rows(scene: WriterScene) -> None:
    scene.write_task(numbered(30))
    scene.cluster.create_topic("t", 3)

    scene.write_task(numbered(COUNT), **SMALL_BATCHES)

    assert scene.numbers() == in_turn(COUNT)


def test_topic_that_is_recreated_during_a_task_fails_it(scene: WriterScene) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(30)
        scene.cluster.create_topic("t", 3)
        yield numbered(30, start=30)

    with pytest.raises(DataLossError, match="was deleted and created again"):
        scene.write_from(batches(), ["value", "partition"], **{"kafka.buffer.memory": "500"})


def test_broker_that_lags_behind_a_recreated_topic_fails_no_task(scene: WriterScene) -> None:
    scene.network.cut_off(3)
    scene.cluster.create_topic("t", 3)

    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(30)
        client = scene.worker(scene.sink_options())
        for start in range(30, 300, 30):
            assert client.cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 5, node_id=3).reported_by == 3
            yield numbered(30, start=start)

    scene.write_from(batches(), ["value", "partition"], **{"kafka.buffer.memory": "500"})

    assert scene.numbers() == in_turn(300)
