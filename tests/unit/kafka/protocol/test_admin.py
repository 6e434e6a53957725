"""The requests for groups, topics and configuration at every version that is spoken; responses that break the rules are
not read."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.kafka.protocol.admin import (
    AdminResponse,
    CreateTopicResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    admin_request,
    admin_response,
)
from pyspark_kafka_meta.kafka.protocol.frame_codec import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    FIND_COORDINATOR,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    Api,
)
from pyspark_kafka_meta.kafka.protocol.transactions import GROUP_KEY, FindCoordinatorRequest
from tests.partitions import T0
from tests.unit.kafka.protocol.responses import (
    ADMIN_REQUESTS,
    admin_message,
    as_broker_reads,
    create_topics_message,
    describe_configs_message,
    exchange,
    offset_commit_message,
    offset_fetch_message,
    schema,
    versions,
)

REQUEST_NAMES = {
    FIND_COORDINATOR: "FindCoordinatorRequest",
    OFFSET_COMMIT: "OffsetCommitRequest",
    OFFSET_FETCH: "OffsetFetchRequest",
    CREATE_TOPICS: "CreateTopicsRequest",
    DESCRIBE_CONFIGS: "DescribeConfigsRequest",
}
DENIED, GROUP_DENIED = ErrorCode.topic_authorization_failed, ErrorCode.group_authorization_failed


def read_request(api: Api, version: int, request: Any = None) -> Any:
    """The request as brokers read it."""
    kind = getattr(schema(api, version, "request"), REQUEST_NAMES[api])
    return as_broker_reads(admin_request(version, request or ADMIN_REQUESTS[api]), kind)


def response_to(api: Api, message: Any) -> AdminResponse:
    return admin_response(exchange(api, message), ADMIN_REQUESTS[api], 3)


@pytest.mark.parametrize("version", versions(FIND_COORDINATOR))
def test_coordinator_of_a_group_is_asked_for_by_its_key_type(version: int) -> None:
    assert read_request(FIND_COORDINATOR, version, FindCoordinatorRequest(("group",), GROUP_KEY)).key_type == 0


@pytest.mark.parametrize("version", versions(OFFSET_COMMIT))
def test_offsets_are_committed_by_no_member(version: int) -> None:
    read = read_request(OFFSET_COMMIT, version)

    assert (read.group_id, read.member_id, read.generation_id_or_member_epoch) == ("group", "", -1)
    assert [(topic.name, topic.partitions[0].committed_offset) for topic in read.topics] == [("t", 7)]


@pytest.mark.parametrize("version", versions(OFFSET_FETCH))
def test_offsets_are_requested_of_the_group_and_not_of_a_member(version: int) -> None:
    read = read_request(OFFSET_FETCH, version)
    group = read.groups[0] if version >= 8 else read

    assert group.group_id == "group"
    assert [(topic.name, topic.partition_indexes) for topic in group.topics] == [("t", (0,))]


@pytest.mark.parametrize("version", versions(CREATE_TOPICS))
def test_topic_is_requested_with_its_configuration(version: int) -> None:
    read = read_request(CREATE_TOPICS, version)
    (topic,) = read.topics

    assert (topic.name, topic.num_partitions, topic.replication_factor, topic.assignments) == ("t", 1, 99, ())
    assert [(entry.name, entry.value) for entry in topic.configs] == [("cleanup.policy", "compact")]
    assert (read.timeout.total_seconds(), read.validate_only) == (1, False)


@pytest.mark.parametrize("version", versions(DESCRIBE_CONFIGS))
def test_configuration_is_requested_as_a_whole_or_by_names(version: int) -> None:
    (whole,) = read_request(DESCRIBE_CONFIGS, version).resources
    (one,) = read_request(DESCRIBE_CONFIGS, version, DescribeConfigsRequest(4, "1", ("a.b",))).resources

    assert (whole.resource_type, whole.resource_name, whole.configuration_keys) == (2, "t", None)
    assert (one.resource_type, one.resource_name, one.configuration_keys) == (4, "1", ("a.b",))


RESPONSES: dict[Api, AdminResponse] = {
    OFFSET_COMMIT: OffsetCommitResponse(3, 0, throttle_ms=1003),
    OFFSET_FETCH: OffsetFetchResponse(3, 0, {T0: 7}, 1003),
    CREATE_TOPICS: CreateTopicResponse(3, 0, "", 1003),
    DESCRIBE_CONFIGS: DescribeConfigsResponse(3, 0, {"cleanup.policy": "compact"}, 1003),
}


@pytest.mark.parametrize(("api", "version"), [(api, version) for api in RESPONSES for version in versions(api)])
def test_response_is_read(api: Api, version: int) -> None:
    assert response_to(api, admin_message(api, version)) == RESPONSES[api]


@pytest.mark.parametrize(
    ("api", "message", "response"),
    [
        (OFFSET_COMMIT, offset_commit_message(error_code=DENIED), OffsetCommitResponse(3, DENIED, throttle_ms=1003)),
        (
            OFFSET_COMMIT,
            offset_commit_message(error_code=ErrorCode.unknown_topic_or_partition),
            OffsetCommitResponse(3, 0, frozenset({"t"}), 1003),
        ),
        (OFFSET_FETCH, offset_fetch_message(committed_offset=-1), OffsetFetchResponse(3, 0, {}, 1003)),
        *(
            (
                OFFSET_FETCH,
                offset_fetch_message(version, [], code=GROUP_DENIED),
                OffsetFetchResponse(3, GROUP_DENIED, {}, 1003),
            )
            for version in versions(OFFSET_FETCH)
        ),
        (
            OFFSET_FETCH,
            offset_fetch_message(error_code=DENIED, committed_offset=-1),
            OffsetFetchResponse(3, DENIED, {}, 1003),
        ),
        (
            CREATE_TOPICS,
            create_topics_message(error_code=DENIED, error_message="not\x1b[31m yours"),
            CreateTopicResponse(3, DENIED, r"not\x1b[31m yours", 1003),
        ),
        (
            DESCRIBE_CONFIGS,
            describe_configs_message(error_code=DENIED, configs=()),
            DescribeConfigsResponse(3, DENIED, {}, 1003),
        ),
    ],
)
def test_errors_and_missing_values_are_read(api: Api, message: Any, response: AdminResponse) -> None:
    assert response_to(api, message) == response


@pytest.mark.parametrize(
    ("api", "message", "said"),
    [
        (OFFSET_COMMIT, offset_commit_message(partitions=[]), "other partitions than requested"),
        (OFFSET_COMMIT, offset_commit_message(partitions=[("u", 0)]), "other partitions than requested"),
        (OFFSET_COMMIT, offset_commit_message(partitions=[("t", 0)] * 2), "the same partition twice"),
        (OFFSET_FETCH, offset_fetch_message(partitions=[]), "other partitions than requested"),
        (OFFSET_FETCH, offset_fetch_message(partitions=[("t", 0), ("t", 1)]), "other partitions than requested"),
        (OFFSET_FETCH, offset_fetch_message(groups=[]), "no or unrequested groups"),
        (OFFSET_FETCH, offset_fetch_message(groups=["group", "other"]), "no or unrequested groups"),
        (CREATE_TOPICS, create_topics_message(topics=[]), "no or unrequested topics"),
        (CREATE_TOPICS, create_topics_message(topics=["t", "t"]), "no or unrequested topics"),
        (DESCRIBE_CONFIGS, describe_configs_message(resources=["u"]), "no or unrequested configurations"),
        (DESCRIBE_CONFIGS, describe_configs_message(resource_type=4), "no or unrequested configurations"),
    ],
)
def test_response_that_breaks_the_rules_is_not_read(api: Api, message: Any, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        response_to(api, message)
