"""What is asked of brokers and what they answer, in our own types, and `Wire`: the one seam to the network.

Tests put a fake behind this seam; `wire/kafka_wire.py` puts Kafka behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.model import NO_EPOCH, Address, Broker, LeaderHint, MetadataResponse, TopicPartition

EARLIEST_TIMESTAMP = -2
"""ListOffsets: the log start offset (Kafka `ListOffsetsRequest.EARLIEST_TIMESTAMP`)."""
LATEST_TIMESTAMP = -1
"""ListOffsets: the high watermark, or the last stable offset under read_committed."""
EARLIEST_LOCAL_TIMESTAMP = -4
"""The first offset on the leader's own disk, with tiered storage later than the log start offset (KIP-405)."""


@dataclass(frozen=True, slots=True)
class OffsetQuery:
    """One partition of an `OffsetsRequest`.

    Attributes:
        wanted: ms since 1970 UTC, or one of the constants above; in a request `by_epoch`, a leader epoch.
        leader_epoch: the cached epoch, so that an ex-leader refuses instead of answering from an old log.
    """

    partition: TopicPartition
    wanted: int
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetsRequest:
    """ListOffsets to one broker, or OffsetForLeaderEpoch.

    Attributes:
        read_committed: whether the latest offset is the last stable offset, or the high watermark.
        by_epoch: whether the end offsets of leader epochs are wanted (OffsetForLeaderEpoch, KIP-320).
    """

    queries: tuple[OffsetQuery, ...]
    read_committed: bool = False
    by_epoch: bool = False


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """One partition of the answer to an `OffsetsRequest`.

    Attributes:
        offset: -1 where no record is as late as the timestamp asked for. By epoch: the end offset (exclusive) of the
            largest epoch in the log that is not above the epoch asked for; -1 where the leader knows none.
        leader_epoch: of the record at `offset`; for the latest offset, the leader's own; by epoch, that largest epoch.
    """

    partition: TopicPartition
    error_code: int
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetsResponse:
    """One broker's answer to one `OffsetsRequest`.

    Attributes:
        offsets: without the partitions that it left out.
        throttle_ms: how long the broker wants to be left alone.
    """

    node_id: int
    offsets: Mapping[TopicPartition, PartitionOffset]
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """One partition of a Fetch request.

    Attributes:
        topic_id: as planned, whatever the cache says by now; None makes the whole request go by name (Fetch v12).
        fetch_offset: the first offset wanted.
        leader_epoch: the cached epoch of the leader asked; without it an ex-leader serves its old log with error 0.
        last_fetched_epoch: epoch of the record before `fetch_offset`; lets the leader see a truncated log (KIP-320).
        max_bytes: soft limit; the first record batch is sent whole however large (KIP-74).
    """

    partition: TopicPartition
    topic_id: UUID | None
    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """One Fetch request to one broker. `max_bytes` bounds the whole answer, softly; `max_wait_ms` is how long the
    broker may park it while fewer than `min_bytes` are there."""

    partitions: tuple[FetchPartition, ...]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    rack: str = ""


@dataclass(frozen=True, slots=True)
class DivergingEpoch:
    """The log was truncated: the largest epoch both sides know, and the (exclusive) offset up to which they agree."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition of a Fetch answer.

    Attributes:
        records: concatenated record batches as the broker stores them; the last may be cut off.
        aborted_transactions: (producer id, first offset) pairs, under read_committed only.
        high_watermark, last_stable_offset: -1 where the broker does not return it.
    """

    partition: TopicPartition
    error_code: int
    records: bytes | memoryview
    high_watermark: int
    last_stable_offset: int
    aborted_transactions: tuple[tuple[int, int], ...] = ()
    leader_hint: LeaderHint | None = None
    diverging_epoch: DivergingEpoch | None = None
    preferred_read_replica: int = -1


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """One broker's answer to one Fetch. Only partitions that were asked for, each at most once.

    Attributes:
        error_code: top-level; when it is not 0, `partitions` is empty.
        latency_ms: from the request's last byte sent to the answer's last byte received, parking time included.
        by_id: whether topics were asked for by id (Kafka 3.1 and later): then none is a namesake.
    """

    node_id: int
    error_code: int
    partitions: tuple[FetchedPartition, ...]
    throttle_ms: int
    response_bytes: int
    latency_ms: float
    by_id: bool = True


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A ListOffsets or Fetch that got no answer: the connection is gone and the request with it."""

    node_id: int
    error: KafkaMetaError


class Wire(Protocol):
    """Requests to brokers. Deadlines are in seconds of `time.monotonic`.

    Without an answer, `receive_metadata` raises an error and the others return it in a RequestFailure. ConnectError,
    RequestTimeoutError and ProtocolError may pass; UnsupportedBrokerError, TlsError, AuthenticationError
    and OptionError do not. After any of them the connection is dropped, and the next call opens a new one. Each kind of
    request has connections of its own, so that Metadata never waits behind a Fetch.
    """

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        """Ask the broker at `address` for the cluster and `topics` (None: all of them). Never creates a topic. Returns
        at once, as `send_fetch`; the connection and the answer must come by `deadline`. One Metadata request is under
        way at a time: an earlier one is dropped."""

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        """The answer to the Metadata request under way; None if it did not begin by `deadline`."""

    def send_offsets(self, broker: Broker, request: OffsetsRequest, deadline: float) -> None:
        """Ask for offsets by time, by end or by leader epoch, as `send_fetch`."""

    def receive_offsets(self, node_ids: Collection[int], deadline: float) -> OffsetsResponse | RequestFailure | None:
        """As `receive_fetch`."""

    def drop_offsets(self, node_id: int) -> None:
        """As `drop_fetch`."""

    def send_fetch(self, broker: Broker, request: FetchRequest, deadline: float) -> None:
        """Send a Fetch; at most one is under way to a broker. Returns at once: without a connection, one is opened in
        the background and the Fetch sent over it, and `receive_fetch` reports it if that fails. The answer must begin
        by `deadline`; a connection that has to be opened must be there by then, and the answer gets as long again.
        """

    def receive_fetch(self, node_ids: Collection[int], deadline: float) -> FetchResponse | RequestFailure | None:
        """The first answer, or failure, of the Fetches under way to `node_ids`; None if none began by `deadline`, or
        once `receive_metadata` has something to do for a Metadata request under way. An answer that has begun is read
        to its end: at most for as long as it might have taken to begin."""

    def drop_fetch(self, node_id: int) -> None:
        """Forget the Fetch under way to this broker, if any, and its connection."""

    def close(self) -> None:
        """Close every connection."""
