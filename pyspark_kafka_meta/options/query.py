"""What the options of one query amount to: every option with its rules, and what they say once they are all read.

Names, defaults and error texts follow Spark's `KafkaSourceProvider` and Kafka's `ConsumerConfig`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.metadata.model import Address, TopicPartition
from pyspark_kafka_meta.options import values
from pyspark_kafka_meta.options.security import SecurityOptions
from pyspark_kafka_meta.options.table import Option, choice, read, row, table_of, whole
from pyspark_kafka_meta.options.values import EARLIEST_OFFSET, INT32_MAX, INT64_MAX, LATEST_OFFSET, OffsetsSpec

logger = logging.getLogger(__name__)
_EXPECTED_OFFSETS = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got {value}'


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How to reach the brokers, how much to ask of them and how long to wait."""

    security: SecurityOptions
    bootstrap_servers: tuple[Address, ...] = row(
        "kafka.bootstrap.servers",
        None,
        values.parse_addresses,
        "Option 'kafka.bootstrap.servers' must be host:port between commas, IPv6 as [::1]:9092, got '{value}'",
        "Required. Brokers to ask first, as host:port between commas; one that answers is enough.",
    )
    client_id: str = row(
        "kafka.client.id",
        "kafkameta",
        values.parse_label,
        "Option 'kafka.client.id' must be at most 255 printable characters",
        "Name under which brokers log, count and throttle the requests.",
    )
    client_rack: str = row(
        "kafka.client.rack",
        "",
        values.parse_label,
        "Option 'kafka.client.rack' must be at most 255 printable characters",
        "Rack, or availability zone, of the executors: leaders may name a replica there to read from (KIP-392).",
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
        "kafka.default.api.timeout.ms", "60000", "How long planning may take, retries included.", low=1
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
        parsed, problems = read(options, _CLIENT_OPTIONS)
        _raise_if_any(problems + _client_problems(options) + _complete_security(parsed))
        return cls(**parsed)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All that a query asks for; `for_batch` or `for_stream` completes it once the kind of query is known.

    Attributes:
        topics: the topics to read, each once.
        assigned: the partitions to read of them; None means all, those still to come included.
        starting_offsets, ending_offsets: None until completed where not given; a stream has no ending offsets.
        metrics_path: None leaves the choice to the writer of the events.
    """

    client: ClientOptions
    topics: tuple[str, ...] = row(
        "subscribe",
        None,
        values.parse_topics,
        "No topics to subscribe to as specified value for option 'subscribe' is '{value}'",
        "Topics to read, between commas. Either this or assign.",
    )
    assigned: tuple[TopicPartition, ...] | None = row(
        "assign",
        None,
        values.parse_assigned,
        'Option \'assign\' must be JSON. Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got {value}',
        'Partitions to read, as JSON: {"topicA":[0,1],"topicB":[2]}. Either this or subscribe.',
    )
    starting_offsets: OffsetsSpec | None = row(  # noqa: RUF009
        "startingOffsets",
        None,
        values.parse_offsets,
        f"Option 'startingOffsets' must be earliest, latest or JSON. {_EXPECTED_OFFSETS}",
        "Where a new query begins: earliest (default of a batch), latest (default of a stream, not for a batch), "
        "or JSON that names every partition, -2 being earliest and -1 latest.",
    )
    ending_offsets: OffsetsSpec | None = row(  # noqa: RUF009
        "endingOffsets",
        None,
        values.parse_offsets,
        f"Option 'endingOffsets' must be latest or JSON. {_EXPECTED_OFFSETS}",
        "Where a batch ends, exclusive: latest (default), or JSON that names every partition, -1 being latest.",
    )
    max_offsets_per_trigger: int | None = whole(
        "maxOffsetsPerTrigger",
        None,
        "Most offsets in one micro-batch, shared out by backlog.",
        low=1,
        high=INT64_MAX,
    )
    min_partitions: int | None = row(
        "minPartitions",
        None,
        partial(values.parse_number, low=1, high=INT32_MAX),
        "minPartitions must be positive, a whole number, got '{value}'",
        "Least number of tasks, about: large ranges of offsets are split until there are as many.",
    )
    include_headers: bool = choice(
        "includeHeaders", {"false": False, "true": True}, "Whether rows have a headers column."
    )
    fail_on_data_loss: bool = choice(
        "failOnDataLoss",
        {"true": True, "false": False},
        "Whether a query fails when records it was to read are gone.",
    )
    metrics_path: str | None = row(
        "metricsPath",
        None,
        values.parse_folder,
        "Option 'metricsPath' must be a local folder, not empty and not a URI",
        "Local folder for the refresh events of every metadata cache.",
    )
    poll_timeout_ms: int = whole(
        "kafkaConsumer.pollTimeoutMs", "120000", "How long a task may go without progress.", low=1
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """What the options say, as far as it can be told before the kind of query is known. Case of names is ignored.

        Raises:
            OptionError: one line for each option that is missing, unknown or unusable.
        """
        parsed, problems = read(options, OPTIONS)
        security_problems = _complete_security(parsed)
        _raise_if_any(problems + _client_problems(options) + _strategy_problems(options) + security_problems)
        if parsed["assigned"] is not None:
            parsed["topics"] = tuple(dict.fromkeys(partition.topic for partition in parsed["assigned"]))
        client = ClientOptions(**{each.name: parsed.pop(each.name) for each in fields(ClientOptions)})
        return cls(client=client, **parsed)

    def for_batch(self) -> SourceOptions:
        """For `spark.read`: from earliest to latest where nothing else is said.

        Raises:
            OptionError: one line for each starting or ending offset that a batch cannot have.
        """
        starting = self.starting_offsets or OffsetsSpec(EARLIEST_OFFSET)
        ending = self.ending_offsets or OffsetsSpec(LATEST_OFFSET)
        _raise_if_any(_batch_problems(starting, ending))
        if self.max_offsets_per_trigger is not None:
            logger.warning("maxOffsetsPerTrigger option ignored in batch queries")
        return replace(self, starting_offsets=starting, ending_offsets=ending)

    def for_stream(self) -> SourceOptions:
        """For `spark.readStream`: a new query starts at latest where nothing else is said.

        Raises:
            OptionError: ending offsets are given.
        """
        if self.ending_offsets is not None:
            raise OptionError("ending offset not valid in streaming queries")
        return replace(self, starting_offsets=self.starting_offsets or OffsetsSpec(LATEST_OFFSET))


_SECURITY_OPTIONS = table_of(SecurityOptions)
_CLIENT_OPTIONS = table_of(ClientOptions) | _SECURITY_OPTIONS
OPTIONS: Mapping[str, Option] = table_of(SourceOptions) | _CLIENT_OPTIONS
"""The table, by the field that holds the value. Parsing, documentation and hints about misspelt names all read it."""


def _raise_if_any(problems: list[str]) -> None:
    if problems:
        raise OptionError("\n".join(problems))


def _complete_security(parsed: dict[str, Any]) -> list[str]:
    """Puts the security options, taken out of `parsed`, there as one value. Returns what does not fit together."""
    values = {name: parsed.pop(name, None) for name in _SECURITY_OPTIONS}
    if values["protocol"] is None:
        return []  # its value was refused already
    parsed["security"], problems = SecurityOptions(**values).complete()
    return problems


def _client_problems(options: Mapping[str, str]) -> list[str]:
    if "kafka.bootstrap.servers" in {name.lower() for name in options}:
        return []
    return ["Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer"]


def _strategy_problems(options: Mapping[str, str]) -> list[str]:
    given = {name.lower() for name in options} & {"subscribe", "assign"}
    if len(given) == 1:
        return []
    rule = "Only one of the following options can be" if given else "One of the following options must be"
    return [f"{rule} specified for Kafka source: subscribe, assign."]


def _batch_problems(starting: OffsetsSpec, ending: OffsetsSpec) -> list[str]:
    problems = []
    if starting.everywhere == LATEST_OFFSET:
        problems.append("starting offset can't be latest for batch queries on Kafka")
    if ending.everywhere == EARLIEST_OFFSET:
        problems.append("ending offset can't be earliest for batch queries on Kafka")
    for partition, offset in starting.by_partition:
        if offset == LATEST_OFFSET:
            problems.append(f"startingOffsets for {partition} can't be latest for batch queries on Kafka")
    for partition, offset in ending.by_partition:
        if offset == EARLIEST_OFFSET:
            problems.append(f"ending offset for {partition} can't be earliest for batch queries on Kafka")
    if starting.by_partition and ending.by_partition:
        problems += _span_problems(dict(starting.by_partition), dict(ending.by_partition))
    return problems


def _span_problems(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> list[str]:
    problems = [
        f"The specified start offset {start} is greater than the end offset {ends[partition]} "
        f"for topic {partition.topic} partition {partition.partition}."
        for partition, start in starts.items()
        if partition in ends and start > ends[partition] >= 0
    ]
    if starts.keys() != ends.keys():
        problems.append(
            "The specified start offset and end offset should have the same topic-partitions. "
            f"Only in startingOffsets: {values.name_partitions(starts.keys() - ends.keys())}. "
            f"Only in endingOffsets: {values.name_partitions(ends.keys() - starts.keys())}."
        )
    return problems
