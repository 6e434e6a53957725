"""`NewPartitions`: where a stream begins in partitions that it cannot read from its checkpoint.

These are new partitions, partitions that return after an absence, and those of recreated topics and truncated logs.

Kafka orders the records of a key as long as the key stays in its partition. When a topic gets partitions, keys move to
them, and a query over changes that relies on this order fails. The partitions of a new topic or of a recreated one are
not added ones, nor are partitions that return.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from uuid import UUID

from pyspark_kafka_meta.errors import PartitionsAddedError
from pyspark_kafka_meta.model import Position, Positions, TopicPartition, is_other_topic, name_partitions
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.options.changes import ChangeOrder
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.read.planning.data_loss import Comparison, Loss, LossKind, recreated_text

KEPT_S = 7 * 24 * 3600.0
"""How long it is known where the query left off in a partition that is gone, as brokers by default keep the offsets of
a consumer group (offsets.retention.minutes). A query over daily topics would keep every partition that ever existed."""
GONE = "the partition is gone: its topic was deleted or recreated with fewer, or is asked for no more"


class NewPartitions:
    """The starts of one query, and where it left off in partitions that are gone. `now` is in seconds of the client's
    clock."""

    def __init__(
        self, options: SourceOptions, earliest: Callable[[Collection[TopicPartition]], dict[TopicPartition, Position]]
    ) -> None:
        """`earliest` asks leaders for the starts of logs."""
        self._options = options
        self._earliest = earliest
        self._keys_stay = options.changes is not None and options.changes.order is ChangeOrder.KAFKA
        # By partition and topic id, with the time of the last plan whose checkpoint had the partition.
        self._left_off: dict[tuple[TopicPartition, UUID | None], tuple[Position, float]] = {}
        self._told: dict[tuple[TopicPartition, UUID | None], Position] = {}  # by events, since they are gone

    def begin(
        self, start: SourceOffset, logs: Comparison, now: float
    ) -> tuple[dict[TopicPartition, Position], list[Loss]]:
        """Where to begin in partitions that `start` lacks, or whose position in it is lost; and all losses of starts.

        A partition that returns with its old topic id within `KEPT_S` continues where the query left off, a truncated
        log where it was truncated. New partitions begin at the start of their logs, unless newPartitions says
        otherwise; those of a recreated topic too, unless onTopicRecreated says otherwise. Raises PartitionsAddedError:
        a topic of changes in Kafka's order got partitions.
        """
        ends, ids = logs.latest.positions, logs.latest.topic_ids
        new = ends.keys() - start.positions.keys()
        returned = {
            partition: self._left_off[partition, topic_id][0]
            for partition in new
            if (topic_id := ids[partition.topic]) is not None and (partition, topic_id) in self._left_off
        }
        new -= returned.keys()
        old_ids = {
            **{topic: known.topic_id for topic, known in start.generations.items()},
            **{partition.topic: topic_id for partition, topic_id in self._left_off},
            **start.topic_ids,
        }
        renewed = {part for part in new if is_other_topic(old_ids.get(part.topic), ids[part.topic])}
        recreated = [loss for loss in logs.lost_starts.values() if loss.kind is LossKind.RECREATED]
        truncated = [loss for loss in logs.lost_starts.values() if loss.kind is LossKind.TRUNCATED]
        if self._keys_stay and not start.initial:
            self._refuse_added(new - renewed, start, ids, {loss.partition.topic for loss in recreated})
        at_latest = new - renewed if self._options.new_partitions_at_latest else set()
        at_earliest = (new - at_latest) | {loss.partition for loss in recreated}
        if self._options.on_topic_recreated == "latest":
            at_earliest -= renewed | {loss.partition for loss in recreated}
        # First, as it may restart the plan.
        earliest = self._earliest(at_earliest)
        starts = {
            **returned,
            **{partition: ends[partition] for partition in new},
            **{loss.partition: loss.continue_at for loss in [*truncated, *recreated] if loss.continue_at is not None},
            **earliest,
        }
        back = {partition.topic: partition for partition in renewed if partition.topic not in start.topic_ids}
        losses = [
            *(_recreated_while_away(part, old_ids[topic], ids[topic]) for topic, part in sorted(back.items())),
            *aged_out({partition: earliest[partition] for partition in new & earliest.keys()}),
            *truncated,
            *(self._once(loss, start) for loss in recreated),
            *aged_out({partition: begin for partition, begin in earliest.items() if partition not in new}),
            *self._gone(start, logs.latest, now),
        ]
        return starts, losses

    def _refuse_added(
        self,
        new: Collection[TopicPartition],
        start: SourceOffset,
        ids: Mapping[str, UUID | None],
        recreated: Collection[str],
    ) -> None:
        """Raise an error for new partitions of topics that were read before."""
        read = {(topic, ids.get(topic)) for topic in start.topic_ids if topic not in recreated}
        read |= {(partition.topic, topic_id) for partition, topic_id in self._left_off}
        counts = start.partition_counts()
        added = [
            part
            for part in new
            if (part.topic, ids[part.topic]) in read
            and (part, ids[part.topic]) not in self._left_off
            and part.partition >= counts.get(part.topic, 0)
        ]
        if added:
            raise PartitionsAddedError(
                f"{name_partitions(added)} were added to a topic whose changes are read, and keys may have moved to "
                "them, while Kafka orders the changes of a key only within a partition: set the option changeOrder to "
                "source, or, as apply_changes needs, take a new snapshot of the table and begin with it, a new "
                "checkpoint and an empty target"
            )

    def _once(self, loss: Loss, start: SourceOffset) -> Loss:
        """Without an event if the partition was gone before: that event has told of its records."""
        key = (loss.partition, start.topic_ids[loss.partition.topic])
        is_told = self._told.get(key) == start.positions[loss.partition]
        return replace(loss, from_offset=None) if is_told else loss

    def _gone(self, start: SourceOffset, latest: SourceOffset, now: float) -> list[Loss]:
        """Record where the query left off in partitions that are gone, until a checkpoint has them again. A loss for
        each, once for each position."""
        self._left_off = {
            (partition, topic_id): (position, left_at)
            for (partition, topic_id), (position, left_at) in self._left_off.items()
            if now < left_at + KEPT_S and (partition not in start.positions or _is_gone(partition, topic_id, latest))
        }
        gone = {
            (partition, start.topic_ids[partition.topic]): start.positions[partition]
            for partition in sorted(start.positions.keys() - latest.positions.keys())
        }
        new = {key: position for key, position in gone.items() if self._told.get(key) != position}
        self._left_off |= {key: (position, now) for key, position in gone.items()}
        self._told = {
            key: position for key, position in self._told.items() if key in self._left_off and _is_gone(*key, latest)
        } | new
        return [Loss(LossKind.GONE, partition, position.offset, None, GONE) for (partition, _), position in new.items()]


def _is_gone(partition: TopicPartition, topic_id: UUID | None, latest: SourceOffset) -> bool:
    return partition not in latest.positions or latest.topic_ids[partition.topic] != topic_id


def aged_out(starts: Positions) -> list[Loss]:
    """Records of new partitions that were gone before the query discovered the partition. They are lost, as in Spark's
    `KafkaMicroBatchStream`."""
    return [
        Loss(
            LossKind.AGED_OUT,
            partition,
            0,
            start.offset,
            f"{partition} is new and its log starts at offset {start.offset}: its first records aged out or were "
            "deleted before the query discovered it",
        )
        for partition, start in sorted(starts.items())
        if start.offset > 0
    ]


def _recreated_while_away(partition: TopicPartition, old_id: UUID | None, new_id: UUID | None) -> Loss:
    """Of a topic without partitions in the checkpoint. Events have told of its records."""
    return Loss(LossKind.RECREATED, partition, None, None, recreated_text(partition.topic, old_id, new_id))
