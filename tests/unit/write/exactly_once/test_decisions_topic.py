"""Decisions of any size, written and read by drivers over a fake cluster, whose log is compacted; and what a driver
finds out about the topic before the first batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import BrokerError, ConnectError, KafkaMetaError, ProtocolError, RecordTooLargeError
from pyspark_kafka_meta.kafka.client.cluster_admin import ClusterAdmin
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords
from pyspark_kafka_meta.model import TransactionVersion
from pyspark_kafka_meta.write.exactly_once import decision
from pyspark_kafka_meta.write.exactly_once.decision import MESSAGE_BYTES, STREAM, BatchId, is_written
from pyspark_kafka_meta.write.exactly_once.decisions_topic import MAX_MESSAGE_BYTES, DecisionsTopic, require_usable
from pyspark_kafka_meta.write.exactly_once.transaction_reader import LogReader
from tests.unit.write.exactly_once.commit_scene import DECISIONS, SINK, CommitScene, micro_batch, transactions_of


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> CommitScene:
    """Each decision is in a batch of its own."""
    return CommitScene(monkeypatch)


def test_decision_of_a_dead_driver_is_recovered_from_a_compacted_log(scene: CommitScene) -> None:
    scene.committer().commit(micro_batch(0), [scene.task(number, 100 * number) for number in range(4)])
    assert scene.committer().decide(micro_batch(1), [scene.task(0, 500), scene.task(1, 600)])
    scene.cluster.coordinators.time_out(f"{SINK}/1/0")
    scene.compact()
    assert is_written(scene.committer().recover(), micro_batch(1))
    assert scene.cluster.coordinators.transactions[f"{SINK}/0/0"].state == "CompleteCommit"
    assert [scene.rows().count(number) for number in (500, 600)] == [1, 2]  # the aborted row, and its copy


def test_compaction_up_to_any_offset_leaves_the_last_decision(scene: CommitScene) -> None:
    earlier, later = transactions_of(3, 3), transactions_of(1, 2)
    assert scene.committer().decide(micro_batch(0), earlier)
    assert scene.committer().decide(micro_batch(1), later)
    whole = list(scene.cluster.logs[DECISIONS])
    for until in range(scene.cluster.bounds(DECISIONS)[1] + 1):
        scene.cluster.logs[DECISIONS] = list(whole)
        scene.compact(until)
        read = scene.committer().decisions.read()[STREAM]
        assert (read.batch, read.transactions) == (micro_batch(1), tuple(later))
    assert len(scene.cluster.logs[DECISIONS]) < len(whole)


@pytest.mark.parametrize("version", TransactionVersion)
@pytest.mark.parametrize("marker_alone", [False, True])
def test_aborted_decision_whose_marker_compaction_has_removed_does_not_count(
    version: TransactionVersion, marker_alone: bool, scene: CommitScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader stands still after the records, for longer than delete.retention.ms. It goes on with the records of
    the next transaction, or, once they are replaced too, with its marker."""
    scene.cluster.coordinators.version = version
    assert scene.committer(version).decide(micro_batch(0), transactions_of(1, 1))
    first = len(scene.cluster.logs[DECISIONS])
    monkeypatch.setattr(DecisionsTopic, "is_unchanged_until", lambda *_: False)
    assert not scene.committer(version).decide(BatchId.of_app("app", 7), transactions_of(1, 1))
    monkeypatch.undo()
    marker = scene.cluster.logs[DECISIONS][-1]
    reader = scene.committer(version).decisions
    with monkeypatch.context() as patched:
        patched.setattr(LogReader, "end_offset", lambda *_: marker.base_offset)
        assert reader.read().keys() == {STREAM}
    assert reader.is_ending

    assert scene.committer(version).decide(micro_batch(1), transactions_of(1, 1))
    log = scene.cluster.logs[DECISIONS]
    later = log.index(marker) + 1
    log[:] = log[:first] + (log[-1:] if marker_alone else log[later:])
    assert reader.read().keys() == {STREAM}
    assert reader.read()[STREAM].batch == micro_batch(0 if marker_alone else 1)


def test_decisions_of_all_sinks_are_read(scene: CommitScene) -> None:
    assert scene.committer().decide(micro_batch(0), transactions_of(3, 3))
    read = DecisionsTopic(scene.client(), DECISIONS.topic, None).read_all()
    assert len(read[SINK, STREAM].transactions) == 3


def test_aborted_decision_does_not_count_for_a_read_that_breaks_off_and_goes_on(
    scene: CommitScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read ends between the decision and its abort marker; an earlier marker must not decide it."""
    assert scene.committer().decide(micro_batch(0), transactions_of(1, 1))
    monkeypatch.setattr(DecisionsTopic, "is_unchanged_until", lambda *_: False)
    assert not scene.committer().decide(BatchId.of_app("app", 7), transactions_of(1, 1))
    monkeypatch.undo()
    batches, reader = LogReader.batches, scene.committer().decisions

    def breaks_off(*arguments: Any) -> Iterator[FetchedRecords]:
        yield from islice(batches(*arguments), len(scene.cluster.logs[DECISIONS]) - 1)
        raise ConnectError("no broker responded")

    with monkeypatch.context() as patched, pytest.raises(ConnectError):
        patched.setattr(LogReader, "batches", breaks_off)
        reader.read()
    assert reader.read().keys() == {STREAM}


def test_decision_of_another_release_is_refused_by_each_read(
    scene: CommitScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that Spark has kept would write the batch again, if its second read passed over it."""
    with monkeypatch.context() as patched:
        patched.setattr(decision, "FORMAT", 3)
        assert scene.committer().decide(micro_batch(0), transactions_of(1, 1))
    reader = scene.committer().decisions
    for _ in range(2):
        with pytest.raises(ProtocolError, match="use the release that wrote it"):
            reader.read()


def test_decision_that_the_topic_refuses_is_named_with_what_to_raise(scene: CommitScene) -> None:
    scene.cluster.max_message_bytes[DECISIONS.topic] = 100
    with pytest.raises(RecordTooLargeError) as raised:
        scene.committer().commit(micro_batch(4), [scene.task(0, 0)])
    assert "the decision of micro-batch 4 of query query cannot be written" in str(raised.value)
    assert "raise max.message.bytes of the topic to" in str(raised.value)
    assert "row" not in str(raised.value)


@pytest.mark.parametrize("config", [{}, {"max.message.bytes": str(MESSAGE_BYTES), "cleanup.policy": "compact"}])
def test_topic_with_kafkas_default_size_of_messages_is_taken(config: dict[str, str]) -> None:
    require_usable("decisions", config)


def test_topic_that_refuses_large_decisions_is_refused_before_a_row_is_written() -> None:
    with pytest.raises(KafkaMetaError, match=rf"max\.message\.bytes=900000, which .*: raise it to {MESSAGE_BYTES}, or"):
        require_usable("decisions", {"max.message.bytes": "900000"})


@pytest.mark.slow
def test_decision_of_a_thousand_tasks_and_partitions_is_committed_whatever_users_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A million pairs: 54 MB of JSON, in a topic as a sink creates it."""
    scene, transactions = CommitScene(monkeypatch), transactions_of(1_000, 1_000)
    scene.cluster.max_message_bytes[DECISIONS.topic] = MAX_MESSAGE_BYTES
    assert scene.committer().decide(micro_batch(0), transactions)
    assert scene.committer().decisions.read()[STREAM].transactions == tuple(transactions)


COMPACTED = {"cleanup.policy": "compact"}


class Admin:
    """Of the fake cluster. A new topic is on the brokers that are up."""

    def __init__(self, scene: CommitScene, config: Mapping[str, str] = COMPACTED) -> None:
        self._scene, self._config = scene, config
        self.created: list[int] = []

    def create_topic(self, name: str, partitions: int, replicas: int, config: Mapping[str, str]) -> None:
        self.created.append(replicas)
        self.config = config
        self._scene.cluster.create_topic(name, partitions)

    def topic_config(self, topic: str) -> Mapping[str, str]:
        return self._config


def ensure(scene: CommitScene, admin: Any) -> None:
    scene.committer().decisions.ensure(admin)


def keep_replicas(scene: CommitScene, number: int) -> None:
    topic = scene.cluster.topics[DECISIONS.topic]
    (partition,) = topic.partitions
    fewer = replace(partition, replicas=partition.replicas[:number])
    scene.cluster.topics[DECISIONS.topic] = replace(topic, partitions=(fewer,))


FEW = (
    "topic kafkameta-decisions has {} of 3 replicas: give it the others (kafka-reassign-partitions) once the cluster "
    "has 3 brokers, or the loss of the brokers with its replicas is the loss of all decisions"
)


@pytest.mark.parametrize(("replicas", "expected"), [(1, [FEW.format(1)]), (2, [FEW.format(2)]), (3, [])])
def test_existing_topic_with_few_replicas_warns(
    replicas: int, expected: list[str], scene: CommitScene, caplog: pytest.LogCaptureFixture
) -> None:
    keep_replicas(scene, replicas)
    ensure(scene, Admin(scene))
    assert caplog.messages == expected


def test_existing_topic_has_replicas_for_all_brokers(scene: CommitScene, caplog: pytest.LogCaptureFixture) -> None:
    del scene.cluster.brokers[3]
    keep_replicas(scene, 2)
    ensure(scene, Admin(scene))
    assert caplog.messages == []


@pytest.mark.parametrize(("down", "expected"), [((2, 3), [FEW.format(1)]), ((3,), [FEW.format(2)]), ((), [])])
def test_topic_that_is_created_while_brokers_are_down_warns(
    down: tuple[int, ...], expected: list[str], scene: CommitScene, caplog: pytest.LogCaptureFixture
) -> None:
    del scene.cluster.topics[DECISIONS.topic]
    for node_id in down:
        del scene.cluster.brokers[node_id]
    admin = Admin(scene)
    ensure(scene, admin)
    assert (admin.created, caplog.messages) == ([3 - len(down)], expected)


def test_topic_that_may_not_be_created_says_how_to_create_it(scene: CommitScene) -> None:
    del scene.cluster.topics[DECISIONS.topic]
    scene.network.admin_errors["CreateTopics"].append(ErrorCode.topic_authorization_failed)
    with pytest.raises(BrokerError, match=r"AUTHORIZATION_FAILED.* Create it with one partition and .* CREATE on it"):
        ensure(scene, ClusterAdmin(scene.client()))


@pytest.mark.parametrize(("retention_ms", "warns"), [("3600000", False), ("86400000", False), ("3599999", True)])
def test_topic_that_forgets_markers_soon_warns(
    retention_ms: str, warns: bool, scene: CommitScene, caplog: pytest.LogCaptureFixture
) -> None:
    ensure(scene, Admin(scene, COMPACTED | {"delete.retention.ms": retention_ms}))
    assert caplog.messages == warns * [
        f"topic kafkameta-decisions has delete.retention.ms={retention_ms}: raise it to 3600000 or more, or a driver "
        "that stands still for longer may take an aborted decision for a committed one"
    ]


def test_new_topic_keeps_markers_for_a_day_whatever_the_cluster_does(scene: CommitScene) -> None:
    del scene.cluster.topics[DECISIONS.topic]
    admin = Admin(scene)
    ensure(scene, admin)
    assert admin.config["delete.retention.ms"] == "86400000"


def test_topic_whose_configuration_is_not_told_warns(scene: CommitScene, caplog: pytest.LogCaptureFixture) -> None:
    ensure(scene, Admin(scene, {}))
    assert caplog.messages == [
        "this user may not describe the configuration of topic kafkameta-decisions, or no broker responded: see to it "
        "that it has cleanup.policy=compact, or decisions are lost"
    ]
