"""Requests and responses of brokers, made of the protocol library's messages, by version: for each API of `apis`
a request in `SENT`, and the response to it, by `message`."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import TZAware, i64Timedelta

from pyspark_kafka_meta.kafka.protocol import apis, frame_codec
from pyspark_kafka_meta.kafka.protocol.admin import TOPIC_RESOURCE, CreateTopicRequest, DescribeConfigsRequest
from pyspark_kafka_meta.kafka.protocol.apis import (
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
    ApiRequest,
    Exchange,
)
from pyspark_kafka_meta.kafka.protocol.consumer_groups import OffsetCommitRequest, OffsetFetchRequest
from pyspark_kafka_meta.kafka.protocol.fetch import FetchPartition, FetchRequest
from pyspark_kafka_meta.kafka.protocol.frame_codec import decode, encode, milliseconds
from pyspark_kafka_meta.kafka.protocol.list_offsets import LATEST_TIMESTAMP, OffsetQuery, OffsetsRequest
from pyspark_kafka_meta.kafka.protocol.metadata import MetadataRequest
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest
from pyspark_kafka_meta.kafka.protocol.transactions import (
    AddPartitionsRequest,
    DescribeTransactionsRequest,
    EndTransactionRequest,
    FindCoordinatorRequest,
    ListTransactionsRequest,
    ProducerIdRequest,
    TransactionVersionRequest,
)
from pyspark_kafka_meta.model import ProducerIdAndEpoch, TransactionVersion
from tests.partitions import T0, T1, U0
from tests.unit.logs import batch

APIS = [value for value in vars(apis).values() if isinstance(value, Api)]
T_ID, U_ID = UUID(int=7), UUID(int=8)
NAMES: dict[Any, str] = {T_ID: "t", U_ID: "u"}
CORRELATION_ID = 77
PRODUCER = ProducerIdAndEpoch(2**40, 3)
ID, SECOND_ID = "orders/1/0", "orders/2/0"
"""Transactional ids."""
SENT: dict[Api, Any] = {
    METADATA: MetadataRequest(["t"]),
    LIST_OFFSETS: OffsetsRequest(
        (OffsetQuery(T0, LATEST_TIMESTAMP, 3), OffsetQuery(U0, 1_700_000_000_000), OffsetQuery(T1, -2, 4))
    ),
    OFFSET_FOR_LEADER_EPOCH: OffsetsRequest(
        (OffsetQuery(T0, 2, 3), OffsetQuery(U0, 0), OffsetQuery(T1, 4, 4)), by_epoch=True
    ),
    FETCH: FetchRequest(
        tuple(FetchPartition(*each, 3, 2, 1000) for each in ((T0, T_ID, 10), (T1, T_ID, 11), (U0, U_ID, 12))),
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=5000,
        read_committed=True,
        rack="r",
    ),
    PRODUCE: ProduceRequest(
        (
            ProducePartition(T0, T_ID, batch(["a"])),
            ProducePartition(T1, T_ID, memoryview(batch(["b"]))),
            ProducePartition(U0, U_ID, batch(["u" * 100_000])),
        ),
        acks=-1,
        timeout_ms=1500,
    ),
    INIT_PRODUCER_ID: ProducerIdRequest(ID, 60_000),
    FIND_COORDINATOR: FindCoordinatorRequest((ID, SECOND_ID)),
    ADD_PARTITIONS_TO_TXN: AddPartitionsRequest(ID, PRODUCER, (T0, T1, U0)),
    END_TXN: EndTransactionRequest(ID, PRODUCER, True, TransactionVersion.V2),
    LIST_TRANSACTIONS: ListTransactionsRequest(),
    DESCRIBE_TRANSACTIONS: DescribeTransactionsRequest(ID),
    FEATURES: TransactionVersionRequest(),
    OFFSET_COMMIT: OffsetCommitRequest("group", {T0: 7}),
    OFFSET_FETCH: OffsetFetchRequest("group", (T0,)),
    # Brokers refuse to create a topic with 99 replicas.
    CREATE_TOPICS: CreateTopicRequest("t", 1, 99, {"cleanup.policy": "compact"}, 1_000),
    DESCRIBE_CONFIGS: DescribeConfigsRequest(TOPIC_RESOURCE, "t"),
}


def versions(api: Api) -> list[int]:
    return list(range(api.min_version, api.max_version + 1))


def _handshake(api: Api, name: str, **given: Any) -> Callable[[int], Any]:
    return lambda version: getattr(frame_codec.request_schema(api, version), name)(**given)


REQUESTS: dict[Api, Callable[[int], Any]] = {
    API_VERSIONS: _handshake(API_VERSIONS, "ApiVersionsRequest"),
    SASL_HANDSHAKE: _handshake(SASL_HANDSHAKE, "SaslHandshakeRequest", mechanism="PLAIN"),
    SASL_AUTHENTICATE: _handshake(SASL_AUTHENTICATE, "SaslAuthenticateRequest", auth_bytes=b"client-first"),
    **{api: request.encode for api, request in SENT.items()},
}
"""The message of a request of each API, by version."""
SPOKEN = [(api, version) for api in APIS for version in versions(api)]


def spoken(value: Any) -> str:
    """The id of a parameter of `SPOKEN`."""
    return value.title if isinstance(value, Api) else f"v{value}"


# --- frames -----------------------------------------------------------------------------------------------------------


def payload(message: Any, correlation_id: int = CORRELATION_ID) -> bytes:
    """A response's frame without its length."""
    body = io.BytesIO()
    header = message.__header_schema__(correlation_id=correlation_id)
    entity_writer(type(header))(body, header)
    entity_writer(type(message))(body, message)
    return body.getvalue()


def as_broker_reads(request: ApiRequest[Any], version: int) -> Any:
    """A request through its frame, as the protocol library reads it back."""
    schema = vars(frame_codec.request_schema(request.spoken(), version))
    (kind,) = {each for each in schema.values() if getattr(each, "__type__", None) is EntityType.request}
    frame = b"".join(encode(request.encode(version), CORRELATION_ID, "client-1"))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, size = entity_reader(kind.__header_schema__)(frame, 4)
    assert (header.request_api_key, header.request_api_version) == (kind.__api_key__, kind.__version__)
    assert (header.correlation_id, header.client_id) == (CORRELATION_ID, "client-1")
    read, rest = entity_reader(kind)(frame, 4 + size)
    assert 4 + size + rest == len(frame)
    return read


def exchange(api: Api, message: Any) -> Exchange:
    """`message` as it arrives."""
    return received(api, message.__version__, payload(message))


def received(api: Api, version: int, data: bytes) -> Exchange:
    return Exchange(*decode(api, version, CORRELATION_ID, memoryview(data)), version, CORRELATION_ID, 30, 60, 1.5)


# --- responses --------------------------------------------------------------------------------------------------------

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
"""What a field has that `MESSAGES` does not give, by Kafka's type. Errors are 0, and an array has one entry."""
BROKER = {"node_id": 4, "host": "kafka-4", "port": 9092, "rack": "r"}
HINT = {"leader_id": 4, "leader_epoch": 6}
FETCHED = {
    "error_code": ErrorCode.not_leader_or_follower,
    "high_watermark": 50,
    "last_stable_offset": 40,
    "diverging_epoch": {"epoch": 2, "end_offset": 8},
    "current_leader": HINT,
    "aborted_transactions": [{"producer_id": 9, "first_offset": 11}],
    "preferred_read_replica": -1,
}
PRODUCED = {
    "error_code": ErrorCode.invalid_record,
    "base_offset": 50,
    "record_errors": [{"batch_index": 2, "batch_index_error_message": "no key"}],
    "error_message": "one record failed",
    "current_leader": HINT,
}
FOUND = {"error_message": None, **BROKER}


def topics(entries: str, *partitions: tuple[Any, int], **fields: Any) -> list[dict[str, Any]]:
    """An array of topics, each with one partition.

    Args:
        entries: the name of the partitions in a topic.
        partitions: (topic name or id, partition number).
        fields: of each partition.
    """
    return [
        {
            "topic_id": topic,
            **dict.fromkeys(("topic", "name"), NAMES.get(topic, topic)),
            entries: [{**dict.fromkeys(("index", "partition", "partition_index"), number), **fields}],
        }
        for topic, number in partitions
    ]


def fetched(*partitions: tuple[Any, int]) -> dict[str, Any]:
    return {"responses": topics("partitions", *partitions, **FETCHED)}


def produced(*partitions: tuple[Any, int]) -> dict[str, Any]:
    return {"responses": topics("partition_responses", *partitions, **PRODUCED)}


def listed(*partitions: tuple[str, int]) -> dict[str, Any]:
    """Of ListOffsets and OffsetForLeaderEpoch."""
    return {"topics": topics("partitions", *partitions, offset=42, end_offset=42, leader_epoch=3)}


def added(*partitions: tuple[str, int]) -> dict[str, Any]:
    return {"results_by_topic_v3_and_below": topics("results_by_partition", *partitions)}


def committed(*partitions: tuple[str, int]) -> list[dict[str, Any]]:
    return topics("partitions", *partitions, committed_offset=7)


MESSAGES: dict[Api, Mapping[str, Any]] = {
    METADATA: {
        "brokers": [BROKER],
        "cluster_id": "c",
        "controller_id": 4,
        "topics": [
            {
                "name": "t",
                "topic_id": T_ID,
                "is_internal": False,
                "partitions": [
                    {
                        "error_code": ErrorCode.leader_not_available,
                        "partition_index": 1,
                        "leader_id": 4,
                        "leader_epoch": 9,
                        "replica_nodes": [4, 5],
                        "isr_nodes": [4],
                        "offline_replicas": [5],
                    }
                ],
            }
        ],
    },
    LIST_OFFSETS: listed(("t", 0)),
    OFFSET_FOR_LEADER_EPOCH: listed(("t", 0)),
    FETCH: fetched((T_ID, 1)) | {"node_endpoints": [BROKER]},
    PRODUCE: produced((T_ID, 1)) | {"node_endpoints": [BROKER]},
    INIT_PRODUCER_ID: PRODUCER._asdict() | {"producer_epoch": PRODUCER.epoch},
    FIND_COORDINATOR: {**FOUND, "coordinators": [{"key": ID, **FOUND}, {"key": SECOND_ID, **FOUND}]},
    ADD_PARTITIONS_TO_TXN: added(("t", 0), ("t", 1), ("u", 0)),
    END_TXN: {"producer_id": PRODUCER.producer_id, "producer_epoch": 4},
    LIST_TRANSACTIONS: {"transaction_states": [{"transactional_id": ID}, {"transactional_id": SECOND_ID}]},
    DESCRIBE_TRANSACTIONS: {
        "transaction_states": [
            {
                "transactional_id": ID,
                "transaction_state": "Ongoing",
                "transaction_timeout": 60_000,
                "transaction_start_time": 1_700_000_000_123,
                "producer_id": PRODUCER.producer_id,
                "producer_epoch": PRODUCER.epoch,
                "topics": [{"topic": "t", "partitions": [1, 0]}],
            }
        ]
    },
    FEATURES: {
        "finalized_features": [
            {"name": "metadata.version", "max_version_level": 27},
            {"name": "transaction.version", "max_version_level": 2},
        ]
    },
    OFFSET_COMMIT: {"topics": committed(("t", 0))},
    OFFSET_FETCH: {"topics": committed(("t", 0)), "groups": [{"group_id": "group", "topics": committed(("t", 0))}]},
    CREATE_TOPICS: {"topics": [{"name": "t", "error_message": None}]},
    DESCRIBE_CONFIGS: {
        "results": [
            {
                "resource_name": "t",
                "resource_type": 2,
                "configs": [{"name": "cleanup.policy", "value": "compact"}, {"name": "secret", "value": None}],
            }
        ]
    },
}
"""The response to each request of `SENT`. What a version does not have is left out."""


def message(api: Api, version: int | None = None, **changed: Any) -> Any:
    """The response of `MESSAGES`, by default in the newest version.

    Args:
        changed: values of fields, wherever they are in the response; `a__b` is field b of a.
    """
    kind = frame_codec.response_schema(api, api.max_version if version is None else version)
    paths = {tuple(path.split("__")): value for path, value in changed.items()}
    return _message(kind, MESSAGES.get(api, {}), paths, ())


def _message(kind: Any, given: Any, changed: Mapping[tuple[str, ...], Any], path: tuple[str, ...]) -> Any:
    if not isinstance(given, Mapping):
        return given
    values = {}
    for field in fields(kind):
        here = (*path, field.name)
        value = given.get(field.name, ...)
        for ending, replaced in changed.items():
            if here[-len(ending) :] == ending:
                value = replaced
        values[field.name] = _value(field, field.type, value, changed, here)
    return kind(**values)


def _value(
    field: Field[Any], kind: Any, given: Any, changed: Mapping[tuple[str, ...], Any], path: tuple[str, ...]
) -> Any:
    if NoneType in get_args(kind):
        if given is None:
            return None
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is tuple:
        entries = [...] if given is ... else given
        return tuple(_value(field, get_args(kind)[0], entry, changed, path) for entry in entries)
    if is_dataclass(kind):
        return _message(kind, {} if given is ... else given, changed, path)
    kafka_type = field.metadata["kafka_type"]
    if field.name.endswith("error_code"):
        return ErrorCode.none if given is ... else ErrorCode(given)
    if given is ...:
        return VALUES[kafka_type]
    return milliseconds(given) if kafka_type == "timedelta_i32" and isinstance(given, int) else given
