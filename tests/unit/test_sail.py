"""The data source as Sail calls it: with Arrow schemas (`make sail` tries it in Sail)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from configparser import ConfigParser
from importlib.metadata import EntryPoint
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_kafka_meta.errors import OptionError, SchemaError
from pyspark_kafka_meta.kafka.records.schema import records_arrow_schema
from pyspark_kafka_meta.sail import SailDataSource, SailReader
from pyspark_kafka_meta.source import KafkaMetaDataSource
from pyspark_kafka_meta.spark.batch_reader import KafkaMetaReader
from pyspark_kafka_meta.spark.batch_writer import KafkaMetaWriter

SERVERS = {"kafka.bootstrap.servers": "localhost:1"}
TOPIC = {**SERVERS, "subscribe": "t"}
CLICK = '{"type": "record", "name": "Click", "fields": [{"name": "id", "type": "long"}]}'
AVRO = {**TOPIC, "valueformat": "avro", "valueschema": CLICK, "valueframing": "none", "onmalformedrecord": "record"}
READS = [TOPIC, {**TOPIC, "includeheaders": "true"}, AVRO]
READS += [{"table": table, **SERVERS} for table in ("brokers", "partitions", "transactions")]
READS += [{"table": table, "eventspath": "/events"} for table in ("refresh_events", "caches")]
ROW = pa.schema([("value", pa.string()), ("topic", pa.string())])


def test_sail_finds_the_data_source_under_its_name() -> None:
    setup = ConfigParser()
    setup.read(Path(__file__).parent.parent.parent / "setup.cfg")
    name, _, target = setup["options.entry_points"]["pysail.datasources"].strip().partition(" = ")

    assert EntryPoint(name, target, "pysail.datasources").load() is SailDataSource
    assert SailDataSource.name() == name == KafkaMetaDataSource.name()


@pytest.mark.parametrize("options", READS, ids=lambda options: options.get("table", "records"))
def test_columns_are_those_in_spark(options: dict[str, str]) -> None:
    source = SailDataSource(options)
    assert from_arrow_schema(source.schema()) == KafkaMetaDataSource(options).schema()
    assert isinstance(source.reader(source.schema()), SailReader)


def test_rows_have_the_schema_that_sail_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = pa.struct([pa.field("id", pa.int64(), nullable=False)])
    ours = records_arrow_schema(["timestamp", "offset"]).append(pa.field("value", typed))
    rows = pa.RecordBatch.from_arrays([pa.array([1_000_000], ours.types[0]), [7], pa.nulls(1, typed)], schema=ours)

    def read(_: KafkaMetaReader, __: InputPartition) -> Iterator[pa.RecordBatch]:
        yield rows

    monkeypatch.setattr(KafkaMetaReader, "read", read)
    in_session = ours.set(0, pa.field("timestamp", pa.timestamp("us", tz="Europe/Berlin")))
    reader = pickle.loads(pickle.dumps(SailDataSource(AVRO).reader(in_session)))
    assert isinstance(reader, SailReader)
    (batch,) = reader.read(InputPartition(None))

    assert batch.schema == in_session
    assert batch.to_pylist() == rows.to_pylist()


def test_columns_of_the_user_are_chosen_and_checked() -> None:
    source = SailDataSource(TOPIC)
    source.reader(pa.schema([("VALUE", pa.binary())]))
    with pytest.raises(OptionError, match="not among them: value:string"):
        source.reader(pa.schema([("value", pa.string())]))


def test_rows_are_written_as_in_spark() -> None:
    assert isinstance(SailDataSource(SERVERS).writer(ROW, overwrite=False), KafkaMetaWriter)
    with pytest.raises(SchemaError, match="Required attribute 'value' not found"):
        SailDataSource(SERVERS).writer(pa.schema([("topic", pa.string())]), overwrite=False)


@pytest.mark.parametrize(
    ("option", "problem"),
    [("checkpointLocation", "Sail cannot write a stream to Kafka"), ("kafka.transactional.id", "write exactly once")],
)
def test_sail_writes_no_stream_and_no_transaction(option: str, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        SailDataSource({**SERVERS, option: "x"}).writer(ROW, overwrite=False)
