"""The options of any client of a cluster, `kafka.*`; names and defaults follow Kafka's `CommonClientConfigs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import checks, parsers
from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap
from pyspark_kafka_meta.options.definitions import label, parse_options, row, table_of, taken, whole
from pyspark_kafka_meta.options.fetch import FETCH_OPTIONS
from pyspark_kafka_meta.options.security import SECURITY_OPTIONS, SecurityOptions
from pyspark_kafka_meta.options.security_checks import complete_security
from pyspark_kafka_meta.validators import INT64_MAX


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Connections and timeouts: what reading and writing share, as they share a client and its metadata cache."""

    security: SecurityOptions
    bootstrap_servers: tuple[Address, ...] = row(
        "kafka.bootstrap.servers",
        None,
        parsers.parse_addresses,
        "Option 'kafka.bootstrap.servers' must be host:port between commas, IPv6 as [::1]:9092",
        "Required. Brokers for the first connection, as host:port separated by commas. One reachable broker is enough.",
    )
    client_id: str = label(
        "kafka.client.id", "Client name in the brokers' logs, metrics and quotas.", default="kafkameta"
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
        """The `kafka.*` options alone, for a client that reads no topic. Those of `FetchOptions` are only checked.

        Raises:
            OptionError: one line for each missing, unknown or invalid option.
        """
        options = CaseInsensitiveMap(options)
        parsed, problems = parse_options(options, CLIENT_OPTIONS | FETCH_OPTIONS)
        checks.raise_problems(problems + checks.client_problems(options) + complete_security(parsed))
        return taken(cls, parsed)

    def api_deadline(self, now: float) -> float:
        """Deadline of an operation with its retries that starts at `now`; seconds of the caller's clock."""
        return now + self.default_api_timeout_ms / 1000


CLIENT_OPTIONS = table_of(ClientOptions) | SECURITY_OPTIONS
