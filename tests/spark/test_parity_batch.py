"""Batches compared with Spark's own Kafka source, row by row in one session: the cases of KafkaRelationSuite."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.consumer import consume_committed
from tests.marks import thorough_after

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

RECORDS: tuple[dict[str, Any], ...] = (
    {"key": None, "value": None},
    {"key": b"", "value": b""},
    {"key": b"key", "value": None, "headers": [("one", b"1")]},
    {"key": None, "value": b"value", "headers": [("null", None), ("empty", b"")]},
    {"key": b"k", "value": b"v" * 1000, "headers": [("twice", b"a"), ("twice", b"b"), ("other", b"c")]},
)


@pytest.fixture(scope="module")
def topics(make_topic: Any, produce: Any, delete_records: Any, kafka: Any) -> Iterator[dict[str, str]]:
    """Topics by kind."""
    kept = {"retention.ms": "-1"}  # its timestamps are old
    made = {"rich": make_topic(3, kept), "empty": make_topic(2), "trimmed": make_topic(2), "many": make_topic(12)}
    made["transactional"] = make_topic(1)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        timed = [{**record, "timestamp": LONG_AGO_MS + number} for record in RECORDS]
        for partition in range(3):
            produce(made["rich"], timed, partition, **{"compression.type": codec})
    produce(made["trimmed"], map(str, range(10)), partition=0)
    delete_records(made["trimmed"], 0, 4)
    for partition in range(0, 12, 2):
        produce(made["many"], ["x"] * (1 + partition), partition)
    write_transactions(kafka.bootstrap_servers, made["transactional"])
    yield made


def write_transactions(bootstrap_servers: str, topic: str) -> None:
    """A record without a transaction, an aborted transaction and a committed transaction."""
    plain = Producer({"bootstrap.servers": bootstrap_servers})
    plain.produce(topic, b"plain")
    assert plain.flush(30) == 0
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, value)
        producer.flush(30)
        end(30)
    assert len(consume_committed(bootstrap_servers, topic)) == 4


def read(spark: SparkSession, source: str, kafka: Any, options: dict[str, Any]) -> DataFrame:
    """Dictionaries in `options` become JSON."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    return spark.read.format(source).options(**{"kafka.bootstrap.servers": kafka.bootstrap_servers}, **texts).load()


def in_order(rows: DataFrame) -> list[Row]:
    return sorted(rows.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def named(value: Any, topics: dict[str, str]) -> Any:
    """`value` with `<rich>` and the other kinds replaced by the names of the topics."""
    text = json.dumps(value)
    for kind, topic in topics.items():
        text = text.replace(f"<{kind}>", topic)
    return json.loads(text)


ALL_OF_RICH = {"0": -2, "1": -2, "2": -2}
LONG_AGO_MS = 1_600_000_000_000
"""Each partition of rich has five records of each of the milliseconds 0 to 4 after this."""
NEVER_MS = 4_000_000_000_000


def times(*after_ms: int) -> dict[str, dict[str, int]]:
    """A time for each partition of rich."""
    return {"<rich>": {str(partition): LONG_AGO_MS + ms for partition, ms in enumerate(after_ms)}}


SAME_ROWS: dict[str, dict[str, Any]] = {
    "R1 earliest to latest": {"subscribe": "<rich>"},
    "R2 earliest to latest, said": {"subscribe": "<rich>", "startingOffsets": "earliest", "endingOffsets": "latest"},
    "R3 offsets": {
        "subscribe": "<rich>",
        "startingOffsets": {"<rich>": {"0": 3, "1": 0, "2": -2}},
        "endingOffsets": {"<rich>": {"0": 20, "1": 0, "2": -1}},
    },
    "R4 headers": {"subscribe": "<rich>", "includeHeaders": "true"},
    "R5 times": {
        "subscribe": "<rich>",
        "startingOffsetsByTimestamp": times(1, 2, 0),
        "endingOffsetsByTimestamp": times(3, 3, 4),
    },
    "R6 from times to offsets": {
        "subscribe": "<rich>",
        "startingOffsetsByTimestamp": times(1, 2, 0),
        "endingOffsets": {"<rich>": {"0": 12, "1": 20, "2": -1}},
    },
    "R7 from offsets to times": {
        "subscribe": "<rich>",
        "startingOffsets": {"<rich>": {"0": 3, "1": 0, "2": -2}},
        "endingOffsetsByTimestamp": times(3, 3, 4),
    },
    "R8 from times": {"subscribe": "<rich>", "startingOffsetsByTimestamp": times(1, 2, 4)},
    "R9 to times": {"subscribe": "<rich>", "endingOffsetsByTimestamp": times(1, 2, 4)},
    "R10 a time for all": {
        "subscribe": "<rich>",
        "startingTimestamp": str(LONG_AGO_MS + 1),
        "endingTimestamp": str(LONG_AGO_MS + 3),
    },
    "R11 nothing as late, begin at the end": {
        "subscribe": "<rich>",
        "startingTimestamp": str(NEVER_MS),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "R12 nothing as late, end at the end": {"subscribe": "<rich>", "endingTimestamp": str(NEVER_MS)},
    "R13 one time wins over times by partition": {
        "subscribe": "<rich>",
        "startingTimestamp": str(LONG_AGO_MS + 3),
        "startingOffsetsByTimestamp": times(1, 1, 1),
        "startingOffsets": "earliest",
    },
    "R13 times by partition win over offsets": {
        "subscribe": "<rich>",
        "endingOffsetsByTimestamp": times(1, 1, 1),
        "endingOffsets": "latest",
    },
    "MB2 subscribePattern": {"subscribePattern": "<rich>.*"},
    "maxRecordsPerPartition": {"subscribe": "<rich>", "maxRecordsPerPartition": "7"},
    "R17 read_committed": {"subscribe": "<transactional>", "kafka.isolation.level": "read_committed"},
    "R18 read_uncommitted": {"subscribe": "<transactional>", "kafka.isolation.level": "read_uncommitted"},
    "R19 minPartitions": {"subscribe": "<rich>", "minPartitions": "7"},
    "R20 earliest by number, start alone": {"subscribe": "<rich>", "startingOffsets": {"<rich>": ALL_OF_RICH}},
    "MB2 assign": {"assign": {"<rich>": [0, 2]}},
    "MB34 names in any case": {"SUBSCRIBE": "<rich>", "startingoffsets": "earliest", "INCLUDEHEADERS": "TRUE"},
    "several topics, spaces between": {"subscribe": " <rich> , <many>,<trimmed>, <empty>", "includeHeaders": "true"},
    "many partitions": {"subscribe": "<many>"},
    "empty topic": {"subscribe": "<empty>"},
    "deleted records": {"subscribe": "<trimmed>"},
    "deleted records, asked for": {
        "subscribe": "<trimmed>",
        "startingOffsets": {"<trimmed>": {"0": 2, "1": -2}},
        "failOnDataLoss": "false",
    },
    "empty range": {
        "assign": {"<rich>": [0]},
        "startingOffsets": {"<rich>": {"0": 4}},
        "endingOffsets": {"<rich>": {"0": 4}},
    },
}
IN_EVERY_RUN = {
    "R3 offsets",
    "R5 times",
    "MB2 subscribePattern",
    "MB2 assign",
    "R17 read_committed",
    "several topics, spaces between",
    "MB34 no strategy",
    "R16 start -1",
}
"""Cases in which the parts of a query differ most."""


def marks(name: str) -> Sequence[pytest.MarkDecorator]:
    return () if name in IN_EVERY_RUN else (pytest.mark.thorough,)


@pytest.mark.parametrize(
    "options", [pytest.param(options, id=name, marks=marks(name)) for name, options in SAME_ROWS.items()]
)
def test_rows_are_those_of_sparks_own_source(
    options: dict[str, Any], spark: SparkSession, jvm_source: str, kafka: Any, topics: dict[str, str]
) -> None:
    theirs, ours = (read(spark, source, kafka, named(options, topics)) for source in (jvm_source, "kafkameta"))
    assert ours.schema == theirs.schema
    assert in_order(ours) == in_order(theirs)


PROJECTIONS = ("length(value), key is null, headers", "value", "timestamp, timestampType", "1")


@pytest.mark.parametrize("columns", thorough_after(1, PROJECTIONS))
def test_projections_are_those_of_sparks_own_source(
    columns: str, spark: SparkSession, jvm_source: str, kafka: Any, topics: dict[str, str]
) -> None:
    options = {"subscribe": topics["rich"], "includeHeaders": "true"}
    both = [
        read(spark, source, kafka, options).selectExpr(*columns.split(", ")) for source in (jvm_source, "kafkameta")
    ]
    theirs, ours = (Counter(map(repr, rows.collect())) for rows in both)
    assert ours == theirs


def at(**offsets: int) -> dict[str, dict[str, int]]:
    """Offsets of the partitions of the topic rich: `at(_0=3)`."""
    return {"<rich>": {partition.removeprefix("_"): offset for partition, offset in offsets.items()}}


BOTH_REFUSE: dict[str, tuple[dict[str, Any], str]] = {
    "MB34 no strategy": ({}, "One of the following options must be specified for Kafka source"),
    "MB34 two strategies": ({"subscribe": "t", "assign": {"t": [0]}}, "Only one of the following options"),
    "MB34 assign": ({"assign": "t"}, "got t|value for option 'assign' is 't'"),
    "MB34 no topics": ({"subscribe": " , "}, "No topics to subscribe to"),
    "MB34 auto.offset.reset": ({"subscribe": "t", "kafka.auto.offset.reset": "latest"}, "auto.offset.reset"),
    "MB34 commit": ({"subscribe": "t", "kafka.enable.auto.commit": "true"}, "enable.auto.commit"),
    "MB34 interceptors": ({"subscribe": "t", "kafka.interceptor.classes": "X"}, "interceptor.classes"),
    "MB34 key deserializer": ({"subscribe": "t", "kafka.key.deserializer": "X"}, "key.deserializer"),
    "MB34 value deserializer": ({"subscribe": "t", "kafka.value.deserializer": "X"}, "value.deserializer"),
    "MB30 minPartitions a": ({"subscribe": "<rich>", "minPartitions": "a"}, "minPartitions|For input string"),
    "MB30 minPartitions 1.0": ({"subscribe": "<rich>", "minPartitions": "1.0"}, "minPartitions|For input string"),
    "MB30 minPartitions 0": ({"subscribe": "<rich>", "minPartitions": "0"}, "minPartitions must be positive"),
    "MB30 minPartitions -1": ({"subscribe": "<rich>", "minPartitions": "-1"}, "minPartitions must be positive"),
    "R16 start latest": ({"subscribe": "<rich>", "startingOffsets": "latest"}, "starting offset can't be latest"),
    "R16 start -1": (
        {"subscribe": "<rich>", "startingOffsets": at(_0=-1, _1=0, _2=0)},
        "startingOffsets for .*-0 can't be latest for batch queries on Kafka",
    ),
    "R16 end earliest": ({"subscribe": "<rich>", "endingOffsets": "earliest"}, "ending offset can't be earliest"),
    "R16 end -2": (
        {"subscribe": "<rich>", "endingOffsets": at(_0=-2, _1=0, _2=0)},
        "ending offset for .*-0 can't be earliest for batch queries on Kafka",
    ),
    "R20 other partitions": (
        {"subscribe": "<rich>", "startingOffsets": at(_0=0, _1=0), "endingOffsets": at(_0=1, _2=1)},
        "The specified start offset and end offset should have the same topic-partitions|exactly the partitions",
    ),
    "R21 start after end": (
        {"subscribe": "<rich>", "startingOffsets": at(_0=9, _1=0, _2=0), "endingOffsets": at(_0=3, _1=1, _2=1)},
        "The specified start offset 9 is greater than the end offset 3 for topic .* partition 0",
    ),
    "O7 fewer partitions": (
        {"subscribe": "<rich>", "startingOffsets": at(_0=0)},
        "must name exactly the partitions|Partitions specified for Kafka start offsets don't match what are assigned",
    ),
    "R11 nothing as late": (
        {"subscribe": "<rich>", "startingTimestamp": str(NEVER_MS)},
        "No offset matched from request of topic-partition .* and timestamp",
    ),
    "O10 times for fewer partitions": (
        {"subscribe": "<rich>", "startingOffsetsByTimestamp": times(1, 1)},
        "must name exactly the partitions|don't match what are assigned",
    ),
    "O10 times for more partitions": (
        {"subscribe": "<rich>", "startingOffsetsByTimestamp": times(1, 1, 1, 1)},
        "must name exactly the partitions|don't match what are assigned",
    ),
    "J2 no JSON": ({"subscribe": "<rich>", "startingOffsets": "foo"}, 'Expected e.g. {"topicA":{"0":23,"1":-1}'),
    "J1 no JSON": ({"assign": "{"}, 'Expected e.g. {"topicA":\\[0,1\\],"topicB":\\[0,1\\]}'),
}


@pytest.mark.parametrize(
    ("options", "text"), [pytest.param(*case, id=name, marks=marks(name)) for name, case in BOTH_REFUSE.items()]
)
def test_what_sparks_own_source_refuses_is_refused_in_its_words(
    options: dict[str, Any], text: str, spark: SparkSession, jvm_source: str, kafka: Any, topics: dict[str, str]
) -> None:
    for source in (jvm_source, "kafkameta"):
        with pytest.raises((PySparkException, Py4JJavaError), match=text):
            read(spark, source, kafka, named(options, topics)).count()


@pytest.mark.thorough
def test_r2_each_load_reads_what_has_come_and_static_ends_do_not_move(
    spark: SparkSession, kafka: Any, topic: str, produce: Any
) -> None:
    ends = {"startingOffsets": {topic: {"0": 0}}, "endingOffsets": {topic: {"0": 2}}}
    static = {"assign": {topic: [0]}, **ends}
    produce(topic, ["a", "b"], partition=0)
    first = read(spark, "kafkameta", kafka, {"subscribe": topic})
    assert first.count() == read(spark, "kafkameta", kafka, static).count() == 2
    produce(topic, ["c"], partition=0)
    assert first.count() == 2, "a DataFrame keeps the offsets of its first action"
    assert read(spark, "kafkameta", kafka, {"subscribe": topic}).count() == 3
    assert read(spark, "kafkameta", kafka, static).count() == 2


@pytest.mark.thorough
def test_r14_a_union_with_itself_reads_twice(spark: SparkSession, kafka: Any, topics: dict[str, str]) -> None:
    rows = read(spark, "kafkameta", kafka, {"subscribe": topics["rich"]})
    assert rows.union(rows).count() == 2 * rows.count() == 150


FAILING = ("true", "false")


@pytest.mark.thorough
def test_r15_retention_under_a_dataframe_is_told_and_the_next_load_starts_after_it(
    spark: SparkSession, kafka: Any, topic: str, produce: Any, delete_records: Any
) -> None:
    produce(topic, map(str, range(10)), partition=0)
    pinned = {
        failing: read(spark, "kafkameta", kafka, {"subscribe": topic, "failOnDataLoss": failing}) for failing in FAILING
    }
    assert [rows.count() for rows in pinned.values()] == [10, 10]
    delete_records(topic, 0, 7)
    with pytest.raises(PySparkException, match=r"offsets 0 to 6 of .*-0 cannot be read"):
        pinned["true"].count()
    again = read(spark, "kafkameta", kafka, {"subscribe": topic})
    for rows in (pinned["false"], again):
        assert [row.offset for row in in_order(rows)] == [7, 8, 9]


def test_mb30_min_partitions_makes_as_many_tasks(spark: SparkSession, kafka: Any, topics: dict[str, str]) -> None:
    rows = read(spark, "kafkameta", kafka, {"subscribe": topics["rich"], "minPartitions": "6"})
    assert rows.rdd.getNumPartitions() >= 6
