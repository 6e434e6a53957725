"""When to refresh and from which broker: Kafka's MetadataTest (timing), KIP-580 (backoff), KIP-899 (choice)."""

from __future__ import annotations

import random
from collections.abc import Collection
from itertools import pairwise

import pytest

from pyspark_kafka_meta.kafka.metadata.refresh_policy import (
    MAX_SKIPPED_TURNS,
    BrokerChoice,
    RefreshCause,
    RefreshPolicy,
    attempt_timeout_ms,
    choose_address,
)
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, SnapshotChanges
from pyspark_kafka_meta.model import Address, RefreshReason
from tests.partitions import T0
from tests.unit.kafka.metadata.cache_scene import client_options

NOTHING = SnapshotChanges()
SOMETHING = SnapshotChanges(brokers_added=(9,))
MOVED = SnapshotChanges(leaders_changed=(LeaderChange("t", 0, 1, 2, 5, 6),))
LOST = RefreshCause(RefreshReason.CONNECTION_LOST, node_id=1)
NOT_LEADER = RefreshCause(RefreshReason.NOT_LEADER, 6, T0, 1)
A, B, C, D = (Address(host, 9092) for host in "abcd")


def new_policy(seed: int = 0, **settings: int) -> RefreshPolicy:
    return RefreshPolicy(client_options(**settings), random.Random(seed))


def refreshed(seed: int = 0) -> RefreshPolicy:
    """A policy after its first refresh at time 0."""
    policy = new_policy(seed)
    refresh(policy, 0, SOMETHING)
    return policy


@pytest.fixture
def policy() -> RefreshPolicy:
    return refreshed()


def refresh(policy: RefreshPolicy, now: float, changes: SnapshotChanges) -> None:
    """By a response with these changes."""
    policy.begin(now)
    policy.succeeded(now, changes)


def test_new_cache_bootstraps_at_once() -> None:
    policy = new_policy()

    assert policy.time_to_next_update_ms(0) == 0
    assert policy.begin(0) == (RefreshCause(RefreshReason.BOOTSTRAP), 1)


def test_refresh_is_due_at_max_age(policy: RefreshPolicy) -> None:
    age_ms = policy.time_to_next_update_ms(0)

    assert policy.time_to_next_update_ms(age_ms / 1000 - 1) == 1_000
    assert policy.time_to_next_update_ms(300) == 0
    assert policy.begin(300)[0].reason is RefreshReason.MAX_AGE
    ages_ms = [refreshed(seed).time_to_next_update_ms(0) for seed in range(100)]
    assert 240_000 <= min(ages_ms) < 250_000, "with jitter"
    assert 290_000 < max(ages_ms) <= 300_000


def test_max_age_starts_at_the_last_refresh(policy: RefreshPolicy) -> None:
    refresh(policy, 200, NOTHING)

    assert 140_000 <= policy.time_to_next_update_ms(300) <= 200_000


def test_request_makes_a_refresh_due_after_the_backoff(policy: RefreshPolicy) -> None:
    policy.request_update(NOT_LEADER, 0)

    assert 80 <= policy.time_to_next_update_ms(0) <= 120
    assert policy.time_to_next_update_ms(0.13) == 0
    assert policy.begin(0.13)[0] == NOT_LEADER


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
def test_first_problem_is_the_cause_before_routine_reasons(policy: RefreshPolicy, reason: RefreshReason) -> None:
    for cause in (RefreshCause(reason), NOT_LEADER, LOST):
        policy.request_update(cause, 1)

    assert policy.begin(1)[0] == NOT_LEADER


BOUNDS_MS = [(80, 120), (160, 240), (320, 480), (640, 960), (800, 1000), (800, 1000)]


@pytest.mark.parametrize("seed", range(5))
def test_backoff_doubles_with_each_failed_round_up_to_its_limit(seed: int) -> None:
    policy = refreshed(seed)
    policy.request_update(LOST, 10)
    for round_number, (low, high) in enumerate(BOUNDS_MS):
        assert policy.begin(10) == (LOST, round_number + 1)
        policy.failed(10, all_failed=True)
        assert low <= policy.time_to_next_update_ms(10) <= high, f"round {round_number}"


@pytest.mark.parametrize("seed", range(5))
def test_backoff_doubles_while_responses_do_not_resolve_the_problem(seed: int) -> None:
    policy, now = refreshed(seed), 10.0
    for number, (low, high) in enumerate(BOUNDS_MS):
        policy.request_update(NOT_LEADER, now)
        refresh(policy, now, NOTHING)
        policy.request_update(NOT_LEADER, now)
        assert low <= policy.time_to_next_update_ms(now) <= high, f"response {number}"
        now += policy.time_to_next_update_ms(now) / 1000


@pytest.mark.parametrize("changes", [SOMETHING, MOVED])
def test_response_with_changes_resets_both_backoffs(policy: RefreshPolicy, changes: SnapshotChanges) -> None:
    for _ in range(5):
        policy.request_update(NOT_LEADER, 10)
        policy.begin(10)
        policy.failed(10, all_failed=True)
        refresh(policy, 11, NOTHING)
    policy.request_update(NOT_LEADER, 20)
    refresh(policy, 20, changes)
    policy.request_update(NOT_LEADER, 20)

    assert 80 <= policy.time_to_next_update_ms(20) <= 120


def test_periodic_refreshes_without_changes_need_no_backoff(policy: RefreshPolicy) -> None:
    for number in range(1, 20):
        refresh(policy, number * 300, NOTHING)
    policy.request_update(NOT_LEADER, 19 * 300)

    assert policy.time_to_next_update_ms(19 * 300) <= 120


def test_successful_refresh_resets_the_failures(policy: RefreshPolicy) -> None:
    for now in (10, 20, 30):
        policy.begin(now)
        policy.failed(now, all_failed=True)
    refresh(policy, 40, SOMETHING)
    policy.begin(400)
    policy.failed(400, all_failed=True)

    assert 80 <= policy.time_to_next_update_ms(400) <= 120


@pytest.mark.parametrize("rounds", [1, 10])
def test_backoffs_of_clients_differ_also_at_the_limit(rounds: int) -> None:
    pauses = set()
    for seed in range(20):
        policy = new_policy(seed)
        for _ in range(rounds):
            policy.begin(0)
            policy.failed(0, all_failed=True)
        pauses.add(policy.time_to_next_update_ms(0))

    assert len(pauses) > 5


def test_failed_refresh_stays_due_at_the_next_broker_without_a_backoff(policy: RefreshPolicy) -> None:
    policy.begin(300)
    policy.failed(301, all_failed=False)

    assert policy.time_to_next_update_ms(301) == 0
    assert policy.begin(301) == (RefreshCause(RefreshReason.MAX_AGE), 2)


def test_successful_refresh_meets_every_earlier_request(policy: RefreshPolicy) -> None:
    policy.request_update(NOT_LEADER, 1)
    policy.begin(1)
    policy.request_update(LOST, 1)
    policy.succeeded(1, MOVED)

    assert policy.time_to_next_update_ms(1) >= 240_000


RESOLUTIONS = {
    "leader moved": (NOT_LEADER, MOVED, 5_000),
    "another change": (NOT_LEADER, SOMETHING, None),
    "no change": (NOT_LEADER, NOTHING, None),
    "broker lost, something changed": (LOST, SOMETHING, 5_000),
    "broker lost, no change": (LOST, NOTHING, None),
}


@pytest.mark.parametrize("case", RESOLUTIONS)
def test_problem_lasts_from_its_first_report_to_the_resolving_change(case: str) -> None:
    cause, changes, expected = RESOLUTIONS[case]
    policy = refreshed()
    for now in (10, 12):
        policy.request_update(cause, now)
        refresh(policy, now, NOTHING)
        assert policy.resolve_problem(now, NOTHING) is None
    policy.request_update(cause, 15)
    refresh(policy, 15, changes)

    assert policy.resolve_problem(15, changes) == expected
    assert policy.has_problem is (expected is None)


def test_problem_without_another_report_is_over(policy: RefreshPolicy) -> None:
    policy.request_update(LOST, 10)
    refresh(policy, 10, NOTHING)
    refresh(policy, 310, SOMETHING)

    assert policy.resolve_problem(310, SOMETHING) is None


@pytest.mark.parametrize(("reported_again_at", "expected"), [(18, 11_000), (20.5, 500)])
def test_report_after_long_is_a_new_problem(policy: RefreshPolicy, reported_again_at: float, expected: int) -> None:
    """For example a connection reset without a leader change, and a later leader change."""
    for now, cause, changes in ((10, LOST, NOTHING), (reported_again_at, NOT_LEADER, NOTHING)):
        policy.request_update(cause, now)
        refresh(policy, now, changes)

    assert policy.resolve_problem(21, MOVED) == expected


def test_problem_lasts_while_no_broker_responds(policy: RefreshPolicy) -> None:
    policy.request_update(LOST, 10)
    for now in (10, 40, 70):
        policy.begin(now)
        policy.failed(now + 1, all_failed=False)
        policy.request_update(LOST, now + 25)
    refresh(policy, 100, MOVED)

    assert policy.resolve_problem(100, MOVED) == 90_000


def test_problem_lasts_between_reports_with_a_long_backoff() -> None:
    policy = new_policy(retry_backoff_ms=30_000, retry_backoff_max_ms=30_000)
    refresh(policy, 0, SOMETHING)
    for now in (10, 40, 70):
        policy.request_update(LOST, now)
        refresh(policy, now, NOTHING)

    assert policy.resolve_problem(80, MOVED) == 70_000


def test_hint_resolves_neither_a_lost_connection_nor_missing_responses() -> None:
    for reported in (True, False):
        policy = refreshed()
        if reported:
            policy.request_update(LOST, 301)
        else:
            policy.begin(301)
            policy.failed(302, all_failed=True)

        assert policy.resolve_problem(310, MOVED, by_hint=True) is None
        assert policy.resolve_problem(320, MOVED) == 19_000


@pytest.mark.parametrize(("took_s", "slow"), [(0.001, 0), (0.9, 0), (1.0, 1), (30.0, 1)])
def test_long_attempt_is_slow(policy: RefreshPolicy, took_s: float, slow: int) -> None:
    policy.begin(300.1)
    policy.failed(300.1 + took_s, all_failed=False)
    assert policy.slow_attempts == slow
    refresh(policy, 400, NOTHING)
    assert policy.slow_attempts == 0


def test_reported_problem_replaces_a_missing_response(policy: RefreshPolicy) -> None:
    policy.begin(300)
    policy.failed(301, all_failed=False)
    policy.request_update(NOT_LEADER, 302)
    refresh(policy, 303, SOMETHING)

    assert policy.resolve_problem(303, SOMETHING) is None, "the leader is still to be found"
    assert policy.resolve_problem(304, MOVED) == 2_000


def test_bootstrap_after_failed_attempts_has_a_recovery_time() -> None:
    policy = new_policy()
    for began in (3, 4):
        policy.begin(began)
        policy.failed(began + 1, all_failed=False)
    policy.begin(5)
    policy.succeeded(6, SOMETHING)

    assert policy.resolve_problem(6, SOMETHING) == 3_000
    assert policy.resolve_problem(6, SOMETHING) is None, "reported once"


CHOICES = {
    "bootstrap while no broker is known": ((), (A,), set(), (), None, {A}),
    "known brokers before the bootstrap list": ((B, C), (A,), set(), (), None, {B, C}),
    "the last good address": ((B, C, D), (A,), set(), (), C, {C}),
    "not the policy that just failed": ((B, C), (A,), {B}, (B,), B, {C}),
    "no suspect, even if it was good": ((B, C), (A,), set(), (B,), B, {C}),
    "none of several suspects": ((B, C, D), (A,), set(), (B, C), B, {D}),
    "the suspect if there is no other": ((B,), (A,), set(), (B,), None, {B}),
    "the first suspect if there is no other": ((B, C), (A,), set(), (C, B), B, {C}),
    "bootstrap when all brokers failed": ((B, C), (A,), {B, C}, (C,), B, {A}),
    "none when all failed": ((B,), (A, B), {A, B}, (B,), None, {None}),
    "a broker before a last good bootstrap address": ((B, C), (A,), set(), (), A, {B, C}),
}


@pytest.mark.parametrize("case", CHOICES)
def test_choice_of_the_next_address(case: str) -> None:
    brokers, bootstrap, failed, suspects, last_good, expected = CHOICES[case]
    chosen = {
        choose_address((brokers, bootstrap), failed, suspects, last_good, random.Random(seed)) for seed in range(30)
    }

    assert chosen == expected


def test_clients_start_at_different_bootstrap_addresses() -> None:
    firsts = [BrokerChoice([A, B, C], random.Random(seed)).next(()) for seed in range(60)]

    assert {address: firsts.count(address) >= 10 for address in firsts} == {A: True, B: True, C: True}


def test_clients_spread_over_the_brokers_after_the_bootstrap_list_and_then_stay() -> None:
    seconds = []
    for seed in range(60):
        choice = BrokerChoice([A], random.Random(seed))
        choice.succeeded(choice.next(()))
        seconds.append(choice.next((A, B, C)))
        choice.succeeded(seconds[-1])
        assert choice.next((A, B, C)) == seconds[-1]

    assert {address: seconds.count(address) >= 10 for address in seconds} == {A: True, B: True, C: True}


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


def test_good_response_clears_what_was_held_against_others_and_the_one_who_gave_it() -> None:
    choice = BrokerChoice([A], random.Random(0))
    choice.failed(B, (B, C))
    choice.succeeded(C)
    choice.failed(C, (B, C))
    assert choice.next((B, C)) == B, "before the bootstrap list"
    choice.avoid(B)
    choice.succeeded(B)
    assert choice.next((B, C)) == B


def turn(choice: BrokerChoice, down: Collection[Address] = ()) -> list[Address]:
    """The addresses that one refresh at the maximum age asks, up to the first that responds."""
    choice.turn()
    asked = [choice.next((A, B, C))]
    while asked[-1] in down:
        choice.failed(asked[-1], (A, B, C))
        asked.append(choice.next((A, B, C)))
    choice.succeeded(asked[-1])
    return asked


def test_turn_seldom_begins_with_a_broker_that_fails() -> None:
    choice = BrokerChoice([A], random.Random(0))
    turn(choice)
    for _ in range(20):
        turn(choice, down=(B, C))
    first = [turn(choice, down=(B, C))[0] for _ in range(100)]
    assert 0 < len(first) - first.count(A) <= 2 * 100 / MAX_SKIPPED_TURNS

    asked = [turn(choice)[0] for _ in range(50)]
    assert {*asked[: MAX_SKIPPED_TURNS + 1]} != {A}, "a broker that responds again is asked soon"
    assert {*asked[10:]} == {A, B, C}
    assert all(before != after for before, after in pairwise(asked[10:]))


def test_brokers_that_hang_are_avoided_while_there_is_another() -> None:
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


def test_until_a_response_comes_a_rebootstrap_asks_no_known_broker() -> None:
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
