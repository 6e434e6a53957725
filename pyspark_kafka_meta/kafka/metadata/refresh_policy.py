"""When a metadata cache is refreshed, why, and from which broker: timing without a clock, choice without a socket.

While a cache is stale, tasks wait for leaders that brokers may know already. But each Python worker of a query has a
cache, and a broker that fails concerns all of them at the same time: thousands of caches that ask again at once would
overload the brokers just then. So the first refresh comes soon, and pauses grow while refreshes do not help. Follows
Kafka's `Metadata.timeToNextUpdate` (both of its backoffs), KIP-580 (exponential backoff with jitter), KIP-899 and
KIP-1102 (rebootstrapping).

`RefreshPolicy` says when:

| state | when the next request is due | what ends it |
|---|---|---|
| nothing is requested | at the maximum age, less up to a fifth at random | `request_update`, or `begin` by then |
| a refresh is requested | after the backoff since the last response, or `at_once` | `begin`, when it is due |
| an attempt failed, addresses are left | now, at another address | `begin` |
| all addresses failed | after a backoff, which doubles with each such round | `begin`, when it is due |

The backoff after a response doubles too, with each response without changes in a row although a problem was reported.

A problem is an error that stale metadata may have caused. The event of the change that resolves a problem has the time
since its first report. The policy knows one problem at a time, the first:

| problem | what begins it | what ends it |
|---|---|---|
| of a partition | a report that names it | a response, or a hint, that gives the partition a leader |
| of a broker | a report without a partition | a response with any change |
| no response | a failed attempt without a reported problem | a response; or a report, which replaces it |

The first two also end without a change if reports stop: at the next routine refresh, or at the next report after a
pause of `PROBLEM_EXPIRES_AFTER_S`.

`BrokerChoice` says which address is next. Known brokers come before bootstrap addresses, but after several slow
attempts, bootstrap addresses come before other known brokers. If a broker demands it (REBOOTSTRAP_REQUIRED), bootstrap
addresses alone are used.

| address | meaning | what ends it |
|---|---|---|
| last good | the known broker that responded last is asked first, to save connections | it fails, or is avoided |
| suspect | asked after the others: it failed or throttled requests, or its metadata did not help | a success |
| failed | it is not asked again in this round | a success, or all addresses failed |
| failing | its last request failed: the next one to four refreshes at the maximum age ask it last | it responds |

A refresh at the maximum age asks another broker than the last one. A broker that is cut off from the cluster responds
with old metadata, and names itself the leader: nothing else may show it. Kafka's `leastLoadedNode` begins at random.

What would go wrong, and the guards:

- A dead leader. 1. A leader dies. 2. Brokers name it until its session ends, some nine seconds later. 3. Meanwhile each
  cache would ask again every retry.backoff.ms. Guard: `_equivalent_responses` in `succeeded`.
- Two reasons. 1. An error is reported. 2. Before the request is sent, a new topic is requested too. 3. The event would
  have the wrong reason. Guard: `_is_more_serious` in `request_update`.
- An old problem. 1. A connection breaks, but no leader moves: no response has a change that ends the problem. 2. An
  hour later a leader moves. 3. The event would report a recovery of an hour. Guards: `begin` and `request_update`.
- A hint in an outage. 1. No broker responds to Metadata. 2. A hint moves a leader. 3. The outage would count as over.
  Guard: `by_hint` in `is_resolved_by`.
- A crowd. 1. All clients begin with the same few bootstrap addresses. 2. Each would go on with the address that
  responded. Guard: `BrokerChoice.succeeded` keeps only a known broker as the last good.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_kafka_meta.kafka.metadata.snapshot import SnapshotChanges
from pyspark_kafka_meta.model import Address, RefreshReason, TopicPartition
from pyspark_kafka_meta.options import ClientOptions

BACKOFF_MULTIPLIER = 2.0
BACKOFF_JITTER = 0.2
MIN_BACKOFF_MS = 10
"""Also if the options say 0, which Kafka allows: requests to failing brokers always back off."""
MAX_AGE_JITTER = 0.2
"""The caches of a query start together: without jitter all would refresh together at each max age."""
MAX_EXPONENT = 20
"""Far above any limit of the backoff, and no overflow."""
FIRST_ATTEMPT_TIMEOUT_MS = 3_000
SLOW_S = 1.0
"""A failed attempt of this duration is slow: it probably timed out. A refused connection fails sooner."""
SLOW_ATTEMPTS_BEFORE_BOOTSTRAP = 2
"""After this many, all known brokers may be gone: the bootstrap addresses come before other known brokers."""
MAX_SKIPPED_TURNS = 4
"""So many refreshes at the maximum age do not begin with a broker that failed, which may cost a timeout; fewer after
its first failures."""
PROBLEM_EXPIRES_AFTER_S = 10.0
"""A lasting problem is reported with each attempt to read: without a report for this long, or for twice the maximum
backoff, it is over."""
ROUTINE_REASONS = frozenset(
    {
        RefreshReason.BOOTSTRAP,
        RefreshReason.NEW_TOPIC,
        RefreshReason.MAX_AGE,
        RefreshReason.ON_DEMAND,
        RefreshReason.LEADER_HINT,
    }
)
"""Reasons for a refresh without a problem."""


class RefreshCause(NamedTuple):
    """What made a refresh due.

    Attributes:
        error_code: Kafka's error code, 0 without an error.
        partition, node_id: None if no single one is affected.
    """

    reason: RefreshReason
    error_code: int = 0
    partition: TopicPartition | None = None
    node_id: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """An error that stale metadata may have caused, and its start in seconds of the cache's clock."""

    since: float
    cause: RefreshCause

    def is_resolved_by(self, changes: SnapshotChanges, by_hint: bool) -> bool:
        """Whether a response or hint with these changes resolves the problem."""
        if self.cause.reason in ROUTINE_REASONS:
            return not by_hint  # the problem was that no broker responded
        if self.cause.partition is not None:
            return changes.gives_leader(self.cause.partition)
        return bool(changes) and not by_hint  # a hint is about one partition, this problem about a broker


class RefreshPolicy:
    """Whether a refresh is due. `now` is in monotonic seconds.

    Attributes:
        slow_attempts: failed attempts of at least `SLOW_S` since the last successful refresh.
    """

    def __init__(self, options: ClientOptions, rng: random.Random) -> None:
        self._options = options
        self._rng = rng
        self._pending: RefreshCause | None = RefreshCause(RefreshReason.BOOTSTRAP)
        self._problem: Problem | None = None
        self._last_report = float("-inf")  # of a problem
        self._began = 0.0
        self._expires = float("-inf")  # the maximum age
        self._not_before = float("-inf")  # the end of the backoff
        self._attempts = 0  # since the last successful refresh
        self.slow_attempts = 0
        self._failed_rounds = 0  # since the last successful refresh
        self._equivalent_responses = 0  # consecutive responses without changes although a problem was reported

    @property
    def has_problem(self) -> bool:
        """Whether a reported problem is unresolved."""
        return self._problem is not None

    def request_update(self, cause: RefreshCause, now: float, at_once: bool = False) -> None:
        """Make a refresh due after the backoff. The first problem among several causes counts.

        Args:
            at_once: skip the backoff after a successful refresh, but not the backoff after failures.
        """
        if at_once and self._attempts == 0:
            self._not_before = now
        if self._pending is None or _is_more_serious(cause, self._pending):
            self._pending = cause
        expires_after_s = max(PROBLEM_EXPIRES_AFTER_S, 2 * self._options.retry_backoff_max_ms / 1000)
        if self._attempts == 0 and now > self._last_report + expires_after_s:
            self._problem = None  # the report is about a new problem
        if cause.reason not in ROUTINE_REASONS:
            self._last_report = now
            if self._problem is None or _is_more_serious(cause, self._problem.cause):
                self._problem = Problem(now, cause)

    def time_to_next_update_ms(self, now: float) -> float:
        """0 if a refresh is due now. Rounded to microseconds, so that a sleep of this length does not end too early."""
        due = self._expires if self._pending is None else now
        return round(max(due - now, self._not_before - now, 0.0) * 1000, 3)

    def begin(self, now: float) -> tuple[RefreshCause, int]:
        """Starts a refresh; `succeeded` or `failed` must follow. Returns the cause, and the number of the attempt since
        the last successful refresh."""
        cause = self._pending or RefreshCause(RefreshReason.MAX_AGE)
        if self._attempts == 0 and cause.reason in ROUTINE_REASONS:
            self._problem = None  # not reported since the last refresh: it is over
        self._pending, self._began = cause, now
        self._attempts += 1
        return cause, self._attempts

    def succeeded(self, now: float, changes: SnapshotChanges) -> None:
        """The refresh succeeded, and meets every request so far."""
        is_routine = self._pending is None or self._pending.reason in ROUTINE_REASONS
        self._equivalent_responses = 0 if is_routine or changes else self._equivalent_responses + 1
        self._pending, self._attempts, self.slow_attempts, self._failed_rounds = None, 0, 0, 0
        max_age_ms = self._options.metadata_max_age_ms * self._rng.uniform(1 - MAX_AGE_JITTER, 1)
        self._expires = self._began + max_age_ms / 1000
        self._not_before = now + self._backoff_s(max(self._equivalent_responses, 1))

    def failed(self, now: float, all_failed: bool) -> None:
        """The refresh failed, and stays due.

        Args:
            all_failed: all brokers failed since the last backoff. If not, the next broker is tried without a backoff.
        """
        if self._problem is None and self._pending is not None:
            self._problem = Problem(self._began, self._pending)
        if round(now - self._began, 3) >= SLOW_S:
            self.slow_attempts += 1
        if all_failed:
            self._failed_rounds += 1
            self._not_before = now + self._backoff_s(self._failed_rounds)

    def resolve_problem(self, now: float, changes: SnapshotChanges, by_hint: bool = False) -> float | None:
        """Duration in ms of the problem that these changes resolve; None if they resolve no problem."""
        if self._problem is None or not self._problem.is_resolved_by(changes, by_hint):
            return None
        since, self._problem = self._problem.since, None
        return round((now - since) * 1000, 3)

    def _backoff_s(self, failures: int) -> float:
        return backoff_s(self._options, failures, self._rng)


def backoff_s(options: ClientOptions, failures: int, rng: random.Random) -> float:
    """The backoff in seconds after this many consecutive failures, from 1 (KIP-580)."""
    exponential = options.retry_backoff_ms * BACKOFF_MULTIPLIER ** min(failures - 1, MAX_EXPONENT)
    # Limited before the jitter too, as in Kafka's ExponentialBackoff: else the longest backoffs would have no jitter.
    bounded = min(exponential, options.retry_backoff_max_ms)
    jitter = rng.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER)
    return max(min(bounded * jitter, options.retry_backoff_max_ms), MIN_BACKOFF_MS) / 1000


def attempt_timeout_ms(slow_attempts: int, request_timeout_ms: int) -> int:
    """Timeout of a request that brokers handle at once, such as Metadata: short at first, because another broker
    responds if this one hangs; doubled each time, in case all are slow."""
    return min(FIRST_ATTEMPT_TIMEOUT_MS << min(slow_attempts, MAX_EXPONENT), request_timeout_ms)


class BrokerChoice:
    """The broker of the next Metadata request.

    Attributes:
        is_rebootstrapping: whether only the bootstrap addresses are used, although brokers may be known.
    """

    def __init__(self, bootstrap: Sequence[Address], rng: random.Random) -> None:
        self._bootstrap = bootstrap
        self._rng = rng
        self._failed: set[Address] = set()
        self._failing: dict[Address, tuple[int, int]] = {}  # failures in a row, and turns to skip
        self._suspects: list[Address] = []  # since the last successful refresh, the latest suspect last
        self._last_good: Address | None = None
        self._last_responder: Address | None = None  # may be a bootstrap address
        self._chose_known_broker = False  # by the last call of `next`
        self.is_rebootstrapping = False

    def next(self, brokers: Collection[Address], slow_attempts: int = 0) -> Address:
        """The next address after `slow_attempts` since the last successful refresh: one of `brokers` or a bootstrap
        address."""
        address = self._choose(brokers, slow_attempts >= SLOW_ATTEMPTS_BEFORE_BOOTSTRAP)
        assert address is not None, "failures are cleared once all addresses failed, and there is a bootstrap address"
        self._chose_known_broker = address in brokers
        return address

    def avoid(self, address: Address) -> None:
        """Try other addresses before this one."""
        self._suspects = [suspect for suspect in self._suspects if suspect != address] + [address]

    def prefer(self, address: Address) -> None:
        """Try this address before others."""
        self._failed.discard(address)
        self._suspects = [suspect for suspect in self._suspects if suspect != address]
        self._last_good = address

    def avoid_last(self) -> None:
        """Try other addresses before the broker that responded last."""
        if self._last_responder is not None:
            self.avoid(self._last_responder)

    def turn(self) -> None:
        """Try other addresses before the broker that responded last, but after it those that failed lately."""
        self.avoid_last()
        for address, (failures, turns) in self._failing.items():
            if turns > 0:
                self._failing[address] = (failures, turns - 1)
                self.avoid(address)

    def rebootstrap(self) -> None:
        """Use only the bootstrap addresses until a refresh succeeds (KIP-1102)."""
        self.is_rebootstrapping = True

    def succeeded(self, address: Address) -> None:
        """The address that `next` chose responded."""
        self.is_rebootstrapping = False
        self._failed.clear()
        self._failing.pop(address, None)
        self._suspects, self._last_good = [], address if self._chose_known_broker else None
        self._last_responder = address

    def failed(self, address: Address, brokers: Collection[Address]) -> bool:
        """Returns whether all addresses have failed: then all may be tried again."""
        self._failed.add(address)
        failures, _ = self._failing.get(address, (0, 0))
        self._failing[address] = (failures + 1, min(2**failures, MAX_SKIPPED_TURNS))
        all_failed = self._choose(brokers) is None
        if all_failed:
            self._failed.clear()
            self.avoid(address)
        return all_failed

    def _choose(self, brokers: Collection[Address], bootstrap_first: bool = False) -> Address | None:
        pools = [() if self.is_rebootstrapping else brokers, self._bootstrap]
        if bootstrap_first:
            pools.reverse()
        return choose_address(pools, self._failed, self._suspects, self._last_good, self._rng)


def choose_address(
    pools: Sequence[Collection[Address]],
    failed: AbstractSet[Address],
    suspects: Sequence[Address],
    last_good: Address | None,
    rng: random.Random,
) -> Address | None:
    """The next address that has not failed, pool by pool: first the last good address, then the others in random order,
    then the suspects in their order. None if all have failed."""
    ranks = {address: rank for rank, address in enumerate(suspects, 1)}
    for pool in pools:
        left = [address for address in pool if address not in failed]
        if last_good in left and last_good not in ranks:
            return last_good
        if left:
            return min(left, key=lambda address: (ranks.get(address, 0), rng.random()))
    return None


def _is_more_serious(cause: RefreshCause, other: RefreshCause) -> bool:
    return cause.reason not in ROUTINE_REASONS and other.reason in ROUTINE_REASONS
