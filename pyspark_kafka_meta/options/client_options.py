"""The options of any client of a cluster, `kafka.*`; names and defaults follow Kafka's `ConsumerConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import option_checks, option_parsers
from pyspark_kafka_meta.options.option_table import choice, label, read, row, table_of, whole
from pyspark_kafka_meta.options.security_options import SECURITY_OPTIONS, SecurityOptions, complete_security
from pyspark_kafka_meta.validators import INT64_MAX


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How to reach the brokers, how much to ask of them and how long to wait."""

    security: SecurityOptions
    bootstrap_servers: tuple[Address, ...] = row(
        "kafka.bootstrap.servers",
        None,
        option_parsers.parse_addresses,
        "Option 'kafka.bootstrap.servers' must be host:port between commas, IPv6 as [::1]:9092",
        "Required. Brokers to ask first, as host:port between commas; one that answers is enough. A protocol before a "
        "host, as in SSL://host:port, is ignored: set kafka.security.protocol.",
    )
    client_id: str = label(
        "kafka.client.id", "Name under which brokers log, count and throttle the requests.", default="kafkameta"
    )
    client_rack: str = label(
        "kafka.client.rack",
        "Rack, or availability zone, of the executors: leaders may name a replica there to read from (KIP-392).",
        default="",
    )
    read_committed: bool = choice(
        "kafka.isolation.level",
        {"read_uncommitted": False, "read_committed": True},
        "read_committed leaves out records of aborted transactions and waits for open ones.",
    )
    fetch_max_bytes: int = whole("kafka.fetch.max.bytes", "52428800", "Soft limit of one Fetch answer, in bytes.")
    max_partition_fetch_bytes: int = whole(
        "kafka.max.partition.fetch.bytes", "8388608", "Soft limit of one partition in it, in bytes."
    )
    fetch_max_wait_ms: int = whole(
        "kafka.fetch.max.wait.ms", "500", "How long a broker may park a Fetch that finds too little."
    )
    fetch_min_bytes: int = whole(
        "kafka.fetch.min.bytes", "1", "How many bytes are enough for a broker to answer at once."
    )
    check_crcs: bool = choice(
        "kafka.check.crcs", {"true": True, "false": False}, "Whether CRC-32C of batches is verified."
    )
    request_timeout_ms: int = whole(
        "kafka.request.timeout.ms", "30000", "How long one request may go unanswered.", low=1
    )
    default_api_timeout_ms: int = whole(
        "kafka.default.api.timeout.ms", "60000", "How long one question to brokers may take, retries included.", low=1
    )
    connection_setup_timeout_ms: int = whole(
        "kafka.socket.connection.setup.timeout.ms", "10000", "How long connecting may take.", low=1
    )
    metadata_max_age_ms: int = whole(
        "kafka.metadata.max.age.ms",
        "300000",
        "Age at which metadata is refreshed even if all is well, or up to a fifth earlier.",
        high=INT64_MAX,
    )
    retry_backoff_ms: int = whole(
        "kafka.retry.backoff.ms", "100", "First pause before a request is tried again; pauses double."
    )
    retry_backoff_max_ms: int = whole("kafka.retry.backoff.max.ms", "1000", "Longest such pause.")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ClientOptions:
        """For a client that reads no topic: the `kafka.*` options alone.

        Raises:
            OptionError: one line for each option that is missing, unknown or unusable.
        """
        parsed, problems = read(options, CLIENT_OPTIONS)
        option_checks.refuse(problems + option_checks.client_problems(options) + complete_security(parsed))
        return cls(**parsed)

    def api_deadline(self, now: float) -> float:
        """By when a question asked at `now` must be answered, retries included; seconds of the caller's clock."""
        return now + self.default_api_timeout_ms / 1000


CLIENT_OPTIONS = table_of(ClientOptions) | SECURITY_OPTIONS
