"""The fake wire handles Produce and InitProducerId as brokers do (`tests/kafka/test_produce_requests.py`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, RequestTimeoutError
from pyspark_kafka_meta.kafka.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure
from pyspark_kafka_meta.kafka.protocol.transactions import ProducerIdRequest, ProducerIdResponse
from pyspark_kafka_meta.kafka.records.batches import read_batch_headers
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.model import NO_LEADER, NO_PRODUCER, LeaderHint, ProducerEpoch, TopicPartition
from tests import produce_cases
from tests.partitions import T0, T1
from tests.produce_cases import CASES, Sent
from tests.unit.fake_wire import FakeWire, about_s
from tests.unit.logs import batch

PRODUCER_ID = 77
TIMEOUT_S = 30
Break = Callable[[FakeWire], object]


def a_wire(partitions: int = 1) -> FakeWire:
    """Broker 1 leads t-0, broker 2 leads t-1."""
    wire = FakeWire()
    wire.cluster.create_topic("t", partitions)
    return wire


def idempotent(sequence: int, *values: str, epoch: int = 0) -> bytes:
    return produce_cases.idempotent(PRODUCER_ID, sequence, epoch, values)


def entry(wire: FakeWire, records: bytes, partition: TopicPartition = T0) -> ProducePartition:
    return ProducePartition(partition, wire.cluster.topics["t"].topic_id, records)


def send(wire: FakeWire, *entries: ProducePartition, node_id: int = 1) -> None:
    request = ProduceRequest(entries, acks=-1, timeout_ms=1000)
    wire.produce.send(wire.cluster.brokers[node_id], request, wire.clock() + TIMEOUT_S)


def received(wire: FakeWire, node_id: int = 1) -> ProduceResponse:
    answer = wire.produce.receive([node_id], wire.clock() + TIMEOUT_S)
    assert isinstance(answer, ProduceResponse)
    return answer


def failure(wire: FakeWire, node_id: int = 1) -> KafkaMetaError:
    answer = wire.produce.receive([node_id], wire.clock() + 2 * TIMEOUT_S)
    assert isinstance(answer, RequestFailure)
    assert wire.produce.receive([node_id], wire.clock() + TIMEOUT_S) is None, "a failure is of all requests in flight"
    return answer.error


def produced(wire: FakeWire, records: bytes | ProducePartition, node_id: int = 1) -> ProducedPartition:
    send(wire, records if isinstance(records, ProducePartition) else entry(wire, records), node_id=node_id)
    [partition] = received(wire, node_id).partitions
    return partition


def outcome(partition: ProducedPartition) -> tuple[int, int]:
    return partition.error_code, partition.base_offset


def values(wire: FakeWire, partition: TopicPartition = T0) -> list[str]:
    """The log, as a reader decodes it."""
    records = b"".join(stored.data for stored in wire.cluster.logs[partition])
    part = FetchedRecords(partition, records, read_batch_headers(records), 0, 1 << 62)
    return [row["value"].decode() for table in decode([part], ["offset", "value"]) for row in table.to_pylist()]


def test_batches_land_in_the_log_in_the_order_of_the_requests() -> None:
    wire = a_wire()
    for number in range(5):
        send(wire, entry(wire, idempotent(2 * number, f"{number}a", f"{number}b")))

    assert [outcome(received(wire).partitions[0]) for _ in range(5)] == [(0, 2 * number) for number in range(5)]
    assert values(wire) == [f"{number}{letter}" for number in range(5) for letter in "ab"]
    assert [node_id for node_id, _ in wire.produces] == [1] * 5
    assert wire.produce.receive([1], wire.clock() + TIMEOUT_S) is None


def test_one_request_has_a_result_for_each_partition() -> None:
    wire = a_wire(partitions=2)
    send(wire, entry(wire, batch(["a"])), entry(wire, batch(["b"]), T1))
    mine, foreign = received(wire).partitions

    assert (outcome(mine), mine.leader_hint) == ((0, 0), None)
    assert outcome(foreign) == (6, -1)
    assert foreign.leader_hint == LeaderHint(2, 0, wire.cluster.brokers[2])
    assert (values(wire), values(wire, T1)) == (["a"], [])


def test_partition_without_a_leader_has_no_leader_hint() -> None:
    wire = a_wire()
    wire.cluster.move_leader(T0, NO_LEADER)
    refused = produced(wire, batch(["a"]))

    assert (outcome(refused), refused.leader_hint) == ((6, -1), None)


def test_unknown_topic_depends_on_how_the_request_names_it() -> None:
    wire = a_wire()
    known = entry(wire, batch(["a"]))
    wire.cluster.create_topic("t")
    other = TopicPartition("other", 0)

    assert outcome(produced(wire, known)) == (100, -1), "the id of the deleted topic"
    assert outcome(produced(wire, replace(known, topic_id=None))) == (0, 0)
    assert outcome(produced(wire, ProducePartition(other, None, batch(["a"])))) == (3, -1)
    assert outcome(produced(wire, ProducePartition(other, uuid4(), batch(["a"])))) == (100, -1)
    assert outcome(produced(wire, entry(wire, batch(["a"]), T1))) == (3, -1), "the topic has one partition"


# --- idempotence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_leader_accepts_each_batch_of_a_producer_once_and_in_order(case: tuple[Sent, ...]) -> None:
    wire = a_wire()
    outcomes = [outcome(produced(wire, sent.batch(PRODUCER_ID))) for sent in case]

    assert outcomes == [(sent.code, sent.base_offset) for sent in case]


def test_log_that_knows_nothing_of_a_producer_accepts_any_sequence() -> None:
    wire = a_wire()
    assert outcome(produced(wire, idempotent(40, "a"))) == (0, 0)
    wire.cluster.producers[T0].clear()
    assert outcome(produced(wire, idempotent(7, "b", epoch=3))) == (0, 1)
    wire.cluster.create_topic("t")
    assert outcome(produced(wire, idempotent(40, "c"))) == (0, 0)


def test_new_leader_knows_what_the_old_leader_appended() -> None:
    wire = a_wire()
    produced(wire, idempotent(0, "a"))
    wire.cluster.move_leader(T0, 2)

    assert outcome(produced(wire, idempotent(0, "a"), node_id=2)) == (0, 0)
    assert values(wire) == ["a"]


def test_batches_without_a_producer_are_appended_each_time() -> None:
    wire = a_wire()

    assert [outcome(produced(wire, batch(["a"]))) for _ in range(2)] == [(0, 0), (0, 1)]


# --- faults -----------------------------------------------------------------------------------------------------------


def test_batch_above_the_limit_of_its_topic_is_too_large() -> None:
    wire = a_wire()
    wire.cluster.max_message_bytes["t"] = len(batch(["a"]))

    assert outcome(produced(wire, batch(["aa"]))) == (10, -1)
    assert outcome(produced(wire, batch(["a"]))) == (0, 0)


@pytest.mark.parametrize(("code", "appended"), [(87, []), (19, []), (7, ["a"]), (20, ["a"])])
def test_each_scripted_code_is_returned_once(code: int, appended: list[str]) -> None:
    wire = a_wire()
    wire.error_codes[T0] = deque([code])

    assert outcome(produced(wire, idempotent(0, "a"))) == (code, -1)
    assert values(wire) == appended
    assert outcome(produced(wire, idempotent(0, "a"))) == (0, 0)
    assert values(wire) == ["a"]


@pytest.mark.parametrize("lost", [1, 3, 5])
def test_lost_response_is_of_a_batch_that_was_appended(lost: int) -> None:
    wire = a_wire()
    wire.lost_responses[1] = lost
    batches = [idempotent(number, str(number)) for number in range(5)]
    for sent in batches:
        send(wire, entry(wire, sent))

    assert isinstance(failure(wire), ConnectError)
    assert values(wire) == [str(number) for number in range(lost)]
    assert [outcome(produced(wire, sent)) for sent in batches] == [(0, number) for number in range(5)]
    assert values(wire) == list("01234")


def test_lost_responses_last_for_so_many_requests() -> None:
    wire = a_wire()
    wire.lost_responses[1] = 2
    for _ in range(2):
        send(wire, entry(wire, idempotent(0, "a")))
        failure(wire)

    assert outcome(produced(wire, idempotent(0, "a"))) == (0, 0)


def test_hung_broker_handles_nothing_and_times_out_at_the_first_deadline() -> None:
    wire = a_wire()
    began = wire.clock()
    send(wire, entry(wire, batch(["a"])))
    wire.clock.sleep(10)
    send(wire, entry(wire, batch(["b"])))
    wire.hung.add(1)

    assert wire.produce.receive([1], began + TIMEOUT_S - 1) is None
    assert isinstance(failure(wire), RequestTimeoutError)
    assert wire.clock() == about_s(began + TIMEOUT_S)
    assert values(wire) == []


def refuse_connections(wire: FakeWire) -> None:
    wire.down.add(1)


def break_next(wire: FakeWire) -> None:
    wire.failures[1] = deque([ConnectError("reset")])


@pytest.mark.parametrize("fault", [refuse_connections, break_next])
def test_failure_while_sending_is_of_all_requests_in_flight(fault: Break) -> None:
    wire = a_wire()
    send(wire, entry(wire, batch(["a"])))
    fault(wire)
    send(wire, entry(wire, batch(["b"])))
    send(wire, entry(wire, batch(["c"])))

    assert isinstance(failure(wire), ConnectError)
    assert values(wire) == []
    assert len(wire.produces) == 1


def test_broker_that_goes_down_fails_all_requests_at_once() -> None:
    wire = a_wire()
    for value in "ab":
        send(wire, entry(wire, batch([value])))
    wire.down.add(1)
    began = wire.clock()

    assert isinstance(failure(wire), ConnectError)
    assert wire.clock() == about_s(began)


def test_dropped_requests_have_no_response() -> None:
    wire = a_wire()
    for value in "ab":
        send(wire, entry(wire, batch([value])))
    wire.produce.drop(1)

    assert wire.produce.receive([1], wire.clock() + TIMEOUT_S) is None


def test_throttled_produce_is_handled() -> None:
    wire = a_wire()
    wire.throttles[1] = deque([700])
    send(wire, entry(wire, batch(["a"])))
    answer = received(wire)

    assert (answer.throttle_ms, outcome(answer.partitions[0])) == (700, (0, 0))


def test_metadata_that_is_there_interrupts_the_wait_for_a_hung_broker() -> None:
    wire = a_wire()
    wire.hung.add(1)
    send(wire, entry(wire, batch(["a"])))
    wire.send_metadata(wire.cluster.brokers[2].address, None, wire.clock() + 5)
    began = wire.clock()

    assert wire.produce.receive([1], began + TIMEOUT_S) is None
    assert wire.clock() == about_s(began)


def test_each_producer_id_is_given_once_by_any_broker_and_after_scripted_errors() -> None:
    wire = a_wire()
    wire.transaction_errors["InitProducerId"].append(14)
    answers = []
    for node_id in (1, 2, 3):
        wire.transactions.send(wire.cluster.brokers[node_id], ProducerIdRequest(), wire.clock() + 1)
        answers.append(wire.transactions.receive([node_id], wire.clock() + 1))

    assert answers == [
        ProducerIdResponse(1, 14, NO_PRODUCER),
        ProducerIdResponse(2, 0, ProducerEpoch(1000, 0)),
        ProducerIdResponse(3, 0, ProducerEpoch(1001, 0)),
    ]
