"""What a client can know of a cluster: plain frozen values, as brokers state them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

NO_LEADER = -1
"""Leader id of a partition that has none just now."""
NO_EPOCH = -1
"""Leader epoch where none is known; it is neither older nor newer than any other (KIP-320)."""


class TopicPartition(NamedTuple):
    """A named tuple: a planner sorts and looks up ten thousand of them at each trigger, and a dataclass compares and
    hashes in Python."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where to connect: a bootstrap address, or a broker's advertised listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, order=True)
class Broker:
    node_id: int
    address: Address
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition as one broker sees it.

    Attributes:
        leader_id: node id of the leader, `NO_LEADER` while there is none.
        leader_epoch: grows with each election; `NO_EPOCH` where the broker does not report it.
        error_code: 0, or why the broker has no leader to name (LEADER_NOT_AVAILABLE ...).
    """

    partition: int
    leader_id: int
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic as one broker sees it.

    Attributes:
        topic_id: changes when a topic is recreated under the same name (KIP-516); None before Kafka 2.8.
        error_code: 0, or why `partitions` is empty (UNKNOWN_TOPIC_OR_PARTITION ...).
    """

    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionMetadata, ...]
    error_code: int = 0
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    """One broker's answer to one Metadata request, checked and in our own types.

    Attributes:
        brokers: all live brokers that the answering one knows.
        topics: only topics that were asked for; all of them if all were asked for.
        request_bytes, response_bytes: of the exchange itself, with the length prefix.
        error_code: of the whole answer (since Metadata v13); when it is not 0, there are no brokers and no topics.
    """

    cluster_id: str | None
    controller_id: int
    brokers: tuple[Broker, ...]
    topics: tuple[TopicMetadata, ...]
    api_version: int
    correlation_id: int
    request_bytes: int
    response_bytes: int
    throttle_ms: int = 0
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class LeaderAndEpoch:
    """The leader of a partition, for a fetch: the broker to ask and the epoch to send along (KIP-320)."""

    broker: Broker
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LeaderHint:
    """The leader that a broker names along with NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH (KIP-951).
    `broker` is None where the answer brought no endpoint (before Fetch v16)."""

    leader_id: int
    leader_epoch: int
    broker: Broker | None


def is_other_topic(old: UUID | str | None, new: UUID | str | None) -> bool:
    """Whether two ids under one name show that the topic was recreated. False where one is not known."""
    return old is not None and new is not None and old != new


class Position(NamedTuple):
    """Where reading goes on: the next offset, and the leader epoch known for what lies before it."""

    offset: int
    leader_epoch: int = NO_EPOCH


Positions = Mapping[TopicPartition, Position]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What one task reads of one partition: from `from_offset` to before `until_offset`.

    Attributes:
        topic_id: of the topic that the offsets belong to; None where brokers report none.
        start_epoch: leader epoch known for what lies before `from_offset`; `NO_EPOCH` where none is.
    """

    partition: TopicPartition
    topic_id: UUID | None
    from_offset: int
    until_offset: int
    start_epoch: int = NO_EPOCH

    @property
    def size(self) -> int:
        """Offsets in the range; records may be fewer, after compaction or around transactions."""
        return self.until_offset - self.from_offset


class RefreshReason(StrEnum):
    """Why a cache sends a Metadata request."""

    BOOTSTRAP = "bootstrap"
    """The cache is new and empty."""
    NEW_TOPIC = "new_topic"
    """The cache needs a topic for the first time."""
    MAX_AGE = "max_age"
    """The metadata is older than `kafka.metadata.max.age.ms`."""
    ON_DEMAND = "on_demand"
    """A user or program requested it."""
    LEADER_HINT = "leader_hint"
    """An error response named the new leader (KIP-951); the request confirms it."""
    REBOOTSTRAP = "rebootstrap"
    """All known brokers failed, two attempts timed out, or a broker requested it (KIP-899, KIP-1102)."""
    NOT_LEADER = "not_leader"
    """The broker does not lead the partition or cannot serve it."""
    NO_LEADER = "no_leader"
    """The partition has no leader, or an unknown one."""
    FENCED_EPOCH = "fenced_epoch"
    """The leader epoch in the request is older than the broker's."""
    UNKNOWN_EPOCH = "unknown_epoch"
    """The leader epoch in the request is newer than the broker's."""
    UNKNOWN_TOPIC = "unknown_topic"
    """The broker does not know the topic or partition."""
    UNKNOWN_TOPIC_ID = "unknown_topic_id"
    """The topic was deleted or recreated."""
    CONNECTION_LOST = "connection_lost"
    """A connection failed or was lost."""
    REQUEST_TIMEOUT = "request_timeout"
    """A broker did not respond in time."""
    CLOSED = "closed"
    """No request: the cache was closed."""
    DATA_LOSS = "data_loss"
    """No request: records were skipped."""
