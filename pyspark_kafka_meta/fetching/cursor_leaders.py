"""`Leaders`: the leader of a cursor's partition, and what is asked where there is none, or another one.

Follows KIP-951: a leader that a broker names along with its error is taken; without one, newer metadata is waited for.
"""

from __future__ import annotations

from pyspark_kafka_meta.fetching.instructions import Fail, Refresh
from pyspark_kafka_meta.fetching.partition_cursor import PartitionCursor
from pyspark_kafka_meta.kafka_errors import LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION
from pyspark_kafka_meta.metadata.cache import MetadataCache
from pyspark_kafka_meta.model import LeaderAndEpoch, LeaderHint, RefreshReason


class Leaders:
    """The leaders of partitions, as one cache knows them."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def leader(self, cursor: PartitionCursor) -> LeaderAndEpoch | None:
        """The broker to fetch from. If None, a refresh of the cache is requested, for the reason that it gave.

        Raises:
            BrokerError: the partition may not be read.
        """
        partition, snapshot = cursor.range.partition, self._cache.snapshot
        leader = self._cache.leader(partition)
        if leader is not None:
            return leader
        is_known = partition in snapshot.partitions(partition.topic)
        code = LEADER_NOT_AVAILABLE if is_known else UNKNOWN_TOPIC_OR_PARTITION
        instruction = cursor.on_no_leader(snapshot.topic_errors.get(partition.topic) or code)
        if isinstance(instruction, Fail):
            raise instruction.error
        reason = instruction.reason if isinstance(instruction, Refresh) else RefreshReason.NO_LEADER
        self._ask_again(cursor, Refresh(reason, cursor.trouble), snapshot.generation)
        return None

    def refresh(
        self, cursor: PartitionCursor, wish: Refresh, generation: int, node_id: int, hint: LeaderHint | None
    ) -> None:
        """Take the leader that this broker named; otherwise the cursor waits for newer metadata than this."""
        hinted = hint is not None and self._cache.take_hint(
            cursor.range.partition, hint, generation, wish.error_code, node_id
        )
        if not hinted:
            self._ask_again(cursor, wish, generation, node_id)

    def _ask_again(self, cursor: PartitionCursor, wish: Refresh, generation: int, node_id: int | None = None) -> None:
        cursor.newer_than = generation
        self._cache.request_update(
            wish.reason, generation, partition=cursor.range.partition, error_code=wish.error_code, node_id=node_id
        )
