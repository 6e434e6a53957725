"""Kafka's error codes, and what a reader does about each: one table.

Names are those of Kafka's `Errors`; the actions are those of its consumer for Fetch (`FetchCollector`) and ListOffsets
(`OffsetFetcherUtils`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import AuthorizationError, BrokerError
from pyspark_kafka_meta.model import RefreshReason

UNKNOWN_SERVER_ERROR = ErrorCode.unknown_server_error.value
CORRUPT_MESSAGE = ErrorCode.corrupt_message.value
UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.unknown_topic_or_partition.value
LEADER_NOT_AVAILABLE = ErrorCode.leader_not_available.value
REQUEST_TIMED_OUT = ErrorCode.request_timed_out.value
TOPIC_AUTHORIZATION_FAILED = ErrorCode.topic_authorization_failed.value
UNSUPPORTED_SASL_MECHANISM = ErrorCode.unsupported_sasl_mechanism.value
ILLEGAL_SASL_STATE = ErrorCode.illegal_sasl_state.value
UNKNOWN_LEADER_EPOCH = ErrorCode.unknown_leader_epoch.value
UNKNOWN_TOPIC_ID = ErrorCode.unknown_topic_id.value
INCONSISTENT_TOPIC_ID = ErrorCode.inconsistent_topic_id.value


class Action(Enum):
    """What to do about an error code."""

    RETRY = auto()
    """Ask the same broker again after a pause: something went wrong inside it, it lags behind, or asks for patience."""
    REFRESH = auto()
    """The cache is out of date: refresh it, then ask the leader that it names."""
    DATA_LOSS = auto()
    """The offset is outside the log: records may be gone."""
    FAIL = auto()
    """Asking again does not help."""


class _Rule(NamedTuple):
    action: Action
    reason: RefreshReason | None = None


_RULES: dict[int, _Rule] = {
    ErrorCode.unknown_server_error: _Rule(Action.RETRY),
    ErrorCode.offset_out_of_range: _Rule(Action.DATA_LOSS),
    ErrorCode.unknown_topic_or_partition: _Rule(Action.REFRESH, RefreshReason.UNKNOWN_TOPIC),
    ErrorCode.leader_not_available: _Rule(Action.REFRESH, RefreshReason.NO_LEADER),
    ErrorCode.not_leader_or_follower: _Rule(Action.REFRESH, RefreshReason.NOT_LEADER),
    ErrorCode.request_timed_out: _Rule(Action.RETRY),
    ErrorCode.replica_not_available: _Rule(Action.REFRESH, RefreshReason.NOT_LEADER),
    ErrorCode.kafka_storage_error: _Rule(Action.REFRESH, RefreshReason.NOT_LEADER),
    ErrorCode.listener_not_found: _Rule(Action.REFRESH, RefreshReason.NO_LEADER),
    ErrorCode.fenced_leader_epoch: _Rule(Action.REFRESH, RefreshReason.FENCED_EPOCH),
    # A broker may lag behind its own election. Should it not pass, the epoch that was sent is wrong.
    ErrorCode.unknown_leader_epoch: _Rule(Action.RETRY, RefreshReason.UNKNOWN_EPOCH),
    # The leader is the right one, and waits for its followers after the election (KIP-207); Kafka's exception for it is
    # no `InvalidMetadataException` either.
    ErrorCode.offset_not_available: _Rule(Action.RETRY),
    ErrorCode.throttling_quota_exceeded: _Rule(Action.RETRY),
    ErrorCode.unknown_topic_id: _Rule(Action.REFRESH, RefreshReason.UNKNOWN_TOPIC_ID),
    ErrorCode.inconsistent_topic_id: _Rule(Action.REFRESH, RefreshReason.UNKNOWN_TOPIC_ID),
}
"""All others fail: they do not heal by themselves."""
_NAMES: dict[int, str] = {code: code.name.upper() for code in ErrorCode if code is not ErrorCode.none}


def action_for(code: int) -> Action:
    """What to do about `code`."""
    return _RULES[code].action if code in _RULES else Action.FAIL


def refresh_reason(code: int) -> RefreshReason:
    """Why a refresh is asked for after `code`, for each that calls for one and for `UNKNOWN_LEADER_EPOCH`.

    Raises:
        ValueError: no refresh helps against this code.
    """
    reason = _RULES[code].reason if code in _RULES else None
    if reason is None:
        raise ValueError(f"{describe(code)} is no reason to refresh metadata")
    return reason


def describe(code: int) -> str:
    """The code for a message: "NOT_LEADER_OR_FOLLOWER (error 6)", or "error 4711" for one that Kafka has not."""
    return f"{_NAMES[code]} (error {code})" if code in _NAMES else f"error {code}"


def refusal(what: str, code: int, topic: str, operation: str) -> BrokerError:
    """The error to raise for `code`, which asking again does not heal.

    Args:
        what: begins the sentence: "topic t cannot be read".
        operation: the ACL operation that the request needs on the topic.
    """
    if code == TOPIC_AUTHORIZATION_FAILED:
        return AuthorizationError(
            f"{what}: {describe(code)}: no ACL allows this user {operation} on topic {topic}, or the topic does not "
            "exist: allow it READ, which includes DESCRIBE",
            code,
        )
    return BrokerError(f"{what}: {describe(code)}", code)
