"""`ConsumerGroups`: the committed offsets of groups, without joining them (KIP-396). Follows Kafka's `AdminClient`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from pyspark_kafka_meta.errors import BrokerError, ConnectError, KafkaMetaError
from pyspark_kafka_meta.kafka.client.broker_requests import BrokerRequests, T
from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.protocol.apis import BrokerRequest
from pyspark_kafka_meta.kafka.protocol.consumer_groups import OffsetCommitRequest, OffsetFetchRequest
from pyspark_kafka_meta.kafka.protocol.error_codes import COORDINATOR_UNAVAILABLE, describe
from pyspark_kafka_meta.kafka.protocol.transactions import GROUP_KEY
from pyspark_kafka_meta.model import TopicPartition

COORDINATOR_TIMEOUT_S = 10.0
"""How long a group may have no coordinator."""
COMMIT_TIMEOUT_S = 5.0
"""Bound of a micro-batch's wait for a commit that only tools read."""


class ConsumerGroups(BrokerRequests):
    """The groups of one cluster, also of KIP-848. Tools for consumer lag see a query's progress in their offsets.

    Raises:
        BrokerError: the group may not be read, or has no coordinator; a commit was refused, as while it has members.
        ConnectError: no broker responded in time.
        TlsError, AuthenticationError: this client cannot connect.
    """

    key_type = GROUP_KEY

    def __init__(self, client: ClientState) -> None:
        super().__init__(client, client.network.admin)

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The committed offsets of `partitions`, without partitions that have none."""
        request = OffsetFetchRequest(group, tuple(sorted(partitions)))
        return self._ask("listed", group, request, self._client.api_deadline())

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> frozenset[str]:
        """Set the committed offsets of the group. Returns the topics that do not exist: they alone get none."""
        request = OffsetCommitRequest(group, dict(sorted(offsets.items())))
        deadline = min(self._client.api_deadline(), self._client.clock() + COMMIT_TIMEOUT_S)
        return self._ask("committed", group, request, deadline)

    def _ask(self, verb: str, group: str, request: BrokerRequest[T], deadline: float) -> T:
        problem = f"the offsets of consumer group {group} could not be {verb}"
        response = self._ask_coordinators({group: request}, deadline).get(group)
        if isinstance(response, KafkaMetaError):
            raise response
        if response is not None and response.error_code == 0:
            return response.result
        if code := self._code if response is None else response.error_code:
            raise _group_error(problem, code)
        raise ConnectError(f"{problem} in time: {self._problem}")

    def _attempts(self, deadline: float) -> Iterator[None]:
        """For at most `COORDINATOR_TIMEOUT_S` while the group has no coordinator."""
        until = self._client.clock() + COORDINATOR_TIMEOUT_S
        for _ in super()._attempts(deadline):
            yield
            if self._code in COORDINATOR_UNAVAILABLE and self._client.clock() >= until:
                return


def _group_error(problem: str, code: int) -> BrokerError:
    if code in COORDINATOR_UNAVAILABLE:
        advice = (
            "No broker coordinates the group: check that as many brokers are up as offsets.topic.replication.factor of "
            "the brokers says"
        )
    else:
        advice = "Check that the group may be read and written and has no members, and that its topics may be read"
    return BrokerError(f"{problem}: {describe(code)}. {advice}", code)
