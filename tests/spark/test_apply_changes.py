"""A target that applies the rows of `apply_changes` equals the database, whichever batches the changes come in."""

from __future__ import annotations

import json
import random
import re
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import BooleanType, LongType

from pyspark_kafka_meta import apply_changes
from pyspark_kafka_meta.changes.apply import apply_batch, check_missing, fits, fold, key_columns, prepare_table
from pyspark_kafka_meta.errors import InvalidRowError, SchemaError
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from tests.budget import cases
from tests.marks import thorough_after
from tests.spark.change_histories import (
    COLUMNS,
    KEYS,
    LARGE,
    NAMES,
    NULLS,
    SCHEMA,
    WITH_NULL_KEYS,
    Change,
    Key,
    Table,
    applied,
    comparable,
    history,
    rows,
)
from tests.spark.test_changes import ENVELOPE, KEY
from tests.spark.test_streaming import forget_last_commit

pytestmark = pytest.mark.spark

FULL = (5, "full", [1.0])
OLD = (1, "old", [0.0])
A: Key = (0, "a")
AFTER_ONE_BATCH: dict[str, tuple[Table, list[Change], Table]] = {
    "the newest change of a key": ({}, [Change("c", A, OLD), Change("u", A, FULL)], {A: FULL}),
    "a delete": ({A: OLD}, [Change("u", A, FULL), Change("d", A)], {}),
    "a tombstone alone": ({A: OLD}, [Change("tombstone", A)], {}),
    "a row that comes and goes": ({}, [Change("c", A, FULL), Change("d", A), Change("tombstone", A)], {}),
    "a row that goes and comes": ({A: OLD}, [Change("d", A), Change("c", A, FULL)], {A: FULL}),
    "a key change": ({A: OLD}, [Change("d", A), Change("c", (0, "b"), OLD)], {(0, "b"): OLD}),
    "an unsent column of the table": ({A: OLD}, [Change("u", A, FULL, LARGE)], {A: (5, *OLD[1:])}),
    "an unsent column of an older change": (
        {A: OLD},
        [Change("u", A, FULL, LARGE[1:]), Change("u", A, (6, "x", [2.0]), LARGE)],
        {A: (6, "full", [0.0])},
    ),
    "an unsent column that was null": (
        {A: OLD},
        [Change("u", A, (5, None, None)), Change("u", A, FULL, LARGE)],
        {A: (5, None, None)},
    ),
    "an unsent column of a row that is created anew": (
        {A: OLD},
        [Change("d", A), Change("c", A, FULL), Change("u", A, (6, "x", [2.0]), LARGE)],
        {A: (6, *FULL[1:])},
    ),
    "an unsent column of a deleted row is null": (
        {A: OLD},
        [Change("d", A), Change("u", A, FULL, LARGE)],
        {A: (5, None, None)},
    ),
    "an unsent column of a row that the table lacks is null": ({}, [Change("u", A, FULL, LARGE)], {A: (5, None, None)}),
    "a lost column that is sent in time": ({}, [Change("c", A, OLD, LARGE), Change("u", A, FULL)], {A: FULL}),
    "a lost column of a row that is gone": ({}, [Change("c", A, OLD, LARGE), Change("d", A)], {}),
}
"""A table, the changes of a batch, and the table after them."""
TRUNCATE = Change("t", (0, ""))
AFTER_TRUNCATES: dict[str, tuple[Table, list[Change], Table]] = {
    "rows before it": ({A: OLD}, [Change("c", (0, "d"), OLD), TRUNCATE, Change("c", (0, "c"), FULL)], {(0, "c"): FULL}),
    "a key on both sides of it": ({A: OLD}, [Change("u", A, OLD), TRUNCATE, Change("c", A, FULL)], {A: FULL}),
    "a row between two": ({A: OLD}, [TRUNCATE, Change("c", A, FULL), TRUNCATE], {}),
    "a lost column before it": ({}, [Change("c", A, OLD, LARGE), TRUNCATE], {}),
    "an unsent column of a deleted row before it": ({}, [Change("d", A), Change("u", A, FULL, LARGE), TRUNCATE], {}),
}


class DictTable:
    """A target in memory."""

    def __init__(self) -> None:
        self.table: Table = {}
        self.batches: list[int] = []

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        self.batches.append(batch_id)
        for row in sorted(rows.collect(), key=lambda row: row["_change"].op != "t"):
            key, change = (row["history"], row["id"]), row["_change"]
            if change.op == "t":
                self.table.clear()
            elif change.deleted:
                self.table.pop(key, None)
            else:
                old = dict(zip(NAMES[2:], self.table.get(key, NULLS), strict=True))
                self.table[key] = tuple((old if name in change.unavailable else row)[name] for name in NAMES[2:])


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Of a query that reads a topic with one partition."""
    return planned(tmp_path, 1)


def planned(checkpoint: Path, partitions: int) -> str:
    """A checkpoint with batch 0 of a stream that reads a topic, beside one that does not, as Spark writes it."""
    positions = {TopicPartition("t", number): Position(5) for number in range(partitions)}
    topic = json.dumps(SourceOffset(positions, {"t": None}).as_dict())
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "0").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{topic}\n{{"logOffset":0}}\n-')
    return str(checkpoint)


def apply(
    spark: SparkSession,
    target: Any,
    changes: list[Change],
    offset: int = 0,
    fail_on_lost: bool = True,
    checkpoint: str = "",
) -> None:
    batch = spark.createDataFrame(rows(changes, offset), WITH_NULL_KEYS)
    apply_batch(batch, 0, target=target, keys=KEYS, fail_on_lost=fail_on_lost, checkpoint=checkpoint)


@pytest.mark.thorough
def test_random_histories_cut_into_batches_at_random_equal_the_database(spark: SparkSession) -> None:
    """Of repeated batches too, and of changes that Debezium repeats."""
    chance, batches = random.Random(59), 4
    histories = [history(number) for number in range(cases(60, 300, 10_000))]
    cuts = [sorted(chance.choices(range(len(changes)), k=batches - 1)) for _, changes in histories]
    ends = [[0, *some, len(changes)] for some, (_, changes) in zip(cuts, histories, strict=True)]
    target, expected, offset = DictTable(), Table(), 0
    for number in range(batches):
        slices = [changes[end[number] : end[number + 1]] for end, (_, changes) in zip(ends, histories, strict=True)]
        batch = list(chain.from_iterable(slices))
        expected = applied(expected, batch)
        for _ in range(chance.choice([1, 2])):
            apply(spark, target, batch, offset)
            assert comparable(target.table) == comparable(expected)
        offset += len(batch)
    assert comparable(target.table) == comparable({key: row for table, _ in histories for key, row in table.items()})


def test_after_one_batch(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    """Each case is a history of its own. Of a value that went with a delete there is a warning."""
    target, batch, expected = DictTable(), list[Change](), dict[str, Table]()
    for number, (case, (before, changes, after)) in enumerate(AFTER_ONE_BATCH.items()):
        target.table |= of_history(number, before)
        batch += [change._replace(key=(number, change.key[1])) for change in changes]
        expected[case] = of_history(number, after)
    apply(spark, target, batch)
    (warning,) = caplog.messages
    assert re.match(r"changes lack large `text`, a\.list.* their rows were deleted before: they are null", warning)
    found = {
        case: {key: target.table[key] for key in target.table if key[0] == number}
        for number, case in enumerate(expected)
    }
    assert found == expected


def of_history(number: int, table: Table) -> Table:
    return {(number, name): values for (_, name), values in table.items()}


@pytest.mark.parametrize("case", thorough_after(1, AFTER_TRUNCATES))
def test_after_a_truncate(spark: SparkSession, case: str, checkpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    before, changes, after = AFTER_TRUNCATES[case]
    target = DictTable()
    target.table = dict(before)
    apply(spark, target, changes, checkpoint=checkpoint)
    assert (target.table, caplog.messages) == (after, [])


@pytest.mark.parametrize(
    ("changes", "message"),
    thorough_after(
        3,
        [
            ([Change("c", A, FULL, LARGE)], r"without sending large `text`, a\.list: set REPLICA IDENTITY FULL"),
            ([TRUNCATE, Change("c", (0, "b"), FULL)], "changes of several topics or partitions have no order"),
            ([Change("u", (0, None), FULL), Change("d", A), TRUNCATE], "1 changes have no key"),
            ([Change(None, A), Change("u", A, FULL), TRUNCATE], "1 changes are malformed records"),
        ],
    ),
)
def test_changes_that_the_target_cannot_follow_are_refused(
    spark: SparkSession, changes: list[Change], message: str, checkpoint: str
) -> None:
    """The message has the condition that leaves them out, and nothing else."""
    target, batch = DictTable(), spark.createDataFrame(rows(changes), WITH_NULL_KEYS)
    apply_some = partial(apply_batch, target=target, keys=KEYS, fail_on_lost=True, checkpoint=checkpoint)
    with pytest.raises(InvalidRowError, match=message) as error:
        apply_some(batch, 0)
    assert target.batches == []
    if condition := re.search(r'changes\.where\("(.*)"\)', str(error.value)):
        left = batch.where(condition[1])
        apply_some(left, 0)
        assert (left.count(), target.batches) == (len(changes) - 1, [0])


def test_lost_values_are_null_when_told_to(spark: SparkSession) -> None:
    target = DictTable()
    target.table = {A: OLD}
    apply(spark, target, [Change("d", A), Change("c", A, FULL, LARGE)], fail_on_lost=False)
    assert target.table == {A: (5, None, None)}


def test_changes_without_a_value_that_the_table_lacks_are_refused_or_reported(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """At first the topic lacks their beginning; later Debezium may have repeated changes of rows that were deleted."""
    spark.createDataFrame([(*A, *OLD)], COLUMNS).createOrReplaceTempView("known")
    known = [Change("u", A, FULL, LARGE), Change("d", (1, "b"))]
    missing = [*known, Change("u", (1, "c"), FULL, LARGE[1:])]
    folded, with_missing = (fold(spark.createDataFrame(rows(some), SCHEMA), KEYS) for some in (known, missing))

    check_missing("known", folded, KEYS, True, is_first=True)
    assert caplog.messages == []
    what = r"1 changes lack a\.list.* table known has no row of their key \(history, id\)"
    with pytest.raises(InvalidRowError, match=f"{what}: read a topic that begins with a snapshot"):
        check_missing("known", with_missing, KEYS, True, is_first=True)
    check_missing("known", with_missing, KEYS, True, is_first=False)
    (message,) = caplog.messages
    assert re.match(what, message)

    spark.table("known").limit(0).createOrReplaceTempView("begun_at_the_end")
    with pytest.raises(InvalidRowError, match="table begun_at_the_end has no row of their key"):
        check_missing("begun_at_the_end", folded, KEYS, True, is_first=False)
    check_missing("begun_at_the_end", folded, KEYS, False, is_first=True)


@pytest.mark.parametrize(
    ("in_changes", "in_table"),
    [
        ("a SMALLINT", "A BIGINT"),
        ("a FLOAT", "a DOUBLE"),
        ("a DECIMAL(8,2)", "a DECIMAL(10,4)"),
        ("a ARRAY<SMALLINT>", "a ARRAY<INT>"),
        ("a MAP<STRING, STRUCT<b: TINYINT>>", "a MAP<STRING, STRUCT<B: INT>>"),
    ],
)
def test_a_table_with_wider_types_is_right_and_with_narrower_ones_is_refused(
    spark: SparkSession, in_changes: str, in_table: str
) -> None:
    narrow, wide = (spark.createDataFrame([], columns).schema[0].dataType for columns in (in_changes, in_table))
    assert (fits(narrow, wide), fits(wide, narrow)) == (True, False)


def test_a_batch_without_changes_is_not_applied(spark: SparkSession) -> None:
    target = DictTable()
    apply(spark, target, [])
    assert target.batches == []


def test_a_query_repeats_the_batch_whose_commit_was_lost(spark: SparkSession, tmp_path: Path) -> None:
    table, changes = history(1)
    target, half = DictTable(), len(changes) // 2
    for number, some in enumerate((changes[:half], changes[half:], [])):
        if some:
            batch = spark.createDataFrame(rows(some, half * number), SCHEMA)
            batch.coalesce(1).write.json(str(tmp_path / "topic" / str(number)))
        stream = spark.readStream.schema(SCHEMA).json(str(tmp_path / "topic" / "*"))
        query = apply_changes(
            stream, target, keys=KEYS, checkpoint=str(tmp_path / "checkpoint"), trigger={"availableNow": True}
        )
        assert query.awaitTermination(300), "the query did not end"
        forget_last_commit(tmp_path / "checkpoint")
    assert target.batches == [0, 0, 1, 1]
    assert comparable(target.table) == comparable(table)


def test_keys_are_the_first_columns_that_are_never_null(spark: SparkSession) -> None:
    changes = spark.createDataFrame([], SCHEMA)
    assert key_columns(changes.withColumn("at", F.current_timestamp()).schema) == list(KEYS)
    assert key_columns(changes.schema, "small") == ["small"]
    assert key_columns(changes.schema, ["SMALL", "id"]) == ["small", "id"]
    with pytest.raises(SchemaError, match="keys are no columns of the DataFrame: nope"):
        key_columns(changes.schema, ["id", "nope"])


@pytest.mark.parametrize(
    ("change", "message"),
    thorough_after(
        1,
        [
            (Change("u", A, FULL), "changes of one key are in shop1-0 and shop2-0, which have no order"),
            (TRUNCATE, "changes of several topics"),
        ],
    ),
)
def test_changes_of_a_row_in_several_topics_are_refused(
    spark: SparkSession, change: Change, message: str, checkpoint: str
) -> None:
    """Of partitions too. One database's truncate must not empty the rows of another one."""
    batch = spark.createDataFrame(rows([Change("c", A, FULL), change]), WITH_NULL_KEYS)
    topic = F.when(F.col("_change.op") == "c", "shop1").otherwise("shop2")
    batch = batch.withColumn("_change", F.col("_change").withField("topic", topic))
    with pytest.raises(InvalidRowError, match=message):
        apply_batch(batch, 0, target=DictTable(), keys=KEYS, fail_on_lost=True, checkpoint=checkpoint)


def test_a_truncate_is_refused_in_a_topic_with_partitions_that_its_batch_lacks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Their changes of before it may come in a later batch."""
    with pytest.raises(InvalidRowError, match="changes of several topics or partitions have no order"):
        apply(spark, DictTable(), [TRUNCATE], checkpoint=planned(tmp_path, 2))


def test_a_table_whose_columns_are_all_of_the_key(spark: SparkSession) -> None:
    """Such as one that joins two others."""
    changes = [Change("c", A), Change("c", (0, "b")), Change("d", A), Change("u", (0, "c"))]
    batch = spark.createDataFrame(rows(changes), SCHEMA).select(*KEYS, "_change")
    found = fold(batch, key_columns(batch.schema)).select(*KEYS, "_change.deleted", "_change.unavailable")
    assert sorted(map(tuple, found.collect())) == [(*A, True, []), (0, "b", False, []), (0, "c", False, [])]


def test_rows_of_changes_have_a_key_and_what_auto_cdc_needs(spark: SparkSession) -> None:
    """Keys and sequence are never null, and of types that never change; Auto CDC leaves out one column by its name."""
    schemas = {"keySchema": json.dumps(KEY), "valueSchema": json.dumps(ENVELOPE), "valueFormat": "avro"}
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "topic", "changes": "debezium"}
    changes = spark.readStream.format("kafkameta").options(**options, **schemas).load()
    fields = {field.name: field for field in changes.select("_change.*").schema}
    assert key_columns(changes.schema) == ["id"]
    assert changes.columns == ["id", "name", "day", "at", "price", "_change"]
    assert (fields["sequence"].dataType, fields["sequence"].nullable) == (LongType(), False)
    assert fields["deleted"].dataType == BooleanType()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id INT NOT NULL", "no column _change: read the topic with the option changes"),
        ("id INT, _change STRUCT<sequence: BIGINT> NOT NULL", "first column may be null .*: name the columns"),
        ("id INT NOT NULL, _change STRUCT<sequence: STRUCT<position: STRING>>", "without changeOrder=source"),
    ],
)
def test_a_dataframe_without_changes_or_a_key_is_refused(spark: SparkSession, columns: str, message: str) -> None:
    changes = spark.createDataFrame([], columns)
    with pytest.raises(SchemaError, match=message):
        key_columns(changes.schema)


def test_a_table_is_created_and_takes_new_columns_only_when_told_to(spark: SparkSession) -> None:
    """Names of columns are compared without case, as Spark does."""
    first, new = "ID INT, `a b` ARRAY<STRUCT<`c-d`: INT>>", "new STRING, `o``dd` DECIMAL(10,2)"
    before, after = (
        spark.createDataFrame([], f"{columns}, _change STRUCT<op: STRING>") for columns in (first, f"id INT, {new}")
    )
    prepare_table(before, "taken", "parquet", add_columns=False)
    prepare_table(before, "taken", "parquet", add_columns=False)
    with pytest.raises(SchemaError, match="table taken lacks columns of the database: new, o`dd"):
        prepare_table(after, "taken", "parquet", add_columns=False)
    prepare_table(after, "taken", "parquet", add_columns=True)
    assert spark.table("taken").schema == spark.createDataFrame([], f"{first}, {new}").schema
    other = spark.createDataFrame([], "id INT, `a b` STRING, _change STRUCT<op: STRING>")
    with pytest.raises(SchemaError, match=r"column a b of table taken is array.*, and string in the changes"):
        prepare_table(other, "taken", "parquet", add_columns=False)
    spark.sql("DROP TABLE taken")
