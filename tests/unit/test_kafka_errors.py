"""What is done about an error code: Kafka's rules for Fetch and ListOffsets, as a table."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.kafka_errors import Action, action_for, describe, refresh_reason
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
OTHERS = {
    -1: Action.RETRY,
    7: Action.RETRY,
    75: Action.RETRY,
    78: Action.RETRY,
    89: Action.RETRY,
    1: Action.DATA_LOSS,
}
ALL_CODES = [code.value for code in ErrorCode if code is not ErrorCode.none]


@pytest.mark.parametrize("code", REFRESHES)
def test_stale_cache_is_refreshed_for_a_reason(code: int) -> None:
    assert action_for(code) is Action.REFRESH
    assert refresh_reason(code) is REFRESHES[code]


@pytest.mark.parametrize("code", OTHERS)
def test_what_is_retried_or_lost(code: int) -> None:
    assert action_for(code) is OTHERS[code]


def test_unknown_leader_epoch_is_retried_and_may_still_be_a_reason() -> None:
    assert refresh_reason(75) is RefreshReason.UNKNOWN_EPOCH


@pytest.mark.parametrize("code", [2, 17, 29, 35, 76, 4711])
def test_what_does_not_heal_fails_and_no_refresh_is_asked_for(code: int) -> None:
    assert action_for(code) is Action.FAIL
    with pytest.raises(ValueError, match=f"error {code}"):
        refresh_reason(code)


def test_every_code_that_is_not_named_here_fails() -> None:
    healing = {code for code in ALL_CODES if action_for(code) is not Action.FAIL}

    assert healing == REFRESHES.keys() | OTHERS.keys()


def test_code_is_described_by_kafkas_own_name_for_it() -> None:
    assert describe(6) == "NOT_LEADER_OR_FOLLOWER (error 6)"
    assert describe(-1) == "UNKNOWN_SERVER_ERROR (error -1)"
    assert describe(4711) == "error 4711"
