"""`CacheState`: the state of a metadata cache, without a lock or a socket.

Combines the snapshot, the refresh policy and the choice of brokers, and reports facts to its observer, which makes
events of them. Follows Kafka's `Metadata`. `MetadataCache` adds the requests.

Each successful refresh makes a snapshot of the next generation. A caller that reports an error, or a leader hint
(KIP-951), names the generation that its request used. A hint changes the snapshot within its generation.

| topic | in requests |
|---|---|
| tracked, or looked up | yes |
| not known, with an error in the last response | for `MAX_IDLE_S` after its last lookup |
| its name is not valid, by the last response | no, until it is tracked or looked up again |

| failed attempt | what follows |
|---|---|
| `RETRIABLE_ERRORS`: no connection, no response, or an unusable response | another address is asked |
| REBOOTSTRAP_REQUIRED | the same, and only bootstrap addresses until a refresh succeeds |
| not retriable, such as an expired certificate or another cluster | the same, with one warning for each address |
| all addresses failed | one warning, and after a backoff all are asked again |
| all addresses failed, and an error since the last refresh was not retriable | `fatal_error`: the refresh ends |
| a refused login | `fatal_error` at once: more refused logins may lock out the user |

Races, and their guards:

- A late error. 1. Two Fetches of generation 7 fail. 2. The first report leads to generation 8. 3. The second report
  would lead to generation 9 before the new leader was tried. Guard: `request_update` ignores older generations.
- A late hint. 1. A Fetch of generation 7 is in flight. 2. Generation 8 has a recreated topic, whose epochs begin at 0.
  3. The response names a leader of the old topic in epoch 5, which looks newer. Guard: `take_hint` ignores older
  generations.
- A topic is added during a request. 1. The request names topic t. 2. `track` adds topic u. 3. The response meets all
  earlier requests for a refresh, but has no u. Guard: `_merge` compares the topics with `Attempt.topics`, and requests
  another refresh.
- A hint is taken during a request. 1. The hint names a leader. 2. The response to the earlier request has an older
  epoch, and is ignored for this partition. 3. Nothing would confirm the hint before the maximum age. Guard: `_merge`
  finds that the snapshot is not `Attempt.before`, and requests another refresh.
- A response waits for its caller. 1. It arrives while Spark takes rows for minutes. 2. An age that is counted from the
  end of this wait would be minutes too low. Guards: `_merge` takes `Attempt.began` as its time, and `RefreshPolicy`
  counts the age from `begin`.
- A broker is cut off from the cluster. 1. It responds with old metadata. 2. The broker that responded last is asked
  first: it would be asked again and again. Guards: `_merge` avoids it while a problem is unresolved; `request_update`
  if the reason is ON_DEMAND, with the broker that is doubted; `_begin` at the maximum age, as nothing else may show it.
- A leader is cut off, and replaced. 1. A plan is of the new leader's log. 2. This cache names the old leader, whose log
  ends before. Guard: `raise_epochs` makes the old leader unknown.
- Another cluster gets the address of a broker. 1. It has a topic of the same name. 2. The metadata of this topic would
  replace the metadata of the topic that is read. Guard: `_response_error` compares cluster ids.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from pyspark_kafka_meta.errors import (
    RETRIABLE_ERRORS,
    AuthenticationError,
    KafkaMetaError,
    OtherClusterError,
    ProtocolError,
    RefusedRequestError,
    UnknownHostError,
)
from pyspark_kafka_meta.kafka.metadata.refresh_policy import BrokerChoice, RefreshCause, RefreshPolicy
from pyspark_kafka_meta.kafka.metadata.snapshot import MetadataSnapshot, SnapshotChanges
from pyspark_kafka_meta.kafka.protocol.error_codes import INVALID_TOPIC_EXCEPTION, REBOOTSTRAP_REQUIRED, describe
from pyspark_kafka_meta.model import (
    Address,
    LeaderAndEpoch,
    LeaderHint,
    MetadataResponse,
    RefreshReason,
    TopicEpoch,
    TopicPartition,
)
from pyspark_kafka_meta.options import ClientOptions

logger = logging.getLogger(__name__)

MAX_IDLE_S = 300.0
"""How long a missing topic that is no longer looked up stays in requests (Kafka's metadata.max.idle.ms)."""
MISTAKE_TIMEOUTS_S: Mapping[type, float] = {UnknownHostError: 3.0, RefusedRequestError: 10.0}
"""How long a new query retries if all bootstrap addresses fail like this."""
SUSPECT_REASONS = frozenset({RefreshReason.CONNECTION_LOST, RefreshReason.REQUEST_TIMEOUT, RefreshReason.ON_DEMAND})
"""The broker that the cause names is asked after others."""


class Attempt(NamedTuple):
    """A Metadata request in flight.

    Attributes:
        number: since the last successful refresh, from 1.
        slow_before: slow attempts among those before it.
        before: snapshot when the attempt began.
        began: seconds of the cache's clock.
        deadline: of the caller who sent it, seconds of the same clock; infinite in a task, which has its own.
    """

    cause: RefreshCause
    number: int
    slow_before: int
    before: MetadataSnapshot
    topics: frozenset[str]
    address: Address
    began: float
    deadline: float


class Refreshed(NamedTuple):
    """A Metadata request ended, with a response or without, which changed the metadata or not. It holds no snapshot,
    because a thousand events may wait in memory.

    Attributes:
        cause: what made the refresh due.
        began: seconds of the cache's clock.
        generation_before: of the snapshot at this time.
        fetched_before: when this snapshot was fetched, seconds of the same clock.
        broker_id: broker of the request, None for a bootstrap address.
        latency_ms: duration of the request with connecting; of a schema lookup with retries.
        attempt: its number since the last good response, from 1; 0 without one.
        error: what went wrong, else None.
        recovery_ms: duration of the problem that the event ended; 0 for a hint in the error response.
    """

    cause: RefreshCause
    began: float
    generation_before: int
    fetched_before: float
    broker_id: int | None
    broker_host: str
    broker_port: int
    latency_ms: float
    attempt: int
    api_version: int | None = None
    correlation_id: int | None = None
    request_bytes: int | None = None
    response_bytes: int | None = None
    throttle_ms: int | None = None
    error: str | None = None
    recovery_ms: float | None = None
    changes: SnapshotChanges = SnapshotChanges()


class LeaderHinted(NamedTuple):
    """A leader was taken from an error response (KIP-951). `recovery_ms` is as in `Refreshed`."""

    cause: RefreshCause
    recovery_ms: float
    changes: SnapshotChanges


CacheFact = Refreshed | LeaderHinted


class CacheState:
    """The state of one cache.

    Attributes:
        last_lookup: seconds of the cache's clock; None before the first.
        fatal_error: of the last failure, if it ends the refresh (`_handle_failure`).
    """

    def __init__(
        self,
        observe: Callable[[CacheFact], None],
        options: ClientOptions,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self.snapshot = MetadataSnapshot()
        self.lookups = 0
        self.last_lookup: float | None = None
        self._observe = observe
        self._options = options
        self._clock = clock
        self._policy = RefreshPolicy(options, rng)
        self._choice = BrokerChoice(options.bootstrap_servers, rng)
        self._attempt: Attempt | None = None  # in flight
        self._topics: dict[str, float] = {}  # time of the last lookup
        self._unseen_epochs: Mapping[TopicPartition, TopicEpoch] = {}  # of partitions without metadata yet
        self.fatal_error: KafkaMetaError | None = None
        self._failures: dict[Address, KafkaMetaError] = {}  # since the last successful refresh
        self._refusals: dict[Address, KafkaMetaError] = {}  # failures that are not retriable
        self._warned = False  # that all addresses failed
        self._passed_over: set[Address] = set()  # a warning named them

    def track(self, topics: Collection[str]) -> set[str]:
        """Add topics to all further requests. A new topic makes a refresh due. Returns the new topics."""
        new, now = set(topics) - self._topics.keys(), self._clock()
        if new:
            self._policy.request_update(RefreshCause(RefreshReason.NEW_TOPIC), now)
        self._topics.update(dict.fromkeys(topics, now))
        return new

    def leader(self, partition: TopicPartition) -> LeaderAndEpoch | None:
        """The broker to fetch from; None if no leader is known."""
        self._topics[partition.topic] = self.last_lookup = self._clock()
        self.lookups += 1
        return self.snapshot.leader(partition)

    def raise_epochs(self, epochs: Mapping[TopicPartition, TopicEpoch]) -> None:
        """Take leader epochs from a plan or a checkpoint: leaders of lower epochs were replaced, and count as unknown,
        also in metadata that comes later. Replaces the epochs of partitions that have no metadata yet."""
        self.snapshot = self.snapshot.with_epochs(epochs)
        self._unseen_epochs = {
            partition: epoch
            for partition, epoch in epochs.items()
            if (view := self.snapshot.topics.get(partition.topic)) is None or partition.partition not in view.partitions
        }

    def request_update(
        self,
        reason: RefreshReason,
        generation: int,
        partition: TopicPartition | None = None,
        error_code: int = 0,
        node_id: int | None = None,
        at_once: bool = False,
    ) -> None:
        """Make a refresh due, unless the snapshot is newer: the caller looks at the newer snapshot first.

        Args:
            generation: of the snapshot that led to the error.
            at_once: skip the backoff after a successful refresh.
        """
        if generation < self.snapshot.generation:
            return
        self._policy.request_update(RefreshCause(reason, error_code, partition, node_id), self._clock(), at_once)
        if reason is RefreshReason.ON_DEMAND:
            self._choice.avoid_last()  # verify a doubtful response with another broker
        suspect = None if node_id is None else self.snapshot.brokers.get(node_id)
        if suspect is not None and reason in SUSPECT_REASONS:
            self._choice.avoid(suspect.address)

    @property
    def has_request_in_flight(self) -> bool:
        return self._attempt is not None

    def time_to_next_update_ms(self) -> float:
        """0 if a refresh is due now; infinite while a request is in flight."""
        return math.inf if self.has_request_in_flight else self._policy.time_to_next_update_ms(self._clock())

    def take_hint(
        self,
        partition: TopicPartition,
        hint: LeaderHint,
        generation: int,
        error_code: int = 0,
        node_id: int | None = None,
    ) -> bool:
        """Use the leader that an error response names (KIP-951), and make a refresh due that confirms it.
        `generation` is of the snapshot that the failed request used. Returns whether the hint was taken: it is ignored
        if its epoch is not the newest, its broker is unknown, or the snapshot is newer, because the topic may have been
        recreated since.
        """
        hinted, now = self.snapshot.with_leader_hint(partition, hint), self._clock()
        if hinted is None or generation < self.snapshot.generation:
            return False
        cause = RefreshCause(RefreshReason.LEADER_HINT, error_code, partition, node_id)
        self.snapshot, changes = hinted
        self._policy.request_update(cause, now)
        recovery_ms = self._policy.resolve_problem(now, changes, by_hint=True)
        # A problem without an earlier report began and ended with the response that brought the hint.
        self._observe(LeaderHinted(cause, recovery_ms or 0.0, changes))
        return True

    def pass_over(self, address: Address, error: KafkaMetaError) -> None:
        """Warn once of a broker that fails for good, such as for its certificate, while others respond."""
        if address not in self._passed_over:
            self._passed_over.add(address)
            logger.warning("%s. Asking other brokers", error)

    # --- a refresh ----------------------------------------------------------------------------------------------------

    def _begin(self, deadline: float) -> Attempt:
        """Starts a refresh; `_handle_response` or `_handle_failure` must follow."""
        now, brokers = self._clock(), self._addresses()
        # Otherwise a query over daily topics would request every topic that ever existed.
        missing = self.snapshot.topic_errors.keys() - self.snapshot.topics.keys()
        self._topics = {
            topic: last_lookup
            for topic, last_lookup in self._topics.items()
            if topic not in missing or now < last_lookup + MAX_IDLE_S
        }
        slow_before = self._policy.slow_attempts
        cause, number = self._policy.begin(now)
        if cause.reason is RefreshReason.MAX_AGE:
            self._choice.turn()
        address = self._choice.next(brokers, slow_before)
        if brokers and (self._choice.is_rebootstrapping or address not in brokers):
            cause = cause._replace(reason=RefreshReason.REBOOTSTRAP)
        return Attempt(cause, number, slow_before, self.snapshot, frozenset(self._topics), address, now, deadline)

    def _handle_failure(self, attempt: Attempt, error: KafkaMetaError) -> None:
        """Take the error of an attempt. Sets `fatal_error` if it ends the refresh, else None."""
        now, is_retriable = self._clock(), isinstance(error, RETRIABLE_ERRORS)
        self._failures[attempt.address] = error
        if not is_retriable:
            self._refusals.pop(attempt.address, None)  # the latest comes last
            self._refusals[attempt.address] = error
        all_failed = self._choice.failed(attempt.address, self._addresses())
        self._policy.failed(now, all_failed)
        is_fatal = isinstance(error, AuthenticationError) or (all_failed and bool(self._refusals))
        self.fatal_error = [*self._refusals.values()][-1] if is_fatal else None
        if not is_fatal and not is_retriable:
            self.pass_over(attempt.address, error)
        if all_failed and not is_fatal and not self._warned:
            # The query may fail only a minute later.
            left_s = attempt.deadline - now
            how_long = f" for {left_s:.0f} s" if left_s < math.inf else ""
            logger.warning("no broker answers a Metadata request (%s); retrying%s", self._failure_texts(), how_long)
            self._warned = True
        self._report_refresh(attempt, now, error=str(error))

    def _handle_response(self, attempt: Attempt, response: MetadataResponse) -> bool:
        """Whether the response refreshed the metadata: it may be an error, or of another cluster."""
        if response.error_code == REBOOTSTRAP_REQUIRED:
            self._choice.rebootstrap()
        error = self._response_error(attempt.address, response)
        if error is None:
            self._merge(attempt, response, self._clock())
        else:
            self._handle_failure(attempt, error)
        return error is None

    def _response_error(self, address: Address, response: MetadataResponse) -> KafkaMetaError | None:
        if response.error_code != 0:
            return ProtocolError(f"{address} refused a Metadata request: {describe(response.error_code)}")
        if not response.brokers:
            return ProtocolError(f"{address} knows no brokers: it is starting up")
        known, reported = self.snapshot.cluster_id, response.cluster_id
        if None in (known, reported) or known == reported:
            return None
        return OtherClusterError(
            f"{address} belongs to cluster {reported}, and this client uses cluster {known}: name brokers of one "
            "cluster in kafka.bootstrap.servers; restart the query if the cluster was replaced"
        )

    def _retry_deadline(self, reason: RefreshReason, began: float, deadline: float) -> float:
        """When `refresh` stops retrying: early if a new query can resolve no bootstrap host name, or expects another
        protocol at each port, which is probably a mistake. A running task retries, because that may recover."""
        failures = [self._failures.get(address) for address in self._options.bootstrap_servers]
        timeouts_s = [MISTAKE_TIMEOUTS_S.get(type(failure), math.inf) for failure in failures]
        return min(began + max(timeouts_s), deadline) if reason is RefreshReason.BOOTSTRAP else deadline

    def _failure_texts(self) -> str:
        """The failure of each address since the last successful refresh."""
        failures = [(str(address), str(error)) for address, error in self._failures.items()]
        return "; ".join(text if address in text else f"{address}: {text}" for address, text in failures)

    def _merge(self, attempt: Attempt, response: MetadataResponse, now: float) -> None:
        hinted_meanwhile = self.snapshot is not attempt.before
        responders = (broker.node_id for broker in response.brokers if broker.address == attempt.address)
        self.snapshot, changes = self.snapshot.merge(response, attempt.began, next(responders, None))
        self.raise_epochs(self._unseen_epochs)
        self._failures.clear()
        self._refusals.clear()
        self._warned = False
        self._choice.succeeded(attempt.address)
        self._policy.succeeded(now, changes)
        recovery_ms = self._policy.resolve_problem(now, changes)
        if self._policy.has_problem or response.throttle_ms > 0:
            # The broker may be cut off from the cluster, or overloaded.
            self._choice.avoid(attempt.address)
        for topic in response.topics:
            if topic.error_code == INVALID_TOPIC_EXCEPTION:  # requested again only if it is looked up again
                self._topics.pop(topic.name, None)
        if not self._topics.keys() <= attempt.topics:
            self._policy.request_update(RefreshCause(RefreshReason.NEW_TOPIC), now)
        elif hinted_meanwhile:
            self._policy.request_update(RefreshCause(RefreshReason.LEADER_HINT), now)
        self._report_refresh(
            attempt,
            now,
            api_version=response.api_version,
            correlation_id=response.correlation_id,
            request_bytes=response.request_bytes,
            response_bytes=response.response_bytes,
            throttle_ms=response.throttle_ms,
            recovery_ms=recovery_ms,
            changes=changes,
        )

    def _report_refresh(self, attempt: Attempt, now: float, **result: Any) -> None:
        # The first response shows which broker has the bootstrap address, if any.
        responders = (broker.node_id for broker in self.snapshot.brokers.values() if broker.address == attempt.address)
        refreshed = Refreshed(
            attempt.cause,
            attempt.began,
            attempt.before.generation,
            attempt.before.fetched_at,
            broker_id=next(responders, None),
            broker_host=attempt.address.host,
            broker_port=attempt.address.port,
            latency_ms=(now - attempt.began) * 1000,
            attempt=attempt.number,
            **result,
        )
        self._observe(refreshed)

    def _addresses(self) -> list[Address]:
        return [broker.address for broker in self.snapshot.brokers.values()]
