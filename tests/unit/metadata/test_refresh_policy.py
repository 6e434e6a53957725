"""When to ask again and whom: Kafka's MetadataTest for the timing, KIP-580 for the backoff, KIP-899 for the choice."""

from __future__ import annotations

import random

import pytest

from pyspark_kafka_meta.metadata.refresh_events import RefreshCause
from pyspark_kafka_meta.metadata.refresh_policy import (
    BrokerChoice,
    PolicySettings,
    RefreshPolicy,
    attempt_timeout_ms,
    choose_address,
)
from pyspark_kafka_meta.metadata.snapshot_changes import LeaderChange, SnapshotChanges
from pyspark_kafka_meta.model import Address, RefreshReason
from tests.partitions import T0

NOTHING = SnapshotChanges()
SOMETHING = SnapshotChanges(brokers_added=(9,))
MOVED = SnapshotChanges(leaders_changed=(LeaderChange("t", 0, 1, 2, 5, 6),))
LOST = RefreshCause(RefreshReason.CONNECTION_LOST, node_id=1)
NOT_LEADER = RefreshCause(RefreshReason.NOT_LEADER, 6, T0, 1)
A, B, C, D = (Address(host, 9092) for host in "abcd")


def policy(seed: int = 0, **settings: int) -> RefreshPolicy:
    return RefreshPolicy(PolicySettings(**settings), random.Random(seed))


def answered(seed: int = 0) -> RefreshPolicy:
    """One that got its first answer at 0."""
    one = policy(seed)
    one.begin(0)
    one.succeeded(0, SOMETHING)
    return one


def test_new_cache_is_due_at_once_to_bootstrap() -> None:
    one = policy()

    assert one.time_to_next_update_ms(0) == 0
    assert one.begin(0) == (RefreshCause(RefreshReason.BOOTSTRAP), 1)


def test_answer_is_good_for_max_age_then_a_refresh_is_due() -> None:
    one = answered()
    age_ms = one.time_to_next_update_ms(0)

    assert one.time_to_next_update_ms(age_ms / 1000 - 1) == 1_000
    assert one.time_to_next_update_ms(300) == 0
    assert one.begin(300)[0].reason is RefreshReason.MAX_AGE


def test_caches_born_together_do_not_age_together() -> None:
    ages_ms = [answered(seed).time_to_next_update_ms(0) for seed in range(100)]

    assert 240_000 <= min(ages_ms) < 250_000
    assert 290_000 < max(ages_ms) <= 300_000


def test_max_age_counts_from_the_last_answer() -> None:
    one = answered()
    one.begin(200)
    one.succeeded(200, NOTHING)

    assert 140_000 <= one.time_to_next_update_ms(300) <= 200_000


def test_request_makes_a_refresh_due_but_not_right_after_the_last() -> None:
    one = answered()
    one.request_update(NOT_LEADER, 0)

    assert 80 <= one.time_to_next_update_ms(0) <= 120
    assert one.time_to_next_update_ms(0.13) == 0
    assert one.begin(0.13)[0] == NOT_LEADER


@pytest.mark.parametrize(
    "reason",
    [
        RefreshReason.BOOTSTRAP,
        RefreshReason.NEW_TOPIC,
        RefreshReason.MAX_AGE,
        RefreshReason.ON_DEMAND,
        RefreshReason.LEADER_HINT,
    ],
)
def test_first_trouble_is_the_cause_even_if_something_quiet_was_due(reason: RefreshReason) -> None:
    one = answered()
    for cause in (RefreshCause(reason), NOT_LEADER, LOST):
        one.request_update(cause, 1)

    assert one.begin(1)[0] == NOT_LEADER


BOUNDS_MS = [(80, 120), (160, 240), (320, 480), (640, 960), (800, 1000), (800, 1000)]


@pytest.mark.parametrize("seed", range(5))
def test_backoff_doubles_with_each_round_of_failures_and_is_bounded(seed: int) -> None:
    one = answered(seed)
    one.request_update(LOST, 10)
    for round_number, (low, high) in enumerate(BOUNDS_MS):
        assert one.begin(10) == (LOST, round_number + 1)
        one.failed(10, all_failed=True)
        assert low <= one.time_to_next_update_ms(10) <= high, f"round {round_number}"


@pytest.mark.parametrize("seed", range(5))
def test_backoff_doubles_while_good_answers_do_not_end_the_trouble(seed: int) -> None:
    one, now = answered(seed), 10.0
    for number, (low, high) in enumerate(BOUNDS_MS):
        one.request_update(NOT_LEADER, now)
        one.begin(now)
        one.succeeded(now, NOTHING)
        one.request_update(NOT_LEADER, now)
        assert low <= one.time_to_next_update_ms(now) <= high, f"answer {number}"
        now += one.time_to_next_update_ms(now) / 1000


@pytest.mark.parametrize("changes", [SOMETHING, MOVED])
def test_answer_that_changes_something_resets_both_backoffs(changes: SnapshotChanges) -> None:
    one = answered()
    for _ in range(5):
        one.request_update(NOT_LEADER, 10)
        one.begin(10)
        one.failed(10, all_failed=True)
        one.begin(11)
        one.succeeded(11, NOTHING)
    one.request_update(NOT_LEADER, 20)
    one.begin(20)
    one.succeeded(20, changes)
    one.request_update(NOT_LEADER, 20)

    assert 80 <= one.time_to_next_update_ms(20) <= 120


def test_periodic_refreshes_that_change_nothing_need_no_backoff() -> None:
    one = answered()
    for number in range(1, 20):
        one.begin(number * 300)
        one.succeeded(number * 300, NOTHING)
    one.request_update(NOT_LEADER, 19 * 300)

    assert one.time_to_next_update_ms(19 * 300) <= 120


def test_failures_before_a_good_answer_do_not_count_afterwards() -> None:
    one = answered()
    for now in (10, 20, 30):
        one.begin(now)
        one.failed(now, all_failed=True)
    one.begin(40)
    one.succeeded(40, SOMETHING)
    one.begin(400)
    one.failed(400, all_failed=True)

    assert 80 <= one.time_to_next_update_ms(400) <= 120


@pytest.mark.parametrize("rounds", [1, 10])
def test_backoffs_differ_between_clients_at_their_bound_too(rounds: int) -> None:
    pauses = set()
    for seed in range(20):
        one = policy(seed)
        for _ in range(rounds):
            one.begin(0)
            one.failed(0, all_failed=True)
        pauses.add(one.time_to_next_update_ms(0))

    assert len(pauses) > 5


def test_failed_refresh_stays_due_for_its_reason_and_the_next_broker_is_asked_at_once() -> None:
    one = answered()
    one.begin(300)
    one.failed(301, all_failed=False)

    assert one.time_to_next_update_ms(301) == 0
    assert one.begin(301) == (RefreshCause(RefreshReason.MAX_AGE), 2)


def test_good_answer_answers_every_request_before_it() -> None:
    one = answered()
    one.request_update(NOT_LEADER, 1)
    one.begin(1)
    one.request_update(LOST, 1)
    one.succeeded(1, MOVED)

    assert one.time_to_next_update_ms(1) >= 240_000


ENDS_OF_TROUBLE = {
    "leader moved": (NOT_LEADER, MOVED, 5_000),
    "another change": (NOT_LEADER, SOMETHING, None),
    "no change": (NOT_LEADER, NOTHING, None),
    "broker lost, something changed": (LOST, SOMETHING, 5_000),
    "broker lost, no change": (LOST, NOTHING, None),
}


@pytest.mark.parametrize("case", ENDS_OF_TROUBLE)
def test_trouble_lasts_from_its_first_report_to_the_change_that_ends_it(case: str) -> None:
    cause, changes, expected = ENDS_OF_TROUBLE[case]
    one = answered()
    for now in (10, 12):
        one.request_update(cause, now)
        one.begin(now)
        one.succeeded(now, NOTHING)
        assert one.resolve_problem(now, NOTHING) is None
    one.request_update(cause, 15)
    one.begin(15)
    one.succeeded(15, changes)

    assert one.resolve_problem(15, changes) == expected
    assert one.has_problem is (expected is None)


def test_trouble_that_nobody_reports_again_has_passed() -> None:
    one = answered()
    one.request_update(LOST, 10)
    one.begin(10)
    one.succeeded(10, NOTHING)
    one.begin(310)
    one.succeeded(310, SOMETHING)

    assert one.resolve_problem(310, SOMETHING) is None


@pytest.mark.parametrize(("reported_again_at", "expected"), [(18, 11_000), (20.5, 500)])
def test_trouble_after_a_quiet_while_is_another_one(reported_again_at: float, expected: int) -> None:
    """A connection that was reset while nothing moved, say, and a leader that moves later."""
    one = answered()
    for now, cause, changes in ((10, LOST, NOTHING), (reported_again_at, NOT_LEADER, NOTHING)):
        one.request_update(cause, now)
        one.begin(now)
        one.succeeded(now, changes)

    assert one.resolve_problem(21, MOVED) == expected


def test_trouble_is_one_while_nobody_answers_however_long() -> None:
    one = answered()
    one.request_update(LOST, 10)
    for now in (10, 40, 70):
        one.begin(now)
        one.failed(now + 1, all_failed=False)
        one.request_update(LOST, now + 25)
    one.begin(100)
    one.succeeded(100, MOVED)

    assert one.resolve_problem(100, MOVED) == 90_000


def test_trouble_lasts_between_reports_that_a_long_backoff_keeps_apart() -> None:
    one = policy(retry_backoff_ms=30_000, retry_backoff_max_ms=30_000)
    one.begin(0)
    one.succeeded(0, SOMETHING)
    for now in (10, 40, 70):
        one.request_update(LOST, now)
        one.begin(now)
        one.succeeded(now, NOTHING)

    assert one.resolve_problem(80, MOVED) == 70_000


def test_hint_about_a_partition_does_not_end_that_a_broker_is_lost() -> None:
    one = answered()
    one.request_update(LOST, 10)

    assert one.resolve_problem(11, MOVED, by_hint=True) is None
    assert one.resolve_problem(12, MOVED) == 2_000


def test_hint_does_not_end_that_no_broker_answers() -> None:
    one = answered()
    one.begin(300)
    one.failed(301, all_failed=True)

    assert one.resolve_problem(310, MOVED, by_hint=True) is None
    assert one.resolve_problem(320, MOVED) == 20_000


@pytest.mark.parametrize(("took_s", "slow"), [(0.001, 0), (0.9, 0), (1.0, 1), (30.0, 1)])
def test_attempt_is_slow_that_was_waited_for(took_s: float, slow: int) -> None:
    one = answered()
    one.begin(300.1)
    one.failed(300.1 + took_s, all_failed=False)
    assert one.slow_attempts == slow
    one.begin(400)
    one.succeeded(400, NOTHING)
    assert one.slow_attempts == 0


def test_reported_trouble_outweighs_that_nobody_answered() -> None:
    one = answered()
    one.begin(300)
    one.failed(301, all_failed=False)
    one.request_update(NOT_LEADER, 302)
    one.begin(303)
    one.succeeded(303, SOMETHING)

    assert one.resolve_problem(303, SOMETHING) is None, "the leader is still to be found"
    assert one.resolve_problem(304, MOVED) == 2_000


def test_bootstrap_that_took_several_attempts_tells_the_time_lost() -> None:
    one = policy()
    for began in (3, 4):
        one.begin(began)
        one.failed(began + 1, all_failed=False)
    one.begin(5)
    one.succeeded(6, SOMETHING)

    assert one.resolve_problem(6, SOMETHING) == 3_000
    assert one.resolve_problem(6, SOMETHING) is None, "told once"


CHOICES = {
    "bootstrap while no broker is known": ((), (A,), set(), (), None, {A}),
    "known brokers before the bootstrap list": ((B, C), (A,), set(), (), None, {B, C}),
    "the last good one": ((B, C, D), (A,), set(), (), C, {C}),
    "not the one that just failed": ((B, C), (A,), {B}, (B,), B, {C}),
    "no suspect, even if it was good": ((B, C), (A,), set(), (B,), B, {C}),
    "none of several suspects": ((B, C, D), (A,), set(), (B, C), B, {D}),
    "the suspect if there is no other": ((B,), (A,), set(), (B,), None, {B}),
    "the first suspect if there is no other": ((B, C), (A,), set(), (C, B), B, {C}),
    "bootstrap when all brokers failed": ((B, C), (A,), {B, C}, (C,), B, {A}),
    "nobody when all failed": ((B,), (A, B), {A, B}, (B,), None, {None}),
    "a last good bootstrap address is left for a broker": ((B, C), (A,), set(), (), A, {B, C}),
}


@pytest.mark.parametrize("case", CHOICES)
def test_choice_of_the_address_to_ask(case: str) -> None:
    brokers, bootstrap, failed, suspects, last_good, expected = CHOICES[case]
    chosen = {
        choose_address((brokers, bootstrap), failed, suspects, last_good, random.Random(seed)) for seed in range(30)
    }

    assert chosen == expected


def test_clients_begin_at_different_bootstrap_addresses() -> None:
    firsts = [BrokerChoice([A, B, C], random.Random(seed)).next(()) for seed in range(60)]

    assert {one: firsts.count(one) >= 10 for one in firsts} == {A: True, B: True, C: True}


def test_clients_spread_over_the_brokers_after_the_bootstrap_list_and_then_stay() -> None:
    seconds = []
    for seed in range(60):
        choice = BrokerChoice([A], random.Random(seed))
        choice.succeeded(choice.next(()))
        seconds.append(choice.next((A, B, C)))
        choice.succeeded(seconds[-1])
        assert choice.next((A, B, C)) == seconds[-1]

    assert {one: seconds.count(one) >= 10 for one in seconds} == {A: True, B: True, C: True}


def test_every_address_is_tried_once_in_a_round_and_the_next_begins_with_another() -> None:
    choice = BrokerChoice([A, D], random.Random(0))
    for _ in range(5):
        tried, all_failed = [], False
        while not all_failed:
            tried.append(choice.next((B, C)))
            all_failed = choice.failed(tried[-1], (B, C))
        assert sorted(tried[:2]) == [B, C], "known brokers first"
        assert sorted(tried[2:]) == [A, D]


def test_broker_that_just_failed_is_not_the_first_of_the_next_round() -> None:
    for seed in range(20):
        choice = BrokerChoice([A, B], random.Random(seed))
        choice.failed(A, (A, B))
        assert choice.failed(B, (A, B))
        assert choice.next((A, B)) == A


def test_good_answer_clears_what_was_held_against_others_and_the_one_who_gave_it() -> None:
    choice = BrokerChoice([A], random.Random(0))
    choice.failed(B, (B, C))
    choice.succeeded(C)
    choice.failed(C, (B, C))
    assert choice.next((B, C)) == B, "before the bootstrap list"
    choice.avoid(B)
    choice.succeeded(B)
    assert choice.next((B, C)) == B


def test_of_two_brokers_that_hang_none_is_asked_while_there_is_another() -> None:
    choice = BrokerChoice([A], random.Random(0))
    choice.succeeded(choice.next((B,)))
    for hung in (B, C, B):
        choice.avoid(hung)

    assert choice.next((B, C, D)) == D
    assert choice.failed(D, (B, C, D)) is False
    assert choice.next((B, C, D)) == C, "whose trouble is the older"


def test_bootstrap_addresses_come_before_more_known_brokers_where_several_were_slow() -> None:
    choice = BrokerChoice([A, B], random.Random(0))
    choice.failed(B, (B, C, D))
    choice.failed(C, (B, C, D))

    assert choice.next((B, C, D), slow_attempts=1) == D
    assert choice.next((B, C, D), slow_attempts=2) == A
    choice.failed(A, (B, C, D))
    assert choice.next((B, C, D), slow_attempts=3) == D


def test_until_an_answer_comes_a_rebootstrap_asks_no_known_broker() -> None:
    choice = BrokerChoice([A, D], random.Random(0))
    choice.rebootstrap()
    tried = []
    for _ in range(4):
        tried.append(choice.next((B, C)))
        choice.failed(tried[-1], (B, C))
    assert sorted(tried) == [A, A, D, D]
    choice.succeeded(choice.next((B, C)))
    assert choice.next((B, C)) in (B, C)


def test_attempts_get_little_time_first_and_then_twice_as_much_each() -> None:
    timeouts_ms = [attempt_timeout_ms(slow_attempts, 30_000) for slow_attempts in range(6)]

    assert timeouts_ms == [3_000, 6_000, 12_000, 24_000, 30_000, 30_000]
    assert attempt_timeout_ms(1_000_000, 500) == 500
