"""Options of Confluent's and Apicurio's clients: each has an effect, or one sentence says why not."""

from __future__ import annotations

import fnmatch
import re
from itertools import product

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import OPTIONS, SinkOptions
from pyspark_kafka_meta.options.unknown_options import refused

GIVEN = {"kafka.bootstrap.servers": "a:1", "topic": "t", "valueFormat": "avro", "schema.registry.url": "https://r"}
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
        SinkOptions.parse({**GIVEN, name: SECRET})
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
