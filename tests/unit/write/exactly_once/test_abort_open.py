"""`AbortOpen`: which transactions of a sink's task attempts its driver aborts."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import TlsError, UnsupportedBrokerError
from pyspark_kafka_meta.write.exactly_once.commit_protocol import AbortOpen
from tests.unit.fake_coordinators import ONGOING
from tests.unit.write.exactly_once.commit_scene import SINK, CommitScene

NEVER_USED = f"{SINK}/7/0"


def still_open(scene: CommitScene) -> list[str]:
    transactions = scene.cluster.coordinators.transactions
    return sorted(name for name, transaction in transactions.items() if transaction.state == ONGOING)


def test_listed_transactions_are_aborted_and_known_ones_that_the_list_lacks(scene: CommitScene) -> None:
    """As the list does while a coordinator moves."""
    scene.cluster.coordinators.nodes[f"{SINK}/0/0"] = 2
    known, _ = scene.task(0, 0), scene.task(1, 100)
    assert len(still_open(scene)) == 2
    listed, requests = scene.network.transactions._listed, scene.network.transactions
    scene.monkeypatch.setattr(requests, "_listed", lambda node_id: () if node_id == 2 else listed(node_id))
    runner = scene.committer().runner()
    runner.run(AbortOpen((known.transactional_id,), (NEVER_USED,)))

    assert still_open(scene) == []
    assert NEVER_USED not in scene.cluster.coordinators.transactions
    assert runner.aborted == 1


@pytest.mark.parametrize("code", [ErrorCode.coordinator_load_in_progress, ErrorCode.cluster_authorization_failed])
def test_known_transactions_are_aborted_although_no_broker_lists_them(code: ErrorCode, scene: CommitScene) -> None:
    known = scene.task(0, 0)
    scene.network.transaction_errors["ListTransactions"].extend([code] * 1_000)
    scene.committer().runner().run(AbortOpen((known.transactional_id,)))

    assert still_open(scene) == []


def test_listed_ones_are_aborted_past_a_bad_certificate(scene: CommitScene, caplog: pytest.LogCaptureFixture) -> None:
    listed = scene.task(1, 100).transactional_id
    runner = scene.committer().runner()
    scene.fail(3, *[TlsError("the certificate of broker-3:9092 has expired: renew it on the broker")] * 10)
    for _ in range(3):
        runner.run(AbortOpen(()))

    assert listed not in still_open(scene)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_guessed_transactions_are_aborted_where_brokers_cannot_list(scene: CommitScene) -> None:
    guessed, known = scene.task(0, 0).transactional_id, scene.task(1, 100).transactional_id
    runner = scene.committer().runner()

    def list_transactions(*_: object, **__: object) -> list[str]:
        raise UnsupportedBrokerError("broker 1 cannot list transactions")

    scene.monkeypatch.setattr(runner._client.coordinators, "list_transactions", list_transactions)
    runner.run(AbortOpen((known,), (guessed, NEVER_USED)))

    assert still_open(scene) == []
    assert NEVER_USED in scene.cluster.coordinators.transactions
    assert runner.aborted == 0, "nobody says which of them were open"
