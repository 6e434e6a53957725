"""Copies of decided records whose transactions were aborted: several transactions of the driver, and refusals."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import (
    BrokerError,
    DeliveryTimeoutError,
    NoLeaderError,
    RecordTooLargeError,
    TransactionTimeoutError,
)
from pyspark_kafka_meta.model import OpenTransaction
from pyspark_kafka_meta.write.exactly_once.commit_protocol import WriteSettled, recover
from pyspark_kafka_meta.write.exactly_once.decision import STREAM
from pyspark_kafka_meta.write.exactly_once.decisions_topic import DecisionsTopic
from tests.partitions import T0, T1, T2
from tests.unit.histories.commit_checks import visible as visible_rows
from tests.unit.write.exactly_once.commit_scene import SINK, CommitScene, micro_batch

BATCH_S = 250
"""To read a record batch from the log. The driver's own transactions have 900 s."""


def timed_out(scene: CommitScene, tasks: int = 3) -> list[OpenTransaction]:
    """The transactions of a decided micro-batch, whose driver came too late. Each has a batch in each partition."""
    written = [scene.task(number, 100 * number) for number in range(tasks)]
    assert scene.committer().decide(micro_batch(0), written)
    for each in written:
        scene.cluster.coordinators.time_out(each.transactional_id)
    return written


def visible(scene: CommitScene) -> list[int]:
    """The numbers of the rows that read_committed readers see."""
    return sorted(row for partition in (T0, T1, T2) for row in visible_rows(scene.cluster, partition))


EXPECTED = sorted(100 * task + row for task in range(3) for row in range(6))


def test_copies_go_on_where_a_driver_that_died_left_off(scene: CommitScene) -> None:
    """Each driver dies once it has copied what one transaction of its own has time for."""
    timed_out(scene)
    scene.read_slowly(BATCH_S)
    left = []
    for _ in range(10):
        runner, protocol = scene.committer().runner(), recover()
        step, result = next(protocol), None
        while not isinstance(step, WriteSettled):
            step = protocol.send(runner.run(step))
        result = runner.run(step)
        if result is True:
            break
        left.append([(each.transactional_id, [span[1:] for span in each.written]) for each in result.transactions])

    assert [len(each) for each in left] == [3, 2, 1, 1]
    assert left[0] == [
        ("orders/0/0", [(2, 0, 2, 2)]),
        ("orders/1/0", [(0, 2, 4, 2), (1, 2, 4, 2), (2, 2, 4, 2)]),
        ("orders/2/0", [(0, 4, 6, 2), (1, 4, 6, 2), (2, 4, 6, 2)]),
    ]
    assert visible(scene) == EXPECTED


def test_copies_are_not_left_open_if_decisions_cannot_be_read(scene: CommitScene) -> None:
    """Readers of the output topics would wait for the timeout of the driver's transaction."""
    timed_out(scene)

    def no_leader(*_: object) -> bool:
        raise NoLeaderError("kafkameta-decisions-0 has no leader")

    scene.monkeypatch.setattr(DecisionsTopic, "is_unchanged_until", no_leader)
    with pytest.raises(NoLeaderError):
        scene.committer().recover()
    assert scene.cluster.coordinators.transactions[SINK].state == "CompleteAbort"
    assert visible(scene) == []


def test_copies_that_a_partition_holds_up_name_the_topics_to_look_at(scene: CommitScene) -> None:
    timed_out(scene)
    scene.refuse(T1, ErrorCode.not_enough_replicas)
    runner = scene.committer().runner()
    runner.timeout_ms = 100_000

    with pytest.raises(
        TransactionTimeoutError,
        match=r"the decision of micro-batch 0 .* of the longest timeout that brokers allow \(100 s\)",
    ) as raised:
        runner.carry_out(recover())
    assert "kafka.transaction.timeout.ms" not in str(raised.value)


def test_copies_that_are_not_acknowledged_leave_the_query_to_be_started_again(scene: CommitScene) -> None:
    timed_out(scene)
    scene.refuse(T1, ErrorCode.not_enough_replicas)

    with pytest.raises(
        DeliveryTimeoutError,
        match=r"^the decision of micro-batch 0 .* was not acknowledged: t-1 did not acknowledge copies of 2 records .*"
        "; then start the query again: it goes on from there$",
    ):
        scene.committer().recover()
    scene.monkeypatch.undo()
    assert scene.committer().recover()[STREAM].is_settled
    assert visible(scene) == EXPECTED


def test_copies_older_than_their_topic_allows_name_topic_and_setting(scene: CommitScene) -> None:
    timed_out(scene)
    scene.refuse(T2, ErrorCode.invalid_timestamp)

    with pytest.raises(BrokerError) as raised:
        scene.committer().recover()
    assert str(raised.value).startswith("t-2 refuses copies of 2 records: INVALID_TIMESTAMP (error 32): ")
    assert "older by now than topic t allows: raise its message.timestamp.before.max.ms" in str(raised.value)
    scene.monkeypatch.undo()
    assert scene.committer().recover()[STREAM].is_settled
    assert visible(scene) == EXPECTED


def test_copies_of_a_record_that_its_topic_refuses_by_now_are_no_row_to_be_written_smaller(scene: CommitScene) -> None:
    timed_out(scene)
    scene.cluster.max_message_bytes["t"] = 60

    with pytest.raises(
        RecordTooLargeError, match=r"refuses copies of 1 records, .*: raise max\.message\.bytes of topic t$"
    ):
        scene.committer().recover()
    assert T0 in scene.cluster.logs
