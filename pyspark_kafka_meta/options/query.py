"""What the options of one query amount to: every option with its rules, and what they say once they are all read.

Names, defaults and error texts follow Spark's `KafkaSourceProvider` and Kafka's `ConsumerConfig`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.metadata.model import Address, TopicPartition
from pyspark_kafka_meta.options import rules, specs, values
from pyspark_kafka_meta.options.security import SECURITY_OPTIONS, SecurityOptions, complete_security
from pyspark_kafka_meta.options.specs import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec, StartSpec, TimesSpec
from pyspark_kafka_meta.options.table import Option, choice, read, row, table_of, whole
from pyspark_kafka_meta.options.values import INT32_MAX, INT64_MAX

logger = logging.getLogger(__name__)
_EXPECTED_OFFSETS = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got {value}'
_EXPECTED_TIMES = 'Expected e.g. {"topicA":{"0":1700000000000},"topicB":{"0":1700000000000}}, got {value}'


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
        _raise_if_any(problems + rules.client_problems(options) + complete_security(parsed))
        return cls(**parsed)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All that a query asks for; `for_batch` or `for_stream` completes it once the kind of query is known.

    Attributes:
        topics: the topics to read, each once; none where a pattern says which.
        assigned: the partitions to read of them; None means all, those still to come included.
        starting_offsets, ending_offsets: None until completed where not given, then what holds among the options for
            offsets and for times; a stream has no ending offsets.
        metrics_path: None leaves the choice to the writer of the events.
    """

    client: ClientOptions
    topics: tuple[str, ...] = row(
        "subscribe",
        None,
        values.parse_topics,
        "No topics to subscribe to as specified value for option 'subscribe' is '{value}'",
        "Topics to read, between commas. Either this, subscribePattern or assign.",
    )
    topic_pattern: str | None = row(
        "subscribePattern",
        None,
        values.parse_pattern,
        "Option 'subscribePattern' must be a regular expression as Python's re reads it, got '{value}'",
        "Regular expression (Python's) that whole names of topics match to be read, also of topics still to come. "
        "Either this, subscribe or assign.",
    )
    assigned: tuple[TopicPartition, ...] | None = row(
        "assign",
        None,
        values.parse_assigned,
        'Option \'assign\' must be JSON. Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got {value}',
        'Partitions to read, as JSON: {"topicA":[0,1],"topicB":[2]}. Either this, subscribe or subscribePattern.',
    )
    starting_offsets: StartSpec | None = row(  # noqa: RUF009
        "startingOffsets",
        None,
        specs.parse_start,
        f"Option 'startingOffsets' must be earliest, latest, JSON, or like -10m or -1000. {_EXPECTED_OFFSETS}",
        "Where a new query begins: earliest (default of a batch), latest (default of a stream, not for a batch), the "
        "last ten minutes (-10m; s, m, h or d), the last thousand offsets of each partition (-1000), or JSON that "
        "names every partition, -2 being earliest and -1 latest, or has earliest or latest for a whole topic.",
    )
    starting_timestamp_ms: int | None = row(
        "startingTimestamp",
        None,
        partial(values.parse_number, low=0, high=INT64_MAX),
        "Option 'startingTimestamp' is milliseconds since 1970. Expected a single long value, got {value}",
        "Begin at the first record of each partition that is as late, in milliseconds since 1970 UTC. Goes before "
        "startingOffsetsByTimestamp, and that before startingOffsets.",
    )
    starting_times: TimesSpec | None = row(  # noqa: RUF009
        "startingOffsetsByTimestamp",
        None,
        specs.parse_times,
        f"Option 'startingOffsetsByTimestamp' must be JSON. {_EXPECTED_TIMES}",
        "The same by partition, as JSON that names every one of them.",
    )
    start_at_latest_if_unmatched: bool = choice(
        "startingOffsetsByTimestampStrategy",
        {"error": False, "latest": True},
        "What if a partition has no record as late as the starting timestamp: an error, or begin at its end.",
    )
    ending_offsets: OffsetsSpec | TimesSpec | None = row(  # noqa: RUF009
        "endingOffsets",
        None,
        specs.parse_offsets,
        f"Option 'endingOffsets' must be latest or JSON. {_EXPECTED_OFFSETS}",
        "Where a batch ends, exclusive: latest (default), or JSON that names every partition, -1 being latest.",
    )
    ending_timestamp_ms: int | None = row(
        "endingTimestamp",
        None,
        partial(values.parse_number, low=0, high=INT64_MAX),
        "Option 'endingTimestamp' is milliseconds since 1970. Expected a single long value, got {value}",
        "End a batch before the first record of each partition that is as late, at its end where there is none. Goes "
        "before endingOffsetsByTimestamp, and that before endingOffsets.",
    )
    ending_times: TimesSpec | None = row(  # noqa: RUF009
        "endingOffsetsByTimestamp",
        None,
        specs.parse_times,
        f"Option 'endingOffsetsByTimestamp' must be JSON. {_EXPECTED_TIMES}",
        "The same by partition, as JSON that names every one of them.",
    )
    max_offsets_per_trigger: int | None = whole(
        "maxOffsetsPerTrigger",
        None,
        "Most offsets in one micro-batch, shared out by backlog.",
        low=1,
        high=INT64_MAX,
    )
    min_offsets_per_trigger: int | None = whole(
        "minOffsetsPerTrigger",
        None,
        "Least offsets for a micro-batch to be worth it; fewer wait until there are as many, or for maxTriggerDelay.",
        low=1,
        high=INT64_MAX,
    )
    max_trigger_delay_ms: int = row(
        "maxTriggerDelay",
        "15m",
        values.parse_duration_ms,
        "Option 'maxTriggerDelay' must be a time like 15m, 30s or 500ms, got '{value}'",
        "How long minOffsetsPerTrigger may put a micro-batch off.",
    )
    min_partitions: int | None = row(
        "minPartitions",
        None,
        partial(values.parse_number, low=1, high=INT32_MAX),
        "minPartitions must be positive, a whole number, got '{value}'",
        "Least number of tasks, about: large ranges of offsets are split until there are as many.",
    )
    max_records_per_partition: int | None = row(
        "maxRecordsPerPartition",
        None,
        partial(values.parse_number, low=1, high=INT64_MAX),
        "maxRecordsPerPartition must be positive, a whole number, got '{value}'",
        "Most offsets of one task: larger ranges are split evenly.",
    )
    max_tasks: int | None = whole(
        "maxTasks", None, "Most tasks of a batch or micro-batch: ranges share tasks until there are no more.", low=1
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
        problems += complete_security(parsed) + rules.client_problems(options) + rules.strategy_problems(options)
        _raise_if_any(problems or rules.limit_problems(parsed))
        if parsed["topics"] is None:
            parsed["topics"] = tuple(dict.fromkeys(partition.topic for partition in parsed["assigned"] or ()))
        client = ClientOptions(**{each.name: parsed.pop(each.name) for each in fields(ClientOptions)})
        return cls(client=client, **parsed)

    def for_batch(self) -> SourceOptions:
        """For `spark.read`: from earliest to latest where nothing else is said.

        Raises:
            OptionError: one line for each starting or ending offset that a batch cannot have.
        """
        starting = self._starting() or OffsetsSpec(EARLIEST_OFFSET)
        ending = self._ending() or OffsetsSpec(LATEST_OFFSET)
        _raise_if_any(rules.batch_problems(starting, ending))
        for name in ("max_offsets_per_trigger", "min_offsets_per_trigger"):
            if getattr(self, name) is not None:
                logger.warning("%s option ignored in batch queries", OPTIONS[name].name)
        return replace(self, starting_offsets=starting, ending_offsets=ending)

    def for_stream(self) -> SourceOptions:
        """For `spark.readStream`: a new query starts at latest where nothing else is said.

        Raises:
            OptionError: an end is given.
        """
        if self.ending_offsets is not None:
            raise OptionError("ending offset not valid in streaming queries")
        if self._ending() is not None:
            raise OptionError("ending timestamp not valid in streaming queries")
        return replace(self, starting_offsets=self._starting() or OffsetsSpec(LATEST_OFFSET))

    def _starting(self) -> StartSpec | None:
        or_latest = self.start_at_latest_if_unmatched
        if self.starting_timestamp_ms is not None:
            return TimesSpec(self.starting_timestamp_ms, or_latest=or_latest)
        if self.starting_times is not None:
            return replace(self.starting_times, or_latest=or_latest)
        return self.starting_offsets

    def _ending(self) -> OffsetsSpec | TimesSpec | None:
        if self.ending_timestamp_ms is not None:
            return TimesSpec(self.ending_timestamp_ms, or_latest=True)
        if self.ending_times is not None:
            return replace(self.ending_times, or_latest=True)
        return self.ending_offsets


_CLIENT_OPTIONS = table_of(ClientOptions) | SECURITY_OPTIONS
OPTIONS: Mapping[str, Option] = table_of(SourceOptions) | _CLIENT_OPTIONS
"""The table, by the field that holds the value. Parsing, documentation and hints about misspelt names all read it."""


def _raise_if_any(problems: list[str]) -> None:
    if problems:
        raise OptionError("\n".join(problems))
