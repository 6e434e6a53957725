"""The rows of offset ranges as Arrow record batches, without Spark: raw, typed, the latest of each key, or changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pyspark_kafka_meta.options import LATEST_OFFSET, OffsetsSpec, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafka_meta.changes.rows import ChangeRows
    from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
    from pyspark_kafka_meta.model import OffsetRange
    from pyspark_kafka_meta.typed.reading import NewestSchemas, QuerySchemas, RegisteredSchema, TypedRows, WriteLetters


def schemas_of(options: SourceOptions, newest: NewestSchemas) -> QuerySchemas:
    """As `typed.reading.query_schemas`; of changes with the pins of their rows."""
    from pyspark_kafka_meta.typed.reading import query_schemas

    if options.changes is None:
        return query_schemas(options.typed, options.topics, newest)
    from pyspark_kafka_meta.changes.schema import pinned_rows, with_envelope

    typed = with_envelope(options.typed, options.changes)
    return pinned_rows(query_schemas(typed, options.topics, newest), options.changes)


def rows_of(
    client: KafkaClient,
    options: SourceOptions,
    ranges: Sequence[OffsetRange],
    columns: Mapping[str, str],
    schemas: QuerySchemas | None = None,
    topics: Collection[str] = (),
    known: Sequence[RegisteredSchema] = (),
    write_letters: WriteLetters | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of `ranges`, in the order of offsets within each partition. Raises as `TaskReader.read`, and as the
    `convert` of typed rows or of changes.

    Args:
        columns: those to read, in order, with the names that they get.
        schemas: of typed columns; None without these.
        topics: see `TaskReader.read`.
        known: schemas of writers that need not be fetched.
        write_letters: for onMalformedRecord deadLetter.
    """
    names = list(columns.values())
    if schemas is None:
        for batch in _raw_rows(client, options, list(columns), ranges, topics):
            yield batch.rename_columns(names)
        return
    with _conversion(client, options, ranges, columns, schemas, known, write_letters) as rows:
        for batch in _raw_rows(client, options, rows.raw_columns, ranges, topics):
            yield rows.convert(batch).rename_columns(names)


def _conversion(
    client: KafkaClient,
    options: SourceOptions,
    ranges: Sequence[OffsetRange],
    columns: Mapping[str, str],
    schemas: QuerySchemas,
    known: Sequence[RegisteredSchema],
    write_letters: WriteLetters | None,
) -> AbstractContextManager[TypedRows | ChangeRows]:
    if options.changes is None:
        from pyspark_kafka_meta.typed.reading import typed_rows

        offsets = sum(planned.size for planned in ranges)
        return typed_rows(schemas, known, list(columns), client.report, offsets, write_letters)
    from pyspark_kafka_meta.changes.rows import change_rows

    report, count = client.report, client.count_changes
    return change_rows(schemas, options.changes, ranges, known, list(columns), report, count, write_letters)


def _raw_rows(
    client: KafkaClient,
    options: SourceOptions,
    columns: Sequence[str],
    ranges: Sequence[OffsetRange],
    topics: Collection[str],
) -> Iterator[pa.RecordBatch]:
    """The records of the ranges, or the latest of each key."""
    if not any(planned.latest_by_key for planned in ranges):
        from pyspark_kafka_meta.read.fetching.task_reader import TaskReader

        yield from TaskReader(client, options, columns).read(ranges, topics)
        return
    from pyspark_kafka_meta.read.fetching.latest_by_key import LatestReader, MayEndLater

    may_end_later = MayEndLater.REMOVED_KEY
    if options.ending_offsets is None:
        may_end_later = MayEndLater.NO_KEY
    elif options.ending_offsets == OffsetsSpec(LATEST_OFFSET):
        may_end_later = MayEndLater.ANY_KEY
    for planned in ranges:
        yield from LatestReader(client, options, columns, may_end_later).read(planned, topics)
