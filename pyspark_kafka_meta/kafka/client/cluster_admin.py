"""Administrative requests, through confluent-kafka's AdminClient: they are rare, and their speed does not matter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from pyspark_kafka_meta.errors import BrokerError
from pyspark_kafka_meta.kafka.client.client_state import ClientState
from pyspark_kafka_meta.kafka.network.security.librdkafka_config import new_client
from pyspark_kafka_meta.kafka.network.security.sasl_login import redacted

TIMEOUT_S = 30.0
CONFIG_TIMEOUT_S = 5.0
"""For requests that may stay without a response."""
MAX_TIMEOUT_CONFIG = "transaction.max.timeout.ms"


class ClusterAdmin:
    """Requests to the cluster of a client."""

    def __init__(self, client: ClientState) -> None:
        self._client = client

    @cached_property
    def _admin(self) -> AdminClient:
        """Begins with the brokers of the cache: with a controller among its bootstrap servers, librdkafka may wait
        until the timeout."""
        options = self._client.options
        brokers = [broker.address for broker in self._client.cache.snapshot.brokers.values()]
        settings = {"client.id": options.client_id}
        return new_client(AdminClient, brokers or options.bootstrap_servers, options.security, settings)

    def create_topic(self, name: str, replicas: int, config: Mapping[str, str]) -> None:
        """Create a topic of one partition, unless it exists.

        Raises:
            BrokerError: the cluster refuses it, or does not respond.
        """
        topic = NewTopic(name, num_partitions=1, replication_factor=replicas, config=dict(config))
        try:
            self._admin.create_topics([topic], request_timeout=TIMEOUT_S)[name].result()
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                reason = redacted(error.str(), self._client.options.security)
                raise BrokerError(
                    f"topic {name} could not be created: {reason}. Create it with one partition and "
                    "cleanup.policy=compact, or allow this user CREATE on it",
                    error.code(),
                ) from None

    def transaction_max_timeout_ms(self, broker_ids: Collection[int]) -> int | None:
        """The longest transaction timeout that all brokers allow; None if none of them says."""
        configs = self._configs([ConfigResource(ResourceType.BROKER, str(broker_id)) for broker_id in broker_ids])
        return min((int(each[MAX_TIMEOUT_CONFIG]) for each in configs if MAX_TIMEOUT_CONFIG in each), default=None)

    def topic_config(self, topic: str) -> Mapping[str, str]:
        """By name; empty if this user may not ask, or the cluster does not respond."""
        (config,) = self._configs([ConfigResource(ResourceType.TOPIC, topic)])
        return config

    def _configs(self, resources: list[ConfigResource]) -> list[dict[str, str]]:
        """Of each resource, asked all at a time. librdkafka takes one broker for each request."""
        requested = [self._admin.describe_configs([each], request_timeout=CONFIG_TIMEOUT_S) for each in resources]
        configs = []
        for resource, responses in zip(resources, requested, strict=True):
            try:
                configs.append({name: entry.value for name, entry in responses[resource].result().items()})
            except KafkaException:
                configs.append({})
        return configs
