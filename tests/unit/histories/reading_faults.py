"""`ReadingFaults`: what befalls the logs that a history reads, besides `Faults`.

| fault | meaning |
|---|---|
| follower_lags | a replica that does not lead has only a part of the log for a while |
| prefer | a leader prefers another replica for the reader's rack for a while (KIP-392) |
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

from pyspark_kafka_meta.model import TopicPartition
from tests.unit.fake_cluster import FakeCluster, StoredBatch
from tests.unit.histories.faults import LONG_S, SHORT_S, Faults
from tests.unit.histories.late_network import LateNetwork
from tests.unit.histories.stored_records import StoredRecords, epoch_of

MAX_PARTITIONS = 4


class EmptiableCluster(FakeCluster):
    """A cluster in which a log that was emptied keeps its offset."""

    def __init__(self, brokers: int) -> None:
        super().__init__(brokers)
        self._starts: dict[TopicPartition, int] = {}  # of empty logs

    def create_topic(self, topic: str, partitions: int = 1) -> object:  # type: ignore[override]
        self._starts = {partition: start for partition, start in self._starts.items() if partition.topic != topic}
        return super().create_topic(topic, partitions)

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        start = self._starts.get(partition, 0)
        return super().bounds(partition) if self.logs[partition] else (start, start)

    def append(self, partition: TopicPartition, batch: bytes) -> int:
        base_offset, log = self.bounds(partition)[1], self.logs[partition]
        super().append(partition, batch)
        length = log[-1].until_offset - log[-1].base_offset
        log[-1] = StoredBatch(base_offset, base_offset + length, base_offset.to_bytes(8, "big") + log[-1].data[8:])
        return base_offset

    def keep(self, partition: TopicPartition, log: list[StoredBatch], start: int) -> None:
        """Replace a log by a part of it, which begins at `start`."""
        self.logs[partition], self._starts[partition] = log, start


class ReadingFaults:
    """Adds its faults to those of `faults`.

    Attributes:
        lost: losses so far, each with its partition.
    """

    def __init__(
        self,
        faults: Faults,
        network: LateNetwork,
        cluster: EmptiableCluster,
        append: Callable[[TopicPartition, int], object],
        stored: StoredRecords,
        rng: random.Random,
    ) -> None:
        """
        Args:
            append: a batch to a log, in this leader epoch.
        """
        self.lost: list[tuple[str, TopicPartition]] = []
        self._faults, self._cluster, self._network, self._rng = faults, cluster, network, rng
        self._append, self._stored = append, stored
        faults.kinds |= {
            "follower_lags": self._follower_lags,
            "prefer": self._prefer,
            "add_partition": self._add_partition,
            "compact": self._compact,
        }

    def losses(self) -> dict[str, Callable[[], str]]:
        return {
            "retain": self._retain,
            "truncate": self._truncate,
            "diverge": self._diverge,
            "recreate": self._recreate,
            "delete": self._delete,
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
        preferred[partition] = self._faults.node()
        self._network.clock.at(self._rng.choice(LONG_S), lambda: preferred.pop(partition, None))
        return f"{preferred[partition]} for {partition}"

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
            if epoch_of(before) == epoch_of(after)
        ]
        if not removable:
            return "nothing"
        gone = self._rng.choice(removable)
        log.remove(gone)
        return f"{partition} {gone.base_offset} to {gone.until_offset}"

    def _retain(self) -> str:
        partition = self._faults.partition()
        log, (start, end) = self._cluster.logs[partition], self._cluster.bounds(partition)
        gone = self._rng.randint(0, len(log))
        self._cluster.keep(partition, log[gone:], end)
        self.lost += [("retain", partition)] * (gone > 0)
        return f"{partition} from {start} to {self._cluster.bounds(partition)[0]}"

    def _truncate(self) -> str:
        partition = self._faults.partition()
        log, (start, end) = self._cluster.logs[partition], self._cluster.bounds(partition)
        kept = self._rng.randint(0, len(log))
        self._cluster.keep(partition, log[:kept], start)
        self._cluster.move_leader(partition, self._faults.node())
        self.lost += [("truncate", partition)] * (kept < len(log))
        return f"{partition} from {end} to {self._cluster.bounds(partition)[1]}"

    def _diverge(self) -> str:
        partition = self._faults.partition()
        log, start = self._cluster.logs[partition], self._cluster.bounds(partition)[0]
        kept = [batch for batch in log if epoch_of(batch) < epoch_of(log[-1])]
        # No two logs have different records at an offset of one epoch. And a reader remembers where the last epoch that
        # it read began, not where those before it did: it does not notice records that replace those.
        if not kept or self._stored.epochs(partition, kept[-1].until_offset) != {epoch_of(log[-1])}:
            return "nowhere"
        self._cluster.keep(partition, kept, start)
        for _ in range(self._rng.randint(1, 4)):
            self._append(partition, epoch_of(kept[-1]))
        self._cluster.move_leader(partition, self._faults.node())
        self.lost.append(("truncate", partition))
        return f"{partition} from {kept[-1].until_offset}, in epoch {epoch_of(kept[-1])}"

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
        for partition in [partition for partition in self._faults.partitions() if partition.topic == topic]:
            self.lost.append(("recreate", partition))
            network.error_codes.pop(partition, None)
            network.preferred_replicas.pop(partition, None)
            for node_id in self._cluster.brokers:
                network.replica_ends.pop((node_id, partition), None)
