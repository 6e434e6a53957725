"""The options of any client of a cluster, `kafka.*`: its connections, its Fetches and where its refresh events go.

Names and defaults of `kafka.*` follow Kafka's `CommonClientConfigs` and `ConsumerConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import parsers
from pyspark_kafka_meta.options.option_table import GivenOptions, Query, Rows, Section
from pyspark_kafka_meta.options.security import PLAINTEXT, SecurityOptions
from pyspark_kafka_meta.value_checks import INT64_MAX, topic_name

NO_SERVERS = "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer"
NO_SERVERS_TO_WRITE = "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer"
EVENTS_TOPIC = "kafkameta-events"
"""In names of topics for refresh events that subscribePattern of no query matches."""

_connections = Rows(Section.CONNECTIONS, Query.CONNECTED)
_fetches = Rows(Section.FETCHES, Query.FETCHES)
_events = Rows(Section.GROUPS_AND_EVENTS, Query.RECORDS | Query.WRITES | Query.FROM_TOPIC)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Connections and timeouts: what reading and writing share, as they share a client and its metadata cache."""

    security: SecurityOptions
    bootstrap_servers: tuple[Address, ...] = _connections.option(
        "kafka.bootstrap.servers",
        None,
        parsers.parse_addresses,
        "Option 'kafka.bootstrap.servers' must be host:port between commas, IPv6 as [::1]:9092",
        "Required. Brokers to connect to first, as host:port.",
    )
    client_id: str = _connections.short_text(
        "kafka.client.id", "Name in brokers' logs, metrics and quotas.", default="kafkameta"
    )
    request_timeout_ms: int = _connections.number(
        "kafka.request.timeout.ms", "30000", "Maximum wait for a response.", low=1
    )
    default_api_timeout_ms: int = _connections.number(
        "kafka.default.api.timeout.ms", "60000", "Maximum duration of an operation with its retries.", low=1
    )
    connection_setup_timeout_ms: int = _connections.number(
        "kafka.socket.connection.setup.timeout.ms", "10000", "Maximum time to connect.", low=1
    )
    metadata_max_age_ms: int = _connections.number(
        "kafka.metadata.max.age.ms",
        "300000",
        "Age at which metadata is refreshed, less up to 20 % jitter.",
        high=INT64_MAX,
    )
    retry_backoff_ms: int = _connections.number(
        "kafka.retry.backoff.ms", "100", "First backoff before a retry; it doubles."
    )
    retry_backoff_max_ms: int = _connections.number("kafka.retry.backoff.max.ms", "1000", "Maximum backoff.")

    @classmethod
    def of(cls, given: GivenOptions) -> ClientOptions:
        security = SecurityOptions.of(given)
        if not given.given(cls, "bootstrap_servers"):
            given.refuse([NO_SERVERS_TO_WRITE if given.query in Query.WRITES else NO_SERVERS])
        return cls(security, **given.values(cls))

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ClientOptions:
        """The `kafka.*` options alone, for a client that reads no topic. Those of `FetchOptions` are only checked.
        Raises OptionError: one line for each missing, unknown or invalid option."""
        given = GivenOptions(options, Query.BROKERS)
        client = cls.of(given)
        given.raise_problems()
        return client

    def api_deadline(self, now: float) -> float:
        """Deadline of an operation with its retries that starts at `now`; seconds of the caller's clock."""
        return now + self.default_api_timeout_ms / 1000


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """What a Fetch asks for. No part of `ClientOptions`: a worker that reads and writes has one client."""

    client_rack: str = _fetches.short_text(
        "kafka.client.rack", "Rack or zone of the executors, to read from replicas there (KIP-392).", default=""
    )
    read_committed: bool = _fetches.choice(
        "kafka.isolation.level",
        {"read_uncommitted": False, "read_committed": True},
        "read_committed skips aborted and waits for open transactions.",
    )
    fetch_max_bytes: int = _fetches.number("kafka.fetch.max.bytes", "52428800", "Soft limit of a Fetch response.")
    max_partition_fetch_bytes: int = _fetches.number(
        "kafka.max.partition.fetch.bytes", "8388608", "Soft limit per partition."
    )
    fetch_max_wait_ms: int = _fetches.number(
        "kafka.fetch.max.wait.ms", "500", "Maximum wait of a broker for kafka.fetch.min.bytes."
    )
    fetch_min_bytes: int = _fetches.number("kafka.fetch.min.bytes", "1", "Bytes at which a broker responds at once.")
    check_crcs: bool = _fetches.flag("kafka.check.crcs", True, "Whether checksums of record batches are verified.")

    @classmethod
    def of(cls, given: GivenOptions) -> FetchOptions:
        return cls(**given.values(cls))

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FetchOptions:
        """The options of reading among the `kafka.*` options, without a check that a client can be made of these.
        Raises OptionError: one line for each unknown or invalid option."""
        given = GivenOptions(options, Query.CLUSTER)
        given.raise_problems()
        return cls.of(given)


@dataclass(frozen=True, slots=True)
class EventsOptions:
    """The destination of refresh events. Without path and topic: a temporary folder of each machine.

    Attributes:
        client_id: of the writer of events, as of the query.
        driver: part of the name of that folder in tasks; a planner determines it itself.
    """

    path: str | None = _events.option(
        "eventsPath",
        None,
        parsers.parse_location,
        "Option 'eventsPath' must be a folder or the URI of one, such as s3://bucket/folder",
        "Folder for refresh events: a path on each machine, or a URI (s3://, gs://, hdfs://).",
        queries=Query.RECORDS | Query.WRITES | Query.FROM_FILES,
    )
    topic: str | None = _events.option(
        "eventsTopic",
        None,
        topic_name,
        "Option 'eventsTopic' must be the name of one topic, got '{value}'",
        "Topic for refresh events; create it first.",
        queries=Query.RECORDS | Query.WRITES | Query.FROM_TOPIC | Query.FROM_FILES,  # it decides between the two
    )
    bootstrap_servers: tuple[Address, ...] = _events.option(
        "eventsBootstrapServers",
        None,
        parsers.parse_addresses,
        "Option 'eventsBootstrapServers' must be host:port between commas, IPv6 as [::1]:9092",
        "Brokers of eventsTopic in another cluster, with the same login.",
        needs=("eventsTopic",),
    )
    security: SecurityOptions = PLAINTEXT
    client_id: str = "kafkameta"
    driver: str | None = None

    @classmethod
    def of(cls, given: GivenOptions, client: ClientOptions) -> EventsOptions:
        """By default, the events are in the cluster of `client`."""
        events = cls(**given.values(cls), security=client.security, client_id=client.client_id)
        return replace(events, bootstrap_servers=events.bootstrap_servers or client.bootstrap_servers)
