"""Kafka's error codes and the action that each one calls for: one table for reads, writes and metadata.

Names are those of Kafka's `Errors`. Reads follow Kafka's consumer for Fetch (`FetchCollector`) and ListOffsets
(`OffsetFetcherUtils`), writes its producer (`Sender`, `TransactionManager.canRetry`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import AuthorizationError, BrokerError, FencedError, KafkaMetaError, UnknownTopicError
from pyspark_kafka_meta.model import RefreshReason, TopicPartition

UNKNOWN_SERVER_ERROR = ErrorCode.unknown_server_error.value
CORRUPT_MESSAGE = ErrorCode.corrupt_message.value
UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.unknown_topic_or_partition.value
LEADER_NOT_AVAILABLE = ErrorCode.leader_not_available.value
NOT_LEADER_OR_FOLLOWER = ErrorCode.not_leader_or_follower.value
NOT_ENOUGH_REPLICAS = ErrorCode.not_enough_replicas.value
INVALID_TOPIC_EXCEPTION = ErrorCode.invalid_topic_exception.value
TOPIC_AUTHORIZATION_FAILED = ErrorCode.topic_authorization_failed.value
CLUSTER_AUTHORIZATION_FAILED = ErrorCode.cluster_authorization_failed.value
UNSUPPORTED_SASL_MECHANISM = ErrorCode.unsupported_sasl_mechanism.value
ILLEGAL_SASL_STATE = ErrorCode.illegal_sasl_state.value
FENCED_LEADER_EPOCH = ErrorCode.fenced_leader_epoch.value
UNKNOWN_LEADER_EPOCH = ErrorCode.unknown_leader_epoch.value
UNKNOWN_TOPIC_ID = ErrorCode.unknown_topic_id.value
INCONSISTENT_TOPIC_ID = ErrorCode.inconsistent_topic_id.value
OUT_OF_ORDER_SEQUENCE_NUMBER = ErrorCode.out_of_order_sequence_number.value
CONCURRENT_TRANSACTIONS = ErrorCode.concurrent_transactions.value
INVALID_TIMESTAMP = ErrorCode.invalid_timestamp.value
INVALID_TRANSACTION_TIMEOUT = ErrorCode.invalid_transaction_timeout.value
OPERATION_NOT_ATTEMPTED = ErrorCode.operation_not_attempted.value
TRANSACTIONAL_ID_NOT_FOUND = ErrorCode.transactional_id_not_found.value
REBOOTSTRAP_REQUIRED = ErrorCode.rebootstrap_required.value
COORDINATOR_NOT_AVAILABLE = ErrorCode.coordinator_not_available.value
NOT_CONTROLLER = ErrorCode.not_controller.value
TOPIC_ALREADY_EXISTS = ErrorCode.topic_already_exists.value

COORDINATOR_UNAVAILABLE = frozenset(
    code.value
    for code in (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator)
)
"""The coordinator of a group or of a transactional id is being elected, loaded or moved: retriable."""
NOT_OPEN = frozenset(
    code.value
    for code in (
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.producer_fenced,
    )
)
"""The coordinator has no open transaction of this producer: it has ended, or the id was initialised again."""
TOPIC_MISSING = frozenset(
    {UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID}
)
"""Of a topic in a Metadata response: this client cannot see the topic. After other errors the topic still exists."""


class Action(Enum):
    """The action that an error code calls for."""

    RETRY = auto()
    """Ask the same broker again after a backoff: it failed, lags behind or throttles."""
    REFRESH = auto()
    """The cache is stale: refresh it, then ask the leader that it names."""
    DATA_LOSS = auto()
    """Read: the offset is outside the log, records may be lost."""
    DUPLICATE = auto()
    """Write: the log holds the records already, the write succeeded."""
    FENCED = auto()
    """Write: the producer's epoch is outdated, and the producer must not write any more."""
    SEQUENCE = auto()
    """Write: the batch does not follow the last batch of this producer that the log holds."""
    SPLIT = auto()
    """Write: the record batch is larger than the topic allows, smaller batches may fit."""
    FAIL = auto()
    """A retry does not help."""


class _Actions(NamedTuple):
    read: Action
    write: Action
    reason: RefreshReason | None = None


def _refresh(reason: RefreshReason) -> _Actions:
    return _Actions(Action.REFRESH, Action.REFRESH, reason)


_ACTIONS: dict[int, _Actions] = {
    ErrorCode.unknown_server_error: _Actions(Action.RETRY, Action.FAIL),
    ErrorCode.offset_out_of_range: _Actions(Action.DATA_LOSS, Action.FAIL),
    ErrorCode.corrupt_message: _Actions(Action.FAIL, Action.RETRY),
    ErrorCode.unknown_topic_or_partition: _refresh(RefreshReason.UNKNOWN_TOPIC),
    ErrorCode.leader_not_available: _refresh(RefreshReason.NO_LEADER),
    ErrorCode.not_leader_or_follower: _refresh(RefreshReason.NOT_LEADER),
    ErrorCode.request_timed_out: _Actions(Action.RETRY, Action.RETRY),
    ErrorCode.replica_not_available: _refresh(RefreshReason.NOT_LEADER),
    ErrorCode.not_enough_replicas: _Actions(Action.FAIL, Action.RETRY),
    ErrorCode.not_enough_replicas_after_append: _Actions(Action.FAIL, Action.RETRY),
    ErrorCode.duplicate_sequence_number: _Actions(Action.FAIL, Action.DUPLICATE),
    ErrorCode.out_of_order_sequence_number: _Actions(Action.FAIL, Action.SEQUENCE),
    ErrorCode.unknown_producer_id: _Actions(Action.FAIL, Action.SEQUENCE),
    ErrorCode.message_too_large: _Actions(Action.FAIL, Action.SPLIT),
    ErrorCode.record_list_too_large: _Actions(Action.FAIL, Action.SPLIT),
    # A Produce with an outdated epoch gets this code; only coordinators name PRODUCER_FENCED (KIP-588).
    ErrorCode.invalid_producer_epoch: _Actions(Action.FAIL, Action.FENCED),
    # Its coordinator has forgotten it (transactional.id.expiration.ms), or has given its id another producer.
    ErrorCode.invalid_producer_id_mapping: _Actions(Action.FAIL, Action.FENCED),
    ErrorCode.concurrent_transactions: _Actions(Action.FAIL, Action.RETRY),
    ErrorCode.kafka_storage_error: _refresh(RefreshReason.NOT_LEADER),
    ErrorCode.listener_not_found: _refresh(RefreshReason.NO_LEADER),
    ErrorCode.fenced_leader_epoch: _refresh(RefreshReason.FENCED_EPOCH),
    # A broker may lag behind its own election. If the error persists, the cached epoch is wrong.
    ErrorCode.unknown_leader_epoch: _Actions(Action.RETRY, Action.RETRY, RefreshReason.UNKNOWN_EPOCH),
    # The leader is known, and waits for its followers after the election (KIP-207).
    ErrorCode.offset_not_available: _Actions(Action.RETRY, Action.RETRY),
    ErrorCode.throttling_quota_exceeded: _Actions(Action.RETRY, Action.RETRY),
    ErrorCode.producer_fenced: _Actions(Action.FAIL, Action.FENCED),
    ErrorCode.unknown_topic_id: _refresh(RefreshReason.UNKNOWN_TOPIC_ID),
    ErrorCode.inconsistent_topic_id: _refresh(RefreshReason.UNKNOWN_TOPIC_ID),
}
_FAIL = _Actions(Action.FAIL, Action.FAIL)
"""The actions of every other code."""
_FORBIDDEN = (ErrorCode.cluster_authorization_failed, ErrorCode.transactional_id_authorization_failed)
_REPEAT = "nothing is left to do if Spark's next attempt of the task succeeds, which has another producer"
_NEXT_STEPS: dict[int, str] = {
    ErrorCode.unknown_server_error: "the log of the broker says why",
    ErrorCode.invalid_topic_exception: "choose another topic: Kafka does not allow the name, or keeps it for itself",
    ErrorCode.cluster_authorization_failed: "allow this user IDEMPOTENT_WRITE on the cluster",
    ErrorCode.invalid_timestamp: "correct the column timestamp, or the limits message.timestamp.* of the topic",
    ErrorCode.unsupported_for_message_format: "raise message.format.version of the topic",
    ErrorCode.policy_violation: "keep to the policy of the brokers",
    ErrorCode.out_of_order_sequence_number: _REPEAT,
    ErrorCode.duplicate_sequence_number: _REPEAT,
    ErrorCode.invalid_producer_epoch: _REPEAT,
    ErrorCode.invalid_txn_state: f"its transaction has ended: {_REPEAT}",
    ErrorCode.transactional_id_authorization_failed: "allow this user WRITE on all transactional ids that begin with "
    "kafka.transactional.id",
    ErrorCode.unknown_producer_id: _REPEAT,
    ErrorCode.unsupported_compression_type: "choose another kafka.compression.type",
    ErrorCode.invalid_record: "correct or filter such rows",
    ErrorCode.producer_fenced: _REPEAT,
    ErrorCode.transaction_abortable: _REPEAT,
}
_NAMES: dict[int, str] = {code: code.name.upper() for code in ErrorCode if code is not ErrorCode.none}


def read_action(code: int) -> Action:
    """The action after `code` in the response to a Fetch, ListOffsets or Metadata request."""
    return _ACTIONS.get(code, _FAIL).read


def write_action(code: int) -> Action:
    """The action after `code` in the response to a Produce request or a request of a transaction."""
    return _ACTIONS.get(code, _FAIL).write


def coordinator_may_recover(code: int) -> bool:
    """Whether a coordinator may accept a request of a transaction, or the next coordinator, that failed with `code`."""
    return code in COORDINATOR_UNAVAILABLE or write_action(code) in (Action.RETRY, Action.REFRESH)


def refresh_reason(code: int) -> RefreshReason:
    """The reason of the refresh after `code`: for every `Action.REFRESH` and for `UNKNOWN_LEADER_EPOCH`. Raises
    ValueError: a refresh does not help against this code."""
    reason = _ACTIONS.get(code, _FAIL).reason
    if reason is None:
        raise ValueError(f"{describe(code)} is no reason to refresh metadata")
    return reason


def describe(code: int) -> str:
    """The code for a message: "NOT_LEADER_OR_FOLLOWER (error 6)", or "error 4711" if Kafka has no such code."""
    return f"{_NAMES[code]} (error {code})" if code in _NAMES else f"error {code}"


def broker_error(
    problem: str, code: int, topic: str, operation: str, said: str = "", next_step: str = ""
) -> BrokerError:
    """The exception for a `code` that a retry does not help against.

    Args:
        problem: begins the sentence: "topic t cannot be read".
        operation: ACL operation on the topic that the request needs.
        said: the broker's own words.
        next_step: by default what helps against the code.
    """
    if code == TOPIC_AUTHORIZATION_FAILED:
        return AuthorizationError(
            f"{problem}: {describe(code)}: no ACL allows this user {operation} on topic {topic}, or the topic does not "
            f"exist: allow it {'WRITE' if operation == 'WRITE' else 'READ'}, which includes DESCRIBE",
            code,
        )
    kind = AuthorizationError if code in _FORBIDDEN else BrokerError
    next_step = next_step or _NEXT_STEPS.get(code, "" if code in _ACTIONS else "the log of the broker says more")
    return kind(": ".join(filter(None, (problem, describe(code), said, next_step))), code)


def unknown_partition_error(partition: TopicPartition) -> UnknownTopicError:
    """The exception for a partition to write that brokers do not know any more."""
    return UnknownTopicError(f"{partition} does not exist any more: create the topic again, then write again")


def transaction_error(problem: str, code: int, transactional_id: str, topic: str = "") -> KafkaMetaError:
    """The exception for a `code` in the response to a request of a transaction that a retry does not help against.

    Args:
        problem: begins the sentence: "transactional id i cannot be used".
        topic: that the request adds to the transaction, if any.
    """
    if write_action(code) is Action.FENCED:
        return FencedError(
            f"{problem}: {describe(code)}: another attempt of this task, or another query, uses transactional id "
            f"{transactional_id} by now, or its transaction timed out: give each query a kafka.transactional.id of its "
            "own; with a new id, a batch that was under way may be repeated, also its rows that are visible"
        )
    return broker_error(problem, code, topic, "WRITE")
