"""Producer ids and the requests of transactions, through lost responses, moved coordinators and refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    ConnectError,
    FencedError,
    UnknownTopicError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.client.transactions import TransactionCoordinators
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.transactions import FindCoordinatorRequest
from pyspark_kafka_meta.model import NO_PRODUCER, ProducerIdAndEpoch, RefreshReason, TransactionVersion
from tests.partitions import T0, T1
from tests.transaction_cases import CASES, end_codes, write
from tests.unit.fake_network import about_s
from tests.unit.scene import Scene

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
ID, OTHER, THIRD = "orders/1/0", "orders/2/0", "orders/3/0"
NODES = {ID: 1, OTHER: 2, THIRD: 3}
DEADLINE_S = 60
TIMEOUT_MS = 60_000
MANY = 60


@pytest.fixture
def client(scene: Scene) -> KafkaClient:
    """It knows the brokers, of which each coordinates a transactional id."""
    scene.cluster.coordinators.nodes |= NODES
    return scene.warm_client()


@pytest.fixture
def coordinators(client: KafkaClient) -> TransactionCoordinators:
    return client.coordinators


def soon(scene: Scene) -> float:
    return scene.clock() + DEADLINE_S


def initialised(
    coordinators: TransactionCoordinators, transactional_id: str | None, deadline: float
) -> ProducerIdAndEpoch:
    if transactional_id is None:
        return coordinators.producer_id(deadline)
    return coordinators.fence([transactional_id], TIMEOUT_MS, deadline)[transactional_id]


def open_transactions(scene: Scene, client: KafkaClient, *ids: str) -> dict[str, ProducerIdAndEpoch]:
    """A transaction of each id with a record in T0."""
    producers = client.coordinators.fence(ids, TIMEOUT_MS, soon(scene))
    for each, producer in producers.items():
        assert write(client, T0, each, producer, V2).error_code == 0
    scene.network.requests.clear()
    return producers


def many_open_transactions(scene: Scene, client: KafkaClient) -> dict[str, ProducerIdAndEpoch]:
    """As many at each broker."""
    ids = [f"orders/{number}/0" for number in range(MANY)]
    scene.cluster.coordinators.nodes |= {each: number % 3 + 1 for number, each in enumerate(ids)}
    return open_transactions(scene, client, *ids)


def states(scene: Scene, *ids: str) -> list[str]:
    return [scene.cluster.coordinators.transactions[each].state for each in ids]


# --- producer ids -----------------------------------------------------------------------------------------------------


def test_idempotent_producer_needs_no_coordinator(scene: Scene, coordinators: TransactionCoordinators) -> None:
    assert [coordinators.producer_id(soon(scene)).producer_id for _ in range(2)] == [1000, 1001]
    assert scene.sent("FindCoordinator") == []


def test_id_keeps_its_producer_and_raises_the_epoch(scene: Scene, coordinators: TransactionCoordinators) -> None:
    producers = [coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID] for _ in range(3)]

    assert producers == [ProducerIdAndEpoch(1000, epoch) for epoch in range(3)]
    assert scene.sent("InitProducerId") == [1, 1, 1]
    assert len(scene.sent("FindCoordinator")) == 1


def test_client_without_metadata_asks_for_the_brokers_first(scene: Scene) -> None:
    client = scene.client()

    assert client.coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID] == ProducerIdAndEpoch(1000, 0)
    assert scene.reasons() == [RefreshReason.BOOTSTRAP]


@pytest.mark.parametrize("transactional_id", [None, ID])
@pytest.mark.parametrize("code", [14, 15, 16, 51])
def test_coordinator_that_cannot_respond_yet_is_asked_again(
    scene: Scene, coordinators: TransactionCoordinators, transactional_id: str | None, code: int
) -> None:
    scene.network.transaction_errors["InitProducerId"].extend([code] * 3)

    assert initialised(coordinators, transactional_id, soon(scene)) == ProducerIdAndEpoch(1000, 0)
    assert len(scene.sent("InitProducerId")) == 4


def test_end_of_the_one_before_is_waited_for_briefly(scene: Scene, coordinators: TransactionCoordinators) -> None:
    began = scene.clock()
    scene.network.transaction_errors["InitProducerId"].append(51)
    coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID]
    concurrent_s, began = scene.clock() - began, scene.clock()
    scene.network.transaction_errors["InitProducerId"].append(14)
    coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID]

    assert 0 < concurrent_s < (scene.clock() - began) / 2


@pytest.mark.parametrize(
    ("code", "transactional_id", "kind", "text"),
    [
        (31, None, AuthorizationError, "allow it IDEMPOTENT_WRITE on the cluster"),
        (42, None, BrokerError, "no producer id for this task: INVALID_REQUEST"),
        (50, ID, BrokerError, r"60000 ms: set kafka\.transaction\.timeout\.ms to at most transaction\.max"),
        (53, ID, AuthorizationError, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED .*WRITE"),
        (90, ID, FencedError, f"uses transactional id {ID} by now"),
        (42, ID, BrokerError, f"no producer id for transactional id {ID}: INVALID_REQUEST"),
    ],
)
def test_refused_producer_fails_at_once(
    scene: Scene,
    coordinators: TransactionCoordinators,
    code: int,
    transactional_id: str | None,
    kind: type[Exception],
    text: str,
) -> None:
    began = scene.clock()
    scene.network.transaction_errors["InitProducerId"].append(code)

    with pytest.raises(kind, match=text):
        initialised(coordinators, transactional_id, soon(scene))
    assert scene.clock() == about_s(began)


@pytest.mark.parametrize("broken", ["down", "hung"])
@pytest.mark.parametrize("transactional_id", [None, ID])
def test_brokers_that_do_not_respond_are_an_error_at_the_deadline(
    scene: Scene, coordinators: TransactionCoordinators, broken: str, transactional_id: str | None
) -> None:
    getattr(scene.network, broken).update({1, 2, 3})
    deadline = soon(scene)

    with pytest.raises(ConnectError, match="in time"):
        initialised(coordinators, transactional_id, deadline)
    assert deadline <= scene.clock() < deadline + 1


@pytest.mark.parametrize("broken", ["down", "hung"])
def test_two_of_three_brokers_may_be_gone(scene: Scene, coordinators: TransactionCoordinators, broken: str) -> None:
    getattr(scene.network, broken).update({1, 2})
    scene.cluster.coordinators.nodes[ID] = 3
    began = scene.clock()

    assert coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID] == ProducerIdAndEpoch(1000, 0)
    assert scene.clock() - began < 10


def test_error_that_is_not_retriable_is_raised_at_once(scene: Scene, coordinators: TransactionCoordinators) -> None:
    for node_id in (1, 2, 3):
        scene.fail(node_id, AuthenticationError("wrong password"))

    with pytest.raises(AuthenticationError):
        coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID]


# --- coordinators -----------------------------------------------------------------------------------------------------


def test_coordinators_of_all_ids_are_found_by_one_request(scene: Scene, client: KafkaClient) -> None:
    producers = client.coordinators.fence(NODES, TIMEOUT_MS, soon(scene))
    fresh = scene.warm_client()
    fresh.coordinators.end_transactions(producers, True, V2, soon(scene))

    assert len(scene.sent("FindCoordinator")) == 1
    assert Counter(scene.sent("EndTxn")) == {1: 1, 2: 1, 3: 1}


def test_brokers_before_kafka_3_0_find_one_coordinator_at_a_time(
    scene: Scene, coordinators: TransactionCoordinators, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = scene.network.transactions._handle

    def first_alone(node_id: int, request: BrokerRequest[Any], code: int) -> ApiResponse[Any]:
        if isinstance(request, FindCoordinatorRequest):
            request = FindCoordinatorRequest(request.keys[:1])
        return handle(node_id, request, code)

    monkeypatch.setattr(scene.network.transactions, "_handle", first_alone)
    ended = coordinators.end_transactions(dict.fromkeys(NODES, ProducerIdAndEpoch(1, 0)), True, V2, soon(scene))

    assert ended.keys() == NODES.keys()
    assert len(scene.sent("FindCoordinator")) == 3


@pytest.mark.parametrize("code", [14, 15])
def test_unelected_coordinator_is_asked_again(scene: Scene, coordinators: TransactionCoordinators, code: int) -> None:
    scene.network.transaction_errors["FindCoordinator"].extend([code] * 2)

    assert coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID] == ProducerIdAndEpoch(1000, 0)
    assert len(scene.sent("FindCoordinator")) == 3


Refused = Callable[[TransactionCoordinators, Mapping[str, ProducerIdAndEpoch], float], object]
REFUSALS: dict[str, tuple[int, str, Refused]] = {
    "FindCoordinator": (53, "no producer id for .* WRITE", lambda each, _, due: each.fence([OTHER], TIMEOUT_MS, due)),
    "EndTxn": (53, "cannot be ended", lambda each, opened, due: each.end_transactions(opened, True, V2, due)),
    "ListTransactions": (31, "CLUSTER_AUTHORIZATION_FAILED", lambda each, _, due: each.list_transactions(due)),
    "DescribeTransactions": (53, "cannot be described", lambda each, _, due: each.describe_transactions([ID], due)),
}


@pytest.mark.parametrize("api", REFUSALS)
def test_refusal_names_the_id_or_the_right_that_is_missing(scene: Scene, client: KafkaClient, api: str) -> None:
    code, text, ask = REFUSALS[api]
    opened = open_transactions(scene, client, ID)
    scene.network.transaction_errors[api].append(code)

    with pytest.raises(BrokerError, match=text) as refused:
        ask(client.coordinators, opened, soon(scene))
    assert isinstance(refused.value, AuthorizationError) == (code == 53)
    assert "transactional id orders/" in str(refused.value) or api == "ListTransactions"


def test_coordinator_that_moves_is_found_again(scene: Scene, client: KafkaClient) -> None:
    producers = open_transactions(scene, client, ID)
    scene.cluster.coordinators.nodes[ID] = 3
    ended = client.coordinators.end_transactions(producers, True, V2, soon(scene))

    assert ended[ID].error_code == 0
    assert scene.sent("EndTxn") == [1, 3]


@pytest.mark.parametrize("broken", ["down", "hung"])
def test_coordinator_that_dies_is_replaced_no_other_waits(scene: Scene, client: KafkaClient, broken: str) -> None:
    producers = open_transactions(scene, client, *NODES)
    getattr(scene.network, broken).add(1)
    scene.clock.at(5, lambda: scene.cluster.coordinators.nodes.update({ID: 2}))
    ended = client.coordinators.end_transactions(producers, True, V2, soon(scene))

    assert {response.error_code for response in ended.values()} == {0}
    assert states(scene, *NODES) == ["CompleteCommit"] * 3
    assert scene.sent("EndTxn").count(3) == 1


# --- the partitions of a transaction ----------------------------------------------------------------------------------


def test_partitions_are_added_before_the_first_produce(scene: Scene, client: KafkaClient) -> None:
    producer = client.coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID]

    assert write(client, T0, ID, producer, V1).error_code == ErrorCode.invalid_txn_state
    client.coordinators.add_partitions(ID, producer, [T1, T0], soon(scene))
    assert write(client, T0, ID, producer, V1).error_code == 0


def test_producer_of_another_attempt_is_fenced(scene: Scene, client: KafkaClient) -> None:
    producer = client.coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID]
    client.coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID]

    with pytest.raises(FencedError, match=f"or another query, uses transactional id {ID}"):
        client.coordinators.add_partitions(ID, producer, [T0], soon(scene))


def test_topic_that_may_not_be_written_is_named(
    scene: Scene, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = client.coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID]
    errors = {T0: int(ErrorCode.operation_not_attempted), T1: int(ErrorCode.topic_authorization_failed)}
    monkeypatch.setattr(scene.network.transactions, "_handle", lambda *_: ApiResponse(1, errors[T1], errors))

    with pytest.raises(AuthorizationError, match=r"t-1 cannot be written .* WRITE on topic t"):
        client.coordinators.add_partitions(ID, producer, [T0, T1], soon(scene))


def test_partition_of_a_deleted_topic_is_named_after_a_moment(scene: Scene, client: KafkaClient) -> None:
    producer = client.coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID]
    scene.network.transaction_errors["AddPartitionsToTxn"].extend([3] * 1_000)
    del scene.cluster.topics["t"]
    began = scene.clock()

    with pytest.raises(UnknownTopicError, match="t-1 does not exist any more: create the topic again"):
        client.coordinators.add_partitions(ID, producer, [T1], soon(scene))
    assert 3 <= scene.clock() - began < 5


def test_coordinator_that_lags_behind_the_metadata_of_a_topic_is_waited_for(scene: Scene, client: KafkaClient) -> None:
    producer = client.coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID]
    scene.network.transaction_errors["AddPartitionsToTxn"].extend([3] * 1_000)
    scene.clock.at(20, scene.network.transaction_errors.clear)
    client.coordinators.add_partitions(ID, producer, [T0], soon(scene))

    assert scene.cluster.coordinators.transactions[ID].partitions == {T0}


def test_partition_that_its_coordinator_never_knows_is_named(scene: Scene, client: KafkaClient) -> None:
    producer = client.coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID]
    scene.network.transaction_errors["AddPartitionsToTxn"].extend([3] * 1_000)

    with pytest.raises(ConnectError, match=f"{ID} could not add partitions in time: t-1: UNKNOWN_TOPIC_OR_PARTITION"):
        client.coordinators.add_partitions(ID, producer, [T1], soon(scene))


@pytest.mark.parametrize("code", [3, 7, 14, 16, 51])
def test_partitions_are_added_after_errors_that_pass(scene: Scene, client: KafkaClient, code: int) -> None:
    producer = client.coordinators.fence([ID], TIMEOUT_MS, soon(scene))[ID]
    scene.network.transaction_errors["AddPartitionsToTxn"].append(code)
    client.coordinators.add_partitions(ID, producer, [T0], soon(scene))

    assert scene.cluster.coordinators.transactions[ID].partitions == {T0}


# --- the end of transactions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", [V1, V2])
def test_end_codes_are_kafkas(scene: Scene, client: KafkaClient, case: str, version: TransactionVersion) -> None:
    scene.cluster.coordinators.version = version
    codes = end_codes(client, T0, case, version, scene.cluster.coordinators.time_out)

    assert codes == CASES[case][1][version]


def test_unknown_id_is_not_open(scene: Scene, coordinators: TransactionCoordinators) -> None:
    ended = coordinators.end_transactions({ID: ProducerIdAndEpoch(7, 0)}, True, V2, soon(scene))

    assert (ended[ID].error_code, ended[ID].result) == (49, NO_PRODUCER)


@pytest.mark.parametrize("version", [V1, V2])
def test_next_producer_is_returned_in_version_2(scene: Scene, client: KafkaClient, version: TransactionVersion) -> None:
    producers = open_transactions(scene, client, ID)
    ended = client.coordinators.end_transactions(producers, True, version, soon(scene))

    assert ended[ID].result == (NO_PRODUCER if version is V1 else ProducerIdAndEpoch(producers[ID].producer_id, 1))


@pytest.mark.parametrize("committed", [True, False])
def test_lost_response_is_asked_for_again(scene: Scene, client: KafkaClient, committed: bool) -> None:
    producers = open_transactions(scene, client, *NODES)
    scene.network.lost_transactions["EndTxn"] = 2
    ended = client.coordinators.end_transactions(producers, committed, V2, soon(scene))

    assert {response.error_code for response in ended.values()} == {0}
    assert states(scene, *NODES) == ["CompleteCommit" if committed else "CompleteAbort"] * 3


def test_all_transactions_are_ended_though_some_are_not_open(scene: Scene, client: KafkaClient) -> None:
    producers = open_transactions(scene, client, *NODES)
    scene.cluster.coordinators.time_out(OTHER)
    ended = client.coordinators.end_transactions(producers, True, V2, soon(scene))

    assert {each: ended[each].error_code for each in NODES} == {ID: 0, OTHER: 48, THIRD: 0}


def test_all_brokers_end_several_transactions_at_a_time_over_as_many_connections(
    scene: Scene, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    producers = many_open_transactions(scene, client)
    requests = scene.network.transactions
    monkeypatch.setattr(requests, "_ends_at", lambda connection: requests.in_flight[connection][0].sent_at + 0.010)
    began = scene.clock()
    client.coordinators.end_transactions(producers, True, V2, soon(scene))

    assert scene.clock() - began == about_s(0.020)  # 20 transactions, 16 at a time
    assert Counter(scene.sent("EndTxn")) == {1: MANY / 3, 2: MANY / 3, 3: MANY / 3}
    assert set(states(scene, *producers)) == {"CompleteCommit"}


@pytest.mark.parametrize("failing", [1, 15])
def test_one_connection_to_a_broker_is_enough(scene: Scene, client: KafkaClient, failing: int) -> None:
    producers, began = many_open_transactions(scene, client), scene.clock()
    scene.fail(1, *[ConnectError("too many connections")] * failing)
    client.coordinators.end_transactions(producers, True, V2, soon(scene))

    assert scene.sent("EndTxn").count(1) == MANY / 3 + failing
    assert set(states(scene, *producers)) == {"CompleteCommit"}
    assert scene.clock() - began < 0.2  # a backoff


def test_connections_to_a_broker_that_hangs_count_as_one_failure(scene: Scene, client: KafkaClient) -> None:
    producers, began = many_open_transactions(scene, client), scene.clock()
    scene.network.hung.add(1)
    scene.clock.at(5, scene.network.hung.clear)
    client.coordinators.end_transactions(producers, True, V2, soon(scene))

    assert set(states(scene, *producers)) == {"CompleteCommit"}
    assert scene.clock() - began < 10  # 3 s, and twice as long


def test_transaction_that_does_not_end_is_an_error_at_the_deadline(scene: Scene, client: KafkaClient) -> None:
    producers = open_transactions(scene, client, *NODES)
    scene.network.hung.add(1)
    deadline = soon(scene)

    with pytest.raises(ConnectError, match=f"not done in time for transactional id {ID}: "):
        client.coordinators.end_transactions(producers, True, V2, deadline)
    assert deadline <= scene.clock() < deadline + 1
    assert states(scene, OTHER, THIRD) == ["CompleteCommit"] * 2


# --- open transactions ------------------------------------------------------------------------------------------------


def test_nothing_to_ask_needs_no_time_and_no_request(scene: Scene, coordinators: TransactionCoordinators) -> None:
    """A process may pause until the deadline."""
    assert coordinators.fence([], TIMEOUT_MS, scene.clock.now) == {}
    assert coordinators.end_transactions({}, True, V2, scene.clock.now) == {}
    assert coordinators.describe_transactions([], scene.clock.now) == []
    assert scene.network.requests == []


def test_open_transactions_of_all_brokers_are_listed(scene: Scene, client: KafkaClient) -> None:
    open_transactions(scene, client, *NODES)
    client.coordinators.fence([OTHER], TIMEOUT_MS, soon(scene))[OTHER]

    assert client.coordinators.list_transactions(soon(scene)) == [ID, THIRD]
    assert sorted(scene.sent("ListTransactions")) == [1, 2, 3]


def test_broker_that_cannot_list_yet_is_asked_again_alone(scene: Scene, client: KafkaClient) -> None:
    open_transactions(scene, client, *NODES)
    scene.network.transaction_errors["ListTransactions"].append(14)

    assert client.coordinators.list_transactions(soon(scene)) == [ID, OTHER, THIRD]
    assert len(scene.sent("ListTransactions")) == 4


def test_broker_that_has_left_the_cluster_is_not_waited_for(scene: Scene, client: KafkaClient) -> None:
    open_transactions(scene, client, *NODES)
    scene.network.down.add(1)
    scene.cluster.coordinators.nodes[ID] = 2
    scene.clock.at(9, lambda: scene.cluster.brokers.pop(1))

    assert set(client.coordinators.list_transactions(soon(scene))) >= {OTHER, THIRD}
    assert [address.host for api, address in scene.network.requests if api == "ListTransactions"].count("broker-3") == 1


def test_broker_that_does_not_list_is_an_error_in_time(scene: Scene, coordinators: TransactionCoordinators) -> None:
    scene.network.down.add(2)
    deadline = soon(scene)

    with pytest.raises(ConnectError, match=r"not every broker listed its transactions in time: .*broker-2"):
        coordinators.list_transactions(deadline)
    assert deadline <= scene.clock() < deadline + 1


def test_broker_that_does_not_list_can_be_left_out(scene: Scene, client: KafkaClient) -> None:
    open_transactions(scene, client, *NODES)
    scene.network.down.add(2)

    assert client.coordinators.list_transactions(soon(scene), of_all_brokers=False) == [ID, THIRD]


def test_brokers_that_cannot_list_are_named(scene: Scene, coordinators: TransactionCoordinators) -> None:
    scene.fail(2, UnsupportedBrokerError("use brokers of Apache Kafka 3.0 or later"))

    with pytest.raises(UnsupportedBrokerError, match=r"3\.0"):
        coordinators.list_transactions(soon(scene))


def test_transactions_are_described_by_their_coordinators(scene: Scene, client: KafkaClient) -> None:
    producers = open_transactions(scene, client, ID)
    other = client.coordinators.fence([OTHER], TIMEOUT_MS, soon(scene))[OTHER]
    opened, ready = client.coordinators.describe_transactions([ID, THIRD, OTHER], soon(scene))

    assert (opened.transactional_id, opened.state, opened.producer) == (ID, "Ongoing", producers[ID])
    assert (opened.timeout_ms, opened.partitions) == (TIMEOUT_MS, (T0,))
    assert opened.started_ms is not None
    assert (ready.transactional_id, ready.state, ready.producer) == (OTHER, "Empty", other)
    assert (ready.started_ms, ready.partitions) == (None, ())


# --- the protocol of the cluster --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V1, V2])
def test_finalized_version_is_reported_by_any_broker(
    scene: Scene, coordinators: TransactionCoordinators, version: TransactionVersion
) -> None:
    scene.cluster.coordinators.version = version
    scene.network.down |= {1, 2}

    assert coordinators.transaction_version(soon(scene)) is version


def test_cluster_without_features_has_the_first_version(scene: Scene, coordinators: TransactionCoordinators) -> None:
    for node_id in (1, 2, 3):
        scene.fail(node_id, UnsupportedBrokerError("no ApiVersions v4"))

    assert coordinators.transaction_version(soon(scene)) is V1


def test_throttling_broker_is_remembered(scene: Scene, client: KafkaClient, monkeypatch: pytest.MonkeyPatch) -> None:
    throttled = ApiResponse(1, 0, ProducerIdAndEpoch(7, 0), throttle_ms=500)
    monkeypatch.setattr(scene.network.transactions, "_handle", lambda *_: throttled)
    client.coordinators.producer_id(soon(scene))

    assert client.throttles.until(1) == about_s(scene.clock() + 0.5)
