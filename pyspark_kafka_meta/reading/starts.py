"""`OffsetResolver`: what the starting and ending offsets that a user named mean in the logs as they are.

Follows Spark's `KafkaOffsetReaderAdmin`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.metadata.model import TopicPartition
from pyspark_kafka_meta.options import EARLIEST_OFFSET, LATEST_OFFSET, OffsetsSpec, SourceOptions
from pyspark_kafka_meta.reading.client import KafkaClient
from pyspark_kafka_meta.reading.offsets import Position, check_same_partitions
from pyspark_kafka_meta.reading.verdicts import accept_loss
from pyspark_kafka_meta.wire.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, OffsetAnswer


class OffsetResolver:
    """Asks each partition's leader."""

    def __init__(self, client: KafkaClient, options: SourceOptions) -> None:
        self._client = client
        self._options = options

    def resolve(
        self, spec: OffsetsSpec, partitions: Collection[TopicPartition], option: str
    ) -> dict[TopicPartition, Position]:
        """The positions that an offsets option means.

        Raises:
            OptionError: it names other partitions than these, or an offset behind the end of a log.
            DataLossError: it names an offset that has aged out, and failOnDataLoss is set.
        """
        if spec.everywhere is not None:
            return self.latest(partitions) if spec.everywhere == LATEST_OFFSET else self.earliest(partitions)
        given = dict(spec.by_partition)
        check_same_partitions(option, given, partitions)
        earliest, latest = self.earliest(partitions), self.latest(partitions)
        named = {EARLIEST_OFFSET: earliest, LATEST_OFFSET: latest}
        # A query may begin behind the start of an open transaction, but a batch cannot end there.
        ends = latest if option == "endingOffsets" else self.high_watermarks(partitions)
        return {
            partition: named[offset][partition]
            if offset in named
            else Position(
                self._within_log(option, partition, offset, earliest[partition].offset, ends[partition].offset)
            )
            for partition, offset in given.items()
        }

    def earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """The start of each log. No epoch: nothing lies before it that a leader could compare."""
        answers = self._list(dict.fromkeys(partitions, EARLIEST_TIMESTAMP), read_committed=False)
        return {partition: Position(answer.offset) for partition, answer in answers.items()}

    def latest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """The end of each log: high watermark, or last stable offset under read_committed."""
        return self._latest(partitions, self._options.client.read_committed)

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """The end of each log, open transactions included."""
        return self._latest(partitions, read_committed=False)

    def _latest(self, partitions: Collection[TopicPartition], read_committed: bool) -> dict[TopicPartition, Position]:
        answers = self._list(dict.fromkeys(partitions, LATEST_TIMESTAMP), read_committed)
        return {one: Position(answer.offset, answer.leader_epoch) for one, answer in answers.items()}

    def _list(
        self, timestamps: Mapping[TopicPartition, int], read_committed: bool
    ) -> Mapping[TopicPartition, OffsetAnswer]:
        if not timestamps:
            return {}
        return self._client.list_offsets(timestamps, self._client.api_deadline(), read_committed)

    def _within_log(self, option: str, partition: TopicPartition, offset: int, earliest: int, latest: int) -> int:
        """`offset` if the log holds it; its start if the offset has aged out and that is allowed."""
        if offset > latest:
            raise OptionError(
                f"{option} names offset {offset} of {partition}, and its log ends at {latest}: correct it"
            )
        if offset < earliest:
            text = f"{option} names offset {offset} of {partition}, and its log starts at {earliest}"
            accept_loss(f"{text}: the records before it are gone", self._options.fail_on_data_loss)
        return max(offset, earliest)
