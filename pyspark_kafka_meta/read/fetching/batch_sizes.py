"""`batch_sizes`: fetches record batches to see their sizes, for the planner of a stream with a byte limit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange, Positions, TopicPartition
from pyspark_kafka_meta.options import ReadOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader
from pyspark_kafka_meta.read.planning.byte_limit import PARTS, BatchSize

logger = logging.getLogger(__name__)

MIN_FETCH_BYTES = 131_072
"""Of each partition: larger record batches come one in a response (KIP-74)."""
TIMEOUT_MS = 2_000
"""A partition without a record batch by then is left out."""


def batch_sizes(
    client: KafkaClient, options: ReadOptions, firsts: Mapping[TopicPartition, int], ends: Positions, max_bytes: int
) -> dict[TopicPartition, list[BatchSize]]:
    """As `FetchSizes`. A failure is logged: what is lost or corrupt, the tasks find and report."""
    share_bytes = max(MIN_FETCH_BYTES, max_bytes // PARTS // len(firsts))
    fetch = replace(
        options.fetch,
        fetch_min_bytes=1,
        max_partition_fetch_bytes=min(share_bytes, options.fetch.fetch_max_bytes),
        check_crcs=False,
        read_committed=False,
    )
    failing = replace(
        options,
        fetch=fetch,
        fail_on_data_loss=True,
        on_topic_recreated=None,
        skip_corrupt_batches=False,
        poll_timeout_ms=TIMEOUT_MS,
    )
    topic_id = client.cache.snapshot.topic_id
    ranges = [
        OffsetRange(part, topic_id(part.topic), firsts[part], end.offset, NO_EPOCH, end.known_epoch)
        for part, end in ends.items()
    ]
    sizes: dict[TopicPartition, list[BatchSize]] = {}
    read_bytes = 0.0  # before the ends
    try:
        for found in TaskReader(client, failing, ()).read_record_batches(ranges):
            batches = [
                BatchSize(header.base_offset, header.last_offset + 1, header.end - header.position)
                for header in found.headers
            ]
            sizes.setdefault(found.partition, []).extend(batches)
            read_bytes += sum(
                size_bytes * min(1.0, max(0, found.until_offset - first) / (end - first))
                for first, end, size_bytes in batches
            )
            if read_bytes > max_bytes:
                break
    except KafkaMetaError as error:
        logger.warning("maxBytesPerTrigger has fewer samples for this micro-batch: %s", error)
    return sizes
