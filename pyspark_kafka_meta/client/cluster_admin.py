"""Administrative requests, through confluent-kafka's AdminClient: they are rare, and their speed does not matter."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from pyspark_kafka_meta.errors import BrokerError
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.wire.security.librdkafka_config import new_client
from pyspark_kafka_meta.wire.security.sasl_login import shown

TIMEOUT_S = 30.0
MAX_TIMEOUT_CONFIG = "transaction.max.timeout.ms"


class ClusterAdmin:
    """Requests to one cluster."""

    def __init__(self, options: ClientOptions) -> None:
        self._security = options.security
        settings = {"client.id": options.client_id}
        self._admin = new_client(AdminClient, options.bootstrap_servers, options.security, settings)

    def create_topic(self, name: str, replicas: int, config: Mapping[str, str]) -> None:
        """Create a topic of one partition, unless it exists.

        Raises:
            BrokerError: the cluster refuses it, or does not respond.
        """
        topic = NewTopic(name, num_partitions=1, replication_factor=replicas, config=dict(config))
        try:
            self._admin.create_topics([topic], request_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerError(
                    f"topic {name} could not be created: {shown(error.str(), self._security)}. Create it with one "
                    "partition and cleanup.policy=compact, or allow this user CREATE on it",
                    error.code(),
                ) from None

    def transaction_max_timeout_ms(self, broker_id: int) -> int | None:
        """The longest transaction timeout that a broker allows; None if it does not say."""
        resource = ConfigResource(ResourceType.BROKER, str(broker_id))
        try:
            found = self._admin.describe_configs([resource], request_timeout=TIMEOUT_S)[resource].result(TIMEOUT_S)
            return int(found[MAX_TIMEOUT_CONFIG].value)
        except (KafkaException, KeyError, ValueError, TypeError):
            return None
