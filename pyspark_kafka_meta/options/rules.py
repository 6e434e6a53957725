"""What options may not say together, or not to this kind of query: one sentence for each thing wrong.

Worded after Spark's `KafkaSourceProvider`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_kafka_meta.metadata.model import TopicPartition
from pyspark_kafka_meta.options.specs import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec, StartSpec, TimesSpec
from pyspark_kafka_meta.options.values import name_partitions

_STRATEGIES = {name.lower(): name for name in ("subscribe", "subscribePattern", "assign")}


def client_problems(options: Mapping[str, str]) -> list[str]:
    if "kafka.bootstrap.servers" in {name.lower() for name in options}:
        return []
    return ["Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer"]


def strategy_problems(options: Mapping[str, str]) -> list[str]:
    given = {name.lower() for name in options} & _STRATEGIES.keys()
    if len(given) == 1:
        return []
    rule = "Only one of the following options can be" if given else "One of the following options must be"
    return [f"{rule} specified for Kafka source: {', '.join(_STRATEGIES.values())}."]


def batch_problems(starting: StartSpec, ending: OffsetsSpec | TimesSpec) -> list[str]:
    """Offsets that a batch cannot have. Times can only be told by the brokers."""
    problems = _start_problems(starting) if isinstance(starting, OffsetsSpec) else []
    if not isinstance(ending, OffsetsSpec):
        return problems
    if ending.everywhere == EARLIEST_OFFSET:
        problems.append("ending offset can't be earliest for batch queries on Kafka")
    for where, offset in ending.by_topic + ending.by_partition:
        if offset == EARLIEST_OFFSET:
            problems.append(f"ending offset for {where} can't be earliest for batch queries on Kafka")
    if isinstance(starting, OffsetsSpec) and starting.by_partition and ending.by_partition:
        problems += _span_problems(starting, ending)
    return problems


def _start_problems(starting: OffsetsSpec) -> list[str]:
    problems = []
    if starting.everywhere == LATEST_OFFSET:
        problems.append("starting offset can't be latest for batch queries on Kafka")
    for where, offset in starting.by_topic + starting.by_partition:
        if offset == LATEST_OFFSET:
            problems.append(f"startingOffsets for {where} can't be latest for batch queries on Kafka")
    return problems


def _span_problems(starting: OffsetsSpec, ending: OffsetsSpec) -> list[str]:
    starts, ends = dict(starting.by_partition), dict(ending.by_partition)
    problems = [
        f"The specified start offset {start} is greater than the end offset {ends[partition]} "
        f"for topic {partition.topic} partition {partition.partition}."
        for partition, start in starts.items()
        if partition in ends and start > ends[partition] >= 0
    ]
    only_starts = _not_named(starts, ending)
    only_ends = _not_named(ends, starting)
    if only_starts or only_ends:
        problems.append(
            "The specified start offset and end offset should have the same topic-partitions. "
            f"Only in startingOffsets: {name_partitions(only_starts)}. "
            f"Only in endingOffsets: {name_partitions(only_ends)}."
        )
    return problems


def _not_named(partitions: Mapping[TopicPartition, int], spec: OffsetsSpec) -> set[TopicPartition]:
    """Those of `partitions` on which `spec` is silent: neither they nor their topics are named in it."""
    topics = dict(spec.by_topic)
    return {one for one in partitions.keys() - dict(spec.by_partition).keys() if one.topic not in topics}
