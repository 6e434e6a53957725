"""The requests for the committed offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_kafka_meta.kafka.protocol.apis import OFFSET_COMMIT, OFFSET_FETCH, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from pyspark_kafka_meta.kafka.protocol.frame_codec import request_schema
from pyspark_kafka_meta.kafka.protocol.response_checks import check, grouped, unique
from pyspark_kafka_meta.model import TopicPartition

SEVERAL_GROUPS_SINCE = 8
"""First version of OffsetFetch for several groups (KIP-709)."""


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest(BrokerRequest[Mapping[TopicPartition, int]]):
    """The committed offsets of a group, from its coordinator. An open transaction does not hide the offset before. The
    result has the partitions with a committed offset; the error code is the first of the group or a partition."""

    api = OFFSET_FETCH
    group: str
    partitions: tuple[TopicPartition, ...]

    def encode(self, version: int) -> Any:
        schema = request_schema(OFFSET_FETCH, version)
        by_groups = version >= SEVERAL_GROUPS_SINCE
        topic_class = schema.OffsetFetchRequestTopics if by_groups else schema.OffsetFetchRequestTopic
        topics = tuple(
            topic_class(name=topic, partition_indexes=tuple(member.partition for member in members))
            for topic, members in grouped(self.partitions, lambda partition: partition.topic)
        )
        if by_groups:
            group = schema.OffsetFetchRequestGroup(group_id=self.group, topics=topics)
            return schema.OffsetFetchRequest(groups=(group,))
        return schema.OffsetFetchRequest(group_id=self.group, topics=topics)

    def outcome(self, message: Any, version: int) -> tuple[int, dict[TopicPartition, int]]:
        group = message
        if version >= SEVERAL_GROUPS_SINCE:
            check([found.group_id for found in message.groups] == [self.group], "no or unrequested groups")
            (group,) = message.groups
        entries, code = _by_partition(group.topics), int(group.error_code)
        is_complete = entries.keys() == set(self.partitions) or (code != 0 and not entries)
        check(is_complete, "other partitions than requested")
        offsets = {part: int(entry.committed_offset) for part, entry in entries.items() if entry.committed_offset >= 0}
        return _first_error([code, *(int(entry.error_code) for entry in entries.values())]), offsets


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest(BrokerRequest[frozenset[str]]):
    """Set the committed offsets of a group, at its coordinator. It refuses this while the group has members, because
    the request is not of a member (KIP-396, and KIP-848 for the newer groups). The result is the topics that the broker
    does not know; the error code is the first of another partition."""

    api = OFFSET_COMMIT
    group: str
    offsets: Mapping[TopicPartition, int]

    def encode(self, version: int) -> Any:
        schema = request_schema(OFFSET_COMMIT, version)

        def partition(part: TopicPartition) -> Any:
            return schema.OffsetCommitRequestPartition(
                partition_index=part.partition, committed_offset=self.offsets[part], committed_metadata=""
            )

        topics = tuple(
            schema.OffsetCommitRequestTopic(name=topic, partitions=tuple(map(partition, members)))
            for topic, members in grouped(self.offsets, lambda part: part.topic)
        )
        return schema.OffsetCommitRequest(group_id=self.group, member_id="", topics=topics)

    def outcome(self, message: Any, version: int) -> tuple[int, frozenset[str]]:
        entries = _by_partition(message.topics)
        check(entries.keys() == self.offsets.keys(), "other partitions than requested")
        codes = {part: int(entry.error_code) for part, entry in entries.items()}
        missing = frozenset(part.topic for part, code in codes.items() if code == UNKNOWN_TOPIC_OR_PARTITION)
        return _first_error(code for part, code in codes.items() if part.topic not in missing), missing


def _by_partition(topics: Any) -> dict[TopicPartition, Any]:
    """The entries of a response about the offsets of a group."""
    entries = [
        (TopicPartition(str(topic.name), int(entry.partition_index)), entry)
        for topic in topics
        for entry in topic.partitions
    ]
    return dict(unique(entries, lambda pair: pair[0], "partition"))


def _first_error(codes: Iterable[int]) -> int:
    return next((code for code in codes if code != 0), 0)
