"""Unread records are lost: a query fails and names the lost offsets, or continues where an option allows it. It never
mixes the records of two logs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaException

from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.kafka.protocol.list_offsets import EARLIEST_TIMESTAMP
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.checker import duplicates, inconsistent_offsets, nonmonotonic
from tests.kafka.cluster_tools import (
    Cluster,
    all_brokers_know,
    create_topic,
    delete_topic,
    elect_leader,
    in_sync,
    poll_until,
    topic_on_each_broker,
)
from tests.kafka.harness import BATCH_DEADLINE_S, SteadyProducer, Stream
from tests.marks import thorough_after

pytestmark = pytest.mark.kafka

Produce = Callable[..., list[int]]


@pytest.fixture
def open_stream(kafka: Cluster, tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    """Opens a stream with this value of failOnDataLoss."""
    with ExitStack() as stack:

        def make(*topics: str, fail_on_data_loss: bool) -> Stream:
            folder = tmp_path / uuid.uuid4().hex
            option = str(fail_on_data_loss).lower()
            stream = Stream(kafka.bootstrap_servers, topics, folder, failOnDataLoss=option)
            stack.enter_context(closing(stream))
            return stream

        yield make


@pytest.fixture
def make_again(kafka: Cluster, make_topic: Callable[..., str]) -> Callable[[str], None]:
    def make(topic: str) -> None:
        servers = kafka.bootstrap_servers
        [old] = {entry.topic_id for entry in topic_on_each_broker(servers, topic) if entry is not None}
        delete_topic(kafka, topic)

        def made() -> bool:
            with suppress(KafkaException):  # ZooKeeper clusters delete topics in the background
                return make_topic(name=topic) == topic
            return False

        poll_until(made)
        poll_until(lambda: all_brokers_know(servers, topic, 1, old_id=old))  # brokers may still report the old topic

    return make


def values(stream: Stream) -> list[str]:
    return [row.value for row in stream.rows]


def numbers(start: int, end: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{number}" for number in range(start, end)]


@pytest.mark.parametrize("records_again", thorough_after(1, [5, 40]))
def test_r10_a_topic_recreated_between_batches(
    make_topic: Callable[..., str], make_again: Any, produce: Produce, open_stream: Any, records_again: int
) -> None:
    topic = make_topic()
    strict, lenient = (open_stream(topic, fail_on_data_loss=strict) for strict in (True, False))
    produce(topic, numbers(0, 20, "old-"))
    for stream in (strict, lenient):
        stream.run_batch()
        assert len(stream.rows) == 20
    old_id = strict.reader_client.cache.snapshot.topic_id(topic)
    make_again(topic)
    produce(topic, numbers(0, records_again, "new-"))

    with pytest.raises(DataLossError) as caught:
        strict.run_until(lambda: False)
    assert len(strict.rows) == 20
    lenient.run_until(lambda: len(lenient.rows) >= 20 + records_again)
    assert values(lenient)[20:] == numbers(0, records_again, "new-")
    new_id = lenient.reader_client.cache.snapshot.topic_id(topic)
    assert str(old_id) in str(caught.value) and str(new_id) in str(caught.value)
    assert max(strict.batch_seconds + lenient.batch_seconds) < BATCH_DEADLINE_S


@pytest.mark.thorough
def test_r10_a_topic_recreated_under_a_planned_range(
    make_topic: Callable[..., str], make_again: Any, produce: Produce, open_stream: Any
) -> None:
    topic = make_topic()
    produce(topic, numbers(0, 20, "old-"))
    strict, lenient = (open_stream(topic, fail_on_data_loss=strict) for strict in (True, False))
    (_, tasks), (end, tasks_again) = strict.plan(), lenient.plan()
    [[planned]] = tasks
    make_again(topic)
    produce(topic, numbers(0, 40, "new-"))

    with ThreadPoolExecutor() as pool:  # each read waits before it reports data loss
        strict_read, lenient_read = pool.submit(strict.read, tasks), pool.submit(lenient.read, tasks_again)
    with pytest.raises(DataLossError, match=f"{planned.topic_id}.*, now "):
        strict_read.result()
    assert lenient_read.result() == []
    lenient.committed = end
    lenient.run_until(lambda: len(lenient.rows) >= 40)
    assert values(lenient) == numbers(0, 40, "new-")


@pytest.mark.thorough
def test_r11_retention_overtakes_the_reader(
    kafka: Cluster, make_topic: Callable[..., str], open_stream: Any, wait_for: Any
) -> None:
    quick = {"retention.ms": "1000", "segment.ms": "1000", "file.delete.delay.ms": "100"}
    topic = make_topic(config=quick)
    log = TopicPartition(topic, 0)
    stream = open_stream(topic, fail_on_data_loss=False)

    def log_start() -> int:
        client = stream.planner_client
        return int(client.list_offsets({log: EARLIEST_TIMESTAMP}, client.api_deadline())[log].offset)

    producer = SteadyProducer(kafka.bootstrap_servers, topic, 1)
    with producer:
        wait_for(lambda: log_start() > 0)
        stream.run_until(lambda: len(stream.rows) > 500)
    ends = max(record.offset for record in producer.acked)
    stream.run_until(lambda: stream.positions()[log] > ends)
    assert stream.rows[0].offset > 0
    assert duplicates(stream.rows) == []
    assert nonmonotonic(stream.rows) == []
    assert inconsistent_offsets([*producer.acked, *stream.rows]) == []


@pytest.mark.slow
def test_r12_a_log_truncated_by_an_unclean_election(
    breakable_kafka: LocalKafka, produce: Produce, open_stream: Any, leader_of: Any, wait_for: Any
) -> None:
    topic, (first, second, _) = f"r12-{uuid.uuid4().hex}", breakable_kafka.broker_ids
    log = TopicPartition(topic, 0)
    create_topic(breakable_kafka, topic, [[first, second]], {"min.insync.replicas": "1"})
    wait_for(lambda: in_sync(breakable_kafka, topic, 2))
    strict, lenient, early, late = (
        open_stream(topic, fail_on_data_loss=strict) for strict in (True, False, False, False)
    )
    produce(topic, numbers(0, 20, "kept-"))
    late.run_until(lambda: len(late.rows) == 20)
    breakable_kafka.kill(second)
    produce(topic, numbers(20, 50, "lost-"), acks="1")
    for stream in (strict, lenient, early):
        stream.run_until(lambda stream=stream: len(stream.rows) == 50)
    _, planned = late.plan()
    breakable_kafka.kill(first)
    wait_for(lambda: leader_of(topic, 0) == -1)
    breakable_kafka.start(second)
    breakable_kafka.wait_until_up()
    elect_leader(breakable_kafka, topic, 0, second, ElectionType.UNCLEAN)

    assert produce(topic, numbers(20, 30, "new-")) == list(range(20, 30))
    with ThreadPoolExecutor() as pool:  # each read waits before it reports data loss
        strict_batch = pool.submit(strict.run_batch)
        late_read, strict_read = pool.submit(late.read, planned), pool.submit(strict.read, planned)
    truncated = rf"log of {log} was truncated to offset 20 \(leader epoch \d, now [1-9]\): records .* 20 to 49 are gone"
    with pytest.raises(DataLossError, match=truncated):
        strict_batch.result()
    assert [row.value for row in late_read.result()] == numbers(20, 30, "new-"), (
        "the records of the planned range that are left"
    )
    with pytest.raises(DataLossError, match=r"offsets 30 to 49 .* ends at offset 30"):
        strict_read.result()
    early.run_until(lambda: early.positions()[log] == 30)
    produce(topic, numbers(30, 80, "new-"))
    with pytest.raises(DataLossError, match=truncated):
        strict.run_batch()
    assert len(strict.rows) == 50
    for stream in (lenient, early):
        stream.run_until(lambda stream=stream: stream.positions()[log] == 80)
        assert values(stream)[50:] == numbers(20, 80, "new-"), "also if the log has grown past the read position"
        [loss] = [event for event in stream.events("planner") if event["kind"] == "data_loss"]
        assert (loss["lost_from_offset"], loss["lost_until_offset"]) == (20, 50)
    assert max(strict.batch_seconds[-2:]) < BATCH_DEADLINE_S


@pytest.mark.thorough
@pytest.mark.parametrize("kept_by_old_leader", [3, 8], ids=["as long", "longer"])
def test_r12_an_unclean_election_onto_a_log_that_went_its_own_way(
    breakable_kafka: LocalKafka,
    produce: Produce,
    open_stream: Any,
    leader_of: Any,
    wait_for: Any,
    kept_by_old_leader: int,
) -> None:
    """The first broker takes records from offset 12 on that no other gets; the second, elected, takes offsets 12 to 14,
    which are read; then the first is elected again."""
    topic, (first, second, _) = f"r12-{uuid.uuid4().hex}", breakable_kafka.broker_ids
    create_topic(breakable_kafka, topic, [[first, second]], {"min.insync.replicas": "1"})
    wait_for(lambda: in_sync(breakable_kafka, topic, 2))
    strict, lenient = (open_stream(topic, fail_on_data_loss=strict) for strict in (True, False))

    def elect_instead(old: int, new: int) -> None:
        breakable_kafka.kill(old)
        wait_for(lambda: leader_of(topic, 0) == -1)
        breakable_kafka.start(new)
        breakable_kafka.wait_until_up()
        elect_leader(breakable_kafka, topic, 0, new, ElectionType.UNCLEAN)

    produce(topic, numbers(0, 12, "kept-"))
    for stream in (strict, lenient):
        stream.run_until(lambda stream=stream: len(stream.rows) == 12)
    breakable_kafka.kill(second)
    produce(topic, numbers(0, kept_by_old_leader, "old-"), acks="1")
    elect_instead(first, second)
    assert produce(topic, numbers(0, 3, "lost-"), acks="1") == [12, 13, 14]
    for stream in (strict, lenient):
        stream.run_until(lambda stream=stream: len(stream.rows) == 15)
        assert values(stream)[12:] == numbers(0, 3, "lost-")
    elect_instead(second, first)
    end = 12 + kept_by_old_leader
    assert produce(topic, ["after"], acks="1") == [end]

    with pytest.raises(DataLossError, match=rf"log of {topic}-0 was truncated to offset 12 .* 12 to 14 are gone"):
        strict.run_until(lambda: len(strict.rows) > 15)
    assert len(strict.rows) == 15
    lenient.run_until(lambda: lenient.positions()[TopicPartition(topic, 0)] == end + 1)
    assert values(lenient)[15:] == [*numbers(0, kept_by_old_leader, "old-"), "after"]
    [loss] = [event for event in lenient.events("planner") if event["kind"] == "data_loss"]
    assert (loss["lost_from_offset"], loss["lost_until_offset"]) == (12, 15)
