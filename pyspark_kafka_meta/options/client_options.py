"""The options of any client of a cluster, `kafka.*`; names and defaults follow Kafka's `ConsumerConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import option_checks, option_parsers
from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap
from pyspark_kafka_meta.options.option_definitions import choice, label, parse_options, row, table_of, whole
from pyspark_kafka_meta.options.security_checks import complete_security
from pyspark_kafka_meta.options.security_options import SECURITY_OPTIONS, SecurityOptions
from pyspark_kafka_meta.validators import INT64_MAX


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Connections, fetch sizes and timeouts."""

    security: SecurityOptions
    bootstrap_servers: tuple[Address, ...] = row(
        "kafka.bootstrap.servers",
        None,
        option_parsers.parse_addresses,
        "Option 'kafka.bootstrap.servers' must be host:port between commas, IPv6 as [::1]:9092",
        "Required. Brokers for the first connection, as host:port separated by commas. One reachable broker is enough.",
    )
    client_id: str = label(
        "kafka.client.id", "Client name in the brokers' logs, metrics and quotas.", default="kafkameta"
    )
    client_rack: str = label(
        "kafka.client.rack",
        "Rack or availability zone of the executors, for local replicas (KIP-392).",
        default="",
    )
    read_committed: bool = choice(
        "kafka.isolation.level",
        {"read_uncommitted": False, "read_committed": True},
        "read_committed skips records of aborted transactions and waits for open transactions.",
    )
    fetch_max_bytes: int = whole("kafka.fetch.max.bytes", "52428800", "Soft limit of a Fetch response.")
    max_partition_fetch_bytes: int = whole(
        "kafka.max.partition.fetch.bytes", "8388608", "Soft limit per partition of a Fetch response."
    )
    fetch_max_wait_ms: int = whole(
        "kafka.fetch.max.wait.ms", "500", "Maximum time that a broker waits for kafka.fetch.min.bytes."
    )
    fetch_min_bytes: int = whole("kafka.fetch.min.bytes", "1", "Available bytes at which a broker responds at once.")
    check_crcs: bool = choice(
        "kafka.check.crcs",
        {"true": True, "false": False},
        "Whether checksums (CRC-32C) of record batches are verified.",
    )
    request_timeout_ms: int = whole("kafka.request.timeout.ms", "30000", "Maximum wait for a response.", low=1)
    default_api_timeout_ms: int = whole(
        "kafka.default.api.timeout.ms", "60000", "Maximum duration of an operation with its retries.", low=1
    )
    connection_setup_timeout_ms: int = whole(
        "kafka.socket.connection.setup.timeout.ms", "10000", "Maximum time to establish a connection.", low=1
    )
    metadata_max_age_ms: int = whole(
        "kafka.metadata.max.age.ms",
        "300000",
        "Age at which metadata is refreshed, minus a jitter of up to 20 %.",
        high=INT64_MAX,
    )
    retry_backoff_ms: int = whole(
        "kafka.retry.backoff.ms", "100", "First backoff before a retry; it doubles each time."
    )
    retry_backoff_max_ms: int = whole("kafka.retry.backoff.max.ms", "1000", "Maximum backoff.")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ClientOptions:
        """The `kafka.*` options alone, for a client that reads no topic.

        Raises:
            OptionError: one line for each missing, unknown or invalid option.
        """
        options = CaseInsensitiveMap(options)
        parsed, problems = parse_options(options, CLIENT_OPTIONS)
        option_checks.raise_problems(problems + option_checks.client_problems(options) + complete_security(parsed))
        return cls(**parsed)

    def api_deadline(self, now: float) -> float:
        """Deadline of an operation with its retries that starts at `now`; seconds of the caller's clock."""
        return now + self.default_api_timeout_ms / 1000


CLIENT_OPTIONS = table_of(ClientOptions) | SECURITY_OPTIONS
