"""`DecisionsTopic`: the decisions of one sink, in a compacted topic that all sinks of a cluster can share.

The key of a record is the sink's transactional id and the series, its value the decision, both as JSON. A driver writes
them in transactions of the sink's own id, so that a fenced driver cannot write any more. Other sinks' open transactions
do not matter: records are read up to the high watermark, and count if the marker behind them is a commit.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TypeAlias

from pyspark_kafka_meta.client.cluster_admin import ClusterAdmin
from pyspark_kafka_meta.client.kafka_client import KafkaClient
from pyspark_kafka_meta.errors import KafkaMetaError, ProtocolError, UnknownTopicError
from pyspark_kafka_meta.model import OpenTransaction, ProducerEpoch, RefreshReason, TopicPartition, WrittenOffsets
from pyspark_kafka_meta.records.aborted_transactions import is_abort_marker
from pyspark_kafka_meta.records.decoder import decode
from pyspark_kafka_meta.transactions.decision import BatchId, Decision, Decisions
from pyspark_kafka_meta.transactions.log_reader import LogReader

FORMAT_VERSION = 1
MAX_DECISION_BYTES = 16 * 1024 * 1024
"""Before compression. A decision names each partition of each task."""
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(MAX_DECISION_BYTES),
    "segment.bytes": str(16 * 1024 * 1024),  # the active segment, which is not compacted, is read at each start
    "unclean.leader.election.enable": "false",
}

KeyedDecisions: TypeAlias = dict[tuple[str, str], Decision]
"""Decisions by the sink's transactional id and series."""


REPLICAS = 3
"""As of Kafka's own topic of transactions. Fewer in a smaller cluster."""


class DecisionsTopic:
    """Reads the decisions of one sink, or of all. Keeps what it has read: later reads continue there.

    Attributes:
        partition: with the decisions of all sinks; the topic has no other.
    """

    def __init__(self, client: KafkaClient, topic: str, transactional_id: str | None) -> None:
        """
        Args:
            transactional_id: of the sink; None for all sinks.
        """
        self.partition = TopicPartition(topic, 0)
        self._client = client
        self._transactional_id = transactional_id
        self._log = LogReader(client)
        self._next_offset: int | None = None
        self._decisions: KeyedDecisions = {}
        self._undecided: dict[int, KeyedDecisions] = {}  # of open transactions, by producer id

    def ensure(self, admin: ClusterAdmin) -> None:
        """Create the topic unless it exists.

        Raises:
            BrokerError: this user may not create it.
            ConnectError, UnknownTopicError: no broker responds, or none knows the new topic in time.
            KafkaMetaError: it has several partitions, or a configuration that loses decisions.
        """
        topic, cache, deadline = self.partition.topic, self._client.cache, self._client.api_deadline()
        cache.track([topic])
        cache.refresh(RefreshReason.NEW_TOPIC, deadline)
        if partitions := cache.snapshot.partitions(topic):
            require_one_partition(partitions)
            require_durable(topic, admin.topic_config(topic))
            return
        replicas = min(REPLICAS, len(cache.snapshot.brokers))
        admin.create_topic(topic, replicas, {**TOPIC_CONFIG, "min.insync.replicas": str(max(replicas - 1, 1))})
        failures = 0
        while not cache.snapshot.partitions(topic):
            if self._client.clock() >= deadline:
                raise UnknownTopicError(f"no broker knows topic {topic}, which was just created: start the query again")
            failures += 1
            self._client.sleep(self._client.backoff_s(failures))
            cache.refresh(RefreshReason.NEW_TOPIC, deadline)

    def read(self) -> Decisions:
        """The last committed decision of each series of the one sink.

        Raises:
            KafkaMetaError: the topic cannot be read.
        """
        return {series: decision for (_, series), decision in self.read_all().items()}

    def read_all(self) -> Mapping[tuple[str, str], Decision]:
        """The last committed decision of each sink and series.

        Raises:
            KafkaMetaError: the topic cannot be read.
        """
        self._read_until(self._log.end_offset(self.partition))
        return self._decisions

    def is_unchanged_until(self, offset: int, own: Decisions) -> bool:
        """Whether only `own` decisions were committed between the last read and this offset.

        A broker that does not know yet that it has lost the partition reports an end of the log that is too low. An
        acknowledged offset is right.
        """
        assert self._transactional_id is not None
        expected = self._decisions | {(self._transactional_id, series): own[series] for series in own}
        self._read_until(offset)
        return self._decisions == expected

    def _read_until(self, until_offset: int) -> None:
        if self._next_offset is None:
            self._next_offset = self._log.start_offset(self.partition)
        for fetched in self._log.batches(self.partition, self._next_offset, until_offset):
            (header,) = fetched.headers
            if not header.is_control:
                written = self._undecided.setdefault(header.producer_id, {})
                for rows in decode([fetched], ["key", "value", "offset"]):
                    for row in rows.to_pylist():
                        written |= self._parsed(**row)
            elif header.record_count:
                written = self._undecided.pop(header.producer_id, {})
                if not is_abort_marker(header, fetched.records):
                    self._decisions |= written
        self._next_offset = max(self._next_offset, until_offset)

    def _parsed(self, key: bytes, value: bytes, offset: int) -> KeyedDecisions:
        """The decision of a record; none if it is of another sink, or of somebody who does not write decisions."""
        try:
            transactional_id, series = json.loads(key)
        except (TypeError, ValueError):
            return {}
        if self._transactional_id not in (None, transactional_id):
            return {}
        try:
            return {(transactional_id, series): decision_from_json(series, value)}
        except (TypeError, ValueError, KeyError) as error:
            raise KafkaMetaError(
                f"the last decision of {transactional_id}, at offset {offset} of {self.partition}, cannot be read "
                f"({error}): only sinks may write to this topic: use a new kafka.transactional.id, and settle the rows "
                "of the last batch by hand"
            ) from None


def require_one_partition(partitions: Collection[TopicPartition]) -> None:
    """Raises KafkaMetaError if these partitions of the decisions topic are not one."""
    if len(partitions) != 1:
        topic = next(iter(partitions)).topic
        raise KafkaMetaError(
            f"topic {topic} has {len(partitions)} partitions, and decisions need one: set decisionsTopic to another "
            "topic, which is created if it does not exist"
        )


def require_durable(topic: str, config: Mapping[str, str]) -> None:
    """Raises KafkaMetaError if this configuration of the decisions topic loses decisions."""
    for name in ("cleanup.policy", "unclean.leader.election.enable"):
        if config.get(name, TOPIC_CONFIG[name]) != TOPIC_CONFIG[name]:
            raise KafkaMetaError(
                f"topic {topic} has {name}={config[name]}, which loses decisions: set it to {TOPIC_CONFIG[name]}, or "
                "set decisionsTopic to another topic"
            )


def decision_key(transactional_id: str, decision: Decision) -> bytes:
    return json.dumps([transactional_id, decision.batch.series]).encode()


def decision_to_json(decision: Decision) -> bytes:
    batch = decision.batch
    return json.dumps(
        {
            "format": FORMAT_VERSION,
            "owner": batch.owner,
            "version": batch.version,
            "time_ms": decision.time_ms,
            "is_settled": decision.is_settled,
            "former_owners": decision.former_owners,
            "transactions": [
                (transaction.transactional_id, transaction.producer, transaction.written)
                for transaction in decision.transactions
            ],
        }
    ).encode()


def decision_from_json(series: str, text: bytes) -> Decision:
    """Raises ProtocolError if a newer release of this package wrote the decision."""
    fields = json.loads(text)
    if fields["format"] != FORMAT_VERSION:
        raise ProtocolError(
            f"the last decision of this sink has format {fields['format']}, and this release reads {FORMAT_VERSION}: "
            "use the release that wrote it, or a newer one"
        )
    transactions = tuple(
        OpenTransaction(transactional_id, ProducerEpoch(*producer), tuple(WrittenOffsets(*each) for each in written))
        for transactional_id, producer, written in fields["transactions"]
    )
    batch = BatchId(series, fields["owner"], fields["version"])
    return Decision(batch, transactions, fields["time_ms"], fields["is_settled"], tuple(fields["former_owners"]))
