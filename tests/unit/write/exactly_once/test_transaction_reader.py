"""How a decided transaction ended, if its coordinator does not say: markers that are late, far away or gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyspark_kafka_meta.errors import AuthorizationError, ConnectError, DataLossError, UnsupportedBrokerError
from pyspark_kafka_meta.kafka.metadata.snapshot import MetadataSnapshot
from pyspark_kafka_meta.model import NO_LEADER, OpenTransaction, RefreshReason, TopicPartition, TransactionVersion
from pyspark_kafka_meta.write.exactly_once.transaction_reader import LogReader, TransactionReader
from tests.partitions import T0, T1, T2
from tests.unit.kafka.records import handmade
from tests.unit.write.exactly_once.commit_scene import CommitScene, micro_batch

TIMEOUT_S = 60
"""default.api.timeout.ms."""
Append = Callable[[], None]


@pytest.fixture
def transaction(scene: CommitScene) -> OpenTransaction:
    """Two rows in each partition."""
    return scene.task(0, 0)


def time_out(scene: CommitScene, transaction: OpenTransaction, state: str = "PrepareAbort") -> Append:
    """The coordinator aborts the transaction, but has not written the markers. What is returned writes them.

    Args:
        state: that the coordinator reports meanwhile.
    """
    coordinators, held = scene.cluster.coordinators, []
    with scene.monkeypatch.context() as patched:
        patched.setattr(scene.cluster, "append", lambda *marker: held.append(marker))
        coordinators.time_out(transaction.transactional_id)
    known = coordinators.transactions[transaction.transactional_id]
    known.state = state

    def write_markers() -> None:
        for partition, marker in held:
            scene.cluster.append(partition, marker)
        known.state = "CompleteAbort"

    return write_markers


def is_committed(scene: CommitScene, transaction: OpenTransaction) -> bool:
    return TransactionReader(scene.client()).is_committed(transaction, scene.clock() + TIMEOUT_S)


# --- markers that are late --------------------------------------------------------------------------------------------


def test_late_marker_is_no_loss_and_the_next_start_recovers(scene: CommitScene, transaction: OpenTransaction) -> None:
    assert scene.committer().decide(micro_batch(0), [transaction])
    write_markers = time_out(scene, transaction)
    unknown = rf"{transaction.transactional_id} .* no marker .* t-0, t-1, t-2\. Nothing is lost: start the query again"
    with pytest.raises(ConnectError, match=unknown):
        scene.committer().recover()
    write_markers()
    scene.committer().recover()
    assert scene.numbers()[T0] == [0, 3, 0, 3], "the aborted rows, and their copies"


def test_marker_that_comes_while_it_is_waited_for_is_taken(scene: CommitScene, transaction: OpenTransaction) -> None:
    scene.clock.at(20, time_out(scene, transaction))
    began = scene.clock()
    assert not is_committed(scene, transaction)
    assert 20 < scene.clock() - began < 22


@pytest.mark.parametrize("without_leader", [(T0,), (T1, T2)])
def test_marker_of_any_partition_is_taken_while_others_have_no_leader(
    without_leader: tuple[TopicPartition, ...], scene: CommitScene, transaction: OpenTransaction
) -> None:
    scene.cluster.coordinators.time_out(transaction.transactional_id)
    for partition in without_leader:
        scene.cluster.move_leader(partition, NO_LEADER)
    began = scene.clock()
    assert not is_committed(scene, transaction)
    assert scene.clock() - began < 5


def test_partition_without_a_leader_may_have_the_marker(scene: CommitScene, transaction: OpenTransaction) -> None:
    time_out(scene, transaction, "CompleteAbort")
    scene.cluster.move_leader(T1, NO_LEADER)
    began = scene.clock()
    with pytest.raises(ConnectError, match=r"no offsets of t-1 .* Nothing is lost"):
        is_committed(scene, transaction)
    assert scene.clock() - began < TIMEOUT_S + 10


def test_partition_that_cannot_be_read_is_named_once_the_others_were_read(
    scene: CommitScene, transaction: OpenTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, read = LogReader.batches, []

    def refused(log: LogReader, partition: TopicPartition, *offsets: Any) -> Iterator[Any]:
        read.append(partition)
        if partition == T0:
            raise AuthorizationError("no ACL allows this user READ on topic t", 29)
        return batches(log, partition, *offsets)

    monkeypatch.setattr(LogReader, "batches", refused)
    time_out(scene, transaction)
    with pytest.raises(AuthorizationError):
        is_committed(scene, transaction)
    assert read == [T0, T1, T2]


@pytest.mark.parametrize("committed", [True, False])
def test_earlier_epochs_marker_says_nothing(committed: bool, scene: CommitScene, transaction: OpenTransaction) -> None:
    scene.cluster.coordinators.init(transaction.transactional_id, 60_000)
    later = scene.task(0, 100)
    producer_id, epoch = later.producer
    assert (producer_id, epoch - 1) >= transaction.producer
    for partition in (T0, T1, T2):
        scene.cluster.append(partition, handmade.marker(0, producer_id, not committed, epoch - 1))
    scene.cluster.coordinators.end(later.transactional_id, later.producer, committed, TransactionVersion.V2)
    assert is_committed(scene, later) is committed


@pytest.mark.parametrize("version", list(TransactionVersion))
@pytest.mark.parametrize("committed", [True, False])
def test_marker_of_the_transaction_itself_is_taken(
    committed: bool, version: TransactionVersion, scene: CommitScene, transaction: OpenTransaction
) -> None:
    """Under V1 it has the transaction's epoch, under V2 the next."""
    scene.cluster.coordinators.end(transaction.transactional_id, transaction.producer, committed, version)
    assert is_committed(scene, transaction) is committed


# --- metadata that is out of date -------------------------------------------------------------------------------------


@pytest.mark.parametrize("node_id", [1, 2, 3])
@pytest.mark.parametrize("committed", [True, False])
def test_transaction_is_found_though_a_broker_lags_behind(committed: bool, node_id: int, scene: CommitScene) -> None:
    old = scene.cluster.topics["t"]
    scene.cluster.create_topic("t", 3)
    transaction = scene.task(0, 0)
    scene.cluster.coordinators.end(transaction.transactional_id, transaction.producer, committed, TransactionVersion.V2)
    now, scene.cluster.topics["t"] = scene.cluster.topics["t"], old
    scene.network.cut_off(node_id)
    scene.cluster.topics["t"] = now

    def reader() -> TransactionReader:
        client = scene.client()
        client.cache.track(["t"])
        for asked in (None, node_id):
            client.cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + TIMEOUT_S, asked)
        assert client.cache.snapshot.topic_id("t") == old.topic_id
        return TransactionReader(client)

    assert reader().is_committed(transaction, scene.clock() + TIMEOUT_S) is committed
    assert sum(copy.batch.record_count for copy in reader().copies(transaction)) == 6


# --- markers that are far away ----------------------------------------------------------------------------------------


def fill(scene: CommitScene) -> None:
    for _ in range(100):
        scene.write(T0, "-1")


def test_long_log_is_not_read_before_its_marker_is_written(scene: CommitScene, transaction: OpenTransaction) -> None:
    time_out(scene, transaction)
    fill(scene)
    scene.read_slowly(1)
    began = scene.clock()
    with pytest.raises(ConnectError, match="Nothing is lost"):
        is_committed(scene, transaction)
    assert scene.clock() - began < TIMEOUT_S + 5


def test_marker_is_found_at_the_end_of_a_long_log(scene: CommitScene, transaction: OpenTransaction) -> None:
    one = transaction._replace(written=transaction.written[:1])
    write_markers = time_out(scene, transaction)
    fill(scene)
    write_markers()
    scene.read_slowly(1)
    assert not is_committed(scene, one)


def test_each_transaction_of_a_batch_has_its_own_deadline(scene: CommitScene) -> None:
    """A batch of many transactions that timed out takes long to read, and is recovered nevertheless."""
    transactions = [scene.task(number, 100 * number) for number in range(4)]
    assert scene.committer().decide(micro_batch(0), transactions)
    markers = [time_out(scene, each) for each in transactions]
    for _ in range(10):
        fill(scene)
    for write_markers in markers:
        write_markers()
    scene.read_slowly(1)
    scene.committer().recover()
    assert [scene.rows().count(100 * number) for number in range(1, 4)] == [2] * 3


# --- markers that cannot come any more --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["CompleteAbort", "Empty", None], ids=["ended", "used again", "forgotten"])
def test_marker_that_nobody_has_is_lost(state: str | None, scene: CommitScene, transaction: OpenTransaction) -> None:
    time_out(scene, transaction, state or "")
    if state is None:
        del scene.cluster.coordinators.transactions[transaction.transactional_id]
    with pytest.raises(DataLossError, match=r"nobody knows whether the transaction orders/0/0 was committed"):
        is_committed(scene, transaction)


def test_leader_that_no_other_broker_names_proves_no_loss(scene: CommitScene, transaction: OpenTransaction) -> None:
    """It may be cut off from the cluster, and the marker in the log of its successor."""
    time_out(scene, transaction, "CompleteAbort")
    confirmed = MetadataSnapshot.is_leader_confirmed
    scene.monkeypatch.setattr(
        MetadataSnapshot, "is_leader_confirmed", lambda self, partition: partition != T1 and confirmed(self, partition)
    )
    with pytest.raises(ConnectError, match="Nothing is lost"):
        is_committed(scene, transaction)


def test_marker_is_lost_at_once_if_the_logs_start_after_it(scene: CommitScene, transaction: OpenTransaction) -> None:
    time_out(scene, transaction)
    for partition in (T0, T1, T2):
        scene.write(partition, "removed")
        scene.write(partition, "kept")
        del scene.cluster.logs[partition][:-1]
    began = scene.clock()
    with pytest.raises(DataLossError, match="nobody knows"):
        is_committed(scene, transaction)
    assert scene.clock() - began < 5


def test_broker_that_cannot_describe_transactions_proves_no_loss(
    scene: CommitScene, transaction: OpenTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Kafka 3.0."""
    time_out(scene, transaction, "CompleteAbort")
    client = scene.client()

    def unsupported(*_: Any) -> None:
        raise UnsupportedBrokerError("no DescribeTransactions")

    monkeypatch.setattr(client.coordinators, "describe_transactions", unsupported)
    with pytest.raises(ConnectError, match="Nothing is lost"):
        TransactionReader(client).is_committed(transaction, scene.clock() + TIMEOUT_S)
