"""`ConsumerGroups`: reads and sets the committed offsets of consumer groups, without joining them (KIP-396), so that
tools for consumer lag see a query's progress. Follows Kafka's `AdminClient`, also for groups of KIP-848.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark_kafka_meta.errors import BrokerError, ConnectError, KafkaMetaError
from pyspark_kafka_meta.kafka.client.broker_requests import BrokerRequests, Outcome
from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.protocol.admin import OffsetCommitRequest, OffsetFetchRequest
from pyspark_kafka_meta.kafka.protocol.error_codes import COORDINATOR_UNAVAILABLE, describe
from pyspark_kafka_meta.kafka.protocol.transactions import GROUP_KEY, FindCoordinatorRequest
from pyspark_kafka_meta.model import Broker, TopicPartition

COORDINATOR_TIMEOUT_S = 10.0
"""How long a group may have no coordinator."""
COMMIT_TIMEOUT_S = 5.0
"""Bound of a micro-batch's wait for a commit that only tools read."""


class ConsumerGroups(BrokerRequests):
    """The groups of one cluster."""

    def __init__(self, client: ClientState) -> None:
        super().__init__(client, client.network.admin)
        self._known: dict[str, Broker] = {}  # coordinators by group
        self._code = 0  # of the last problem; 0 without a response

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of `partitions`, without partitions that have none.

        Raises:
            BrokerError: the group may not be read, or has no coordinator.
            ConnectError: no broker responded by default.api.timeout.ms.
            TlsError, AuthenticationError: this client cannot connect.
        """
        request = OffsetFetchRequest(group, tuple(sorted(partitions)))
        return dict(self._ask("listed", request, self._timeout_s).offsets)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> frozenset[str]:
        """Set the committed offsets of the group. Returns the topics that do not exist: they alone get none.

        Raises:
            BrokerError: the commit was refused, as while the group has members, or the group has no coordinator.
            ConnectError: no broker responded in `COMMIT_TIMEOUT_S`.
            TlsError, AuthenticationError: this client cannot connect.
        """
        request = OffsetCommitRequest(group, dict(sorted(offsets.items())))
        response = self._ask("committed", request, min(self._timeout_s, COMMIT_TIMEOUT_S))
        missing: frozenset[str] = response.missing_topics
        return missing

    def _ask(self, verb: str, request: OffsetFetchRequest | OffsetCommitRequest, timeout_s: float) -> Outcome:
        """Send the request again while the group's coordinator is being created or moved."""
        now = self._client.clock()
        problem = f"the offsets of consumer group {request.group} could not be {verb}"
        for _ in self._attempts(now + timeout_s):
            response = self._ask_coordinator(request, now + timeout_s)
            if response is not None and response.error_code != 0:
                raise _error(problem, response.error_code)
            if response is not None:
                return response
            if self._code in COORDINATOR_UNAVAILABLE and self._client.clock() >= now + COORDINATOR_TIMEOUT_S:
                break
        if self._code != 0:
            raise _error(problem, self._code)
        raise ConnectError(f"{problem} in time: {self._problem}")

    def _ask_coordinator(self, request: OffsetFetchRequest | OffsetCommitRequest, deadline: float) -> Outcome | None:
        """The response of the coordinator, or an error that is not retriable; None to ask again."""
        group = request.group
        if group not in self._known:
            outcome = self._ask_one(FindCoordinatorRequest((group,), GROUP_KEY), deadline)
            found = self._final(outcome if isinstance(outcome, KafkaMetaError) else outcome.coordinators[group])
            if found is None or found.error_code != 0:
                return found
            self._known[group] = found.broker
        ((_, _, outcome),) = self._exchange({self._known[group]: [request]}, deadline)
        response = self._final(outcome)
        if response is None and self._has_moved(outcome):
            del self._known[group]
        return response

    def _final(self, outcome: Outcome) -> Outcome:
        self._code = 0 if isinstance(outcome, KafkaMetaError) else outcome.error_code
        return super()._final(outcome)

    @property
    def _timeout_s(self) -> float:
        return self._client.options.default_api_timeout_ms / 1000


def _error(problem: str, code: int) -> BrokerError:
    if code in COORDINATOR_UNAVAILABLE:
        advice = (
            "No broker coordinates the group: check that as many brokers are up as offsets.topic.replication.factor of "
            "the brokers says"
        )
    else:
        advice = "Check that the group may be read and written and has no members, and that its topics may be read"
    return BrokerError(f"{problem}: {describe(code)}. {advice}", code)
