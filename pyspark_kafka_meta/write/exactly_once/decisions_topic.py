"""`DecisionsTopic`: the decisions of one sink, in a compacted topic that all sinks of a cluster can share.

A driver writes a decision (`decision.py`) in a transaction of the sink's own id, so that a
fenced driver cannot write any more. Other sinks' open transactions do not matter: records are read up to the high
watermark, and count if the marker after them is a commit. A note that a decision is settled is outside of transactions:
it may be in the log before the marker of the decision. Of each series the last note counts alone, because compaction
leaves no other.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TypeAlias
from uuid import UUID

from pyspark_kafka_meta.errors import BrokerError, DataLossError, KafkaMetaError
from pyspark_kafka_meta.kafka.client.cluster_admin import ClusterAdmin
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.kafka.records.batches import is_abort_marker
from pyspark_kafka_meta.kafka.records.decoder import FetchedRecords, decode
from pyspark_kafka_meta.model import NO_PRODUCER, RefreshReason, TopicPartition, is_other_topic
from pyspark_kafka_meta.write.exactly_once.decision import (
    MESSAGE_BYTES,
    Decision,
    Decisions,
    RecordKey,
    note_of,
    parse_decision,
)
from pyspark_kafka_meta.write.exactly_once.transaction_reader import LogReader
from pyspark_kafka_meta.write.topic_metadata import wait_for_new_topic

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Of a decision, compressed."""
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "delete.retention.ms": str(24 * 3_600_000),  # Kafka's default, which a cluster may have changed
    "max.message.bytes": str(MAX_MESSAGE_BYTES),
    "segment.bytes": str(16 * 1024 * 1024),  # the active segment, which is not compacted, is read at each start
    "unclean.leader.election.enable": "false",
}

KeyedDecisions: TypeAlias = dict[tuple[str, str], Decision]
"""Decisions by the sink's transactional id and series."""
ValuesByKey: TypeAlias = dict[RecordKey, bytes]

_AGAIN = "a batch that was under way is written again, also its rows that are visible"
_ANOTHER_TOPIC = f"set decisionsTopic to another topic: of a sink that has written before, {_AGAIN}"

MIN_DELETE_RETENTION_MS = 3_600_000
"""Compaction keeps the marker of an aborted decision for as long. A process that has read the decision alone may stand
still."""
REPLICAS = 3
"""As of Kafka's own topic of transactions. Fewer in a smaller cluster."""


class DecisionsTopic:
    """Reads the decisions of one sink, or of all. Keeps what it has read: later reads continue there.

    Attributes:
        partition: with the decisions of all sinks; the topic has no other.
        is_ensured: whether `ensure` has found or created the topic, and it has not got lost since.
    """

    def __init__(self, client: KafkaClient, topic: str, transactional_id: str | None) -> None:
        """`transactional_id` is of the sink; None for all sinks."""
        self.partition = TopicPartition(topic, 0)
        self._client = client
        self._transactional_id = transactional_id
        self._log = LogReader(client)
        self._forget()

    def _forget(self) -> None:
        """The next read starts at the start of the log, of a topic that may not exist."""
        self.is_ensured = False
        self._next_offset: int | None = None
        self._topic_id: UUID | None = None  # of the topic that was read
        self._decisions: KeyedDecisions = {}
        self._notes: dict[tuple[str, str], bytes] = {}  # the last one of each sink and series
        # Epoch and records of open transactions, by producer id.
        self._uncommitted: dict[int, tuple[int, ValuesByKey]] = {}

    def ensure(self, admin: ClusterAdmin) -> None:
        """Create the topic unless it exists. Warns if decisions may get lost.

        Raises:
            BrokerError: this user may not create it.
            ConnectError, UnknownTopicError: no broker responds, or none knows the new topic in time.
            KafkaMetaError: it has several partitions, or a configuration that loses decisions.
        """
        topic, cache, deadline = self.partition.topic, self._client.cache, self._client.api_deadline()
        cache.track([topic])
        cache.refresh(RefreshReason.NEW_TOPIC, deadline)
        snapshot = cache.snapshot  # which has the topic until the end, even if somebody deletes it
        brokers = len(snapshot.brokers)
        if partitions := snapshot.partitions(topic):
            require_one_partition(partitions)
            config = admin.topic_config(topic)
            require_usable(topic, config)
            if not config:
                logger.warning(
                    "this user may not describe the configuration of topic %s, or no broker responded: see to it that "
                    "it has cleanup.policy=compact, or decisions are lost",
                    topic,
                )
            warn_of_short_retention(topic, config)
            warn_of_few_replicas(topic, len(snapshot.topics[topic].partitions[0].replicas), brokers)
            self.is_ensured = True
            return
        replicas = min(REPLICAS, brokers)
        try:
            admin.create_topic(topic, 1, replicas, {**TOPIC_CONFIG, "min.insync.replicas": str(max(replicas - 1, 1))})
        except BrokerError as error:
            advice = "Create it with one partition and cleanup.policy=compact, or allow this user CREATE on it"
            raise BrokerError(f"{error}. {advice}", error.code) from None
        wait_for_new_topic(self._client, topic, deadline)
        warn_of_few_replicas(topic, replicas, REPLICAS)  # other brokers may be down
        self.is_ensured = True

    def read(self) -> Decisions:
        """The last committed decision of each series of the one sink.

        Raises:
            DataLossError: the topic was recreated, or its log truncated. The next read starts at the start of the log.
            KafkaMetaError: the topic cannot be read.
        """
        self.read_all()
        return self.known()

    def known(self) -> Decisions:
        """As `read` has returned them last, or `is_unchanged_until` has found them."""
        return {series: decision for (_, series), decision in self._noted().items()}

    def _noted(self) -> KeyedDecisions:
        """The decisions, settled if a note says so."""
        return {
            of: decision.settled() if self._notes.get(of) == note_of(decision) else decision
            for of, decision in self._decisions.items()
        }

    @property
    def is_ending(self) -> bool:
        """Whether the last read came before a marker: of a decision, as a coordinator acknowledges EndTxn earlier; or
        of a transaction that a driver left open."""
        return any(records for _, records in self._uncommitted.values())

    @property
    def is_gone(self) -> bool:
        """Whether brokers had the topic, and do not know it any more."""
        return self.is_ensured and not self._client.cache.snapshot.partitions(self.partition.topic)

    def read_all(self) -> Mapping[tuple[str, str], Decision]:
        """The last committed decision of each sink and series. Raises as `read`."""
        self._read_until(self._log.end_offset(self.partition))
        return self._noted()

    def is_unchanged_until(self, offset: int, own: Decisions) -> bool:
        """Whether only `own` decisions were committed between the last read and this offset.

        A broker that does not know yet that it has lost the partition reports an end of the log that is too low. An
        acknowledged offset is right: if it is lower than those that were read, the log is another. Raises as `read`.
        """
        assert self._transactional_id is not None
        assert self._next_offset is not None
        if offset < self._next_offset:
            self._client.cache.refresh(RefreshReason.ON_DEMAND, self._client.api_deadline())
            self._require_same_topic()
            raise self.lost(f"{self.partition} was read up to offset {self._next_offset} and ends at {offset} now")
        expected = self._noted() | {(self._transactional_id, series): own[series] for series in own}
        self._read_until(offset)
        return self._noted() == expected

    def _read_until(self, until_offset: int) -> None:
        if self._next_offset is None:
            self._next_offset = self._log.start_offset(self.partition)
            self._topic_id = self._log.topic_id(self.partition)
        self._require_same_topic()
        try:
            for fetched in self._log.batches(self.partition, self._next_offset, until_offset, self._topic_id):
                self._add(fetched)
        except DataLossError as error:
            raise self.lost(str(error)) from None
        self._next_offset = max(self._next_offset, until_offset)

    def _add(self, fetched: FetchedRecords) -> None:
        (header,) = fetched.headers
        if not header.is_control:
            records = self._records(fetched)
            if header.producer_id == NO_PRODUCER.producer_id:
                notes = {(key.transactional_id, key.series): records[key] for key in records if key.note}
                self._notes |= notes
            else:
                self._uncommitted[header.producer_id] = header.producer_epoch, records
        elif header.record_count:
            epoch, records = self._uncommitted.get(header.producer_id, (header.producer_epoch, {}))
            # The end of a transaction raises the epoch by one at most. Else the marker of these records is gone: they
            # were aborted, since compaction keeps the marker of records that it keeps.
            if header.producer_epoch <= epoch + 1 and not is_abort_marker(header, fetched.records):
                self._take(records)
            self._uncommitted.pop(header.producer_id, None)  # not before: a decision that cannot be read stays so
        self._next_offset = header.last_offset + 1  # a read that fails later goes on here

    def _require_same_topic(self) -> None:
        if is_other_topic(self._topic_id, self._client.cache.snapshot.topic_id(self.partition.topic)):
            now = self._log.topic_id(self.partition)
            if is_other_topic(self._topic_id, now):
                raise self.lost(f"the topic was deleted and recreated (topic id {self._topic_id}, now {now})")

    def lost(self, cause: str) -> DataLossError:
        """The error after which a restart creates the topic unless it exists, and reads what is there."""
        self._forget()
        return DataLossError(
            f"decisions are gone from topic {self.partition.topic}: {cause}. Start the query again: a batch that it "
            "repeats is written again, also its rows that are visible"
        )

    def _records(self, fetched: FetchedRecords) -> ValuesByKey:
        """The records of a batch that are of this sink."""
        records = {}
        for rows in decode([fetched], ["key", "value"]):
            for row in rows.to_pylist():
                key = RecordKey.parse(row["key"])
                if key is not None and self._transactional_id in (None, key.transactional_id):
                    records[key] = row["value"] or b""
        return records

    def _take(self, records: ValuesByKey) -> None:
        """Take the decisions of a committed transaction."""
        for key, value in ((key, value) for key, value in records.items() if key.note is None):
            try:
                self._decisions[key.transactional_id, key.series] = parse_decision(key, value)
            except (TypeError, ValueError, KeyError) as error:
                raise KafkaMetaError(
                    f"the last decision of {key.transactional_id}, before offset {self._next_offset} of "
                    f"{self.partition}, cannot be read ({error}): only sinks may write to this topic: use a new "
                    f"kafka.transactional.id, with which {_AGAIN}"
                ) from None


def require_one_partition(partitions: Collection[TopicPartition]) -> None:
    """Raises KafkaMetaError if these partitions of the decisions topic are not one."""
    if len(partitions) != 1:
        topic = next(iter(partitions)).topic
        raise KafkaMetaError(
            f"topic {topic} has {len(partitions)} partitions, and decisions need one: {_ANOTHER_TOPIC}"
        )


def require_usable(topic: str, config: Mapping[str, str]) -> None:
    """Raises KafkaMetaError if this configuration of the decisions topic loses or refuses decisions."""
    for name in ("cleanup.policy", "unclean.leader.election.enable"):
        if config.get(name, TOPIC_CONFIG[name]) != TOPIC_CONFIG[name]:
            raise KafkaMetaError(
                f"topic {topic} has {name}={config[name]}, which loses decisions: set it to {TOPIC_CONFIG[name]}, or "
                + _ANOTHER_TOPIC
            )
    if int(config.get("max.message.bytes", MESSAGE_BYTES)) < MESSAGE_BYTES:
        raise KafkaMetaError(
            f"topic {topic} has max.message.bytes={config['max.message.bytes']}, which refuses large decisions: raise "
            f"it to {MESSAGE_BYTES}, or {_ANOTHER_TOPIC}"
        )


def warn_of_short_retention(topic: str, config: Mapping[str, str]) -> None:
    if int(config.get("delete.retention.ms", MIN_DELETE_RETENTION_MS)) < MIN_DELETE_RETENTION_MS:
        logger.warning(
            "topic %s has delete.retention.ms=%s: raise it to %d or more, or a driver that stands still for longer may "
            "take an aborted decision for a committed one",
            topic,
            config["delete.retention.ms"],
            MIN_DELETE_RETENTION_MS,
        )


def warn_of_few_replicas(topic: str, replicas: int, brokers: int) -> None:
    if replicas < min(REPLICAS, brokers):
        logger.warning(
            "topic %s has %d of %d replicas: give it the others (kafka-reassign-partitions) once the cluster has %d "
            "brokers, or the loss of the brokers with its replicas is the loss of all decisions",
            topic,
            replicas,
            REPLICAS,
            REPLICAS,
        )
