"""The options for the destination of refresh events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import parsers
from pyspark_kafka_meta.options.client import ClientOptions
from pyspark_kafka_meta.options.definitions import row, table_of
from pyspark_kafka_meta.options.security import PLAINTEXT, SecurityOptions
from pyspark_kafka_meta.validators import topic_name

EVENTS_TOPIC = "kafkameta-events"
"""In names of topics for refresh events that subscribePattern of no query matches."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The destination of refresh events. Without path and topic: a temporary folder of each machine.

    Attributes:
        driver: part of the name of that folder in tasks; a planner determines it itself.
    """

    path: str | None = row(
        "metricsPath",
        None,
        parsers.parse_location,
        "Option 'metricsPath' must be a folder or the URI of one, such as s3://bucket/folder",
        "Folder for refresh events: a path (relative to each process), or a URI of pyarrow (s3://, gs://, hdfs:// "
        "...).",
    )
    topic: str | None = row(
        "metricsTopic",
        None,
        topic_name,
        "Option 'metricsTopic' must be the name of one topic, got '{value}'",
        "Topic for refresh events, as JSON keyed by cache id. subscribePattern matches neither this topic nor names "
        f"with {EVENTS_TOPIC} in them.",
    )
    bootstrap_servers: tuple[Address, ...] = row(
        "metricsBootstrapServers",
        None,
        parsers.parse_addresses,
        "Option 'metricsBootstrapServers' must be host:port between commas, IPv6 as [::1]:9092",
        "Brokers of metricsTopic, if in another cluster. Login and TLS options are the same.",
    )
    security: SecurityOptions = PLAINTEXT
    driver: str | None = None

    @classmethod
    def taken(cls, parsed: dict[str, Any], client: ClientOptions) -> MetricsOptions:
        """The fields of `METRICS_OPTIONS`, which are removed from `parsed`. By default, the events are in the cluster
        of `client`."""
        return cls(
            path=parsed.pop("metrics_path"),
            topic=parsed.pop("metrics_topic"),
            bootstrap_servers=parsed.pop("metrics_bootstrap_servers") or client.bootstrap_servers,
            security=client.security,
        )


METRICS_OPTIONS = {f"metrics_{name}": option for name, option in table_of(MetricsOptions).items()}
"""With a prefix, because other dataclasses have fields of the same names."""
