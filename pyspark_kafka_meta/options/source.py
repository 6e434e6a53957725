"""The options of a query that reads records.

Names, defaults and error texts follow Spark's `KafkaSourceProvider` and Kafka's `ConsumerConfig`.
"""
# ruff: noqa: RUF009 (the default of a field is an option, made by a function)

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.options import parsers
from pyspark_kafka_meta.options.changes import ChangesOptions
from pyspark_kafka_meta.options.client import EVENTS_TOPIC, ClientOptions, EventsOptions, FetchOptions
from pyspark_kafka_meta.options.offsets import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    LatestByKeySpec,
    OffsetOptions,
    OffsetsSpec,
    StartSpec,
    batch_problems,
    stream_problems,
)
from pyspark_kafka_meta.options.option_table import (
    GivenOptions,
    Query,
    Rows,
    Section,
    option_field,
    options_of,
    raise_problems,
)
from pyspark_kafka_meta.options.sink import DECISIONS_TOPIC, TransactionOptions
from pyspark_kafka_meta.options.typed_values import BYTES, TypedValuesOptions
from pyspark_kafka_meta.value_checks import INT32_MAX, INT64_MAX
from pyspark_kafka_meta.where.syntax import Condition, parse_condition

logger = logging.getLogger(__name__)

STRATEGIES = ("topics", "topic_pattern", "assigned")
"""The fields that say what to read: one of their options must be given."""
_OWN_TOPIC = re.compile(f"{DECISIONS_TOPIC}|{EVENTS_TOPIC}")
"""In names of topics that queries of the cluster write for themselves."""

_topics = Rows(Section.TOPICS, Query.RECORDS)
_tasks = Rows(Section.TASKS, Query.RECORDS)
_failures = Rows(Section.FAILURES, Query.RECORDS)
_groups = Rows(Section.GROUPS_AND_EVENTS, Query.RECORDS)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a query reads, whichever records it chooses: what a Fetch asks for, and what happens when records are lost,
    corrupt or not returned."""

    fetch: FetchOptions
    fail_on_data_loss: bool = _failures.flag(
        "failOnDataLoss", True, "Whether lost records fail the query, or are skipped with a warning and an event."
    )
    skip_corrupt_batches: bool = _failures.choice(
        "onCorruptBatch",
        {"fail": False, "skip": True},
        "A record batch that is corrupt in two fetches: fail, or skip it with an event. Old formats and wrong lengths "
        "always fail.",
    )
    max_decompressed_batch_bytes: int = _failures.number(
        "maxDecompressedBatchBytes",
        "268435456",
        "A larger record batch fails the query, whatever onCorruptBatch says.",
        low=1,
        high=2_000_000_000,
    )
    on_topic_recreated: str | None = _failures.option(
        "onTopicRecreated",
        None,
        partial(parsers.parse_choice, values={"fail": "fail", "earliest": "earliest", "latest": "latest"}),
        "Option 'onTopicRecreated' must be fail, earliest or latest, got '{value}'",
        "A topic that is recreated during a stream: fail, or continue in the new topic, without unread "
        "records of the old topic. Default: fail; earliest if failOnDataLoss is false.",
        queries=Query.RECORDS_STREAM,
    )
    new_partitions_at_latest: bool = _failures.choice(
        "newPartitions",
        {"earliest": False, "latest": True},
        "Where a stream starts in partitions it discovers later.",
        queries=Query.RECORDS_STREAM,
    )
    fetch_offset_retries: int = _failures.number(
        "fetchOffset.numRetries", "3", "Retries of an offset request before planning reports data loss."
    )
    fetch_offset_retry_interval_ms: int = _failures.number(
        "fetchOffset.retryIntervalMs", "1000", "Wait before each retry."
    )
    poll_timeout_ms: int = _failures.number(
        "kafkaConsumer.pollTimeoutMs",
        "120000",
        "Maximum time without progress in a partition; below 10000, slow brokers look like data loss.",
        low=1,
    )


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ReadOptions, OffsetOptions):
    """The options of one query. `for_batch` or `for_stream` completes them once the kind of query is known.

    Attributes:
        topics: topics to read, without duplicates; empty with `topic_pattern`.
        assigned: partitions to read; None for all partitions, including later ones.
        events: destination of refresh events; None for no events.
        typed: how keys and values are typed.
        changes: how they become changes of rows; None for the records themselves.
    """

    client: ClientOptions
    events: EventsOptions | None
    typed: TypedValuesOptions = BYTES
    changes: ChangesOptions | None = None
    topics: tuple[str, ...] = _topics.option(
        "subscribe",
        None,
        parsers.parse_topics,
        "No topics to subscribe to as specified value for option 'subscribe' is '{value}'",
        "Topics to read. Set this, subscribePattern or assign.",
        queries=Query.RECORDS | Query.PARTITIONS,
    )
    topic_pattern: str | None = _topics.option(
        "subscribePattern",
        None,
        parsers.parse_pattern,
        "Option 'subscribePattern' must be a regular expression as Python's re reads it, got '{value}'",
        "Python regular expression, searched in topic names, also of new topics.",
    )
    assigned: tuple[TopicPartition, ...] | None = _topics.option(
        "assign",
        None,
        parsers.parse_assigned,
        'Option \'assign\' must be JSON. Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got {value}',
        'Partitions to read: {"topicA":[0,1],"topicB":[2]}.',
    )
    max_offsets_per_trigger: int | None = _tasks.number(
        "maxOffsetsPerTrigger",
        None,
        "Maximum offsets per micro-batch, in proportion to the backlog of each partition.",
        low=1,
        high=INT64_MAX,
        queries=Query.RECORDS_STREAM | Query.EVENT_TOPIC_STREAM,
    )
    max_bytes_per_trigger: int | None = _tasks.number(
        "maxBytesPerTrigger",
        None,
        "[Approximate](#micro-batches-of-about-so-many-bytes) maximum of compressed bytes per micro-batch, but at "
        "least one offset of each partition with a backlog.",
        low=1,
        high=INT64_MAX,
        queries=Query.RECORDS_STREAM,
    )
    min_offsets_per_trigger: int | None = _tasks.number(
        "minOffsetsPerTrigger",
        None,
        "With fewer offsets, a micro-batch waits up to maxTriggerDelay.",
        low=1,
        high=INT64_MAX,
        queries=Query.RECORDS_STREAM,
    )
    max_trigger_delay_ms: int = _tasks.option(
        "maxTriggerDelay",
        "15m",
        parsers.parse_duration_ms,
        "Option 'maxTriggerDelay' must be a time like 15m, 30s or 500ms, got '{value}'",
        "Maximum wait for minOffsetsPerTrigger.",
        queries=Query.RECORDS_STREAM,
    )
    min_partitions: int | None = _tasks.option(
        "minPartitions",
        None,
        partial(parsers.parse_number, low=1, high=INT32_MAX),
        "minPartitions must be positive, a whole number, got '{value}'",
        "Approximate minimum number of tasks.",
        queries=Query.EACH_RECORD,
    )
    max_records_per_partition: int | None = _tasks.option(
        "maxRecordsPerPartition",
        None,
        partial(parsers.parse_number, low=1, high=INT64_MAX),
        "maxRecordsPerPartition must be positive, a whole number, got '{value}'",
        "Maximum offsets per task.",
        queries=Query.EACH_RECORD,
    )
    max_tasks: int | None = _tasks.number(
        "maxTasks",
        None,
        "Maximum number of tasks.",
        low=1,
        excludes=("maxRecordsPerPartition",),
        queries=Query.EACH_RECORD,
    )
    include_headers: bool = _topics.flag("includeHeaders", False, "Whether rows have the column headers.")
    where: Condition | None = _topics.option(
        "where",
        None,
        parse_condition,
        "Option 'where' must be a condition in the part of Spark's SQL that it supports, got '{value}'",
        "[Condition](#conditions) in Spark's SQL; other records are dropped and counted.",
        excludes=("changes",),
    )
    headers_as_map: bool = _topics.flag(
        "headersAsMap",
        False,
        "Whether headers is a map<string,binary>, with the last header of each key.",
        needs=("includeHeaders",),
    )
    group_id: str | None = _groups.short_text("kafka.group.id", "No effect but a warning.")
    group_id_prefix: str | None = _groups.short_text("groupIdPrefix", "No effect but a warning.")
    commit_group: str | None = _groups.option(
        "commitOffsetsToGroup",
        None,
        parsers.parse_id,
        "Option 'commitOffsetsToGroup' must be a group id of at most 255 printable characters",
        "Consumer group to which a stream commits finished micro-batches, for lag monitoring only.",
        queries=Query.RECORDS_STREAM,
    )
    decisions_topic: str = option_field(options_of(TransactionOptions)["decisions_topic"])

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parses options by name in any case, as far as possible before the kind of query is known. Raises OptionError:
        one line for each missing, unknown or invalid option."""
        given = GivenOptions(options, Query.RECORDS, "a read")
        client = ClientOptions.of(given)
        values = given.values(cls)
        if values["topics"] is None:
            values["topics"] = tuple(dict.fromkeys(partition.topic for partition in values["assigned"] or ()))
        events = EventsOptions.of(given, client)
        typed = TypedValuesOptions.of(given)
        changes = ChangesOptions.of(given)
        parsed = cls(client=client, fetch=FetchOptions.of(given), events=events, typed=typed, changes=changes, **values)
        given.refuse(_contradictions(given, parsed))
        given.raise_problems()
        return parsed

    def for_batch(self, latest_by_key: bool = False) -> SourceOptions:
        """For `spark.read`: from earliest to latest where nothing else is said. Raises OptionError: one line for each
        starting or ending offset that a batch cannot have.

        Args:
            latest_by_key: for table latest.
        """
        starting = self.start() or OffsetsSpec(EARLIEST_OFFSET)
        ending = self.end() or OffsetsSpec(LATEST_OFFSET)
        raise_problems(batch_problems(starting, ending))
        starting = LatestByKeySpec() if latest_by_key else starting
        raise_problems(self._problems_by_key(starting))
        self._warn_of_group_ids()
        # A batch has no later micro-batch that reads the new topic: failOnDataLoss decides.
        return replace(self, starting_offsets=starting, ending_offsets=ending, on_topic_recreated=None)

    def for_stream(self) -> SourceOptions:
        """For `spark.readStream`: a new query starts at latest by default. Raises OptionError: the end would move with
        each restart."""
        starting = self.start() or OffsetsSpec(LATEST_OFFSET)
        raise_problems([*stream_problems(self.end()), *self._problems_by_key(starting)])
        self._warn_of_group_ids()
        return replace(self, starting_offsets=starting)

    def _problems_by_key(self, starting: StartSpec) -> list[str]:
        """Topics whose keys replace nothing."""
        topics = [topic for topic in self.topics if EVENTS_TOPIC in topic or topic == self._events_topic]
        if not topics or not isinstance(starting, LatestByKeySpec):
            return []
        return [f"topic {topics[0]} has an event in each record, and none replaces another: read table refresh_events"]

    @property
    def _events_topic(self) -> str | None:
        """To which this query writes events; None if that is in another cluster."""
        is_own = self.events is not None and set(self.events.bootstrap_servers) & set(self.client.bootstrap_servers)
        return self.events.topic if self.events is not None and is_own else None

    @property
    def topic_filter(self) -> Callable[[str], bool] | None:
        """Whether subscribePattern matches the name of a topic; None without subscribePattern. It matches no topic that
        queries write for themselves: each micro-batch of a query that reads its own events makes new events."""
        if self.topic_pattern is None:
            return None
        own = {self.decisions_topic, self._events_topic, self.typed.dead_letter_topic}
        search = re.compile(self.topic_pattern).search
        return lambda topic: bool(search(topic)) and topic not in own and not _OWN_TOPIC.search(topic)

    def _warn_of_group_ids(self) -> None:
        for field in ("group_id", "group_id_prefix"):
            if getattr(self, field) is not None:
                logger.warning(
                    "Kafka option '%s' has no effect: the query joins no consumer group, and its checkpoint keeps the "
                    "offsets",
                    options_of(SourceOptions)[field].name,
                )


def _contradictions(given: GivenOptions, options: SourceOptions) -> Iterator[str]:
    """A sentence for each; a value is None if it is invalid."""
    strategies = [option.name for field, option in options_of(SourceOptions).items() if field in STRATEGIES]
    chosen = given.given(SourceOptions, *STRATEGIES)
    if len(chosen) != 1:
        rule = "Only one of the following options can be" if chosen else "One of the following options must be"
        yield f"{rule} specified for Kafka source: {', '.join(strategies)}."
    if options.typed.dead_letter_topic in (options.topics or ()):
        yield "'deadLetterTopic' is one of the topics that are read: name another one"
    fewest, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if fewest is not None and most is not None and fewest > most:
        yield f"The value of minOffsetsPerTrigger({fewest}) is higher than the maxOffsetsPerTrigger({most})."
    tasks, partitions = options.max_tasks, options.min_partitions
    if tasks is not None and partitions is not None and tasks < partitions:
        yield f"The value of minPartitions({partitions}) is higher than maxTasks({tasks})."
    if options.topic_pattern is not None and options.typed.registry is not None:
        for column in options.typed.columns:
            if column.schema is None and not column.format.is_in_values and not column.subjects(()):
                yield (
                    f"With subscribePattern the subjects of schemas are unknown: set '{column.column}Schema', "
                    f"'{column.column}Subject', or '{column.column}SubjectNameStrategy' to record"
                )
