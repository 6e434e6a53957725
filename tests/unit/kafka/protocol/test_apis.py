"""Requests and responses of each API, at every version that is spoken; responses that break the rules are not read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.kafka.protocol.admin import BROKER_RESOURCE, DescribeConfigsRequest
from pyspark_kafka_meta.kafka.protocol.apis import (
    ADD_PARTITIONS_TO_TXN,
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
    Api,
    ApiRequest,
    ApiResponse,
)
from pyspark_kafka_meta.kafka.protocol.error_codes import INVALID_TOPIC_EXCEPTION
from pyspark_kafka_meta.kafka.protocol.fetch import DivergingEpoch, FetchedPartition, FetchResponse
from pyspark_kafka_meta.kafka.protocol.list_offsets import PartitionOffset
from pyspark_kafka_meta.kafka.protocol.metadata import MetadataRequest
from pyspark_kafka_meta.kafka.protocol.produce import MAX_RECORD_ERRORS, ProducedPartition, ProduceResponse
from pyspark_kafka_meta.kafka.protocol.transactions import (
    GROUP_KEY,
    Coordinator,
    DescribedTransaction,
    EndTransactionRequest,
    FindCoordinatorRequest,
    ProducerIdRequest,
)
from pyspark_kafka_meta.model import (
    NO_PRODUCER,
    Address,
    Broker,
    LeaderHint,
    MetadataResponse,
    PartitionMetadata,
    ProducerIdAndEpoch,
    TopicMetadata,
    TransactionVersion,
)
from tests.partitions import T0, T1, U0
from tests.unit.kafka.protocol.responses import (
    BROKER,
    CORRELATION_ID,
    ID,
    PRODUCER,
    SECOND_ID,
    SENT,
    T_ID,
    U_ID,
    added,
    as_broker_reads,
    committed,
    exchange,
    fetched,
    listed,
    message,
    produced,
    versions,
)

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
DENIED, LOADING = ErrorCode.topic_authorization_failed, ErrorCode.coordinator_load_in_progress
FENCED = ErrorCode.producer_fenced


def response_to(api: Api, version: int | None = None, **changed: Any) -> Any:
    """The response of broker 3."""
    return SENT[api].decode(exchange(api, message(api, version, **changed)), 3)


# --- requests ---------------------------------------------------------------------------------------------------------


def produce_by(version: TransactionVersion | None, by_id: bool = True) -> Any:
    request = SENT[PRODUCE]
    if version is not None:
        request = replace(request, transactional_id=ID, transaction_version=version)
    return request if by_id else nameless(request)


def nameless(request: Any) -> Any:
    """The request without the ids of topics."""
    return replace(request, partitions=tuple(replace(each, topic_id=None) for each in request.partitions))


def by_partition(name: str, values: list[dict[str, Any]], topic: str = "name", number: str = "partition_index") -> Any:
    """The topics t and u, with two partitions and one."""
    entries = [{number: index, **each} for index, each in zip((0, 1, 0), values, strict=True)]
    topics = [{topic: "t", "topic_id": T_ID}, {topic: "u", "topic_id": U_ID}]
    return [{**topics[0], name: entries[:2]}, {**topics[1], name: entries[2:]}]


def timestamps(*pairs: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"timestamp": wanted, "leader_epoch": wanted, "current_leader_epoch": epoch} for wanted, epoch in pairs]


POSITION = {"current_leader_epoch": 3, "last_fetched_epoch": 2, "partition_max_bytes": 1000}
FETCH_FIELDS = {
    "replica_id": -1,
    "max_wait": 500,
    "min_bytes": 1,
    "max_bytes": 5000,
    "isolation_level": 1,
    "session_epoch": -1,
    "rack_id": "r",
    "topics": by_partition(
        "partitions", [{"fetch_offset": 10 + each, **POSITION} for each in range(3)], "topic", "partition"
    ),
}
BATCHES = by_partition(
    "partition_data", [{"records": bytes(each.records)} for each in SENT[PRODUCE].partitions], number="index"
)
PRODUCER_FIELDS = {"producer_id": PRODUCER.producer_id, "producer_epoch": PRODUCER.epoch}
NO_ID = {"producer_id": -1, "producer_epoch": -1}
REQUESTS: list[tuple[ApiRequest[Any], dict[str, Any]]] = [
    *(
        (MetadataRequest(names), {"topics": topics, "allow_auto_topic_creation": False})
        for names, topics in ((None, None), ([], []), (["u", "t"], [{"name": "t"}, {"name": "u"}]))
    ),
    # A broker would close the connection at a name that its response cannot hold.
    *(
        (MetadataRequest(["t", name]), {"topics": [{"name": "t"}]})
        for name in ("", ".", "a b", "x" * 250, "x" * 40_000)
    ),
    *(
        (
            replace(SENT[LIST_OFFSETS], read_committed=committed),
            {
                "replica_id": -1,
                "isolation_level": int(committed),
                "topics": by_partition("partitions", timestamps((-1, 3), (-2, 4), (1_700_000_000_000, -1))),
            },
        )
        for committed in (False, True)
    ),
    (
        SENT[OFFSET_FOR_LEADER_EPOCH],
        {
            "replica_id": -1,
            "topics": by_partition("partitions", timestamps((2, 3), (4, 4), (0, -1)), "topic", "partition"),
        },
    ),
    (SENT[FETCH], FETCH_FIELDS),
    (nameless(SENT[FETCH]), FETCH_FIELDS),
    (SENT[PRODUCE], {"acks": -1, "timeout": 1500, "transactional_id": None, "topic_data": BATCHES}),
    *((produce_by(version), {"transactional_id": ID, "topic_data": BATCHES}) for version in TransactionVersion),
    (ProducerIdRequest(), {"transactional_id": None, **NO_ID}),
    (SENT[INIT_PRODUCER_ID], {"transactional_id": ID, **NO_ID, "transaction_timeout": 60_000}),
    (SENT[FIND_COORDINATOR], {"key_type": 1, "coordinator_keys": (ID, SECOND_ID), "key": ID}),
    (FindCoordinatorRequest(("group",), GROUP_KEY), {"key_type": 0}),
    (
        SENT[ADD_PARTITIONS_TO_TXN],
        {
            "v3_and_below_transactional_id": ID,
            "v3_and_below_producer_id": PRODUCER.producer_id,
            "v3_and_below_producer_epoch": PRODUCER.epoch,
            "v3_and_below_topics": [{"name": "t", "partitions": (0, 1)}, {"name": "u", "partitions": (0,)}],
        },
    ),
    *(
        (
            EndTransactionRequest(ID, PRODUCER, is_committed, version),
            {"transactional_id": ID, "committed": is_committed, **PRODUCER_FIELDS},
        )
        for is_committed in (True, False)
        for version in TransactionVersion
    ),
    (SENT[LIST_TRANSACTIONS], {"state_filters": ("Ongoing",)}),
    (SENT[DESCRIBE_TRANSACTIONS], {"transactional_ids": (ID,)}),
    # By no member of the group.
    (
        SENT[OFFSET_COMMIT],
        {
            "group_id": "group",
            "member_id": "",
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 7}]}],
        },
    ),
    (
        SENT[OFFSET_FETCH],
        {
            "groups": [{"group_id": "group", "topics": [{"name": "t", "partition_indexes": (0,)}]}],
            "group_id": "group",
            "topics": [{"name": "t", "partition_indexes": (0,)}],
        },
    ),
    (
        SENT[CREATE_TOPICS],
        {
            "topics": [
                {
                    "name": "t",
                    "num_partitions": 1,
                    "replication_factor": 99,
                    "assignments": (),
                    "configs": [{"name": "cleanup.policy", "value": "compact"}],
                }
            ],
            "timeout": 1000,
            "validate_only": False,
        },
    ),
    (SENT[DESCRIBE_CONFIGS], {"resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}]}),
    (
        DescribeConfigsRequest(BROKER_RESOURCE, "1", ("a.b",)),
        {"resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": ("a.b",)}]},
    ),
]
"""Requests, and fields of them as a broker reads them, as far as its version has them."""


def assert_has(read: Any, expected: Any, seen: set[str]) -> None:
    if isinstance(expected, dict):
        known = {name: value for name, value in expected.items() if hasattr(read, name)}
        seen.update(known)
        for name, value in known.items():
            assert_has(getattr(read, name), value, seen)
    elif isinstance(expected, list):
        assert len(read) == len(expected)
        for entry, value in zip(read, expected, strict=True):
            assert_has(entry, value, seen)
    else:
        assert (round(read.total_seconds() * 1000) if hasattr(read, "total_seconds") else read) == expected


def names(expected: Any) -> set[str]:
    if isinstance(expected, dict):
        return {*expected, *(name for value in expected.values() for name in names(value))}
    return {name for value in expected for name in names(value)} if isinstance(expected, list) else set()


@pytest.mark.parametrize(
    ("request_", "expected"),
    REQUESTS,
    ids=[f"{request.api.title}-{index}" for index, (request, _) in enumerate(REQUESTS)],
)
def test_brokers_read_what_was_requested(request_: ApiRequest[Any], expected: dict[str, Any]) -> None:
    seen: set[str] = set()
    for version in versions(request_.spoken()):
        assert_has(as_broker_reads(request_, version), expected, seen)

    either = {"name", "topic", "topic_id", "timestamp", "leader_epoch"}  # by API and version
    assert names(expected) - either <= seen


def test_request_for_features_names_a_software_that_brokers_accept() -> None:
    read = as_broker_reads(SENT[FEATURES], 4)

    # Kafka's ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN
    assert all(text.replace("-", "").isalnum() for text in (read.client_software_name, read.client_software_version))


@pytest.mark.parametrize(
    ("sent", "oldest", "newest"),
    [
        (SENT[FETCH], 12, 16),
        (nameless(SENT[FETCH]), 12, 12),
        (produce_by(None), 8, 13),
        (produce_by(None, by_id=False), 8, 12),
        (produce_by(V1), 8, 11),
        (produce_by(V1, by_id=False), 8, 11),
        (produce_by(V2), 12, 13),
        (produce_by(V2, by_id=False), 12, 12),
        (EndTransactionRequest(ID, PRODUCER, True, V1), 1, 4),
        (EndTransactionRequest(ID, PRODUCER, True, V2), 5, 5),
    ],
)
def test_request_keeps_to_versions_of_topics_transactions(sent: ApiRequest[Any], oldest: int, newest: int) -> None:
    assert (sent.spoken().min_version, sent.spoken().max_version) == (oldest, newest)


# --- responses --------------------------------------------------------------------------------------------------------

KAFKA_4 = Broker(4, Address("kafka-4", 9092), "r")
FOUND = Coordinator(0, replace(KAFKA_4, rack=None))
DESCRIBED = DescribedTransaction(ID, "Ongoing", PRODUCER, 60_000, 1_700_000_000_123, (T1, T0))


def metadata(version: int) -> MetadataResponse:
    return MetadataResponse(
        cluster_id="c",
        controller_id=4,
        brokers=(KAFKA_4,),
        topics=(
            TopicMetadata("t", T_ID if version >= 10 else None, (PartitionMetadata(1, 4, 9, (4, 5), (4,), (5,), 5),)),
        ),
        api_version=version,
        correlation_id=CORRELATION_ID,
        request_bytes=30,
        response_bytes=60,
        throttle_ms=1003,
    )


def fetch_response(version: int) -> FetchResponse:
    leader = LeaderHint(4, 6, KAFKA_4 if version >= 16 else None)
    entry = FetchedPartition(T1, 6, b"batches", 50, 40, ((9, 11),), leader, DivergingEpoch(2, 8))
    return FetchResponse(3, 0, (entry,), 1003, 60, 1.5, by_id=version >= 13)


def produce_response(version: int) -> ProduceResponse:
    hint = LeaderHint(4, 6, KAFKA_4) if version >= 10 else None
    refused = ProducedPartition(T1, 87, 50, "one record failed", ((2, "no key"),), hint)
    return ProduceResponse(3, (refused,), throttle_ms=1003, request_bytes=30, latency_ms=1.5)


OFFSETS = ApiResponse(3, 0, {T0: PartitionOffset(T0, 0, 42, 3)}, throttle_ms=1003)  # partitions may be missing
RESPONSES: dict[Api, Any] = {
    METADATA: metadata,
    LIST_OFFSETS: OFFSETS,
    OFFSET_FOR_LEADER_EPOCH: OFFSETS,
    FETCH: fetch_response,
    PRODUCE: produce_response,
    INIT_PRODUCER_ID: ApiResponse(3, 0, PRODUCER, 1003),
    FIND_COORDINATOR: lambda version: ApiResponse(3, 0, dict.fromkeys((ID, SECOND_ID)[: version - 2], FOUND), 1003),
    ADD_PARTITIONS_TO_TXN: ApiResponse(3, 0, {}, 1003),
    END_TXN: lambda version: ApiResponse(3, 0, ProducerIdAndEpoch(2**40, 4) if version >= 5 else NO_PRODUCER, 1003),
    LIST_TRANSACTIONS: ApiResponse(3, 0, (ID, SECOND_ID), 1003),
    DESCRIBE_TRANSACTIONS: ApiResponse(3, 0, DESCRIBED, 1003),
    FEATURES: ApiResponse(3, 0, V2, 1003),
    OFFSET_COMMIT: ApiResponse(3, 0, frozenset(), 1003),
    OFFSET_FETCH: ApiResponse(3, 0, {T0: 7}, 1003),
    CREATE_TOPICS: ApiResponse(3, 0, "", 1003),
    DESCRIBE_CONFIGS: ApiResponse(3, 0, {"cleanup.policy": "compact"}, 1003),
}
"""To `SENT`, or a function of the version."""


@pytest.mark.parametrize(("api", "version"), [(api, version) for api in RESPONSES for version in versions(api)])
def test_response_is_read(api: Api, version: int) -> None:
    expected = RESPONSES[api]

    assert response_to(api, version) == (expected(version) if callable(expected) else expected)


NO_BROKER = {"node_id": -1, "host": "", "port": -1}
ERRORS: list[tuple[Api, dict[str, Any], tuple[int, Any]]] = [
    *(
        (INIT_PRODUCER_ID, {"version": version, "error_code": LOADING, **NO_ID}, (LOADING, NO_PRODUCER))
        for version in versions(INIT_PRODUCER_ID)
    ),
    (FIND_COORDINATOR, {"version": 3, "error_code": LOADING, **NO_BROKER}, (0, {ID: Coordinator(14, None)})),
    (
        FIND_COORDINATOR,
        {"coordinators": [{"key": SECOND_ID, "error_code": LOADING, **NO_BROKER}]},
        (0, {SECOND_ID: Coordinator(14, None)}),
    ),
    (ADD_PARTITIONS_TO_TXN, {"partition_error_code": FENCED}, (FENCED, dict.fromkeys((T0, T1, U0), FENCED))),
    (END_TXN, {"version": 4, "error_code": ErrorCode.invalid_txn_state}, (48, NO_PRODUCER)),
    (END_TXN, {"error_code": FENCED, **NO_ID}, (FENCED, NO_PRODUCER)),
    (LIST_TRANSACTIONS, {"error_code": LOADING, "transaction_states": ()}, (LOADING, ())),
    (DESCRIBE_TRANSACTIONS, {"error_code": LOADING, **NO_ID}, (LOADING, None)),
    (
        DESCRIBE_TRANSACTIONS,
        {"transaction_state": "Empty", "transaction_start_time": -1, "transaction_states__topics": ()},
        (0, DescribedTransaction(ID, "Empty", PRODUCER, 60_000, None, ())),
    ),
    (FEATURES, {"finalized_features__max_version_level": 1}, (0, V1)),
    (FEATURES, {"finalized_features": ()}, (0, V1)),
    (OFFSET_COMMIT, {"error_code": DENIED}, (DENIED, frozenset())),
    (OFFSET_COMMIT, {"error_code": ErrorCode.unknown_topic_or_partition}, (0, frozenset({"t"}))),
    (OFFSET_FETCH, {"committed_offset": -1}, (0, {})),
    *(
        (OFFSET_FETCH, {"version": version, "topics": (), "error_code": DENIED}, (DENIED, {}))
        for version in (6, 7, 8, 9)
    ),
    (OFFSET_FETCH, {"partitions__error_code": DENIED, "committed_offset": -1}, (DENIED, {})),
    (CREATE_TOPICS, {"error_code": DENIED, "error_message": "not\x1b[31m yours"}, (DENIED, r"not\x1b[31m yours")),
    (DESCRIBE_CONFIGS, {"error_code": DENIED, "configs": ()}, (DENIED, {})),
]


@pytest.mark.parametrize(("api", "changed", "expected"), ERRORS)
def test_errors_and_missing_values_are_read(api: Api, changed: dict[str, Any], expected: tuple[int, Any]) -> None:
    response = response_to(api, **changed)

    assert (response.error_code, response.result) == expected


def test_reason_why_no_partition_was_added_is_that_of_the_refused_partition() -> None:
    topics = added(("t", 0), ("t", 1), ("u", 0))["results_by_topic_v3_and_below"]
    for topic, code in zip(topics, (ErrorCode.operation_not_attempted, DENIED, 0), strict=True):
        topic["results_by_partition"][0]["partition_error_code"] = code

    assert response_to(ADD_PARTITIONS_TO_TXN, results_by_topic_v3_and_below=topics).error_code == DENIED


@pytest.mark.parametrize("version", versions(METADATA))
def test_name_that_kafka_does_not_allow_has_the_error_of_a_broker(version: int) -> None:
    response = MetadataRequest(["t", "a b"]).decode(exchange(METADATA, message(METADATA, version)), 3)

    assert [(topic.name, topic.error_code) for topic in response.topics] == [("t", 0), ("a b", INVALID_TOPIC_EXCEPTION)]


def test_error_of_a_whole_response_is_read() -> None:
    refused = response_to(METADATA, 13, error_code=ErrorCode.rebootstrap_required, brokers=(), topics=())
    failed = response_to(FETCH, error_code=ErrorCode.unknown_server_error)

    assert refused.error_code == 129
    assert (failed.error_code, failed.partitions) == (-1, ())


NO_HINT = {"leader_id": -1, "leader_epoch": -1}


def test_what_a_response_does_not_tell_is_none() -> None:
    nothing: dict[str, Any] = {
        "diverging_epoch": {"epoch": -1, "end_offset": -1},
        "aborted_transactions": None,
        "records": None,
    }
    (of_fetch,) = response_to(FETCH, current_leader=NO_HINT, **nothing).partitions
    (of_produce,) = response_to(
        PRODUCE, error_code=ErrorCode.none, current_leader=NO_HINT, record_errors=(), error_message=None
    ).partitions

    assert of_fetch == FetchedPartition(T1, 6, b"", 50, 40)
    assert of_produce == ProducedPartition(T1, 0, 50)
    assert response_to(PRODUCE, responses=()).partitions == ()


@pytest.mark.parametrize(
    ("partition", "changed"), [(U0, {}), (T0, {"error_code": ErrorCode.not_leader_or_follower})], ids=["time", "error"]
)
def test_response_without_an_offset_is_read_where_there_may_be_none(partition: Any, changed: dict[str, Any]) -> None:
    response = response_to(LIST_OFFSETS, **listed(tuple(partition)), offset=-1, **changed)

    assert response.result[partition].offset == -1


@pytest.mark.parametrize("end_offset", [42, -1])
def test_epoch_that_the_log_does_not_have_is_read(end_offset: int) -> None:
    assert response_to(OFFSET_FOR_LEADER_EPOCH, end_offset=end_offset).result[T0].offset == end_offset


def record_errors(count: int, text: str | None = None) -> list[dict[str, Any]]:
    return [{"batch_index": index, "batch_index_error_message": text} for index in range(count)]


def test_texts_of_a_broker_are_shortened_and_cannot_forge_a_line() -> None:
    text = "\r\nFATAL \x1b[31m\u202e" + "x" * 1_000
    (refused,) = response_to(PRODUCE, error_message=text, record_errors=record_errors(1, text)).partitions

    assert refused.error_message.startswith(r"\r\nFATAL \x1b[31m\u202exxx")
    assert len(refused.error_message) < 600
    assert refused.record_errors == ((0, refused.error_message),)


def test_only_the_first_records_of_a_refused_batch_are_reported() -> None:
    (refused,) = response_to(PRODUCE, record_errors=record_errors(MAX_RECORD_ERRORS + 1)).partitions

    assert refused.record_errors == tuple((index, None) for index in range(MAX_RECORD_ERRORS))


# --- responses that break the rules -----------------------------------------------------------------------------------


def brokers(*changed: dict[str, Any]) -> dict[str, Any]:
    return {"brokers": [BROKER | each for each in changed]}


def topic(*partitions: dict[str, Any], name: str | None = "t") -> dict[str, Any]:
    return {"name": name, "partitions": partitions}


def groups(*names: str) -> dict[str, Any]:
    return {"groups": [{"group_id": name, "topics": committed(("t", 0))} for name in names]}


def ids(*transactional_ids: str) -> dict[str, Any]:
    return {"transaction_states": [{"transactional_id": each} for each in transactional_ids]}


TWICE, OTHERS = "the same partition twice", "other partitions than requested"
NO_OFFSET = "a negative offset or epoch for "
REFUSED: dict[Api, list[tuple[dict[str, Any], str]]] = {
    METADATA: [
        (brokers({}, {"port": 1}), "the same broker twice"),
        (brokers({"node_id": -1}), "a broker id of -1"),
        (brokers({"port": 65536}), "port 65536 for broker 4"),
        *((brokers({"host": host}), "an impossible host name") for host in ("", "a\r\nb", "h" * 256)),
        (brokers(*({"node_id": number} for number in range(10_001))), "more than 10000 brokers"),
        *((brokers({"rack": rack}), "an impossible rack") for rack in ("r\x1b[31m", "r" * 256)),
        ({"topics": [topic(name="u")]}, "unrequested topic 'u'"),
        ({"version": 12, "topics": [topic(name=None)]}, "unrequested topic ''"),
        ({"topics": [topic(), topic()]}, "the same topic twice"),
        ({"topics": [topic({"partition_index": 0}, {"partition_index": 0})]}, "the same partition of t twice"),
        *(({"cluster_id": cluster_id}, "an impossible cluster id") for cluster_id in ("c\nc", "c\u202ec")),
        ({"leader_id": -2}, "a leader id of -2"),
        ({"partition_index": -1}, "a partition number of -1"),
        ({"leader_epoch": -2}, "a leader epoch of -2"),
    ],
    LIST_OFFSETS: [
        (listed(("t", 0), ("t", 5)), "unrequested t-5"),
        (listed(("v", 0)), "unrequested v-0"),
        (listed(("t", 0), ("t", 0)), TWICE),
        *((listed(("t", number)) | {"offset": -1}, f"{NO_OFFSET}t-{number}") for number in (0, 1)),
        (listed(("u", 0)) | {"offset": -2}, f"{NO_OFFSET}u-0"),
        ({"leader_epoch": -2}, f"{NO_OFFSET}t-0"),
    ],
    OFFSET_FOR_LEADER_EPOCH: [
        (listed(("t", 5)), "unrequested t-5"),
        (listed(("t", 0), ("t", 0)), TWICE),
        ({"end_offset": -2}, f"{NO_OFFSET}t-0"),
        ({"leader_epoch": -2}, f"{NO_OFFSET}t-0"),
    ],
    FETCH: [
        (fetched((T_ID, 5)), "unrequested t-5"),
        (fetched((UUID(int=99), 0)), "unrequested .*-0"),
        ({"version": 12, **fetched(("v", 0))}, "unrequested v-0"),
        (fetched((T_ID, 0), (T_ID, 0)), TWICE),
        (fetched((T_ID, 0), (U_ID, 0), (T_ID, 0)), TWICE),
        ({"high_watermark": -2}, "a negative offset for t-1"),
        ({"last_stable_offset": -(2**63)}, "a negative offset for t-1"),
        ({"first_offset": -1}, "a transaction at a negative offset for t-1"),
        ({"current_leader": {"leader_id": 1, "leader_epoch": -2}}, "a leader epoch of -2"),
        ({"diverging_epoch": {"epoch": -2, "end_offset": 1}}, "a diverging epoch of -2"),
    ],
    PRODUCE: [
        (produced((T_ID, 5)), "unrequested t-5"),
        (produced((UUID(int=99), 0)), "unrequested .*-0"),
        ({"version": 12, **produced(("v", 0))}, "unrequested v-0"),
        (produced((T_ID, 0), (T_ID, 0)), TWICE),
        (produced((T_ID, 0), (U_ID, 0), (T_ID, 0)), TWICE),
        ({"base_offset": -2}, "a negative offset for t-1"),
        ({"batch_index": -1}, "a negative record index for t-1"),
        ({"current_leader": {"leader_id": 1, "leader_epoch": -2}}, "a leader epoch of -2"),
    ],
    INIT_PRODUCER_ID: [({name: -1}, "a negative producer id or epoch") for name in NO_ID],
    FIND_COORDINATOR: [
        ({"coordinators": ()}, "no or unrequested coordinators"),
        ({"key": "payments/1/0", "coordinators": [{}]}, "no or unrequested coordinators"),
        ({"key": ID}, "the same key twice"),
        ({"node_id": -1}, "a broker id of -1"),
        ({"version": 3, "host": "evil\nhost"}, "an impossible host name"),
    ],
    ADD_PARTITIONS_TO_TXN: [
        (added(("t", 0)), OTHERS),
        (added(("t", 0), ("t", 1), ("u", 0), ("v", 0)), OTHERS),
        (added(("t", 0), ("t", 1), ("u", 0), ("t", 0)), TWICE),
    ],
    END_TXN: [({name: -2}, "a negative producer id or epoch") for name in NO_ID],
    LIST_TRANSACTIONS: [(ids("i", "i"), "the same transactional id twice")],
    DESCRIBE_TRANSACTIONS: [
        ({"transaction_states": ()}, "no or unrequested transactions"),
        (ids(ID, "payments/1/0"), "no or unrequested transactions"),
        ({"producer_id": -1}, "a negative producer id or epoch"),
        ({"partitions": [-1]}, "a negative partition number"),
    ],
    OFFSET_COMMIT: [
        ({"topics": ()}, OTHERS),
        ({"topics": committed(("u", 0))}, OTHERS),
        ({"topics": committed(("t", 0), ("t", 0))}, TWICE),
    ],
    OFFSET_FETCH: [
        ({"topics": ()}, OTHERS),
        ({"topics": committed(("t", 0), ("t", 1))}, OTHERS),
        (groups(), "no or unrequested groups"),
        (groups("group", "other"), "no or unrequested groups"),
    ],
    CREATE_TOPICS: [
        ({"topics": ()}, "no or unrequested topics"),
        ({"topics": [{"name": "t"}, {"name": "t"}]}, "no or unrequested topics"),
    ],
    DESCRIBE_CONFIGS: [
        ({"resource_name": "u"}, "no or unrequested configurations"),
        ({"resource_type": 4}, "no or unrequested configurations"),
    ],
}


@pytest.mark.parametrize(("api", "changed", "said"), [(api, *case) for api, cases in REFUSED.items() for case in cases])
def test_response_that_breaks_the_rules_is_not_read(api: Api, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        response_to(api, **changed)


@pytest.mark.parametrize("name", ["", ".", "..\x2f..\x2fx", "a b", "line\nbreak", "x" * 250])
def test_impossible_topic_name_is_not_read_when_all_topics_are_asked_for(name: str) -> None:
    response = exchange(METADATA, message(METADATA, 12, topics=[topic(name=name)]))

    with pytest.raises(ProtocolError, match="unrequested") as raised:
        MetadataRequest(None).decode(response, 3)
    assert "\n" not in str(raised.value)


def test_unrequested_name_is_one_short_line_in_the_error() -> None:
    with pytest.raises(ProtocolError, match=r"unrequested x\\nx\\nx") as raised:
        response_to(LIST_OFFSETS, **listed(("x\n" * 15_000, 0)))

    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1_500
