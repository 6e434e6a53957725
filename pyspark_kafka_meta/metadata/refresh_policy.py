"""When a metadata cache asks again, why, and which broker: timing without a clock, choice without a socket.

Follows Kafka's `Metadata.timeToNextUpdate` (both of its backoffs), KIP-580 (exponential backoff with jitter) and
KIP-899 and KIP-1102 (back to the bootstrap addresses).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from pyspark_kafka_meta.metadata.refresh_events import RefreshCause
from pyspark_kafka_meta.metadata.snapshot_changes import SnapshotChanges
from pyspark_kafka_meta.model import Address, RefreshReason

BACKOFF_MULTIPLIER = 2.0
BACKOFF_JITTER = 0.2
MIN_BACKOFF_MS = 10
"""Also where the settings say 0, as Kafka lets them: brokers in trouble are not asked without a pause."""
MAX_AGE_JITTER = 0.2
"""The caches of a query are born together: without jitter they would ask together again, each time max age is over."""
MAX_EXPONENT = 20
"""Far above any bound of the backoff, and no overflow."""
FIRST_ATTEMPT_TIMEOUT_MS = 3_000
SLOW_S = 1.0
"""A failed attempt that took this long was waited for: it is a slow one. A refusal comes sooner."""
SLOW_ATTEMPTS_BEFORE_BOOTSTRAP = 2
"""After this many, all that is known may be gone: the bootstrap addresses are asked before more known brokers."""
TROUBLE_PASSES_AFTER_S = 10.0
"""Lasting trouble is reported again with each attempt to read: where none was for this long, or for twice the longest
backoff, it is over."""
QUIET_REASONS = frozenset(
    {
        RefreshReason.BOOTSTRAP,
        RefreshReason.NEW_TOPIC,
        RefreshReason.MAX_AGE,
        RefreshReason.ON_DEMAND,
        RefreshReason.LEADER_HINT,
    }
)
"""Reasons to ask although nothing is wrong."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Kafka's client settings of the same names.

    Attributes:
        metadata_max_age_ms: an answer is good for this long at most while nothing goes wrong, or up to a fifth
            shorter.
        retry_backoff_ms: pause after a failed refresh, and between any two; doubles with each that brings nothing.
        retry_backoff_max_ms: bound of that pause.
    """

    metadata_max_age_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps a cache from being right, and since when (seconds of its clock)."""

    since: float
    cause: RefreshCause

    def is_ended_by(self, changes: SnapshotChanges, by_hint: bool) -> bool:
        """Whether a good answer, or a hint, that made `changes` is the end of it."""
        if self.cause.reason in QUIET_REASONS:
            return not by_hint  # the trouble was that nobody answered
        if self.cause.partition is not None:
            return changes.gives_leader(self.cause.partition)
        return bool(changes) and not by_hint  # a hint is about one partition, and this is about a broker


class RefreshPolicy:
    """Whether a refresh is due. `now` is in seconds, of any clock that never goes back."""

    def __init__(self, settings: PolicySettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._pending: RefreshCause | None = RefreshCause(RefreshReason.BOOTSTRAP)
        self._trouble: Trouble | None = None
        self._reported = float("-inf")  # when trouble was, last
        self._began = 0.0
        self._expires = float("-inf")
        self._not_before = float("-inf")
        self._attempts = 0  # since the last good answer
        self._slow_attempts = 0  # since the last good answer
        self._failed_rounds = 0  # since the last good answer
        self._equivalent_answers = 0  # good answers in a row that changed nothing although trouble was reported

    @property
    def in_trouble(self) -> bool:
        """Whether trouble was reported that no answer has ended yet."""
        return self._trouble is not None

    @property
    def slow_attempts(self) -> int:
        """Since the last good answer."""
        return self._slow_attempts

    def request_update(self, cause: RefreshCause, now: float, at_once: bool = False) -> None:
        """Make a refresh due, as soon as the backoff allows. Of several causes the first trouble counts.

        Args:
            at_once: whether the pause after a good answer is left out; pauses after failures stay.
        """
        if at_once and self._attempts == 0:
            self._not_before = now
        if self._pending is None or _is_graver(cause, self._pending):
            self._pending = cause
        passes_after_s = max(TROUBLE_PASSES_AFTER_S, 2 * self._settings.retry_backoff_max_ms / 1000)
        if self._attempts == 0 and now > self._reported + passes_after_s:
            self._trouble = None  # what is reported now is another one
        if cause.reason not in QUIET_REASONS:
            self._reported = now
            if self._trouble is None or _is_graver(cause, self._trouble.cause):
                self._trouble = Trouble(now, cause)

    def time_to_next_update_ms(self, now: float) -> float:
        """0 if a refresh is due now. To the microsecond, so that a sleep of this length does not end too early."""
        wanted = self._expires if self._pending is None else now
        return round(max(wanted - now, self._not_before - now, 0.0) * 1000, 3)

    def begin(self, now: float) -> tuple[RefreshCause, int]:
        """A refresh starts; `succeeded` or `failed` must follow. Why, and which attempt since the last good answer."""
        cause = self._pending or RefreshCause(RefreshReason.MAX_AGE)
        if self._attempts == 0 and cause.reason in QUIET_REASONS:
            self._trouble = None  # nobody reported it again after the last answer: it has passed
        self._pending, self._began = cause, now
        self._attempts += 1
        return cause, self._attempts

    def succeeded(self, now: float, changes: SnapshotChanges) -> None:
        """A good answer came; every request made so far is answered by it."""
        quiet = self._pending is None or self._pending.reason in QUIET_REASONS
        self._equivalent_answers = 0 if quiet or changes else self._equivalent_answers + 1
        self._pending, self._attempts, self._slow_attempts, self._failed_rounds = None, 0, 0, 0
        max_age_ms = self._settings.metadata_max_age_ms * self._rng.uniform(1 - MAX_AGE_JITTER, 1)
        self._expires = self._began + max_age_ms / 1000
        self._not_before = now + self._backoff_s(max(self._equivalent_answers, 1))

    def failed(self, now: float, round_over: bool) -> None:
        """No good answer came; the refresh stays due.

        Args:
            round_over: every broker was asked since the last pause. If not, the next one is asked without a pause.
        """
        if self._trouble is None and self._pending is not None:
            self._trouble = Trouble(self._began, self._pending)
        if round(now - self._began, 3) >= SLOW_S:
            self._slow_attempts += 1
        if round_over:
            self._failed_rounds += 1
            self._not_before = now + self._backoff_s(self._failed_rounds)

    def end_trouble(self, now: float, changes: SnapshotChanges, by_hint: bool = False) -> float | None:
        """How long the trouble lasted that `changes`, by an answer or a hint, end; None if they end none."""
        if self._trouble is None or not self._trouble.is_ended_by(changes, by_hint):
            return None
        since, self._trouble = self._trouble.since, None
        return round((now - since) * 1000, 3)

    def _backoff_s(self, failures: int) -> float:
        return backoff_s(self._settings, failures, self._rng)


def backoff_s(settings: PolicySettings, failures: int, rng: random.Random) -> float:
    """The pause, in seconds, after `failures` in a row, from 1 (KIP-580)."""
    exponential = settings.retry_backoff_ms * BACKOFF_MULTIPLIER ** min(failures - 1, MAX_EXPONENT)
    # Bounded before the jitter too, as in Kafka's ExponentialBackoff: else caches that wait long would ask in step.
    bounded = min(exponential, settings.retry_backoff_max_ms)
    jitter = rng.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER)
    return max(min(bounded * jitter, settings.retry_backoff_max_ms), MIN_BACKOFF_MS) / 1000


def attempt_timeout_ms(slow_attempts: int, request_timeout_ms: int) -> int:
    """How long a question that a broker answers at once, such as Metadata, may go unanswered.

    Little at first, because another broker answers if this one hangs; twice as long each time, in case all are slow.

    Args:
        slow_attempts: how many went unanswered before.
        request_timeout_ms: the most it may be.
    """
    return min(FIRST_ATTEMPT_TIMEOUT_MS << min(slow_attempts, MAX_EXPONENT), request_timeout_ms)


class BrokerChoice:
    """Which broker to ask: the one that answered last, to save connections; else any known one; the bootstrap addresses
    at first, and when every known broker failed since the last good answer, or several timed out. Once one of them has
    answered, any broker is asked next.

    Attributes:
        is_rebootstrapping: whether only the bootstrap addresses are asked, although brokers may be known.
    """

    def __init__(self, bootstrap: Sequence[Address], rng: random.Random) -> None:
        self._bootstrap = bootstrap
        self._rng = rng
        self._failed: set[Address] = set()
        self._suspects: list[Address] = []  # since the last good answer, the latest suspect at the end
        self._last_good: Address | None = None
        self._answered: Address | None = None  # the last one to do so, also from the bootstrap list
        self._asks_member = False  # the last one to be asked was a known broker then
        self.is_rebootstrapping = False

    def next(self, brokers: Collection[Address], slow_attempts: int = 0) -> Address:
        """The address to ask, after `slow_attempts` since the last good answer. It is one of `brokers`, unless it
        comes from the bootstrap list."""
        address = self._choose(brokers, slow_attempts >= SLOW_ATTEMPTS_BEFORE_BOOTSTRAP)
        assert address is not None, "a round that is over begins anew, and there is a bootstrap address"
        self._asks_member = address in brokers
        return address

    def avoid(self, address: Address) -> None:
        """Ask another one next, if there is another."""
        self._suspects = [one for one in self._suspects if one != address] + [address]

    def avoid_last(self) -> None:
        """Ask another one next than the one that answered last, if there is another."""
        if self._answered is not None:
            self.avoid(self._answered)

    def rebootstrap(self) -> None:
        """Until a good answer comes only the bootstrap addresses are asked: a broker said so (KIP-1102)."""
        self.is_rebootstrapping = True

    def answered(self, address: Address) -> None:
        """A good answer came from the one that `next` named."""
        self.is_rebootstrapping = False
        self._failed.clear()
        # All clients begin with the same few addresses: if they stayed there, the other brokers would have no share.
        self._suspects, self._last_good = [], address if self._asks_member else None
        self._answered = address

    def failed(self, address: Address, brokers: Collection[Address]) -> bool:
        """Returns whether that was the last one to try: then all may be tried again."""
        self._failed.add(address)
        round_over = self._choose(brokers) is None
        if round_over:
            self._failed.clear()
            self.avoid(address)
        return round_over

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
    """The next address that has not failed, one pool after the other, in random order but for the last good one, which
    goes first, and the suspects, which go last, in their order. None when all have failed."""
    ranks = {address: rank for rank, address in enumerate(suspects, 1)}
    for pool in pools:
        left = [address for address in pool if address not in failed]
        if last_good in left and last_good not in ranks:
            return last_good
        if left:
            return min(left, key=lambda address: (ranks.get(address, 0), rng.random()))
    return None


def _is_graver(cause: RefreshCause, other: RefreshCause) -> bool:
    return cause.reason not in QUIET_REASONS and other.reason in QUIET_REASONS
