"""Our types to frames and back, at every version that is spoken; responses that break the rules are not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.kafka.protocol import fetch, frame_codec, list_offsets, metadata, produce
from pyspark_kafka_meta.kafka.protocol.error_codes import INVALID_TOPIC_EXCEPTION
from pyspark_kafka_meta.kafka.protocol.fetch import DivergingEpoch, FetchPartition, FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.frame_codec import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    Api,
    Exchange,
    decode,
)
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    LATEST_TIMESTAMP,
    OffsetQuery,
    OffsetsRequest,
    OffsetsResponse,
    PartitionOffset,
)
from pyspark_kafka_meta.kafka.protocol.produce import ProducePartition, ProduceRequest
from pyspark_kafka_meta.kafka.protocol.transactions import transaction_response
from pyspark_kafka_meta.model import Address, Broker, LeaderHint, PartitionMetadata, TopicMetadata, TopicPartition
from tests.partitions import T0, T1, U0
from tests.unit.kafka.protocol.responses import (
    CORRELATION_ID,
    T_ID,
    TRANSACTION_REQUESTS,
    U_ID,
    as_broker_reads,
    epochs_message,
    exchange,
    fetch_message,
    metadata_message,
    offsets_message,
    payload,
    produce_message,
    schema,
    transaction_message,
    versions,
)

# --- metadata ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(METADATA))
@pytest.mark.parametrize(("topics", "names"), [(None, None), ([], []), (["u", "t"], ["t", "u"])])
def test_metadata_request_asks_for_these_topics_and_never_creates_one(
    version: int, topics: list[str] | None, names: list[str] | None
) -> None:
    kind = schema(METADATA, version, "request").MetadataRequest
    read = as_broker_reads(metadata.metadata_request(version, topics), kind)

    assert (None if read.topics is None else [one.name for one in read.topics]) == names
    assert read.allow_auto_topic_creation is False


ILLEGAL_NAMES = ("", ".", "a b", "x" * 250, "x" * 40_000)


@pytest.mark.parametrize("name", ILLEGAL_NAMES)
@pytest.mark.parametrize("version", versions(METADATA))
def test_name_that_kafka_does_not_allow_is_not_requested_and_has_the_error_of_a_broker(version: int, name: str) -> None:
    kind = schema(METADATA, version, "request").MetadataRequest
    read = as_broker_reads(metadata.metadata_request(version, ["t", name]), kind)
    response = metadata.metadata_response(exchange(METADATA, metadata_message(version)), ["t", name])

    assert [topic.name for topic in read.topics] == ["t"]
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("t", 0), (name, INVALID_TOPIC_EXCEPTION)]


@pytest.mark.parametrize("version", versions(METADATA))
def test_metadata_response_is_read(version: int) -> None:
    response = metadata.metadata_response(exchange(METADATA, metadata_message(version)), ["t"])

    assert response.brokers == (Broker(4, Address("kafka-4", 9092), "r"),)
    assert response.topics == (
        TopicMetadata("t", T_ID if version >= 10 else None, (PartitionMetadata(1, 4, 9, (4, 5), (4,), (5,), 5),)),
    )
    assert (response.cluster_id, response.controller_id, response.throttle_ms) == ("c", 4, 1001)
    assert (response.api_version, response.correlation_id) == (version, CORRELATION_ID)
    assert (response.request_bytes, response.response_bytes) == (30, 60)


def test_error_of_a_whole_metadata_response_is_read() -> None:
    refused = {"error_code": ErrorCode.rebootstrap_required, "brokers": (), "topics": ()}

    assert metadata.metadata_response(exchange(METADATA, metadata_message(13, **refused)), ["t"]).error_code == 129
    assert metadata.metadata_response(exchange(METADATA, metadata_message(13)), ["t"]).error_code == 0


def a_broker(**changed: Any) -> Any:
    fields = {"node_id": 1, "host": "h", "port": 9092}
    return schema(METADATA, 12, "response").MetadataResponseBroker(**(fields | changed))


def a_topic(*partitions: Any, name: str | None = "t") -> Any:
    return schema(METADATA, 12, "response").MetadataResponseTopic(
        error_code=ErrorCode.none, name=name, topic_id=T_ID, partitions=partitions
    )


def a_partition(**changed: Any) -> Any:
    fields = {"error_code": ErrorCode.none, "partition_index": 0, "leader_id": 1}
    return schema(METADATA, 12, "response").MetadataResponsePartition(**(fields | changed))


BAD_METADATA: dict[str, tuple[dict[str, Any], str]] = {
    "broker twice": ({"brokers": (a_broker(), a_broker(port=1))}, "the same broker twice"),
    "negative broker": ({"brokers": (a_broker(node_id=-1),)}, "a broker id of -1"),
    "port": ({"brokers": (a_broker(port=65536),)}, "port 65536 for broker 1"),
    "no host": ({"brokers": (a_broker(host=""),)}, "an impossible host name for broker 1"),
    "control character": ({"brokers": (a_broker(host="a\r\nb"),)}, "an impossible host name"),
    "long host": ({"brokers": (a_broker(host="h" * 256),)}, "an impossible host name"),
    "too many brokers": (
        {"brokers": tuple(a_broker(node_id=number) for number in range(10_001))},
        "more than 10000 brokers",
    ),
    "foreign topic": ({"topics": (a_topic(name="u"),)}, "unrequested topic 'u'"),
    "nameless topic": ({"topics": (a_topic(name=None),)}, "unrequested topic ''"),
    "topic twice": ({"topics": (a_topic(), a_topic())}, "the same topic twice"),
    "partition twice": ({"topics": (a_topic(a_partition(), a_partition()),)}, "the same partition of t twice"),
    "rack with an escape": ({"brokers": (a_broker(rack="r\x1b[31m"),)}, "an impossible rack"),
    "endless rack": ({"brokers": (a_broker(rack="r" * 256),)}, "an impossible rack"),
    "cluster id of two lines": ({"cluster_id": "c\nc"}, "an impossible cluster id"),
    "cluster id that writes backwards": ({"cluster_id": "c\u202ec"}, "an impossible cluster id"),
    "impossible leader": ({"topics": (a_topic(a_partition(leader_id=-2)),)}, "a leader id of -2"),
    "negative partition": ({"topics": (a_topic(a_partition(partition_index=-1)),)}, "a partition number of -1"),
    "negative epoch": ({"topics": (a_topic(a_partition(leader_epoch=-2)),)}, "a leader epoch of -2"),
}


@pytest.mark.parametrize(("changed", "said"), BAD_METADATA.values(), ids=BAD_METADATA.keys())
def test_metadata_response_that_breaks_the_rules_is_not_read(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        metadata.metadata_response(exchange(METADATA, metadata_message(**changed)), ["t"])


@pytest.mark.parametrize("name", ["", ".", "..\x2f..\x2fx", "a b", "line\nbreak", "x" * 250])
def test_impossible_topic_name_is_not_read_when_all_topics_are_asked_for(name: str) -> None:
    with pytest.raises(ProtocolError, match="unrequested") as raised:
        metadata.metadata_response(exchange(METADATA, metadata_message(topics=(a_topic(name=name),))), None)

    assert "\n" not in str(raised.value)


# --- offsets ----------------------------------------------------------------------------------------------------------

QUERIES = (OffsetQuery(T0, LATEST_TIMESTAMP, 3), OffsetQuery(U0, 1_700_000_000_000), OffsetQuery(T1, -2, 4))
ASKED = OffsetsRequest(QUERIES, False)


@pytest.mark.parametrize("version", versions(LIST_OFFSETS))
@pytest.mark.parametrize("read_committed", [False, True])
def test_list_offsets_request_names_timestamps_and_epochs(version: int, read_committed: bool) -> None:
    kind = schema(LIST_OFFSETS, version, "request").ListOffsetsRequest
    read = as_broker_reads(list_offsets.offsets_request(version, OffsetsRequest(QUERIES, read_committed)), kind)

    assert (read.replica_id, read.isolation_level) == (-1, int(read_committed))
    assert {
        (topic.name, one.partition_index, one.timestamp, one.current_leader_epoch)
        for topic in read.topics
        for one in topic.partitions
    } == {("t", 0, -1, 3), ("t", 1, -2, 4), ("u", 0, 1_700_000_000_000, -1)}


@pytest.mark.parametrize("version", versions(LIST_OFFSETS))
def test_list_offsets_response_is_read_and_may_leave_partitions_out(version: int) -> None:
    message = offsets_message(("t", 0), version=version)

    response = list_offsets.offsets_response(exchange(LIST_OFFSETS, message), ASKED, 3)
    assert response == OffsetsResponse(3, {T0: PartitionOffset(T0, 0, 42, 3)}, throttle_ms=1003)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (offsets_message(("t", 0), ("t", 5)), "unrequested .*t-5"),
        (offsets_message(("v", 0)), "unrequested .*v-0"),
        (offsets_message(("t", 0), ("t", 0)), "the same partition twice"),
        (offsets_message(("t", 0), offset=-1), "a negative offset or epoch for t-0"),
        (offsets_message(("t", 1), offset=-1), "a negative offset or epoch for t-1"),
        (offsets_message(("u", 0), offset=-2), "a negative offset or epoch for u-0"),
        (offsets_message(("t", 0), leader_epoch=-2), "a negative offset or epoch for t-0"),
    ],
)
def test_list_offsets_response_that_breaks_the_rules_is_not_read(message: Any, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        list_offsets.offsets_response(exchange(LIST_OFFSETS, message), ASKED, 3)


def test_unrequested_name_is_one_short_line_in_the_error() -> None:
    with pytest.raises(ProtocolError, match=r"unrequested x\\nx\\nx") as raised:
        list_offsets.offsets_response(exchange(LIST_OFFSETS, offsets_message(("x\n" * 15_000, 0))), ASKED, 3)

    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1_500


@pytest.mark.parametrize(
    ("partition", "code"), [(U0, ErrorCode.none), (T0, ErrorCode.not_leader_or_follower)], ids=["no such time", "error"]
)
def test_response_without_an_offset_is_read_where_there_may_be_none(partition: TopicPartition, code: ErrorCode) -> None:
    message = offsets_message((partition.topic, partition.partition), offset=-1, error_code=code)
    [response] = list_offsets.offsets_response(exchange(LIST_OFFSETS, message), ASKED, 3).offsets.values()

    assert (response.partition, response.offset, response.error_code) == (partition, -1, int(code))


EPOCHS = OffsetsRequest((OffsetQuery(T0, 2, 3), OffsetQuery(U0, 0), OffsetQuery(T1, 4, 4)), by_epoch=True)


@pytest.mark.parametrize("version", versions(OFFSET_FOR_LEADER_EPOCH))
def test_request_by_epoch_names_both_epochs(version: int) -> None:
    kind = schema(OFFSET_FOR_LEADER_EPOCH, version, "request").OffsetForLeaderEpochRequest
    read = as_broker_reads(list_offsets.offsets_request(version, EPOCHS), kind)

    assert version < 3 or read.replica_id == -1
    assert {
        (topic.topic, one.partition, one.leader_epoch, one.current_leader_epoch)
        for topic in read.topics
        for one in topic.partitions
    } == {("t", 0, 2, 3), ("t", 1, 4, 4), ("u", 0, 0, -1)}


@pytest.mark.parametrize("version", versions(OFFSET_FOR_LEADER_EPOCH))
@pytest.mark.parametrize("end_offset", [42, -1])
def test_response_by_epoch_is_read(version: int, end_offset: int) -> None:
    message = epochs_message(("t", 0), version=version, end_offset=end_offset)

    response = list_offsets.offsets_response(exchange(OFFSET_FOR_LEADER_EPOCH, message), EPOCHS, 3)
    assert response == OffsetsResponse(3, {T0: PartitionOffset(T0, 0, end_offset, 3)}, throttle_ms=1003)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (epochs_message(("t", 5)), "unrequested .*t-5"),
        (epochs_message(("t", 0), ("t", 0)), "the same partition twice"),
        (epochs_message(("t", 0), end_offset=-2), "a negative offset or epoch for t-0"),
        (epochs_message(("t", 0), leader_epoch=-2), "a negative offset or epoch for t-0"),
    ],
)
def test_response_by_epoch_that_breaks_the_rules_is_not_read(message: Any, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        list_offsets.offsets_response(exchange(OFFSET_FOR_LEADER_EPOCH, message), EPOCHS, 3)


# --- fetch ------------------------------------------------------------------------------------------------------------


def fetch_request(by_id: bool = True) -> FetchRequest:
    ids = (T_ID, T_ID, U_ID) if by_id else (None, None, None)
    entries = tuple(
        FetchPartition(one, topic_id, 10 + index, 3, 2, 1000)
        for index, (one, topic_id) in enumerate(zip((T0, T1, U0), ids, strict=True))
    )
    return FetchRequest(entries, max_wait_ms=500, min_bytes=1, max_bytes=5000, read_committed=True, rack="r")


@pytest.mark.parametrize("version", versions(FETCH))
def test_fetch_request_names_positions_epochs_and_limits(version: int) -> None:
    kind = schema(FETCH, version, "request").FetchRequest
    read = as_broker_reads(fetch.fetch_request(version, fetch_request(version >= 13)), kind)

    assert (read.max_wait.total_seconds(), read.min_bytes, read.max_bytes) == (0.5, 1, 5000)
    assert (read.isolation_level, read.session_epoch, read.rack_id) == (1, -1, "r")
    assert getattr(read, "replica_id", -1) == -1
    names = [one.topic_id if version >= 13 else one.topic for one in read.topics]
    assert names == ([T_ID, U_ID] if version >= 13 else ["t", "u"])
    assert [
        (one.partition, one.fetch_offset, one.current_leader_epoch, one.last_fetched_epoch, one.partition_max_bytes)
        for topic in read.topics
        for one in topic.partitions
    ] == [(0, 10, 3, 2, 1000), (1, 11, 3, 2, 1000), (0, 12, 3, 2, 1000)]


def response_to(message: Any) -> FetchResponse:
    request = fetch_request(by_id=message.__version__ >= 13)
    return fetch.fetch_response(exchange(FETCH, message), request, node_id=3)


@pytest.mark.parametrize("version", versions(FETCH))
def test_fetch_response_is_read(version: int) -> None:
    response = response_to(fetch_message((T_ID if version >= 13 else "t", 1), version=version))
    [partition] = response.partitions

    assert (response.node_id, response.error_code, response.throttle_ms) == (3, 0, 1003)
    assert (response.response_bytes, response.latency_ms) == (60, 1.5)
    assert (partition.partition, partition.error_code, partition.records) == (T1, 6, b"batches")
    assert (partition.high_watermark, partition.last_stable_offset) == (50, 40)
    assert partition.aborted_transactions == ((9, 11),)
    assert partition.diverging_epoch == DivergingEpoch(2, 8)
    leader = Broker(4, Address("kafka-4", 9092)) if version >= 16 else None
    assert partition.leader_hint == LeaderHint(4, 6, leader)


def test_what_a_response_does_not_tell_is_none() -> None:
    kinds = schema(FETCH, 16, "response")
    nothing = {
        "diverging_epoch": kinds.EpochEndOffset(),
        "current_leader": kinds.LeaderIdAndEpoch(),
        "aborted_transactions": None,
        "records": None,
    }
    [partition] = response_to(fetch_message((T_ID, 0), **nothing)).partitions

    assert (partition.diverging_epoch, partition.leader_hint) == (None, None)
    assert (partition.aborted_transactions, partition.records) == ((), b"")


FETCH_16 = schema(FETCH, 16, "response")


def test_response_that_failed_as_a_whole_has_no_partitions() -> None:
    response = response_to(fetch_message((T_ID, 0), code=ErrorCode.unknown_server_error))

    assert (response.error_code, response.partitions) == (-1, ())


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (fetch_message((T_ID, 5)), "unrequested .*t-5"),
        (fetch_message((UUID(int=99), 0)), "unrequested .*-0"),
        (fetch_message(("v", 0), version=12), "unrequested .*v-0"),
        (fetch_message((T_ID, 0), high_watermark=-2), "a negative offset for t-0"),
        (fetch_message((T_ID, 0), last_stable_offset=-(2**63)), "a negative offset for t-0"),
        (
            fetch_message(
                (T_ID, 0), aborted_transactions=(FETCH_16.AbortedTransaction(producer_id=1, first_offset=-1),)
            ),
            "a transaction at a negative offset for t-0",
        ),
        (
            fetch_message((T_ID, 0), current_leader=FETCH_16.LeaderIdAndEpoch(leader_id=1, leader_epoch=-2)),
            "a leader epoch of -2",
        ),
        (
            fetch_message((T_ID, 0), diverging_epoch=FETCH_16.EpochEndOffset(epoch=-2, end_offset=1)),
            "a diverging epoch of -2",
        ),
        (fetch_message((T_ID, 0), (T_ID, 0)), "the same partition twice"),
        (fetch_message((T_ID, 0), (U_ID, 0), (T_ID, 0)), "the same partition twice"),
    ],
)
def test_fetch_response_that_breaks_the_rules_is_not_read(message: Any, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        response_to(message)


# --- frames -----------------------------------------------------------------------------------------------------------

RESPONSES = {
    METADATA: payload(metadata_message()),
    LIST_OFFSETS: payload(offsets_message(("t", 0), ("u", 0))),
    OFFSET_FOR_LEADER_EPOCH: payload(epochs_message(("t", 0), ("u", 0))),
    FETCH: payload(fetch_message((T_ID, 0), (U_ID, 0))),
    PRODUCE: payload(produce_message((T_ID, 0), (U_ID, 0))),
    **{api: payload(transaction_message(api, api.max_version)) for api in TRANSACTION_REQUESTS},
}
PRODUCED = ProduceRequest((ProducePartition(T0, T_ID, b""), ProducePartition(U0, U_ID, b"")), -1, 1000)
SPOKEN = {api: api.max_version for api in RESPONSES} | {METADATA: 12, LIST_OFFSETS: 7}


@pytest.mark.parametrize("api", RESPONSES)
def test_response_to_another_request_is_not_read(api: Api) -> None:
    with pytest.raises(ProtocolError, match=rf"answered request 77 instead of 78 \({api.title}\)"):
        decode(api, SPOKEN[api], CORRELATION_ID + 1, memoryview(RESPONSES[api]))


def test_missing_memory_is_no_fault_of_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(frame_codec, "check_lengths", no_memory)
    with pytest.raises(MemoryError):
        decode(FETCH, SPOKEN[FETCH], CORRELATION_ID, memoryview(RESPONSES[FETCH]))


@pytest.mark.parametrize("api", RESPONSES)
def test_response_that_ends_too_early_or_too_late_is_not_read(api: Api) -> None:
    whole = RESPONSES[api]
    for frame in (*(whole[:size] for size in range(len(whole))), whole + b"\1", whole * 2):
        with pytest.raises(ProtocolError):
            decode(api, SPOKEN[api], CORRELATION_ID, memoryview(frame))


@given(
    api=st.sampled_from(list(RESPONSES)),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6),
)
@example(LIST_OFFSETS, [(156, 29)])  # which makes an array null that may not be
@settings(max_examples=300, deadline=None)
def test_mutated_response_is_read_or_refused_and_nothing_else(api: Api, changes: list[tuple[int, int]]) -> None:
    frame = bytearray(RESPONSES[api])
    for position, value in changes:
        frame[position % len(frame)] = value
    read: dict[Api, Callable[[Exchange], object]] = {
        METADATA: lambda one: metadata.metadata_response(one, ["t"]),
        LIST_OFFSETS: lambda one: list_offsets.offsets_response(one, ASKED, 3),
        OFFSET_FOR_LEADER_EPOCH: lambda one: list_offsets.offsets_response(one, EPOCHS, 3),
        FETCH: lambda one: fetch.fetch_response(one, fetch_request(), 3),
        PRODUCE: lambda one: produce.produce_response(one, PRODUCED, 3),
    }
    try:
        response = decode(api, SPOKEN[api], CORRELATION_ID, memoryview(frame))
        received = Exchange(*response, SPOKEN[api], CORRELATION_ID, 30, 60, 1.5)
        if api in TRANSACTION_REQUESTS:
            transaction_response(received, TRANSACTION_REQUESTS[api], 3)
        else:
            read[api](received)
    except ProtocolError as error:
        assert str(error).startswith("a broker")
