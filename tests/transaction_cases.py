"""A coordinator's responses to EndTxn: the fake cluster and real brokers agree on the table."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from pyspark_kafka_meta.model import ProducerIdAndEpoch, TopicPartition, TransactionVersion
from tests.unit.kafka.records.handmade import TRANSACTIONAL, Row, batch

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
TIMEOUT_MS = 60_000
SHORT_MS = 4_000
"""A task has written by then, also on a slow machine."""
PATIENCE_S = 30.0
INVALID_TXN_STATE, INVALID_MAPPING, FENCED = 48, 49, 90


class Do(Enum):
    """A step of a case. All requests but the further INIT are of the first producer of the id."""

    WRITE = auto()
    COMMIT = auto()
    ABORT = auto()
    INIT = auto()
    TIME_OUT = auto()


CASES: dict[str, tuple[tuple[Do, ...], dict[TransactionVersion, list[int]]]] = {
    "once": ((Do.WRITE, Do.COMMIT), {V1: [0], V2: [0]}),
    "again": ((Do.WRITE, Do.COMMIT, Do.COMMIT, Do.COMMIT), {V1: [0, 0, 0], V2: [0, 0, 0]}),
    "abort again": ((Do.WRITE, Do.ABORT, Do.ABORT), {V1: [0, 0], V2: [0, 0]}),
    "abort after commit": ((Do.WRITE, Do.COMMIT, Do.ABORT), {V1: [0, INVALID_TXN_STATE], V2: [0, INVALID_TXN_STATE]}),
    "commit after abort": ((Do.WRITE, Do.ABORT, Do.COMMIT), {V1: [0, INVALID_TXN_STATE], V2: [0, INVALID_TXN_STATE]}),
    "nothing written": ((Do.COMMIT,), {V1: [INVALID_TXN_STATE], V2: [INVALID_TXN_STATE]}),
    "open, initialised again": ((Do.WRITE, Do.INIT, Do.COMMIT), {V1: [FENCED], V2: [FENCED]}),
    "committed, initialised again": ((Do.WRITE, Do.COMMIT, Do.INIT, Do.COMMIT), {V1: [0, FENCED], V2: [0, FENCED]}),
    "timed out": ((Do.WRITE, Do.TIME_OUT, Do.COMMIT), {V1: [FENCED], V2: [INVALID_TXN_STATE]}),
}
"""The steps, and the error codes of the responses to EndTxn by transaction version."""


def transactional_batch(value: str, producer: ProducerIdAndEpoch, base_sequence: int = 0) -> bytes:
    """One record."""
    producer_id, epoch = producer
    row = Row(0, value=value.encode())
    return batch(
        [row],
        attributes=TRANSACTIONAL,
        leader_epoch=-1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=base_sequence,
    )


def write(
    client: KafkaClient,
    partition: TopicPartition,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    version: TransactionVersion,
    base_sequence: int = 0,
) -> ProducedPartition:
    """Send one record to the leader, in a transaction. The first Produce may wait for the end of the last one."""
    client.partitions([partition.topic], client.api_deadline())
    leader = client.cache.leader(partition)
    assert leader is not None
    records = transactional_batch("a", producer, base_sequence)
    topic_id = client.cache.snapshot.topic_id(partition.topic)
    entry = ProducePartition(partition, topic_id if version is V2 else None, records)
    request = ProduceRequest((entry,), -1, 10_000, transactional_id, version)
    client.network.produce.send(leader.broker, request, client.clock() + PATIENCE_S)
    response = client.network.produce.receive([leader.broker.node_id], client.clock() + PATIENCE_S)
    assert isinstance(response, ProduceResponse), response
    return response.partitions[0]


def end_codes(
    client: KafkaClient,
    partition: TopicPartition,
    case: str,
    version: TransactionVersion,
    time_out: Callable[[str], object],
) -> list[int]:
    """The error codes of the responses to EndTxn. `time_out` waits for the abort of an open transaction."""
    steps, _ = CASES[case]
    coordinators, transactional_id = client.coordinators, f"{partition.topic}/{case}/{version}"
    timeout_ms = SHORT_MS if Do.TIME_OUT in steps else TIMEOUT_MS
    producer = coordinators.fence([transactional_id], timeout_ms, client.clock() + PATIENCE_S)[transactional_id]
    codes: list[int] = []
    for step in steps:
        deadline = client.clock() + PATIENCE_S
        match step:
            case Do.WRITE:
                if version is V1:
                    coordinators.add_partitions(transactional_id, producer, [partition], deadline)
                assert write(client, partition, transactional_id, producer, version).error_code == 0
            case Do.INIT:
                coordinators.fence([transactional_id], timeout_ms, deadline)
            case Do.TIME_OUT:
                time_out(transactional_id)
            case Do.COMMIT | Do.ABORT:
                committed = step is Do.COMMIT
                ended = coordinators.end_transactions({transactional_id: producer}, committed, version, deadline)
                codes.append(ended[transactional_id].error_code)
    return codes
