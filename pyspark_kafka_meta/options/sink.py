"""The options of a query that writes records: how rows become batches, exactly-once writes, and the query as a whole.

Names, defaults and error texts follow Spark's `KafkaSourceProvider` and Kafka's `ProducerConfig`, but batches and
requests are larger: a task has all its rows at hand. `kafka.transactional.id` turns exactly-once writes on; `txnAppId`
and `txnVersion` have the names and the meaning of Delta Lake's options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark_kafka_meta.options.client import ClientOptions, EventsOptions
from pyspark_kafka_meta.options.option_table import (
    CHECKPOINT_LOCATION,
    GivenOptions,
    Query,
    Rows,
    Section,
    raise_problems,
)
from pyspark_kafka_meta.options.parsers import parse_acks, parse_id, parse_topic_config
from pyspark_kafka_meta.options.typed_values import BYTES, TypedValuesOptions
from pyspark_kafka_meta.options.unknown_options import CaseInsensitiveMap
from pyspark_kafka_meta.value_checks import INT16_MAX, INT64_MAX, topic_name

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DECISIONS_TOPIC = "kafkameta-decisions"
MAX_IN_FLIGHT_IF_IDEMPOTENT = 5
"""A broker remembers the sequence numbers of a producer's last five batches in a partition."""

_writing = Rows(Section.WRITING, Query.WRITES)
_creation = Rows(Section.WRITING, Query.WRITES, needs=("createTopics",))
_transactions = Rows(Section.WRITING, Query.EXACTLY_ONCE, needs=("kafka.transactional.id",))


def _parse_sink_id(text: str) -> str:
    sink_id = parse_id(text)
    if re.search(r"/\d+/\d+$", sink_id):
        raise ValueError
    return sink_id


def _level(codec: str, low: int, high: int) -> Any:
    name, of = f"kafka.compression.{codec}.level", "kafka.compression.type"
    return _writing.number(name, None, "Level of the codec.", low, high, needs=(of,), needs_values=(codec,))


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How rows become record batches, and when they count as written.

    Attributes:
        acks: -1 for all in-sync replicas.
    """

    acks: int = _writing.option(
        "kafka.acks",
        "all",
        parse_acks,
        "Option 'kafka.acks' must be all, -1 or 1, got '{value}'",
        "all (-1): all in-sync replicas acknowledge a batch. 1: only the leader; records are lost if it fails.",
    )
    idempotent: bool = _writing.flag(
        "kafka.enable.idempotence",
        True,
        "Whether retries within a task neither repeat nor reorder records; false by default with kafka.acks 1.",
    )
    compression_type: str = _writing.choice(
        "kafka.compression.type", {codec: codec for codec in CODECS}, "Compression of record batches."
    )
    gzip_level: int | None = _level("gzip", 1, 9)
    lz4_level: int | None = _level("lz4", 1, 17)
    zstd_level: int | None = _level("zstd", -131072, 22)
    batch_bytes: int = _writing.number(
        "kafka.batch.size", "1000000", "Maximum size of a compressed record batch, unless one record is larger.", low=1
    )
    max_request_bytes: int = _writing.number(
        "kafka.max.request.size", "8388608", "Maximum size of a request, and of an uncompressed record.", low=1
    )
    buffer_bytes: int = _writing.number(
        "kafka.buffer.memory", "33554432", "Maximum size of a task's unacknowledged batches.", low=1, high=INT64_MAX
    )
    delivery_timeout_ms: int = _writing.number(
        "kafka.delivery.timeout.ms", "120000", "Maximum time from a full batch to its acknowledgement."
    )
    max_block_ms: int = _writing.number(
        "kafka.max.block.ms", "60000", "Maximum wait for the metadata of a topic.", high=INT64_MAX
    )
    max_in_flight: int = _writing.number(
        "kafka.max.in.flight.requests.per.connection",
        "5",
        "Maximum requests to a broker without a response; at most 5 with idempotence.",
        low=1,
    )
    ignore_keys: bool = _writing.flag(
        "kafka.partitioner.ignore.keys", False, "Whether keys do not choose the partition."
    )

    @classmethod
    def of(cls, given: GivenOptions, client: ClientOptions) -> ProducerOptions:
        options = cls(**given.values(cls))
        if options.acks == 1 and not given.given(cls, "idempotent"):
            options = replace(options, idempotent=False)
        given.refuse(_producer_problems(options, client))
        return options

    @property
    def compression_level(self) -> int | None:
        """None for the codec's default."""
        levels = {"gzip": self.gzip_level, "lz4": self.lz4_level, "zstd": self.zstd_level}
        return levels.get(self.compression_type)


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    """How the rows of a batch become visible all at once, and once only. Without `transactional_id` they are written at
    least once, and the other options are not set.

    Attributes:
        transactional_id: of the sink; the ids of its tasks begin with it.
        timeout_ms: None for the longest that the brokers allow.
    """

    transactional_id: str | None = _transactions.option(
        "kafka.transactional.id",
        None,
        _parse_sink_id,
        "Option 'kafka.transactional.id' must be 1 to 255 printable characters, and not end with two numbers after "
        "slashes (/0/0), as the ids of tasks do",
        "Writes [exactly once](exactly-once.md). The sink's own name, the same across restarts.",
        queries=Query.WRITES,
        needs=(),
    )
    timeout_ms: int | None = _transactions.number(
        "kafka.transaction.timeout.ms",
        None,
        "Maximum time from a task's first record to the commit. Default and maximum: transaction.max.timeout.ms of "
        "brokers.",
        low=1,
    )
    decisions_topic: str = _transactions.option(
        "decisionsTopic",
        DECISIONS_TOPIC,
        topic_name,
        "Option 'decisionsTopic' must be the name of one topic, got '{value}'",
        "Topic of the batches that sinks have written, created if missing. Set another name on sources too.",
        queries=Query.EXACTLY_ONCE | Query.RECORDS | Query.TRANSACTIONS,
    )
    txn_app_id: str | None = _transactions.option(
        "txnAppId",
        None,
        parse_id,
        "Option 'txnAppId' must be 1 to 255 printable characters",
        "Name of a series of [batch writes](exactly-once.md#batches), each written once.",
        pair="txnVersion",
    )
    txn_version: int | None = _transactions.number(
        "txnVersion", None, "Number in the series. A number up to the last is not written again.", high=INT64_MAX
    )
    skip_changed_batches: bool = _transactions.choice(
        "onChangedBatch",
        {"fail": False, "skip": True},
        "A written batch that is repeated with other rows: fail, or skip these with a warning.",
        section=Section.FAILURES,
    )

    @classmethod
    def of(cls, given: GivenOptions, producer: ProducerOptions) -> TransactionOptions:
        given.refuse(_transaction_problems(given, producer))
        return cls(**given.values(cls))


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one query. Its client is that of a query which reads with the same `ClientOptions` and
    `EventsOptions`."""

    client: ClientOptions
    events: EventsOptions
    producer: ProducerOptions
    transaction: TransactionOptions
    typed: TypedValuesOptions = BYTES
    topic: str | None = _writing.option(
        "topic",
        None,
        topic_name,
        "Option 'topic' must be the name of one topic, got '{value}'",
        "Topic of all rows, instead of the column topic.",
    )
    create_topics: bool = _writing.flag(
        "createTopics",
        False,
        "Whether the driver creates a missing topic; never those of the column topic.",
        needs=("topic",),
    )
    new_topic_partitions: int | None = _creation.number(
        "newTopicPartitions", None, "Of the created topic. Default: that of the brokers.", low=1
    )
    new_topic_replicas: int | None = _creation.number(
        "newTopicReplicas", None, "Of the created topic. Default: that of the brokers.", low=1, high=INT16_MAX
    )
    new_topic_config: tuple[tuple[str, str], ...] = _creation.option(
        "newTopicConfig",
        "{}",
        parse_topic_config,
        'Option \'newTopicConfig\' must be JSON. Expected e.g. {"cleanup.policy":"compact","retention.ms":-1}, got '
        "{value}",
        'Settings of the created topic: {"cleanup.policy":"compact"}.',
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parses options by name in any case. Raises OptionError: one line for each missing, unknown or invalid
        option."""
        own = CaseInsensitiveMap(options).without(CHECKPOINT_LOCATION)
        given = GivenOptions(own, Query.WRITES, "a write")
        client = ClientOptions.of(given)
        producer = ProducerOptions.of(given, client)
        transaction = TransactionOptions.of(given, producer)
        events = EventsOptions.of(given, client)
        typed = TypedValuesOptions.of(given)
        parsed = cls(
            client=client, events=events, producer=producer, transaction=transaction, typed=typed, **given.values(cls)
        )
        given.refuse(_subject_problems(given, parsed))
        given.raise_problems()
        return parsed

    def for_stream(self) -> SinkOptions:
        """For `df.writeStream`. Raises OptionError: an option is for batch writes."""
        if self.transaction.txn_app_id is not None:
            raise_problems(
                ["Options 'txnAppId' and 'txnVersion' are for batch writes: a stream numbers its own, remove them"]
            )
        return self


# --- contradictions, worded after Kafka's `ProducerConfig`; a value is None if it is invalid --------------------------


def _producer_problems(options: ProducerOptions, client: ClientOptions) -> Iterator[str]:
    if options.idempotent and options.acks == 1:
        yield "Must set kafka.acks to all in order to use the idempotent producer."
    if options.idempotent and (options.max_in_flight or 0) > MAX_IN_FLIGHT_IF_IDEMPOTENT:
        yield (
            "To use the idempotent producer, kafka.max.in.flight.requests.per.connection must be set to at most "
            f"{MAX_IN_FLIGHT_IF_IDEMPOTENT}. Current value is {options.max_in_flight}."
        )
    delivery_ms, request_ms = options.delivery_timeout_ms, client.request_timeout_ms
    if delivery_ms is not None and request_ms is not None and delivery_ms < request_ms:
        yield (
            f"kafka.delivery.timeout.ms ({delivery_ms}) should be equal to or larger than kafka.request.timeout.ms "
            f"({request_ms})."
        )


def _subject_problems(given: GivenOptions, options: SinkOptions) -> Iterator[str]:
    if given.has_invalid(SinkOptions) or given.has_invalid(TypedValuesOptions):
        return
    if options.topic is not None or options.typed.registry is None:
        return
    for column in options.typed.columns:
        if not column.subjects(()):
            yield (
                "Without the option topic the subjects of schemas are unknown: set it, or "
                f"'{column.column}Subject', or '{column.column}SubjectNameStrategy' to record"
            )


def _transaction_problems(given: GivenOptions, producer: ProducerOptions) -> Iterator[str]:
    if not given.given(TransactionOptions, "transactional_id"):
        return
    if producer.acks == 1:
        yield "Must set kafka.acks to all in order to use kafka.transactional.id."
    elif producer.idempotent is False:
        yield "Cannot set kafka.transactional.id without also enabling kafka.enable.idempotence."
