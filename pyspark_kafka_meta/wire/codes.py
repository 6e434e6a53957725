"""Kafka's error codes, and what a reader does about each: one table.

Names are those of Kafka's `Errors`; the actions are those of its consumer for Fetch (`FetchCollector`) and ListOffsets
(`OffsetFetcherUtils`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from pyspark_kafka_meta.errors import AuthorizationError, BrokerError
from pyspark_kafka_meta.metadata.events import RefreshReason

UNKNOWN_SERVER_ERROR = -1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
REQUEST_TIMED_OUT = 7
TOPIC_AUTHORIZATION_FAILED = 29
UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34
UNKNOWN_LEADER_EPOCH = 75
"""Retried, because a broker may lag behind its own election. Should it not pass, the epoch that was sent is wrong."""
UNKNOWN_TOPIC_ID = 100
INCONSISTENT_TOPIC_ID = 103


class Action(Enum):
    """What to do about an error code."""

    RETRY = auto()
    """Ask the same broker again after a pause: something went wrong inside it, it lags behind, or asks for patience."""
    REFRESH = auto()
    """The cache is out of date: refresh it, then ask whom it names."""
    DATA_LOSS = auto()
    """The offset is outside the log: records may be gone."""
    FAIL = auto()
    """Asking again does not help."""


class _Rule(NamedTuple):
    name: str
    action: Action = Action.FAIL
    reason: RefreshReason | None = None


_RULES = {
    UNKNOWN_SERVER_ERROR: _Rule("UNKNOWN_SERVER_ERROR", Action.RETRY),
    1: _Rule("OFFSET_OUT_OF_RANGE", Action.DATA_LOSS),
    CORRUPT_MESSAGE: _Rule("CORRUPT_MESSAGE"),
    UNKNOWN_TOPIC_OR_PARTITION: _Rule("UNKNOWN_TOPIC_OR_PARTITION", Action.REFRESH, RefreshReason.UNKNOWN_TOPIC),
    LEADER_NOT_AVAILABLE: _Rule("LEADER_NOT_AVAILABLE", Action.REFRESH, RefreshReason.NO_LEADER),
    6: _Rule("NOT_LEADER_OR_FOLLOWER", Action.REFRESH, RefreshReason.NOT_LEADER),
    REQUEST_TIMED_OUT: _Rule("REQUEST_TIMED_OUT", Action.RETRY),
    9: _Rule("REPLICA_NOT_AVAILABLE", Action.REFRESH, RefreshReason.NOT_LEADER),
    10: _Rule("MESSAGE_TOO_LARGE"),
    17: _Rule("INVALID_TOPIC_EXCEPTION"),
    TOPIC_AUTHORIZATION_FAILED: _Rule("TOPIC_AUTHORIZATION_FAILED"),
    31: _Rule("CLUSTER_AUTHORIZATION_FAILED"),
    UNSUPPORTED_SASL_MECHANISM: _Rule("UNSUPPORTED_SASL_MECHANISM"),
    ILLEGAL_SASL_STATE: _Rule("ILLEGAL_SASL_STATE"),
    35: _Rule("UNSUPPORTED_VERSION"),
    42: _Rule("INVALID_REQUEST"),
    43: _Rule("UNSUPPORTED_FOR_MESSAGE_FORMAT"),
    54: _Rule("SECURITY_DISABLED"),
    56: _Rule("KAFKA_STORAGE_ERROR", Action.REFRESH, RefreshReason.NOT_LEADER),
    58: _Rule("SASL_AUTHENTICATION_FAILED"),
    70: _Rule("FETCH_SESSION_ID_NOT_FOUND"),
    71: _Rule("INVALID_FETCH_SESSION_EPOCH"),
    72: _Rule("LISTENER_NOT_FOUND", Action.REFRESH, RefreshReason.NO_LEADER),
    74: _Rule("FENCED_LEADER_EPOCH", Action.REFRESH, RefreshReason.FENCED_EPOCH),
    UNKNOWN_LEADER_EPOCH: _Rule("UNKNOWN_LEADER_EPOCH", Action.RETRY, RefreshReason.UNKNOWN_EPOCH),
    76: _Rule("UNSUPPORTED_COMPRESSION_TYPE"),
    # The leader is the right one, and waits for its followers after the election (KIP-207); Kafka's exception for it is
    # no `InvalidMetadataException` either.
    78: _Rule("OFFSET_NOT_AVAILABLE", Action.RETRY),
    89: _Rule("THROTTLING_QUOTA_EXCEEDED", Action.RETRY),
    UNKNOWN_TOPIC_ID: _Rule("UNKNOWN_TOPIC_ID", Action.REFRESH, RefreshReason.UNKNOWN_TOPIC_ID),
    INCONSISTENT_TOPIC_ID: _Rule("INCONSISTENT_TOPIC_ID", Action.REFRESH, RefreshReason.UNKNOWN_TOPIC_ID),
    106: _Rule("FETCH_SESSION_TOPIC_ID_ERROR"),
}


def action_for(code: int) -> Action:
    """What to do about `code`. A code that is not in the table will not heal by itself."""
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
    """The code for a message: "NOT_LEADER_OR_FOLLOWER (error 6)", or "error 4711" for one that is not in the table."""
    return f"{_RULES[code].name} (error {code})" if code in _RULES else f"error {code}"


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
