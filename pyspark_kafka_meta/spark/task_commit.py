"""`TaskCommit`: what a writing task tells the driver, and how the driver logs it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafka_meta.model import OpenTransaction
from pyspark_kafka_meta.write.exactly_once.decision import BatchId

if TYPE_CHECKING:
    from pyspark_kafka_meta.write.partition_queue import TaskOutput

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """All rows of a task are acknowledged. Spark's driver holds the messages of all tasks: offsets are only in the
    transaction, which needs them.

    Attributes:
        records: number of rows.
        partitions: with rows, by topic: bit n of the number stands for partition n.
        transaction: in which the rows wait for the driver's commit; None without `kafka.transactional.id` or rows.
        batch: of an exactly-once write.
        skipped_rows: that the task did not write, because its batch was decided before.
    """

    records: int
    partitions: Mapping[str, int]
    transaction: OpenTransaction | None = None
    batch: BatchId | None = None
    skipped_rows: int = 0

    @classmethod
    def of(
        cls, written: TaskOutput, transaction: OpenTransaction | None = None, batch: BatchId | None = None
    ) -> TaskCommit:
        partitions: defaultdict[str, int] = defaultdict(int)
        for topic, partition in written:
            partitions[topic] |= 1 << partition
        records = sum(each.records for ranges in written.values() for each in ranges)
        return cls(records, dict(partitions), transaction, batch)


def log_commit(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    """`what` is a batch or a micro-batch with its number."""
    commits = [message for message in messages if isinstance(message, TaskCommit)]
    partitions: defaultdict[str, int] = defaultdict(int)
    for commit in commits:
        for topic, bits in commit.partitions.items():
            partitions[topic] |= bits
    records = sum(commit.records for commit in commits)
    count = sum(bits.bit_count() for bits in partitions.values())
    logger.info("%s: %d tasks wrote %d records to %d partitions", what, len(commits), records, count)


def log_abort(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    """Warn of records that stay. A query that is stopped ends so too, mostly without any."""
    records = sum(message.records for message in messages if isinstance(message, TaskCommit))
    if records:
        logger.warning(
            "%s failed after some of its tasks had written %d records, which stay in their topics: a repetition writes "
            "them again",
            what,
            records,
        )
