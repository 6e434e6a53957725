"""The options of exactly-once writes: `kafka.transactional.id` turns them on.

`txnAppId` and `txnVersion` have the names and the meaning of Delta Lake's options.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark_kafka_meta.options.definitions import choice, row, table_of, whole
from pyspark_kafka_meta.options.parsers import parse_id
from pyspark_kafka_meta.validators import INT64_MAX, topic_name

DECISIONS_TOPIC = "kafkameta-decisions"


def _parse_sink_id(text: str) -> str:
    sink_id = parse_id(text)
    if re.search(r"/\d+/\d+$", sink_id):
        raise ValueError
    return sink_id


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    """How the rows of a batch become visible all at once, and once only. Without `transactional_id` they are written at
    least once, and the other options are not set.

    Attributes:
        transactional_id: of the sink; the ids of its tasks begin with it.
        timeout_ms: None for the longest that the brokers allow.
    """

    transactional_id: str | None = row(
        "kafka.transactional.id",
        None,
        _parse_sink_id,
        "Option 'kafka.transactional.id' must be 1 to 255 printable characters, and not end with two numbers after "
        "slashes (/0/0), as the ids of tasks do",
        "Writes exactly once, for readers with isolation level read_committed. A name of the sink that stays the same "
        "across restarts, and that no other query uses.",
    )
    timeout_ms: int | None = whole(
        "kafka.transaction.timeout.ms",
        None,
        "Maximum time from a task's first record to the commit of its batch. Default: transaction.max.timeout.ms of "
        "the brokers, which is the maximum.",
        low=1,
    )
    decisions_topic: str = row(
        "decisionsTopic",
        DECISIONS_TOPIC,
        topic_name,
        "Option 'decisionsTopic' must be the name of one topic, got '{value}'",
        "Compacted topic in which the drivers of sinks record which batches are written. Created if it does not exist. "
        f"subscribePattern matches neither this topic nor names with {DECISIONS_TOPIC} in them.",
    )
    txn_app_id: str | None = row(
        "txnAppId",
        None,
        parse_id,
        "Option 'txnAppId' must be 1 to 255 printable characters",
        "Name of a series of batch writes, each of which is written once, however often it is repeated.",
    )
    txn_version: int | None = whole(
        "txnVersion",
        None,
        "Number of a batch write within its series; a number up to the last one is not written again.",
        high=INT64_MAX,
    )
    skip_changed_batches: bool = choice(
        "onChangedBatch",
        {"fail": False, "skip": True},
        "When a batch that is written already is repeated with another number of rows: fail, or skip the rows of the "
        "repetition with a warning.",
    )


TRANSACTION_OPTIONS = table_of(TransactionOptions)
