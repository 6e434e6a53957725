"""The peers of this source in benchmarks: Spark's JVM source, a Python data source with a confluent-kafka consumer, the
ceiling (`ready_rows`), and this source with ready rows instead of decoded rows.

Tasks of the peers in Python start as promptly as this source's (`LowLatencyTask`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from unittest import mock

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.ready_rows import CeilingSource, Range, ready_rows
from pyspark_kafka_meta import KafkaMetaDataSource
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords
from pyspark_kafka_meta.kafka.records.schema import RECORD_COLUMNS, records_arrow_schema
from pyspark_kafka_meta.spark.batch_reader import KafkaMetaReader
from pyspark_kafka_meta.spark.records_table import records_struct_type
from pyspark_kafka_meta.spark.task_latency import LowLatencyTask, avoid_socket_delays

CONSUME_RECORDS = 10_000
CONSUME_TIMEOUT_S = 30.0
NOT_DECODED_VALUE_BYTES = 200


class Peer(Protocol):
    """A reader or a writer."""

    @property
    def name(self) -> str: ...


PeerT = TypeVar("PeerT", bound=Peer)
Result = TypeVar("Result")


class Reader(NamedTuple):
    """A way to read a topic: a Spark format, its options beside the common options, its schema, and what a batch query
    makes of the values, or keeps of the rows."""

    name: str
    source: str
    options: Mapping[str, str] = {}
    schema: str | None = None
    value: Column | None = None
    where: str | None = None

    def read(self, spark: SparkSession, bootstrap_servers: str, topic: str) -> DataFrame:
        """The whole topic."""
        reader = spark.read.format(self.source).options(**self._options(bootstrap_servers, topic))
        rows = (reader.schema(self.schema) if self.schema else reader).load()
        rows = rows if self.where is None else rows.where(self.where)
        return rows if self.value is None else rows.withColumn("value", self.value)

    def read_stream(self, spark: SparkSession, bootstrap_servers: str, topic: str) -> DataFrame:
        """The topic from its latest offsets on."""
        return spark.readStream.format(self.source).options(**self._options(bootstrap_servers, topic)).load()

    def _options(self, bootstrap_servers: str, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, **self.options}


OURS = Reader("kafkameta", "kafkameta")
JVM = Reader("JVM source, defaults", "kafka")
TUNED_JVM = Reader(
    "JVM source, tuned",
    "kafka",
    {
        "kafka.max.poll.records": "20000",
        "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
        "kafka.fetch.max.wait.ms": "10",
    },
)
"""After each poll the JVM source requests its partition's end offset, which waits for the response to the consumer's
in-flight Fetch: at the end of the log `fetch.max.wait.ms`, 500 by default."""
CONSUME = Reader("confluent-kafka consume()", "consume")
NOT_DECODED = Reader("kafkameta, fetched but not decoded", "not_decoded")


def ceiling(partitions: int, records: int, value_bytes: int, low_latency: bool = True) -> Reader:
    """Reads as many ready rows as a topic of this size has."""
    options = {"partitions": partitions, "records": records, "value_bytes": value_bytes, "low_latency": low_latency}
    name = "the same rows without Kafka" + ("" if low_latency else ", with Spark's socket delays")
    return Reader(name, CeilingSource.name(), {option: str(value) for option, value in options.items()})


def take_turns(
    peers: Sequence[PeerT], rounds: int, turn: Callable[[PeerT], Result], warm_up_rounds: int = 1
) -> dict[str, list[Result]]:
    """The results of each peer's turns, by its name, without the warm-up rounds.

    Each peer takes one turn in each round, in random order, so that a change of the machine's speed favours none.
    """
    results: dict[str, list[Result]] = {peer.name: [] for peer in peers}
    rng = random.Random(1)
    for number in range(warm_up_rounds + rounds):
        for peer in rng.sample(peers, len(peers)):
            result = turn(peer)
            if number >= warm_up_rounds:
                results[peer.name].append(result)
    return results


def register(spark: SparkSession) -> None:
    """Register the Python data sources in Spark."""
    spark.dataSource.register(ConsumeSource)
    spark.dataSource.register(CeilingSource)
    spark.dataSource.register(NotDecodedSource)


class ConsumeSource(DataSource):
    """The simplest own source: a consumer for each partition, and lists from `consume()`."""

    @classmethod
    def name(cls) -> str:
        return CONSUME.source

    def schema(self) -> StructType:
        return records_struct_type(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return ConsumeReader(self.options["kafka.bootstrap.servers"], self.options["subscribe"])


class ConsumeReader(LowLatencyTask, DataSourceReader):
    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._settings = {"bootstrap.servers": bootstrap_servers, "group.id": "peer", "log_level": 0}
        self._topic = topic

    def partitions(self) -> Sequence[InputPartition]:
        avoid_socket_delays()
        consumer = Consumer(self._settings)
        numbers = consumer.list_topics(self._topic, CONSUME_TIMEOUT_S).topics[self._topic].partitions
        offsets = [consumer.get_watermark_offsets(TopicPartition(self._topic, number)) for number in numbers]
        consumer.close()
        return [Range(number, low, high) for number, (low, high) in zip(numbers, offsets, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        consumer, offset = Consumer(self._settings), partition.from_offset
        consumer.assign([TopicPartition(self._topic, partition.partition, offset)])
        while offset < partition.until_offset:
            messages = consumer.consume(min(CONSUME_RECORDS, partition.until_offset - offset), CONSUME_TIMEOUT_S)
            if not messages:
                raise TimeoutError("no records came")
            offset = int(messages[-1].offset() or 0) + 1
            yield arrow_of(self._topic, messages)
        consumer.close()


def arrow_of(topic: str, messages: Sequence[Message]) -> pa.RecordBatch:
    """The messages, in the columns of this source."""
    columns = [
        [message.key() for message in messages],
        [message.value() for message in messages],
        [topic] * len(messages),
        [message.partition() for message in messages],
        [message.offset() for message in messages],
        [message.timestamp()[1] * 1000 for message in messages],
        [0] * len(messages),
    ]
    schema = records_arrow_schema(RECORD_COLUMNS)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema
    )


class NotDecodedSource(KafkaMetaDataSource):
    """This source without decoding: it fetches and checks all records, and returns as many ready rows."""

    @classmethod
    def name(cls) -> str:
        return NOT_DECODED.source

    def reader(self, schema: StructType) -> DataSourceReader:
        return NotDecodedReader(super().reader(schema))


class NotDecodedReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader) -> None:
        assert isinstance(reader, KafkaMetaReader)
        self._reader = reader

    def partitions(self) -> Sequence[InputPartition]:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with mock.patch("pyspark_kafka_meta.read.fetching.task_reader.decode", _ready_rows_for):
            yield from self._reader.read(partition)


def _ready_rows_for(parts: Sequence[FetchedRecords], *_: Any) -> Iterator[pa.RecordBatch]:
    return ready_rows(NOT_DECODED_VALUE_BYTES, sum(header.record_count for part in parts for header in part.headers))
