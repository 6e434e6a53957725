"""Check the schema registry of a query: whether it responds, allows this user, and has schemas that can be columns; and
whether the newest records of the topics can be decoded with the schemas of the query: a producer without the registry's
serializer leaves no trace in the registry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import groupby, islice, product
from typing import Any
from uuid import UUID

import pyarrow as pa

from pyspark_kafka_meta.changes.schema import with_envelope
from pyspark_kafka_meta.errors import (
    KafkaMetaError,
    OptionError,
    SchemaRegistryError,
    UnknownSchemaError,
    ValueSchemaError,
)
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import OffsetRange
from pyspark_kafka_meta.options import (
    ColumnFormat,
    FetchOptions,
    Framing,
    OnMalformedRecord,
    ReadOptions,
    SourceOptions,
    TypedValuesOptions,
    default_options,
)
from pyspark_kafka_meta.read.fetching.newest_schemas import newest_schemas
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.tables.rows import PartitionRow
from pyspark_kafka_meta.tools.doctor import FIXES, Finding, Verdict, fail, failure, ok, warn
from pyspark_kafka_meta.typed.reading import (
    ERROR_SUFFIX,
    RegistryClient,
    column_schema,
    query_schemas,
    reader_schema,
    typed_rows,
)
from pyspark_kafka_meta.typed.writing import check_schema

SLOW_MS = 1_000.0
"""A registry that takes longer causes a warning: a worker waits as long for each schema id that is new to it."""
_OTHER_FIX = "correct the options of typed values as the error says"


def registry_findings(
    typed: TypedValuesOptions, topics: Sequence[str], timeout_ms: int, *, writes: bool = False
) -> Iterator[Finding]:
    """Findings on the registry, and on the schema of each typed column of a query that reads, or writes, the topics."""
    client = None
    if typed.registry is not None:
        client = RegistryClient(typed.registry).within(timeout_ms)
        started = time.monotonic()
        try:
            subjects = client.subjects()
        except (SchemaRegistryError, OptionError) as error:
            yield failure("registry", error, _OTHER_FIX)
            return
        latency_ms = (time.monotonic() - started) * 1000
        what = f"responds in {latency_ms:.0f} ms with {len(subjects)} subjects that this user may see"
        if latency_ms > SLOW_MS:
            yield warn("registry", what, "see its load, or run it closer: workers wait for schema ids new to them")
        else:
            yield ok("registry", what)
    for column in typed.columns:
        if column.format.is_in_values and column.schema is None:
            continue  # newest_findings say whether there is a schema
        if writes:
            yield from _write_findings(column, topics, client, typed.auto_register)
        else:
            yield _schema_finding(column, topics, client, _read_as)


def _write_findings(
    column: ColumnFormat, topics: Sequence[str], client: RegistryClient | None, registers: bool
) -> Iterator[Finding]:
    if registers and column.schema is None:
        yield ok(column.column, "its schema is registered by the write")
        return
    yield (found := _schema_finding(column, topics, client, _written))
    is_asked = registers or column.framing is not Framing.NONE
    if found.verdict is Verdict.OK and column.schema is not None and client is not None and is_asked:
        for subject in column.subjects(tuple(topics)):
            yield _subject_finding(column, subject, client, registers)


def _schema_finding(
    column: ColumnFormat,
    topics: Sequence[str],
    client: RegistryClient | None,
    described: Callable[[ColumnFormat, tuple[str, ...], RegistryClient | None], str],
) -> Finding:
    if column.schema is None and not column.subjects(tuple(topics)):
        return warn(column.column, "its subjects are named after topics", "name them with --topic")
    try:
        return ok(column.column, described(column, tuple(topics), client))
    except KafkaMetaError as error:
        return failure(column.column, error, _OTHER_FIX)


def _read_as(column: ColumnFormat, topics: tuple[str, ...], client: RegistryClient | None) -> str:
    reader = reader_schema(column, topics, client)
    return f"{reader.pin.source} is read as {reader.schema.type}"


def _written(column: ColumnFormat, topics: tuple[str, ...], client: RegistryClient | None) -> str:
    """Without the DataFrame's type, which decides whether its columns fit, and how deep a recursive type is written."""
    schema, source = column_schema(column, topics, client)
    try:
        check_schema(column, schema)
    except ValueSchemaError as error:
        raise ValueSchemaError(f"{source} cannot be written: {error}") from None
    return f"{source} can be written"


def _subject_finding(column: ColumnFormat, subject: str, client: RegistryClient, registers: bool) -> Finding:
    """Whether the subject has the given schema of a write, or would accept it."""
    check, kind = column.column, column.format.registry_type
    try:
        text = column_schema(column, (), client)[0].registered_text
        if not registers:
            schema_id = client.registered(subject, kind, text).schema_id
            return ok(check, f"subject {subject} has this schema, with id {schema_id}")
        refusals = client.incompatibilities(subject, kind, text)
    except UnknownSchemaError as error:
        if registers:
            return ok(check, f"subject {subject} is new, and the write registers this schema")
        return fail(check, str(error), f"{FIXES[UnknownSchemaError]}; or set auto.register.schemas")
    except ValueSchemaError as error:
        return fail(check, str(error), _OTHER_FIX)
    except SchemaRegistryError as error:
        return failure(check, error, _OTHER_FIX)
    if refusals is None:
        return ok(check, f"subject {subject} accepts this schema, and the write registers it")
    what = f"subject {subject} does not accept this schema: {', '.join(refusals)}"
    return fail(check, what, "make the schema compatible, or change the subject's compatibility level")


MAX_SAMPLED = 20
"""Partitions of a topic whose newest record is read."""
TIMEOUT_MS = 10_000
"""For a leader to return the record."""


def newest_findings(source: SourceOptions) -> Iterator[Finding]:
    """Findings on the newest records of each topic, a record for each partition, by typed column. The bootstrap
    addresses of `source` respond."""
    try:
        rows = _newest_rows(source)
    except KafkaMetaError as error:
        yield warn("newest records", str(error), "see the findings on the topics and the registry")
        return
    fails = source.typed.on_malformed is OnMalformedRecord.FAIL
    for topic, column in product(source.topics, (each.column for each in source.typed.columns)):
        if of_topic := [row for row in rows if row["topic"] == topic]:
            yield _judge(topic, column, of_topic, fails)


def _judge(topic: str, column: str, rows: Sequence[dict[str, Any]], fails: bool) -> Finding:
    """`fails`: whether a malformed record fails the query."""
    check, malformed = f"newest {column}s of {topic}", [row for row in rows if row[column + ERROR_SUFFIX] is not None]
    if not malformed:
        return ok(check, f"all of {len(rows)} can be decoded, one for each partition with records")
    first = malformed[0]
    place, cause = f"{topic}-{first['partition']} at offset {first['offset']}", first[column + ERROR_SUFFIX]["cause"]
    what = f"{len(malformed)} of {len(rows)} cannot be decoded; the one of {place}: {cause}"
    fix = f"correct the producer, or '{column}Format' and '{column}Framing'; 'onMalformedRecord' keeps such records"
    return fail(check, what, fix) if fails else warn(check, what, fix)


def _newest_rows(source: SourceOptions) -> list[dict[str, Any]]:
    """Place and errors of the newest record of each partition; without those whose newest offset has no record."""
    typed = with_envelope(source.typed, source.changes)
    typed = replace(typed, on_malformed=OnMalformedRecord.RECORD, max_malformed=None)
    rows = partition_rows(source.client, source.topics, source.fetch.read_committed)
    ranges = [offset_range(row, end - 1, end) for row, _, end in sampled_partitions(rows)]
    columns = ["topic", "partition", "offset", *(each.column + ERROR_SUFFIX for each in typed.columns)]
    with closing(client_without_events(source.client)) as client:
        schemas = query_schemas(typed, source.topics, partial(newest_schemas, client, source))
        with typed_rows(schemas, (), columns, client.report) as typed_columns:
            batches = read_sample(client, source.fetch, typed_columns.raw_columns, ranges)
            return [row for batch in batches for row in typed_columns.convert(batch).to_pylist()]


def sampled_partitions(rows: Sequence[PartitionRow]) -> Iterator[tuple[PartitionRow, int, int]]:
    """Partitions with records, at most `MAX_SAMPLED` of each topic, and the start and the end of their logs."""
    for _, members in groupby(rows, lambda row: row.topic):
        spans = ((row, row.start_offset or 0, row.end_offset or 0) for row in members if row.start_offset is not None)
        yield from islice((span for span in spans if span[1] < span[2]), MAX_SAMPLED)


def offset_range(row: PartitionRow, start: int, end: int) -> OffsetRange:
    assert row.topic_partition is not None
    return OffsetRange(row.topic_partition, None if row.topic_id is None else UUID(row.topic_id), start, end)


def read_sample(
    client: KafkaClient, fetch: FetchOptions, columns: Sequence[str], ranges: Sequence[OffsetRange]
) -> Iterator[pa.RecordBatch]:
    reading = default_options(ReadOptions, fetch=fetch, fail_on_data_loss=False, poll_timeout_ms=TIMEOUT_MS)
    return TaskReader(client, reading, columns).read(ranges)
