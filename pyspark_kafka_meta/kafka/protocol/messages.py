"""Requests and responses in our own types, and `Wire`: the seam to the network.

`kafka.network.kafka_wire.KafkaWire` implements the seam with Kafka, tests implement it with a fake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar
from uuid import UUID

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.model import (
    NO_EPOCH,
    Address,
    Broker,
    LeaderHint,
    MetadataResponse,
    TopicPartition,
)

if TYPE_CHECKING:
    from pyspark_kafka_meta.kafka.protocol.producer_messages import (
        ProduceRequest,
        ProduceResponse,
        TransactionRequest,
        TransactionResponse,
    )

RequestT = TypeVar("RequestT", contravariant=True)
ResponseT = TypeVar("ResponseT", covariant=True)

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
        leader_epoch: the cached epoch: a former leader then returns an error instead of offsets of its old log.
    """

    partition: TopicPartition
    wanted: int
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetsRequest:
    """ListOffsets or OffsetForLeaderEpoch to one broker.

    Attributes:
        read_committed: whether the latest offset is the last stable offset instead of the high watermark.
        by_epoch: whether to request the end offsets of leader epochs (OffsetForLeaderEpoch, KIP-320).
    """

    queries: tuple[OffsetQuery, ...]
    read_committed: bool = False
    by_epoch: bool = False


@dataclass(frozen=True, slots=True)
class PartitionOffset:
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


@dataclass(frozen=True, slots=True)
class OffsetsResponse:
    """One broker's response to an `OffsetsRequest`.

    Attributes:
        offsets: may lack requested partitions.
        throttle_ms: how long the broker accepts no further requests (KIP-219).
    """

    node_id: int
    offsets: Mapping[TopicPartition, PartitionOffset]
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """One partition of a Fetch request.

    Attributes:
        topic_id: as planned, even if the cache has another id now. None sends the whole request by name (Fetch v12).
        fetch_offset: the first requested offset.
        leader_epoch: the cached epoch of the leader. Without it, a former leader serves its old log with error 0.
        last_fetched_epoch: epoch of the record before `fetch_offset`, so that the leader detects a truncated log
            (KIP-320).
        max_bytes: soft limit: the first record batch is sent whole, however large (KIP-74).
    """

    partition: TopicPartition
    topic_id: UUID | None
    fetch_offset: int
    leader_epoch: int
    last_fetched_epoch: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """One Fetch request to one broker. `max_bytes` is a soft limit of the whole response. The broker may wait for up to
    `max_wait_ms` until it has `min_bytes`."""

    partitions: tuple[FetchPartition, ...]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    rack: str = ""


@dataclass(frozen=True, slots=True)
class DivergingEpoch:
    """Where the log was truncated: the largest common epoch, and the offset (exclusive) up to which both logs agree."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition of a Fetch response.

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
    """One broker's response to a Fetch. It holds only requested partitions, each at most once.

    Attributes:
        error_code: top-level error. If it is not 0, `partitions` is empty.
        latency_ms: from the last byte sent to the last byte received, including the broker's wait for `min_bytes`.
        by_id: whether the request named topics by id (Kafka 3.1 and later): no recreated topic is mistaken for the
            requested topic.
    """

    node_id: int
    error_code: int
    partitions: tuple[FetchedPartition, ...]
    throttle_ms: int
    response_bytes: int
    latency_ms: float
    by_id: bool = True

    @property
    def has_records(self) -> bool:
        return any(fetched.records for fetched in self.partitions)


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A request without a response. Its connection is closed."""

    node_id: int
    error: KafkaMetaError


class Requests(Protocol[RequestT, ResponseT]):
    """Requests of one kind, at most one in flight to each broker."""

    def send(self, broker: Broker, request: RequestT, deadline: float) -> None:
        """Send a request. Returns at once: without a connection, a thread opens a connection and sends; `receive`
        returns its error. The response must begin by `deadline`. A new connection must be open by then, and the
        response gets the same time again. Drops an earlier request to this broker."""

    def receive(self, node_ids: Collection[int], deadline: float) -> ResponseT | RequestFailure | None:
        """The first response, or failure, of the requests in flight to `node_ids`. None if no response began by
        `deadline`, or once `Wire.receive_metadata` has something to return. A response that has begun is read to its
        end, for at most as long as it had to begin."""

    def drop(self, node_id: int) -> None:
        """Forget the request in flight to this broker, if any, and close its connection."""


class PipelinedRequests(Protocol[RequestT, ResponseT]):
    """Requests of one kind, any number in flight to each broker: the broker handles and answers them in the order in
    which they were sent."""

    def send(self, broker: Broker, request: RequestT, deadline: float) -> None:
        """Send a request behind those in flight to this broker. Returns at once, as `Requests.send`: what the socket
        does not take is sent by `receive`. `deadline` as in `Requests.send`."""

    def receive(self, node_ids: Collection[int], deadline: float) -> ResponseT | RequestFailure | None:
        """As `Requests.receive`. A response is the one to the oldest request in flight to its broker. A failure is of
        all requests in flight to its broker."""

    def drop(self, node_id: int) -> None:
        """Forget all requests in flight to this broker, and close its connection."""


class Wire(Protocol):
    """Requests to brokers. Deadlines are in seconds of `time.monotonic`.

    ConnectError, RequestTimeoutError and ProtocolError are retriable; UnsupportedBrokerError, TlsError,
    AuthenticationError and OptionError are not. After any of them the connection is closed, and the next request opens
    a new connection. Each kind of request has its own connections, so that Metadata never waits behind a Fetch.
    """

    @property
    def offsets(self) -> Requests[OffsetsRequest, OffsetsResponse]: ...

    @property
    def fetch(self) -> Requests[FetchRequest, FetchResponse]: ...

    @property
    def produce(self) -> PipelinedRequests[ProduceRequest, ProduceResponse]: ...

    @property
    def transactions(self) -> Requests[TransactionRequest, TransactionResponse]: ...

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        """Request the cluster and `topics` (None: all topics). Never creates a topic. Returns at once, as
        `Requests.send`; the connection and the response share `deadline`. One Metadata request is in flight at a time:
        an earlier request is dropped."""

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        """The response to the Metadata request in flight; None if it did not begin by `deadline`.

        Raises:
            KafkaMetaError: the request failed.
        """

    def close(self) -> None:
        """Close every connection."""
