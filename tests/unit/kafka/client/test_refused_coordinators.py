"""Coordinators that are never available, and brokers whose certificate is unusable."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import AuthorizationError, ConnectError, TlsError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import ProducerIdAndEpoch, TransactionVersion
from tests.partitions import T0
from tests.transaction_cases import write
from tests.unit.scene import Scene

ID = "orders/1/0"
TIMEOUT_MS = 60_000
CAUSE = (
    "COORDINATOR_NOT_AVAILABLE (error 15): brokers in the cluster: {}, and transaction.state.log.replication.factor, "
    "by default 3, is probably larger: set it to at most {} on the brokers"
)
NOT_AVAILABLE, LOADING = ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress


def expired(node_id: int) -> TlsError:
    return TlsError(f"the certificate of broker-{node_id}:9092 has expired: renew it on the broker")


def failure(scene: Scene, brokers: int, codes: Sequence[int]) -> str:
    """The error of a transactional id whose coordinator is looked up in vain."""
    scene.cluster.brokers = {node_id: scene.cluster.brokers[node_id] for node_id in range(1, brokers + 1)}
    scene.network.transaction_errors["FindCoordinator"].extend(codes)
    with pytest.raises(ConnectError, match=r"COORDINATOR_\w+ \(error 1[45]\)") as caught:
        scene.warm_client().coordinators.fence([ID], TIMEOUT_MS, scene.clock() + 60)
    return str(caught.value)


@pytest.mark.parametrize("brokers", [1, 2])
def test_coordinator_that_few_brokers_never_have_names_the_replication_factor(scene: Scene, brokers: int) -> None:
    assert failure(scene, brokers, [NOT_AVAILABLE] * 1000).endswith(CAUSE.format(brokers, brokers))


@pytest.mark.parametrize(
    ("brokers", "codes"),
    [
        (3, [NOT_AVAILABLE] * 1000),
        (2, [LOADING, *[NOT_AVAILABLE] * 1000]),  # it was there before
    ],
)
def test_coordinator_that_may_be_away_does_not(scene: Scene, brokers: int, codes: Sequence[int]) -> None:
    assert "replication.factor" not in failure(scene, brokers, codes)


def test_a_right_that_was_taken_away_is_named_once_the_coordinator_is_looked_up_again(scene: Scene) -> None:
    coordinators = scene.warm_client().coordinators
    producer = coordinators.fence([ID], TIMEOUT_MS, scene.clock() + 60)[ID]
    scene.network.transaction_errors["AddPartitionsToTxn"].append(ErrorCode.not_coordinator)
    scene.network.transaction_errors["FindCoordinator"].append(ErrorCode.transactional_id_authorization_failed)

    with pytest.raises(AuthorizationError, match=ID):
        coordinators.add_partitions(ID, producer, [T0], scene.clock() + 60)


@pytest.mark.parametrize("refusing", [1, 2, 3])
def test_unusable_certificate_is_told_of_once(scene: Scene, refusing: int, caplog: pytest.LogCaptureFixture) -> None:
    coordinators = scene.warm_client().coordinators
    scene.fail(refusing, *[expired(refusing)] * 100)
    producers = [coordinators.producer_id(scene.clock() + 60) for _ in range(20)]

    assert producers == [ProducerIdAndEpoch(1000 + number, 0) for number in range(20)]
    assert caplog.messages.count(f"{expired(refusing)}. Asking other brokers") <= 1


def test_unusable_certificates_of_all_brokers_fail_at_once(scene: Scene) -> None:
    coordinators, began = scene.warm_client().coordinators, scene.clock()
    for node_id in (1, 2, 3):
        scene.fail(node_id, *[expired(node_id)] * 10)
    with pytest.raises(TlsError, match="has expired"):
        coordinators.producer_id(scene.clock() + 60)
    assert scene.clock() - began < 1


def test_an_unusable_certificate_of_the_coordinator_itself_fails_at_once(scene: Scene) -> None:
    scene.cluster.coordinators.nodes[ID] = 2
    coordinators = scene.warm_client().coordinators
    scene.fail(2, *[expired(2)] * 10)
    began = scene.clock()
    with pytest.raises(TlsError) as raised:
        coordinators.fence([ID], TIMEOUT_MS, scene.clock() + 60)
    assert str(raised.value) == f"{expired(2)} (the coordinator of transactional id {ID})"
    assert scene.clock() - began < 1


# --- an unusable certificate of one coordinator of several ------------------------------------------------------------

NODES = {ID: 1, "orders/2/0": 2, "orders/3/0": 3}


@pytest.fixture(params=[1, 2, 3])
def refusing(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def states(scene: Scene) -> dict[int, str]:
    """By coordinator."""
    return {node: scene.cluster.coordinators.transactions[each].state for each, node in NODES.items()}


@pytest.mark.parametrize("committed", [True, False])
def test_transactions_of_other_coordinators_end(scene: Scene, refusing: int, committed: bool) -> None:
    client = client_of_open_transactions(scene)
    producers = {each: ProducerIdAndEpoch(1000 + number, 0) for number, each in enumerate(NODES)}
    scene.network.transaction_errors["EndTxn"].extend([ErrorCode.concurrent_transactions] * 3)
    scene.fail(refusing, *[expired(refusing)] * 10)
    with pytest.raises(TlsError, match=rf"{expired(refusing)} \(the coordinator of transactional id orders/"):
        client.coordinators.end_transactions(producers, committed, TransactionVersion.V2, scene.clock() + 60)
    ended = "CompleteCommit" if committed else "CompleteAbort"
    assert states(scene) == dict.fromkeys((1, 2, 3), ended) | {refusing: "Ongoing"}
    assert not scene.network.transactions.in_flight


def test_others_are_fenced_and_the_refused_id_once_its_broker_is_mended(scene: Scene, refusing: int) -> None:
    client, began = client_of_open_transactions(scene), scene.clock()
    scene.fail(refusing, expired(refusing))
    with pytest.raises(TlsError, match="has expired"):
        client.coordinators.fence(NODES, TIMEOUT_MS, scene.clock() + 60)
    assert states(scene) == dict.fromkeys((1, 2, 3), "Empty") | {refusing: "Ongoing"}
    assert scene.clock() - began < 1
    client.coordinators.fence(NODES, TIMEOUT_MS, scene.clock() + 60)
    assert states(scene) == dict.fromkeys((1, 2, 3), "Empty")


def test_other_coordinators_that_do_not_respond_are_waited_for_until_the_deadline(scene: Scene) -> None:
    client, began = client_of_open_transactions(scene), scene.clock()
    scene.fail(1, *[expired(1)] * 10)
    scene.network.hung.add(2)
    with pytest.raises(TlsError, match="broker-1:9092 has expired"):
        client.coordinators.fence(NODES, TIMEOUT_MS, scene.clock() + 60)
    assert states(scene) == {1: "Ongoing", 2: "Ongoing", 3: "Empty"}
    assert scene.clock() - began == pytest.approx(60, abs=1)


# --- lists of open transactions ---------------------------------------------------------------------------------------


def client_of_open_transactions(scene: Scene) -> KafkaClient:
    """Each broker coordinates an open transaction."""
    scene.cluster.coordinators.nodes |= NODES
    client = scene.warm_client()
    for each, producer in client.coordinators.fence(NODES, TIMEOUT_MS, scene.clock() + 60).items():
        assert write(client, T0, each, producer, TransactionVersion.V2).error_code == 0
    return client


def refuse_to_list(scene: Scene, *node_ids: int) -> None:
    for node_id in node_ids:
        scene.fail(node_id, *[expired(node_id)] * 10)


@pytest.mark.parametrize("refusing", [1, 2, 3])
def test_list_that_needs_no_broker_passes_over_an_unusable_certificate_with_one_warning(
    scene: Scene, refusing: int, caplog: pytest.LogCaptureFixture
) -> None:
    coordinators, began = client_of_open_transactions(scene).coordinators, scene.clock()
    refuse_to_list(scene, refusing)
    listed = [coordinators.list_transactions(scene.clock() + 60, of_all_brokers=False) for _ in range(3)]

    assert listed == [[each for each, node_id in NODES.items() if node_id != refusing]] * 3
    assert scene.clock() - began < 1
    assert caplog.messages == [f"{expired(refusing)}. Asking other brokers"]


def test_list_that_needs_no_broker_passes_over_a_refusal(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    coordinators = client_of_open_transactions(scene).coordinators
    scene.network.transaction_errors["ListTransactions"].append(ErrorCode.cluster_authorization_failed)

    assert len(coordinators.list_transactions(scene.clock() + 60, of_all_brokers=False)) == 2
    (warning,) = caplog.messages
    assert "lists no transactions: CLUSTER_AUTHORIZATION_FAILED" in warning


def test_list_of_all_brokers_fails_at_an_unusable_certificate(scene: Scene) -> None:
    coordinators = client_of_open_transactions(scene).coordinators
    refuse_to_list(scene, 2)
    with pytest.raises(TlsError, match="broker-2:9092 has expired"):
        coordinators.list_transactions(scene.clock() + 60)


@pytest.mark.parametrize("away", [(), (3,)])
def test_list_of_no_broker_at_all_is_an_error(scene: Scene, away: tuple[int, ...]) -> None:
    coordinators = client_of_open_transactions(scene).coordinators
    scene.network.down.update(away)
    refuse_to_list(scene, *{1, 2, 3}.difference(away))
    with pytest.raises(TlsError, match="has expired"):
        coordinators.list_transactions(scene.clock() + 5, of_all_brokers=False)
