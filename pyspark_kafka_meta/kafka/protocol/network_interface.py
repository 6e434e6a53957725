"""`Network`: the seam to brokers. How requests of each kind are sent, and their responses received.

`kafka.network.kafka_network.KafkaNetwork` implements the seam with Kafka, tests implement it with a fake.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.fetch import FetchRequest, FetchResponse
from pyspark_kafka_meta.kafka.protocol.list_offsets import OffsetsRequest, OffsetsResponse
from pyspark_kafka_meta.model import Address, Broker, MetadataResponse

if TYPE_CHECKING:  # readers start sooner without it
    from pyspark_kafka_meta.kafka.protocol.produce import ProduceRequest, ProduceResponse

RequestT = TypeVar("RequestT", contravariant=True)
ResponseT = TypeVar("ResponseT", covariant=True)


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A request without a response. Its connection is closed."""

    node_id: int
    error: KafkaMetaError


MAX_NODE_IDS = 2**31


def connection_id(node_id: int, number: int) -> int:
    """The id of a connection to a broker: its node id for the first, with number 0, and an id that no broker has for
    each further one. Kafka's consumer has such an id for its coordinator (`Integer.MAX_VALUE - node.id`)."""
    return node_id + number * MAX_NODE_IDS


class Requests(Protocol[RequestT, ResponseT]):
    """Requests of one kind, at most one in flight to each broker, or to each `connection_id`, which is then the node id
    of the response or failure too. Of Produce any number is in flight: a broker handles them, and responds, in the
    order in which they were sent, and a failure is of all requests in flight to its broker."""

    def send(self, broker: Broker, request: RequestT, deadline: float) -> None:
        """Send a request. Returns at once: without a connection, a thread opens a connection and sends; `receive`
        returns its error. The response must begin by `deadline`. A new connection must be open by then, and the
        response gets the same time again. Drops an earlier request to this broker, unless it is a Produce: what the
        socket does not take of it is sent by `receive`."""

    def receive(self, node_ids: Collection[int], deadline: float) -> ResponseT | RequestFailure | None:
        """The first response, or failure, of the requests in flight to `node_ids`. None if no response began by
        `deadline`, or once `Network.receive_metadata` has something to return. A response that has begun is read to its
        end, for at most as long as it had to begin."""

    def drop(self, node_id: int) -> None:
        """Forget the requests in flight to this broker, if any, and close its connection."""


class Network(Protocol):
    """Requests to brokers. Deadlines are in seconds of `time.monotonic`.

    ConnectError, RequestTimeoutError and ProtocolError are retriable; UnsupportedBrokerError, TlsError,
    AuthenticationError and OptionError are not. After any of them the connection is closed, and the next request opens
    a new connection. Each kind of request has its own connections, so that Metadata never waits for a Fetch.
    """

    @property
    def offsets(self) -> Requests[OffsetsRequest, OffsetsResponse]: ...

    @property
    def fetch(self) -> Requests[FetchRequest, FetchResponse]: ...

    @property
    def produce(self) -> Requests[ProduceRequest, ProduceResponse]: ...

    @property
    def transactions(self) -> Requests[BrokerRequest[Any], ApiResponse[Any]]: ...

    @property
    def admin(self) -> Requests[BrokerRequest[Any], ApiResponse[Any]]: ...

    def send_metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> None:
        """Request the cluster and `topics` (None: all topics). Never creates a topic. Returns at once, as
        `Requests.send`; the connection and the response share `deadline`. One Metadata request is in flight at a time:
        an earlier request is dropped."""

    def receive_metadata(self, deadline: float) -> MetadataResponse | None:
        """The response to the Metadata request in flight; None if it did not begin by `deadline`. Raises
        KafkaMetaError: the request failed."""

    def close_idle(self) -> None:
        """Close the connections without a request in flight. Brokers limit those of a host."""

    def close(self) -> None:
        """Close every connection."""
