"""Produce at every version that is spoken; responses that break the rules are not read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.kafka.protocol.frame_codec import PRODUCE
from pyspark_kafka_meta.kafka.protocol.produce import (
    MAX_RECORD_ERRORS,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    produce_api,
    produce_request,
    produce_response,
)
from pyspark_kafka_meta.model import Address, Broker, LeaderHint, TransactionVersion
from tests.partitions import T0, T1, U0
from tests.unit.kafka.protocol.responses import T_ID, U_ID, as_broker_reads, exchange, produce_message, schema, versions


def request(by_id: bool = True) -> ProduceRequest:
    entries = (
        ProducePartition(T0, T_ID if by_id else None, b"batch of t-0"),
        ProducePartition(T1, T_ID if by_id else None, memoryview(b"batch of t-1")),
        ProducePartition(U0, U_ID if by_id else None, b"u" * 100_000),
    )
    return ProduceRequest(entries, acks=-1, timeout_ms=1500)


def response_to(message: Any) -> ProduceResponse:
    return produce_response(exchange(PRODUCE, message), request(message.__version__ >= 13), node_id=3)


@pytest.mark.parametrize("version", versions(PRODUCE))
def test_produce_request_has_each_batch_once_in_order(version: int) -> None:
    kind = schema(PRODUCE, version, "request").ProduceRequest
    read = as_broker_reads(produce_request(version, request(version >= 13)), kind)

    assert (read.acks, read.timeout.total_seconds(), read.transactional_id) == (-1, 1.5, None)
    names = [topic.topic_id if version >= 13 else topic.name for topic in read.topic_data]
    assert names == ([T_ID, U_ID] if version >= 13 else ["t", "u"])
    assert [(entry.index, entry.records) for topic in read.topic_data for entry in topic.partition_data] == [
        (0, b"batch of t-0"),
        (1, b"batch of t-1"),
        (0, b"u" * 100_000),
    ]


@pytest.mark.parametrize("version", versions(PRODUCE))
def test_produce_response_is_read(version: int) -> None:
    response = response_to(produce_message((T_ID if version >= 13 else "t", 1), version=version))

    hint = LeaderHint(4, 6, Broker(4, Address("kafka-4", 9092))) if version >= 10 else None
    refused = ProducedPartition(T1, 87, 50, "one record failed", ((2, "no key"),), hint)
    assert response == ProduceResponse(3, (refused,), throttle_ms=1003, request_bytes=30, latency_ms=1.5)


def test_what_a_response_does_not_tell_is_none() -> None:
    nothing = {
        "error_code": ErrorCode.none,
        "current_leader": PRODUCE_13.LeaderIdAndEpoch(),
        "record_errors": (),
        "error_message": None,
    }

    assert response_to(produce_message((T_ID, 0), **nothing)).partitions == (ProducedPartition(T0, 0, 50),)


def test_response_may_leave_partitions_out() -> None:
    assert response_to(produce_message()).partitions == ()


PRODUCE_13 = schema(PRODUCE, 13, "response")


def record_error(index: int, text: str | None = None) -> Any:
    return PRODUCE_13.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)


def test_texts_of_a_broker_are_shortened_and_cannot_forge_a_line() -> None:
    text = "\r\nFATAL \x1b[31m\u202e" + "x" * 1_000
    [refused] = response_to(
        produce_message((T_ID, 0), error_message=text, record_errors=(record_error(0, text), record_error(1)))
    ).partitions

    assert refused.error_message is not None
    assert refused.error_message.startswith(r"\r\nFATAL \x1b[31m\u202exxx")
    assert len(refused.error_message) < 600
    assert refused.record_errors == ((0, refused.error_message), (1, None))


def test_only_the_first_records_of_a_refused_batch_are_reported() -> None:
    errors = tuple(record_error(index) for index in range(MAX_RECORD_ERRORS + 1))
    [refused] = response_to(produce_message((T_ID, 0), record_errors=errors)).partitions

    assert refused.record_errors == tuple((index, None) for index in range(MAX_RECORD_ERRORS))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (produce_message((T_ID, 5)), "unrequested .*t-5"),
        (produce_message((UUID(int=99), 0)), "unrequested .*-0"),
        (produce_message(("v", 0), version=12), "unrequested .*v-0"),
        (produce_message((T_ID, 0), (T_ID, 0)), "the same partition twice"),
        (produce_message((T_ID, 0), (U_ID, 0), (T_ID, 0)), "the same partition twice"),
        (produce_message((T_ID, 0), base_offset=-2), "a negative offset for t-0"),
        (produce_message((T_ID, 0), record_errors=(record_error(-1),)), "a negative record index for t-0"),
        (
            produce_message((T_ID, 0), current_leader=PRODUCE_13.LeaderIdAndEpoch(leader_id=1, leader_epoch=-2)),
            "a leader epoch of -2",
        ),
    ],
)
def test_produce_response_that_breaks_the_rules_is_not_read(message: Any, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        response_to(message)


def in_transaction(version: TransactionVersion, by_id: bool = True) -> ProduceRequest:
    return replace(request(by_id), transactional_id="orders/1/0", transaction_version=version)


@pytest.mark.parametrize("version", versions(PRODUCE))
def test_produce_request_names_its_transaction(version: int) -> None:
    kind = schema(PRODUCE, version, "request").ProduceRequest
    sent = in_transaction(TransactionVersion.V1, version >= 13)

    assert as_broker_reads(produce_request(version, sent), kind).transactional_id == "orders/1/0"


@pytest.mark.parametrize(
    ("sent", "oldest", "newest"),
    [
        (request(), 8, 13),
        (request(by_id=False), 8, 12),
        (in_transaction(TransactionVersion.V1), 8, 11),
        (in_transaction(TransactionVersion.V1, by_id=False), 8, 11),
        (in_transaction(TransactionVersion.V2), 12, 13),
        (in_transaction(TransactionVersion.V2, by_id=False), 12, 12),
    ],
)
def test_produce_request_keeps_to_the_version_of_its_transaction(
    sent: ProduceRequest, oldest: int, newest: int
) -> None:
    api = produce_api(sent)

    assert (api.min_version, api.max_version) == (oldest, newest)
