"""Reads Kafka into Arrow without Spark: `read_arrow` for programs, `reading` for commands, `rows_of` for Spark's tasks.

A read has one client, no thread and no consumer group. All partitions are read at once: see `TaskReader`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.kafka.records.schema import HEADERS_COLUMN, RECORD_COLUMNS, records_arrow_schema
from pyspark_kafka_meta.model import name_first
from pyspark_kafka_meta.options import LATEST_OFFSET, OffsetsSpec, SourceOptions, Table, choose_table
from pyspark_kafka_meta.options.tables import batch_warnings

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafka_meta.changes.rows import ChangeRows
    from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
    from pyspark_kafka_meta.kafka.records.decoder import Selection
    from pyspark_kafka_meta.model import OffsetRange
    from pyspark_kafka_meta.read.fetching.row_filter import RowFilter
    from pyspark_kafka_meta.typed.reading import NewestSchemas, QuerySchemas, RegisteredSchema, TypedRows, WriteLetters

logger = logging.getLogger(__name__)


# --- for programs and commands ----------------------------------------------------------------------------------------


def read_arrow(*, columns: Sequence[str] | None = None, **options: str | int) -> pa.RecordBatchReader:
    """Read topics into Arrow, without Spark: the rows of `spark.read.format("kafkameta")` with the same options.

        kafka = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "clicks", "startingOffsets": "-1h"}
        frame = polars.from_arrow(read_arrow(**kafka))

    The offsets are resolved now. Records are fetched as batches are taken: a few megabytes are in memory. Rows of a
    partition are in the order of its offsets, those of several partitions are mixed. The connections are closed after
    the last row, after an error, and when the reader is released (`del reader`): pyarrow's `close()` does not close
    them. Refresh events are written only to `eventsPath` or `eventsTopic`.

    Args:
        columns: those to read, in this order; by default all. Others are not decoded.
        options: of a batch query, `table` `latest` included. Those of tasks have no effect.

    Raises:
        OptionError: an option or a column is unknown, or invalid.
        KafkaMetaError: a topic does not exist, no broker responds, a schema cannot be read. The same, from the reader,
            while it reads; other libraries that read it raise errors of their own with this text.
    """
    import pyarrow as pa

    batches = _schema_and_batches({name: _text(value) for name, value in options.items()}, columns)
    return pa.RecordBatchReader.from_batches(next(batches), batches)


def _text(value: str | int) -> str:
    """As Spark makes texts of the values of options."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _schema_and_batches(given: Mapping[str, str], columns: Sequence[str] | None) -> Iterator[Any]:
    """The schema first: a generator that has begun is closed when its reader is released."""
    for warning in batch_warnings(given):
        logger.warning("%s", warning)
    table, options = source_options(given)
    with reading(options.for_batch(table is Table.LATEST), columns) as opened:
        from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner

        ranges = OffsetPlanner(opened.client, opened.options).batch_ranges()
        yield opened.schema
        yield from opened.rows(ranges)


def source_options(given: Mapping[str, str]) -> tuple[Table, SourceOptions]:
    """The table and the options of a read without Spark. Raises OptionError."""
    table, options = choose_table(given)
    if table not in (Table.RECORDS, Table.LATEST):
        raise OptionError(f"table {table} can be read in Spark alone: see kafkameta --help for commands that show it")
    parsed = SourceOptions.parse(options)
    if parsed.typed.dead_letter_topic is not None:
        raise OptionError(
            "'onMalformedRecord' deadLetter needs a query of Spark: set it to record, to see causes and bytes"
        )
    return table, parsed


class Reading(NamedTuple):
    """An open read.

    Attributes:
        schema: of the rows.
        schemas: see `rows_of`.
    """

    client: KafkaClient
    options: SourceOptions
    schema: pa.Schema
    schemas: QuerySchemas | None

    def rows(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        """As `rows_of`."""
        columns = {name: name for name in self.schema.names}
        return rows_of(self.client, self.options, [each for each in ranges if each.size], columns, self.schemas)


@contextmanager
def reading(options: SourceOptions, columns: Sequence[str] | None = None) -> Iterator[Reading]:
    """Opens a client and finds the schemas. Args and errors as of `read_arrow`."""
    from pyspark_kafka_meta.events.origin import cli_origin
    from pyspark_kafka_meta.events.publisher import new_publisher
    from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient

    events = options.events
    if events is not None and events.path is None and events.topic is None:
        events = None  # the default folders are for applications of Spark
    publisher = new_publisher(events, cli_origin())
    with closing(KafkaClient(options.client, publisher, options.topic_filter)) as client:
        schemas = None
        if options.typed.columns:
            from pyspark_kafka_meta.read.fetching.newest_schemas import newest_schemas

            schemas = schemas_of(options, partial(newest_schemas, client, options))
        new_filter(options, schemas, [])  # refuses its condition
        yield Reading(client, options, _chosen(_schema(options, schemas), columns), schemas)


def _schema(options: SourceOptions, schemas: QuerySchemas | None) -> pa.Schema:
    """Of all columns."""
    import pyarrow as pa

    if schemas is not None and options.changes is not None:
        from pyspark_kafka_meta.changes.schema import changes_schema

        return pa.schema(list(changes_schema(schemas, options.changes).type))
    records = records_arrow_schema([*RECORD_COLUMNS, *([HEADERS_COLUMN] if options.include_headers else ())])
    types = dict(zip(records.names, records.types, strict=True))
    if options.headers_as_map:
        types[HEADERS_COLUMN] = pa.map_(pa.string(), pa.binary())
    return pa.schema(list((types | ({} if schemas is None else schemas.types)).items()))


def _chosen(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Raises OptionError: there is no such column."""
    import pyarrow as pa

    if unknown := [name for name in columns or () if name not in schema.names]:
        raise OptionError(f"there is no column {name_first(unknown)}: the columns are {name_first(schema.names, 100)}")
    return schema if columns is None else pa.schema([schema.field(name) for name in dict.fromkeys(columns)])


# --- for tasks of Spark, too ------------------------------------------------------------------------------------------


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
    names, row_filter = list(columns.values()), new_filter(options, schemas, list(columns))
    needed = list(columns) if row_filter is None else row_filter.columns
    with _conversion(client, options, ranges, needed, schemas, known, write_letters) as rows:
        raw = needed if rows is None else rows.raw_columns
        selection = None if row_filter is None else row_filter.selection
        batches: Iterable[pa.RecordBatch] = _raw_rows(client, options, raw, ranges, topics, selection)
        batches = batches if rows is None else map(rows.convert, batches)
        batches = batches if row_filter is None else row_filter.after_decoding(batches)
        try:
            for batch in batches:
                yield with_header_type(batch, options).rename_columns(names)
        finally:  # a task may end early, as with LIMIT
            if row_filter is not None:
                client.traffic.filtered.update(row_filter.dropped)


def with_header_type(batch: pa.RecordBatch, options: SourceOptions) -> pa.RecordBatch:
    """The rows, with the headers of records as the option headersAsMap says."""
    if not options.headers_as_map or options.changes is not None or HEADERS_COLUMN not in batch.schema.names:
        return batch
    from pyspark_kafka_meta.arrow_arrays import header_maps

    at = batch.schema.get_field_index(HEADERS_COLUMN)
    return batch.set_column(at, HEADERS_COLUMN, header_maps(batch.column(at)))


def new_filter(options: SourceOptions, schemas: QuerySchemas | None, columns: Sequence[str]) -> RowFilter | None:
    """None without the option `where`. Raises OptionError as `RowFilter`."""
    if options.where is None:
        return None
    from pyspark_kafka_meta.read.fetching.row_filter import RowFilter

    return RowFilter(options.where, schemas, columns)


def _conversion(
    client: KafkaClient,
    options: SourceOptions,
    ranges: Sequence[OffsetRange],
    columns: Sequence[str],
    schemas: QuerySchemas | None,
    known: Sequence[RegisteredSchema],
    write_letters: WriteLetters | None,
) -> AbstractContextManager[TypedRows | ChangeRows | None]:
    if schemas is None:
        return nullcontext()
    if options.changes is None:
        from pyspark_kafka_meta.typed.reading import typed_rows

        offsets = sum(planned.size for planned in ranges)
        return typed_rows(schemas, known, columns, client.report, offsets, write_letters)
    from pyspark_kafka_meta.changes.rows import change_rows

    report, count = client.report, client.count_changes
    return change_rows(schemas, options.changes, ranges, known, columns, report, count, write_letters)


def _raw_rows(
    client: KafkaClient,
    options: SourceOptions,
    columns: Sequence[str],
    ranges: Sequence[OffsetRange],
    topics: Collection[str],
    selection: Selection | None,
) -> Iterator[pa.RecordBatch]:
    """The selected records of the ranges, or of the latest of each key."""
    if not any(planned.latest_by_key for planned in ranges):
        from pyspark_kafka_meta.read.fetching.task_reader import TaskReader

        yield from TaskReader(client, options, columns, selection=selection).read(ranges, topics)
        return
    from pyspark_kafka_meta.read.fetching.latest_by_key import LatestReader, MayEndLater
    from pyspark_kafka_meta.read.fetching.row_filter import kept

    may_end_later = MayEndLater.REMOVED_KEY
    if options.ending_offsets is None:
        may_end_later = MayEndLater.NO_KEY
    elif options.ending_offsets == OffsetsSpec(LATEST_OFFSET):
        may_end_later = MayEndLater.ANY_KEY
    columns = list(dict.fromkeys([*columns, *(() if selection is None else selection.columns)]))
    reader = LatestReader(client, options, columns, may_end_later)
    batches = (batch for planned in ranges for batch in reader.read(planned, topics))
    yield from batches if selection is None else kept(batches, selection)
