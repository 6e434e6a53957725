"""The requests of producers and their responses in our own types: Produce, and the requests to coordinators.

Not in `kafka.protocol.messages`: to define so many classes takes a few milliseconds, which readers save.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from pyspark_kafka_meta.kafka.protocol.error_codes import OPERATION_NOT_ATTEMPTED
from pyspark_kafka_meta.model import Broker, LeaderHint, ProducerEpoch, TopicPartition, TransactionVersion


@dataclass(frozen=True, slots=True)
class ProducePartition:
    """One partition of a Produce request.

    Attributes:
        topic_id: of the topic that the records are for. None sends the whole request by name (before Produce v13).
        records: one record batch (v2) with a base offset of 0.
    """

    partition: TopicPartition
    topic_id: UUID | None
    records: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """One Produce request to one broker, with each partition at most once.

    Attributes:
        acks: -1 if all in-sync replicas acknowledge the records, 1 if only the leader does.
        timeout_ms: how long the broker may wait for the other replicas.
        transactional_id: of the transaction that the records belong to, or None.
        transaction_version: of that transaction. V1 sends by name (Produce v11).
    """

    partitions: tuple[ProducePartition, ...]
    acks: int
    timeout_ms: int
    transactional_id: str | None = None
    transaction_version: TransactionVersion = TransactionVersion.V2


@dataclass(frozen=True, slots=True)
class ProducedPartition:
    """One partition of a Produce response.

    Attributes:
        base_offset: of the first record of the batch, -1 with an error. Also -1 after DUPLICATE_SEQUENCE_NUMBER.
        error_message: the broker's own words on a refused batch (KIP-467).
        record_errors: index in the batch, and the broker's message, of each record that made it refuse the batch.
    """

    partition: TopicPartition
    error_code: int
    base_offset: int
    error_message: str | None = None
    record_errors: tuple[tuple[int, str | None], ...] = ()
    leader_hint: LeaderHint | None = None


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """One broker's response to a Produce. It holds only requested partitions, each at most once; it may lack some.

    Attributes:
        throttle_ms: how long the broker accepts no further requests (KIP-219).
        latency_ms: from the last byte sent to the last byte received.
    """

    node_id: int
    partitions: tuple[ProducedPartition, ...]
    throttle_ms: int
    request_bytes: int
    latency_ms: float


# --- transactions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    """Which brokers coordinate transactional ids? Any broker responds, before Kafka 3.0 to the first id alone."""

    transactional_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coordinator:
    """`broker` is None with an error."""

    error_code: int
    broker: Broker | None


@dataclass(frozen=True, slots=True)
class CoordinatorResponse:
    """`coordinators` has at least one of the requested transactional ids."""

    node_id: int
    coordinators: Mapping[str, Coordinator]
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class ProducerIdRequest:
    """InitProducerId. Without a transactional id it is for an idempotent producer, and any broker responds. With one,
    its coordinator fences every earlier producer of this id, and aborts the transaction that it left open.

    Attributes:
        transaction_timeout_ms: after which the coordinator aborts a transaction. Brokers ignore it without an id.
    """

    transactional_id: str | None = None
    transaction_timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class ProducerIdResponse:
    """`producer` is `NO_PRODUCER` with an error."""

    node_id: int
    error_code: int
    producer: ProducerEpoch
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class AddPartitionsRequest:
    """AddPartitionsToTxn: before the first Produce to a partition, under `TransactionVersion.V1` alone."""

    transactional_id: str
    producer: ProducerEpoch
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class AddPartitionsResponse:
    """`errors` has the partitions whose error code is not 0; without any, all were added."""

    node_id: int
    errors: Mapping[TopicPartition, int]
    throttle_ms: int = 0

    @property
    def error_code(self) -> int:
        """The reason why none was added: the coordinator does not attempt the partitions beside a refused one."""
        return next((code for code in self.errors.values() if code != OPERATION_NOT_ATTEMPTED), 0)


@dataclass(frozen=True, slots=True)
class EndTransactionRequest:
    """EndTxn: commit or abort the open transaction of a producer. The coordinator responds once it is durable; the
    markers in the partitions follow."""

    transactional_id: str
    producer: ProducerEpoch
    committed: bool
    version: TransactionVersion


@dataclass(frozen=True, slots=True)
class EndTransactionResponse:
    """`producer` is that of the next transaction under V2, `NO_PRODUCER` with an error and under V1."""

    node_id: int
    error_code: int
    producer: ProducerEpoch
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest:
    """The transactions that a broker coordinates and that are in state Ongoing (KIP-664, Kafka 3.0 and later)."""


@dataclass(frozen=True, slots=True)
class ListTransactionsResponse:
    """A broker leaves out ids that the user may not describe."""

    node_id: int
    error_code: int
    transactional_ids: tuple[str, ...]
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest:
    """The transaction of an id, from its coordinator (KIP-664, Kafka 3.0 and later)."""

    transactional_id: str


OPEN_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
"""Read_committed readers wait for the end of these (Kafka's `TransactionState`)."""


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """The last transaction of an id.

    Attributes:
        state: as the broker names it: Ongoing, PrepareCommit ...
        started_ms: ms since 1970 UTC; None if the producer has not begun a transaction yet.
        partitions: of an open transaction, or without its marker yet.
    """

    transactional_id: str
    state: str
    producer: ProducerEpoch
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DescribeTransactionsResponse:
    """`transaction` is None with an error."""

    node_id: int
    error_code: int
    transaction: DescribedTransaction | None
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class TransactionVersionRequest:
    """Which protocol of transactions has the cluster finalized (ApiVersions v4, KIP-584)? Any broker responds."""


@dataclass(frozen=True, slots=True)
class TransactionVersionResponse:
    """V1 if the cluster has not finalized V2."""

    node_id: int
    error_code: int
    version: TransactionVersion
    throttle_ms: int = 0


TransactionRequest: TypeAlias = (
    FindCoordinatorRequest
    | ProducerIdRequest
    | AddPartitionsRequest
    | EndTransactionRequest
    | ListTransactionsRequest
    | DescribeTransactionsRequest
    | TransactionVersionRequest
)
TransactionResponse: TypeAlias = (
    CoordinatorResponse
    | ProducerIdResponse
    | AddPartitionsResponse
    | EndTransactionResponse
    | ListTransactionsResponse
    | DescribeTransactionsResponse
    | TransactionVersionResponse
)
