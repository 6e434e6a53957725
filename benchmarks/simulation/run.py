"""The event loop: micro-batches, leader changes, fetches that go wrong, and the metadata requests that follow."""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.simulation.clients import CacheModel, Variant
from benchmarks.simulation.cluster import Cluster, Scenario, response_bytes
from pyspark_kafka_meta.model import Address, RefreshReason


@dataclass(slots=True)
class Log:
    """What the brokers and the readers saw.

    Attributes:
        request_s, request_broker, request_bytes: one entry for each Metadata request that reached a broker: when,
            which, and the size of its response.
        stall_s, heal_s: one entry for each time that a worker could not fetch a partition although it had a leader:
            since when, and how long until it fetched from the leader.
        refused: attempts at a broker that was down.
        attempts, responses: requests begun, and responses, as counted by the caches.
        under_way: requests that had no response yet at the end.
        unhealed: partitions that nobody could fetch at the end.
    """

    request_s: array[float] = field(default_factory=lambda: array("d"))
    request_broker: array[int] = field(default_factory=lambda: array("H"))
    request_bytes: array[int] = field(default_factory=lambda: array("l"))
    stall_s: array[float] = field(default_factory=lambda: array("d"))
    heal_s: array[float] = field(default_factory=lambda: array("d"))
    refused: int = 0
    attempts: int = 0
    responses: int = 0
    under_way: int = 0
    unhealed: int = 0


class Simulation:
    """One variant of the clients in one scenario. The same seed gives the same cluster to every variant."""

    def __init__(self, scenario: Scenario, variant: Variant, seed: int = 0) -> None:
        self._scenario = scenario
        self._variant = variant
        self._cluster = Cluster(scenario, np.random.default_rng(seed))
        self._rng = np.random.default_rng(seed + 1)
        topics = {"task": 0, "query": scenario.topics, "cluster": scenario.topics + scenario.idle_topics}
        self._caches = [
            CacheModel(variant, self._cluster.bootstrap, topics[variant.topics], seed + worker)
            for worker in range(scenario.workers)
        ]
        self._broker_ids: dict[Address, int] = {
            address: broker for broker, address in enumerate(self._cluster.addresses)
        }
        self._known = np.zeros((scenario.workers, scenario.partitions), np.uint8)  # leader epochs, 0: none
        self._tracked = np.full((scenario.workers, scenario.topics), variant.topics != "task")
        self._owner = np.zeros(scenario.partitions, np.int64)
        self._stalled: dict[int, float] = {}  # since when, by partition
        self._batch_waits = False
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._log = Log()

    def run(self) -> Log:
        self._at(0.0, self._batch)
        for time, partition in self._cluster.moves:
            self._at(time, self._moved, partition)
        for time, broker in self._cluster.kills:
            self._at(time, self._killed, broker)
        end = self._scenario.end_s
        while self._heap and self._heap[0][0] < end:
            self._now, _, handler, arguments = heapq.heappop(self._heap)
            handler(*arguments)
        self._log.attempts = sum(cache.attempts for cache in self._caches)
        self._log.responses = sum(cache.generation for cache in self._caches)
        self._log.under_way = sum(cache.asked is not None for cache in self._caches)
        self._log.unhealed = len(self._stalled)
        return self._log

    def _at(self, time: float, handler: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._heap, (time, next(self._order), handler, arguments))

    def _batch(self) -> None:
        """A micro-batch begins when the last is over, which a partition that nobody can fetch holds up."""
        if self._stalled:
            self._batch_waits = True
            return
        self._batch_waits = False
        now, scenario = self._now, self._scenario
        every = np.arange(scenario.partitions)
        self._owner[self._rng.permutation(scenario.partitions)] = every % scenario.workers
        untracked = ~self._tracked[self._owner, every // scenario.partitions_per_topic]
        stale = self._known[self._owner, every] != self._cluster.epochs(now)
        starts = now + self._rng.random(scenario.workers) * scenario.task_start_s
        tasks: dict[int, list[int]] = {}
        for partition in np.flatnonzero(untracked | stale).tolist():
            tasks.setdefault(int(self._owner[partition]), []).append(partition)
        for worker, partitions in tasks.items():
            self._at(float(starts[worker]), self._task, worker, partitions)
        self._at(now + scenario.batch_s, self._batch)

    def _task(self, worker: int, partitions: list[int]) -> None:
        """A task begins that meets new topics, or whose cache is out of date."""
        topics = {one // self._scenario.partitions_per_topic for one in partitions}
        new = [topic for topic in topics if not self._tracked[worker, topic]]
        cache = self._caches[worker]
        if new:
            self._tracked[worker, new] = True
            cache.track(len(new), self._now)
        for partition in partitions:
            if partition // self._scenario.partitions_per_topic in new or cache.generation == 0:
                cache.waiting.add(partition)
            else:
                self._fetch(worker, partition)
        self._plan_wake(worker)

    def _moved(self, partition: int) -> None:
        self._stall(partition, float(self._rng.random()) * self._scenario.fetch_wait_s)

    def _killed(self, broker: int) -> None:
        for partition in self._cluster.led_by(broker, self._now):
            self._stall(partition, self._scenario.round_trip_s)

    def _stall(self, partition: int, noticed_after: float) -> None:
        """Whoever reads the partition cannot do so any more, and will notice."""
        if partition not in self._stalled:
            self._stalled[partition] = self._now
            self._at(self._now + noticed_after, self._fetch, int(self._owner[partition]), partition)

    def _fetch(self, worker: int, partition: int) -> None:
        """The response to a Fetch, or that there will be none."""
        if self._owner[partition] != worker:
            return
        now, cluster = self._now, self._cluster
        known, epoch = int(self._known[worker, partition]), cluster.epoch(partition, now)
        target = cluster.leader(partition, known)
        if not cluster.is_up(target, now):
            self._stalled.setdefault(partition, now)
            self._report(worker, partition, RefreshReason.CONNECTION_LOST, cluster.addresses[target])
        elif known == epoch:
            self._heal(partition)
        elif self._variant.hints:
            self._stalled.setdefault(partition, now)
            self._known[worker, partition] = epoch
            self._caches[worker].take_hint(partition, now)
            self._plan_wake(worker)
            self._at(now + self._scenario.round_trip_s, self._fetch, worker, partition)
        else:
            self._stalled.setdefault(partition, now)
            self._report(worker, partition, RefreshReason.NOT_LEADER, None)

    def _report(self, worker: int, partition: int, reason: RefreshReason, suspect: Address | None) -> None:
        self._caches[worker].report(reason, partition, suspect, self._now)
        self._plan_wake(worker)

    def _heal(self, partition: int) -> None:
        since = self._stalled.pop(partition, None)
        if since is None:
            return
        self._log.stall_s.append(since)
        self._log.heal_s.append(self._now - since)
        if self._batch_waits and not self._stalled:
            self._batch()

    def _plan_wake(self, worker: int) -> None:
        cache = self._caches[worker]
        if cache.asked is not None:
            return  # the response will plan
        due = cache.due_at(self._now)
        if due != cache.wakes_at:
            cache.wakes_at = due
            self._at(due, self._wake, worker)

    def _wake(self, worker: int) -> None:
        cache, now = self._caches[worker], self._now
        if now != cache.wakes_at or cache.asked is not None:
            return  # it was planned anew since
        cache.wakes_at = float("inf")
        if cache.due_at(now) > now:
            self._plan_wake(worker)
            return
        broker = self._broker_ids[cache.begin(self._members(cache), now)]
        if self._cluster.is_up(broker, now):
            self._count_request(cache, broker)
            self._at(now + self._scenario.round_trip_s, self._respond, worker, broker)
        else:
            self._log.refused += 1
            self._at(now + self._scenario.round_trip_s, self._refused, worker)

    def _members(self, cache: CacheModel) -> list[Address]:
        return [] if cache.generation == 0 else self._cluster.members(cache.members_version)

    def _count_request(self, cache: CacheModel, broker: int) -> None:
        scenario = self._scenario
        partitions = cache.topics * scenario.partitions_per_topic
        self._log.request_s.append(self._now)
        self._log.request_broker.append(broker)
        self._log.request_bytes.append(response_bytes(scenario.brokers, cache.topics, partitions))

    def _refused(self, worker: int) -> None:
        cache = self._caches[worker]
        cache.refused(self._members(cache), self._now)
        self._plan_wake(worker)

    def _respond(self, worker: int, broker: int) -> None:
        cache, told = self._caches[worker], self._now - self._cluster.lags[broker]
        newer, anything = self._merge(worker, told)
        for partition in sorted(cache.on_response(newer, anything, self._now)):
            self._at(self._now + self._scenario.round_trip_s, self._fetch, worker, partition)
        self._plan_wake(worker)

    def _merge(self, worker: int, told: float) -> tuple[set[int], bool]:
        """What a response that knows the cluster of the time `told` changes; older epochs change nothing."""
        cache, cluster, known = self._caches[worker], self._cluster, self._known[worker]
        newer_reported: set[int] = set()
        version, members_version = cluster.version(told), cluster.members_version(told)
        anything = members_version != cache.members_version
        cache.members_version = members_version
        if cache.version < 0:
            known[:], cache.version, anything = cluster.epochs(told), version, True
        elif version > cache.version:
            partitions, epochs = cluster.changes(cache.version, version)
            newer = epochs > known[partitions]
            partitions, epochs, cache.version = partitions[newer], epochs[newer], version
            newer_reported = cache.reported.intersection(partitions.tolist()) if cache.reported else set()
            topics = partitions // self._scenario.partitions_per_topic
            anything |= bool(self._tracked[worker, topics].any())
            known[partitions] = epochs
        return newer_reported, anything
