"""`BrokerRequests`: rare requests of one kind to any broker, to a coordinator or to a broker by its id, with retries.

`transaction_coordinators`, `consumer_groups` and `cluster_admin` are built on it. Requests to leaders of partitions are
in `leader_requests`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, TlsError
from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.metadata.cache_state import RETRIABLE_ERRORS
from pyspark_kafka_meta.kafka.metadata.refresh_policy import attempt_timeout_ms
from pyspark_kafka_meta.kafka.protocol.error_codes import (
    COORDINATOR_UNAVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    coordinator_may_recover,
    describe,
)
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure, Requests, connection_id
from pyspark_kafka_meta.model import Broker, RefreshReason

Outcome: TypeAlias = Any
"""What became of one request: its response, or its failure (`KafkaMetaError`), which is retriable unless `_exchange`
returns all."""

MAX_CONNECTIONS = 16
"""To a broker with several requests: it handles those of one connection one after the other, and the end of a
transaction waits for replicas."""


class BrokerRequests:
    """Requests of one kind to the brokers of a cluster. Deadlines are in seconds of the client's clock. Not
    thread-safe."""

    def __init__(self, client: ClientState, requests: Requests[Any, Any]) -> None:
        self._client = client
        self._cache = client.cache
        self._requests = requests
        self._failures: Counter[int] = Counter()  # in a row, by node id
        self._problem = ""  # the last
        self._problems: set[str] = set()  # of all attempts so far

    # --- retries ------------------------------------------------------------------------------------------------------

    def _attempts(self, deadline: float) -> Iterator[None]:
        """Once for each attempt before `deadline`, with backoffs between them."""
        failures, self._problem, self._problems = 0, "no time was left", set()
        while self._client.clock() < deadline:
            yield
            failures += 1
            self._problems.add(self._problem)
            self._client.sleep(min(self._backoff_s(failures), max(deadline - self._client.clock(), 0)))
            self._cache.refresh_if_due(deadline)

    def _backoff_s(self, failures: int) -> float:
        return self._client.backoff_s(failures)

    def _ask_any(self, request: Any, deadline: float, verb: str) -> Any:
        """The response of any broker, or its error that is not retriable."""
        for _ in self._attempts(deadline):
            response = self._final(self._ask_one(request, deadline))
            if response is not None:
                return response
        raise ConnectError(f"no broker {verb} in time: {self._problem}")

    @staticmethod
    def _has_moved(outcome: Outcome) -> bool:
        """Whether another broker may be the coordinator by now."""
        return isinstance(outcome, KafkaMetaError) or getattr(outcome, "error_code", 0) in COORDINATOR_UNAVAILABLE

    def _final(self, outcome: Outcome) -> Any:
        """The response, or None if the request is to be repeated. An unknown partition is for the caller."""
        if isinstance(outcome, KafkaMetaError):
            self._problem = str(outcome)
            return None
        code = outcome.error_code
        if code != UNKNOWN_TOPIC_OR_PARTITION and coordinator_may_recover(code):
            self._problem = describe(code)
            return None
        return outcome

    def _final_or_refusal(self, outcome: Outcome) -> Any:
        """The response, or the failure that is not retriable. None if the request is to be repeated."""
        if isinstance(outcome, KafkaMetaError) and not isinstance(outcome, RETRIABLE_ERRORS):
            return outcome
        return self._final(outcome)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _brokers(self, deadline: float) -> list[Broker]:
        if self._cache.snapshot.generation == 0:
            self._cache.refresh(RefreshReason.BOOTSTRAP, deadline)
        return list(self._cache.snapshot.brokers.values())

    def _ask_one(self, request: Any, deadline: float) -> Outcome:
        """One request to one of the brokers that have failed least. A broker with an unusable certificate is passed
        over, unless all have one."""
        brokers = self._brokers(deadline)
        self._client.rng.shuffle(brokers)
        refusals: list[TlsError] = []
        for broker in sorted(brokers, key=lambda each: self._failures[each.node_id]):
            try:
                ((_, _, outcome),) = self._exchange({broker: [request]}, deadline)
                return outcome
            except TlsError as error:
                refusals.append(error)
                self._failures[broker.node_id] += 1
                self._cache.pass_over(broker.address, error)
        raise refusals[-1]

    def _exchange(
        self, requests: Mapping[Broker, Sequence[Any]], deadline: float, *, raises: bool = True
    ) -> list[tuple[Broker, Any, Outcome]]:
        """Send requests, over up to `MAX_CONNECTIONS` to each broker, and return all with their responses. A connection
        fails with its request; the last one of a broker, with all requests that the broker has not handled.

        Args:
            raises: False to return failures that are not retriable too.

        Raises:
            KafkaMetaError: a failure that is not retriable.
        """
        generation = self._cache.snapshot.generation
        queues = {broker: deque(members) for broker, members in requests.items()}
        in_flight: dict[int, tuple[Broker, Any]] = {}  # by connection
        outcomes: list[tuple[Broker, Any, Outcome]] = []

        def send_next(broker: Broker, connection: int) -> None:
            request = queues[broker].popleft()
            in_flight[connection] = broker, request
            self._send(broker, connection, request, deadline)

        try:
            for broker, queue in queues.items():
                for number in range(min(MAX_CONNECTIONS, len(queue))):
                    send_next(broker, connection_id(broker.node_id, number))
            while in_flight:
                received = self._receive(in_flight, deadline)
                broker, request = in_flight.pop(received.node_id)
                if isinstance(received, RequestFailure):
                    is_last = all(other != broker for other, _ in in_flight.values())
                    self._on_failure(broker.node_id, received.error, generation, raises, is_last)
                    failed = [request, *(queues.pop(broker) if is_last else ())]
                    outcomes += [(broker, each, received.error) for each in failed]
                else:
                    self._on_response(broker.node_id, received)
                    outcomes.append((broker, request, received))
                    if queues[broker]:
                        send_next(broker, received.node_id)
        finally:
            for connection in in_flight:
                self._requests.drop(connection)
        return outcomes

    def _send(self, broker: Broker, connection: int, request: Any, deadline: float) -> None:
        timeout_ms = attempt_timeout_ms(self._failures[broker.node_id], self._client.options.request_timeout_ms)
        until = min(deadline, self._client.clock() + timeout_ms / 1000)
        self._requests.send(replace(broker, node_id=connection), request, until)

    def _receive(self, connections: Mapping[int, tuple[Broker, Any]], deadline: float) -> Any:
        while (received := self._requests.receive(connections, deadline)) is None:
            self._cache.refresh_if_due(deadline, until=self._client.clock())  # a Metadata response interrupted the wait
            if self._client.clock() >= deadline:
                connection, (broker, _) = next(iter(connections.items()))
                self._requests.drop(connection)
                return RequestFailure(connection, ConnectError(f"broker {broker.node_id} did not respond in time"))
        return received

    def _on_failure(
        self, node_id: int, error: KafkaMetaError, generation: int, raises: bool, of_last_connection: bool
    ) -> None:
        is_retriable = isinstance(error, RETRIABLE_ERRORS)
        if raises and not is_retriable:
            raise error
        self._failures[node_id] += of_last_connection
        if is_retriable:
            self._cache.report_failure(error, generation, node_id)

    def _on_response(self, node_id: int, response: Any) -> None:
        del self._failures[node_id]
        self._client.take_throttle(node_id, response.throttle_ms)
