"""`ClusterAdmin`: creates topics, describes the configuration of topics and brokers. Follows Kafka's `AdminClient`."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_kafka_meta.errors import BrokerError, ConnectError, KafkaMetaError, UnsupportedBrokerError
from pyspark_kafka_meta.kafka.client.broker_requests import BrokerRequests, Outcome, T
from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.network.security.sasl_login import redacted
from pyspark_kafka_meta.kafka.protocol.admin import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    CreateTopicRequest,
    DescribeConfigsRequest,
)
from pyspark_kafka_meta.kafka.protocol.error_codes import NOT_CONTROLLER, TOPIC_ALREADY_EXISTS, describe
from pyspark_kafka_meta.model import Broker

TIMEOUT_S = 30.0
CONFIG_TIMEOUT_S = 5.0
"""For requests that may stay without a response."""
MAX_TIMEOUT_CONFIG = "transaction.max.timeout.ms"


class ClusterAdmin(BrokerRequests):
    def __init__(self, client: ClientState) -> None:
        super().__init__(client, client.network.admin)

    def create_topic(self, name: str, partitions: int, replicas: int, config: Mapping[str, str]) -> bool:
        """Create a topic, unless it exists. Returns whether it is new.

        Args:
            replicas: of each partition; -1 for the brokers' default.

        Raises:
            BrokerError: the cluster refuses it.
            ConnectError: it is not created in `TIMEOUT_S`.
            UnsupportedBrokerError: the brokers cannot create topics, as mock brokers.
            TlsError, AuthenticationError: this client cannot connect.
        """
        request = CreateTopicRequest(name, partitions, replicas, config, self._client.options.request_timeout_ms)
        try:
            response = self._ask_any(request, self._client.clock() + TIMEOUT_S, f"created topic {name}")
        except UnsupportedBrokerError as error:
            raise UnsupportedBrokerError(
                f"topic {name} could not be created: {error}. Mock brokers have neither CreateTopics nor transactions: "
                "test exactly-once writes with LocalKafka, in pytest with the fixture local_kafka or kafka_topic"
            ) from None
        if response.error_code not in (0, TOPIC_ALREADY_EXISTS):
            reason = f"{describe(response.error_code)}: {redacted(response.result, self._client.options.security)}"
            raise BrokerError(f"topic {name} could not be created: {reason}", response.error_code)
        return response.error_code == 0

    def transaction_max_timeout_ms(self) -> int | None:
        """The longest transaction timeout that all brokers allow; None if none of them says. A broker that restarts is
        waited for, for `CONFIG_TIMEOUT_S`."""

        def request_to(broker: Broker) -> DescribeConfigsRequest:
            return DescribeConfigsRequest(BROKER_RESOURCE, str(broker.node_id), (MAX_TIMEOUT_CONFIG,))

        outcomes = [outcome for _, outcome in self._ask_all(request_to, self._config_deadline())]
        configs = [outcome.result for outcome in outcomes if not isinstance(outcome, KafkaMetaError)]
        values = [config.get(MAX_TIMEOUT_CONFIG, "") for config in configs]
        return min((int(value) for value in values if value.isdecimal()), default=None)

    def topic_config(self, topic: str) -> Mapping[str, str]:
        """By name; empty if this user may not ask, or the cluster does not respond."""
        request = DescribeConfigsRequest(TOPIC_RESOURCE, topic)
        try:
            return self._ask_any(request, self._config_deadline(), "described topic").result
        except KafkaMetaError:
            return {}

    def _config_deadline(self) -> float:
        return self._client.clock() + CONFIG_TIMEOUT_S

    def _backoff_s(self, failures: int) -> float:
        """No pause while some broker may be the controller and was not asked yet."""
        seeks_controller = self._problem == describe(NOT_CONTROLLER) and failures < len(self._cache.snapshot.brokers)
        return 0.0 if seeks_controller else super()._backoff_s(failures)

    def _final(self, outcome: Outcome[T]) -> Outcome[T] | None:
        """With ZooKeeper, the controller alone creates topics: another broker is asked next."""
        if not isinstance(outcome, KafkaMetaError) and outcome.error_code == NOT_CONTROLLER:
            self._failures[outcome.node_id] += 1
            outcome = ConnectError(describe(NOT_CONTROLLER))
        return super()._final(outcome)
