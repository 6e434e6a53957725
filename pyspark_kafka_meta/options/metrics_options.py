"""The options that say where refresh events go."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import option_parsers
from pyspark_kafka_meta.options.option_table import row
from pyspark_kafka_meta.options.security_options import PLAINTEXT, SecurityOptions
from pyspark_kafka_meta.validators import topic_name


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Where the refresh events go. Neither path nor topic: to a folder for temporary files, on each machine.

    Attributes:
        driver: names that folder in a task; a planner finds the name itself.
    """

    path: str | None = row(
        "metricsPath",
        None,
        option_parsers.parse_location,
        "Option 'metricsPath' must be a folder or the URI of one, such as s3://bucket/folder",
        "Folder for the refresh events of every metadata cache: local, or a URI that pyarrow knows (s3://, gs://, "
        "hdfs:// ...). A relative path begins at the working directory of each process.",
    )
    topic: str | None = row(
        "metricsTopic",
        None,
        topic_name,
        "Option 'metricsTopic' must be the name of one topic, got '{value}'",
        "Topic for the refresh events, as JSON with the cache's id as key.",
    )
    bootstrap_servers: tuple[Address, ...] = row(
        "metricsBootstrapServers",
        None,
        option_parsers.parse_addresses,
        "Option 'metricsBootstrapServers' must be host:port between commas, IPv6 as [::1]:9092",
        "Brokers of the metrics topic, if it is in another cluster than kafka.bootstrap.servers. They get the "
        "same login, and must fit the same TLS options.",
    )
    security: SecurityOptions = PLAINTEXT
    driver: str | None = None
