"""DataFrames written by Spark's own Kafka sink and by kafkameta, in one session: the cases of KafkaSinkSuite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.marks import thorough_after

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

CODECS = ("none", "zstd")
HEADERS_TYPE = "array<struct<key:string,value:binary>>"
HEADERS: tuple[list[tuple[str, bytes | None]] | None, ...] = (
    None,
    [],
    [("one", b"1")],
    [("null", None), ("empty", b"")],
    [("twice", b"a"), ("twice", b"b"), ("other", b"c")],
)
RECORDS = [
    (key, value, headers, partition)
    for key in (None, "", "k", "\u20ac")
    for value in (None, b"", b"v" * 300)
    for headers in HEADERS
    for partition in (0, 2)
]
KEYED = [(f"key-{number}", b"%d" % number, None, None) for number in range(50)]
"""Their keys decide the partitions."""
MEGABYTE = os.urandom(500_000) * 2


class Sink:
    """One of the two sinks."""

    def __init__(self, name: str, bootstrap_servers: str) -> None:
        self.name = name
        self._servers = {"kafka.bootstrap.servers": bootstrap_servers}

    def write(self, rows: DataFrame, mode: str = "append", **options: str) -> None:
        rows.write.format(self.name).mode(mode).options(**self._servers, **options).save()

    def stream(self, rows: DataFrame, folder: Path, mode: str = "append", **options: str) -> StreamingQuery:
        """A query that has written all rows."""
        sink = rows.writeStream.format(self.name).outputMode(mode).options(**self._servers, **options)
        query = sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(120), "the query did not end"
        return query


@pytest.fixture
def ours(kafka: Any) -> Sink:
    return Sink("kafkameta", kafka.bootstrap_servers)


@pytest.fixture(scope="module")
def sinks(jvm_source: str, kafka: Any) -> list[Sink]:
    """Spark's own sink, and kafkameta."""
    return [Sink(name, kafka.bootstrap_servers) for name in (jvm_source, "kafkameta")]


@pytest.fixture(scope="module")
def written(spark: SparkSession, sinks: list[Sink], make_topic: Any) -> dict[str, str]:
    """A topic of each sink with all kinds of records."""
    big = ("big", MEGABYTE, [("big", b"h" * 1000)], 1)
    columns = f"key string, value binary, headers {HEADERS_TYPE}, partition int"
    rows = spark.createDataFrame([*RECORDS, *KEYED, big], columns)
    topics = {sink.name: make_topic(3) for sink in sinks}
    for sink in sinks:
        for codec in CODECS:
            options = {"topic": topics[sink.name], "kafka.compression.type": codec}
            sink.write(rows.coalesce(1), **options)
    return topics


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of two micro-batches: 1 to 3, then 4 and 5."""
    for time_s, text in ((1, "1\n2\n3"), (2, "4\n5")):
        file = tmp_path / "lines" / str(time_s)
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        os.utime(file, (time_s, time_s))
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "lines"))


def read(spark: SparkSession, kafka: Any, topic: str) -> list[Row]:
    """The records of a topic from Spark's own source, in order."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "includeHeaders": "true"}
    rows = spark.read.format("kafka").options(**options).load()
    return sorted(rows.collect(), key=lambda row: (row.partition, row.offset))


def values(spark: SparkSession, kafka: Any, topic: str) -> list[str]:
    return sorted(row.value.decode() for row in read(spark, kafka, topic))


# --- the same DataFrame through both sinks ----------------------------------------------------------------------------


def test_spark_reads_the_same_rows_whichever_sink_wrote_them(
    spark: SparkSession, kafka: Any, written: dict[str, str]
) -> None:
    theirs, ours = (
        [(row.key, row.value, row.headers, row.partition, row.timestampType) for row in read(spark, kafka, topic)]
        for topic in written.values()
    )
    assert len(theirs) == len(CODECS) * (len(RECORDS) + len(KEYED) + 1)
    assert ours == theirs


# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_s1_s8_a_stream_writes_to_the_topic_column_and_counts_its_rows(
    spark: SparkSession, kafka: Any, make_topic: Any, ours: Sink, lines: DataFrame, tmp_path: Path, jvm_source: str
) -> None:
    odd, even = make_topic(), make_topic()
    query = ours.stream(lines.selectExpr(f"if(value % 2 = 1, '{odd}', '{even}') AS topic", "value"), tmp_path)
    assert [progress.sink.numOutputRows for progress in query.recentProgress] == [3, 2]
    assert values(spark, kafka, odd) == ["1", "3", "5"]
    assert values(spark, kafka, even) == ["2", "4"]


def test_s2_s3_the_topic_option_replaces_a_topic_column(
    spark: SparkSession, kafka: Any, topic: str, ours: Sink, lines: DataFrame, tmp_path: Path, jvm_source: str
) -> None:
    ours.stream(lines.selectExpr("'no-such-topic' AS topic", "value"), tmp_path, topic=topic)
    assert values(spark, kafka, topic) == ["1", "2", "3", "4", "5"]


@pytest.mark.thorough
def test_complete_mode_appends_the_whole_result_as_sparks_own_sink_does(
    spark: SparkSession, kafka: Any, make_topic: Any, sinks: list[Sink], lines: DataFrame, tmp_path: Path
) -> None:
    counts = lines.groupBy(lines.value % 2 == 1).count().toDF("odd", "count")
    written = []
    for sink in sinks:
        topic = make_topic()
        rows = counts.selectExpr("if(odd, 'odd', 'even') AS key", "CAST(count AS STRING) AS value")
        query = sink.stream(rows, tmp_path / sink.name, mode="complete", topic=topic)
        assert [progress.sink.numOutputRows for progress in query.recentProgress] == [2, 2]
        written.append(sorted((row.key, row.value) for row in read(spark, kafka, topic)))
    assert written == [[(b"even", b"1"), (b"even", b"2"), (b"odd", b"2"), (b"odd", b"3")]] * 2


def test_spark_refuses_update_mode_of_a_python_sink(ours: Sink, lines: DataFrame, topic: str, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="kafkameta does not support Update mode"):
        ours.stream(lines, tmp_path, mode="update", topic=topic)


@pytest.mark.thorough
def test_foreach_batch_writes_the_rows_that_update_mode_would(
    spark: SparkSession, kafka: Any, topic: str, ours: Sink, lines: DataFrame, tmp_path: Path, jvm_source: str
) -> None:
    """As docs/parity.md says."""
    counts = lines.groupBy((lines.value % 3).cast("int").cast("string").alias("key")).count()
    rows = counts.selectExpr("key", "CAST(count AS STRING) AS value")
    updates = rows.writeStream.outputMode("update").foreachBatch(lambda batch, _: ours.write(batch, topic=topic))
    query = updates.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)

    written = sorted((row.key, row.value) for row in read(spark, kafka, topic))
    assert written == [(b"0", b"1"), (b"1", b"1"), (b"1", b"2"), (b"2", b"1"), (b"2", b"2")]


@pytest.mark.thorough
def test_a_stream_of_sparks_own_sink_continues_from_its_checkpoint(
    spark: SparkSession, kafka: Any, topic: str, sinks: list[Sink], lines: DataFrame, tmp_path: Path
) -> None:
    for number, sink in zip((6, 7), sinks, strict=True):
        (tmp_path / "lines" / str(number)).write_text(str(number))
        sink.stream(lines, tmp_path, topic=topic)
    assert values(spark, kafka, topic) == ["1", "2", "3", "4", "5", "6", "7"]


# --- what is refused --------------------------------------------------------------------------------------------------

BOTH_REFUSE: dict[str, tuple[str, dict[str, str], str]] = {
    "S4 no topic": ("'v' AS value", {}, "topic option required when no 'topic' attribute is present"),
    "S4 no value": ("'t' AS topic, 'k' AS key", {}, "Required attribute 'value' not found"),
    "S5 topic": ("1 AS topic, 'v' AS value", {}, "topic attribute unsupported type int. topic must be a\\(n\\) string"),
    "S5 value": (
        "1 AS value",
        {"topic": "t"},
        "value attribute unsupported type int. value must be .* string or binary",
    ),
    "S5 key": ("'v' AS value, 1L AS key", {"topic": "t"}, "key attribute unsupported type bigint. key must be"),
    "S5 partition": ("'v' AS value, '1' AS partition", {"topic": "t"}, "partition must be a\\(n\\) int"),
    "S5 headers": (
        "'v' AS value, map('a', 'b') AS headers",
        {"topic": "t"},
        "headers attribute unsupported type map<string,string>. headers must be a\\(n\\) array<struct<",
    ),
    "S7 key serializer": (
        "'v' AS value",
        {"topic": "t", "kafka.key.serializer": "X"},
        "Kafka option 'key.serializer' is not supported as keys are serialized with ByteArraySerializer",
    ),
    "S7 value serializer": (
        "'v' AS value",
        {"topic": "t", "kafka.value.serializer": "X"},
        "Kafka option 'value.serializer' is not supported as values? are serialized with ByteArraySerializer",
    ),
}


@pytest.mark.parametrize(
    ("columns", "options", "text"), thorough_after(2, BOTH_REFUSE.values()), ids=BOTH_REFUSE.keys()
)
def test_what_sparks_own_sink_refuses_is_refused_in_its_words(
    columns: str, options: dict[str, str], text: str, spark: SparkSession, sinks: list[Sink]
) -> None:
    rows = spark.range(1).selectExpr(*columns.split(", ")) if "map(" not in columns else spark.sql(f"SELECT {columns}")
    for sink in sinks:
        with pytest.raises(PySparkException, match=text):
            sink.write(rows, **options)


def test_s4_s5_a_stream_reports_all_missing_columns_and_wrong_types_at_start(
    ours: Sink, lines: DataFrame, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException) as caught:
        ours.stream(lines.selectExpr("1 AS key"), tmp_path)
    for text in ("topic option required", "'value' not found", "key attribute unsupported type int"):
        assert text in str(caught.value)


MODES = {
    "ignore": 'cannot be written in the "Ignore" mode',
    "error": 'cannot be written in the "ErrorIfExists" mode',
    "overwrite": "Save mode Overwrite not allowed for Kafka, where records are only appended",
}


def test_s12_a_batch_is_only_appended(spark: SparkSession, kafka: Any, sinks: list[Sink], topic: str) -> None:
    """Spark's own sink takes the mode `error`, the default, as `append`; Spark refuses it for Python sinks."""
    theirs, ours = sinks
    rows = spark.range(1).selectExpr("'v' AS value")
    for mode, text in MODES.items():
        if mode != "error":
            with pytest.raises(AnalysisException, match=f"Save mode {mode.capitalize()} not allowed for Kafka"):
                theirs.write(rows, mode, topic=topic)
        with pytest.raises(AnalysisException, match=text):
            ours.write(rows, mode, topic=topic)
    assert read(spark, kafka, topic) == []


# --- partitions and plans ---------------------------------------------------------------------------------------------


def test_s10_a_java_partitioner_is_refused_with_its_replacement(spark: SparkSession, ours: Sink) -> None:
    options = {"topic": "t", "kafka.partitioner.class": "org.example.Mine"}
    with pytest.raises(PySparkException, match=r"partitioner\.class.* the column partition determines the partition"):
        ours.write(spark.range(1).selectExpr("'v' AS value"), **options)


@pytest.mark.thorough
def test_s14_a_plan_that_spark_analyses_late_is_written(
    spark: SparkSession, kafka: Any, topic: str, ours: Sink, jvm_source: str
) -> None:
    """SPARK-20496."""
    ours.write(spark.range(1, 1000).selectExpr("to_json(struct(*)) AS value"), topic=topic)
    assert values(spark, kafka, topic) == sorted(f'{{"id":{number}}}' for number in range(1, 1000))
