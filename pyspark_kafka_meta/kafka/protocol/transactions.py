"""The requests to coordinators, for producer ids and transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_kafka_meta.kafka.protocol.apis import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FEATURES,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    Api,
    BrokerRequest,
)
from pyspark_kafka_meta.kafka.protocol.error_codes import OPERATION_NOT_ATTEMPTED
from pyspark_kafka_meta.kafka.protocol.frame_codec import milliseconds, request_schema
from pyspark_kafka_meta.kafka.protocol.response_checks import broker, check, grouped, ms, unique
from pyspark_kafka_meta.model import NO_PRODUCER, Broker, ProducerIdAndEpoch, TopicPartition, TransactionVersion

GROUP_KEY, TRANSACTION_KEY = 0, 1
"""Types of the keys of FindCoordinator (Kafka `CoordinatorType`)."""
SEVERAL_KEYS_SINCE = 4
"""First version of FindCoordinator with several keys (KIP-699)."""
NEW_EPOCH_SINCE = 5
"""First version of EndTxn that raises the epoch: `TransactionVersion.V2` (KIP-890)."""
ONGOING = "Ongoing"
"""Kafka `TransactionState.ONGOING`."""
ENDING_STATES = frozenset({"PrepareCommit", "PrepareAbort"})
"""The end is decided, and markers are being written (Kafka's `TransactionState`)."""
OPEN_STATES = frozenset({ONGOING, *ENDING_STATES})
"""Read_committed readers wait for the end of these."""
FEATURE = "transaction.version"
SOFTWARE = "pyspark-kafka-meta"


@dataclass(frozen=True, slots=True)
class Coordinator:
    """`broker` is None with an error."""

    error_code: int
    broker: Broker | None


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest(BrokerRequest[Mapping[str, Coordinator]]):
    """Which brokers coordinate transactional ids or consumer groups? Any broker responds, before Kafka 3.0 to the first
    key alone. The result has at least one of the keys, each with an error code of its own.

    Attributes:
        keys: all transactional ids, or all groups.
        key_type: `TRANSACTION_KEY` or `GROUP_KEY`.
    """

    api = FIND_COORDINATOR
    keys: tuple[str, ...]
    key_type: int = TRANSACTION_KEY

    def encode(self, version: int) -> Any:
        several = version >= SEVERAL_KEYS_SINCE
        names = {"coordinator_keys": self.keys} if several else {"key": self.keys[0]}
        return request_schema(FIND_COORDINATOR, version).FindCoordinatorRequest(key_type=self.key_type, **names)

    def outcome(self, message: Any, version: int) -> tuple[int, dict[str, Coordinator]]:
        if version >= SEVERAL_KEYS_SINCE:
            found = unique(((str(entry.key), entry) for entry in message.coordinators), lambda pair: pair[0], "key")
        else:
            found = ((self.keys[0], message),)
        keys = {key for key, _ in found}
        check(bool(keys) and keys <= set(self.keys), "no or unrequested coordinators")
        return 0, {
            key: Coordinator(int(entry.error_code), None if entry.error_code else broker(entry)) for key, entry in found
        }


@dataclass(frozen=True, slots=True)
class ProducerIdRequest(BrokerRequest[ProducerIdAndEpoch]):
    """InitProducerId. Without a transactional id it is for an idempotent producer, and any broker responds. With one,
    its coordinator fences every earlier producer of this id, and aborts the transaction that it left open. The result
    is `NO_PRODUCER` with an error.

    Attributes:
        transaction_timeout_ms: after which the coordinator aborts a transaction. Brokers ignore it without an id.
    """

    api = INIT_PRODUCER_ID
    transactional_id: str | None = None
    transaction_timeout_ms: int = 0

    def encode(self, version: int) -> Any:
        return request_schema(INIT_PRODUCER_ID, version).InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout=milliseconds(self.transaction_timeout_ms)
        )

    def outcome(self, message: Any, version: int) -> tuple[int, ProducerIdAndEpoch]:
        return message.error_code, _producer(message, message.error_code)


def _producer(message: Any, code: int) -> ProducerIdAndEpoch:
    if code:
        return NO_PRODUCER
    check(min(message.producer_id, message.producer_epoch) >= 0, "a negative producer id or epoch")
    return ProducerIdAndEpoch(int(message.producer_id), int(message.producer_epoch))


@dataclass(frozen=True, slots=True)
class AddPartitionsRequest(BrokerRequest[Mapping[TopicPartition, int]]):
    """AddPartitionsToTxn: before the first Produce to a partition, under `TransactionVersion.V1` alone. The result has
    the partitions whose error code is not 0; without any, all were added. The error code is the reason: the coordinator
    does not attempt the partitions beside a refused one."""

    api = ADD_PARTITIONS_TO_TXN
    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]

    def encode(self, version: int) -> Any:
        schema = request_schema(ADD_PARTITIONS_TO_TXN, version)
        return schema.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer.producer_id,
            v3_and_below_producer_epoch=self.producer.epoch,
            v3_and_below_topics=tuple(
                schema.AddPartitionsToTxnTopic(name=topic, partitions=tuple(member.partition for member in members))
                for topic, members in grouped(self.partitions, lambda partition: partition.topic)
            ),
        )

    def outcome(self, message: Any, version: int) -> tuple[int, dict[TopicPartition, int]]:
        codes = [
            (TopicPartition(str(topic.name), int(entry.partition_index)), int(entry.partition_error_code))
            for topic in message.results_by_topic_v3_and_below
            for entry in topic.results_by_partition
        ]
        responded = {partition for partition, _ in unique(codes, lambda pair: pair[0], "partition")}
        check(responded == set(self.partitions), "other partitions than requested")
        errors = {partition: code for partition, code in codes if code}
        return next((code for code in errors.values() if code != OPERATION_NOT_ATTEMPTED), 0), errors


@dataclass(frozen=True, slots=True)
class EndTransactionRequest(BrokerRequest[ProducerIdAndEpoch]):
    """EndTxn: commit or abort the open transaction of a producer. The coordinator responds once it is durable; the
    markers in the partitions follow. The result is the producer of the next transaction under V2, `NO_PRODUCER` with an
    error and under V1."""

    api = END_TXN
    transactional_id: str
    producer: ProducerIdAndEpoch
    committed: bool
    version: TransactionVersion

    def spoken(self) -> Api:
        if self.version is TransactionVersion.V1:
            return END_TXN._replace(max_version=NEW_EPOCH_SINCE - 1)
        return END_TXN._replace(min_version=NEW_EPOCH_SINCE, since="4.0")

    def encode(self, version: int) -> Any:
        return request_schema(END_TXN, version).EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            committed=self.committed,
        )

    def outcome(self, message: Any, version: int) -> tuple[int, ProducerIdAndEpoch]:
        is_new_epoch = version >= NEW_EPOCH_SINCE
        return message.error_code, _producer(message, message.error_code) if is_new_epoch else NO_PRODUCER


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest(BrokerRequest[tuple[str, ...]]):
    """The ids of the transactions that a broker coordinates and that are in state Ongoing (KIP-664, Kafka 3.0 and
    later). A broker leaves out ids that the user may not describe."""

    api = LIST_TRANSACTIONS

    def encode(self, version: int) -> Any:
        return request_schema(LIST_TRANSACTIONS, version).ListTransactionsRequest(state_filters=(ONGOING,))

    def outcome(self, message: Any, version: int) -> tuple[int, tuple[str, ...]]:
        ids = tuple(str(entry.transactional_id) for entry in message.transaction_states)
        return message.error_code, unique(ids, str, "transactional id")


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
    producer: ProducerIdAndEpoch
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest(BrokerRequest[DescribedTransaction | None]):
    """The transaction of an id, from its coordinator (KIP-664, Kafka 3.0 and later). The result is None with an
    error."""

    api = DESCRIBE_TRANSACTIONS
    transactional_id: str

    def encode(self, version: int) -> Any:
        schema = request_schema(DESCRIBE_TRANSACTIONS, version)
        return schema.DescribeTransactionsRequest(transactional_ids=(self.transactional_id,))

    def outcome(self, message: Any, version: int) -> tuple[int, DescribedTransaction | None]:
        found = [entry.transactional_id for entry in message.transaction_states]
        check(found == [self.transactional_id], "no or unrequested transactions")
        (entry,) = message.transaction_states
        return entry.error_code, None if entry.error_code else _described(entry)


def _described(entry: Any) -> DescribedTransaction:
    check(all(min(topic.partitions, default=0) >= 0 for topic in entry.topics), "a negative partition number")
    return DescribedTransaction(
        transactional_id=str(entry.transactional_id),
        state=str(entry.transaction_state),
        producer=_producer(entry, 0),
        timeout_ms=ms(entry.transaction_timeout),
        started_ms=None if entry.transaction_start_time < 0 else int(entry.transaction_start_time),
        partitions=tuple(
            TopicPartition(str(topic.topic), int(number)) for topic in entry.topics for number in topic.partitions
        ),
    )


@dataclass(frozen=True, slots=True)
class TransactionVersionRequest(BrokerRequest[TransactionVersion]):
    """Which protocol of transactions has the cluster finalized (ApiVersions v4, KIP-584)? Any broker responds. The
    result is V1 if the cluster has not finalized V2."""

    api = FEATURES

    def encode(self, version: int) -> Any:
        schema = request_schema(FEATURES, version)
        return schema.ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version="unknown")

    def outcome(self, message: Any, version: int) -> tuple[int, TransactionVersion]:
        levels = {str(feature.name): int(feature.max_version_level) for feature in message.finalized_features}
        is_v2 = levels.get(FEATURE, 0) >= TransactionVersion.V2
        return message.error_code, TransactionVersion.V2 if is_v2 else TransactionVersion.V1
