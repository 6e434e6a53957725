"""`CacheState`: the state of a metadata cache, without a lock, a clock or a socket.

Combines the snapshot, the refresh policy and the choice of brokers, and records events. Follows Kafka's `Metadata`.

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
  if the reason is ON_DEMAND, with the broker that is doubted; `begin` at the maximum age, as nothing else may show it.
- A leader is cut off, and replaced. 1. A plan is of the new leader's log. 2. This cache names the old leader, whose log
  ends before. Guard: `raise_epochs` makes the old leader unknown.
- Another cluster gets the address of a broker. 1. It has a topic of the same name. 2. The metadata of this topic would
  replace the metadata of the topic that is read. Guard: `_response_error` compares cluster ids.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    ConnectError,
    KafkaMetaError,
    OtherClusterError,
    ProtocolError,
    RefusedRequestError,
    RequestTimeoutError,
    UnknownHostError,
)
from pyspark_kafka_meta.kafka.metadata.event_recorder import Attempt, EventRecorder
from pyspark_kafka_meta.kafka.metadata.refresh_events import RefreshCause
from pyspark_kafka_meta.kafka.metadata.refresh_policy import BrokerChoice, PolicySettings, RefreshPolicy
from pyspark_kafka_meta.kafka.metadata.snapshot import MetadataSnapshot
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

logger = logging.getLogger(__name__)

RETRIABLE_ERRORS = (ConnectError, ProtocolError, RequestTimeoutError)
"""Another broker may respond, or the same broker later."""
MAX_IDLE_S = 300.0
"""How long a missing topic that is no longer looked up stays in requests (Kafka's metadata.max.idle.ms)."""
MISTAKE_TIMEOUTS_S: Mapping[type, float] = {UnknownHostError: 3.0, RefusedRequestError: 10.0}
"""How long a new query retries if all bootstrap addresses fail like this."""
SUSPECT_REASONS = frozenset({RefreshReason.CONNECTION_LOST, RefreshReason.REQUEST_TIMEOUT, RefreshReason.ON_DEMAND})
"""The broker that the cause names is asked after others."""


class CacheState:
    """The state of one cache. `now` is in seconds of the cache's clock.

    Attributes:
        snapshot: the current metadata.
        fatal_error: of the last failure, if it ends the refresh (`handle_failure`).
    """

    def __init__(
        self, events: EventRecorder, bootstrap: Sequence[Address], settings: PolicySettings, rng: random.Random
    ) -> None:
        self.snapshot = MetadataSnapshot()
        self._events = events
        self._bootstrap = bootstrap
        self._policy = RefreshPolicy(settings, rng)
        self._choice = BrokerChoice(bootstrap, rng)
        self._topics: dict[str, float] = {}  # time of the last lookup
        self._unseen_epochs: Mapping[TopicPartition, TopicEpoch] = {}  # of partitions without metadata yet
        self.fatal_error: KafkaMetaError | None = None
        self._failures: dict[Address, KafkaMetaError] = {}  # since the last successful refresh
        self._refusals: dict[Address, KafkaMetaError] = {}  # failures that are not retriable
        self._warned = False  # that all addresses failed
        self._passed_over: set[Address] = set()  # a warning named them

    def track(self, topics: Collection[str], now: float) -> set[str]:
        """Returns the new topics."""
        new = set(topics) - self._topics.keys()
        if new:
            self._policy.request_update(RefreshCause(RefreshReason.NEW_TOPIC), now)
        self._topics.update(dict.fromkeys(topics, now))
        return new

    def leader(self, partition: TopicPartition, now: float) -> LeaderAndEpoch | None:
        self._topics[partition.topic] = now
        self._events.count_lookup(now)
        return self.snapshot.leader(partition)

    def raise_epochs(self, epochs: Mapping[TopicPartition, TopicEpoch]) -> None:
        """Leaders of lower epochs count as replaced, also in metadata that comes later."""
        self.snapshot = self.snapshot.with_epochs(epochs)
        self._unseen_epochs = {
            partition: epoch
            for partition, epoch in epochs.items()
            if (view := self.snapshot.topics.get(partition.topic)) is None or partition.partition not in view.partitions
        }

    def request_update(self, cause: RefreshCause, generation: int, now: float, at_once: bool = False) -> None:
        if generation < self.snapshot.generation:
            return
        self._policy.request_update(cause, now, at_once)
        if cause.reason is RefreshReason.ON_DEMAND:
            self._choice.avoid_last()  # verify a doubtful response with another broker
        suspect = None if cause.node_id is None else self.snapshot.brokers.get(cause.node_id)
        if suspect is not None and cause.reason in SUSPECT_REASONS:
            self._choice.avoid(suspect.address)

    def ask_first(self, node_id: int) -> None:
        """The next request is for this broker, if it is known."""
        if node_id in self.snapshot.brokers:
            self._choice.prefer(self.snapshot.brokers[node_id].address)

    def time_to_next_update_ms(self, now: float) -> float:
        return self._policy.time_to_next_update_ms(now)

    def begin(self, now: float, deadline: float) -> Attempt:
        """Starts a refresh; `handle_response` or `handle_failure` must follow."""
        brokers = self._addresses()
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
            cause = replace(cause, reason=RefreshReason.REBOOTSTRAP)
        return Attempt(cause, number, slow_before, self.snapshot, frozenset(self._topics), address, now, deadline)

    def handle_failure(self, attempt: Attempt, error: KafkaMetaError, now: float) -> None:
        """Take the error of an attempt. Sets `fatal_error` if it ends the refresh, else None."""
        is_retriable = isinstance(error, RETRIABLE_ERRORS)
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
        self._events.record_failure(attempt, now, error)

    def pass_over(self, address: Address, error: KafkaMetaError) -> None:
        """Warn once of a broker that fails for good while others respond."""
        if address not in self._passed_over:
            self._passed_over.add(address)
            logger.warning("%s. Asking other brokers", error)

    def handle_response(self, attempt: Attempt, response: MetadataResponse, now: float) -> bool:
        """Whether the response refreshed the metadata: it may be an error, or of another cluster."""
        if response.error_code == REBOOTSTRAP_REQUIRED:
            self._choice.rebootstrap()
        error = self._response_error(attempt.address, response)
        if error is None:
            self._merge(attempt, response, now)
        else:
            self.handle_failure(attempt, error, now)
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

    def take_hint(
        self,
        cause: RefreshCause,
        partition: TopicPartition,
        hint: LeaderHint,
        generation: int,
        now: float,
    ) -> bool:
        """Whether the hint was taken."""
        hinted = self.snapshot.with_leader_hint(partition, hint)
        if hinted is None or generation < self.snapshot.generation:
            return False
        self.snapshot, changes = hinted
        self._policy.request_update(cause, now)
        recovery_ms = self._policy.resolve_problem(now, changes, by_hint=True)
        # A problem without an earlier report began and ended with the response that brought the hint.
        self._events.record_hint(cause, self.snapshot, now, changes, recovery_ms or 0.0)
        return True

    def retry_deadline(self, reason: RefreshReason, began: float, deadline: float) -> float:
        """When `refresh` stops retrying: early if a new query can resolve no bootstrap host name, or expects another
        protocol at each port, which is probably a mistake. A running task retries, because that may recover."""
        failures = [self._failures.get(address) for address in self._bootstrap]
        timeouts_s = [MISTAKE_TIMEOUTS_S.get(type(failure), math.inf) for failure in failures]
        return min(began + max(timeouts_s), deadline) if reason is RefreshReason.BOOTSTRAP else deadline

    def unreachable_message(self) -> str:
        return (
            f"no broker responded to a Metadata request in time ({self._failure_texts() or 'no time was left'}): check "
            "kafka.bootstrap.servers, that the brokers are up, and that this host can reach them"
        )

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
        self._events.record_response(attempt, self.snapshot, now, response, changes, recovery_ms)

    def _addresses(self) -> list[Address]:
        return [broker.address for broker in self.snapshot.brokers.values()]
