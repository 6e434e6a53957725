"""`ReadingFaults`: what befalls the logs that a history reads, besides `Faults`.

| fault | meaning |
|---|---|
| follower_lags | a replica that does not lead has only a part of the log for a while |
| prefer | a leader prefers another replica for the reader's rack for a while (KIP-392) |
| break_follower | a leader prefers a replica that fails each Fetch, in some histories for good |
| reassign | a broker is no replica of a partition any more |
| add_partition | a topic gets one more partition |
| compact | compaction removes a batch within an epoch: brokers remember where epochs begin and end, and logs do not |

Losses, in histories with losses:

| loss | meaning |
|---|---|
| retain | retention deletes the front of a log, or all of it |
| truncate | an unclean election: the new leader has a part of the log |
| diverge | an unclean election: the new leader has other records of an older epoch instead of the last epoch's |
| recreate | a topic is deleted and created again at once |
| delete | a topic is deleted, and created again after a while |
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.model import TopicPartition
from tests.unit.fake_network import FakeNetwork
from tests.unit.histories.faults import LONG_S, SHORT_S, Faults
from tests.unit.histories.reading_cluster import ReadingCluster, is_transactional
from tests.unit.histories.stored_records import StoredRecords, epoch_of

MAX_PARTITIONS = 4
FOLLOWER_CODES = (
    ErrorCode.kafka_storage_error,
    ErrorCode.offset_out_of_range,
    ErrorCode.replica_not_available,
    ErrorCode.unknown_leader_epoch,
)


class Loss(NamedTuple):
    """Offsets [from_offset, until_offset) of a log are gone, whether or not records get the same offsets again."""

    kind: str
    partition: TopicPartition
    from_offset: int
    until_offset: float


class ReadingFaults:
    """Adds its faults to those of `faults`.

    Attributes:
        losses: actions by name. Histories with losses add some of them to the kinds of `faults`.
        lost: losses so far.
        recreated_at: when each topic was last recreated, in seconds.
    """

    def __init__(
        self,
        faults: Faults,
        network: FakeNetwork,
        cluster: ReadingCluster,
        append: Callable[[ReadingCluster, TopicPartition, int], object],
        stored: StoredRecords,
        rng: random.Random,
    ) -> None:
        """
        Args:
            append: a batch to a log, as a broker serves it, in this leader epoch.
        """
        self.losses: dict[str, Callable[[], str]] = {
            "retain": self._retain,
            "truncate": self._truncate,
            "diverge": self._diverge,
            "recreate": self._recreate,
            "delete": self._delete,
        }
        self.lost: list[Loss] = []
        self.recreated_at: dict[str, float] = {}
        self._faults, self._cluster, self._network, self._rng = faults, cluster, network, rng
        self._append, self._stored = append, stored
        self._breaks_for_good = rng.random() < 0.5
        network.replica_errors = cluster.replica_errors
        faults.kinds |= {
            "follower_lags": self._follower_lags,
            "prefer": self._prefer,
            "break_follower": self._break_follower,
            "reassign": self._reassign,
            "add_partition": self._add_partition,
            "compact": self._compact,
        }

    def _follower_lags(self) -> str:
        partition, node_id, ends = self._faults.partition(), self._faults.node(), self._network.replica_ends
        if self._cluster.partition(partition).leader_id == node_id:
            return "nowhere"
        ends[node_id, partition] = self._rng.randint(*self._cluster.bounds(partition))
        span = self._faults.for_a_while(SHORT_S, lambda: ends.pop((node_id, partition), None))
        return f"{node_id}, {partition} {span}"

    def _prefer(self) -> str:
        partition, preferred = self._faults.partition(), self._network.preferred_replicas
        preferred[partition] = self._rng.choice(self._cluster.partition(partition).replicas)
        self._network.clock.at(self._rng.choice(LONG_S), lambda: preferred.pop(partition, None))
        return f"{preferred[partition]} for {partition}"

    def _break_follower(self) -> str:
        partition, network = self._faults.partition(), self._network
        known, node_id = self._cluster.partition(partition), self._faults.node()
        if node_id == known.leader_id or node_id not in known.replicas or node_id in network.fenced:
            return "nowhere"
        network.preferred_replicas[partition] = node_id
        code = network.replica_errors[node_id, partition] = self._rng.choice(FOLLOWER_CODES)

        def end() -> None:
            network.replica_errors.pop((node_id, partition), None)

        until = "for good" if self._breaks_for_good else self._faults.for_a_while(LONG_S, end)
        return f"{node_id}, {partition}, {ErrorCode(code).name} {until}"

    def _reassign(self) -> str:
        partition, node_id = self._faults.partition(), self._faults.node()
        topic, known = self._cluster.topics[partition.topic], self._cluster.partition(partition)
        left = tuple(replica for replica in known.replicas if replica != node_id)
        if known.leader_id == node_id or not left:
            return "nowhere"
        members = tuple(replace(each, replicas=left) if each is known else each for each in topic.partitions)
        self._cluster.topics[partition.topic] = replace(topic, partitions=members)
        if self._network.preferred_replicas.get(partition) == node_id:
            del self._network.preferred_replicas[partition]
        return f"{node_id} of {partition}"

    def _add_partition(self) -> str:
        topic = self._rng.choice(list(self._cluster.topics.values()))
        added = TopicPartition(topic.name, len(topic.partitions))
        if added.partition >= MAX_PARTITIONS:
            return "nowhere"
        member = replace(topic.partitions[0], partition=added.partition, leader_id=self._faults.node(), error_code=0)
        self._cluster.topics[topic.name] = replace(topic, partitions=(*topic.partitions, member))
        self._cluster.logs[added], self._cluster.producers[added] = [], {}
        return str(added)

    def _compact(self) -> str:
        partition = self._faults.partition()
        log = self._cluster.logs[partition]
        removable = [
            batch
            for before, batch, after in zip(log, log[1:], log[2:], strict=False)
            if epoch_of(before) == epoch_of(after) and not is_transactional(batch)
        ]
        if not removable:
            return "nothing"
        gone = self._rng.choice(removable)
        log.remove(gone)
        self.lost.append(Loss("compact", partition, gone.base_offset, gone.until_offset))
        return f"{partition} {gone.base_offset} to {gone.until_offset}"

    def _retain(self) -> str:
        partition = self._faults.partition()
        log, (start, end) = self._cluster.logs[partition], self._cluster.bounds(partition)
        gone = self._rng.randint(0, len(log))
        self._cluster.keep(partition, log[gone:], end)
        first = self._cluster.bounds(partition)[0]
        self.lost += [Loss("retain", partition, start, first)] * (gone > 0)
        return f"{partition} from {start} to {first}"

    def _truncate(self) -> str:
        return self.elect_uncleanly(self._faults.partition())

    def elect_uncleanly(self, partition: TopicPartition) -> str:
        """The new leader has a part of the log."""
        log, (start, end) = self._cluster.logs[partition], self._cluster.bounds(partition)
        kept = self._rng.randint(0, len(log))
        self._cluster.keep(partition, log[:kept], start)
        self._cluster.move_leader(partition, self._faults.node())
        kept_until = self._cluster.bounds(partition)[1]
        self.lost += [Loss("truncate", partition, kept_until, end)] * (kept < len(log))
        return f"{partition} from {end} to {kept_until}"

    def _diverge(self) -> str:
        partition = self._faults.partition()
        log, (start, end) = self._cluster.logs[partition], self._cluster.bounds(partition)
        kept = [batch for batch in log if epoch_of(batch) < epoch_of(log[-1])]
        # No two logs have different records at an offset of one epoch. And a reader remembers where the last epoch that
        # it read began, not where those before it did: it does not notice records that replace those.
        # Only its leader appends in an epoch: a fenced one may be the leader of the epoch before.
        if not kept or self._network.fenced:
            return "nowhere"
        kept_until = kept[-1].until_offset
        if self._stored.epochs(self._cluster, partition, kept_until) != {epoch_of(log[-1])}:
            return "nowhere"
        self._cluster.keep(partition, kept, start)
        for _ in range(self._rng.randint(1, 4)):
            self._append(self._cluster, partition, epoch_of(kept[-1]))
        self._cluster.move_leader(partition, self._faults.node())
        self.lost.append(Loss("truncate", partition, kept_until, end))
        return f"{partition} from {kept_until}, in epoch {epoch_of(kept[-1])}"

    def _recreate(self) -> str:
        partition = self._faults.partition()
        self._forget(partition.topic)
        self._cluster.create_topic(partition.topic, self._rng.randint(1, 3))
        return partition.topic

    def _delete(self) -> str:
        topic = self._faults.partition().topic
        if len(self._cluster.topics) == 1:
            return "nowhere"
        self._forget(topic)
        del self._cluster.topics[topic]
        partitions = self._rng.randint(1, 3)
        return f"{topic} {self._faults.for_a_while(LONG_S, lambda: self._cluster.create_topic(topic, partitions))}"

    def _forget(self, topic: str) -> None:
        """End what befell the partitions of a topic."""
        network = self._network
        self.recreated_at[topic] = network.clock.now
        for partition in [partition for partition in self._faults.partitions() if partition.topic == topic]:
            self.lost.append(Loss("recreate", partition, 0, self._cluster.bounds(partition)[1]))
            network.error_codes.pop(partition, None)
            network.preferred_replicas.pop(partition, None)
            for node_id in self._cluster.brokers:
                network.replica_ends.pop((node_id, partition), None)
                network.replica_errors.pop((node_id, partition), None)
