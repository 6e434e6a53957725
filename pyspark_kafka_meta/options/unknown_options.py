"""Names of options: matched in any case, and the error text of an unknown name.

For Kafka's properties that have no effect here, the text says why: the names are those of `ConsumerConfig` and
`ProducerConfig`. Security properties of librdkafka have a replacement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from pyspark_kafka_meta.options.confluent_options import CONFLUENTS, REGISTRY

T = TypeVar("T")


class CaseInsensitiveMap(Mapping[str, T]):
    """Values by name in any case, as in Spark's `CaseInsensitiveStringMap`. Iterates over the names as given."""

    def __init__(self, values: Mapping[str, T]) -> None:
        self._items = {name.lower(): (name, value) for name, value in values.items()}

    def __getitem__(self, name: str) -> T:
        return self._items[name.lower()][1]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def without(self, *names: str) -> dict[str, T]:
        dropped = {name.lower() for name in names}
        return {name: value for name, value in self.items() if name.lower() not in dropped}


def closest(name: str, names: Iterable[str], count: int, cutoff: float = 0.6) -> list[str]:
    """At most `count` of `names`, the most similar one first; `cutoff` is the least similarity, from 0 to 1."""
    import difflib  # only a misspelt name needs it

    by_lower_case = {candidate.lower(): candidate for candidate in names}
    return [by_lower_case[near] for near in difflib.get_close_matches(name.lower(), by_lower_case, count, cutoff)]


def unknown_option(name: str, known: Mapping[str, str]) -> str:
    """The error text of an unknown option: the reason, or similar names. Never the value, which may be a secret."""
    if not NAME.fullmatch(name):
        return (
            "The name of an option is invalid. It is not repeated, because it may be a secret: check the source of the "
            "options."
        )
    lower = name.lower()
    if (refusal := _kafka_refusal(lower) or _registry_refusal(lower)) is not None:
        return refusal
    prefixes = ("kafka.", REGISTRY)
    others = [*(prefix + lower for prefix in prefixes), *(lower.removeprefix(prefix) for prefix in prefixes)]
    same = next((known[other] for other in (*others, _SYNONYMS.get(lower, "")) if other in known), None)
    near = closest(name, known, count=1, cutoff=0.8) if same is None else [same]
    if near:
        return f"Unknown option '{name}'. Did you mean '{near[0]}'?"
    peers = [key for key in known if key.startswith("kafka.") == lower.startswith("kafka.")]
    return f"Unknown option '{name}'. The nearest are {', '.join(closest(name, peers or known, count=3, cutoff=0))}."


def _kafka_refusal(name: str) -> str | None:
    kafka_name = name.removeprefix("kafka.")
    if name in _REFUSED:
        return f"Kafka option '{kafka_name}' is not supported{_REFUSED[name]}"
    if kafka_name in REPLACEMENTS:
        return f"Kafka option '{kafka_name}' is librdkafka's: use '{REPLACEMENTS[kafka_name]}'."
    if kafka_name != name and (reason := _reason(UNSUPPORTED, kafka_name)):
        return f"Kafka option '{kafka_name}' is not supported: {reason}."
    return None


def _registry_refusal(name: str) -> str | None:
    """Of an option of Confluent's or Apicurio's registry clients."""
    own_name = name.removeprefix(REGISTRY)
    is_tls = own_name != name and own_name.startswith("ssl.")
    if is_tls and own_name in REPLACEMENTS:
        return f"Option '{name}' is librdkafka's: use '{REPLACEMENTS[own_name].replace('kafka.', REGISTRY)}'."
    reason = _reason(CONFLUENTS, name) or _reason(CONFLUENTS, own_name)
    if is_tls:
        reason = reason or _reason(UNSUPPORTED, own_name)
    if own_name.startswith("request.header."):
        reason = "requests have no further headers"
    if name.startswith("apicurio."):
        reason = "use schema.registry.url, with Apicurio's Confluent API at /apis/ccompat/v7, and valueFraming"
    return None if reason is None else f"Option '{name}' of schema registry clients is not supported: {reason}."


def _reason(reasons: Mapping[str, str], name: str) -> str | None:
    """Of the name itself, or of its family."""
    return next((reason for pattern, reason in reasons.items() if fnmatchcase(name, pattern)), None)


NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")
"""A possible name of an option. Any other text is not repeated in errors: it may be part of a key or a password, for
example in a broken properties file."""
_REFUSED = {
    "kafka.auto.offset.reset": ". Instead set the source option 'startingOffsets' to 'earliest' or 'latest' to specify "
    "where to start. It applies to new queries only; a restarted query continues from its checkpoint.",
    "kafka.key.deserializer": " as keys are deserialized as byte arrays. Use DataFrame operations to explicitly "
    "deserialize the keys.",
    "kafka.key.serializer": " as keys are serialized with ByteArraySerializer. Use DataFrame operations to serialize "
    "the keys to string or binary.",
    "kafka.value.serializer": " as values are serialized with ByteArraySerializer. Use DataFrame operations to "
    "serialize the values to string or binary.",
    "kafka.value.deserializer": " as values are deserialized as byte arrays. Use DataFrame operations to explicitly "
    "deserialize the values.",
}
_SYNONYMS = {
    "topics": "subscribe",
    "metricspath": "eventsPath",
    "metricstopic": "eventsTopic",
    "metricsbootstrapservers": "eventsBootstrapServers",
}
_NO_GROUP = "partitions are read without joining a consumer group"
_NO_COMMIT = "the query's checkpoint keeps the offsets"
_NO_METRICS = "there are no client metrics; refresh events report on metadata caches"
_ALWAYS_REBOOTSTRAP = "the client always rebootstraps when no known broker responds"
_NO_JAVA = "records are read and written without Java classes"
_JAVA = "it configures Java, which kafkameta does not use: remove it"
_KERBEROS = "tickets come from the cache or keytab that the environment names (KRB5CCNAME, KRB5_CLIENT_KTNAME)"
_TOKENS = "a token is requested at each login, and again before a session ends"
_NEWEST_TLS = "the newest common version is used, at least TLS 1.2"
_BROKERS_CHECK = "brokers validate tokens, the client only sends them"
_ASSERTIONS = "only client credentials are supported; use oauthTokenProvider for other grants"
_NO_LOAD = "rows without a key fill a batch of one partition, then of another, whatever the load of their brokers"
_SETUP = "kafka.socket.connection.setup.timeout.ms applies to logins too"

UNSUPPORTED = {
    "allow.auto.create.topics": "a metadata request never creates a topic",
    "auto.commit.interval.ms": _NO_COMMIT,
    "client.dns.lookup": "every address of a host name is tried",
    "connections.max.idle.ms": "connections stay open while a worker uses them",
    "enable.auto.commit": _NO_COMMIT,
    "enable.metrics.push": _NO_METRICS,
    "exclude.internal.topics": "internal topics never match subscribePattern; name them in subscribe",
    "group.instance.id": _NO_GROUP,
    "group.protocol": _NO_GROUP,
    "group.remote.assignor": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "interceptor.classes": _NO_JAVA,
    "internal.leave.group.on.close": _NO_GROUP,
    "internal.throw.on.fetch.stable.offset.unsupported": "it is internal to Kafka's client",
    "linger.ms": "a batch is sent when it is full or the task has no more rows",
    "max.poll.interval.ms": f"{_NO_GROUP}; kafkaConsumer.pollTimeoutMs bounds a task's wait",
    "max.poll.records": "there is no poll: kafka.fetch.max.bytes limits a response, maxOffsetsPerTrigger a micro-batch",
    "metadata.max.idle.ms": "a metadata cache keeps the topics of its client until the client is closed",
    "metadata.recovery.rebootstrap.trigger.ms": _ALWAYS_REBOOTSTRAP,
    "metadata.recovery.strategy": _ALWAYS_REBOOTSTRAP,
    "metric.reporters": _NO_METRICS,
    "metrics.*": _NO_METRICS,
    "partition.assignment.strategy": _NO_GROUP,
    "partitioner.adaptive.partitioning.enable": _NO_LOAD,
    "partitioner.availability.timeout.ms": _NO_LOAD,
    "partitioner.class": "the column partition determines the partition, or murmur2 of the key as in Kafka's default "
    "partitioner",
    "receive.buffer.bytes": "the operating system sets the size of socket buffers",
    "reconnect.backoff.max.ms": "kafka.retry.backoff.max.ms applies to connections too",
    "reconnect.backoff.ms": "kafka.retry.backoff.ms applies to connections too",
    "retries": "kafka.delivery.timeout.ms bounds them",
    "security.providers": "it configures Java",
    "send.buffer.bytes": "the operating system sets the size of socket buffers",
    "session.timeout.ms": _NO_GROUP,
    "share.acknowledgement.mode": _NO_GROUP,
    "socket.connection.setup.timeout.max.ms": "each attempt gets kafka.socket.connection.setup.timeout.ms",
    "transaction.two.phase.commit.enable": "kafka.transactional.id alone makes the driver commit in two phases",
    "sasl.client.callback.handler.class": _JAVA,
    "sasl.kerberos.kinit.cmd": _KERBEROS,
    "sasl.kerberos.min.time.before.relogin": _KERBEROS,
    "sasl.kerberos.ticket.*": _KERBEROS,
    "sasl.login.callback.handler.class": f"{_JAVA}; for OAUTHBEARER use oauthTokenProvider",
    "sasl.login.class": _JAVA,
    "sasl.login.connect.timeout.ms": _SETUP,
    "sasl.login.read.timeout.ms": _SETUP,
    "sasl.login.refresh.*": _TOKENS,
    "sasl.login.retry.backoff.max.ms": "kafka.retry.backoff.max.ms applies to logins too",
    "sasl.login.retry.backoff.ms": "kafka.retry.backoff.ms applies to logins too",
    "sasl.oauthbearer.assertion.*": _ASSERTIONS,
    "sasl.oauthbearer.clock.skew.seconds": _BROKERS_CHECK,
    "sasl.oauthbearer.expected.audience": _BROKERS_CHECK,
    "sasl.oauthbearer.expected.issuer": _BROKERS_CHECK,
    "sasl.oauthbearer.header.urlencode": _ASSERTIONS,
    "sasl.oauthbearer.jwks.*": _BROKERS_CHECK,
    "sasl.oauthbearer.jwt.retriever.class": _ASSERTIONS,
    "sasl.oauthbearer.jwt.validator.class": _BROKERS_CHECK,
    "sasl.oauthbearer.scope.claim.name": _BROKERS_CHECK,
    "sasl.oauthbearer.sub.claim.name": _BROKERS_CHECK,
    "ssl.cipher.suites": "OpenSSL's policy on this machine applies",
    "ssl.enabled.protocols": _NEWEST_TLS,
    "ssl.engine.factory.class": _JAVA,
    "ssl.keymanager.algorithm": _JAVA,
    "ssl.protocol": _NEWEST_TLS,
    "ssl.provider": _JAVA,
    "ssl.secure.random.implementation": _JAVA,
    "ssl.trustmanager.algorithm": _JAVA,
}
"""Reason by name without `kafka.`, or by the pattern of a family of which no option is supported."""

REPLACEMENTS = {
    "ssl.ca.location": "kafka.ssl.truststore.location",
    "ssl.ca.pem": "kafka.ssl.truststore.certificates",
    "ssl.certificate.location": "kafka.ssl.keystore.location",
    "ssl.certificate.pem": "kafka.ssl.keystore.certificate.chain",
    "ssl.key.location": "kafka.ssl.keystore.location",
    "ssl.key.pem": "kafka.ssl.keystore.key",
    "enable.ssl.certificate.verification": "kafka.ssl.truststore.location",
    "sasl.mechanisms": "kafka.sasl.mechanism",
    "sasl.oauthbearer.client.id": "kafka.sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "kafka.sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.config": "kafka.sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.method": "kafka.sasl.oauthbearer.token.endpoint.url",
}
"""Supported option by librdkafka's name without `kafka.`."""
