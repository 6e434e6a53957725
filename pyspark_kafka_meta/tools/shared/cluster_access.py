"""How commands ask a cluster: with short timeouts, and an error for a topic that cannot be read."""

from __future__ import annotations

from pyspark_kafka_meta.errors import UnknownTopicError
from pyspark_kafka_meta.kafka.protocol.error_codes import describe
from pyspark_kafka_meta.model import MetadataResponse, shortened


def timeout_options(timeout_ms: int) -> dict[str, str]:
    """The `kafka.*` options for brokers that must answer within `timeout_ms`: a user does not wait a minute."""
    names = ("kafka.socket.connection.setup.timeout.ms", "kafka.default.api.timeout.ms")
    return dict.fromkeys(names, str(timeout_ms))


def check_topics(answer: MetadataResponse) -> None:
    """Raises UnknownTopicError: a requested topic does not exist, or this user may not describe it."""
    for topic in answer.topics:
        if topic.error_code:
            error = describe(topic.error_code)
            raise UnknownTopicError(f"topic {shortened(topic.name)} cannot be read ({error}): correct --topic")
