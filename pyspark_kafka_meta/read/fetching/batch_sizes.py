"""`batch_sizes`: fetches single record batches to see their sizes, for the planner of a stream with a byte limit."""

from __future__ import annotations

import logging
from dataclasses import replace

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange, Positions, TopicPartition
from pyspark_kafka_meta.options import ReadOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.byte_limit import BatchSize

logger = logging.getLogger(__name__)

FETCH_BYTES = 16_384
"""Of each partition: larger record batches come one in a response (KIP-74), smaller ones of all partitions together."""
TIMEOUT_MS = 2_000
"""A partition without a record batch by then is left out: only what is known of it gets older."""


def batch_sizes(client: KafkaClient, options: ReadOptions, positions: Positions) -> dict[TopicPartition, BatchSize]:
    """The record batches at these positions, or after them where compaction has left a gap. A failure is logged: what
    is lost or corrupt, the tasks find and report."""
    fetch = replace(
        options.fetch, fetch_min_bytes=1, max_partition_fetch_bytes=FETCH_BYTES, check_crcs=False, read_committed=False
    )
    failing = replace(
        options,
        fetch=fetch,
        fail_on_data_loss=True,
        on_topic_recreated=None,
        skip_corrupt_batches=False,
        poll_timeout_ms=TIMEOUT_MS,
    )
    snapshot = client.cache.snapshot
    ranges = [
        OffsetRange(part, snapshot.topic_id(part.topic), offset, offset + 1, NO_EPOCH, position.known_epoch)
        for part, position in positions.items()
        for offset in [position.offset]
    ]
    sizes = {}
    try:
        for found in TaskReader(client, failing, ()).read_record_batches(ranges):
            first = found.headers[0]
            offsets = first.last_offset + 1 - min(first.base_offset, found.from_offset)
            sizes[found.partition] = BatchSize(first.end - first.position, offsets)
    except KafkaMetaError as error:
        logger.warning("maxBytesPerTrigger has fewer samples for this micro-batch: %s", error)
    return sizes
