"""The socket between this release of Spark and its Python workers is found, and TCP_NODELAY is set on it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader

from pyspark_kafka_meta.spark.task_latency import LowLatencyTask, spark_socket_fd


def test_what_a_task_sends_to_spark_waits_for_nothing(spark: SparkSession) -> None:
    class Reader(LowLatencyTask, DataSourceReader):
        def __init__(self) -> None:
            self.has_state = True  # unpickling calls __setstate__ only for objects with state

        def read(self, partition: object) -> Iterator[tuple[bool]]:
            fd = spark_socket_fd(sys._getframe())
            assert fd is not None
            with socket.socket(fileno=os.dup(fd)) as connection:
                yield (bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)),)

    class LowLatency(DataSource):
        @classmethod
        def name(cls) -> str:
            return "low_latency"

        def schema(self) -> str:
            return "has_no_delay BOOLEAN"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    spark.dataSource.register(LowLatency)

    assert [row.has_no_delay for row in spark.read.format("low_latency").load().collect()] == [True]
