"""Drivers whose broker of the decisions topic does not know yet that it has lost the partition, or has another log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import CorruptBatchError, DataLossError
from pyspark_kafka_meta.model import RefreshReason, TopicMetadata, TopicPartition
from pyspark_kafka_meta.tables.cluster_query import read_decisions
from pyspark_kafka_meta.write.exactly_once.commit_protocol import recover
from pyspark_kafka_meta.write.exactly_once.decision import BATCH, STREAM, BatchId, is_written
from tests.partitions import T0, T1
from tests.unit.write.exactly_once.commit_scene import (
    DECISIONS,
    CommitScene,
    SinkCommitter,
    micro_batch,
    transactions_of,
)


def hide_end(scene: CommitScene, batches: int) -> None:
    """A leader that was deposed before these record batches were written is asked for the end of the log, until a
    write finds its successor."""
    leader, append = scene.cluster.partition(DECISIONS).leader_id, scene.cluster.append
    scene.network.replica_ends[leader, DECISIONS] = scene.cluster.logs[DECISIONS][-batches].base_offset

    def append_at_successor(partition: TopicPartition, batch: bytes) -> int:
        if partition == DECISIONS:
            scene.network.replica_ends.clear()
        return append(partition, batch)

    scene.monkeypatch.setattr(scene.cluster, "append", append_at_successor)


# --- an end of the log that is too low --------------------------------------------------------------------------------


def test_decision_after_a_stale_end_is_settled_before_its_transactions_are_aborted(scene: CommitScene) -> None:
    scene.committer().commit(BatchId(BATCH, "first", 0), [scene.task(0, 0)])
    assert scene.committer().decide(BatchId(BATCH, "second", 0), [scene.task(1, 100)])
    hide_end(scene, batches=2)
    decisions = scene.committer().recover()
    assert is_written(decisions, BatchId(BATCH, "second", 0))
    scene.committer().commit(BatchId(BATCH, "third", 0), [scene.task(2, 200)])
    assert scene.numbers()[T0] == [0, 3, 102, 105, 201, 204], "no row is copied after those of the next batch"
    assert scene.cluster.coordinators.transactions["orders/1/0"].state == "CompleteCommit"


def test_repeated_batch_with_a_stale_end_aborts_no_transaction_that_was_decided_later(scene: CommitScene) -> None:
    scene.committer().commit(micro_batch(0), [scene.task(0, 0)])
    assert scene.committer().decide(BatchId.of_app("app", 1), [scene.task(1, 100)])
    hide_end(scene, batches=2)
    scene.committer().commit(micro_batch(0), [])
    assert scene.cluster.coordinators.transactions["orders/1/0"].state == "CompleteCommit"


def test_process_that_is_kept_after_a_failure_aborts_nothing_that_was_decided(scene: CommitScene) -> None:
    scene.committer().commit(micro_batch(0), [scene.task(0, 0)])
    planner = scene.committer()
    planned = planner.recover()
    assert scene.committer().decide(micro_batch(1), [scene.task(1, 100)])
    hide_end(scene, batches=2)
    decisions = planner.runner().carry_out(recover(planned=planned))
    assert is_written(decisions, micro_batch(1))
    assert scene.cluster.coordinators.transactions["orders/1/0"].state == "CompleteCommit"


def test_confirmed_read_leaves_nothing_but_a_record_without_value(scene: CommitScene) -> None:
    committer = scene.committer()
    committer.commit(micro_batch(0), [scene.task(0, 0)])
    before = len(scene.cluster.logs[DECISIONS])
    for _ in range(2):
        assert is_written(committer.recover(), micro_batch(0))
    assert scene.log(DECISIONS, "key")[-2:] == [b'["orders"]'] * 2
    assert scene.log(DECISIONS, "value")[-2:] == [None] * 2
    assert len(scene.cluster.logs[DECISIONS]) == before + 4, "the records and their markers"
    assert is_written(scene.committer().decisions.read(), micro_batch(0))


# --- another log ------------------------------------------------------------------------------------------------------


def run_batches(scene: CommitScene, committer: SinkCommitter, *numbers: int) -> None:
    for number in numbers:
        committer.commit(micro_batch(number), [scene.task(0, 100 * number)])


def test_recreated_decisions_topic_is_named_and_the_next_start_uses_it(scene: CommitScene) -> None:
    committer = scene.committer()
    run_batches(scene, committer, 0, 1, 2)
    old_id, new_id = scene.cluster.topics[DECISIONS.topic].topic_id, scene.cluster.create_topic(DECISIONS.topic)
    gone = rf"recreated \(topic id {old_id}, now {new_id}\)\. Start the query again: .* also its rows that are visible"
    with pytest.raises(DataLossError, match=gone):
        run_batches(scene, committer, 3)
    run_batches(scene, committer, 3)
    assert committer.decisions.read()[STREAM].batch == micro_batch(3)
    assert scene.numbers()[T1][-2:] == [301, 304]


def test_recreated_decisions_topic_with_a_longer_log_is_named(scene: CommitScene) -> None:
    committer = scene.committer()
    run_batches(scene, committer, 0)
    scene.cluster.create_topic(DECISIONS.topic)
    run_batches(scene, scene.committer(), *range(5))
    with pytest.raises(DataLossError, match=r"decisions are gone from topic .* deleted and recreated"):
        run_batches(scene, committer, 5)


def lag(scene: CommitScene, node_id: int, topic: TopicMetadata) -> None:
    """This broker, which leads no partition of the topic, still reports it as it was before it was recreated."""
    now, scene.cluster.topics[topic.name] = scene.cluster.topics[topic.name], topic
    scene.network.cut_off(node_id)
    scene.cluster.topics[topic.name] = now


@pytest.mark.parametrize("node_id", [2, 3])
def test_broker_that_lags_behind_a_recreated_decisions_topic_is_not_believed(scene: CommitScene, node_id: int) -> None:
    old = scene.cluster.topics[DECISIONS.topic]
    scene.cluster.create_topic(DECISIONS.topic)
    committer = scene.committer()
    run_batches(scene, committer, 0)
    lag(scene, node_id, old)
    cache = committer.decisions._client.cache
    for number in range(1, 4):
        cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 60, node_id)
        assert cache.snapshot.topic_id(DECISIONS.topic) == old.topic_id
        run_batches(scene, committer, number)
    assert scene.rows() == [100 * batch + number for batch in range(4) for number in range(6)]


@pytest.mark.parametrize("node_id", [2, 3])
def test_driver_with_metadata_of_a_broker_that_lags_reads_all_decisions(scene: CommitScene, node_id: int) -> None:
    old = scene.cluster.topics[DECISIONS.topic]
    scene.cluster.create_topic(DECISIONS.topic)
    run_batches(scene, scene.committer(), 0)
    lag(scene, node_id, old)
    committer = scene.committer()
    cache = committer.decisions._client.cache
    cache.track([DECISIONS.topic])
    cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 60)
    cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + 60, node_id)
    assert cache.snapshot.topic_id(DECISIONS.topic) == old.topic_id
    assert is_written(committer.recover(), micro_batch(0))


def test_truncated_log_of_decisions_is_named(scene: CommitScene) -> None:
    committer = scene.committer()
    run_batches(scene, committer, 0, 1)
    committer.decisions.read()
    end = scene.cluster.bounds(DECISIONS)[1]
    del scene.cluster.logs[DECISIONS][-6:]
    with pytest.raises(DataLossError, match=rf"was read up to offset {end} and ends at {end - 6} now") as raised:
        committer.recover()
    assert "failOnDataLoss" not in str(raised.value)


def test_decisions_whose_log_starts_later_are_gone_without_advice_for_readers(scene: CommitScene) -> None:
    committer = scene.committer()
    run_batches(scene, committer, 0)
    run_batches(scene, scene.committer(), 1, 2)
    del scene.cluster.logs[DECISIONS][:-2]
    with pytest.raises(DataLossError, match="decisions are gone from topic kafkameta-decisions: offsets") as raised:
        committer.recover()
    assert "failOnDataLoss" not in str(raised.value)


def test_corrupt_decisions_are_named_without_advice_for_readers(scene: CommitScene) -> None:
    run_batches(scene, scene.committer(), 0)
    first = scene.cluster.logs[DECISIONS][0]
    scene.cluster.logs[DECISIONS][0] = replace(first, data=first.data[:-1] + b"\0")
    with pytest.raises(CorruptBatchError, match="let another replica lead the partition") as raised:
        scene.committer().recover()
    assert "onCorruptBatch" not in str(raised.value)


def test_end_that_goes_back_is_no_loss_while_nothing_is_written(scene: CommitScene) -> None:
    """Only the driver's own record shows which log is right."""
    committer = scene.committer()
    assert committer.decide(micro_batch(0), transactions_of(1, 1))
    committer.decisions.read()
    hide_end(scene, batches=2)
    assert committer.decisions.read()[STREAM].batch == micro_batch(0)


def test_decisions_are_shown_as_the_leader_that_two_brokers_name_has_them(scene: CommitScene) -> None:
    """The first broker may name a leader that was replaced: what was decided since would look undecided."""
    client = scene.client()
    assert read_decisions(client, DECISIONS.topic) == {}

    asked = [address for api, address in scene.network.requests if api == "Metadata"]
    assert len(set(asked[:2])) == 2
