"""Explain topics of changes of databases, from the records at both ends of their partitions: what a query with the
option `changes` makes of them; or whether they look like Debezium's, without it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from pyspark_kafka_meta.changes.rows import change_rows
from pyspark_kafka_meta.changes.schema import CHANGE_COLUMN, changes_schema, is_envelope, with_envelope
from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.events.publisher import client_without_events
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import OffsetRange
from pyspark_kafka_meta.options import Changes, ChangesOptions, OnMalformedRecord, OnTruncate, SourceOptions
from pyspark_kafka_meta.read.fetching.newest_schemas import newest_schemas
from pyspark_kafka_meta.tables.cluster_query import partition_rows
from pyspark_kafka_meta.tables.rows import PartitionRow
from pyspark_kafka_meta.tools.doctor import Finding, fail, ok, warn
from pyspark_kafka_meta.tools.doctor.registry_checks import offset_range, read_sample, sampled_partitions
from pyspark_kafka_meta.typed.reading import QuerySchemas, query_schemas

SAMPLED_OFFSETS = 100
"""At each end of a partition."""
LOOKED_AT = 5
"""The newest offsets of a partition, without the option: some may be tombstones."""
READ, TRUNCATE = "r", "t"
MEMBERS = ("op", "snapshot", "unavailable", "error")
"""Of `_change`."""


def changes_findings(source: SourceOptions) -> Iterator[Finding]:
    """Findings on the topics of a query together: with the option `changes` they are one table."""
    with closing(client_without_events(source.client)) as client:
        if source.changes is None:
            with suppress(KafkaMetaError):  # other checks find it
                yield from _hints(client, source)
            return
        try:
            yield from _explained(client, source, source.changes)
        except KafkaMetaError as error:
            yield fail("changes", str(error), "correct the options as the error says")


def _hints(client: KafkaClient, source: SourceOptions) -> Iterator[Finding]:
    """What to do with topics whose values look like Debezium's."""
    partitions = partition_rows(source.client, source.topics, source.fetch.read_committed)
    ranges = [offset_range(row, max(start, end - LOOKED_AT), end) for row, start, end in sampled_partitions(partitions)]
    batches = read_sample(client, source.fetch, ["topic", "value"], ranges)
    rows = [row for batch in batches for row in batch.to_pylist()]
    formats = {row["topic"]: found for row in rows if (found := format_of_envelope(row["value"] or b""))}
    if not formats and source.typed.columns:
        schemas = query_schemas(source.typed, source.topics, partial(newest_schemas, client, source))
        if any(reader.column.column == "value" and is_envelope(reader.schema.type) for reader in schemas.readers):
            formats = dict.fromkeys(source.topics, source.typed.value_format)
    for topic, value_format in formats.items():
        how = f"changes=debezium and valueFormat={value_format} make rows of the table"
        yield ok(f"values of {topic}", f"look like changes of a database by Debezium: {how}")


def format_of_envelope(value: bytes) -> str:
    """The format of a value that is an envelope in JSON; empty for another value."""
    try:
        message = json.loads(value)
    except (ValueError, RecursionError):
        return ""
    has_schema = isinstance(message, dict) and message.keys() == {"schema", "payload"}
    envelope = message["payload"] if has_schema else message
    is_change = isinstance(envelope, dict) and envelope.keys() >= {"op", "after", "source"}
    return ("connect-json" if has_schema else "json") if is_change else ""


def _explained(client: KafkaClient, source: SourceOptions, changes: ChangesOptions) -> Iterator[Finding]:
    typed = with_envelope(source.typed, source.changes)
    typed = replace(typed, on_malformed=OnMalformedRecord.RECORD, max_malformed=None)
    schemas = query_schemas(typed, source.topics, partial(newest_schemas, client, source))
    reading = replace(changes, on_truncate=OnTruncate.ROW, include_before=False)
    partitions = partition_rows(source.client, source.topics, source.fetch.read_committed)
    counts = Counter[str]()
    oldest, newest = (_changes(client, source, schemas, reading, ranges, counts) for ranges in _both_ends(partitions))
    table = changes_schema(schemas, reading)
    ops = ", ".join(f"{records} {op}" for op, records in counts.most_common()) or "none"
    what = f"{changes.changes} in {typed.value_format}, {len(table.row)} columns; records at both ends of partitions"
    yield ok("changes", f"{what}: {ops}")
    if table.keys:
        yield ok("key", f"identifies rows by {', '.join(column.name for column in table.keys)}")
    else:
        yield warn("key", "there is none: the changes are a log", "append them to a table; apply_changes needs a key")
    if len(partitions) > len(source.topics):
        what = f"{len(partitions)}; changes of a key are in order while it stays in its partition"
        yield ok("partitions", f"{what}, and a stream fails when there are more")
    if oldest and oldest[0]["op"] is not None and changes.changes is Changes.DEBEZIUM:
        yield _snapshot_finding(oldest[0])
    found = {name for reader in schemas.readers for name in defaulted_fields(reader.text.text)}
    if defaulted := [column.name for column in table.row if column.name in found]:
        yield _default_finding(defaulted)
    sampled = [*oldest, *newest]
    unsent = Counter(name for change in sampled for name in change["unavailable"])
    if unsent:
        names = ", ".join(f"{name} in {number} changes" for name, number in unsent.most_common())
        yield ok("unsent columns", f"{names}: null, and named in _change.unavailable")
    if counts[TRUNCATE] and changes.on_truncate is OnTruncate.FAIL:
        what = f"{counts[TRUNCATE]} records of a TRUNCATE, at which a query fails"
        yield warn("truncates", what, "set onTruncate to skip or row")
    causes = [change["error"]["cause"] for change in sampled if change["error"] is not None]
    if causes:
        judge = fail if source.typed.on_malformed is OnMalformedRecord.FAIL else warn
        fix = "correct the producer or the options; 'onMalformedRecord' keeps such records"
        yield judge("malformed changes", f"{len(causes)}; the first: {causes[0]}", fix)


def _snapshot_finding(oldest: dict[str, Any]) -> Finding:
    if oldest["op"] == READ:
        return ok("snapshot", f"the oldest record is of a snapshot ({oldest['snapshot']})")
    what = "the oldest record is of no snapshot: rows that did not change since then may be missing"
    return warn("snapshot", what, "start an incremental snapshot, if the connector did not begin with an empty table")


def _default_finding(columns: Sequence[str]) -> Finding:
    what = f"a null in {', '.join(columns)} is sent as the column's default, unless the connector is told otherwise"
    settings = "replace.null.with.default=false (JsonConverter, ExtractNewRecordState)"
    settings += " or ignore.default.for.nullables=true (Confluent's converters)"
    return warn("defaults", what, f"see that it has {settings}; a snapshot sends older rows again")


def defaulted_fields(schema: str) -> Iterator[str]:
    """The fields that may be null, and have another default, in a schema of Kafka Connect or Avro."""
    with suppress(ValueError):  # of Protobuf, which has no defaults
        yield from _defaulted(json.loads(schema))


def _defaulted(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _defaulted(each)
    if isinstance(schema, dict):
        kind = schema.get("type")
        is_optional = schema.get("optional") or (isinstance(kind, list) and "null" in kind)
        if is_optional and schema.get("default") is not None:
            yield str(schema.get("field", schema.get("name")))
        yield from _defaulted([schema.get("fields"), kind])


def _both_ends(partitions: Sequence[PartitionRow]) -> Iterator[list[OffsetRange]]:
    """The oldest offsets of each partition, and the newest of the others."""
    sampled = list(sampled_partitions(partitions))
    yield [offset_range(row, start, min(start + SAMPLED_OFFSETS, end)) for row, start, end in sampled]
    newest = [(row, max(start + SAMPLED_OFFSETS, end - SAMPLED_OFFSETS), end) for row, start, end in sampled]
    yield [offset_range(row, start, end) for row, start, end in newest if start < end]


def _changes(
    client: KafkaClient,
    source: SourceOptions,
    schemas: QuerySchemas,
    changes: ChangesOptions,
    ranges: Sequence[OffsetRange],
    counts: Counter[str],
) -> list[dict[str, Any]]:
    """What the doctor looks at in `_change`, of the rows of these offsets. Adds to the number of records by op."""
    members = MEMBERS if changes.changes is Changes.DEBEZIUM else tuple(name for name in MEMBERS if name != "snapshot")
    found: list[dict[str, Any]] = []

    def count(_: str, op: str, records: int) -> None:
        counts[op] += records

    with change_rows(schemas, changes, ranges, (), [CHANGE_COLUMN], client.report, count) as rows:
        for batch in read_sample(client, source.fetch, rows.raw_columns, ranges):
            structs = rows.convert(batch).column(CHANGE_COLUMN)
            found += pa.RecordBatch.from_arrays([structs.field(name) for name in members], members).to_pylist()
    return found
