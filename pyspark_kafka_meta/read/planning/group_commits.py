"""`GroupCommits`: sets the offsets of a consumer group to where a stream is, for tools (commitOffsetsToGroup)."""

from __future__ import annotations

import logging
import math

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import Positions, TopicPartition, name_first

logger = logging.getLogger(__name__)

COMMIT_BACKOFF_S = 30.0
COMMIT_AGAIN_S = 600.0
"""Offsets of an idle query are committed again after this time: brokers forget a group without commits after
offsets.retention.minutes, by default seven days."""


class GroupCommits:
    """The commits of one query."""

    def __init__(self, client: KafkaClient, group: str) -> None:
        self._client = client
        self._group = group
        self._committed: dict[TopicPartition, int] = {}
        self._committed_at = self._not_before = -math.inf
        self._missing: frozenset[str] = frozenset()  # topics at the last commit

    def commit(self, finished: Positions, *, is_last: bool = False) -> None:
        """Commit the end of the finished micro-batches. A failed commit neither fails the query nor delays each
        micro-batch: it is retried after `COMMIT_BACKOFF_S`, or at once if no micro-batch follows."""
        offsets = {partition: position.offset for partition, position in finished.items()}
        now = self._client.clock()
        is_known = offsets == self._committed and now < self._committed_at + COMMIT_AGAIN_S
        if not offsets or is_known or (now < self._not_before and not is_last):
            return
        try:
            missing = self._client.groups.commit(self._group, offsets)
        except KafkaMetaError as error:
            self._not_before = self._client.clock() + COMMIT_BACKOFF_S
            logger.warning("%s; retried after %.0f s", error, COMMIT_BACKOFF_S)
            return
        self._committed, self._committed_at = offsets, now
        if new := missing - self._missing:  # such as deleted topics that the query has read
            names = name_first(sorted(new))
            logger.warning("no offsets were committed to consumer group %s for missing topics: %s", self._group, names)
        self._missing = missing
