"""`TaskCommit`: what a writing task tells the driver, and how the driver logs it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafka_meta.model import OpenTransaction, WrittenOffsets
from pyspark_kafka_meta.transactions.decision import BatchId

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """All rows of a task are acknowledged, at these offsets.

    Attributes:
        transaction: in which they wait for the driver's commit; None without `kafka.transactional.id` or rows.
        batch: of an exactly-once write.
    """

    written: tuple[WrittenOffsets, ...]
    transaction: OpenTransaction | None = None
    batch: BatchId | None = None

    @property
    def records(self) -> int:
        return sum(written.records for written in self.written)


def log_commit(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    """`what` is a batch or a micro-batch with its number."""
    commits = [message for message in messages if isinstance(message, TaskCommit)]
    partitions = {(written.topic, written.partition) for commit in commits for written in commit.written}
    records = sum(commit.records for commit in commits)
    logger.info("%s: %d tasks wrote %d records to %d partitions", what, len(commits), records, len(partitions))


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
