"""A committer that lives on while the limits and the transaction version of its cluster change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import (
    AuthorizationError,
    BrokerError,
    DataLossError,
    DeliveryTimeoutError,
    NoLeaderError,
)
from pyspark_kafka_meta.kafka.client.cluster_admin import ClusterAdmin
from pyspark_kafka_meta.kafka.protocol.transactions import EndTransactionRequest, ProducerIdRequest
from pyspark_kafka_meta.model import OpenTransaction, RowDigest, TopicPartition, TransactionVersion
from pyspark_kafka_meta.write.exactly_once.batch_committer import BatchCommitter
from pyspark_kafka_meta.write.exactly_once.commit_protocol import Fence, ReadDecisions, WriteDecision, WriteSettled
from pyspark_kafka_meta.write.exactly_once.decision import BATCH, STREAM, BatchId, Decision
from pyspark_kafka_meta.write.exactly_once.step_runner import MARKER_S, StepRunner
from pyspark_kafka_meta.write.transactional_producer import LAST_EPOCHS
from tests.unit.fake_coordinators import FakeCoordinators
from tests.unit.histories.commit_network import LateCoordinators
from tests.unit.write.exactly_once.commit_scene import DECISIONS, SINK, CommitScene, micro_batch
from tests.unit.write.writer_scene import numbered

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
LIMIT_MS, LOWER_MS = 900_000, 300_000


class CommitterScene(CommitScene):
    """A cluster whose limits a committer asks for.

    Attributes:
        limits: transaction.max.timeout.ms in the next responses, the last of which is repeated. None if the committer
            may not ask.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.limits: list[int | None] = [LIMIT_MS]
        monkeypatch.setattr(ClusterAdmin, "transaction_max_timeout_ms", self._max_timeout_ms)

    def _max_timeout_ms(self, *_: object) -> int | None:
        return self.limits.pop(0) if len(self.limits) > 1 else self.limits[0]

    def long_lived_committer(self) -> BatchCommitter:
        return BatchCommitter(self.client(), self.sink_options(**{"kafka.transactional.id": SINK}))

    def planned_task(self, committer: BatchCommitter, start: int, series: str = BATCH) -> OpenTransaction:
        """The transaction of a task of the next batch."""
        plan = committer.plan(series)
        producer = self.transaction(plan.task_id(0, 0), plan.version, plan.timeout_ms)
        opened = producer.opened(self.write_in(producer, numbered(6, start=start)))
        assert opened is not None
        return opened


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> CommitterScene:
    return CommitterScene(monkeypatch)


def lower_the_limit(scene: CommitterScene) -> None:
    scene.limits = [LOWER_MS]
    scene.cluster.coordinators.max_timeout_ms = LOWER_MS


def test_brokers_are_asked_for_their_limit_again_once_they_refuse_the_timeout(scene: CommitterScene) -> None:
    committer = scene.long_lived_committer()
    written = scene.planned_task(committer, 0)
    lower_the_limit(scene)
    committer.commit(micro_batch(0), [written], 1)
    assert scene.cluster.coordinators.transactions[f"{SINK}/0/0"].state == "CompleteCommit"

    assert committer.plan().timeout_ms == LOWER_MS
    committer.commit(micro_batch(1), [scene.planned_task(committer, 6)], 1)
    timeouts = [
        each.transaction_timeout_ms for _, each in scene.network.transactions_sent if type(each) is ProducerIdRequest
    ]
    assert set(timeouts[-3:]) == {LOWER_MS}


def test_lower_limit_is_noticed_by_the_next_plan_of_a_kept_planner(scene: CommitterScene) -> None:
    """Else each run would fail while Spark keeps it: their tasks would have a timeout that brokers refuse."""
    planner, committer = scene.long_lived_committer(), scene.long_lived_committer()
    for number in range(2):
        committer.commit(micro_batch(number), [scene.planned_task(planner, 6 * number, STREAM)], 1)
    lower_the_limit(scene)
    with pytest.raises(BrokerError, match="do not accept a timeout"):
        scene.planned_task(planner, 12, STREAM)
    committer.commit(micro_batch(2), [scene.planned_task(planner, 12, STREAM)], 1)
    assert scene.rows() == [*range(18)]


def test_batch_that_was_decided_before_the_timeout_was_refused_is_written_once(scene: CommitterScene) -> None:
    """The committer fences a second time before it copies."""
    committer = scene.long_lived_committer()
    written = scene.planned_task(committer, 0)
    scene.limits = [LOWER_MS]
    scene.network.transaction_errors["InitProducerId"].extend([0, ErrorCode.invalid_transaction_timeout])
    scene.network.transaction_errors["EndTxn"].extend([0, ErrorCode.producer_fenced])
    scene.cluster.coordinators.time_out(written.transactional_id)
    committer.commit(micro_batch(0), [written], 1)

    assert scene.rows() == sorted([*range(6)] * 2)  # aborted, and copied
    assert committer.plan().decisions["stream"].is_settled
    assert scene.rows() == sorted([*range(6)] * 2)


@pytest.mark.parametrize("limits", [[LIMIT_MS], [None]])
def test_timeout_refused_under_an_unchanged_limit_is_an_error(limits: list[int | None], scene: CommitterScene) -> None:
    scene.limits = limits
    committer = scene.long_lived_committer()
    scene.network.transaction_errors["InitProducerId"].append(ErrorCode.invalid_transaction_timeout)

    with pytest.raises(
        BrokerError, match=r"900000 ms: set kafka\.transaction\.timeout\.ms .* or, if it is not set, start"
    ):
        committer.plan()


@pytest.mark.parametrize(("before", "after"), [(V1, V2), (V2, V1)])
def test_transaction_version_that_changes_under_a_committer_is_followed(
    before: TransactionVersion, after: TransactionVersion, scene: CommitterScene
) -> None:
    scene.cluster.coordinators.version = before
    committer = scene.long_lived_committer()
    committer.commit(micro_batch(0), [scene.planned_task(committer, 0)], 1)
    written = scene.planned_task(committer, 6)
    scene.cluster.coordinators.version = after
    scene.network.transactions_sent.clear()
    committer.commit(micro_batch(1), [written], 1)
    committer.commit(micro_batch(2), [scene.planned_task(committer, 12)], 1)

    ends = [each.version for _, each in scene.network.transactions_sent if isinstance(each, EndTransactionRequest)]
    assert set(ends) == {after}
    assert scene.rows() == [*range(18)]


def producer_ids_asked(scene: CommitterScene) -> list[str | None]:
    """The transactional ids of the InitProducerId requests."""
    sent = [each for _, each in scene.network.transactions_sent if type(each) is ProducerIdRequest]
    return [each.transactional_id for each in sent]


@pytest.mark.parametrize(("version", "asked"), [(V1, [SINK]), (V2, [])])
def test_committer_leads_its_next_batch(version: TransactionVersion, asked: list[str], scene: CommitterScene) -> None:
    """Not under V1, where the next batch needs an epoch of its own."""
    scene.cluster.coordinators.version = version
    planner, committer = scene.long_lived_committer(), scene.long_lived_committer()
    for number in range(3):
        written = scene.planned_task(planner, 6 * number, STREAM)
        scene.network.transactions_sent.clear()
        scene.network.fetches.clear()
        committer.commit(micro_batch(number), [written], 1)

    assert producer_ids_asked(scene) == asked
    assert len(scene.network.fetches) == 1  # of decisions: nobody else can have written one after the batch's own
    assert scene.rows() == [*range(18)]
    assert planner.plan(STREAM).decisions[STREAM].batch == micro_batch(2)


@pytest.mark.parametrize(("marker_s", "asked"), [(MARKER_S / 2, []), (10 * MARKER_S, [SINK, SINK])])
def test_plan_before_a_marker_leaves_others_the_lead(marker_s: float, asked: list[str], scene: CommitterScene) -> None:
    """Unless the marker is so late that its driver may have stopped. The committer then takes over again."""
    scene.cluster.coordinators = LateCoordinators(scene.cluster, scene.clock, lambda: marker_s)
    planner, committer = scene.long_lived_committer(), scene.long_lived_committer()
    for number in range(2):
        committer.commit(micro_batch(number), [scene.planned_task(planner, 6 * number, STREAM)], 1)
    scene.network.transactions_sent.clear()
    written = scene.planned_task(planner, 12, STREAM)
    committer.commit(micro_batch(2), [written], 1)

    assert [each for each in producer_ids_asked(scene) if each == SINK][:2] == asked
    assert scene.rows() == [*range(18)]


def test_committer_keeps_no_lead_that_the_plan_of_the_next_batch_write_takes_over(scene: CommitterScene) -> None:
    planner, committer = scene.long_lived_committer(), scene.long_lived_committer()
    committer.commit(BatchId.of_app("app", 0), [scene.planned_task(planner, 0, "app app")], 1)
    written = scene.planned_task(planner, 6, "app app")
    scene.network.produces.clear()
    committer.commit(BatchId.of_app("app", 1), [written], 1)

    assert len(scene.network.produces) == 2, "the decision and the note that it is settled: none is refused"
    assert scene.rows() == [*range(12)]


def give_epoch(scene: CommitterScene, epoch: int) -> None:
    """The next driver that takes over the sink's own id gets this epoch."""
    scene.cluster.coordinators.init(SINK, 60_000)
    known = scene.cluster.coordinators.transactions[SINK]
    known.producer = known.producer._replace(epoch=epoch - 1)


def deciding(scene: CommitterScene) -> tuple[StepRunner, Decision]:
    """A driver that stands still once it has decided micro-batch 0."""
    runner, decision = scene.committer().runner(), Decision(micro_batch(0), (scene.task(0, 0),), 1)
    for step in (Fence(), ReadDecisions(), WriteDecision(decision)):
        runner.run(step)
    return runner, decision


def test_driver_whose_epochs_are_used_up_hides_no_decision_of_another_driver(scene: CommitterScene) -> None:
    """It stands still before its copies, whose transaction would fence the other driver."""
    give_epoch(scene, LAST_EPOCHS - 1)
    (still, first), other = deciding(scene), scene.long_lived_committer()
    other.commit(micro_batch(0), [], 1)
    other.commit(micro_batch(1), [scene.task(1, 6)], 1)

    assert still.run(WriteSettled(first, first.transactions)) is False
    assert other.plan().decisions[STREAM].batch == micro_batch(1)


@pytest.mark.parametrize("marker_s", [0.0, 10.0])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_after_a_late_note_of_a_fenced_driver_the_last_decision_is_settled_once_more(
    marker_s: float, is_compacted: bool, scene: CommitterScene
) -> None:
    """It comes before the marker of the next decision, or after it. Compaction changes nothing that is read."""
    scene.cluster.coordinators = LateCoordinators(scene.cluster, scene.clock, lambda: marker_s)
    (still, first), other = deciding(scene), scene.long_lived_committer()
    other.commit(micro_batch(0), [], 1)
    other.commit(micro_batch(1), [scene.task(1, 6)], 1)
    assert still.run(WriteSettled(first, ())) is True
    scene.clock.sleep(2 * marker_s)
    if is_compacted:
        scene.compact()
    read = scene.committer().decisions.read()[STREAM]
    assert (read.batch, read.is_settled) == (micro_batch(1), False)

    other.commit(micro_batch(2), [scene.task(2, 12)], 1)
    scene.clock.sleep(2 * marker_s)
    assert scene.committer().decisions.read()[STREAM].batch == micro_batch(2)
    assert scene.rows() == [*range(18)]


def test_note_that_is_not_acknowledged_fails_the_query_which_goes_on_after_a_restart(scene: CommitterScene) -> None:
    runner, decision = deciding(scene)
    scene.refuse(DECISIONS, ErrorCode.not_enough_replicas)
    with pytest.raises(DeliveryTimeoutError) as raised:
        runner.run(WriteSettled(decision, ()))
    assert str(raised.value).startswith(
        "the note that micro-batch 0 of query query is settled was not acknowledged: kafkameta-decisions-0 did not"
    )
    assert str(raised.value).endswith("; then start the query again: it goes on from there")
    scene.monkeypatch.undo()
    assert scene.committer().recover()[STREAM].is_settled
    assert scene.rows() == [*range(6)]


@pytest.mark.parametrize("is_noticed_by", ["plan", "commit"])
def test_process_whose_decisions_topic_was_deleted_makes_it_at_start(is_noticed_by: str, scene: CommitterScene) -> None:
    planner, committer = scene.long_lived_committer(), scene.long_lived_committer()
    committer.commit(micro_batch(0), [scene.planned_task(planner, 0, STREAM)], 1)
    written = scene.planned_task(planner, 6, STREAM)
    scene.cluster.delete_topic(DECISIONS.topic)
    if is_noticed_by == "commit":
        committer.commit(micro_batch(1), [written], 1)
    with pytest.raises(DataLossError, match=r"gone from topic kafkameta-decisions: the topic was deleted"):
        planner.plan(STREAM)

    committer.commit(micro_batch(2), [scene.planned_task(planner, 12, STREAM)], 1)
    assert planner.plan(STREAM).decisions[STREAM].batch == micro_batch(2)


@pytest.mark.parametrize("process", ["planner", "committer"])
def test_process_that_lost_the_decisions_topic_survives_it_again(process: str, scene: CommitterScene) -> None:
    """It was created again by another sink, and the plan has failed because of that."""
    planner, committer = scene.long_lived_committer(), scene.long_lived_committer()
    committer.commit(micro_batch(0), [scene.planned_task(planner, 0, STREAM)], 1)
    scene.cluster.create_topic(DECISIONS.topic)
    kept = planner if process == "planner" else committer
    with pytest.raises(
        DataLossError, match=r"gone from topic kafkameta-decisions: the topic was deleted and recreated"
    ):
        kept.plan(STREAM)
    scene.cluster.delete_topic(DECISIONS.topic)
    committer.commit(micro_batch(1), [scene.planned_task(kept, 6, STREAM)], 1)
    assert kept.plan(STREAM).decisions[STREAM].batch == micro_batch(1)


def test_topic_that_is_gone_when_a_protocol_is_repeated_with_another_timeout_is_named(scene: CommitterScene) -> None:
    planner = scene.long_lived_committer()
    planner.plan()
    lower_the_limit(scene)
    init = FakeCoordinators.init

    def delete_and_refuse(coordinators: FakeCoordinators, *arguments: Any) -> Any:
        scene.cluster.topics.pop(DECISIONS.topic, None)
        return init(coordinators, *arguments)

    scene.monkeypatch.setattr(FakeCoordinators, "init", delete_and_refuse)
    with pytest.raises(
        DataLossError, match=r"decisions are gone from topic kafkameta-decisions: the topic was deleted"
    ):
        planner.plan()


@pytest.mark.parametrize("deleted", [BatchId.of_app("app", 1), micro_batch(1)], ids=str)
def test_repeated_batch_whose_decision_is_gone_is_an_error_if_written(deleted: BatchId, scene: CommitterScene) -> None:
    """The process that plans is new: it cannot know. The one that commits has decided the batch."""
    committer = scene.long_lived_committer()
    committer.commit(deleted, [scene.planned_task(scene.long_lived_committer(), 0)], 1)
    scene.cluster.delete_topic(DECISIONS.topic)
    again = scene.planned_task(scene.long_lived_committer(), 0)
    with pytest.raises(DataLossError, match=r"written again, also its rows that are visible"):
        committer.commit(deleted, [again], 1)
    assert again.transactional_id in tasks_that_are_open(scene)


def test_nothing_is_decided_by_a_new_process_if_the_tasks_have_skipped_the_rows(scene: CommitterScene) -> None:
    """The topic was deleted between them. A decision without rows would make each repetition fail."""
    rows = RowDigest(6, 1)
    scene.long_lived_committer().commit(micro_batch(0), [scene.planned_task(scene.long_lived_committer(), 0)], 1, rows)
    scene.cluster.delete_topic(DECISIONS.topic)
    with pytest.raises(DataLossError, match=r"decisions are gone: micro-batch 0 .* have not written 6 of its rows"):
        scene.long_lived_committer().commit(micro_batch(0), [], 1, rows)

    scene.long_lived_committer().commit(micro_batch(0), [scene.planned_task(scene.long_lived_committer(), 0)], 1, rows)
    assert scene.long_lived_committer().plan().decisions[STREAM].rows == rows


def tasks_that_are_open(scene: CommitterScene) -> list[str]:
    transactions = scene.cluster.coordinators.transactions
    return [each for each, known in transactions.items() if known.state == "Ongoing"]


def lose_leader(scene: CommitterScene, topic: str) -> None:
    (partition,) = scene.cluster.topics[topic].partitions
    without = (replace(partition, leader_id=-1),)
    scene.cluster.topics[topic] = replace(scene.cluster.topics[topic], partitions=without)


def deny(scene: CommitterScene, topic: str) -> None:
    scene.refuse(TopicPartition(topic, 0), ErrorCode.topic_authorization_failed)


@pytest.mark.parametrize(
    ("spoil", "expected"), [(lose_leader, "own-0 in 60000 ms: it has no leader"), (deny, "WRITE on topic own")]
)
def test_error_of_the_decisions_topic_says_what_this_topic_is(
    spoil: Callable[[CommitterScene, str], None], expected: str, scene: CommitterScene
) -> None:
    """The user has chosen its name, and may not know it."""
    scene.cluster.create_topic("own")
    spoil(scene, "own")
    options = scene.sink_options(**{"kafka.transactional.id": SINK, "decisionsTopic": "own"})
    with pytest.raises((NoLeaderError, AuthorizationError)) as raised:
        BatchCommitter(scene.client(), options).plan(STREAM)
    assert expected in str(raised.value)
    assert str(raised.value).endswith(". Topic own holds the decisions of this sink")


@pytest.mark.parametrize("epoch", range(LAST_EPOCHS - 6, LAST_EPOCHS))
def test_committer_whose_epochs_are_used_up_goes_on(epoch: int, scene: CommitterScene) -> None:
    give_epoch(scene, epoch)
    planner, committer = scene.long_lived_committer(), scene.long_lived_committer()
    for number in range(3):
        committer.commit(micro_batch(number), [scene.planned_task(planner, 6 * number, STREAM)], 1)

    assert planner.plan(STREAM).decisions[STREAM].is_settled
    assert scene.rows() == [*range(18)]


def test_committer_whose_id_was_forgotten_between_two_batches_takes_it_again(scene: CommitterScene) -> None:
    """As after a week without rows, by transactional.id.expiration.ms."""
    planner, committer = scene.long_lived_committer(), scene.long_lived_committer()
    committer.commit(micro_batch(0), [scene.planned_task(planner, 0, STREAM)], 1)
    written = scene.planned_task(planner, 6, STREAM)
    del scene.cluster.coordinators.transactions[SINK]
    committer.commit(micro_batch(1), [written], 1)

    assert planner.plan(STREAM).decisions[STREAM].batch == micro_batch(1)
    assert scene.cluster.coordinators.transactions[written.transactional_id].state == "CompleteCommit"
