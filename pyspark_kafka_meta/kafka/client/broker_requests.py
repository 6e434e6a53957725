"""`BrokerRequests`: rare requests of one kind, with retries: to any broker, to all brokers, or to coordinators.

`coordinators` and `cluster_admin` are built on it. Requests to leaders of partitions are in `leader_requests`.

| response | what follows |
|---|---|
| an error after which a coordinator may recover, or a failure that is retriable | a backoff, then another attempt |
| a failure of a coordinator, or an error that says that it moved | it is looked up again in the next attempt |
| any other | it is for the caller |

The coordinator of a transactional id or of a consumer group is the leader of a partition of an internal topic.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from pyspark_kafka_meta.errors import RETRIABLE_ERRORS, ConnectError, KafkaMetaError, TlsError
from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.metadata.refresh_policy import attempt_timeout_ms
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse, BrokerRequest
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    COORDINATOR_UNAVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    coordinator_may_recover,
    describe,
)
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure, Requests, connection_id
from pyspark_kafka_meta.kafka.protocol.transactions import TRANSACTION_KEY, FindCoordinatorRequest
from pyspark_kafka_meta.model import Broker, RefreshReason

T = TypeVar("T")
Outcome: TypeAlias = ApiResponse[T] | KafkaMetaError
"""What became of one request: its response, or its failure."""

MAX_CONNECTIONS = 16
"""To a broker with several requests: it handles those of one connection one after the other, and the end of a
transaction waits for replicas."""


class BrokerRequests:
    """Requests of one kind to the brokers of a cluster. Deadlines are in seconds of the client's clock. Not
    thread-safe."""

    key_type: ClassVar[int] = TRANSACTION_KEY
    """Of the coordinators."""

    def __init__(self, client: ClientState, requests: Requests[Any, Any]) -> None:
        self._client = client
        self._cache = client.cache
        self._requests = requests
        self._known: dict[str, Broker] = {}  # coordinators by transactional id or group
        self._failures: Counter[int] = Counter()  # in a row, by node id
        self._problem = ""  # the last
        self._code = 0  # of the last problem; 0 without a response
        self._problems: set[str] = set()  # of all attempts so far

    # --- retries ------------------------------------------------------------------------------------------------------

    def _attempts(self, deadline: float) -> Iterator[None]:
        """Once for each attempt before `deadline`, with backoffs between them."""
        failures, self._problem, self._code, self._problems = 0, "no time was left", 0, set()
        while self._client.clock() < deadline:
            yield
            failures += 1
            self._problems.add(self._problem)
            self._client.sleep(min(self._backoff_s(failures), max(deadline - self._client.clock(), 0)))
            self._cache.refresh_if_due(deadline)

    def _backoff_s(self, failures: int) -> float:
        return self._client.backoff_s(failures)

    def _ask_any(self, request: BrokerRequest[T], deadline: float, verb: str) -> ApiResponse[T]:
        """The response of any broker, or its error that is not retriable."""
        for _ in self._attempts(deadline):
            response = self._final(self._ask_one(request, deadline))
            if isinstance(response, KafkaMetaError):
                raise response
            if response is not None:
                return response
        raise ConnectError(f"no broker {verb} in time: {self._problem}")

    def _ask_all(
        self, request_to: Callable[[Broker], BrokerRequest[T]], deadline: float
    ) -> Iterator[tuple[Broker, Outcome[T]]]:
        """The response of each broker, or its failure for good, as they come; without brokers that do not respond by
        `deadline`."""
        done: set[int] = set()
        for _ in self._attempts(deadline):
            requests = {each: {"": request_to(each)} for each in self._brokers(deadline) if each.node_id not in done}
            for broker, _, outcome in self._exchange(requests, deadline):
                if (final := self._final(outcome)) is not None:
                    done.add(broker.node_id)
                    yield broker, final
            if done >= self._cache.snapshot.brokers.keys():
                return

    def _ask_coordinators(self, requests: Mapping[str, BrokerRequest[T]], deadline: float) -> dict[str, Outcome[T]]:
        """The responses of the coordinators by key, or their failures for good; without keys whose coordinator did not
        respond by `deadline`."""
        outcomes: dict[str, Outcome[T]] = {}
        if not requests:
            return outcomes  # also after the deadline
        for _ in self._attempts(deadline):
            missing = [key for key in requests if key not in outcomes]
            outcomes |= self._find(missing, deadline)
            by_coordinator: dict[Broker, dict[str, BrokerRequest[T]]] = {}
            for key in missing:
                if key in self._known:
                    by_coordinator.setdefault(self._known[key], {})[key] = requests[key]
            for _, key, outcome in self._exchange(by_coordinator, deadline):
                if isinstance(outcome, KafkaMetaError) or outcome.error_code in COORDINATOR_UNAVAILABLE:
                    del self._known[key]  # another broker may be the coordinator by now
                if (final := self._final(outcome)) is not None:
                    outcomes[key] = final
            if len(outcomes) == len(requests):
                break
        return outcomes

    def _find(self, keys: Sequence[str], deadline: float) -> dict[str, ApiResponse[Any]]:
        """Look up unknown coordinators, with one request where brokers take several keys. What fails stays unknown.
        Returns the errors of keys that have none for good, such as those that this user may not use."""
        refused: dict[str, ApiResponse[Any]] = {}
        unknown = [key for key in keys if key not in self._known]
        while unknown:
            response = self._final(self._ask_one(FindCoordinatorRequest(tuple(unknown), self.key_type), deadline))
            if isinstance(response, KafkaMetaError):
                raise response
            if response is None:
                break
            for key, found in response.result.items():
                if found.broker is not None:
                    self._known[key] = found.broker
                elif coordinator_may_recover(found.error_code):
                    self._code, self._problem = found.error_code, describe(found.error_code)
                else:
                    refused[key] = ApiResponse(response.node_id, found.error_code, None)
            unknown = [key for key in unknown if key not in response.result]
        return refused

    def _final(self, outcome: Outcome[T]) -> Outcome[T] | None:
        """The response, or the failure for good; None if the request is to be repeated. An unknown partition is for the
        caller."""
        if isinstance(outcome, KafkaMetaError):
            self._code, self._problem = 0, str(outcome)
            return None if isinstance(outcome, RETRIABLE_ERRORS) else outcome
        code = outcome.error_code
        if code != UNKNOWN_TOPIC_OR_PARTITION and coordinator_may_recover(code):
            self._code, self._problem = code, describe(code)
            return None
        return outcome

    # --- requests -----------------------------------------------------------------------------------------------------

    def _brokers(self, deadline: float) -> list[Broker]:
        if self._cache.snapshot.generation == 0:
            self._cache.refresh(RefreshReason.BOOTSTRAP, deadline)
        return list(self._cache.snapshot.brokers.values())

    def _ask_one(self, request: BrokerRequest[T], deadline: float) -> Outcome[T]:
        """One request to one of the brokers that have failed least. A broker with an unusable certificate is passed
        over, unless all have one."""
        brokers = self._brokers(deadline)
        self._client.rng.shuffle(brokers)
        outcome: Outcome[T] = ConnectError("the cluster has no brokers")
        for broker in sorted(brokers, key=lambda each: self._failures[each.node_id]):
            ((_, _, outcome),) = self._exchange({broker: {"": request}}, deadline)
            if not isinstance(outcome, TlsError):
                break
            self._cache.pass_over(broker.address, outcome)
        return outcome

    def _exchange(
        self, requests: Mapping[Broker, Mapping[str, BrokerRequest[T]]], deadline: float
    ) -> list[tuple[Broker, str, Outcome[T]]]:
        """Send the requests of each broker, over up to `MAX_CONNECTIONS`, and return the outcome of each, with its key.
        A connection fails with its request; the last one of a broker, with all requests that the broker has not
        handled."""
        generation = self._cache.snapshot.generation
        queues = {broker: deque(members.items()) for broker, members in requests.items()}
        in_flight: dict[int, tuple[Broker, str]] = {}  # by connection
        outcomes: list[tuple[Broker, str, Outcome[T]]] = []

        def send_next(broker: Broker, connection: int) -> None:
            key, request = queues[broker].popleft()
            in_flight[connection] = broker, key
            timeout_ms = attempt_timeout_ms(self._failures[broker.node_id], self._client.options.request_timeout_ms)
            until = min(deadline, self._client.clock() + timeout_ms / 1000)
            self._requests.send(replace(broker, node_id=connection), request, until)

        try:
            for broker, queue in queues.items():
                for number in range(min(MAX_CONNECTIONS, len(queue))):
                    send_next(broker, connection_id(broker.node_id, number))
            while in_flight:
                received = self._receive(in_flight, deadline)
                broker, key = in_flight.pop(received.node_id)
                if isinstance(received, RequestFailure):
                    is_last = all(other != broker for other, _ in in_flight.values())
                    self._failures[broker.node_id] += is_last
                    if isinstance(received.error, RETRIABLE_ERRORS):
                        self._client.report_failure(received.error, generation, broker.node_id)
                    failed = [key, *(each for each, _ in (queues.pop(broker) if is_last else ()))]
                    outcomes += [(broker, each, received.error) for each in failed]
                else:
                    del self._failures[broker.node_id]
                    self._client.take_throttle(broker.node_id, received.throttle_ms)
                    outcomes.append((broker, key, received))
                    if queues[broker]:
                        send_next(broker, received.node_id)
        finally:
            for connection in in_flight:
                self._requests.drop(connection)
        return outcomes

    def _receive(self, connections: Mapping[int, tuple[Broker, str]], deadline: float) -> Any:
        while (received := self._requests.receive(connections, deadline)) is None:
            self._cache.refresh_if_due(deadline, until=self._client.clock())  # a Metadata response interrupted the wait
            if self._client.clock() >= deadline:
                connection, (broker, _) = next(iter(connections.items()))
                self._requests.drop(connection)
                return RequestFailure(connection, ConnectError(f"broker {broker.node_id} did not respond in time"))
        return received
