"""The fake network handles Produce and InitProducerId as brokers do (`tests/kafka/test_produce_requests.py`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.kafka.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from pyspark_kafka_meta.kafka.protocol.transactions import ProducerIdRequest
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.model import NO_LEADER, NO_PRODUCER, LeaderHint, ProducerIdAndEpoch, TopicPartition
from tests import produce_cases
from tests.partitions import T0, T1
from tests.produce_cases import CASES, Sent
from tests.unit.fake_network import FakeNetwork, about_s
from tests.unit.logs import batch

PRODUCER_ID = 77
TIMEOUT_S = 30
Break = Callable[[FakeNetwork], object]


def a_network(partitions: int = 1) -> FakeNetwork:
    """Broker 1 leads t-0, broker 2 leads t-1."""
    network = FakeNetwork()
    network.cluster.create_topic("t", partitions)
    return network


def idempotent(sequence: int, *values: str, epoch: int = 0) -> bytes:
    return produce_cases.idempotent(PRODUCER_ID, sequence, epoch, values)


def entry(network: FakeNetwork, records: bytes, partition: TopicPartition = T0) -> ProducePartition:
    return ProducePartition(partition, network.cluster.topics["t"].topic_id, records)


def send(network: FakeNetwork, *entries: ProducePartition, node_id: int = 1) -> None:
    request = ProduceRequest(entries, acks=-1, timeout_ms=1000)
    network.produce.send(network.cluster.brokers[node_id], request, network.clock() + TIMEOUT_S)


def received(network: FakeNetwork, node_id: int = 1) -> ProduceResponse:
    response = network.produce.receive([node_id], network.clock() + TIMEOUT_S)
    assert isinstance(response, ProduceResponse)
    return response


def failure(network: FakeNetwork, node_id: int = 1) -> KafkaMetaError:
    response = network.produce.receive([node_id], network.clock() + 2 * TIMEOUT_S)
    assert isinstance(response, RequestFailure)
    assert network.produce.receive([node_id], network.clock() + TIMEOUT_S) is None, (
        "a failure is of all requests in flight"
    )
    return response.error


def produced(network: FakeNetwork, records: bytes | ProducePartition, node_id: int = 1) -> ProducedPartition:
    send(network, records if isinstance(records, ProducePartition) else entry(network, records), node_id=node_id)
    [partition] = received(network, node_id).partitions
    return partition


def outcome(partition: ProducedPartition) -> tuple[int, int]:
    return partition.error_code, partition.base_offset


def values(network: FakeNetwork, partition: TopicPartition = T0) -> list[str]:
    """The log, as a reader decodes it."""
    records = b"".join(stored.data for stored in network.cluster.logs[partition])
    part = FetchedRecords(partition, records, read_batch_headers(records), 0, 1 << 62)
    return [row["value"].decode() for table in decode([part], ["offset", "value"]) for row in table.to_pylist()]


def test_one_request_has_a_result_for_each_partition() -> None:
    network = a_network(partitions=2)
    send(network, entry(network, batch(["a"])), entry(network, batch(["b"]), T1))
    mine, foreign = received(network).partitions

    assert (outcome(mine), mine.leader_hint) == ((0, 0), None)
    assert outcome(foreign) == (6, -1)
    assert foreign.leader_hint == LeaderHint(2, 0, network.cluster.brokers[2])
    assert (values(network), values(network, T1)) == (["a"], [])


def test_partition_without_a_leader_has_no_leader_hint() -> None:
    network = a_network()
    network.cluster.move_leader(T0, NO_LEADER)
    refused = produced(network, batch(["a"]))

    assert (outcome(refused), refused.leader_hint) == ((6, -1), None)


def test_unknown_topic_depends_on_how_the_request_names_it() -> None:
    network = a_network()
    known = entry(network, batch(["a"]))
    network.cluster.create_topic("t")
    other = TopicPartition("other", 0)

    assert outcome(produced(network, known)) == (100, -1), "the id of the deleted topic"
    assert outcome(produced(network, replace(known, topic_id=None))) == (0, 0)
    assert outcome(produced(network, ProducePartition(other, None, batch(["a"])))) == (3, -1)
    assert outcome(produced(network, ProducePartition(other, uuid4(), batch(["a"])))) == (100, -1)
    assert outcome(produced(network, entry(network, batch(["a"]), T1))) == (3, -1), "the topic has one partition"


# --- idempotence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_leader_accepts_each_batch_of_a_producer_once_and_in_order(case: tuple[Sent, ...]) -> None:
    network = a_network()
    outcomes = [outcome(produced(network, sent.batch(PRODUCER_ID))) for sent in case]

    assert outcomes == [(sent.code, sent.base_offset) for sent in case]


def test_log_that_knows_nothing_of_a_producer_accepts_any_sequence() -> None:
    network = a_network()
    assert outcome(produced(network, idempotent(40, "a"))) == (0, 0)
    network.cluster.producers[T0].clear()
    assert outcome(produced(network, idempotent(7, "b", epoch=3))) == (0, 1)
    network.cluster.create_topic("t")
    assert outcome(produced(network, idempotent(40, "c"))) == (0, 0)


def test_new_leader_knows_what_the_old_leader_appended() -> None:
    network = a_network()
    produced(network, idempotent(0, "a"))
    network.cluster.move_leader(T0, 2)

    assert outcome(produced(network, idempotent(0, "a"), node_id=2)) == (0, 0)
    assert values(network) == ["a"]


def test_batches_without_a_producer_are_appended_each_time() -> None:
    network = a_network()

    assert [outcome(produced(network, batch(["a"]))) for _ in range(2)] == [(0, 0), (0, 1)]


# --- faults -----------------------------------------------------------------------------------------------------------


def test_batch_above_the_limit_of_its_topic_is_too_large() -> None:
    network = a_network()
    network.cluster.max_message_bytes["t"] = len(batch(["a"]))

    assert outcome(produced(network, batch(["aa"]))) == (10, -1)
    assert outcome(produced(network, batch(["a"]))) == (0, 0)


@pytest.mark.parametrize("lost", [1, 3, 5])
def test_lost_response_is_of_a_batch_that_was_appended(lost: int) -> None:
    network = a_network()
    network.lost_responses[1] = lost
    batches = [idempotent(number, str(number)) for number in range(5)]
    for sent in batches:
        send(network, entry(network, sent))

    assert isinstance(failure(network), ConnectError)
    assert values(network) == [str(number) for number in range(lost)]
    assert [outcome(produced(network, sent)) for sent in batches] == [(0, number) for number in range(5)]
    assert values(network) == list("01234")


def test_lost_responses_last_for_so_many_requests() -> None:
    network = a_network()
    network.lost_responses[1] = 2
    for _ in range(2):
        send(network, entry(network, idempotent(0, "a")))
        failure(network)

    assert outcome(produced(network, idempotent(0, "a"))) == (0, 0)


def test_hung_broker_handles_nothing_and_times_out_at_the_first_deadline() -> None:
    network = a_network()
    began = network.clock()
    send(network, entry(network, batch(["a"])))
    network.clock.sleep(10)
    send(network, entry(network, batch(["b"])))
    network.hung.add(1)

    assert network.produce.receive([1], began + TIMEOUT_S - 1) is None
    assert isinstance(failure(network), RequestTimeoutError)
    assert network.clock() == about_s(began + TIMEOUT_S)
    assert values(network) == []


def refuse_connections(network: FakeNetwork) -> None:
    network.down.add(1)


def break_next(network: FakeNetwork) -> None:
    network.failures[1] = deque([ConnectError("reset")])


@pytest.mark.parametrize("fault", [refuse_connections, break_next])
def test_failure_while_sending_is_of_all_requests_in_flight(fault: Break) -> None:
    network = a_network()
    send(network, entry(network, batch(["a"])))
    fault(network)
    send(network, entry(network, batch(["b"])))
    send(network, entry(network, batch(["c"])))

    assert isinstance(failure(network), ConnectError)
    assert values(network) == []
    assert len(network.produces) == 1


def test_broker_that_goes_down_fails_all_requests_at_once() -> None:
    network = a_network()
    for value in "ab":
        send(network, entry(network, batch([value])))
    network.down.add(1)
    began = network.clock()

    assert isinstance(failure(network), ConnectError)
    assert network.clock() == about_s(began)


def test_dropped_requests_have_no_response() -> None:
    network = a_network()
    for value in "ab":
        send(network, entry(network, batch([value])))
    network.produce.drop(1)

    assert network.produce.receive([1], network.clock() + TIMEOUT_S) is None


def test_metadata_that_is_there_interrupts_the_wait_for_a_hung_broker() -> None:
    network = a_network()
    network.hung.add(1)
    send(network, entry(network, batch(["a"])))
    network.send_metadata(network.cluster.brokers[2].address, None, network.clock() + 5)
    began = network.clock()

    assert network.produce.receive([1], began + TIMEOUT_S) is None
    assert network.clock() == about_s(began)


def test_each_producer_id_is_given_once_by_any_broker_and_after_scripted_errors() -> None:
    network = a_network()
    network.transaction_errors["InitProducerId"].append(14)
    responses = []
    for node_id in (1, 2, 3):
        network.transactions.send(network.cluster.brokers[node_id], ProducerIdRequest(), network.clock() + 1)
        responses.append(network.transactions.receive([node_id], network.clock() + 1))

    assert responses == [
        ApiResponse(1, 14, NO_PRODUCER),
        ApiResponse(2, 0, ProducerIdAndEpoch(1000, 0)),
        ApiResponse(3, 0, ProducerIdAndEpoch(1001, 0)),
    ]
