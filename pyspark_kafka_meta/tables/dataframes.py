"""Functions that return the side tables as DataFrames, and the lag of a streaming query.

Spark plans a DataFrame once, at its first use: call the function again for newer rows.

Options are those of `format("kafkameta")` for the table: `caches(spark, metricsPath="/data/events")`,
`partitions(spark, **{"kafka.bootstrap.servers": "localhost:9092"})`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.options import Table
from pyspark_kafka_meta.tables.rows import LagRow
from pyspark_kafka_meta.tables.schemas import struct_type

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def refresh_events(spark: SparkSession, stream: bool = False, **options: str) -> DataFrame:
    """The refresh events of all metadata caches, as a batch or as a stream from the earliest event on."""
    return _load(spark, Table.REFRESH_EVENTS, options, stream)


def caches(spark: SparkSession, **options: str) -> DataFrame:
    """What each metadata cache knows now: a row for each cache and topic-partition."""
    return _load(spark, Table.CACHES, options)


def brokers(spark: SparkSession, **options: str) -> DataFrame:
    """The brokers of a cluster, as one broker reports them now."""
    return _load(spark, Table.BROKERS, options)


def partitions(spark: SparkSession, **options: str) -> DataFrame:
    """The partitions of a cluster now: leaders, replicas, start and end offsets."""
    return _load(spark, Table.PARTITIONS, options)


def open_transactions(spark: SparkSession, **options: str) -> DataFrame:
    """The open transactions of a cluster now, and those of decided batches that are not settled."""
    return _load(spark, Table.TRANSACTIONS, options)


def lag(spark: SparkSession, progress: StreamingQuery | Mapping[str, Any] | None, **options: str) -> DataFrame:
    """The lag of a streaming query, in records and in seconds: a `LagRow` for each partition that it reads.

    Queries the cluster now, and reads the next unread record of each partition for its timestamp.

    Args:
        progress: the query, or one of its progress reports. Sources of other formats are ignored.
        options: `kafka.*`, of the query's cluster.

    Raises:
        KafkaMetaError: the query has made no progress yet.
    """
    from pyspark_kafka_meta.tables.query_lag import end_offsets, query_lag

    report = getattr(progress, "lastProgress", progress)
    if report is None:
        raise KafkaMetaError("the query has made no progress yet: call again after its first micro-batch")
    rows = query_lag(options, end_offsets(report))
    return spark.createDataFrame([astuple(row) for row in rows], struct_type(LagRow))


def _load(spark: SparkSession, table: Table, options: Mapping[str, str], stream: bool = False) -> DataFrame:
    reader = spark.readStream if stream else spark.read
    return reader.format("kafkameta").option("table", table.value).options(**options).load()
