"""What `kafkameta demo` and `page` show: a cluster of three brokers, and what caches know of topic t."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark_kafka_meta.events.event import Event, Origin, Role
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.tables.caches_from_events import KnownCaches
from pyspark_kafka_meta.tables.rows import BrokerRow, LagRow, PartitionRow, TransactionPartition, TransactionRow
from pyspark_kafka_meta.tools.cluster_state import ClusterState
from tests.unit.written_events import learning, made, moving

NOW_MS = 1_800_000_000_000
FIRST, SECOND = "a" * 32, "b" * 32
EXECUTOR_2 = {"origin": Origin(role=Role.READER, executor_id="2", host="other", pid=9)}
WRITER = {"origin": Origin(role=Role.WRITER, executor_id="1", host="worker", pid=7)}
"""The worker of the default origin, in a task that writes."""
FIRST_IS_STALE = (
    made(FIRST, 1, NOW_MS - 9_000, **learning("t", 1, 2, epoch=4)),
    made(SECOND, 1, NOW_MS - 9_000, **learning("t", 1, 2, epoch=4), **EXECUTOR_2),
    made(SECOND, 2, NOW_MS - 8_000, **moving("t", 1, (2, 3), (4, 5)), **EXECUTOR_2),
)


def broker_row(node_id: int, answered_by: str = "b1:9") -> BrokerRow:
    about: dict[str, Any] = {"host": f"b{node_id}", "port": 9, "cluster_id": "c", "answered_by": answered_by}
    return BrokerRow(node_id=node_id, rack=None, is_controller=False, **about)


BROKERS = [broker_row(node_id) for node_id in (1, 2, 3)]


def lag_row(records: int | None, seconds: float | None, partition: int = 0, topic: str = "t") -> LagRow:
    """Of a query whose next offset is 5."""
    behind: dict[str, Any] = {"records_behind": records, "seconds_behind": seconds}
    end_offset = None if records is None else 5 + records
    return LagRow(topic=topic, partition=partition, next_offset=5, end_offset=end_offset, **behind)


def transaction_row(transactional_id: str = "id", **fields: Any) -> TransactionRow:
    """Open for five seconds, in t-0."""
    known: dict[str, Any] = {"sink": "orders", "state": "Ongoing", "started": None, "open_ms": 5_200}
    known |= {"timeout_ms": 900_000, "producer_id": 7, "producer_epoch": 3}
    known |= {"transactional_id": transactional_id, "partitions": (TransactionPartition("t", 0),)}
    return TransactionRow(**{**known, **fields})


def state(
    *events: Event, leaders: Sequence[tuple[int, int]] = ((1, 4), (3, 5)), read: int = 0, now_ms: int = NOW_MS
) -> ClusterState:
    """Partitions 0, 1 ... of t have these leaders and epochs; of each `read` of 10 records were read."""
    rows_of_events = [event.to_dict() for event in events]
    rows = [
        PartitionRow(topic="t", partition=number, leader_id=leader, leader_epoch=epoch, end_offset=10)
        for number, (leader, epoch) in enumerate(leaders)
    ]
    positions = {TopicPartition("t", number): Position(read) for number in range(len(rows))}
    in_order = sorted(rows_of_events, key=lambda event: (event["cache_id"], event["sequence"]))
    caches = KnownCaches.of(in_order).living()
    return ClusterState(now_ms, BROKERS, rows, None, rows_of_events, caches, positions, {}, 480.0)
