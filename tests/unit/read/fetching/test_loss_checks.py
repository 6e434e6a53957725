"""How long a position must be suspected, for each reason, before its records count as lost."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_kafka_meta.kafka.client.next_request import Refresh
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
)
from pyspark_kafka_meta.model import Address, Broker, LeaderAndEpoch, OffsetRange, TopicPartition
from pyspark_kafka_meta.read.fetching.lost_records import LOSS_GRACE_MS, LostRecords
from pyspark_kafka_meta.read.fetching.partition_cursor import (
    EmptyResponses,
    Instruction,
    Lost,
    OutOfRange,
    PartitionCursor,
)

PARTITION = TopicPartition("t", 0)
GRACE_S = LOSS_GRACE_MS / 1000
SHORT, WHOLE = 40, 100
EMPTY = EmptyResponses(log_is_short=False)


class Doubtful:
    """A read of offsets 50 to 99, by the log end and local start that its leader tells."""

    def __init__(self) -> None:
        self.offsets = {EARLIEST_TIMESTAMP: 0, EARLIEST_LOCAL_TIMESTAMP: 0, LATEST_TIMESTAMP: WHOLE}
        self.cursor = PartitionCursor(OffsetRange(PARTITION, None, 50, 100), False, 1 << 20, True)
        leader = LeaderAndEpoch(Broker(1, Address("broker-1", 9092)), 0)
        self.snapshot = SimpleNamespace(brokers={1: leader.broker, 2: None}, leader=lambda partition: leader)
        self.asked: list[int] = []  # brokers about the leader
        cache = SimpleNamespace(snapshot=self.snapshot, refresh=lambda reason, deadline, node: self.asked.append(node))
        client: Any = SimpleNamespace(
            cache=cache,
            rng=random.Random(0),
            api_deadline=lambda: 0.0,
            list_offsets=self._list_offsets,
            report=lambda fact: None,
            cleanup_policy=lambda topic: "compact",
        )
        policy: Any = None
        self._lost_records = LostRecords(client, policy)

    def _list_offsets(self, timestamps: Mapping[TopicPartition, int], *_: object, **__: object) -> dict[Any, Any]:
        return {partition: SimpleNamespace(offset=self.offsets[time]) for partition, time in timestamps.items()}

    def confirm(
        self, suspicion: OutOfRange | EmptyResponses, now: float, log_end: int = WHOLE, is_confirmed: bool = True
    ) -> Instruction:
        """`is_confirmed`: whether another broker names the leader too."""
        self.offsets[LATEST_TIMESTAMP] = log_end
        self.snapshot.is_leader_confirmed = lambda partition: is_confirmed
        return self._lost_records.confirm(self.cursor, suspicion, now)


@pytest.fixture
def read() -> Doubtful:
    return Doubtful()


def test_short_log_is_asked_for_anew_and_lost_after_the_time_of_grace(read: Doubtful) -> None:
    assert isinstance(read.confirm(OutOfRange(), 0, SHORT), Refresh)
    assert not isinstance(read.confirm(OutOfRange(), GRACE_S - 1, SHORT), Lost)
    assert isinstance(read.confirm(OutOfRange(), GRACE_S, SHORT), Lost)


def test_short_log_is_not_lost_on_the_word_of_its_leader_alone(read: Doubtful) -> None:
    for now in (0, GRACE_S, 10 * GRACE_S):
        assert isinstance(read.confirm(OutOfRange(), now, SHORT, is_confirmed=False), Refresh)
    assert isinstance(read.confirm(OutOfRange(), 11 * GRACE_S, SHORT), Lost)
    assert set(read.asked) == {2}


def test_leader_of_a_cluster_of_one_broker_is_believed(read: Doubtful) -> None:
    del read.snapshot.brokers[2]
    for now in (0, GRACE_S):
        instruction = read.confirm(OutOfRange(), now, SHORT)
    assert isinstance(instruction, Lost)
    assert not read.asked


def test_records_are_called_compacted_after_the_time_of_grace(read: Doubtful) -> None:
    for now, done in ((0, False), (GRACE_S - 1, False), (GRACE_S, True)):
        read.confirm(EMPTY, now)
        assert read.cursor.done is done


def test_log_that_becomes_short_after_slow_storage_has_a_time_of_grace_of_its_own(read: Doubtful) -> None:
    read.offsets[EARLIEST_LOCAL_TIMESTAMP] = 60
    for now in (0, GRACE_S + 1):
        read.confirm(EMPTY, now)

    assert isinstance(read.confirm(OutOfRange(), 60, SHORT), Refresh)


def test_compaction_after_a_log_that_was_short_has_a_time_of_grace_of_its_own(read: Doubtful) -> None:
    read.confirm(OutOfRange(), 0, SHORT)
    read.confirm(EMPTY, 30)

    assert not read.cursor.done


def test_log_that_was_short_and_whole_again_has_a_new_time_of_grace(read: Doubtful) -> None:
    read.confirm(OutOfRange(), 0, SHORT)
    read.confirm(OutOfRange(), 1)

    assert isinstance(read.confirm(OutOfRange(), 60, SHORT), Refresh)
