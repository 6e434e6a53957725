"""`BrokerRequests`: rare requests of one kind to any broker, to a coordinator or to a broker by its id, with retries.

`transaction_coordinators`, `consumer_groups` and `cluster_admin` are built on it. Requests to leaders of partitions are
in `leader_requests`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from pyspark_kafka_meta.kafka.protocol.requests import RequestFailure, Requests
from pyspark_kafka_meta.model import Broker, RefreshReason

Outcome: TypeAlias = Any
"""What became of one request: its response, or its failure (`KafkaMetaError`), which is retriable unless `_exchange`
returns all."""


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
        """Send requests, one in flight to each broker, and return all with their responses. A failure is of all
        requests that the broker has not handled.

        Args:
            raises: False to return failures that are not retriable too.

        Raises:
            KafkaMetaError: a failure that is not retriable.
        """
        generation = self._cache.snapshot.generation
        waiting = {broker.node_id: (broker, deque(members)) for broker, members in requests.items()}
        outcomes: list[tuple[Broker, Any, Outcome]] = []
        try:
            for broker, queue in waiting.values():
                self._send(broker, queue[0], deadline)
            while waiting:
                received = self._receive(waiting, deadline)
                broker, queue = waiting[received.node_id]
                if isinstance(received, RequestFailure):
                    self._on_failure(received, generation, raises)
                    outcomes += [(broker, request, received.error) for request in queue]
                    queue.clear()
                else:
                    self._on_response(received)
                    outcomes.append((broker, queue.popleft(), received))
                if queue:
                    self._send(broker, queue[0], deadline)
                else:
                    del waiting[broker.node_id]
        finally:
            for node_id in waiting:
                self._requests.drop(node_id)
        return outcomes

    def _send(self, broker: Broker, request: Any, deadline: float) -> None:
        timeout_ms = attempt_timeout_ms(self._failures[broker.node_id], self._client.options.request_timeout_ms)
        self._requests.send(broker, request, min(deadline, self._client.clock() + timeout_ms / 1000))

    def _receive(self, node_ids: Collection[int], deadline: float) -> Any:
        while (received := self._requests.receive(node_ids, deadline)) is None:
            self._cache.refresh_if_due(deadline, until=self._client.clock())  # a Metadata response interrupted the wait
            if self._client.clock() >= deadline:
                node_id = next(iter(node_ids))
                self._requests.drop(node_id)
                return RequestFailure(node_id, ConnectError(f"broker {node_id} did not respond in time"))
        return received

    def _on_failure(self, failure: RequestFailure, generation: int, raises: bool) -> None:
        is_retriable = isinstance(failure.error, RETRIABLE_ERRORS)
        if raises and not is_retriable:
            raise failure.error
        self._failures[failure.node_id] += 1
        if is_retriable:
            self._cache.report_failure(failure.error, generation, failure.node_id)

    def _on_response(self, response: Any) -> None:
        del self._failures[response.node_id]
        self._client.take_throttle(response.node_id, response.throttle_ms)
