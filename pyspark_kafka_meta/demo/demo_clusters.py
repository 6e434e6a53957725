"""The clusters that the demo plays on: embedded brokers, real ones that it starts itself, and yours, which it leaves
as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.testing import ClusterError, LocalKafka, MockCluster
from pyspark_kafka_meta.testing.mock_cluster import NO_BROKER

TOPIC = "clicks"
REPLICAS = ([2, 3, 4], [3, 4, 2], [4, 2, 3], [2, 4, 3])
"""By partition of a real cluster; the first of each leads. Who takes over from broker 2 differs by partition."""
BLACKOUT_S = 3.0
PATIENCE_S = 30.0
POLL_S = 0.2


class Cluster(Protocol):
    """Those that may be changed also say how leaders are chosen (`elections`), and how they grow (`growth`)."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def options(self) -> Mapping[str, str]:
        """How to reach it, `kafka.*`."""

    @property
    def selection(self) -> Mapping[str, str]:
        """What the query subscribes to, as an option of the source."""

    @property
    def topics(self) -> Sequence[str]:
        """Which are looked at, and fed."""


class Embedded:
    """Mock brokers in this process. They hold no elections: this class chooses the leaders. They cannot grow a topic,
    so that a further one appears instead."""

    def __init__(self, brokers: MockCluster) -> None:
        self._brokers = brokers
        self.name = "3 brokers embedded in this process, whose leaders move when told to"
        self.options = {"kafka.bootstrap.servers": brokers.bootstrap_servers.replace("127.0.0.1", "localhost")}
        self.selection = {"subscribePattern": f"^{TOPIC}"}
        self.topics = [TOPIC]
        self.elections = " Embedded brokers hold no elections: the demo says who leads."
        self.growth = "Embedded brokers cannot add partitions, so a topic that the query's pattern matches appears."
        self._leaders: dict[TopicPartition, int] = {}
        self._dead: set[int] = set()
        self._preferred = {TopicPartition(TOPIC, number): 1 + number % 3 for number in range(len(REPLICAS))}
        brokers.create_topic(TOPIC, len(REPLICAS))
        for partition, leader_id in self._preferred.items():
            self._lead(partition, leader_id)

    def move_leader(self, partition: TopicPartition, leader_id: int) -> None:
        """Make another broker than `leader_id` lead. Raises ClusterError: no other runs."""
        if (other := self._another(leader_id)) == NO_BROKER:
            raise ClusterError("No other broker runs: restore one first.")
        self._lead(partition, other)

    def kill(self, broker_id: int) -> None:
        """Crash a broker; others lead its partitions."""
        self._brokers.broker_down(broker_id)
        self._dead.add(broker_id)
        for partition, leader_id in list(self._leaders.items()):
            if leader_id == broker_id:
                self._lead(partition, self._another(broker_id))

    def revive(self, broker_id: int) -> None:
        """Undo `kill`: the broker runs, and leads where it is preferred or nobody else does."""
        self._brokers.broker_up(broker_id)
        self._dead.discard(broker_id)
        for partition, leader_id in list(self._leaders.items()):
            if leader_id == NO_BROKER or self._preferred.get(partition) == broker_id != leader_id:
                self._lead(partition, broker_id)

    def grow(self) -> TopicPartition:
        """Make a partition that was not there, and return it."""
        added = TopicPartition(f"{TOPIC}-more-{len(self.topics)}", 0)
        self._brokers.create_topic(added.topic, 1)
        self._lead(added, self._another(NO_BROKER))
        self.topics.append(added.topic)
        return added

    def black_out(self) -> None:
        """All brokers are gone for a moment."""
        self._brokers.broker_down(NO_BROKER)
        time.sleep(BLACKOUT_S)
        self._brokers.broker_up(NO_BROKER)

    def _another(self, broker_id: int) -> int:
        """The next broker that runs; NO_BROKER if no other does."""
        following = ((broker_id + step) % 3 + 1 for step in range(3))
        return next((one for one in following if one != broker_id and one not in self._dead), NO_BROKER)

    def _lead(self, partition: TopicPartition, leader_id: int) -> None:
        self._brokers.move_leader(partition.topic, partition.partition, leader_id)
        self._leaders[partition] = leader_id


class Real:
    """Apache Kafka on this machine: leaders move as in production, by a restart, a crash, or an election."""

    def __init__(self, kafka: LocalKafka) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        self._kafka = kafka
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        self.name = "Apache Kafka on this machine, 1 controller and 3 brokers"
        self.options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
        self.selection = {"subscribe": TOPIC}
        self.topics = [TOPIC]
        self.elections = ""
        self.growth = f"{TOPIC} gets one more partition, which is read from its start."
        self._partitions = len(REPLICAS)
        new = NewTopic(TOPIC, self._partitions, replica_assignment=list(REPLICAS))
        _finish(self._admin.create_topics([new])[TOPIC])

    def move_leader(self, partition: TopicPartition, leader_id: int) -> None:
        """Make another broker than `leader_id` lead: by a restart of that of the preferred replica, and an election."""
        preferred = REPLICAS[partition.partition][0]
        if leader_id == preferred:
            self._kafka.stop(preferred)
            self._kafka.start(preferred)
        else:
            self._elect(partition, preferred)

    def kill(self, broker_id: int) -> None:
        """Crash a broker; others will lead its partitions."""
        self._kafka.kill(broker_id)

    def revive(self, broker_id: int) -> None:
        """Undo `kill`: the broker runs, and leads where it is preferred."""
        self._kafka.start(broker_id)
        self._kafka.wait_until_up()
        for number, (preferred, *_) in enumerate(REPLICAS):
            if preferred == broker_id:
                self._elect(TopicPartition(TOPIC, number), broker_id)

    def grow(self) -> TopicPartition:
        """Make a partition that was not there, and return it."""
        from confluent_kafka.admin import NewPartitions

        added = TopicPartition(TOPIC, self._partitions)
        _finish(self._admin.create_partitions([NewPartitions(TOPIC, self._partitions + 1)])[TOPIC])
        self._partitions += 1
        return added

    def _elect(self, partition: TopicPartition, preferred: int) -> None:
        """Have the preferred replica lead, once it is in sync."""
        from confluent_kafka import ElectionType, KafkaException
        from confluent_kafka import TopicPartition as Named

        def in_sync() -> bool:
            try:
                topic = self._admin.list_topics(partition.topic, timeout=PATIENCE_S).topics[partition.topic]
            except KafkaException:  # no broker answers
                return False
            return preferred in topic.partitions[partition.partition].isrs

        _wait_until(in_sync, f"broker {preferred} is not in sync in {partition}")
        named = [Named(partition.topic, partition.partition)]
        _finish(self._admin.elect_leaders(ElectionType.PREFERRED, named))


class Yours:
    """The cluster that the user names. Nothing in it is changed; records are written where the user asks for it."""

    def __init__(self, options: Mapping[str, str], topic: str) -> None:
        self.name = f"your cluster at {options['kafka.bootstrap.servers']}, which is left as it is"
        self.options = options
        self.selection = {"subscribe": topic}
        self.topics = [topic]


def _finish(asked: Future[Any]) -> None:
    """Wait for what an admin client was asked for. Raises ClusterError: it was refused, or took too long."""
    from confluent_kafka import KafkaException

    try:
        asked.result(PATIENCE_S)
    except (KafkaException, TimeoutError) as error:
        raise ClusterError(f"The brokers did not do what the demo asked for ({error}): try again.") from error


def _wait_until(holds: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise ClusterError(f"After {PATIENCE_S:.0f} s {complaint}: the machine may be too busy, try again.")
        time.sleep(POLL_S)
