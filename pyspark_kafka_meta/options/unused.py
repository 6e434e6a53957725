"""Kafka's consumer properties that mean nothing here, and why: a query that sets one is told instead of ignored.

The names are those of Kafka's `ConsumerConfig`; those of connections' security are not among them.
"""

from __future__ import annotations

_NO_GROUP = "partitions are read without joining a consumer group"
_NO_COMMIT = "the query's checkpoint keeps the offsets"
_NO_METRICS = "there are no client metrics; the refresh events tell what the metadata caches do"
_ALWAYS_REBOOTSTRAP = "the bootstrap servers are always asked again when no known broker answers"
_NO_JAVA = "records are read as they are, without Java classes"

UNUSED = {
    "allow.auto.create.topics": "reading never creates a topic",
    "auto.commit.interval.ms": _NO_COMMIT,
    "client.dns.lookup": "every address of a host name is tried",
    "connections.max.idle.ms": "connections are kept for as long as a worker uses them",
    "enable.auto.commit": _NO_COMMIT,
    "enable.metrics.push": _NO_METRICS,
    "exclude.internal.topics": "internal topics never match subscribePattern; name them in subscribe",
    "group.instance.id": _NO_GROUP,
    "group.protocol": _NO_GROUP,
    "group.remote.assignor": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "interceptor.classes": _NO_JAVA,
    "internal.leave.group.on.close": _NO_GROUP,
    "internal.throw.on.fetch.stable.offset.unsupported": "it is internal to Kafka's own client",
    "max.poll.interval.ms": f"{_NO_GROUP}; kafkaConsumer.pollTimeoutMs bounds a task's wait",
    "max.poll.records": "there is no poll: kafka.fetch.max.bytes bounds one answer, maxOffsetsPerTrigger a micro-batch",
    "metadata.recovery.rebootstrap.trigger.ms": _ALWAYS_REBOOTSTRAP,
    "metadata.recovery.strategy": _ALWAYS_REBOOTSTRAP,
    "metric.reporters": _NO_METRICS,
    "metrics.num.samples": _NO_METRICS,
    "metrics.recording.level": _NO_METRICS,
    "metrics.sample.window.ms": _NO_METRICS,
    "partition.assignment.strategy": _NO_GROUP,
    "receive.buffer.bytes": "the operating system sizes the buffers of sockets",
    "reconnect.backoff.max.ms": "kafka.retry.backoff.max.ms holds for connections too",
    "reconnect.backoff.ms": "kafka.retry.backoff.ms holds for connections too",
    "security.providers": "there is no Java to provide for",
    "send.buffer.bytes": "the operating system sizes the buffers of sockets",
    "session.timeout.ms": _NO_GROUP,
    "share.acknowledgement.mode": _NO_GROUP,
    "socket.connection.setup.timeout.max.ms": "each attempt gets kafka.socket.connection.setup.timeout.ms",
}
"""Why not, by name without `kafka.`."""
