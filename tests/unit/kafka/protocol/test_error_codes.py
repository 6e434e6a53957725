"""The action after each error code, for reads and writes, beside the facts of Kafka's exceptions."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import AuthorizationError, BrokerError, FencedError, KafkaMetaError
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    NOT_OPEN,
    Action,
    coordinator_may_recover,
    describe,
    read_action,
    refresh_reason,
    transaction_error,
    write_action,
)
from pyspark_kafka_meta.model import RefreshReason

REFRESHES = {
    3: RefreshReason.UNKNOWN_TOPIC,
    5: RefreshReason.NO_LEADER,
    6: RefreshReason.NOT_LEADER,
    9: RefreshReason.NOT_LEADER,
    56: RefreshReason.NOT_LEADER,
    72: RefreshReason.NO_LEADER,
    74: RefreshReason.FENCED_EPOCH,
    100: RefreshReason.UNKNOWN_TOPIC_ID,
    103: RefreshReason.UNKNOWN_TOPIC_ID,
}
OTHER_READS = {
    -1: Action.RETRY,
    7: Action.RETRY,
    75: Action.RETRY,
    78: Action.RETRY,
    89: Action.RETRY,
    1: Action.DATA_LOSS,
}
INVALID_METADATA = {3, 5, 6, 9, 13, 56, 72, 74, 80, 83, 84, 100, 103}
"""Codes whose exception is an `InvalidMetadataException` in Kafka 4.4.0. The exceptions of all codes that are
`ErrorCode.retriable` are a `RetriableException`."""
OTHER_WRITES = {
    10: Action.SPLIT,
    18: Action.SPLIT,
    45: Action.SEQUENCE,
    46: Action.DUPLICATE,
    47: Action.FENCED,
    49: Action.FENCED,
    59: Action.SEQUENCE,
    90: Action.FENCED,
}
PRODUCE = {2, 3, 6, 7, 10, 17, 18, 19, 20, 21, 29, 31, 43, 45, 46, 47, 48, 49, 51, 53, 56, 59, 87, 89, 90, 100, 120}
"""Codes that a producer can get in the response to a Produce request or a request of a transaction."""
CODES = [code.value for code in ErrorCode if code is not ErrorCode.none]


@pytest.mark.parametrize("code", REFRESHES)
def test_stale_cache_is_refreshed_for_a_reason(code: int) -> None:
    assert read_action(code) is write_action(code) is Action.REFRESH
    assert refresh_reason(code) is REFRESHES[code]


def test_every_other_read_retries_or_is_data_loss_or_fails() -> None:
    actions = {code: read_action(code) for code in CODES if code not in REFRESHES}

    assert actions == {code: OTHER_READS.get(code, Action.FAIL) for code in actions}


def write_action_of_kafka(code: int) -> Action:
    if code in OTHER_WRITES:
        return OTHER_WRITES[code]
    if code in INVALID_METADATA:
        return Action.REFRESH
    return Action.RETRY if ErrorCode(code).retriable else Action.FAIL


def test_write_is_retried_as_in_kafkas_producer_and_fails_after_every_other_code() -> None:
    known = PRODUCE | REFRESHES.keys() | OTHER_READS.keys()
    expected = {code: write_action_of_kafka(code) if code in known else Action.FAIL for code in {*CODES, *known}}
    assert {code: write_action(code) for code in expected} == expected


def test_unknown_leader_epoch_is_retried_and_may_still_be_a_reason() -> None:
    assert refresh_reason(75) is RefreshReason.UNKNOWN_EPOCH


@pytest.mark.parametrize("code", [2, 17, 29, 35, 76, 4711])
def test_code_that_fails_is_no_reason_for_a_refresh(code: int) -> None:
    assert read_action(code) is Action.FAIL
    with pytest.raises(ValueError, match=f"error {code}"):
        refresh_reason(code)


def test_code_is_described_by_its_name_in_kafka() -> None:
    assert describe(6) == "NOT_LEADER_OR_FOLLOWER (error 6)"
    assert describe(-1) == "UNKNOWN_SERVER_ERROR (error -1)"
    assert describe(4711) == "error 4711"


@pytest.mark.parametrize("code", sorted({3, 7, 14, 15, 16, 51} | NOT_OPEN | {31, 42, 50, 53, 59, 105, 120}))
def test_request_of_a_transaction_is_repeated_as_in_kafkas_producer(code: int) -> None:
    """TransactionManager's handlers retry all exceptions that are a RetriableException."""
    assert coordinator_may_recover(code) is ErrorCode(code).retriable


@pytest.mark.parametrize("code", sorted(NOT_OPEN))
def test_codes_of_a_transaction_that_is_not_open_are_not_retriable(code: int) -> None:
    assert not coordinator_may_recover(code)


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (47, FencedError, "or another query, uses transactional id i/0/0 by now"),
        (90, FencedError, "give each query a kafka.transactional.id of its own"),
        (90, FencedError, "with a new id, a batch that was under way may be repeated, also its rows that are visible"),
        (53, AuthorizationError, "allow this user WRITE on all transactional ids that begin with"),
        (29, AuthorizationError, "allow it WRITE, which includes DESCRIBE"),
        (48, BrokerError, "INVALID_TXN_STATE"),
    ],
)
def test_error_of_a_transaction_says_what_to_do(code: int, kind: type[KafkaMetaError], text: str) -> None:
    error = transaction_error("i/0/0 cannot write", code, "i/0/0", "t")

    assert type(error) is kind
    assert str(error).startswith(f"i/0/0 cannot write: {describe(code)}: ")
    assert text in str(error)
