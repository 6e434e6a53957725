"""The peers of this sink in benchmarks: Spark's JVM sink, confluent-kafka's `produce()` for each row, and a Python sink
that drops its rows, the limit for any Python sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_kafka_meta.spark.task_latency import LowLatencyTask

FLUSH_TIMEOUT_S = 300.0
POLL_ROWS = 1_000
"""Rows between two looks for acknowledgements, which librdkafka keeps until then."""


class Writer(NamedTuple):
    """A way to write rows: a Spark format, its options beside the common options, and what it makes of their values."""

    name: str
    sink: str
    options: Mapping[str, str] = {}
    value: Column | None = None

    def write(self, rows: DataFrame, bootstrap_servers: str, topic: str, codec: str) -> None:
        if self.value is not None:
            rows = rows.withColumn("value", self.value)
        common = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic, "kafka.compression.type": codec}
        if self.sink == PRODUCE.sink:
            rows.foreachPartition(partial(_produce, bootstrap_servers, topic, codec))
        else:
            rows.write.format(self.sink).options(**common, **self.options).mode("append").save()


OURS = Writer("kafkameta", "kafkameta")
JVM = Writer("JVM sink, defaults", "kafka")
TUNED_JVM = Writer("JVM sink, tuned", "kafka", {"kafka.batch.size": "262144", "kafka.linger.ms": "50"})
PRODUCE = Writer("confluent-kafka produce()", "produce")
DROP = Writer("the same rows without Kafka", "drop")


def _produce(bootstrap_servers: str, topic: str, codec: str, rows: Iterable[Row]) -> None:
    """The simplest own sink, with as much time and room for large batches as the tuned JVM sink has.

    Raises:
        RuntimeError: rows were not acknowledged in time.
    """
    settings = {"acks": "all", "enable.idempotence": True, "compression.type": codec, "log_level": 0}
    batches = {"linger.ms": 50, "batch.size": 1_000_000, "queue.buffering.max.messages": 500_000}
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random", **settings, **batches}
    )
    for number, row in enumerate(rows):
        while True:
            try:
                producer.produce(topic, row.value, row.key)
                break
            except BufferError:
                producer.poll(0.1)
        if number % POLL_ROWS == 0:
            producer.poll(0)
    if producer.flush(FLUSH_TIMEOUT_S):
        raise RuntimeError(f"{topic} did not take all rows in time")


class DropSink(DataSource):
    """Takes Spark's Arrow batches, and drops them."""

    @classmethod
    def name(cls) -> str:
        return DROP.sink

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return DropWriter(schema)


class DropWriter(LowLatencyTask, DataSourceArrowWriter):
    """Has a field: objects without one are unpickled without `__setstate__`."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
