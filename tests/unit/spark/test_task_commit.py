"""What a writing task tells the driver, its size, and what the driver logs of it."""

from __future__ import annotations

import logging
import pickle

import pytest

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.spark.batch_writer import TaskCommit, log_abort, log_commit
from pyspark_kafka_meta.write.partition_queue import AcknowledgedRange, add_range


def scattered(batches: int) -> list[AcknowledgedRange]:
    """The ranges of batches with records of other producers between them."""
    ranges: list[AcknowledgedRange] = []
    for number in range(batches):
        add_range(ranges, 10 * number, 5)
    return ranges


def test_commit_message_does_not_grow_with_the_number_of_batches() -> None:
    commit = TaskCommit.of({TopicPartition("t", 0): scattered(10_000)})
    assert commit.records == 50_000
    assert len(pickle.dumps(commit)) < 500


def test_commit_message_of_a_thousand_partitions_is_small() -> None:
    commit = TaskCommit.of({TopicPartition("t", number): [AcknowledgedRange(0, 5, 5)] for number in range(1_000)})
    assert len(pickle.dumps(commit)) < 1_000


def test_log_line_counts_records_and_distinct_partitions_of_all_tasks(caplog: pytest.LogCaptureFixture) -> None:
    one = [AcknowledgedRange(5, 8, 3)]
    first = TaskCommit.of({TopicPartition("t", 0): one, TopicPartition("t", 7): one})
    second = TaskCommit.of({TopicPartition("t", 7): one, TopicPartition("u", 0): one})
    with caplog.at_level(logging.INFO):
        log_commit([first, None, second, TaskCommit.of({})], "micro-batch 4")
    assert caplog.messages == ["micro-batch 4: 3 tasks wrote 12 records to 3 partitions"]


def test_records_of_a_failed_batch_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    log_abort([TaskCommit.of({TopicPartition("t", 0): scattered(3)}), None], "a batch")
    assert "its tasks had written 15 records" in caplog.text
