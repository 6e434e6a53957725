"""ListOffsets and OffsetForLeaderEpoch: requests and responses in our own types.

A planner asks for ten thousand partitions at each trigger. So requests are packed here, as the protocol library's
writer takes 3 µs for each partition, and queries and offsets are named tuples, which are made faster than dataclasses.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from pyspark_kafka_meta.kafka.protocol.apis import (
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    Api,
    ApiResponse,
    BrokerRequest,
)
from pyspark_kafka_meta.kafka.protocol.frame_codec import PackedRequest, request_schema
from pyspark_kafka_meta.kafka.protocol.response_checks import check
from pyspark_kafka_meta.model import NO_EPOCH, TopicPartition

CONSUMER_ID = -1
"""Replica id in the requests of a client (Kafka `ListOffsetsRequest.CONSUMER_REPLICA_ID`)."""
LOCAL_OFFSETS_SINCE = 8
"""First version of ListOffsets with `EARLIEST_LOCAL_TIMESTAMP` (KIP-405)."""
EARLIEST_TIMESTAMP = -2
"""ListOffsets: the log start offset (Kafka `ListOffsetsRequest.EARLIEST_TIMESTAMP`)."""
LATEST_TIMESTAMP = -1
"""ListOffsets: the high watermark, or the last stable offset under read_committed."""
EARLIEST_LOCAL_TIMESTAMP = -4
"""The first offset on the leader's own disk, with tiered storage later than the log start offset (KIP-405)."""


class OffsetQuery(NamedTuple):
    """One partition of an `OffsetsRequest`.

    Attributes:
        wanted: ms since 1970 UTC, or one of the constants above; in a request `by_epoch`, a leader epoch.
        leader_epoch: the cached epoch: a former leader then returns an error instead of offsets of its old log.
    """

    partition: TopicPartition
    wanted: int
    leader_epoch: int = NO_EPOCH


class PartitionOffset(NamedTuple):
    """One partition of an `OffsetsResponse`.

    Attributes:
        offset: of the first record at or after the requested timestamp, -1 if there is none. By epoch: the end offset
            (exclusive) of the largest epoch in the log up to the requested epoch, -1 if the leader knows none.
        leader_epoch: of the record at `offset`. For the latest offset, the leader's own. By epoch, the largest epoch.
    """

    partition: TopicPartition
    error_code: int
    offset: int
    leader_epoch: int


OffsetsResponse: TypeAlias = ApiResponse[Mapping[TopicPartition, PartitionOffset]]

_OF_EPOCH = attrgetter("partition", "error_code", "end_offset", "leader_epoch")
_OF_TIMESTAMP = attrgetter("partition_index", "error_code", "offset", "leader_epoch")


@dataclass(frozen=True, slots=True)
class OffsetsRequest(BrokerRequest[Mapping[TopicPartition, PartitionOffset]]):
    """ListOffsets or OffsetForLeaderEpoch to one broker. The result may lack requested partitions, and has an error
    code for each of the others.

    Attributes:
        read_committed: whether the latest offset is the last stable offset instead of the high watermark.
        by_epoch: whether to request the end offsets of leader epochs (OffsetForLeaderEpoch, KIP-320).
    """

    api = LIST_OFFSETS
    queries: tuple[OffsetQuery, ...]
    read_committed: bool = False
    by_epoch: bool = False

    def spoken(self) -> Api:
        return OFFSET_FOR_LEADER_EPOCH if self.by_epoch else LIST_OFFSETS

    def encode(self, version: int) -> PackedRequest:
        """Both requests name the partitions of each topic, with fields of fixed size:

        ListOffsets           replica_id int32, isolation_level int8,
                              [topic, [partition int32, current_leader_epoch int32, timestamp int64]]
        OffsetForLeaderEpoch  replica_id int32 (since v3),
                              [topic, [partition int32, current_leader_epoch int32, leader_epoch int32]]
        """
        if self.by_epoch:
            kind = request_schema(OFFSET_FOR_LEADER_EPOCH, version).OffsetForLeaderEpochRequest
            head, fields = struct.pack(">i", CONSUMER_ID) if version >= 3 else b"", ">iii"
        else:
            kind = request_schema(LIST_OFFSETS, version).ListOffsetsRequest
            head, fields = struct.pack(">ib", CONSUMER_ID, self.read_committed), ">iiq"
        # A broker without local offsets has no tiered storage: its whole log is local.
        has_local_offsets = self.by_epoch or version >= LOCAL_OFFSETS_SINCE
        flexible: bool = kind.__flexible__
        no_tags = b"\0" if flexible else b""
        pack = struct.Struct(f"{fields}x" if flexible else fields).pack  # x: no tags
        by_topic: dict[str, list[bytes]] = {}
        for (topic, number), wanted, leader_epoch in self.queries:
            if wanted == EARLIEST_LOCAL_TIMESTAMP and not has_local_offsets:
                wanted = EARLIEST_TIMESTAMP
            by_topic.setdefault(topic, []).append(pack(number, leader_epoch, wanted))
        topics = [
            _length(len(name := topic.encode()), 2, flexible)
            + name
            + _length(len(entries), 4, flexible)
            + b"".join(entries)
            + no_tags
            for topic, entries in by_topic.items()
        ]
        return PackedRequest(kind, head + _length(len(topics), 4, flexible) + b"".join(topics) + no_tags)

    def outcome(self, message: Any, version: int) -> tuple[int, dict[TopicPartition, PartitionOffset]]:
        wanted = {query.partition: query.wanted for query in self.queries}
        fields = _OF_EPOCH if self.by_epoch else _OF_TIMESTAMP
        offsets: dict[TopicPartition, PartitionOffset] = {}
        for topic in message.topics:
            name = topic.topic if self.by_epoch else topic.name
            for number, code, offset, leader_epoch in map(fields, topic.partitions):
                partition = TopicPartition(name, number)
                # Every log has a start and an end. A timestamp or an epoch may have no offset.
                smallest = -1 if self.by_epoch or code != 0 or wanted.get(partition, 0) >= 0 else 0
                if partition not in wanted or partition in offsets or offset < smallest or leader_epoch < -1:
                    check(partition in wanted, "unrequested %s", partition)
                    check(partition not in offsets, "the same partition twice")
                    check(False, "a negative offset or epoch for %s", partition)
                offsets[partition] = PartitionOffset(partition, code, offset, leader_epoch)
        return 0, offsets


def _length(size: int, width: int, flexible: bool) -> bytes:
    """Of a name or an array: a varint, 1 greater because 0 is null, or an integer of `width` bytes (KIP-482)."""
    if not flexible:
        return size.to_bytes(width, "big")
    left, encoded = size + 1, bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)
