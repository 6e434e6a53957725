"""Checks of the data source that need no Spark session (others: `tests/spark`)."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

import pyspark_kafka_meta
from pyspark_kafka_meta import source
from pyspark_kafka_meta.errors import OptionError, SchemaError, SchemaRegistryError
from pyspark_kafka_meta.spark.batch_writer import KafkaMetaWriter
from pyspark_kafka_meta.spark.stream_writer import KafkaMetaStreamWriter
from pyspark_kafka_meta.testing import MockRegistry


@pytest.mark.parametrize("name", pyspark_kafka_meta.__all__)
def test_public_name_is_loaded_on_first_use(name: str) -> None:
    assert callable(getattr(pyspark_kafka_meta, name))


TOPIC = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
STREAM_ONLY = {
    "maxOffsetsPerTrigger": "5",
    "minOffsetsPerTrigger": "5",
    "maxTriggerDelay": "15m",
    "onTopicRecreated": "latest",
    "newPartitions": "earliest",
    "commitOffsetsToGroup": "mine",
}
EVENTS = {"table": "refresh_events", "eventsPath": "/no/such/folder"}


@pytest.mark.parametrize(("options", "ignored"), [(TOPIC, STREAM_ONLY), (EVENTS, {"maxFilesPerTrigger": "1000"})])
def test_batch_warns_once_of_each_stream_option(
    options: dict[str, str], ignored: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    kafka = source.KafkaMetaDataSource({name.lower(): text for name, text in {**options, **ignored}.items()})

    kafka.streamReader(kafka.schema())
    assert caplog.messages == []
    kafka.reader(kafka.schema())
    assert sorted(caplog.messages) == sorted(f"{name} option ignored in batch queries" for name in ignored)


SERVERS = {"kafka.bootstrap.servers": "localhost:1"}
VALUES = StructType([StructField("value", StringType())])


@pytest.mark.parametrize("options", [{"topic": "t"}, {"topic": "t", "checkpointlocation": "/c", "kafka.acks": "1"}])
@pytest.mark.usefixtures("topics_exist")
def test_options_of_a_write_make_writers(options: dict[str, str]) -> None:
    kafka = pickle.loads(pickle.dumps(source.KafkaMetaDataSource({**SERVERS, **options})))

    assert isinstance(kafka.writer(VALUES, overwrite=False), KafkaMetaWriter)
    for overwrite in (False, True):  # true in output mode complete
        assert isinstance(kafka.streamWriter(VALUES, overwrite), KafkaMetaStreamWriter)


NEITHER = {**SERVERS, "kafka.acks": "1"}
READS = [
    ({**TOPIC, "includeheaders": "maybe"}, "'includeHeaders' must be"),
    ({**TOPIC, "kafka.ack": "1"}, "Unknown option 'kafka.ack'"),
    ({"table": "none"}, "'table' must be records"),
]


@pytest.mark.parametrize(("options", "problem"), READS)
def test_options_that_say_read_are_checked_at_once(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        source.KafkaMetaDataSource(options)


BAD = {"includeheaders": "maybe"}


@pytest.mark.parametrize("options", [{**TOPIC, "topic": "t"}, {**TOPIC, "checkpointlocation": "/c"}])
def test_other_options_are_checked_when_spark_reads_or_writes(options: dict[str, str]) -> None:
    kafka = source.KafkaMetaDataSource({**options, **BAD})
    for read in (kafka.schema, lambda: kafka.reader(VALUES)):
        with pytest.raises(OptionError, match="'includeHeaders' must be"):
            read()


def test_a_write_without_a_topic_is_refused() -> None:
    with pytest.raises(SchemaError, match="topic option required"):
        source.KafkaMetaDataSource(TOPIC).writer(VALUES, overwrite=False)


def test_stream_reader_reports_missing_options_where_a_new_or_restarted_query_calls_it_first() -> None:
    reader = source.KafkaMetaDataSource(NEITHER).streamReader(VALUES)
    for call in (reader.initialOffset, lambda: reader.partitions({}, {})):
        with pytest.raises(OptionError, match="must be specified for Kafka source: subscribe"):
            call()


SET_BY_SPARK = {"queryname": "q", "comment": "c", "owner": "root", "provider": "kafkameta", "option.topic": "t"}
"""By `queryName`, and by `CREATE TABLE ... USING kafkameta OPTIONS (topic 't') COMMENT 'c'`."""


@pytest.mark.usefixtures("topics_exist")
def test_options_that_spark_sets_are_no_options_of_the_user() -> None:
    with_them = source.KafkaMetaDataSource({**TOPIC, **SET_BY_SPARK})
    assert with_them.schema() == source.KafkaMetaDataSource(TOPIC).schema()
    source.KafkaMetaDataSource({**SERVERS, "topic": "t", **SET_BY_SPARK}).streamWriter(VALUES, overwrite=False)


def test_overwriting_a_topic_is_refused() -> None:
    kafka = source.KafkaMetaDataSource({**SERVERS, "topic": "t"})
    with pytest.raises(OptionError, match=r"^Save mode Overwrite not allowed for Kafka.*: use mode\(\"append\"\)$"):
        kafka.writer(VALUES, overwrite=True)


CLICK = '{"type": "record", "name": "Click", "fields": [{"name": "id", "type": ["null", "long"]}]}'


def test_the_registry_is_asked_once_for_a_query() -> None:
    with MockRegistry() as registry:
        registry.register("t-value", CLICK)
        kafka = source.KafkaMetaDataSource({**TOPIC, "valueformat": "avro", "schema.registry.url": registry.url})
        schema = kafka.schema()
        unpickled = pickle.loads(pickle.dumps(kafka))
        for reader in (unpickled.reader(schema), unpickled.streamReader(schema)):
            pickle.dumps(reader)

        assert registry.requests == ["GET /subjects/t-value/versions/latest"]
    assert schema.fieldNames() == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert schema["value"].dataType.simpleString() == "struct<id:bigint>"


def test_bytes_and_descriptions_of_malformed_values_are_further_columns() -> None:
    typed = {"keyFormat": "avro", "keySchema": '"int"', "valueFormat": "avro", "valueSchema": CLICK}
    given = {**TOPIC, **typed, "onMalformedRecord": "record", "includeHeaders": "true", "includeRaw": "true"}
    schema = source.KafkaMetaDataSource(given).schema()

    assert schema.fieldNames()[-5:] == ["headers", "value_raw", "key_raw", "value_error", "key_error"]
    assert schema["key_raw"].dataType.simpleString() == "binary"
    assert schema["key"].dataType.simpleString() == "int"
    assert schema["value_error"].dataType.simpleString() == "struct<cause:string,schema_id:bigint,raw:binary>"


def test_a_schema_of_the_user_says_which_columns_are_never_null() -> None:
    row = {"valueFormat": "json", "valueSchema": "id INT, name STRING", "keySchema": "id INT"}
    kafka = source.KafkaMetaDataSource({**TOPIC, **row, "changes": "debezium"})

    kafka.reader(StructType([StructField("id", IntegerType(), nullable=False)]))
    for name, kind, nullable, difference in (
        ("id", IntegerType(), True, r"id:int \(needs NOT NULL\)"),
        ("name", StringType(), False, r"name:string \(may be null\)"),
        ("name", IntegerType(), True, "name:int"),
    ):
        with pytest.raises(OptionError, match=f"; not among them: {difference}$"):
            kafka.reader(StructType([StructField(name, kind, nullable)]))


def test_a_stream_with_a_schema_of_the_user_reports_a_registry_that_fails_at_its_first_offset() -> None:
    with MockRegistry() as registry:
        options = {**TOPIC, "valueformat": "avro", "schema.registry.url": registry.url}
        registry.respond(401)
        reader = source.KafkaMetaDataSource(options).streamReader(VALUES)

    with pytest.raises(SchemaRegistryError, match="refused the login"):
        reader.initialOffset()
