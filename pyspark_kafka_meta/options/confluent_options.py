"""Options of Confluent's clients and serializers that have no effect here: why, and what to use instead.

The names are those of `SchemaRegistryClientConfig` and `AbstractKafkaSchemaSerDeConfig`, of the serializers of each
format, and of Confluent's Python client. Some people write them with `REGISTRY` before them.
"""

from __future__ import annotations

REGISTRY = "schema.registry."
_TOKEN = "tokens are schema.registry.bearer.auth.token, or of bearer.auth.issuer.endpoint.url with client id and secret"
_COLUMNS = "keys and values are columns, not objects of a class"
_TIMEOUT = "schema.registry.timeout.ms limits a request with its retries"
_CACHE = "a worker keeps each schema that it has fetched"
_CHECKED = "columns that do not fit the schema are always refused"
_VERSION = "valueSchemaVersion and keySchemaVersion choose schemas"
_NO_REFERENCES = "a write registers schemas without references"
_RULES = "rules of data contracts are not executed"
_AS_IT_IS = "schemas are registered and looked up as they are"
_DERIVED = "a derived JSON schema is of draft 7, and requires what cannot be null"
_JSON_TEXT = "written JSON is compact, without null, and has times as texts"
_CERTIFICATE = "the registry's certificate must name its host"
_STORE = "the type of a store is detected: remove the option"

CONFLUENTS = {
    "basic.auth.credentials.source": "the login is schema.registry.basic.auth.user.info, whatever the source: remove "
    "the option",
    "bearer.auth.cache.expiry.buffer.seconds": "a token is replaced after 80 % of its lifetime",
    "bearer.auth.scope.claim.name": _TOKEN,
    "bearer.auth.sub.claim.name": _TOKEN,
    "bearer.auth.uami.endpoint.query": _TOKEN,
    "bearer.auth.uami.endpoint.url": _TOKEN,
    "avro.reflection.allow.null": _COLUMNS,
    "avro.remove.java.properties": _AS_IT_IS,
    "avro.use.logical.type.converters": "logical types are always columns of their Spark types",
    "cache.capacity": _CACHE,
    "cache.latest.ttl.sec": _CACHE,
    "context.name.strategy": "a context is part of valueSubject and keySubject",
    "derive.type": _COLUMNS,
    "http.connect.timeout.ms": _TIMEOUT,
    "http.read.timeout.ms": _TIMEOUT,
    "id.compatibility.strict": _CHECKED,
    "json.default.property.inclusion": _JSON_TEXT,
    "json.fail.invalid.schema": "types are always checked, and other rules of JSON schemas never",
    "json.fail.unknown.properties": "a read ignores properties that the schema does not have",
    "json.indent.output": _JSON_TEXT,
    "json.key.type": _COLUMNS,
    "json.oneof.for.nullables": _DERIVED,
    "json.schema.spec.version": _DERIVED,
    "json.value.type": _COLUMNS,
    "json.write.dates.iso8601": _JSON_TEXT,
    "key.schema.id.deserializer": "with keyFraming confluent, a read finds schemas by headers and prefixes",
    "key.schema.id.serializer": "keyFraming decides where the id of the schema is written",
    "key.subject.name.strategy": "use keySubjectNameStrategy",
    "latest.cache.size": _CACHE,
    "latest.cache.ttl.sec": "a stream looks for new versions before its micro-batches",
    "latest.compatibility.strict": _CHECKED,
    "max.retries": _TIMEOUT,
    "max.schemas.per.subject": _CACHE,
    "missing.*": _CACHE,
    "normalize.schemas": _AS_IT_IS,
    "propagate.schema.tags": _AS_IT_IS,
    "reference.lookup.only": _NO_REFERENCES,
    "reference.subject.name.strategy": _NO_REFERENCES,
    "retries.max.wait.ms": _TIMEOUT,
    "retries.wait.ms": _TIMEOUT,
    "rule.*": _RULES,
    "schema.format": _AS_IT_IS,
    "schema.registry.ssl.endpoint.identification.algorithm": _CERTIFICATE,
    "schema.registry.ssl.keystore.type": _STORE,
    "schema.registry.ssl.truststore.type": _STORE,
    "schema.reflection": _COLUMNS,
    "skip.known.types": _NO_REFERENCES,
    "specific.*": _COLUMNS,
    "subject.name.strategy": "use valueSubjectNameStrategy or keySubjectNameStrategy",
    "url.randomize": "the URLs of schema.registry.url are tried in their order",
    "use.latest.version": "valueSchemaVersion is the latest by default: remove the option",
    "use.latest.with.metadata": _VERSION,
    "use.schema.guid": _VERSION,
    "use.schema.id": _VERSION,
    "validation.rules.execution": _RULES,
    "value.schema.id.deserializer": "with valueFraming confluent, a read finds schemas by headers and prefixes",
    "value.schema.id.serializer": "valueFraming decides where the id of the schema is written",
    "value.subject.name.strategy": "use valueSubjectNameStrategy",
}
"""Reason by name, or by the pattern of a family. Only those of TLS, which brokers have too, need `REGISTRY` before
them."""
