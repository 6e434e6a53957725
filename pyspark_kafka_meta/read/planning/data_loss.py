"""Records that a query cannot read: `Loss` values, how a checkpoint and logs show them, and what the options decide.

No broker announces that records are lost. A query notices it when a position of its checkpoint does not fit the log any
more. The offset alone does not show this: a log that lost records may have new records at the same offsets. So the
checkpoint has three things for each partition, and `compare` looks at all of them:

- The topic id. A topic that is deleted and recreated under its name has a new id (KIP-516). Brokers before Kafka 2.8
  report no ids.
- The leader epoch, which each election raises. Only a new leader truncates a log. If its epoch is newer,
  `LeaderEpochs.truncations` asks the leader where the checkpoint's epoch ends in its log (KIP-320). Offsets from there
  to the position are lost. If the log does not have this epoch, offsets from `Position.epoch_start` on are lost, if it
  is known; where compaction may have removed the epoch, there is only a warning.
- The offset: a log that ends before it has lost records, unless an open transaction hides them (`OffsetPlanner`).

| topic ids | leader epochs | end of the log | result |
|---|---|---|---|
| differ | any | any | `RECREATED` |
| one or both unknown | the log's is lower | any | `RECREATED`: in one log, epochs never decrease |
| one or both unknown | both are the same | before the position | `RECREATED`: no new leader could truncate it |
| else | the logs diverge | any | `TRUNCATED` to where they diverge |
| else | nothing diverges | before the position | `TRUNCATED` to this end |
| else | nothing diverges | at the position or after it | no loss |

A log that ends before the target, where the query is to end, is `ENDS_EARLY`. The other kinds of `Loss` come from
`NewPartitions` and `OffsetResolver`.

If failOnDataLoss is true, a loss fails the query. If not, it is a warning and an event (but see `Loss.from_offset`),
and the query continues. For recreated topics, onTopicRecreated decides instead if it is set. `LossReporter` reports
what planning finds, each loss once for a plan; a loss that fails the query fails it again in the next attempt.
`DataLossPolicy` decides, for tasks too. Follows `reportDataLoss` and the data-loss rules of Spark's
`KafkaMicroBatchStream`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import groupby
from operator import attrgetter
from uuid import UUID

from pyspark_kafka_meta.client_facts import RecordsLost
from pyspark_kafka_meta.errors import CorruptBatchError, DataLossError
from pyspark_kafka_meta.model import NO_EPOCH, Position, Positions, TopicPartition, is_other_topic
from pyspark_kafka_meta.options import ReadOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset

logger = logging.getLogger(__name__)

HOW_TO_FOLLOW = (
    "If it is a topic of another cluster, correct kafka.bootstrap.servers, or continue with its copy by `kafkameta "
    "move-checkpoint`, also if the first cluster is gone. To go on with the new topic, set the option onTopicRecreated "
    "to earliest or latest"
)
HOW_TO_GO_ON = "To go on without the lost records, set the option failOnDataLoss to false"
IF_RECREATED = ", and onTopicRecreated, which is fail, to earliest or latest: the topic may be recreated"
OR_RECREATED = ", or its topic was recreated: the brokers report no topic ids"
MAX_NAMED = 5
"""This many losses of one kind are in one error or warning. Each has an event, if no earlier event tells of it."""


class LossKind(Enum):
    AFTER_LOG_END = auto()
    """An option names an offset after the end of the log."""
    BEFORE_LOG_START = auto()
    """An option names an offset that has aged out."""
    ENDS_EARLY = auto()
    """The log ends before the offset at which the query is to end."""
    AGED_OUT = auto()
    """The first records of a new partition were gone before the query discovered the partition."""
    TRUNCATED = auto()
    """An unclean election removed records that were planned or read."""
    RECREATED = auto()
    """The topic was deleted and recreated under its name."""
    GONE = auto()
    """The partition is gone. `LossReporter.report_missing` has reported it with others: only the event is due."""


LOST_STARTS = (LossKind.TRUNCATED, LossKind.RECREATED)
"""After these losses, offsets that were read come again, with other records."""
_REMARKS = {
    LossKind.AFTER_LOG_END: ": the records between are gone, or the topic was recreated",
    LossKind.BEFORE_LOG_START: ": the records before it are gone",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """Lost records of one partition.

    Attributes:
        from_offset, until_offset: the lost offsets, `until_offset` exclusive and None if unknown. `from_offset` is None
            if no event is due: an earlier event names these records, or the query would not have read them.
        cause: what happened. Adjacent losses of a recreated topic have the same cause.
        detail: what happened to this partition of the topic.
        continue_at: where reading can continue instead; None if the loss does not move the start of a batch.
    """

    kind: LossKind
    partition: TopicPartition
    from_offset: int | None
    until_offset: int | None
    cause: str
    detail: str = ""
    continue_at: Position | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A checkpoint beside the logs as their leaders report them.

    Attributes:
        latest: the ends of the logs.
        truncations: where logs diverge from what was read of them.
        lost_starts: positions of the checkpoint that cannot be read, in the order of partitions.
        lost_ends: targets that the logs do not reach, in the same order.
    """

    latest: SourceOffset
    truncations: Positions = field(default_factory=dict)
    lost_starts: Mapping[TopicPartition, Loss] = field(default_factory=dict)
    lost_ends: Mapping[TopicPartition, Loss] = field(default_factory=dict)

    @property
    def is_changed(self) -> bool:
        """Whether a topic was recreated, or a log truncated by its leader epochs: the positions are of another log."""
        return any(
            loss.kind is LossKind.RECREATED or partition in self.truncations
            for partition, loss in self.lost_starts.items()
        )

    def lost_targets(self) -> list[Loss]:
        """`lost_ends` without partitions whose start is lost too: this loss says more."""
        return [loss for partition, loss in self.lost_ends.items() if partition not in self.lost_starts]


def compare(start: SourceOffset, target: Positions, latest: SourceOffset, truncations: Positions) -> Comparison:
    """Compare the partitions of `latest` with those of a checkpoint and of a target, where the query ends.

    One pass over all partitions finds suspects, which are few.
    """
    ends, ids = latest.positions, latest.topic_ids
    recreated = {topic for topic, topic_id in ids.items() if is_other_topic(start.topic_ids.get(topic), topic_id)}
    suspects = [
        partition
        for partition, (offset, epoch, *_) in start.positions.items()
        if (end := ends.get(partition)) is not None
        and (end[0] < offset or end[1] < epoch or partition in truncations or partition[0] in recreated)
    ]
    losses = (_lost_start(partition, start, latest, truncations) for partition in sorted(suspects))
    early = sorted(part for part, bound in target.items() if part in ends and ends[part].offset < bound.offset)
    return Comparison(
        latest,
        truncations,
        {loss.partition: loss for loss in losses if loss is not None},
        {part: _lost_end(part, target[part].offset, ends[part].offset, ids[part.topic]) for part in early},
    )


def _lost_start(
    partition: TopicPartition, start: SourceOffset, latest: SourceOffset, truncations: Positions
) -> Loss | None:
    old, new = start.positions[partition], latest.positions[partition]
    old_id, new_id = start.topic_ids[partition.topic], latest.topic_ids[partition.topic]
    if _is_recreated(old, new, old_id, new_id):
        detail = f"{partition} was read up to offset {old.offset}, and its new log ends at {new.offset}"
        cause = recreated_text(partition.topic, old_id, new_id)
        return Loss(LossKind.RECREATED, partition, old.offset, None, cause, detail, new)
    if partition not in truncations and new.offset >= old.offset:
        return None
    # Its end, if no leader epoch shows where the log diverges.
    continue_at = truncations.get(partition, new)
    cause = (
        f"the log of {partition} was truncated to offset {continue_at.offset} (leader epoch {old.leader_epoch}, now "
        f"{new.leader_epoch}){OR_RECREATED if new_id is None else ''}: records planned or read at offsets "
        f"{continue_at.offset} to {old.offset - 1} are gone, and reading can continue only at offset "
        f"{continue_at.offset}"
    )
    return Loss(LossKind.TRUNCATED, partition, continue_at.offset, old.offset, cause, continue_at=continue_at)


def _is_recreated(old: Position, new: Position, old_id: UUID | None, new_id: UUID | None) -> bool:
    """Whether topic ids show it or, if an id is unknown, leader epochs."""
    if None not in (old_id, new_id) or NO_EPOCH in (old.leader_epoch, new.leader_epoch):
        return is_other_topic(old_id, new_id)
    is_older = new.leader_epoch < old.leader_epoch
    return is_older or (new.leader_epoch == old.leader_epoch and new.offset < old.offset)


def recreated_text(topic: str, old_id: UUID | None, new_id: UUID | None) -> str:
    evidence = f"topic id {old_id}, now {new_id}"
    if old_id is None or new_id is None:
        evidence = "leader epochs show it; the brokers report no topic ids"
    return f"topic {topic} was deleted and recreated ({evidence})"


def _lost_end(partition: TopicPartition, target: int, end: int, topic_id: UUID | None) -> Loss:
    cause = (
        f"the log of {partition} ends at offset {end}, before offset {target} at which the query is to end: it was "
        f"truncated, or its topic recreated (topic id now {topic_id})"
    )
    return Loss(LossKind.ENDS_EARLY, partition, end, target, cause)


def describe(losses: Sequence[Loss]) -> str:
    """The first losses as one text, with a common cause once, and the number of the others."""
    texts = []
    for cause, members in groupby(losses[:MAX_NAMED], attrgetter("cause")):
        details = "; ".join(loss.detail for loss in members if loss.detail)
        texts.append(f"{cause}: {details}" if details else cause)
    others = len(losses) - MAX_NAMED
    return "; ".join([*texts, f"and {others} more"] if others > 0 else texts)


class DataLossPolicy:
    """Each method raises DataLossError or CorruptBatchError, or logs a warning: then the caller skips the records."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def report_loss(self, text: str, may_be_recreated: bool = False) -> None:
        """By failOnDataLoss. `may_be_recreated`: the loss may be the first sign of a recreated topic."""
        if self._options.fail_on_data_loss:
            is_refused = may_be_recreated and self._options.on_topic_recreated == "fail"
            raise DataLossError(f"{text}. {HOW_TO_GO_ON}{IF_RECREATED if is_refused else ''}")
        logger.warning("%s; continuing because failOnDataLoss is false", text)

    def report_recreated(self, text: str) -> None:
        """By onTopicRecreated, or failOnDataLoss if onTopicRecreated is not set."""
        policy = self._options.on_topic_recreated
        if policy == "fail" or (policy is None and self._options.fail_on_data_loss):
            raise DataLossError(f"{text}. {HOW_TO_FOLLOW}")
        option = "failOnDataLoss is false" if policy is None else f"onTopicRecreated is {policy}"
        logger.warning("%s; continuing because %s", text, option)

    def report_recreated_while_read(self, text: str) -> None:
        """For the rest of a task's range: only a later plan can follow the new topic, so that without onTopicRecreated,
        which batch queries do not have, it is a loss."""
        if self._options.on_topic_recreated is None:
            self.report_loss(text)
        else:
            self.report_recreated(text)

    def report_corrupt(
        self, partition: TopicPartition, offset: int, error: CorruptBatchError, loss: str | None
    ) -> None:
        """By onCorruptBatch. `loss` describes the offsets to skip; None if the end of the batch is unknown."""
        if self._options.skip_corrupt_batches and loss is not None:
            logger.warning("%s; continuing because onCorruptBatch is skip", loss)
            return
        remedy = "start behind it: its end is not known" if loss is None else "set the option onCorruptBatch to skip"
        raise CorruptBatchError(
            f"{partition} at offset {offset}: {error}, though fetched twice. To go on without it, {remedy}",
            partition.topic,
            partition.partition,
            offset,
            error.until_offset,
        )


class LossReporter:
    """Reports the losses that the planning of one query finds, each once, though a plan is made again."""

    def __init__(self, options: ReadOptions, report: Callable[[RecordsLost], None]) -> None:
        """`report` publishes an event."""
        self._policy = DataLossPolicy(options)
        self._report = report
        self._reported: set[Loss] = set()
        self._start: SourceOffset | None = None  # of the current plan
        self._missing = ""  # as last reported

    def begin_plan(self, start: SourceOffset) -> None:
        """Forget lost starts, unless a plan from the same `start` is made again: a topic without ids that is recreated
        each night may be lost in the same way each night. Forget partitions that left the checkpoint."""
        if start != self._start:
            left = set() if self._start is None else self._start.positions.keys() - start.positions.keys()
            self._start = start
            self._reported = {
                loss for loss in self._reported if loss.kind not in LOST_STARTS and loss.partition not in left
            }

    def report(self, losses: Iterable[Loss]) -> None:
        """Fail or log a warning, as the options say, for one kind of losses after the other. Then record all events: a
        plan that fails skips nothing. Raises DataLossError: a loss is not allowed."""
        new = [loss for loss in losses if loss not in self._reported]
        for kind, group in groupby(new, attrgetter("kind")):
            text = describe(list(group)) + _REMARKS.get(kind, "")
            if kind is LossKind.RECREATED:
                self._policy.report_recreated(text)
            elif kind is not LossKind.GONE:
                self._policy.report_loss(text)
        self._reported.update(loss for loss in new if loss.kind is not LossKind.GONE)  # found once by `NewPartitions`
        for loss in new:
            if loss.from_offset is not None:
                self._report(RecordsLost(loss.partition, loss.from_offset, loss.until_offset, describe([loss])))

    def report_missing(self, text: str, may_be_recreated: bool) -> None:
        """Report partitions that cannot be found, or none if `text` is empty. They are reported again once the text
        changes. `report` records the events of those that the checkpoint has (`LossKind.GONE`). Raises DataLossError: a
        loss is not allowed."""
        if text not in ("", self._missing):
            self._policy.report_loss(text, may_be_recreated)
        self._missing = text
