"""Requests a producer id for idempotent writes, which any broker gives (InitProducerId, KIP-98)."""

from __future__ import annotations

from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.errors import AuthorizationError, BrokerError, ConnectError
from pyspark_kafka_meta.kafka_errors import (
    CLUSTER_AUTHORIZATION_FAILED,
    COORDINATOR_UNAVAILABLE,
    Action,
    describe,
    write_action,
)
from pyspark_kafka_meta.metadata.cache import RETRIABLE_ERRORS
from pyspark_kafka_meta.metadata.refresh_policy import attempt_timeout_ms
from pyspark_kafka_meta.model import Broker, ProducerEpoch
from pyspark_kafka_meta.wire.messages import ProducerIdRequest, ProducerIdResponse, RequestFailure


def request_producer_id(client: KafkaClient, deadline: float) -> ProducerEpoch:
    """A new producer id, from one broker after the other. The cache must know the cluster.

    Raises:
        AuthorizationError: this user may not write idempotently.
        BrokerError: another error that is not retriable.
        ConnectError: no broker gave an id by `deadline`.
    """
    brokers = client.shuffled(client.cache.snapshot.brokers.values())
    failures, problem = 0, "no time was left"
    while client.clock() < deadline:
        broker, generation = brokers[failures % len(brokers)], client.cache.snapshot.generation
        timeout_ms = attempt_timeout_ms(failures // len(brokers), client.options.request_timeout_ms)
        try:
            response = _ask(client, broker, min(deadline, client.clock() + timeout_ms / 1000))
        except RETRIABLE_ERRORS as error:
            client.cache.report_failure(error, generation, broker.node_id)
            problem = str(error)
        else:
            if response.error_code == 0:
                return ProducerEpoch(response.producer_id, response.producer_epoch)
            _raise_final(response.error_code)
            problem = describe(response.error_code)
        failures += 1
        client.sleep(min(client.backoff_s(failures), max(deadline - client.clock(), 0)))
        client.cache.refresh_if_due(deadline)
    raise ConnectError(f"no broker gave this task a producer id within kafka.max.block.ms: {problem}")


def _ask(client: KafkaClient, broker: Broker, deadline: float) -> ProducerIdResponse:
    client.wire.producer_ids.send(broker, ProducerIdRequest(), deadline)
    while (received := client.wire.producer_ids.receive([broker.node_id], deadline)) is None:
        client.cache.refresh_if_due(deadline, until=client.clock())  # a Metadata response interrupted the wait
        if client.clock() >= deadline:
            client.wire.producer_ids.drop(broker.node_id)
            raise ConnectError(f"{broker.address} gave no producer id in time")
    if isinstance(received, RequestFailure):
        raise received.error
    return received


def _raise_final(code: int) -> None:
    """Raise the error of a code that a retry does not help against."""
    if code == CLUSTER_AUTHORIZATION_FAILED:
        raise AuthorizationError(
            f"this user may not write idempotently: {describe(code)}: allow it IDEMPOTENT_WRITE on the cluster, which "
            "Kafka 3.0 and later do not need, or set kafka.enable.idempotence to false",
            code,
        )
    if code not in COORDINATOR_UNAVAILABLE and write_action(code) is Action.FAIL:
        raise BrokerError(f"no producer id for this task: {describe(code)}", code)
