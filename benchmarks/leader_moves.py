"""Moves leaders of a real cluster: preferred election, kill -9 of a leader, and no change for comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial

from confluent_kafka import TopicPartition as Partition

from benchmarks.delays import CALM_S, LEAD_S, Move
from benchmarks.followers import Feed
from benchmarks.probe import Probe
from pyspark_kafka_meta.model import NO_LEADER
from pyspark_kafka_meta.testing import LocalKafka
from tests.kafka.cluster_tools import create_topic, elect, in_sync, reassign

PARTITIONS = 6
ELECTION, KILL, NOTHING = "election", "kill -9", "nothing"
SETTLE_S = 2.0
WATCH_S = {ELECTION: 2.0, KILL: 5.0, NOTHING: 2.0}
AFTERMATH_S = 10.0
"""For the streams to catch up after the restart of a broker."""
PROBE_S = 0.02
TIMEOUT_S = 120.0


class Stage:
    """Creates `topic` and moves its leaders while `feed` writes to it.

    `number` counts the moves of one kind: partitions take turns.
    """

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self._probe = Probe(kafka, topic)
        create_topic(kafka, topic, [self._replicas(partition) for partition in range(PARTITIONS)])
        self.feed = Feed(kafka.bootstrap_servers, topic, PARTITIONS)

    def do_nothing(self, number: int) -> Move:
        """For comparison: no leader moves."""
        return self._move(NOTHING, {number % PARTITIONS}, lambda: None, ousted=NO_LEADER)

    def election(self, number: int) -> Move:
        """Make another replica the preferred leader, which moves no leader yet, then elect it."""
        partition = number % PARTITIONS
        leader = self._probe.leaders(self._kafka.broker_ids)[partition]
        reassign(self._kafka, self._topic, partition, self._replicas(self._kafka.broker_ids.index(leader) + 1))
        election = partial(elect, self._kafka, [Partition(self._topic, partition)])
        return self._move(ELECTION, {partition}, election, ousted=leader)

    def kill(self, number: int) -> Move:
        """Crash the leader of a partition, which moves all its partitions, then restore the broker and its leaders."""
        leaders = self._probe.leaders(self._kafka.broker_ids)
        victim = leaders[number % PARTITIONS]
        partitions = {partition for partition, leader in leaders.items() if leader == victim}
        move = self._move(KILL, partitions, partial(self._kafka.kill, victim), ousted=victim)
        self._kafka.restore()
        self._wait_for(lambda: in_sync(self._kafka, self._topic, len(self._kafka.broker_ids)))
        elect(self._kafka, [Partition(self._topic, partition) for partition in partitions])
        time.sleep(AFTERMATH_S)
        return move

    def _move(self, kind: str, partitions: Collection[int], act: Callable[[], None], ousted: int) -> Move:
        time.sleep(SETTLE_S + CALM_S + LEAD_S)
        began = time.time()
        act()
        live = [broker_id for broker_id in self._kafka.broker_ids if kind != KILL or broker_id != ousted]
        self._wait_for(lambda: self._probe.leaders(live, ousted).keys() >= set(partitions))
        named = time.time()
        leaders = self._probe.leaders(live, ousted)
        for partition in partitions:
            self._wait_for(partial(self._accepts_record, leaders[partition], partition))
        ready = time.time()
        time.sleep(WATCH_S[kind])
        return Move(kind, frozenset(partitions), began, named, ready, time.time())

    def _accepts_record(self, leader: int, partition: int) -> bool:
        number = self.feed.number_record(partition)
        is_written = self._probe.write(leader, partition, b"%d" % number)
        if is_written:
            self.feed.acknowledge(number, time.time())
        return is_written

    def _replicas(self, first: int) -> list[int]:
        """All broker ids in order, rotated to start at index `first`."""
        brokers = self._kafka.broker_ids
        return [brokers[(first + turn) % len(brokers)] for turn in range(len(brokers))]

    @staticmethod
    def _wait_for(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError("the cluster did not reach the expected state in time")
            time.sleep(PROBE_S)
