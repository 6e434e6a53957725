"""`ReplacedLeaders`: leaders that others have replaced, and that do not know it.

A broker is cut off from controllers and brokers, but not from clients. KRaft fences it, and others lead its partitions.
It goes on responding to Metadata, ListOffsets, OffsetForLeaderEpoch and Fetch as it did: it names itself the leader, in
its old leader epochs, and serves its logs up to its own high watermark. Once it is back, it learns all.

| fault | meaning |
|---|---|
| fence | a broker is cut off for a while, in some histories for good; new leaders have all that it committed |

| loss | meaning |
|---|---|
| fence_uncleanly | the new leaders have a part of the logs, and the old leader, alone in its ISR, goes on committing |
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from pyspark_kafka_meta.model import TopicPartition
from tests.unit.fake_network import FakeNetwork
from tests.unit.histories.faults import BOOTSTRAP_IDS, LONG_S, Faults
from tests.unit.histories.reading_cluster import ReadingCluster
from tests.unit.histories.reading_faults import Loss, ReadingFaults

IN_FLIGHT_SHARE = 0.5
"""Of its partitions with records that followers have, and of which the old leader does not know this (KIP-101)."""
OTHERS_SHARE = 0.3
"""Of partitions that it does not lead, and that get another leader too: it may be a reader's follower (KIP-392)."""


class ReplacedLeaders:
    """Adds its faults to those of `faults` and `of_logs`. At most every second broker is cut off at the same time.

    Attributes:
        for_good: whether brokers stay cut off, also once all others are healthy.
    """

    def __init__(
        self,
        faults: Faults,
        of_logs: ReadingFaults,
        network: FakeNetwork,
        cluster: ReadingCluster,
        append: Callable[[ReadingCluster, TopicPartition, int], object],
        rng: random.Random,
    ) -> None:
        """
        Args:
            append: a batch to a log, as a broker serves it, in this leader epoch.
        """
        self.for_good = rng.random() < 0.5
        self._faults, self._of_logs, self._network, self._cluster = faults, of_logs, network, cluster
        self._append, self._rng = append, rng
        self._most = len(cluster.brokers) // 2
        faults.kinds["fence"] = self._fence
        of_logs.losses["fence_uncleanly"] = self._fence_uncleanly

    def _fence(self) -> str:
        return self._replace(self._elect, self._append_uncommitted)

    def _fence_uncleanly(self) -> str:
        return self._replace(self._of_logs.elect_uncleanly, self._append_lost)

    def _replace(
        self, elect: Callable[[TopicPartition], str], append: Callable[[ReadingCluster, TopicPartition], object]
    ) -> str:
        """Cut a broker off, and elect others for its partitions; it may append to each once more."""
        fenced, cluster = self._network.fenced, self._cluster
        node_id = self._faults.node()
        # A client that knows only addresses of then must find one that is still right.
        if len(fenced) >= self._most or (node_id in BOOTSTRAP_IDS and not fenced.keys().isdisjoint(BOOTSTRAP_IDS)):
            return "nowhere"
        partitions = self._faults.partitions()
        led = [partition for partition in partitions if cluster.partition(partition).leader_id == node_id]
        others = [partition for partition in partitions if partition not in led and self._rng.random() < OTHERS_SHARE]
        marks = {partition: cluster.bounds(partition)[1] for partition in led}
        for partition in led:
            if self._rng.random() < IN_FLIGHT_SHARE:
                self._append(cluster, partition, cluster.partition(partition).leader_epoch)
        own = cluster.fence(node_id)
        own.high_watermarks |= marks
        fenced[node_id] = own
        preferred = self._network.preferred_replicas
        for partition in [partition for partition, replica in preferred.items() if replica == node_id]:
            del preferred[partition]
        elected = [elect(partition) for partition in (*led, *others)]
        for partition in led:
            self._network.clock.at(self._rng.choice(LONG_S), partial(append, own, partition))

        def end() -> None:
            cluster.brokers[node_id] = fenced.pop(node_id).brokers[node_id]

        until = "for good" if self.for_good else self._faults.for_a_while(LONG_S, end)
        return f"{node_id} {until}, {', '.join(elected) or 'which led nothing'}"

    def _elect(self, partition: TopicPartition) -> str:
        node_id = self._faults.node()
        self._cluster.move_leader(partition, node_id)
        return f"{node_id} for {partition}"

    def _append_uncommitted(self, own: ReadingCluster, partition: TopicPartition) -> None:
        self._append_to(own, partition)

    def _append_lost(self, own: ReadingCluster, partition: TopicPartition) -> None:
        begin = own.bounds(partition)[1]
        own.high_watermarks.pop(partition, None)
        self._append_to(own, partition)
        self._of_logs.lost.append(Loss("truncate", partition, begin, own.bounds(partition)[1]))

    def _append_to(self, own: ReadingCluster, partition: TopicPartition) -> None:
        if own in self._network.fenced.values():
            self._append(own, partition, own.partition(partition).leader_epoch)
