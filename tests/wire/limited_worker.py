"""A program for a test: reads and copies a topic as a Python worker of Spark does, with limited addresses (RLIMIT_AS).

Its arguments: the limit in MiB, servers, the topic and the topic of the copy. Prints the number of rows.
"""

from __future__ import annotations

import resource
import sys

import pyspark.worker  # noqa: F401  # a worker has it before it limits itself
from pyspark import TaskContext

RECORDS, PARTITIONS = 100, 2


def main(limit_mib: int, servers: str, topic: str, copy: str) -> None:
    TaskContext._getOrCreate()._localProperties = {}  # as Spark's worker does
    resource.setrlimit(resource.RLIMIT_AS, (limit_mib << 20, limit_mib << 20))
    from pyspark_kafka_meta.model import OffsetRange, TopicPartition
    from pyspark_kafka_meta.options import SinkOptions, SourceOptions
    from pyspark_kafka_meta.spark.batch_reader import Task, read_partition
    from pyspark_kafka_meta.spark.batch_writer import write_task
    from pyspark_kafka_meta.write.input_columns import SinkColumns

    cluster = {"kafka.bootstrap.servers": servers}
    source = SourceOptions.parse(cluster | {"subscribe": topic})
    ranges = [OffsetRange(TopicPartition(topic, partition), None, 0, RECORDS) for partition in range(PARTITIONS)]
    rows = read_partition(source, Task(ranges, b"", "driver"), {"value": "value"})
    sink = SinkOptions.parse(cluster | {"topic": copy})
    columns = SinkColumns(key=None, value=0, headers=None, topic=None, partition=None, timestamp=None)
    print(write_task(sink, columns, rows).records)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
