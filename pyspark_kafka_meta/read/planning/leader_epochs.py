"""`LeaderEpochs`: what leaders say of the epochs in their logs, by OffsetForLeaderEpoch (KIP-320).

Finds truncated logs, as Kafka's `SubscriptionState.maybeValidatePositionForCurrentLeader` does, and the epoch of the
last record before a log end, which a later comparison needs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import UUID

from pyspark_kafka_meta.errors import UnknownTopicError, UnsupportedBrokerError
from pyspark_kafka_meta.kafka.client.kafka_client import COMPACT, KafkaClient
from pyspark_kafka_meta.kafka.protocol.list_offsets import PartitionOffset
from pyspark_kafka_meta.model import NO_EPOCH, Position, Positions, TopicPartition, is_other_topic
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset

logger = logging.getLogger(__name__)

MAX_EPOCHS_BACK = 2
"""The leader's epoch and the epoch before are looked at for the record before a log end: a leader that wrote nothing
keeps no other epoch without records (Kafka `LeaderEpochFileCache`)."""


class LeaderEpochs:
    """The epochs in the logs of one query. Each leader epoch is asked about once."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        # The positions that leaders have compared with their logs, and in which leader epoch.
        self._compared: dict[TopicPartition, tuple[Position, int]] = {}
        # The epoch before, and its end, where this epoch starts, by topic id and epoch.
        self._epochs_before: dict[TopicPartition, dict[tuple[UUID | None, int], PartitionOffset]] = {}
        self._warned = False  # that leaders cannot compare epochs

    def truncations(self, start: SourceOffset, latest: SourceOffset) -> dict[TopicPartition, Position]:
        """Where logs diverge from what was read of them. Only a new leader truncates a log, so each leader epoch is
        compared once."""
        ends, ids = latest.positions, latest.topic_ids
        for known in (self._compared, self._epochs_before):
            for partition in list(known.keys() - ends.keys()):
                del known[partition]  # a query over daily topics would keep every partition that ever existed
        due = {
            partition: (old, end[1])
            for partition, old in start.positions.items()
            if old[1] > NO_EPOCH and (end := ends.get(partition)) is not None and old[1] < end[1]
        }
        due = {
            partition: compared
            for partition, compared in due.items()
            if self._compared.get(partition) != compared
            and not is_other_topic(start.topic_ids[partition.topic], ids[partition.topic])
        }
        epoch_ends = self._epoch_ends({partition: old.leader_epoch for partition, (old, _) in due.items()})
        truncations = {
            partition: Position(kept_until, end.leader_epoch)
            for partition, end in epoch_ends.items()
            if 0 <= (kept_until := self._kept_until(partition, due[partition][0], end)) < due[partition][0].offset
        }
        self._compared |= {part: compared for part, compared in due.items() if part not in truncations}
        return truncations

    def _kept_until(self, partition: TopicPartition, read: Position, end: PartitionOffset) -> int:
        kept_until = read.kept_until(end.leader_epoch, end.offset)
        if kept_until < read.offset <= end.offset and COMPACT in (self._client.cleanup_policy(partition.topic) or ""):
            # A replica that was built after compaction had removed all records of an epoch never knew this epoch.
            logger.warning(
                "the log of %s has no records of leader epoch %d, which were read from offset %d on: compaction has "
                "removed them, or an unclean leader election has replaced them",
                partition,
                read.leader_epoch,
                read.epoch_start,
            )
            return end.offset
        return kept_until

    def with_epoch_starts(
        self, starts: Positions, ends: Positions, ids: Mapping[str, UUID | None]
    ) -> dict[TopicPartition, Position]:
        """`ends`, where each position that moved since `starts` has the epoch of the record before it, and the start of
        this epoch, as far as its leader says. The leader's own epoch may have no records (see `Position`). Raises
        UnknownTopicError: a leader was elected since `ends` were listed."""
        epochs = {
            partition: epoch for partition, (offset, epoch, *_) in ends.items() if offset != starts[partition].offset
        }
        found: dict[TopicPartition, Position] = {}
        for _ in range(MAX_EPOCHS_BACK):
            before = self._ends_before(epochs, ids, ends)
            found |= {
                partition: _in_epoch(ends[partition], epochs[partition], epoch_end.offset)
                for partition, epoch_end in before.items()
                if 0 <= epoch_end.offset < ends[partition].offset
            }
            epochs = {part: epoch_end.leader_epoch for part, epoch_end in before.items() if part not in found}
        return {**ends, **found}

    def _ends_before(
        self, epochs: Mapping[TopicPartition, int], ids: Mapping[str, UUID | None], ends: Positions
    ) -> dict[TopicPartition, PartitionOffset]:
        """The epoch before each of `epochs`, and its end. Epoch 0 has none before."""
        keys = {partition: (ids[partition.topic], epoch) for partition, epoch in epochs.items() if epoch > 0}
        known = self._epochs_before
        unknown = {part: epoch - 1 for part, (_, epoch) in keys.items() if keys[part] not in known.get(part, {})}
        for partition, epoch_end in self._epoch_ends(unknown).items():
            leader = self._client.cache.snapshot.leader(partition)
            if leader is None or leader.leader_epoch > ends[partition].known_epoch:
                # After an unclean election, the epochs of its log may begin elsewhere.
                raise UnknownTopicError(f"{partition} got a new leader while its offsets were listed: try again")
            latest = list(known.get(partition, {}).items())[1 - MAX_EPOCHS_BACK :]
            known[partition] = {**dict(latest), keys[partition]: epoch_end}
        return {part: known[part][key] for part, key in keys.items() if key in known.get(part, {})}

    def _epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, PartitionOffset]:
        if not epochs:
            return {}
        try:
            return self._client.epoch_end_offsets(epochs, self._client.api_deadline())
        except UnsupportedBrokerError as error:  # Kafka's consumer skips the validation too
            if not self._warned:
                text = "a truncated log is only noticed by its end, as leaders cannot compare epochs: %s"
                logger.warning(text, error)
            self._warned = True
            return {}


def _in_epoch(end: Position, epoch: int, epoch_start: int) -> Position:
    """The end of a log, whose last records are of this epoch."""
    return Position(end.offset, epoch, epoch_start, NO_EPOCH if end.known_epoch == epoch else end.known_epoch)
