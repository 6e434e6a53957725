"""The options of a query that reads records.

Names, defaults and error texts follow Spark's `KafkaSourceProvider` and Kafka's `ConsumerConfig`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import checks, parsers
from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap
from pyspark_kafka_meta.options.client import CLIENT_OPTIONS, ClientOptions
from pyspark_kafka_meta.options.definitions import (
    Option,
    choice,
    documented_names,
    label,
    parse_options,
    row,
    table_of,
    taken,
    whole,
    with_effect,
)
from pyspark_kafka_meta.options.fetch import FETCH_OPTIONS, FetchOptions
from pyspark_kafka_meta.options.metrics import EVENTS_TOPIC, METRICS_OPTIONS, MetricsOptions
from pyspark_kafka_meta.options.offsets import OffsetOptions
from pyspark_kafka_meta.options.producer import PRODUCER_OPTIONS
from pyspark_kafka_meta.options.security_checks import complete_security
from pyspark_kafka_meta.options.start_specs import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec
from pyspark_kafka_meta.options.transactions import DECISIONS_TOPIC, TRANSACTION_OPTIONS
from pyspark_kafka_meta.validators import INT32_MAX, INT64_MAX

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(OffsetOptions):
    """The options of one query. `for_batch` or `for_stream` completes them once the kind of query is known.

    Attributes:
        topics: topics to read, without duplicates; empty with `topic_pattern`.
        assigned: partitions to read; None for all partitions, including later ones.
        metrics: destination of refresh events; None for no events.
    """

    client: ClientOptions
    fetch: FetchOptions
    metrics: MetricsOptions | None
    topics: tuple[str, ...] = row(
        "subscribe",
        None,
        parsers.parse_topics,
        "No topics to subscribe to as specified value for option 'subscribe' is '{value}'",
        "Topics to read, separated by commas. Set exactly one of subscribe, subscribePattern and assign.",
    )
    topic_pattern: str | None = row(
        "subscribePattern",
        None,
        parsers.parse_pattern,
        "Option 'subscribePattern' must be a regular expression as Python's re reads it, got '{value}'",
        "Python regular expression: topics with a match anywhere in the name, including future topics, but no topic "
        "that queries write for themselves: see metricsTopic and decisionsTopic.",
    )
    assigned: tuple[TopicPartition, ...] | None = row(
        "assign",
        None,
        parsers.parse_assigned,
        'Option \'assign\' must be JSON. Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got {value}',
        'Partitions to read, as JSON: {"topicA":[0,1],"topicB":[2]}.',
    )
    max_offsets_per_trigger: int | None = whole(
        "maxOffsetsPerTrigger",
        None,
        "Maximum offsets per micro-batch, divided among partitions in proportion to their backlog.",
        low=1,
        high=INT64_MAX,
    )
    min_offsets_per_trigger: int | None = whole(
        "minOffsetsPerTrigger",
        None,
        "Minimum offsets per micro-batch. With fewer, it waits for up to maxTriggerDelay.",
        low=1,
        high=INT64_MAX,
    )
    max_trigger_delay_ms: int = row(
        "maxTriggerDelay",
        "15m",
        parsers.parse_duration_ms,
        "Option 'maxTriggerDelay' must be a time like 15m, 30s or 500ms, got '{value}'",
        "Maximum wait for minOffsetsPerTrigger.",
    )
    min_partitions: int | None = row(
        "minPartitions",
        None,
        partial(parsers.parse_number, low=1, high=INT32_MAX),
        "minPartitions must be positive, a whole number, got '{value}'",
        "Approximate minimum number of tasks.",
    )
    max_records_per_partition: int | None = row(
        "maxRecordsPerPartition",
        None,
        partial(parsers.parse_number, low=1, high=INT64_MAX),
        "maxRecordsPerPartition must be positive, a whole number, got '{value}'",
        "Maximum offsets per task.",
    )
    max_tasks: int | None = whole("maxTasks", None, "Maximum number of tasks.", low=1)
    include_headers: bool = choice(
        "includeHeaders", {"false": False, "true": True}, "Whether rows have a headers column."
    )
    fail_on_data_loss: bool = choice(
        "failOnDataLoss",
        {"true": True, "false": False},
        "Whether lost records fail the query. If false, they are skipped with a warning and an event.",
    )
    skip_corrupt_batches: bool = choice(
        "onCorruptBatch",
        {"fail": False, "skip": True},
        "When a record batch is corrupt in two fetches: fail, or skip it with an event. Old message formats and "
        "unknown codecs always fail.",
    )
    max_decompressed_batch_bytes: int = whole(
        "maxDecompressedBatchBytes",
        "268435456",
        "Maximum decompressed size of a record batch. A larger batch fails the query; onCorruptBatch does not skip it.",
        low=1,
        high=2_000_000_000,
    )
    on_topic_recreated: str | None = row(
        "onTopicRecreated",
        None,
        partial(parsers.parse_choice, values={"fail": "fail", "earliest": "earliest", "latest": "latest"}),
        "Option 'onTopicRecreated' must be fail, earliest or latest, got '{value}'",
        "When a topic is recreated during a stream: fail, or continue at its earliest or latest offset without the "
        "old topic's unread records. Default: fail, or earliest if failOnDataLoss is false.",
    )
    new_partitions_at_latest: bool = choice(
        "newPartitions",
        {"earliest": False, "latest": True},
        "earliest or latest: where a stream starts in partitions that it discovers later.",
    )
    group_id: str | None = label("kafka.group.id", "Accepted with a warning: no consumer group is joined.")
    group_id_prefix: str | None = label("groupIdPrefix", "Like kafka.group.id.")
    commit_group: str | None = row(
        "commitOffsetsToGroup",
        None,
        parsers.parse_id,
        "Option 'commitOffsetsToGroup' must be a group id of at most 255 printable characters",
        "Consumer group to which a stream commits the offsets of finished micro-batches, for lag monitoring only.",
    )
    fetch_offset_retries: int = whole(
        "fetchOffset.numRetries",
        "3",
        "Retries of an offset request, with new metadata, before planning reports data loss; at least 1.",
    )
    fetch_offset_retry_interval_ms: int = whole("fetchOffset.retryIntervalMs", "1000", "Wait before each retry.")
    decisions_topic: str = field(metadata={"option": TRANSACTION_OPTIONS["decisions_topic"]})
    poll_timeout_ms: int = whole(
        "kafkaConsumer.pollTimeoutMs",
        "120000",
        "Maximum time without progress in a partition of a task. Below 10000, slow brokers and data loss cannot be "
        "distinguished.",
        low=1,
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parses options by name in any case, as far as possible before the kind of query is known.

        Raises:
            OptionError: one line for each missing, unknown or invalid option.
        """
        options = with_effect(CaseInsensitiveMap(options), WRITE_ONLY, "in a read")
        parsed, problems = parse_options(options, OPTIONS)
        problems += complete_security(parsed) + checks.client_problems(options) + checks.strategy_problems(options)
        checks.raise_problems(problems + checks.limit_problems(parsed) + checks.metrics_problems(options))
        if parsed["topics"] is None:
            parsed["topics"] = tuple(dict.fromkeys(partition.topic for partition in parsed["assigned"] or ()))
        client, fetch = taken(ClientOptions, parsed), taken(FetchOptions, parsed)
        metrics = MetricsOptions.taken(parsed, client)
        return cls(client=client, fetch=fetch, metrics=metrics, **parsed)

    def for_batch(self) -> SourceOptions:
        """For `spark.read`: from earliest to latest where nothing else is said.

        Raises:
            OptionError: one line for each starting or ending offset that a batch cannot have.
        """
        starting = self.start() or OffsetsSpec(EARLIEST_OFFSET)
        ending = self.end() or OffsetsSpec(LATEST_OFFSET)
        checks.raise_problems(checks.batch_problems(starting, ending))
        self._warn_of_group_ids()
        # A batch has no later micro-batch that reads the new topic: failOnDataLoss decides.
        return replace(self, starting_offsets=starting, ending_offsets=ending, on_topic_recreated=None)

    def for_stream(self) -> SourceOptions:
        """For `spark.readStream`: a new query starts at latest by default.

        Raises:
            OptionError: the end would move with each restart.
        """
        checks.raise_problems(checks.stream_problems(self.end()))
        self._warn_of_group_ids()
        return replace(self, starting_offsets=self.start() or OffsetsSpec(LATEST_OFFSET))

    @property
    def topic_filter(self) -> Callable[[str], bool] | None:
        """Whether subscribePattern matches the name of a topic; None without subscribePattern. It matches no topic that
        queries write for themselves: each micro-batch of a query that reads its own events makes new events."""
        if self.topic_pattern is None:
            return None
        own: set[str | None] = {self.decisions_topic}
        if self.metrics is not None and set(self.metrics.bootstrap_servers) & set(self.client.bootstrap_servers):
            own.add(self.metrics.topic)  # else the topic with this name is of another cluster
        search = re.compile(self.topic_pattern).search
        return lambda topic: bool(search(topic)) and topic not in own and not _OWN_TOPIC.search(topic)

    def _warn_of_group_ids(self) -> None:
        for name in ("group_id", "group_id_prefix"):
            if getattr(self, name) is not None:
                logger.warning(
                    "Kafka option '%s' has no effect: the query joins no consumer group, and its checkpoint keeps the "
                    "offsets",
                    OPTIONS[name].name,
                )


_OWN_TOPIC = re.compile(f"{DECISIONS_TOPIC}|{EVENTS_TOPIC}")
"""In names of topics that queries of the cluster write for themselves."""
OPTIONS: Mapping[str, Option] = table_of(SourceOptions) | METRICS_OPTIONS | CLIENT_OPTIONS | FETCH_OPTIONS
"""Options by field. Parsing, documentation and hints about misspelt names use this table."""
WRITE_ONLY = CaseInsensitiveMap(
    {
        **documented_names(PRODUCER_OPTIONS | TRANSACTION_OPTIONS).without("decisionsTopic"),
        "checkpointLocation": "checkpointLocation",
        "topic": "topic",
    }
)
"""Options that only a sink has."""
