"""A planner with maxBytesPerTrigger learns sizes from brokers."""

from __future__ import annotations

from contextlib import closing
from statistics import median

from confluent_kafka import Producer

from pyspark_kafka_meta.model import OffsetRange
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING
from pyspark_kafka_meta.spark.batch_reader import new_planner
from pyspark_kafka_meta.testing import MockCluster

LIMIT = 500_000
SIZES = {0: 100, 1: 2_000, 2: 30_000}
"""Bytes of the records of each partition."""


def test_micro_batches_have_about_the_bytes_of_the_limit(mock_cluster: MockCluster) -> None:
    mock_cluster.create_topic("sizes-differ", partitions=3)
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers, "batch.size": 20_000, "linger.ms": 5})
    for _ in range(150):
        for partition, size in SIZES.items():
            producer.produce("sizes-differ", b"x" * size, partition=partition)
    assert producer.flush(30) == 0
    given = {"kafka.bootstrap.servers": mock_cluster.bootstrap_servers, "subscribe": "sizes-differ"}
    reading = {"startingOffsets": "earliest", "maxBytesPerTrigger": str(LIMIT)}
    options, offset, read = SourceOptions.parse(given | reading).for_stream(), BEGINNING, list[list[OffsetRange]]()
    with closing(new_planner(options, options.client)) as planner:
        while ranges := planner.ranges(offset, end := planner.next_offset(offset, None, limited=True)):
            offset = end
            read.append(ranges)

    sizes = [sum(each.size * SIZES[each.partition.partition] for each in ranges) for ranges in read]
    assert sum(sizes) == 150 * sum(SIZES.values())
    assert median(abs(size / LIMIT - 1) for size in sizes[:-1]) < 0.2
    assert max(sizes) < 2 * LIMIT
