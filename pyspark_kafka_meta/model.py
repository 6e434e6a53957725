"""The values that all packages share: partitions, positions and offset ranges, and metadata as brokers report it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple
from uuid import UUID

NO_LEADER = -1
"""Leader id of a partition without a leader."""
NO_EPOCH = -1
"""Unknown leader epoch: neither older nor newer than any other (KIP-320)."""
NO_OFFSET = -1
"""Unknown offset."""


# --- partitions and offsets -------------------------------------------------------------------------------------------


class TopicPartition(NamedTuple):
    """A named tuple because a planner sorts and looks up ten thousand of them per trigger: a dataclass compares and
    hashes in Python."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


MAX_SHOWN = 260
"""Maximum length of a name or value in a message. No partition of a topic has a longer name."""


def shortened(text: str) -> str:
    """A name or value that may have any length, for messages."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def name_partitions(partitions: Collection[TopicPartition]) -> str:
    """The first ten by name and the number of the others, for messages."""
    return name_first([str(partition) for partition in sorted(partitions)])


def name_first(names: Sequence[str], count: int = 10) -> str:
    """The first ones and the number of the others, for messages."""
    first, others = ", ".join(map(shortened, names[:count])) or "none", len(names) - count
    return f"{first} and {others} more" if others > 0 else first


class Position(NamedTuple):
    """The next offset to read, and the known leader epoch of the records before it.

    Attributes:
        leader_epoch: of the leader that reported the position, unless `epoch_start` is known.
        epoch_start: offset of the first record of this epoch, before `offset`. `NO_OFFSET` if unknown: the leader may
            have written nothing in its epoch, and such an epoch leaves no trace in other replicas.
        reported_epoch: of the leader that reported the position, if it is higher than `leader_epoch`. Kafka's
            `FetchPosition` has both too: `offsetEpoch` and `currentLeader`.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    epoch_start: int = NO_OFFSET
    reported_epoch: int = NO_EPOCH

    @property
    def known_epoch(self) -> int:
        """The highest leader epoch that is known of the log: a leader of a lower epoch was replaced."""
        return self.leader_epoch if self.reported_epoch == NO_EPOCH else self.reported_epoch

    def kept_until(self, epoch: int, end_offset: int) -> int:
        """Up to which offset a log may hold what was read up to this position (KIP-320). A log that lacks the epoch has
        none of its records, however long it is.

        Args:
            epoch: the largest epoch in the log up to `leader_epoch`.
            end_offset: of this epoch in the log.
        """
        lacks_epoch = epoch < self.leader_epoch and self.epoch_start != NO_OFFSET
        return min(end_offset, self.epoch_start) if lacks_epoch else end_offset


Positions = Mapping[TopicPartition, Position]


class TopicEpoch(NamedTuple):
    """A leader epoch of a partition of the topic with this id. Within the id, epochs never decrease."""

    topic_id: UUID
    leader_epoch: int


class TopicGeneration(NamedTuple):
    """How often the offsets of a topic began again while a query followed it, because it was recreated or truncated.
    With the generation before the offset, later records of a partition are always the greater ones.

    Attributes:
        topic_id: of the topic that the query followed last; None if unknown.
        partitions: how many the topic had, if some are gone; else 0.
    """

    number: int
    topic_id: UUID | None
    partitions: int = 0


class ProducerIdAndEpoch(NamedTuple):
    """What a broker identifies a producer by, to detect duplicate and missing batches (KIP-98)."""

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerIdAndEpoch(-1, -1)
"""A producer without idempotence. The base sequence of its batches is -1."""


class TransactionVersion(IntEnum):
    """The protocol of a transaction, which its requests must not mix (KIP-890)."""

    V1 = 1
    """Partitions are added by AddPartitionsToTxn. Every version of Kafka accepts it."""
    V2 = 2
    """A Produce adds its partition, and the end of each transaction raises the epoch (Kafka 4.0 and later)."""


class TransactionSpan(NamedTuple):
    """The offsets [from_offset, until_offset) of a partition in which one transaction has all its records. Others may
    have records there, unless it holds as many offsets as records. Both offsets are -1 if the broker does not say them.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class RowDigest:
    """How many rows there are, and the sum of their hashes modulo 2^64: the same in any order and distribution."""

    rows: int = 0
    hash: int = 0

    def __add__(self, other: RowDigest) -> RowDigest:
        return RowDigest(self.rows + other.rows, (self.hash + other.hash) % 2**64)


NO_ROWS = RowDigest()


class OpenTransaction(NamedTuple):
    """What a task attempt wrote in a transaction, which the driver ends."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    written: tuple[TransactionSpan, ...]

    @property
    def rows(self) -> int:
        return sum(each.records for each in self.written)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of one partition that a task reads: from `from_offset` to before `until_offset`.

    Attributes:
        topic_id: topic that the offsets belong to; None if brokers report no topic ids.
        start_epoch: known leader epoch of the records before `from_offset`, or `NO_EPOCH`.
        leader_epoch: of the leader that reported `until_offset`, or `NO_EPOCH`. A leader of a lower epoch was replaced:
            its log may end before, or hold other records there.
        generation: see `TopicGeneration`; 0 unless the query reads changes.
        latest_by_key: whether only the latest record of each key is read.
    """

    partition: TopicPartition
    topic_id: UUID | None
    from_offset: int
    until_offset: int
    start_epoch: int = NO_EPOCH
    leader_epoch: int = NO_EPOCH
    generation: int = 0
    latest_by_key: bool = False

    @property
    def size(self) -> int:
        """Number of offsets. Compaction and transactions leave fewer records."""
        return self.until_offset - self.from_offset


def is_other_topic(old: UUID | str | None, new: UUID | str | None) -> bool:
    """Whether two topic ids of one name show that the topic was recreated. False if an id is unknown."""
    return old is not None and new is not None and old != new


# --- cluster metadata -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A bootstrap address, or the advertised listener of a broker."""

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
    """One partition as one broker reports it.

    Attributes:
        leader_id: node id of the leader, or `NO_LEADER`.
        leader_epoch: grows with each election; `NO_EPOCH` if the broker does not report it.
        error_code: 0, or the reason why there is no leader (LEADER_NOT_AVAILABLE ...).
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
    """One topic as one broker reports it.

    Attributes:
        topic_id: changes when the topic is recreated under its name (KIP-516); None before Kafka 2.8.
        error_code: 0, or the reason why `partitions` is empty (UNKNOWN_TOPIC_OR_PARTITION ...).
    """

    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionMetadata, ...]
    error_code: int = 0
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    """A broker's validated response to a Metadata request.

    Attributes:
        brokers: all live brokers that the responding broker knows.
        topics: the requested topics alone; all topics if all were requested.
        request_bytes, response_bytes: with their length prefixes.
        error_code: of the whole response (since Metadata v13); if it is not 0, there are no brokers and no topics.
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


class SchemaPin(NamedTuple):
    """The identity of the schema that a column is read as.

    Attributes:
        columns: a digest of the Arrow type; equal for schemas with the same columns. Of the rows of changes, digests of
            each column, with a blank between them.
        fingerprint: a digest of the schema. Ids are none: they differ in each registry.
        source: describes where the schema comes from, for messages.
    """

    columns: str
    fingerprint: str
    source: str


class LeaderAndEpoch(NamedTuple):
    """The leader of a partition, and the leader epoch that requests to it carry (KIP-320)."""

    broker: Broker
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LeaderHint:
    """The new leader that NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH names (KIP-951). `broker` is None if the
    response has no endpoint (before Fetch v16)."""

    leader_id: int
    leader_epoch: int
    broker: Broker | None


class RefreshReason(StrEnum):
    """Why a cache sends a Metadata request."""

    BOOTSTRAP = "bootstrap"
    """The cache is new."""
    NEW_TOPIC = "new_topic"
    """A topic is needed for the first time."""
    MAX_AGE = "max_age"
    """The metadata is older than `kafka.metadata.max.age.ms`."""
    ON_DEMAND = "on_demand"
    """A user or program requested it, or a response may be outdated."""
    LEADER_HINT = "leader_hint"
    """An error response named the new leader (KIP-951); the request confirms it."""
    REBOOTSTRAP = "rebootstrap"
    """All known brokers failed, two attempts timed out, or a broker requested it (KIP-899, KIP-1102)."""
    NOT_LEADER = "not_leader"
    """The broker does not lead the partition or cannot serve it."""
    NO_LEADER = "no_leader"
    """The partition has no known leader."""
    FENCED_EPOCH = "fenced_epoch"
    """The request had an older leader epoch than the broker."""
    UNKNOWN_EPOCH = "unknown_epoch"
    """The request had a newer leader epoch than the broker."""
    REPLACED_LEADER = "replaced_leader"
    """A plan or a checkpoint has a higher leader epoch."""
    UNKNOWN_TOPIC = "unknown_topic"
    """The broker does not know the topic or partition."""
    UNKNOWN_TOPIC_ID = "unknown_topic_id"
    """The topic was deleted or recreated."""
    CONNECTION_LOST = "connection_lost"
    """A connection failed or was lost."""
    REQUEST_TIMEOUT = "request_timeout"
    """A broker did not respond in time."""
