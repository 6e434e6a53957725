"""Check whether the newest records of the topics can be decoded with the schemas of a query: a producer without the
registry's serializer leaves no trace in the registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby, product
from typing import Any
from uuid import UUID

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.events.origin import cli_origin
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.model import OffsetRange
from pyspark_kafka_meta.options import (
    ClientOptions,
    FetchOptions,
    OnMalformedRecord,
    ReadOptions,
    TypedValuesOptions,
    default_options,
)
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.tables.rows import PartitionRow
from pyspark_kafka_meta.tools.doctor import Finding, fail, ok, warn
from pyspark_kafka_meta.typed.reading import ERROR_SUFFIX, query_schemas, typed_rows

MAX_SAMPLED = 20
"""Partitions of a topic whose newest record is read."""
TIMEOUT_MS = 10_000
"""For a leader to return the record."""


def newest_findings(
    typed: TypedValuesOptions, topics: Sequence[str], options: ClientOptions, fetch: FetchOptions
) -> Iterator[Finding]:
    """Findings on the newest records of each topic, a record for each partition, by typed column.

    Args:
        options: with bootstrap addresses that respond.
    """
    try:
        rows = _newest_rows(replace(typed, on_malformed=OnMalformedRecord.RECORD), topics, options, fetch)
    except KafkaMetaError as error:
        yield warn("newest records", str(error), "see the findings on the topics and the registry")
        return
    fails = typed.on_malformed is OnMalformedRecord.FAIL
    for topic, column in product(topics, (each.column for each in typed.columns)):
        if of_topic := [row for row in rows if row["topic"] == topic]:
            yield _judge(topic, column, of_topic, fails)


def _judge(topic: str, column: str, rows: Sequence[dict[str, Any]], fails: bool) -> Finding:
    """
    Args:
        fails: whether a malformed record fails the query.
    """
    check, malformed = f"newest {column}s of {topic}", [row for row in rows if row[column + ERROR_SUFFIX] is not None]
    if not malformed:
        return ok(check, f"all of {len(rows)} can be decoded, one for each partition with records")
    first = malformed[0]
    place, cause = f"{topic}-{first['partition']} at offset {first['offset']}", first[column + ERROR_SUFFIX]["cause"]
    what = f"{len(malformed)} of {len(rows)} cannot be decoded; the one of {place}: {cause}"
    fix = f"correct the producer, or '{column}Format' and '{column}Framing'; 'onMalformedRecord' keeps such records"
    return fail(check, what, fix) if fails else warn(check, what, fix)


def _newest_rows(
    typed: TypedValuesOptions, topics: Sequence[str], options: ClientOptions, fetch: FetchOptions
) -> list[dict[str, Any]]:
    """Place and errors of the newest record of each partition; without those whose newest offset has no record."""
    schemas = query_schemas(typed, tuple(topics))
    ranges = list(_newest_ranges(partition_rows(options, topics, fetch.read_committed)))
    columns = ["topic", "partition", "offset", *(each.column + ERROR_SUFFIX for each in typed.columns)]
    reading = default_options(ReadOptions, fetch=fetch)
    reading = replace(reading, fail_on_data_loss=False, poll_timeout_ms=TIMEOUT_MS)
    with (
        closing(client_without_events(options, cli_origin())) as client,
        typed_rows(schemas, (), columns, client.report) as rows,
    ):
        batches = TaskReader(client, reading, rows.raw_columns).read(ranges)
        return [row for batch in batches for row in rows.convert(batch).to_pylist()]


def _newest_ranges(rows: Sequence[PartitionRow]) -> Iterator[OffsetRange]:
    for _, members in groupby(rows, lambda row: row.topic):
        filled = [row for row in members if row.end_offset and row.end_offset != row.start_offset]
        for row in filled[:MAX_SAMPLED]:
            assert row.topic_partition is not None and row.end_offset is not None
            topic_id = None if row.topic_id is None else UUID(row.topic_id)
            yield OffsetRange(row.topic_partition, topic_id, row.end_offset - 1, row.end_offset)
