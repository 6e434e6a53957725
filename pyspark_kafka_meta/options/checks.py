"""Checks of combinations of options, and of options that do not fit batches or streams: a sentence for each problem.

Worded after Spark's `KafkaSourceProvider`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.model import TopicPartition, name_partitions
from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap
from pyspark_kafka_meta.options.start_specs import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    OffsetsSpec,
    StartSpec,
    TimestampsSpec,
)

STRATEGIES = ("subscribe", "subscribePattern", "assign")

_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxFilesPerTrigger",
    "onTopicRecreated",
    "newPartitions",
    "commitOffsetsToGroup",
)
_TRANSACTION_ONLY = ("kafka.transaction.timeout.ms", "decisionsTopic", "txnAppId", "txnVersion", "onChangedBatch")


MAX_IN_FLIGHT_IF_IDEMPOTENT = 5
"""A broker remembers the sequence numbers of a producer's last five batches in a partition."""


def raise_problems(problems: Collection[str]) -> None:
    """Raises OptionError with one line for each problem."""
    if problems:
        raise OptionError("\n".join(problems))


NO_SERVERS = "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer"
NO_SERVERS_TO_WRITE = "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer"


def client_problems(options: Mapping[str, str], no_servers: str = NO_SERVERS) -> list[str]:
    return [] if "kafka.bootstrap.servers" in options else [no_servers]


def strategy_problems(options: Mapping[str, str]) -> list[str]:
    given = [name for name in STRATEGIES if name in options]
    if len(given) == 1:
        return []
    rule = "Only one of the following options can be" if given else "One of the following options must be"
    return [f"{rule} specified for Kafka source: {', '.join(STRATEGIES)}."]


def metrics_problems(options: Mapping[str, str]) -> list[str]:
    if "metricsBootstrapServers" not in options or "metricsTopic" in options:
        return []
    return ["Option 'metricsBootstrapServers' has no effect without 'metricsTopic': set 'metricsTopic' or remove it"]


def limit_problems(parsed: Mapping[str, Any]) -> list[str]:
    """Contradicting limits.

    Args:
        parsed: valid values by field of `SourceOptions`.
    """
    problems = []
    fewest, most = parsed.get("min_offsets_per_trigger"), parsed.get("max_offsets_per_trigger")
    if fewest is not None and most is not None and fewest > most:
        problems.append(f"The value of minOffsetsPerTrigger({fewest}) is higher than the maxOffsetsPerTrigger({most}).")
    tasks, partitions = parsed.get("max_tasks"), parsed.get("min_partitions")
    if tasks is not None and partitions is not None and tasks < partitions:
        problems.append(f"The value of minPartitions({partitions}) is higher than maxTasks({tasks}).")
    if tasks is not None and parsed.get("max_records_per_partition") is not None:
        problems.append("Only one of the following options can be specified: maxTasks, maxRecordsPerPartition.")
    return problems


def producer_problems(parsed: Mapping[str, Any]) -> list[str]:
    """Contradicting options of a sink, worded after Kafka's `ProducerConfig`.

    Args:
        parsed: valid values by field of `ProducerOptions` and `ClientOptions`.
    """
    problems = []
    idempotent, in_flight = parsed.get("idempotent"), parsed.get("max_in_flight", 0)
    if idempotent and parsed.get("acks") == 1:
        problems.append("Must set kafka.acks to all in order to use the idempotent producer.")
    if idempotent and in_flight > MAX_IN_FLIGHT_IF_IDEMPOTENT:
        problems.append(
            "To use the idempotent producer, kafka.max.in.flight.requests.per.connection must be set to at most "
            f"{MAX_IN_FLIGHT_IF_IDEMPOTENT}. Current value is {in_flight}."
        )
    delivery_ms, request_ms = parsed.get("delivery_timeout_ms"), parsed.get("request_timeout_ms")
    if delivery_ms is not None and request_ms is not None and delivery_ms < request_ms:
        problems.append(
            f"kafka.delivery.timeout.ms ({delivery_ms}) should be equal to or larger than kafka.request.timeout.ms "
            f"({request_ms})."
        )
    return problems


def transaction_problems(options: Mapping[str, str], parsed: Mapping[str, Any]) -> list[str]:
    """Contradicting options of exactly-once writes, worded after Kafka's `ProducerConfig`.

    Args:
        options: as given.
        parsed: valid values by field of `TransactionOptions` and `ProducerOptions`.
    """
    if "kafka.transactional.id" not in options:
        return [
            f"Option '{name}' has no effect without 'kafka.transactional.id': set it or remove the option"
            for name in _TRANSACTION_ONLY
            if name in options
        ]
    problems = []
    if parsed.get("acks") == 1:
        problems.append("Must set kafka.acks to all in order to use kafka.transactional.id.")
    elif parsed.get("idempotent") is False:
        problems.append("Cannot set kafka.transactional.id without also enabling kafka.enable.idempotence.")
    if ("txnAppId" in options) != ("txnVersion" in options):
        problems.append("Options 'txnAppId' and 'txnVersion' name a batch write together: set both or none")
    return problems


def stream_sink_problems(txn_app_id: str | None) -> list[str]:
    """Options that a streaming query cannot write with."""
    if txn_app_id is None:
        return []
    return ["Options 'txnAppId' and 'txnVersion' are for batch writes: a stream numbers its own, remove them"]


def compression_problems(parsed: Mapping[str, Any]) -> list[str]:
    """Levels of codecs that are not used. Args: as `producer_problems`."""
    return [
        f"Option 'kafka.compression.{codec}.level' has no effect without 'kafka.compression.type' {codec}: set this "
        "type or remove the level"
        for codec in ("gzip", "lz4", "zstd")
        if parsed.get(f"{codec}_level") is not None and parsed.get("compression_type", codec) != codec
    ]


def batch_warnings(options: Mapping[str, str]) -> list[str]:
    """Given options that have an effect in streams only, of any table."""
    given = CaseInsensitiveMap(options)
    return [f"{name} option ignored in batch queries" for name in _STREAM_ONLY if name in given]


def batch_problems(starting: StartSpec, ending: OffsetsSpec | TimestampsSpec) -> list[str]:
    """Invalid offsets of a batch. Timestamps can only be checked with brokers."""
    problems = _start_problems(starting) if isinstance(starting, OffsetsSpec) else []
    if not isinstance(ending, OffsetsSpec):
        return problems
    if ending.everywhere == EARLIEST_OFFSET:
        problems.append("ending offset can't be earliest for batch queries on Kafka")
    for place, offset in ending.by_topic + ending.by_partition:
        if offset == EARLIEST_OFFSET:
            problems.append(f"ending offset for {place} can't be earliest for batch queries on Kafka")
    if isinstance(starting, OffsetsSpec) and starting.by_partition and ending.by_partition:
        problems += _range_problems(starting, ending)
    return problems


def stream_problems(ending: OffsetsSpec | TimestampsSpec | None) -> list[str]:
    """Invalid ends of a stream: those that would move with each restart."""
    if isinstance(ending, TimestampsSpec):
        return ["ending timestamp not valid in streaming queries"]
    if ending is None:
        return []
    offsets = [ending.everywhere, *(offset for _, offset in ending.by_topic + ending.by_partition)]
    if all(offset is None or offset >= 0 for offset in offsets):
        return []
    return ["ending offset not valid in streaming queries, except as JSON with an offset for each partition"]


def _start_problems(starting: OffsetsSpec) -> list[str]:
    problems = []
    if starting.everywhere == LATEST_OFFSET:
        problems.append(
            "starting offset can't be latest for batch queries on Kafka: set earliest, -10m or JSON, or use readStream"
        )
    for place, offset in starting.by_topic + starting.by_partition:
        if offset == LATEST_OFFSET:
            problems.append(f"startingOffsets for {place} can't be latest for batch queries on Kafka")
    return problems


def _range_problems(starting: OffsetsSpec, ending: OffsetsSpec) -> list[str]:
    starts, ends = dict(starting.by_partition), dict(ending.by_partition)
    problems = [
        f"The specified start offset {start} is greater than the end offset {ends[partition]} "
        f"for topic {partition.topic} partition {partition.partition}."
        for partition, start in starts.items()
        if partition in ends and start > ends[partition] >= 0
    ]
    only_starts = _without_offset(starts, ending)
    only_ends = _without_offset(ends, starting)
    if only_starts or only_ends:
        problems.append(
            "The specified start offset and end offset should have the same topic-partitions. "
            f"Only in startingOffsets: {name_partitions(only_starts)}. "
            f"Only in endingOffsets: {name_partitions(only_ends)}."
        )
    return problems


def _without_offset(partitions: Mapping[TopicPartition, int], spec: OffsetsSpec) -> set[TopicPartition]:
    """The partitions without an offset in `spec`, by partition or topic."""
    topics = dict(spec.by_topic)
    return {
        partition for partition in partitions.keys() - dict(spec.by_partition).keys() if partition.topic not in topics
    }
