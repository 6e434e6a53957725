"""Kafka's APIs: the versions that this package supports of each, and what a request of an API is.

The request classes are in the modules beside this one. A newer version is a number here, and its fields there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", covariant=True)


class Api(NamedTuple):
    """One Kafka API: its key, the versions that this package supports, and the first Kafka that has one of them."""

    name: str
    key: int
    min_version: int
    max_version: int
    since: str = "2.7"

    @property
    def title(self) -> str:
        return self.name.title().replace("_", "")


class Exchange(NamedTuple):
    """One request and its response, whose records are separate (`decode`).

    Sizes include the length prefix. The latency is from the last byte sent to the last byte received.
    """

    message: Any
    records: Sequence[memoryview]
    api_version: int
    correlation_id: int
    request_bytes: int
    response_bytes: int
    latency_ms: float


API_VERSIONS = Api("api_versions", 18, 2, 2)
SASL_HANDSHAKE = Api("sasl_handshake", 17, 1, 1)
SASL_AUTHENTICATE = Api("sasl_authenticate", 36, 0, 2)
METADATA = Api("metadata", 3, 9, 13)
LIST_OFFSETS = Api("list_offsets", 2, 4, 8)
OFFSET_FOR_LEADER_EPOCH = Api("offset_for_leader_epoch", 23, 2, 4)
FETCH = Api("fetch", 1, 12, 16)
PRODUCE = Api("produce", 0, 8, 13)
INIT_PRODUCER_ID = Api("init_producer_id", 22, 3, 5)
FIND_COORDINATOR = Api("find_coordinator", 10, 3, 4)
ADD_PARTITIONS_TO_TXN = Api("add_partitions_to_txn", 24, 1, 3)
END_TXN = Api("end_txn", 26, 1, 5)
OFFSET_COMMIT = Api("offset_commit", 8, 8, 9)
OFFSET_FETCH = Api("offset_fetch", 9, 6, 9)
CREATE_TOPICS = Api("create_topics", 19, 5, 7)
DESCRIBE_CONFIGS = Api("describe_configs", 32, 3, 4)
LIST_TRANSACTIONS = Api("list_transactions", 66, 0, 0, since="3.0")
DESCRIBE_TRANSACTIONS = Api("describe_transactions", 65, 0, 0, since="3.0")
FEATURES = Api("api_versions", 18, 4, 4, since="3.9")
"""ApiVersions for the finalized features of a cluster (KIP-584). The header of its response is never flexible."""


class ApiRequest(ABC, Generic[ResponseT]):
    """A request of one API to a broker: in which versions it is sent, its message, and what its response means."""

    __slots__ = ()
    api: ClassVar[Api]

    def spoken(self) -> Api:
        """The API, with the versions that this request may have."""
        return self.api

    @abstractmethod
    def encode(self, version: int) -> Any:
        """The message of the protocol library."""

    @abstractmethod
    def decode(self, exchange: Exchange, node_id: int) -> ResponseT:
        """The response of a broker. Raises ProtocolError: the response breaks a rule (`response_checks`)."""


@dataclass(frozen=True, slots=True)
class ApiResponse(Generic[T]):
    """One broker's response to a request that is for the broker as a whole.

    Attributes:
        error_code: of Kafka, 0 for none.
        result: says nothing with an error.
        throttle_ms: how long the broker accepts no further requests (KIP-219).
    """

    node_id: int
    error_code: int
    result: T
    throttle_ms: int = 0


class BrokerRequest(ApiRequest[ApiResponse[T]]):
    """A request whose response is an `ApiResponse`."""

    __slots__ = ()

    def decode(self, exchange: Exchange, node_id: int) -> ApiResponse[T]:
        code, result = self.outcome(exchange.message, exchange.api_version)
        return ApiResponse(node_id, int(code), result, exchange.message.throttle_time // timedelta(milliseconds=1))

    @abstractmethod
    def outcome(self, message: Any, version: int) -> tuple[int, T]:
        """The error code and the result of a response. Raises ProtocolError as `decode`."""
