"""Options of Kafka's, Confluent's and Apicurio's clients: each has an effect, or one sentence says why not."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from itertools import product

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


TYPED_GIVEN = {
    "kafka.bootstrap.servers": "a:1",
    "topic": "t",
    "valueFormat": "avro",
    "schema.registry.url": "https://r",
}
SECRET = "kept-secret"
CONFIGS = """
auto.register.schemas avro.reflection.allow.null avro.remove.java.properties avro.use.logical.type.converters
basic.auth.credentials.source basic.auth.user.info bearer.auth.cache.expiry.buffer.seconds bearer.auth.client.id
bearer.auth.client.secret bearer.auth.credentials.source bearer.auth.custom.provider.class bearer.auth.identity.pool.id
bearer.auth.issuer.endpoint.url bearer.auth.logical.cluster bearer.auth.scope bearer.auth.scope.claim.name
bearer.auth.sub.claim.name bearer.auth.token context.name.strategy derive.type http.connect.timeout.ms
http.read.timeout.ms id.compatibility.strict json.default.property.inclusion json.fail.invalid.schema
json.fail.unknown.properties json.indent.output json.oneof.for.nullables json.schema.spec.version json.value.type
json.write.dates.iso8601 key.schema.id.deserializer key.schema.id.serializer key.subject.name.strategy latest.cache.size
latest.cache.ttl.sec latest.compatibility.strict max.retries max.schemas.per.subject missing.id.cache.ttl.sec
normalize.schemas propagate.schema.tags proxy.host proxy.port reference.lookup.only reference.subject.name.strategy
retries.max.wait.ms retries.wait.ms rule.actions rule.executors rule.service.loader.enable schema.format
schema.reflection skip.known.types specific.avro.key.type specific.avro.reader specific.avro.value.type
specific.protobuf.key.type specific.protobuf.value.type subject.name.strategy ssl.ca.location
ssl.endpoint.identification.algorithm ssl.key.location ssl.keystore.location ssl.keystore.type ssl.protocol
ssl.truststore.certificates ssl.truststore.type url.randomize use.latest.version use.latest.with.metadata
use.schema.guid use.schema.id validation.rules.execution value.schema.id.deserializer value.schema.id.serializer
value.subject.name.strategy
"""
"""Names of `SchemaRegistryClientConfig`, of the serializers' `AbstractKafkaSchemaSerDeConfig`, and of librdkafka."""


def problem(name: str) -> str:
    with pytest.raises(OptionError) as caught:
        SinkOptions.parse({**TYPED_GIVEN, name: SECRET})
    (line,) = str(caught.value).split("\n")
    assert SECRET not in line
    return line


def test_each_option_of_confluents_has_an_effect_or_a_reason() -> None:
    refused = re.compile(r"Option '.*' (of schema registry clients is not supported: |is librdkafka's)")
    for prefix, name in product(("", "schema.registry."), CONFIGS.split()):
        known = {name, f"schema.registry.{name}"} & OPTIONS.keys()
        if not prefix and name.startswith("ssl."):
            continue  # of brokers
        if known - {prefix + name}:
            assert problem(prefix + name) == f"Unknown option '{prefix}{name}'. Did you mean '{known.pop()}'?"
        elif not known:
            assert refused.match(problem(prefix + name))


IN_REGISTRY = "schema.registry."
CURES = {
    "basic.auth.credentials.source": "is not supported: the login is schema.registry.basic.auth.user.info, whatever",
    "basic.auth.user.info": "Did you mean 'schema.registry.basic.auth.user.info'?",
    "kafka.schema.registry.url": "Did you mean 'schema.registry.url'?",
    f"{IN_REGISTRY}url.randomize": "of schema registry clients is not supported: ",
    f"{IN_REGISTRY}auto.register.schemas": "Did you mean 'auto.register.schemas'?",
    f"{IN_REGISTRY}ssl.ca.location": "is librdkafka's: use 'schema.registry.ssl.truststore.location'.",
    f"{IN_REGISTRY}ssl.protocol": "of schema registry clients is not supported: ",
    "subject.name.strategy": "is not supported: use valueSubjectNameStrategy",
    "request.header.authorization": "is not supported: requests have no further headers.",
    "apicurio.registry.url": "is not supported: use schema.registry.url, with Apicurio's Confluent API",
}


@pytest.mark.parametrize(("name", "cure"), CURES.items())
def test_the_sentence_says_what_to_use(name: str, cure: str) -> None:
    sentence = problem(name)

    assert f"ption '{name}'" in sentence
    assert cure in sentence


def test_no_option_with_an_effect_is_refused() -> None:
    own_names = [name.removeprefix("schema.registry.") for name in OPTIONS]
    assert not [pattern for pattern in refused("confluent") if fnmatch.filter(own_names, pattern)]
