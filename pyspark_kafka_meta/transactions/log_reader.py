"""`LogReader`: reads record batches as a partition's log holds them, with their producers and markers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.fetching.task_reader import TaskReader
from pyspark_kafka_meta.model import OffsetRange, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.records.decoder import FetchedRecords
from pyspark_kafka_meta.wire.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


class LogReader:
    """Reads through leader changes and lost connections, as tasks do."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        servers = ",".join(map(str, client.options.bootstrap_servers))
        parsed = SourceOptions.parse({"kafka.bootstrap.servers": servers, "subscribe": "any"})
        self._options = replace(parsed, client=client.options)

    def batches(self, partition: TopicPartition, from_offset: int, until_offset: int) -> Iterator[FetchedRecords]:
        """The record batches with offsets in [from_offset, until_offset), of committed, aborted and open transactions,
        and control batches. Each has one header, and is valid until the next.

        Raises:
            DataLossError: the log starts after `from_offset`.
            KafkaMetaError: as `TaskReader.read`.
        """
        if from_offset >= until_offset:
            return
        topic_id = self._client.cache.snapshot.topic_id(partition.topic)
        planned = OffsetRange(partition, topic_id, from_offset, until_offset)
        for fetched in TaskReader(self._client, self._options, []).read_record_batches([planned]):
            for header in fetched.headers:
                if header.last_offset >= from_offset and header.base_offset < until_offset:
                    yield replace(fetched, headers=[header])

    def start_offset(self, partition: TopicPartition) -> int:
        """The first offset of the log."""
        return self._offset(partition, EARLIEST_TIMESTAMP)

    def end_offset(self, partition: TopicPartition) -> int:
        """The high watermark: open transactions do not hold it back."""
        return self._offset(partition, LATEST_TIMESTAMP)

    def _offset(self, partition: TopicPartition, timestamp: int) -> int:
        found = self._client.list_offsets({partition: timestamp}, self._client.api_deadline())
        return found[partition].offset
