"""Every property of Kafka's consumer and producer is supported, or refused with the reason, on both sides."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import OPTIONS, SinkOptions, SourceOptions
from pyspark_kafka_meta.options.unknown_options import refused

CONSUMER_CONFIG = """
    allow.auto.create.topics auto.commit.interval.ms auto.offset.reset bootstrap.servers check.crcs client.dns.lookup
    client.id client.rack connections.max.idle.ms default.api.timeout.ms enable.auto.commit enable.metrics.push
    exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
    group.remote.assignor heartbeat.interval.ms interceptor.classes internal.leave.group.on.close
    internal.throw.on.fetch.stable.offset.unsupported isolation.level key.deserializer max.partition.fetch.bytes
    max.poll.interval.ms max.poll.records metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    partition.assignment.strategy receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms
    retry.backoff.max.ms retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
    sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
    sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes session.timeout.ms
    share.acknowledgement.mode socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
    ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
    ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
    ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
    ssl.truststore.type value.deserializer
"""
"""`ConsumerConfig.configNames()` of Kafka 4.1."""
PRODUCER_CONFIG = """
    acks batch.size bootstrap.servers buffer.memory client.dns.lookup client.id compression.gzip.level
    compression.lz4.level compression.type compression.zstd.level connections.max.idle.ms delivery.timeout.ms
    enable.idempotence enable.metrics.push interceptor.classes key.serializer linger.ms max.block.ms
    max.in.flight.requests.per.connection max.request.size metadata.max.age.ms metadata.max.idle.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys receive.buffer.bytes
    reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    send.buffer.bytes socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms transaction.timeout.ms
    transaction.two.phase.commit.enable transactional.id value.serializer
"""
"""`ProducerConfig.configNames()` of Kafka 4.1, without those of security, which are the consumer's."""
PROPERTIES = set(CONSUMER_CONFIG.split()) | set(PRODUCER_CONFIG.split())
SUPPORTED = {name.removeprefix("kafka.") for name in OPTIONS if name.startswith("kafka.")}
GIVEN = {"kafka.bootstrap.servers": "b:1"}
SIDES: dict[str, Callable[[str], object]] = {
    "source": lambda name: SourceOptions.parse({**GIVEN, "subscribe": "t", name: "hunter2"}),
    "sink": lambda name: SinkOptions.parse({**GIVEN, name: "hunter2"}),
}


def test_every_kafka_option_is_a_property_except_librdkafkas() -> None:
    of_librdkafka = {"sasl.username", "sasl.password", "sasl.oauthbearer.extensions", "https.ca.location"}
    assert of_librdkafka == SUPPORTED - PROPERTIES


@pytest.mark.parametrize("side", SIDES)
def test_unsupported_properties_are_refused_with_the_reason(side: str) -> None:
    for name in PROPERTIES - SUPPORTED:
        with pytest.raises(OptionError) as caught:
            SIDES[side](f"kafka.{name}")

        (problem,) = str(caught.value).split("\n")
        assert problem.startswith(f"Kafka option '{name}' ")
        assert len(problem) > len(f"Kafka option '{name}' is not supported.")
        assert "hunter2" not in problem


def test_no_supported_property_is_listed_as_unsupported() -> None:
    for pattern in refused("kafka"):
        family = set(fnmatch.filter(PROPERTIES, pattern))
        assert family, pattern
        assert not family & SUPPORTED, pattern
