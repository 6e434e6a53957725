"""The clusters of the demo: embedded brokers, Kafka on this machine, or the user's, which is not changed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.testing import ClusterError, LocalKafka, MockCluster
from pyspark_kafka_meta.testing.kafka_config import CONTROLLER_ID
from pyspark_kafka_meta.testing.mock_cluster import NO_BROKER
from pyspark_kafka_meta.tools.demo import TOO_BUSY

TOPIC, COPY = "clicks", "copies"
"""The topic that the query reads, and the topic that it writes."""
SINK = "demo"
"""The query's `kafka.transactional.id`, where brokers have transactions."""
REPLICAS = ([2, 3, 4], [3, 4, 2], [4, 2, 3], [2, 4, 3])
"""By partition of LocalKafka; the first replica leads. Which broker takes over from broker 2 differs by partition."""
BLACKOUT_S = 3.0
ADMIN_TIMEOUT_S = 30.0
POLL_S = 0.2


class Cluster:
    """
    Attributes:
        name: for people.
        options: `kafka.*`.
        selection: the source option that selects the query's topics.
        sink_options: further `kafka.*` options of the query's sink.
        topics: that the query reads, and that the feed produces to.
        copies: the topics that the query writes; empty if it writes nothing.
    """

    name: str
    options: Mapping[str, str]
    selection: Mapping[str, str]
    sink_options: Mapping[str, str] = {}
    topics: list[str]
    copies: list[str]


def copy_of(partition: TopicPartition) -> TopicPartition:
    """Where clusters of the demo's own have a copy of this partition's topic, which has as many partitions."""
    return TopicPartition(partition.topic.replace(TOPIC, COPY), partition.partition)


class EmbeddedCluster(Cluster):
    """Mock brokers in this process. They hold no elections: this class chooses the leaders. They cannot add partitions:
    `grow` creates another topic.

    Attributes:
        elections: what to explain of elections here.
        growth: what `grow` does here.
    """

    def __init__(self, brokers: MockCluster) -> None:
        self._brokers = brokers
        self.name = "3 embedded brokers in this process"
        self.options = {"kafka.bootstrap.servers": brokers.bootstrap_servers.replace("127.0.0.1", "localhost")}
        self.selection = {"subscribePattern": f"^{TOPIC}"}
        self.topics, self.copies = [TOPIC], [COPY]
        self.elections = " Embedded brokers hold no elections: the demo chooses the leaders."
        self.growth = (
            "Embedded brokers cannot add partitions: a new topic matches the query's pattern, and gets a copy."
        )
        self._leaders: dict[TopicPartition, int] = {}
        self._dead: set[int] = set()
        self._preferred = {
            TopicPartition(topic, number): 1 + number % 3 for topic in (TOPIC, COPY) for number in range(len(REPLICAS))
        }
        for topic in (TOPIC, COPY):
            brokers.create_topic(topic, len(REPLICAS))
        for partition, leader_id in self._preferred.items():
            self._set_leader(partition, leader_id)

    def move_leader(self, partition: TopicPartition, leader_id: int) -> None:
        """Move the leader away from `leader_id`. Raises ClusterError: no other broker runs."""
        if (other := self._other_broker(leader_id)) == NO_BROKER:
            raise ClusterError("No other broker runs: restore a broker first.")
        self._set_leader(partition, other)

    def kill(self, broker_id: int) -> None:
        self._brokers.broker_down(broker_id)
        self._dead.add(broker_id)
        for partition, leader_id in list(self._leaders.items()):
            if leader_id == broker_id:
                self._set_leader(partition, self._other_broker(broker_id))

    def restore(self, broker_id: int) -> None:
        """Undo `kill`: the broker leads where it is the preferred leader or there is none."""
        self._brokers.broker_up(broker_id)
        self._dead.discard(broker_id)
        for partition, leader_id in list(self._leaders.items()):
            if leader_id == NO_BROKER or self._preferred.get(partition) == broker_id != leader_id:
                self._set_leader(partition, broker_id)

    def grow(self) -> TopicPartition:
        """Add a partition, and return it."""
        added = TopicPartition(f"{TOPIC}-more-{len(self.topics)}", 0)
        copy = copy_of(added)
        for partition in (copy, added):
            self._brokers.create_topic(partition.topic, 1)
            self._set_leader(partition, self._other_broker(NO_BROKER))
        self.copies.append(copy.topic)
        self.topics.append(added.topic)
        return added

    def black_out(self) -> None:
        """Take all brokers down for a moment."""
        self._brokers.broker_down(NO_BROKER)
        time.sleep(BLACKOUT_S)
        self._brokers.broker_up(NO_BROKER)

    def _other_broker(self, broker_id: int) -> int:
        """The next broker that runs; NO_BROKER if no other runs."""
        following = ((broker_id + step) % 3 + 1 for step in range(3))
        return next((other for other in following if other != broker_id and other not in self._dead), NO_BROKER)

    def _set_leader(self, partition: TopicPartition, leader_id: int) -> None:
        self._brokers.move_leader(partition.topic, partition.partition, leader_id)
        self._leaders[partition] = leader_id


class LocalKafkaCluster(Cluster):
    """Apache Kafka on this machine: leaders move by a restart, a crash or an election. Attributes as in
    `EmbeddedCluster`."""

    def __init__(self, kafka: LocalKafka) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        self._kafka = kafka
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        self.name = "Apache Kafka on this machine, 1 controller and 3 brokers"
        self.options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
        self.sink_options = {"kafka.transactional.id": SINK}
        self.selection = {"subscribe": TOPIC}
        self.topics, self.copies = [TOPIC], [COPY]
        self.elections = ""
        self.growth = f"{TOPIC} and {COPY} get one more partition, which is read from its start, and written."
        self._partitions = len(REPLICAS)
        for topic in (TOPIC, COPY):
            new = NewTopic(topic, self._partitions, replica_assignment=list(REPLICAS))
            _finish(self._admin.create_topics([new])[topic])

    def move_leader(self, partition: TopicPartition, leader_id: int) -> None:
        """Move the leader away from `leader_id`: restart it if it is the preferred leader, else elect that."""
        preferred = REPLICAS[partition.partition][0]
        if leader_id == preferred:
            self._kafka.stop(preferred)
            self._kafka.start(preferred)
        else:
            self._elect(partition, preferred)

    def kill(self, broker_id: int) -> None:
        self._kafka.kill(broker_id)

    def kill_controller(self) -> None:
        """Crash the only controller: no leader can move."""
        self._kafka.kill(CONTROLLER_ID)

    def restore_controller(self) -> None:
        self._kafka.start(CONTROLLER_ID)

    def restore(self, broker_id: int) -> None:
        """Undo `kill`: the broker leads where it is the preferred leader."""
        self._kafka.start(broker_id)
        self._kafka.wait_until_up()
        for number, (preferred, *_) in enumerate(REPLICAS):
            if preferred == broker_id:
                for topic in (TOPIC, COPY):
                    self._elect(TopicPartition(topic, number), broker_id)

    def grow(self) -> TopicPartition:
        """Add a partition, and return it."""
        from confluent_kafka.admin import NewPartitions

        added = TopicPartition(TOPIC, self._partitions)
        self._partitions += 1
        for topic in (COPY, TOPIC):
            _finish(self._admin.create_partitions([NewPartitions(topic, self._partitions)])[topic])
        return added

    def _elect(self, partition: TopicPartition, preferred: int) -> None:
        """Elect the preferred leader, once it is in sync."""
        from confluent_kafka import ElectionType, KafkaException
        from confluent_kafka import TopicPartition as Named

        def in_sync() -> bool:
            try:
                topic = self._admin.list_topics(partition.topic, timeout=ADMIN_TIMEOUT_S).topics[partition.topic]
            except KafkaException:  # no broker responds
                return False
            return preferred in topic.partitions[partition.partition].isrs

        deadline = time.monotonic() + ADMIN_TIMEOUT_S
        while not in_sync():
            if time.monotonic() > deadline:
                where = f"After {ADMIN_TIMEOUT_S:.0f} s broker {preferred} is not in sync in {partition}"
                raise ClusterError(f"{where}; perhaps {TOO_BUSY}.")
            time.sleep(POLL_S)
        named = [Named(partition.topic, partition.partition)]
        _finish(self._admin.elect_leaders(ElectionType.PREFERRED, named))


ChangeableCluster = EmbeddedCluster | LocalKafkaCluster


class UserCluster(Cluster):
    """The cluster that the user names. The demo changes nothing in it; it produces records only with --feed."""

    def __init__(self, options: Mapping[str, str], topic: str) -> None:
        self.name = f"your cluster at {options['kafka.bootstrap.servers']}, which is not changed"
        self.options = options
        self.selection = {"subscribe": topic}
        self.topics, self.copies = [topic], []


def _finish(request: Future[Any]) -> None:
    """Wait for the request of an admin client. Raises ClusterError: it failed or timed out."""
    from confluent_kafka import KafkaException

    try:
        request.result(ADMIN_TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        raise ClusterError(f"A request of the demo to the brokers failed ({error}); perhaps {TOO_BUSY}.") from error
