"""`kafkameta move-checkpoint` with real brokers: transactions leave gaps, and offsets are found by time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tools.move_checkpoint import plan_move
from pyspark_kafka_meta.tools.same_records import Verdict, Way
from tests.checkpoints import write_checkpoint

pytestmark = pytest.mark.kafka
FIRST_MS = 1_700_000_000_000


def write_transactions(servers: str, topic: str, transactions: list[tuple[list[int], bool]]) -> None:
    """Numbers by transaction, and whether it is committed. Every third number has an earlier timestamp."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": uuid4().hex})
    producer.init_transactions(60)
    for numbers, is_committed in transactions:
        producer.begin_transaction()
        for number in numbers:
            at = FIRST_MS + number - 20 * (number % 3 == 0)
            producer.produce(topic, str(number), key=str(number % 5), partition=0, timestamp=at)
        assert producer.flush(60) == 0
        (producer.commit_transaction if is_committed else producer.abort_transaction)(60)


def test_gaps_of_transactions_do_not_matter(kafka: Any, make_topic: Callable[..., str], tmp_path: Path) -> None:
    """The copy has a marker after each record, and no aborted record."""
    first, other = (make_topic(config={"retention.ms": "-1"}) for _ in range(2))
    servers = kafka.bootstrap_servers
    write_transactions(servers, first, [([0, 1, 2], True), ([100, 101], False), ([3, 4, 5, 6], True), ([7, 8], True)])
    write_transactions(servers, other, [([number], True) for number in range(9)])
    committed = {"kafka.bootstrap.servers": servers, "kafka.isolation.level": "read_committed"}
    partition = TopicPartition(first, 0)
    # By offset of the first log: 0 1 2 marker 100 101 marker 3 4 5 6 marker 7 8 marker
    for position, expected in ((0, 0), (2, 4), (3, 6), (5, 6), (8, 8), (11, 14), (13, 16), (15, 17)):
        folder = tmp_path / str(position)
        old = write_checkpoint(folder, {0: SourceOffset({partition: Position(position)}, {first: None})}, 0)
        (row,) = plan_move(Path(old), committed, committed, {first: other}, Way.TIMESTAMPS).rows()
        assert (row.proof.verdict, row.proof.offset) == (Verdict.PROVED, expected), (position, row.proof.text)
    everything = {"kafka.bootstrap.servers": servers}
    (row,) = plan_move(tmp_path / "5", everything, everything, {first: other}, Way.TIMESTAMPS).rows()
    assert row.proof.offset is None, "the record before it was aborted, and is not in the copy"


def test_a_topic_that_was_loaded_twice_is_refused_unless_both_places_are_compared(
    kafka: Any, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    first, other = (make_topic(config={"retention.ms": "-1"}) for _ in range(2))
    servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    numbers = [*range(100), *range(100), *range(100, 1000), *range(900)]
    for topic in (first, other):
        write_transactions(kafka.bootstrap_servers, topic, [(numbers, True)])
    partition = TopicPartition(first, 0)
    for position, verdict in ((50, Verdict.PROVED), (150, Verdict.PROVED), (1500, Verdict.REFUSED)):
        old = write_checkpoint(
            tmp_path / str(position), {0: SourceOffset({partition: Position(position)}, {first: None})}, 0
        )
        (row,) = plan_move(Path(old), servers, servers, {first: other}, Way.TIMESTAMPS).rows()
        expected = position if verdict is Verdict.PROVED else None
        assert (row.proof.verdict, row.proof.offset) == (verdict, expected), (position, row.proof.text)
    assert "the first cluster has an equal record 1000 offsets before" in row.proof.text
