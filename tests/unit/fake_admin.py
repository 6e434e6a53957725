"""The requests of administration of a `FakeNetwork`: offsets of groups, topics and their configuration."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka.client.cluster_admin import MAX_TIMEOUT_CONFIG
from pyspark_kafka_meta.kafka.protocol.admin import (
    TOPIC_RESOURCE,
    CreateTopicRequest,
    DescribeConfigsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.transactions import Coordinator, FindCoordinatorRequest
from tests.unit.fake_requests import FakeRequests


class FakeAdmin(FakeRequests[BrokerRequest[Any], ApiResponse[Any]]):
    """Behaves as Apache Kafka (`tests/kafka/test_admin_requests.py`)."""

    def _name(self, request: BrokerRequest[Any]) -> str:
        return request.api.title

    def _ends_at(self, node_id: int) -> float:
        return self.network.clock.now

    def respond(self, node_id: int, request: BrokerRequest[Any], sent_at: float) -> ApiResponse[Any]:
        network, cluster = self.network, self.network.cluster
        scripted = network.admin_errors.get(self._name(request))
        code = scripted.popleft() if scripted else 0
        match request:
            case FindCoordinatorRequest(groups):
                found = Coordinator(code, None if code else cluster.brokers[self._coordinator()])
                return ApiResponse(node_id, 0, dict.fromkeys(groups, found))
            case OffsetFetchRequest(group, partitions):
                code = code or self._group_error(node_id, has_members=False)
                known = network.groups.get(group, {})
                offsets = {part: known[part] for part in partitions if part in known}
                return ApiResponse(node_id, code, {} if code else offsets)
            case OffsetCommitRequest(group, committed):
                code = code or self._group_error(node_id, group in network.groups_with_members)
                missing = frozenset(part.topic for part in committed if part.topic not in cluster.topics)
                if code == 0:
                    kept = {part: offset for part, offset in committed.items() if part.topic not in missing}
                    network.groups.setdefault(group, {}).update(kept)
                return ApiResponse(node_id, code, missing)
            case CreateTopicRequest(topic, partitions):
                code = code or (ErrorCode.topic_already_exists if topic in cluster.topics else 0)
                if code == 0:
                    cluster.create_topic(topic, partitions)
                return ApiResponse(node_id, int(code), "")
            case DescribeConfigsRequest(kind, topic) if kind == TOPIC_RESOURCE:
                return ApiResponse(node_id, code, {} if code else network.configs.get(topic, {}))
            case DescribeConfigsRequest():
                limit = cluster.coordinators.max_timeout_ms
                config = {} if code else {MAX_TIMEOUT_CONFIG: str(limit)}
                return ApiResponse(node_id, code, config)
        raise AssertionError(request)

    def _coordinator(self) -> int:
        return self.network.group_coordinator or min(self.network.cluster.brokers)

    def _group_error(self, node_id: int, has_members: bool) -> int:
        if node_id != self._coordinator():
            return int(ErrorCode.not_coordinator)
        return int(ErrorCode.unknown_member_id) if has_members else 0
