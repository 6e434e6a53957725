"""The options for the destination of refresh events."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import option_parsers
from pyspark_kafka_meta.options.option_definitions import row
from pyspark_kafka_meta.options.security_options import PLAINTEXT, SecurityOptions
from pyspark_kafka_meta.validators import topic_name


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The destination of refresh events. Without path and topic: a temporary folder of each machine.

    Attributes:
        driver: part of the name of that folder in tasks; a planner determines it itself.
    """

    path: str | None = row(
        "metricsPath",
        None,
        option_parsers.parse_location,
        "Option 'metricsPath' must be a folder or the URI of one, such as s3://bucket/folder",
        "Folder for refresh events: a path (relative to each process), or a URI of pyarrow (s3://, gs://, hdfs:// "
        "...).",
    )
    topic: str | None = row(
        "metricsTopic",
        None,
        topic_name,
        "Option 'metricsTopic' must be the name of one topic, got '{value}'",
        "Topic for refresh events, as JSON keyed by cache id.",
    )
    bootstrap_servers: tuple[Address, ...] = row(
        "metricsBootstrapServers",
        None,
        option_parsers.parse_addresses,
        "Option 'metricsBootstrapServers' must be host:port between commas, IPv6 as [::1]:9092",
        "Brokers of metricsTopic, if in another cluster. Login and TLS options are the same.",
    )
    security: SecurityOptions = PLAINTEXT
    driver: str | None = None
