"""Requests and responses of brokers, made of the protocol library's messages, by version: for each API of `frame_codec`
a request in `REQUESTS`, and the response `message`."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import TZAware, i64Timedelta

from pyspark_kafka_meta.kafka.protocol import frame_codec
from pyspark_kafka_meta.kafka.protocol.admin import (
    TOPIC_RESOURCE,
    AdminRequest,
    CreateTopicRequest,
    DescribeConfigsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    admin_request,
)
from pyspark_kafka_meta.kafka.protocol.describe_transactions import DescribeTransactionsResponse, TransactionState
from pyspark_kafka_meta.kafka.protocol.fetch import FetchPartition, FetchRequest, fetch_request
from pyspark_kafka_meta.kafka.protocol.frame_codec import (
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FEATURES,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Api,
    Exchange,
    decode,
    encode,
    milliseconds,
)
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    LATEST_TIMESTAMP,
    OffsetQuery,
    OffsetsRequest,
    offsets_request,
)
from pyspark_kafka_meta.kafka.protocol.metadata import metadata_request
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest, produce_request
from pyspark_kafka_meta.kafka.protocol.transactions import (
    AddPartitionsRequest,
    DescribeTransactionsRequest,
    EndTransactionRequest,
    FindCoordinatorRequest,
    ListTransactionsRequest,
    ProducerIdRequest,
    TransactionRequest,
    TransactionVersionRequest,
    transaction_request,
)
from pyspark_kafka_meta.model import NO_EPOCH, ProducerIdAndEpoch, TopicPartition, TransactionVersion
from tests.partitions import T0
from tests.unit.logs import batch

VALUES: dict[str, Any] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), 7),
    "bool": True,
    "string": "kafka-4",
    "uuid": UUID(int=9),
    "bytes": b"server-first",
    "records": b"batches",
    "timedelta_i32": milliseconds(1003),
    "timedelta_i64": i64Timedelta.parse(timedelta(milliseconds=1004)),
    "datetime_i64": TZAware.truncate(datetime(2024, 1, 2, tzinfo=UTC)),
}
"""By Kafka's type."""
APIS = [value for value in vars(frame_codec).values() if isinstance(value, Api)]
T_ID, U_ID = UUID(int=7), UUID(int=8)
CORRELATION_ID = 77
PRODUCER = ProducerIdAndEpoch(2**40, 3)
TRANSACTION_REQUESTS: dict[Api, TransactionRequest] = {
    INIT_PRODUCER_ID: ProducerIdRequest("orders/1/0", 60_000),
    FIND_COORDINATOR: FindCoordinatorRequest(("orders/1/0", "orders/2/0")),
    ADD_PARTITIONS_TO_TXN: AddPartitionsRequest(
        "orders/1/0", PRODUCER, (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0))
    ),
    END_TXN: EndTransactionRequest("orders/1/0", PRODUCER, True, TransactionVersion.V2),
    LIST_TRANSACTIONS: ListTransactionsRequest(),
    DESCRIBE_TRANSACTIONS: DescribeTransactionsRequest("orders/1/0"),
    FEATURES: TransactionVersionRequest(),
}
"""A request of each API, to which the message of `transaction_message` is the response."""


ADMIN_REQUESTS: dict[Api, AdminRequest] = {
    OFFSET_COMMIT: OffsetCommitRequest("group", {TopicPartition("t", 0): 7}),
    OFFSET_FETCH: OffsetFetchRequest("group", (TopicPartition("t", 0),)),
    CREATE_TOPICS: CreateTopicRequest("t", 1, 99, {"cleanup.policy": "compact"}, 1_000),
    DESCRIBE_CONFIGS: DescribeConfigsRequest(TOPIC_RESOURCE, "t"),
}
"""Brokers refuse to create a topic with 99 replicas."""


def versions(api: Api) -> list[int]:
    return list(range(api.min_version, api.max_version + 1))


def schema(api: Api, version: int, kind: str) -> Any:
    return getattr(frame_codec.schema(api, version), kind)


def payload(message: Any, correlation_id: int = CORRELATION_ID) -> bytes:
    """A response's frame without its length."""
    body = io.BytesIO()
    header = message.__header_schema__(correlation_id=correlation_id)
    entity_writer(type(header))(body, header)
    entity_writer(type(message))(body, message)
    return body.getvalue()


def as_broker_reads(message: Any, kind: Any) -> Any:
    """A request through its frame, as the protocol library reads it back."""
    frame = b"".join(encode(message, CORRELATION_ID, "client-1"))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, size = entity_reader(kind.__header_schema__)(frame, 4)
    assert (header.request_api_key, header.request_api_version) == (kind.__api_key__, kind.__version__)
    assert (header.correlation_id, header.client_id) == (CORRELATION_ID, "client-1")
    read, rest = entity_reader(kind)(frame, 4 + size)
    assert 4 + size + rest == len(frame)
    return read


def exchange(api: Api, message: Any) -> Exchange:
    """`message` as it arrives."""
    read = decode(api, message.__version__, CORRELATION_ID, memoryview(payload(message)))
    return Exchange(*read, message.__version__, CORRELATION_ID, 30, 60, 1.5)


def metadata_message(version: int = 12, **changed: Any) -> Any:
    kinds = schema(METADATA, version, "response")
    partition = kinds.MetadataResponsePartition(
        error_code=ErrorCode.leader_not_available,
        partition_index=1,
        leader_id=4,
        leader_epoch=9,
        replica_nodes=(4, 5),
        isr_nodes=(4,),
        offline_replicas=(5,),
    )
    by_id = {"topic_id": T_ID} if version >= 10 else {}
    error = {"error_code": ErrorCode.none} if version >= 13 else {}
    topic = kinds.MetadataResponseTopic(error_code=ErrorCode.none, name="t", partitions=(partition,), **by_id)
    fields = {
        "throttle_time": milliseconds(1001),
        "brokers": (kinds.MetadataResponseBroker(node_id=4, host="kafka-4", port=9092, rack="r"),),
        "cluster_id": "c",
        "controller_id": 4,
        "topics": (topic,),
    }
    return kinds.MetadataResponse(**(fields | error | changed))


def offsets_message(*partitions: tuple[str, int], version: int = 7, **changed: Any) -> Any:
    kinds = schema(LIST_OFFSETS, version, "response")
    fields = {"error_code": ErrorCode.none, "timestamp": 5, "offset": 42, "leader_epoch": 3}
    return kinds.ListOffsetsResponse(
        throttle_time=milliseconds(1003),
        topics=tuple(
            kinds.ListOffsetsTopicResponse(
                name=topic,
                partitions=(kinds.ListOffsetsPartitionResponse(partition_index=number, **(fields | changed)),),
            )
            for topic, number in partitions
        ),
    )


def epochs_message(*partitions: tuple[str, int], version: int = 4, **changed: Any) -> Any:
    kinds = schema(OFFSET_FOR_LEADER_EPOCH, version, "response")
    fields = {"error_code": ErrorCode.none, "leader_epoch": 3, "end_offset": 42}
    return kinds.OffsetForLeaderEpochResponse(
        throttle_time=milliseconds(1003),
        topics=tuple(
            kinds.OffsetForLeaderTopicResult(
                topic=topic, partitions=(kinds.EpochEndOffset(partition=number, **(fields | changed)),)
            )
            for topic, number in partitions
        ),
    )


def fetch_message(*partitions: tuple[Any, int], version: int = 16, code: Any = ErrorCode.none, **changed: Any) -> Any:
    kinds = schema(FETCH, version, "response")
    endpoints = {"node_endpoints": (kinds.NodeEndpoint(node_id=4, host="kafka-4", port=9092),)} if version >= 16 else {}
    fields = {
        "error_code": ErrorCode.not_leader_or_follower,
        "high_watermark": 50,
        "last_stable_offset": 40,
        "log_start_offset": 5,
        "diverging_epoch": kinds.EpochEndOffset(epoch=2, end_offset=8),
        "current_leader": kinds.LeaderIdAndEpoch(leader_id=4, leader_epoch=6),
        "aborted_transactions": (kinds.AbortedTransaction(producer_id=9, first_offset=11),),
        "records": b"batches",
    }
    return kinds.FetchResponse(
        throttle_time=milliseconds(1003),
        error_code=code,
        session_id=0,
        responses=tuple(
            kinds.FetchableTopicResponse(
                **({"topic_id": topic} if version >= 13 else {"topic": topic}),
                partitions=(kinds.PartitionData(partition_index=number, **(fields | changed)),),
            )
            for topic, number in partitions
        ),
        **endpoints,
    )


def produce_message(*partitions: tuple[Any, int], version: int = 13, **changed: Any) -> Any:
    kinds = schema(PRODUCE, version, "response")
    hints = version >= 10
    endpoints = {"node_endpoints": (kinds.NodeEndpoint(node_id=4, host="kafka-4", port=9092),)} if hints else {}
    leader = {"current_leader": kinds.LeaderIdAndEpoch(leader_id=4, leader_epoch=6)} if hints else {}
    record_error = kinds.BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message="no key")
    fields = {
        "error_code": ErrorCode.invalid_record,
        "base_offset": 50,
        "log_start_offset": 5,
        "record_errors": (record_error,),
        "error_message": "one record failed",
    }
    return kinds.ProduceResponse(
        throttle_time=milliseconds(1003),
        responses=tuple(
            kinds.TopicProduceResponse(
                **({"topic_id": topic} if version >= 13 else {"name": topic}),
                partition_responses=(kinds.PartitionProduceResponse(index=number, **(fields | leader | changed)),),
            )
            for topic, number in partitions
        ),
        **endpoints,
    )


def producer_id_message(version: int = 5, **changed: Any) -> Any:
    fields = {"error_code": ErrorCode.none, "producer_id": 2**40, "producer_epoch": 3}
    kinds = schema(INIT_PRODUCER_ID, version, "response")
    return kinds.InitProducerIdResponse(throttle_time=milliseconds(1003), **(fields | changed))


def transaction_message(api: Api, version: int, **changed: Any) -> Any:
    """The response to the request in `TRANSACTION_REQUESTS`; `changed` are fields of its innermost part."""
    return {
        INIT_PRODUCER_ID: producer_id_message,
        FIND_COORDINATOR: find_coordinator_message,
        ADD_PARTITIONS_TO_TXN: add_partitions_message,
        END_TXN: end_transaction_message,
        LIST_TRANSACTIONS: list_transactions_message,
        DESCRIBE_TRANSACTIONS: describe_transactions_message,
        FEATURES: features_message,
    }[api](version, **changed)


def find_coordinator_message(version: int = 4, keys: Any = ("orders/1/0", "orders/2/0"), **changed: Any) -> Any:
    kinds = schema(FIND_COORDINATOR, version, "response")
    fields = {"error_code": ErrorCode.none, "error_message": None, "node_id": 4, "host": "kafka-4", "port": 9092}
    found = fields | changed
    if version < 4:
        return kinds.FindCoordinatorResponse(throttle_time=milliseconds(1003), **found)
    return kinds.FindCoordinatorResponse(
        throttle_time=milliseconds(1003), coordinators=tuple(kinds.Coordinator(key=key, **found) for key in keys)
    )


def add_partitions_message(version: int = 3, partitions: Any = (("t", 0), ("t", 1), ("u", 0)), **changed: Any) -> Any:
    kinds = schema(ADD_PARTITIONS_TO_TXN, version, "response")
    fields = {"partition_error_code": ErrorCode.none} | changed
    return kinds.AddPartitionsToTxnResponse(
        throttle_time=milliseconds(1003),
        results_by_topic_v3_and_below=tuple(
            kinds.AddPartitionsToTxnTopicResult(
                name=topic,
                results_by_partition=(kinds.AddPartitionsToTxnPartitionResult(partition_index=number, **fields),),
            )
            for topic, number in partitions
        ),
    )


def end_transaction_message(version: int = 5, **changed: Any) -> Any:
    kinds = schema(END_TXN, version, "response")
    producer = {"producer_id": PRODUCER.producer_id, "producer_epoch": 4} if version >= 5 else {}
    fields = {"error_code": ErrorCode.none} | producer | changed
    return kinds.EndTxnResponse(throttle_time=milliseconds(1003), **fields)


def list_transactions_message(version: int = 0, ids: Any = ("orders/1/0", "orders/2/0"), **changed: Any) -> Any:
    kinds = schema(LIST_TRANSACTIONS, version, "response")
    states = tuple(
        kinds.TransactionState(transactional_id=each, producer_id=9, transaction_state="Ongoing") for each in ids
    )
    fields = {"error_code": ErrorCode.none, "transaction_states": states} | changed
    return kinds.ListTransactionsResponse(throttle_time=milliseconds(1003), **fields)


def describe_transactions_message(version: int = 0, ids: Any = ("orders/1/0",), **changed: Any) -> Any:
    kinds = schema(DESCRIBE_TRANSACTIONS, version, "response")
    fields: dict[str, Any] = {
        "error_code": ErrorCode.none,
        "transaction_state": "Ongoing",
        "transaction_timeout": milliseconds(60_000),
        "transaction_start_time": 1_700_000_000_123,
        "producer_id": PRODUCER.producer_id,
        "producer_epoch": PRODUCER.epoch,
        "topics": (kinds.TopicData(topic="t", partitions=(1, 0)),),
    }
    states = tuple(TransactionState(transactional_id=each, **(fields | changed)) for each in ids)
    return DescribeTransactionsResponse(throttle_time=milliseconds(1003), transaction_states=states)


def features_message(version: int = 4, level: int = 2, **changed: Any) -> Any:
    kinds = schema(FEATURES, version, "response")
    features = tuple(
        kinds.FinalizedFeatureKey(name=name, max_version_level=maximum, min_version_level=1)
        for name, maximum in (("metadata.version", 27), ("transaction.version", level))
    )
    fields = {"error_code": ErrorCode.none, "finalized_features": features} | changed
    return kinds.ApiVersionsResponse(
        api_keys=(kinds.ApiVersion(api_key=0, min_version=0, max_version=13),),
        throttle_time=milliseconds(1003),
        **fields,
    )


def admin_message(api: Api, version: int, **changed: Any) -> Any:
    """The response to the request in `ADMIN_REQUESTS`; `changed` are fields of its innermost part."""
    return {
        OFFSET_COMMIT: offset_commit_message,
        OFFSET_FETCH: offset_fetch_message,
        CREATE_TOPICS: create_topics_message,
        DESCRIBE_CONFIGS: describe_configs_message,
    }[api](version, **changed)


def offset_commit_message(version: int = 9, partitions: Any = (("t", 0),), **changed: Any) -> Any:
    kinds = schema(OFFSET_COMMIT, version, "response")
    fields = {"error_code": ErrorCode.none} | changed
    return kinds.OffsetCommitResponse(
        throttle_time=milliseconds(1003),
        topics=tuple(
            kinds.OffsetCommitResponseTopic(
                name=topic, partitions=(kinds.OffsetCommitResponsePartition(partition_index=number, **fields),)
            )
            for topic, number in partitions
        ),
    )


def offset_fetch_message(
    version: int = 9,
    partitions: Any = (("t", 0),),
    groups: Any = ("group",),
    code: Any = ErrorCode.none,
    **changed: Any,
) -> Any:
    kinds = schema(OFFSET_FETCH, version, "response")
    by_groups = version >= 8
    topic_kind = kinds.OffsetFetchResponseTopics if by_groups else kinds.OffsetFetchResponseTopic
    partition_kind = kinds.OffsetFetchResponsePartitions if by_groups else kinds.OffsetFetchResponsePartition
    fields = {"committed_offset": 7, "metadata": None, "error_code": ErrorCode.none} | changed
    topics = tuple(
        topic_kind(name=topic, partitions=(partition_kind(partition_index=number, **fields),))
        for topic, number in partitions
    )
    if not by_groups:
        return kinds.OffsetFetchResponse(throttle_time=milliseconds(1003), topics=topics, error_code=code)
    return kinds.OffsetFetchResponse(
        throttle_time=milliseconds(1003),
        groups=tuple(
            kinds.OffsetFetchResponseGroup(group_id=group, topics=topics, error_code=code) for group in groups
        ),
    )


def create_topics_message(version: int = 7, topics: Any = ("t",), **changed: Any) -> Any:
    kinds = schema(CREATE_TOPICS, version, "response")
    by_id = {"topic_id": T_ID} if version >= 7 else {}
    fields = {"error_code": ErrorCode.none, "error_message": None, "configs": None} | changed
    return kinds.CreateTopicsResponse(
        throttle_time=milliseconds(1003),
        topics=tuple(kinds.CreatableTopicResult(name=topic, **by_id, **fields) for topic in topics),
    )


def describe_configs_message(version: int = 4, resources: Any = ("t",), **changed: Any) -> Any:
    kinds = schema(DESCRIBE_CONFIGS, version, "response")

    def entry(name: str, value: str | None) -> Any:
        return kinds.DescribeConfigsResourceResult(
            name=name, value=value, read_only=False, is_sensitive=False, synonyms=(), documentation=None
        )

    configs = (entry("cleanup.policy", "compact"), entry("secret", None))
    fields = {"error_code": ErrorCode.none, "error_message": None, "resource_type": 2, "configs": configs} | changed
    return kinds.DescribeConfigsResponse(
        throttle_time=milliseconds(1003),
        results=tuple(kinds.DescribeConfigsResult(resource_name=name, **fields) for name in resources),
    )


def message(api: Api, version: int) -> Any:
    """A response with one entry in each list."""
    return _filled(frame_codec.response_schema(api, version))


def _filled(kind: Any) -> Any:
    return kind(**{field.name: _value(field, field.type) for field in fields(kind)})


def _value(field: Field[Any], kind: Any) -> Any:
    if is_dataclass(kind):
        return _filled(kind)
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        return (_value(field, arguments[0]),)
    if arguments:  # of an optional value
        return _value(field, arguments[0])
    if field.name.endswith("error_code"):
        return ErrorCode.none
    return VALUES[field.metadata["kafka_type"]]


def _fetch(version: int) -> Any:
    entry = FetchPartition(T0, T_ID if version >= 13 else None, 0, 0, NO_EPOCH, 1 << 20)
    return fetch_request(version, FetchRequest((entry,), 0, 1, 1 << 20, False))


def _produce(version: int) -> Any:
    entry = ProducePartition(T0, T_ID if version >= 13 else None, batch(["a"]))
    return produce_request(version, ProduceRequest((entry,), -1, 1_000))


REQUESTS: dict[Api, Callable[[int], Any]] = {
    API_VERSIONS: lambda version: schema(API_VERSIONS, version, "request").ApiVersionsRequest(),
    SASL_HANDSHAKE: lambda version: schema(SASL_HANDSHAKE, version, "request").SaslHandshakeRequest(mechanism="PLAIN"),
    SASL_AUTHENTICATE: lambda version: schema(SASL_AUTHENTICATE, version, "request").SaslAuthenticateRequest(
        auth_bytes=b"client-first"
    ),
    METADATA: lambda version: metadata_request(version, ["t"]),
    LIST_OFFSETS: lambda version: offsets_request(version, OffsetsRequest((OffsetQuery(T0, LATEST_TIMESTAMP),))),
    OFFSET_FOR_LEADER_EPOCH: lambda version: offsets_request(
        version, OffsetsRequest((OffsetQuery(T0, 0),), by_epoch=True)
    ),
    FETCH: _fetch,
    PRODUCE: _produce,
    **{
        api: lambda version, request=request: transaction_request(version, request)  # type: ignore[misc]
        for api, request in TRANSACTION_REQUESTS.items()
    },
    **{
        api: lambda version, request=request: admin_request(version, request)  # type: ignore[misc]
        for api, request in ADMIN_REQUESTS.items()
    },
}
"""A request of each API."""
SPOKEN = [(api, version) for api in APIS for version in versions(api)]


def spoken(value: Any) -> str:
    """The id of a parameter of `SPOKEN`."""
    return value.title if isinstance(value, Api) else f"v{value}"
