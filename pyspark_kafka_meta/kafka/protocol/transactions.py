"""The requests to coordinators, for producer ids and transactions: our own types, and their translation to the protocol
library's messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from pyspark_kafka_meta.kafka.protocol import frame_codec
from pyspark_kafka_meta.kafka.protocol.error_codes import OPERATION_NOT_ATTEMPTED
from pyspark_kafka_meta.kafka.protocol.frame_codec import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FEATURES,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    Api,
    Exchange,
)
from pyspark_kafka_meta.kafka.protocol.response_checks import broker, check, grouped, ms, unique
from pyspark_kafka_meta.model import NO_PRODUCER, Broker, ProducerIdAndEpoch, TopicPartition, TransactionVersion

GROUP_KEY, TRANSACTION_KEY = 0, 1
"""Types of the keys of FindCoordinator (Kafka `CoordinatorType`)."""

# --- transactions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    """Which brokers coordinate transactional ids or consumer groups? Any broker responds, before Kafka 3.0 to the first
    key alone.

    Attributes:
        keys: all transactional ids, or all groups.
        key_type: `TRANSACTION_KEY` or `GROUP_KEY`.
    """

    keys: tuple[str, ...]
    key_type: int = TRANSACTION_KEY


@dataclass(frozen=True, slots=True)
class Coordinator:
    """`broker` is None with an error."""

    error_code: int
    broker: Broker | None


@dataclass(frozen=True, slots=True)
class CoordinatorResponse:
    """`coordinators` has at least one of the requested keys."""

    node_id: int
    coordinators: Mapping[str, Coordinator]
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class ProducerIdRequest:
    """InitProducerId. Without a transactional id it is for an idempotent producer, and any broker responds. With one,
    its coordinator fences every earlier producer of this id, and aborts the transaction that it left open.

    Attributes:
        transaction_timeout_ms: after which the coordinator aborts a transaction. Brokers ignore it without an id.
    """

    transactional_id: str | None = None
    transaction_timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class ProducerIdResponse:
    """`producer` is `NO_PRODUCER` with an error."""

    node_id: int
    error_code: int
    producer: ProducerIdAndEpoch
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class AddPartitionsRequest:
    """AddPartitionsToTxn: before the first Produce to a partition, under `TransactionVersion.V1` alone."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class AddPartitionsResponse:
    """`errors` has the partitions whose error code is not 0; without any, all were added."""

    node_id: int
    errors: Mapping[TopicPartition, int]
    throttle_ms: int = 0

    @property
    def error_code(self) -> int:
        """The reason why none was added: the coordinator does not attempt the partitions beside a refused one."""
        return next((code for code in self.errors.values() if code != OPERATION_NOT_ATTEMPTED), 0)


@dataclass(frozen=True, slots=True)
class EndTransactionRequest:
    """EndTxn: commit or abort the open transaction of a producer. The coordinator responds once it is durable; the
    markers in the partitions follow."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    committed: bool
    version: TransactionVersion


@dataclass(frozen=True, slots=True)
class EndTransactionResponse:
    """`producer` is that of the next transaction under V2, `NO_PRODUCER` with an error and under V1."""

    node_id: int
    error_code: int
    producer: ProducerIdAndEpoch
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest:
    """The transactions that a broker coordinates and that are in state Ongoing (KIP-664, Kafka 3.0 and later)."""


@dataclass(frozen=True, slots=True)
class ListTransactionsResponse:
    """A broker leaves out ids that the user may not describe."""

    node_id: int
    error_code: int
    transactional_ids: tuple[str, ...]
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest:
    """The transaction of an id, from its coordinator (KIP-664, Kafka 3.0 and later)."""

    transactional_id: str


ENDING_STATES = frozenset({"PrepareCommit", "PrepareAbort"})
"""The end is decided, and markers are being written (Kafka's `TransactionState`)."""
OPEN_STATES = frozenset({"Ongoing", *ENDING_STATES})
"""Read_committed readers wait for the end of these."""


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """The last transaction of an id.

    Attributes:
        state: as the broker names it: Ongoing, PrepareCommit ...
        started_ms: ms since 1970 UTC; None if the producer has not begun a transaction yet.
        partitions: of an open transaction, or without its marker yet.
    """

    transactional_id: str
    state: str
    producer: ProducerIdAndEpoch
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DescribeTransactionsResponse:
    """`transaction` is None with an error."""

    node_id: int
    error_code: int
    transaction: DescribedTransaction | None
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class TransactionVersionRequest:
    """Which protocol of transactions has the cluster finalized (ApiVersions v4, KIP-584)? Any broker responds."""


@dataclass(frozen=True, slots=True)
class TransactionVersionResponse:
    """V1 if the cluster has not finalized V2."""

    node_id: int
    error_code: int
    version: TransactionVersion
    throttle_ms: int = 0


TransactionRequest: TypeAlias = (
    FindCoordinatorRequest
    | ProducerIdRequest
    | AddPartitionsRequest
    | EndTransactionRequest
    | ListTransactionsRequest
    | DescribeTransactionsRequest
    | TransactionVersionRequest
)
TransactionResponse: TypeAlias = (
    CoordinatorResponse
    | ProducerIdResponse
    | AddPartitionsResponse
    | EndTransactionResponse
    | ListTransactionsResponse
    | DescribeTransactionsResponse
    | TransactionVersionResponse
)


SEVERAL_KEYS_SINCE = 4
"""First version of FindCoordinator with several keys (KIP-699)."""
NEW_EPOCH_SINCE = 5
"""First version of EndTxn that raises the epoch: `TransactionVersion.V2` (KIP-890)."""
ONGOING = "Ongoing"
"""Kafka `TransactionState.ONGOING`."""
FEATURE = "transaction.version"
SOFTWARE = "pyspark-kafka-meta"


class Translation(NamedTuple):
    """How one kind of request is sent. `request` takes the version and the request, `response` the exchange, the
    request and the node id of the broker."""

    api: Api
    request: Callable[[int, Any], Any]
    response: Callable[[Exchange, Any, int], Any]


def transaction_api(request: TransactionRequest) -> Api:
    """The API with the versions that this request may have."""
    api = TRANSLATIONS[type(request)].api
    if not isinstance(request, EndTransactionRequest):
        return api
    if request.version is TransactionVersion.V1:
        return api._replace(max_version=NEW_EPOCH_SINCE - 1)
    return api._replace(min_version=NEW_EPOCH_SINCE, since="4.0")


def transaction_request(version: int, request: TransactionRequest) -> Any:
    return TRANSLATIONS[type(request)].request(version, request)


def transaction_response(exchange: Exchange, request: TransactionRequest, node_id: int) -> TransactionResponse:
    response: TransactionResponse = TRANSLATIONS[type(request)].response(exchange, request, node_id)
    return response


def _find_coordinator_request(version: int, request: FindCoordinatorRequest) -> Any:
    several = version >= SEVERAL_KEYS_SINCE
    names = {"coordinator_keys": request.keys} if several else {"key": request.keys[0]}
    return frame_codec.request_schema(FIND_COORDINATOR, version).FindCoordinatorRequest(
        key_type=request.key_type, **names
    )


def _find_coordinator_response(
    exchange: Exchange, request: FindCoordinatorRequest, node_id: int
) -> CoordinatorResponse:
    message = exchange.message
    if exchange.api_version >= SEVERAL_KEYS_SINCE:
        found = unique(((str(entry.key), entry) for entry in message.coordinators), lambda pair: pair[0], "key")
    else:
        found = ((request.keys[0], message),)
    keys = {key for key, _ in found}
    check(bool(keys) and keys <= set(request.keys), "no or unrequested coordinators")
    coordinators = {
        key: Coordinator(int(entry.error_code), None if entry.error_code else broker(entry)) for key, entry in found
    }
    return CoordinatorResponse(node_id, coordinators, ms(message.throttle_time))


def _producer_id_request(version: int, request: ProducerIdRequest) -> Any:
    return frame_codec.request_schema(INIT_PRODUCER_ID, version).InitProducerIdRequest(
        transactional_id=request.transactional_id,
        transaction_timeout=frame_codec.milliseconds(request.transaction_timeout_ms),
    )


def _producer_id_response(exchange: Exchange, request: ProducerIdRequest, node_id: int) -> ProducerIdResponse:
    message, code = exchange.message, int(exchange.message.error_code)
    check(code != 0 or min(message.producer_id, message.producer_epoch) >= 0, "a negative producer id or epoch")
    return ProducerIdResponse(node_id, code, _producer(message, code), ms(message.throttle_time))


def _producer(message: Any, code: int) -> ProducerIdAndEpoch:
    return NO_PRODUCER if code else ProducerIdAndEpoch(int(message.producer_id), int(message.producer_epoch))


def _add_partitions_request(version: int, request: AddPartitionsRequest) -> Any:
    schema = frame_codec.request_schema(ADD_PARTITIONS_TO_TXN, version)
    groups = grouped(request.partitions, lambda partition: partition.topic)
    return schema.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=request.transactional_id,
        v3_and_below_producer_id=request.producer.producer_id,
        v3_and_below_producer_epoch=request.producer.epoch,
        v3_and_below_topics=tuple(
            schema.AddPartitionsToTxnTopic(name=topic, partitions=tuple(member.partition for member in members))
            for topic, members in groups
        ),
    )


def _add_partitions_response(exchange: Exchange, request: AddPartitionsRequest, node_id: int) -> AddPartitionsResponse:
    codes = [
        (TopicPartition(str(topic.name), int(entry.partition_index)), int(entry.partition_error_code))
        for topic in exchange.message.results_by_topic_v3_and_below
        for entry in topic.results_by_partition
    ]
    responded = {partition for partition, _ in unique(codes, lambda pair: pair[0], "partition")}
    check(responded == set(request.partitions), "other partitions than requested")
    errors = {partition: code for partition, code in codes if code}
    return AddPartitionsResponse(node_id, errors, ms(exchange.message.throttle_time))


def _end_transaction_request(version: int, request: EndTransactionRequest) -> Any:
    return frame_codec.request_schema(END_TXN, version).EndTxnRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer.producer_id,
        producer_epoch=request.producer.epoch,
        committed=request.committed,
    )


def _end_transaction_response(
    exchange: Exchange, request: EndTransactionRequest, node_id: int
) -> EndTransactionResponse:
    message, code, producer = exchange.message, int(exchange.message.error_code), NO_PRODUCER
    if exchange.api_version >= NEW_EPOCH_SINCE:
        check(code != 0 or min(message.producer_id, message.producer_epoch) >= 0, "a negative producer id or epoch")
        producer = _producer(message, code)
    return EndTransactionResponse(node_id, code, producer, ms(message.throttle_time))


def _list_transactions_request(version: int, request: ListTransactionsRequest) -> Any:
    return frame_codec.request_schema(LIST_TRANSACTIONS, version).ListTransactionsRequest(state_filters=(ONGOING,))


def _list_transactions_response(
    exchange: Exchange, request: ListTransactionsRequest, node_id: int
) -> ListTransactionsResponse:
    message = exchange.message
    ids = tuple(str(entry.transactional_id) for entry in message.transaction_states)
    return ListTransactionsResponse(
        node_id, int(message.error_code), unique(ids, str, "transactional id"), ms(message.throttle_time)
    )


def _describe_transactions_request(version: int, request: DescribeTransactionsRequest) -> Any:
    schema = frame_codec.request_schema(DESCRIBE_TRANSACTIONS, version)
    return schema.DescribeTransactionsRequest(transactional_ids=(request.transactional_id,))


def _describe_transactions_response(
    exchange: Exchange, request: DescribeTransactionsRequest, node_id: int
) -> DescribeTransactionsResponse:
    message = exchange.message
    states = [entry for entry in message.transaction_states if entry.transactional_id == request.transactional_id]
    check(len(states) == len(message.transaction_states) == 1, "no or unrequested transactions")
    (entry,) = states
    code = int(entry.error_code)
    described = None if code else _described(entry)
    return DescribeTransactionsResponse(node_id, code, described, ms(message.throttle_time))


def _described(entry: Any) -> DescribedTransaction:
    check(min(entry.producer_id, entry.producer_epoch) >= 0, "a negative producer id or epoch")
    check(all(min(topic.partitions, default=0) >= 0 for topic in entry.topics), "a negative partition number")
    return DescribedTransaction(
        transactional_id=str(entry.transactional_id),
        state=str(entry.transaction_state),
        producer=_producer(entry, 0),
        timeout_ms=ms(entry.transaction_timeout),
        started_ms=None if entry.transaction_start_time < 0 else int(entry.transaction_start_time),
        partitions=tuple(
            TopicPartition(str(topic.topic), int(number)) for topic in entry.topics for number in topic.partitions
        ),
    )


def _version_request(version: int, request: TransactionVersionRequest) -> Any:
    schema = frame_codec.request_schema(FEATURES, version)
    return schema.ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version="unknown")


def _version_response(
    exchange: Exchange, request: TransactionVersionRequest, node_id: int
) -> TransactionVersionResponse:
    message = exchange.message
    levels = {str(feature.name): int(feature.max_version_level) for feature in message.finalized_features}
    version = TransactionVersion.V2 if levels.get(FEATURE, 0) >= TransactionVersion.V2 else TransactionVersion.V1
    return TransactionVersionResponse(node_id, int(message.error_code), version, ms(message.throttle_time))


TRANSLATIONS: Mapping[type[TransactionRequest], Translation] = {
    FindCoordinatorRequest: Translation(FIND_COORDINATOR, _find_coordinator_request, _find_coordinator_response),
    ProducerIdRequest: Translation(INIT_PRODUCER_ID, _producer_id_request, _producer_id_response),
    AddPartitionsRequest: Translation(ADD_PARTITIONS_TO_TXN, _add_partitions_request, _add_partitions_response),
    EndTransactionRequest: Translation(END_TXN, _end_transaction_request, _end_transaction_response),
    ListTransactionsRequest: Translation(LIST_TRANSACTIONS, _list_transactions_request, _list_transactions_response),
    DescribeTransactionsRequest: Translation(
        DESCRIBE_TRANSACTIONS, _describe_transactions_request, _describe_transactions_response
    ),
    TransactionVersionRequest: Translation(FEATURES, _version_request, _version_response),
}
