"""The requests of transactions at every version that is spoken; responses that break the rules are not read."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.kafka.protocol.frame_codec import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FEATURES,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    Api,
)
from pyspark_kafka_meta.kafka.protocol.transactions import (
    AddPartitionsResponse,
    Coordinator,
    CoordinatorResponse,
    DescribedTransaction,
    DescribeTransactionsResponse,
    EndTransactionRequest,
    EndTransactionResponse,
    ListTransactionsResponse,
    ProducerIdRequest,
    ProducerIdResponse,
    TransactionResponse,
    TransactionVersionResponse,
    transaction_api,
    transaction_request,
    transaction_response,
)
from pyspark_kafka_meta.model import NO_PRODUCER, Address, Broker, ProducerIdAndEpoch, TransactionVersion
from tests.partitions import T0, T1, U0
from tests.unit.kafka.protocol.responses import (
    PRODUCER,
    TRANSACTION_REQUESTS,
    add_partitions_message,
    as_broker_reads,
    describe_transactions_message,
    end_transaction_message,
    exchange,
    features_message,
    find_coordinator_message,
    list_transactions_message,
    producer_id_message,
    schema,
    transaction_message,
    versions,
)

COORDINATOR = Coordinator(0, Broker(4, Address("kafka-4", 9092)))
FAILED = ErrorCode.coordinator_load_in_progress
DESCRIBED = DescribedTransaction("orders/1/0", "Ongoing", PRODUCER, 60_000, 1_700_000_000_123, (T1, T0))
SPOKEN = [(api, version) for api in TRANSACTION_REQUESTS for version in versions(api)]
REQUEST_NAMES = {
    INIT_PRODUCER_ID: "InitProducerIdRequest",
    FIND_COORDINATOR: "FindCoordinatorRequest",
    ADD_PARTITIONS_TO_TXN: "AddPartitionsToTxnRequest",
    END_TXN: "EndTxnRequest",
    LIST_TRANSACTIONS: "ListTransactionsRequest",
    DESCRIBE_TRANSACTIONS: "DescribeTransactionsRequest",
    FEATURES: "ApiVersionsRequest",
}


def read_request(api: Api, version: int, request: Any = None) -> Any:
    """The request as brokers read it."""
    kind = getattr(schema(api, version, "request"), REQUEST_NAMES[api])
    return as_broker_reads(transaction_request(version, request or TRANSACTION_REQUESTS[api]), kind)


def response_to(api: Api, message: Any) -> TransactionResponse:
    return transaction_response(exchange(api, message), TRANSACTION_REQUESTS[api], 3)


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(INIT_PRODUCER_ID))
def test_producer_id_request_is_of_a_new_producer(version: int) -> None:
    read = read_request(INIT_PRODUCER_ID, version, ProducerIdRequest())
    assert (read.transactional_id, read.producer_id, read.producer_epoch) == (None, -1, -1)

    read = read_request(INIT_PRODUCER_ID, version)
    assert (read.transactional_id, read.producer_id, read.producer_epoch) == ("orders/1/0", -1, -1)
    assert read.transaction_timeout.total_seconds() == 60


def test_coordinator_request_has_all_ids_or_the_first() -> None:
    assert read_request(FIND_COORDINATOR, 4).coordinator_keys == ("orders/1/0", "orders/2/0")
    assert read_request(FIND_COORDINATOR, 3).key == "orders/1/0"
    assert {read_request(FIND_COORDINATOR, version).key_type for version in (3, 4)} == {1}


@pytest.mark.parametrize("version", versions(ADD_PARTITIONS_TO_TXN))
def test_partitions_are_added_by_topic(version: int) -> None:
    read = read_request(ADD_PARTITIONS_TO_TXN, version)

    assert read.v3_and_below_transactional_id == "orders/1/0"
    assert (read.v3_and_below_producer_id, read.v3_and_below_producer_epoch) == PRODUCER
    assert [(topic.name, topic.partitions) for topic in read.v3_and_below_topics] == [("t", (0, 1)), ("u", (0,))]


@pytest.mark.parametrize("version", versions(END_TXN))
@pytest.mark.parametrize("committed", [True, False])
def test_end_request_names_transaction_and_outcome(version: int, committed: bool) -> None:
    request = EndTransactionRequest("orders/1/0", PRODUCER, committed, TransactionVersion.V1)
    read = read_request(END_TXN, version, request)

    assert (read.transactional_id, read.producer_id, read.producer_epoch) == ("orders/1/0", *PRODUCER)
    assert read.committed is committed


def test_end_request_keeps_to_the_version_of_its_transaction() -> None:
    v1, v2 = (transaction_api(EndTransactionRequest("i", PRODUCER, True, version)) for version in TransactionVersion)

    assert (v1.min_version, v1.max_version) == (END_TXN.min_version, 4)
    assert (v2.min_version, v2.max_version) == (5, END_TXN.max_version)


def test_open_transactions_are_listed() -> None:
    assert read_request(LIST_TRANSACTIONS, 0).state_filters == ("Ongoing",)
    assert read_request(DESCRIBE_TRANSACTIONS, 0).transactional_ids == ("orders/1/0",)


def test_request_for_features_names_a_software_that_brokers_accept() -> None:
    read = read_request(FEATURES, 4)

    # Kafka's ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN
    assert all(text.replace("-", "").isalnum() for text in (read.client_software_name, read.client_software_version))


# --- responses --------------------------------------------------------------------------------------------------------

RESPONSES: dict[Api, TransactionResponse] = {
    INIT_PRODUCER_ID: ProducerIdResponse(3, 0, PRODUCER, 1003),
    FIND_COORDINATOR: CoordinatorResponse(3, {"orders/1/0": COORDINATOR, "orders/2/0": COORDINATOR}, 1003),
    ADD_PARTITIONS_TO_TXN: AddPartitionsResponse(3, {}, 1003),
    END_TXN: EndTransactionResponse(3, 0, ProducerIdAndEpoch(2**40, 4), 1003),
    LIST_TRANSACTIONS: ListTransactionsResponse(3, 0, ("orders/1/0", "orders/2/0"), 1003),
    DESCRIBE_TRANSACTIONS: DescribeTransactionsResponse(3, 0, DESCRIBED, 1003),
    FEATURES: TransactionVersionResponse(3, 0, TransactionVersion.V2, 1003),
}
OLDER: dict[tuple[Api, int], TransactionResponse] = {
    (FIND_COORDINATOR, 3): CoordinatorResponse(3, {"orders/1/0": COORDINATOR}, 1003),
    **{(END_TXN, version): EndTransactionResponse(3, 0, NO_PRODUCER, 1003) for version in (1, 2, 3, 4)},
}


@pytest.mark.parametrize(("api", "version"), SPOKEN)
def test_response_is_read(api: Api, version: int) -> None:
    assert response_to(api, transaction_message(api, version)) == OLDER.get((api, version), RESPONSES[api])


@pytest.mark.parametrize(
    ("api", "message", "response"),
    [
        *(
            (
                INIT_PRODUCER_ID,
                producer_id_message(version, error_code=FAILED, producer_id=-1, producer_epoch=-1),
                ProducerIdResponse(3, 14, NO_PRODUCER, 1003),
            )
            for version in versions(INIT_PRODUCER_ID)
        ),
        (
            FIND_COORDINATOR,
            find_coordinator_message(3, error_code=FAILED, node_id=-1, host="", port=-1),
            CoordinatorResponse(3, {"orders/1/0": Coordinator(14, None)}, 1003),
        ),
        (
            FIND_COORDINATOR,
            find_coordinator_message(4, ["orders/2/0"], error_code=FAILED, node_id=-1, host="", port=-1),
            CoordinatorResponse(3, {"orders/2/0": Coordinator(14, None)}, 1003),
        ),
        (
            ADD_PARTITIONS_TO_TXN,
            add_partitions_message(partition_error_code=ErrorCode.producer_fenced),
            AddPartitionsResponse(3, {T0: 90, T1: 90, U0: 90}, 1003),
        ),
        (
            END_TXN,
            end_transaction_message(4, error_code=ErrorCode.invalid_txn_state),
            EndTransactionResponse(3, 48, NO_PRODUCER, 1003),
        ),
        (
            END_TXN,
            end_transaction_message(5, error_code=ErrorCode.producer_fenced, producer_id=-1, producer_epoch=-1),
            EndTransactionResponse(3, 90, NO_PRODUCER, 1003),
        ),
        (
            LIST_TRANSACTIONS,
            list_transactions_message(0, [], error_code=FAILED),
            ListTransactionsResponse(3, 14, (), 1003),
        ),
        (
            DESCRIBE_TRANSACTIONS,
            describe_transactions_message(error_code=FAILED, producer_id=-1, producer_epoch=-1),
            DescribeTransactionsResponse(3, 14, None, 1003),
        ),
        (FEATURES, features_message(level=1), TransactionVersionResponse(3, 0, TransactionVersion.V1, 1003)),
        (
            FEATURES,
            features_message(finalized_features=()),
            TransactionVersionResponse(3, 0, TransactionVersion.V1, 1003),
        ),
    ],
)
def test_errors_and_missing_features_are_read(api: Api, message: Any, response: TransactionResponse) -> None:
    assert response_to(api, message) == response


def test_producer_that_has_not_begun_a_transaction_has_no_start() -> None:
    message = describe_transactions_message(transaction_state="Empty", transaction_start_time=-1, topics=())
    response = response_to(DESCRIBE_TRANSACTIONS, message)

    assert response == DescribeTransactionsResponse(
        3, 0, DescribedTransaction("orders/1/0", "Empty", PRODUCER, 60_000, None, ()), 1003
    )


def test_reason_why_no_partition_was_added_is_that_of_the_refused_partition() -> None:
    not_attempted, fenced = int(ErrorCode.operation_not_attempted), int(ErrorCode.topic_authorization_failed)

    assert AddPartitionsResponse(3, {T0: not_attempted, U0: fenced}).error_code == fenced
    assert AddPartitionsResponse(3, {}).error_code == 0


DESCRIBE_0 = schema(DESCRIBE_TRANSACTIONS, 0, "response")
UNREQUESTED = ["orders/1/0", "payments/1/0"]


@pytest.mark.parametrize(
    ("api", "message", "said"),
    [
        (INIT_PRODUCER_ID, producer_id_message(producer_id=-1), "a negative producer id or epoch"),
        (INIT_PRODUCER_ID, producer_id_message(producer_epoch=-1), "a negative producer id or epoch"),
        (FIND_COORDINATOR, find_coordinator_message(keys=[]), "no or unrequested coordinators"),
        (FIND_COORDINATOR, find_coordinator_message(keys=UNREQUESTED), "no or unrequested coordinators"),
        (FIND_COORDINATOR, find_coordinator_message(keys=["orders/1/0"] * 2), "the same key twice"),
        (FIND_COORDINATOR, find_coordinator_message(node_id=-1), "a broker id of -1"),
        (FIND_COORDINATOR, find_coordinator_message(3, host="evil\nhost"), "an impossible host name"),
        (ADD_PARTITIONS_TO_TXN, add_partitions_message(partitions=[("t", 0)]), "other partitions than requested"),
        (
            ADD_PARTITIONS_TO_TXN,
            add_partitions_message(partitions=[("t", 0), ("t", 1), ("u", 0), ("v", 0)]),
            "other partitions than requested",
        ),
        (
            ADD_PARTITIONS_TO_TXN,
            add_partitions_message(partitions=[("t", 0), ("t", 1), ("u", 0), ("t", 0)]),
            "the same partition twice",
        ),
        (END_TXN, end_transaction_message(producer_id=-1), "a negative producer id or epoch"),
        (END_TXN, end_transaction_message(producer_epoch=-2), "a negative producer id or epoch"),
        (LIST_TRANSACTIONS, list_transactions_message(ids=["i", "i"]), "the same transactional id twice"),
        (DESCRIBE_TRANSACTIONS, describe_transactions_message(ids=[]), "no or unrequested transactions"),
        (DESCRIBE_TRANSACTIONS, describe_transactions_message(ids=UNREQUESTED), "no or unrequested transactions"),
        (DESCRIBE_TRANSACTIONS, describe_transactions_message(producer_id=-1), "a negative producer id or epoch"),
        (
            DESCRIBE_TRANSACTIONS,
            describe_transactions_message(topics=(DESCRIBE_0.TopicData(topic="t", partitions=(-1,)),)),
            "a negative partition number",
        ),
    ],
)
def test_response_that_breaks_the_rules_is_not_read(api: Api, message: Any, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        response_to(api, message)
