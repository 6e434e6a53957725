"""The simulated cluster: who leads what, who is up, and what each broker has heard of it, all as functions of time.

Brokers restart one after the other. How long a controlled shutdown and a kill -9 take was measured on Apache Kafka 4.1
with its default settings. Sizes are those of a Metadata v12 response in Kafka's wire protocol.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyspark_kafka_meta.model import Address

HANDOVER_S = 0.8
"""A controlled shutdown moves its leaders within this time, then the broker goes."""
SESSION_S = 9.3
"""A killed broker stays in metadata, and leads its partitions there, this long."""
DOWN_S = 20.0
"""From the shutdown, or kill, until the broker accepts connections again."""
RETURN_S = 25.0
"""From the shutdown until the preferred leaders move back to the broker, within `HANDOVER_S`."""
HOST_BYTES, TOPIC_BYTES = 24, 20
"""Lengths of the names of hosts and topics."""
BOOTSTRAP_BROKERS = 3
"""So many brokers are in everybody's bootstrap.servers."""


class SimulatedAddress(Address):
    """Compared as an object: there is one of each, and a hundred comparisons by value take long."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens to whom.

    Attributes:
        partitions: read by the query, spread evenly over `topics`.
        idle_topics: further topics of the cluster, with as many partitions each, that nobody reads.
        restarts: so many brokers restart, in the order of their ids.
        abrupt: by kill -9, not by a controlled shutdown.
        calm_s: from the start of the query to the first restart.
        restart_every_s: from one restart to the next; longer than `RETURN_S` and a hand-over.
        batch_s: length of a micro-batch that nothing delays.
        task_start_s: the tasks of a micro-batch start evenly spread over this time.
        fetch_wait_s: a Fetch that was sent before its leader moved fails within this time.
        round_trip_s: of any request.
        lag_s: the slowest broker hears of a change this late; the others are spread evenly between it and none.
    """

    executors: int = 1_000
    workers_per_executor: int = 4
    brokers: int = 100
    topics: int = 20
    partitions: int = 10_000
    idle_topics: int = 80
    restarts: int = 100
    abrupt: bool = False
    calm_s: float = 400.0
    restart_every_s: float = 30.0
    batch_s: float = 10.0
    task_start_s: float = 1.0
    fetch_wait_s: float = 0.1
    round_trip_s: float = 0.005
    lag_s: float = 0.5

    @property
    def workers(self) -> int:
        return self.executors * self.workers_per_executor

    @property
    def partitions_per_topic(self) -> int:
        return self.partitions // self.topics

    @property
    def end_s(self) -> float:
        return self.calm_s + self.restarts * self.restart_every_s


def response_bytes(brokers: int, topics: int, partitions: int, replicas: int = 3) -> int:
    """Size of a Metadata v12 response with its length prefix, all replicas in sync. 43 bytes of frame and cluster (a
    cluster id of 22 characters); for each broker its id, host, port and no rack; for each topic its name, id, flags and
    error, and the number of its partitions in two bytes; for each partition its number, leader, epoch, error and two
    lists of replicas."""
    per_broker = 4 + 1 + HOST_BYTES + 4 + 1 + 1
    per_topic = 2 + 1 + TOPIC_BYTES + 16 + 1 + 2 + 4 + 1
    per_partition = 2 + 4 + 4 + 4 + 2 * (1 + 4 * replicas) + 1 + 1
    return 43 + brokers * per_broker + topics * per_topic + partitions * per_partition


class Cluster:
    """Nothing in it changes: everything is known from the beginning, and asked for by time.

    Attributes:
        addresses: by broker id.
        moves: (seconds, partition) of each leader change, in order.
    """

    def __init__(self, scenario: Scenario, rng: np.random.Generator) -> None:
        count, ids = scenario.partitions, np.arange(scenario.brokers)
        self.addresses: list[Address] = [SimulatedAddress(f"broker-{broker}", 9092) for broker in ids]
        self.bootstrap = self.addresses[:: -(-scenario.brokers // BOOTSTRAP_BROKERS)]
        self.lags = (ids * scenario.lag_s / max(scenario.brokers - 1, 1)).tolist()
        preferred = rng.permutation(count) % scenario.brokers
        deputy = (preferred + rng.integers(1, scenario.brokers, count)) % scenario.brokers
        # Leader epochs are 1 before the broker restarts, 2 while a deputy leads, 3 from then on.
        by_epoch = [np.full(count, -1), preferred, deputy, preferred]
        self._leaders: list[list[int]] = [leaders.tolist() for leaders in by_epoch]
        starts = np.where(ids < scenario.restarts, scenario.calm_s + ids * scenario.restart_every_s, np.inf)
        away = SESSION_S if scenario.abrupt else HANDOVER_S
        spread = np.zeros(count) if scenario.abrupt else -rng.random(count) * HANDOVER_S
        self._left = starts[preferred] + away + spread
        self._returned = starts[preferred] + RETURN_S + rng.random(count) * HANDOVER_S
        self._left_list: list[float] = self._left.tolist()
        self._returned_list: list[float] = self._returned.tolist()
        self._down = (starts if scenario.abrupt else starts + HANDOVER_S).tolist()
        self._up = (starts + DOWN_S).tolist()
        self.moves = sorted(
            (time, partition)
            for times in (self._left_list, self._returned_list)
            for partition, time in enumerate(times)
            if time < np.inf
        )
        self._move_times = [time for time, _ in self.moves]
        self._moved = np.array([partition for _, partition in self.moves], np.int64)
        self._moved_to = np.array([self.epoch(partition, time) for time, partition in self.moves], np.uint8)
        self._set_members((starts + away).tolist())

    def _set_members(self, removed: Sequence[float]) -> None:
        changes = [(time, broker, -1) for broker, time in enumerate(removed) if time < np.inf]
        changes += [(time, broker, 1) for broker, time in enumerate(self._up) if time < np.inf]
        present = dict.fromkeys(range(len(self.addresses)))
        self._member_times: list[float] = []
        self._members = [list(self.addresses)]
        for time, broker, what in sorted(changes):
            if what < 0:
                del present[broker]
            else:
                present[broker] = None
            self._member_times.append(time)
            self._members.append([self.addresses[one] for one in sorted(present)])

    @property
    def kills(self) -> list[tuple[float, int]]:
        """(seconds, broker) of each end of a process, in order."""
        return [(time, broker) for broker, time in enumerate(self._down) if time < np.inf]

    def is_up(self, broker: int, now: float) -> bool:
        return not self._down[broker] <= now < self._up[broker]

    def epoch(self, partition: int, now: float) -> int:
        return 1 + (self._left_list[partition] <= now) + (self._returned_list[partition] <= now)

    def leader(self, partition: int, epoch: int) -> int:
        return self._leaders[epoch][partition]

    def led_by(self, broker: int, now: float) -> list[int]:
        """The partitions whose leader in metadata is `broker`."""
        return [one for one in range(len(self._left)) if self.leader(one, self.epoch(one, now)) == broker]

    def epochs(self, now: float) -> NDArray[np.uint8]:
        """Of all partitions."""
        return (self._left <= now).view(np.uint8) + (self._returned <= now) + np.uint8(1)

    def version(self, now: float) -> int:
        """Number of leader changes so far: equal versions mean equal epochs."""
        return bisect_right(self._move_times, now)

    def changes(self, version: int, until_version: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Partitions and new epochs of the leader changes between two versions, in order."""
        return self._moved[version:until_version], self._moved_to[version:until_version]

    def members(self, version: int) -> list[Address]:
        """Brokers in metadata."""
        return self._members[version]

    def members_version(self, now: float) -> int:
        return bisect_right(self._member_times, now)
