"""Keeps a table equal to a table of a database whose changes are the rows of a stream: one MERGE for each micro-batch.

A database sends the last state of a row in each change, so the newest change of a key is all that the table needs,
except columns that the database did not send (PostgreSQL's unchanged large values): `fold` takes them from earlier
changes of the batch, the MERGE from the table.

A batch that Spark repeats after a crash has the same rows and is the last one that was applied, so its MERGE finds the
state that it leaves: the table needs no column for the sequence. A stream that begins again with an older checkpoint
takes the table back and forward again to the same state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
)

from pyspark_kafka_meta.changes.schema import CHANGE_COLUMN as CHANGE
from pyspark_kafka_meta.errors import InvalidRowError, SchemaError
from pyspark_kafka_meta.read.planning.checkpoint_offsets import offsets_in

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

NOT_IN_PARQUET = frozenset(" ,;{}()\n\t=")
"""Delta maps names with these characters to others, if a table says so."""
WIDER: Mapping[type[DataType], tuple[type[DataType], ...]] = {
    ByteType: (ShortType, IntegerType, LongType),
    ShortType: (IntegerType, LongType),
    IntegerType: (LongType,),
    FloatType: (DoubleType,),
}
"""The other types that hold every value of a type. Iceberg has no short one."""
CREATE, TRUNCATE = "c", "t"
NULL_UNTIL = "they are null until the rows are deleted or sent again"


def apply_changes(
    changes: DataFrame,
    target: str | Callable[[DataFrame, int], object],
    *,
    checkpoint: str,
    keys: str | Sequence[str] | None = None,
    table_format: str = "delta",
    add_columns: bool = False,
    on_lost_value: Literal["fail", "null"] = "fail",
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Start a query that keeps `target` equal to the database.

    Args:
        changes: a stream of changes, as the option `changes` makes it, filtered as you like.
        target: a table's name in SQL, such as "lake.shop.orders" or "delta.`/data/orders`", created if it is missing.
            Or a function that is called with the rows of each micro-batch and its number: a row for each key with its
            newest change. `_change.unavailable` then names the columns that keep the target's value, which is lost if
            the target has no such row; a row with `_change.deleted` is to be removed, and one with `_change.op` t
            empties the target before the others. Spark calls it again with the same rows if the query ended before the
            batch was committed.
        checkpoint: a folder of this query alone.
        table_format: of a table that is created: delta or iceberg.
        keys: the column or columns that identify a row. By default the first ones, as far as they are never null.
        add_columns: add new columns of the database to the table when the query starts, instead of failing. Columns
            that the database does not have any more stay: changes leave their values as they are, new rows have null.
        on_lost_value: what to do with a row whose value the database did not send and the table does not have: it was
            created without the value, by a change of its key, or is missing from an empty table, or from any at the
            first batch. Later a missing row, or one that the batch deleted, gets null with a warning: after a crash
            Debezium repeats changes of rows that were deleted.
        trigger: of the query, such as `{"availableNow": True}` or `{"processingTime": "1 minute"}`.

    Raises:
        SchemaError: `changes` has no `_change`, no key or not the columns of `keys`, the table lacks a column and
            `add_columns` is false, or a column of the table has another type.
    """
    names = tuple(key_columns(changes.schema, keys))
    if isinstance(target, str):
        prepare_table(changes, target, table_format, add_columns)
    apply = partial(apply_batch, target=target, keys=names, fail_on_lost=on_lost_value == "fail", checkpoint=checkpoint)
    query = changes.writeStream.option("checkpointLocation", checkpoint).foreachBatch(apply)
    return (query.trigger(**trigger) if trigger else query).start()


def key_columns(schema: StructType, given: str | Sequence[str] | None = None) -> Sequence[str]:
    """Names are compared without case, as Spark does. Raises SchemaError."""
    change_type = schema[CHANGE].dataType if CHANGE in schema.names else None
    if not isinstance(change_type, StructType):
        raise SchemaError(f"the DataFrame has no column {CHANGE}: read the topic with the option changes")
    if not isinstance(change_type["sequence"].dataType, LongType):
        raise SchemaError(
            "positions in a database do not order the micro-batches of a topic: read it without changeOrder=source"
        )
    fields = row_fields(schema)
    names = [field.name for field in takewhile(lambda field: not field.nullable, fields)]
    if not (given or names):
        raise SchemaError(
            "no key is known, as the first column may be null (with onTruncate=row, and with onMalformedRecord=record "
            "or null, all may be): name the columns that identify a row with keys=[...]. Rows of a table without a key "
            "cannot be told apart: append them to a log instead"
        )
    known = {field.name.lower(): field.name for field in fields}
    keys = [given] if isinstance(given, str) else given or names
    if missing := [name for name in keys if name.lower() not in known]:
        raise SchemaError(f"keys are no columns of the DataFrame: {', '.join(missing)}")
    return [known[name.lower()] for name in keys]


def prepare_table(changes: DataFrame, table: str, table_format: str, add_columns: bool) -> None:
    """Create the table if it is missing, and give it the columns that it lacks."""
    spark, fields = changes.sparkSession, row_fields(changes.schema)
    mapped = table_format == "delta" and any(NOT_IN_PARQUET & set(field.name) for field in fields)
    properties = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')" if mapped else ""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({ddl(fields)}) USING {table_format} {properties}")
    known = {field.name.lower(): field.dataType for field in spark.table(table).schema}
    missing = [field for field in fields if field.name.lower() not in known]
    if missing and not add_columns:
        names = ", ".join(field.name for field in missing)
        raise SchemaError(f"table {table} lacks columns of the database: {names}. Add them with add_columns=True")
    for field in fields:
        kind, column_type = field.dataType, known.get(field.name.lower(), field.dataType)
        if not fits(kind, column_type):
            raise SchemaError(
                f"column {field.name} of table {table} is {column_type.simpleString()}, and {kind.simpleString()} in "
                "the changes: change the type in the table, or begin another table with a new checkpoint"
            )
    if missing:
        spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({ddl(missing)})")
    # Iceberg's catalog would keep the table of now in this session for half a minute. The query has another session.
    spark.sql(f"REFRESH TABLE {table}")


def fits(kind: DataType, column_type: DataType) -> bool:
    """Whether a column holds every value of a type."""
    match kind, column_type:
        case ArrayType(), ArrayType():
            return fits(kind.elementType, column_type.elementType)
        case MapType(), MapType():
            return fits(kind.keyType, column_type.keyType) and fits(kind.valueType, column_type.valueType)
        case StructType(), StructType():
            pairs = zip(kind, column_type, strict=False)
            return len(kind) == len(column_type) and all(
                one.name.lower() == other.name.lower() and fits(one.dataType, other.dataType) for one, other in pairs
            )
        case DecimalType(), DecimalType():
            digits, column_digits = (each.precision - each.scale for each in (kind, column_type))
            return kind.scale <= column_type.scale and digits <= column_digits
        case _:
            return kind == column_type or isinstance(column_type, WIDER.get(type(kind), ()))


def row_fields(schema: StructType) -> list[StructField]:
    """The columns of the database's table."""
    return [field for field in schema.fields if field.name != CHANGE]


def ddl(fields: Sequence[StructField]) -> str:
    return StructType([StructField(field.name, field.dataType) for field in fields]).toDDL()


def apply_batch(
    changes: DataFrame,
    batch_id: int,
    *,
    target: str | Callable[[DataFrame, int], object],
    keys: Sequence[str],
    fail_on_lost: bool,
    checkpoint: str,
) -> None:
    """Apply a micro-batch. Its folded rows are kept meanwhile: they are checked, and a MERGE may read them twice."""
    rows = fold(changes, keys).persist()
    try:
        applied, found = rows, summary(rows, keys)
        truncated = found.truncated is not None
        refuse(found, keys, partition_count(rows.sparkSession, checkpoint, batch_id) if truncated else 1)
        if truncated:  # what was before does not matter
            applied = rows.where(is_truncate() | (change("sequence") > F.lit(found.truncated)))
            found = summary(applied, keys)
        if not found.rows:
            return
        report_lost(found, fail_on_lost)
        if isinstance(target, str):
            if found.unsent:
                check_missing(target, applied, keys, fail_on_lost, is_first=batch_id == 0)
            merge_into(target, applied, keys, truncated)
        else:
            target(applied.withColumn(CHANGE, column(CHANGE).dropFields("lost", "gone", "places")), batch_id)
    finally:
        rows.unpersist()


def fold(changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row for each key, with its newest `_change`. Its `unavailable` names the columns that no change of the batch
    tells about, `lost` those without a value anywhere, and `gone` those whose value went with the row's delete. Its
    `places` are the first and the last partition of its changes, by name."""
    states = {name: known_state(name) for name in changes.columns if name not in (*keys, CHANGE)}
    newest = [
        F.max_by(state, F.when(state.isNotNull(), change("sequence"))).alias(name) for name, state in states.items()
    ]
    key, place = [column(name) for name in keys], F.concat_ws("-", change("topic"), change("partition"))
    last = F.max_by(CHANGE, change("sequence")).withField("places", F.array(F.min(place), F.max(place)))
    folded = changes.groupBy(*key, other_record()).agg(last.alias(CHANGE), *newest)
    unavailable = names_where(states, lambda state: state.isNull())
    lost = names_where(states, lambda state: state["lost"])
    gone = names_where(states, lambda state: ~change("deleted") & state["gone"])
    newest_change = column(CHANGE).withField("unavailable", unavailable).withField("lost", lost).withField("gone", gone)
    values = (column(name)["value"].alias(name) for name in states)
    return folded.select(*key, *values, newest_change.alias(CHANGE))


def names_where(names: Iterable[str], condition: Callable[[Column], Column]) -> Column:
    """The names of the columns that meet the condition."""
    return F.array_compact(F.array(*(F.when(condition(column(name)), F.lit(name)) for name in names))).cast(
        "array<string>"
    )


def known_state(name: str) -> Column:
    """What a change tells about a column: its value; that it is gone, by a delete; that it is lost. Null if nothing.

    A created row has nothing to take from the table, where an older row of its key may be.
    """
    unsent = is_unavailable(name)
    value = F.when(~change("deleted") & ~unsent, column(name)).alias("value")
    lost = (~change("deleted") & unsent).alias("lost")
    gone = change("deleted").alias("gone")
    return F.when(change("deleted") | ~unsent | (change("op") == CREATE), F.struct(value, lost, gone))


def summary(rows: DataFrame, keys: Sequence[str]) -> Row:
    """What decides whether and how folded rows are applied."""
    keyless = reduce(Column.__or__, (column(name).isNull() for name in keys))
    places = change("places")
    (found,) = rows.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(change("op").isNull()).alias("malformed"),
        F.count_if(keyless & (change("op") != TRUNCATE)).alias("keyless"),
        F.max(F.when(places[0] != places[1], F.array_join(places, " and "))).alias("unordered"),
        F.max(F.when(is_truncate(), change("sequence"))).alias("truncated"),
        F.max(change("partition")).alias("last_partition"),
        F.count_distinct(change("topic")).alias("topics"),
        F.count_if(has_unsent()).alias("unsent"),
        names_in("lost"),
        names_in("gone"),
    ).collect()
    return found


def partition_count(spark: SparkSession, checkpoint: str, batch_id: int) -> int:
    """How many partitions a batch can have changes of, as the checkpoint says; 0 if they are not read from Kafka."""
    lines = spark.read.text(f"{checkpoint}/offsets/{batch_id}").collect()
    return sum(len(each.positions) for each in offsets_in("\n".join(row.value for row in lines)).values())


def refuse(found: Row, keys: Sequence[str], partitions: int) -> None:
    """Raises an error for rows that the target cannot follow. A batch has some of the partitions."""
    has_key = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in keys)
    for count, what, others in (
        (found.malformed, "are malformed records", f"{CHANGE}.op IS NOT NULL"),
        (found.keyless, "have no key", f"{CHANGE}.op = '{TRUNCATE}' OR {has_key}"),
    ):
        if count:
            raise InvalidRowError(f'{count} changes {what}: leave them out with changes.where("{others}")')
    if found.truncated is not None and (found.last_partition or found.topics > 1 or partitions > 1):
        raise InvalidRowError(
            "the database emptied a table, but changes of several topics or partitions have no order: read one topic "
            "with one partition, or read with onTruncate=skip"
        )
    if found.unordered:
        raise InvalidRowError(
            f"changes of one key are in {found.unordered}, which have no order: read topics that share keys into "
            "tables of their own. If keys moved, as partitions were added or the schema of keys changed, take a new "
            "snapshot of the table and begin with it, a new checkpoint and an empty target"
        )


def report_lost(found: Row, fail_on_lost: bool) -> None:
    """Report columns without a value anywhere. Raises InvalidRowError for those of created rows."""
    if found.lost and fail_on_lost:
        raise InvalidRowError(
            f"the database created rows, or changed their keys, without sending {', '.join(found.lost)}: set REPLICA "
            "IDENTITY FULL on the table, and go on with on_lost_value='null', which makes the values null"
        )
    if found.gone:
        what = "changes lack %s, which the database did not send again, and their rows were deleted before: %s"
        logger.warning(what, ", ".join(found.gone), NULL_UNTIL)


def check_missing(table: str, rows: DataFrame, keys: Sequence[str], fail_on_lost: bool, is_first: bool) -> None:
    """Report rows for which the table should have values that were not sent. Raises InvalidRowError for those of the
    first batch, or of an empty table: the first batch is empty if it begins at the end of the log."""
    known = rows.sparkSession.table(table).select(*map(column, keys))
    missing = rows.where(has_unsent()).join(known, list(keys), "left_anti")
    (found,) = missing.agg(F.count(F.lit(1)).alias("rows"), names_in("unavailable")).collect()
    what = (
        f"{found.rows} changes lack {', '.join(found.unavailable)}, which the database did not send again, and table "
        f"{table} has no row of their key ({', '.join(keys)})"
    )
    if found.rows and fail_on_lost and (is_first or known.isEmpty()):
        raise InvalidRowError(
            f"{what}: read a topic that begins with a snapshot, or go on with on_lost_value='null', which makes the "
            "values null, and let an incremental snapshot send the rows again"
        )
    if found.rows:
        logger.warning("%s: %s", what, NULL_UNTIL)


def merge_into(table: str, rows: DataFrame, keys: Sequence[str], truncated: bool) -> None:
    """The rows are in one column with a name that the table cannot have: all other names are the table's."""
    names = [name for name in rows.columns if name != CHANGE]
    row = F.struct(*(column(name) for name in names)).alias("row")
    source = rows.where(~is_truncate()).select(F.struct(row, change("deleted"), change("unavailable")).alias(CHANGE))
    values = {name: change(f"row.{quoted(name)}") for name in names}
    kept = {name: F.when(is_unavailable(name), column(name)).otherwise(value) for name, value in values.items()}
    condition = reduce(Column.__and__, (column(name) == values[name] for name in keys))
    merge = source.mergeInto(table, condition).whenMatched(change("deleted")).delete()
    merge = merge.whenMatched().update({quoted(name): value for name, value in kept.items()})
    merge = merge.whenNotMatched(~change("deleted")).insert({quoted(name): value for name, value in values.items()})
    (merge.whenNotMatchedBySource().delete() if truncated else merge).merge()


def change(path: str) -> Column:
    return F.col(f"{CHANGE}.{path}")


def is_unavailable(name: str) -> Column:
    return F.array_contains(change("unavailable"), F.lit(name))


def has_unsent() -> Column:
    return ~change("deleted") & (F.size(change("unavailable")) > 0)


def names_in(member: str) -> Column:
    return F.array_distinct(F.flatten(F.collect_set(change(member)))).alias(member)


def is_truncate() -> Column:
    return change("op").eqNullSafe(TRUNCATE)


def other_record() -> Column:
    """The op of what is no change of a row: a truncate, or a malformed record, which has none."""
    return F.when(is_truncate() | change("op").isNull(), F.coalesce(change("op"), F.lit("")))


def column(name: str) -> Column:
    return F.col(quoted(name))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
