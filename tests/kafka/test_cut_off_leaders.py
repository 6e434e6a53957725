"""A leader that is cut off from the cluster, but not from its clients, is replaced and goes on serving its old log:
streams and batches read each acknowledged record once, and report no loss."""

from __future__ import annotations

import logging
import math
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from pyspark_kafka_meta.events.event import EventKind, Role
from pyspark_kafka_meta.model import Address, TopicPartition
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.testing.kafka_config import CONTROLLER_ID, HOST, Properties
from pyspark_kafka_meta.testing.kafka_node import free_ports
from tests.kafka.checker import EventRow, Record, duplicates, inconsistent_offsets, lost_writes
from tests.kafka.cluster_tools import create_topic, in_sync, poll_until, topic_on_each_broker
from tests.kafka.harness import SteadyProducer, Stream
from tests.tcp_proxy import Network, TcpProxy

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CUTS = int(os.environ.get("KAFKAMETA_CUTS", "1"))
READ_TIMEOUT_S = 30.0
"""Far above what a leader change costs."""


class Batches(Stream):
    """Batch queries over a topic from its start to its end, one after the other. Each has a planner of its own, as in
    Spark's driver, and all have the same worker.

    Attributes:
        faults: of all batches. A batch must have the records that were acknowledged before it was planned.
    """

    def __init__(self, servers: str, producer: SteadyProducer, folder: Path, **options: str) -> None:
        super().__init__(servers, [producer.topic], folder, **options)
        self._producer = producer
        self._ends: dict[TopicPartition, int] = {}
        self.faults: Counter[str] = Counter()

    def run_batch(self) -> None:
        acked, options = list(self._producer.acked), self._options.for_batch()
        with closing(self._client(Role.PLANNER, options.client)) as client:
            planner = OffsetPlanner(client, options)
            rows = self.read(planner.tasks(planner.batch_ranges()))
        self.faults += read_faults(acked, rows)
        self._ends = {row.log: row.offset + 1 for row in rows}

    def positions(self) -> dict[TopicPartition, int]:
        return self._ends


def read_faults(acked: Sequence[Record], rows: Sequence[Record]) -> Counter[str]:
    """How many records were lost or repeated, or have another value than acknowledged."""
    wrong = inconsistent_offsets([*acked, *rows])
    return +Counter(lost=len(lost_writes(acked, rows)), repeated=len(duplicates(rows)), wrong=len(wrong))


def faults(reader: Stream, acked: Sequence[Record]) -> Counter[str]:
    """Of a reader after its end: also losses that it reported, and its error."""
    found = reader.faults if isinstance(reader, Batches) else read_faults(acked, reader.rows)
    events = reader.events("planner") + reader.events()
    losses = [event for event in events if event["kind"] == EventKind.DATA_LOSS]
    errors = [] if reader.error is None else [f"{type(reader.error).__name__}: {reader.error}"]
    return found + Counter(data_loss=len(losses)) + Counter(errors)


def refreshes_of(reader: Stream) -> list[EventRow]:
    """Of the caches that outlive a batch."""
    events = reader.events() + ([] if isinstance(reader, Batches) else reader.events("planner"))
    return [event for event in events if event["kind"] == EventKind.REFRESH]


def seconds_until_read(
    readers: Mapping[str, Stream], ends: Mapping[TopicPartition, int], since: float
) -> dict[str, float]:
    """By reader, when it had read up to these ends: infinite for those that failed, or had not after
    `READ_TIMEOUT_S`."""
    found: dict[str, float] = {}

    def have_all_read() -> bool:
        for name, reader in readers.items():
            positions = reader.positions()
            if reader.error is not None:
                found.setdefault(name, math.inf)
            elif all(positions.get(log, 0) >= end for log, end in ends.items()):
                found.setdefault(name, time.monotonic() - since)
        return len(found) == len(readers)

    with suppress(AssertionError):
        poll_until(have_all_read, READ_TIMEOUT_S)
    return dict.fromkeys(readers, math.inf) | found


@dataclass(frozen=True, slots=True)
class Round:
    """A topic whose partition 0 is led by the broker that will be cut off, and the other by another broker.

    Attributes:
        running: read all the time.
        late: batches whose workers learn the leaders before the cut, and read again after the election.
    """

    kafka: CutOffKafka
    victim: int
    log: TopicPartition
    producer: SteadyProducer
    running: Mapping[str, Stream]
    late: Mapping[str, Stream]

    @classmethod
    def prepare(cls, kafka: CutOffKafka, victim: int, folder: Path) -> Self:
        topic, servers = f"cut-off-{uuid.uuid4().hex}", kafka.bootstrap_servers
        others = [broker_id for broker_id in kafka.broker_ids if broker_id != victim]
        create_topic(kafka, topic, [[victim, *others], [*others, victim]])
        producer = SteadyProducer(servers, topic, partitions=2)
        running: dict[str, Stream] = {}
        late: dict[str, Stream] = {}
        for strict in ("true", "false"):
            options = {"failOnDataLoss": strict}
            running[f"stream {strict}"] = Stream(servers, [topic], folder / f"stream-{strict}", **options)
            running[f"batches {strict}"] = Batches(servers, producer, folder / f"batches-{strict}", **options)
            late[f"late batches {strict}"] = Batches(servers, producer, folder / f"late-{strict}", **options)
        return cls(kafka, victim, TopicPartition(topic, 0), producer, running, late)

    @property
    def readers(self) -> dict[str, Stream]:
        return {**self.running, **self.late}

    def play(self) -> dict[str, float]:
        """Read while the leader is cut off, then until all acknowledged records are read. Returns the seconds from the
        cut to what followed, by reader to its first row of the next leader."""
        with ExitStack() as reading:
            for reader in self.readers.values():
                reading.callback(reader.close)
            for reader in self.running.values():
                reading.enter_context(reader)
            with self.producer:
                poll_until(lambda: len(self.producer.ends()) == 2)
                for reader in self.late.values():
                    reader.run_batch()
                seconds_until_read(self.running, self.producer.ends(), 0)
                with self.kafka.cut_off(self.victim):
                    times = self._read_of_next_leader(reading)
                poll_until(lambda: in_sync(self.kafka, self.log.topic, 3))
            seconds_until_read(self.readers, self.producer.ends(), 0)
        return times

    def _read_of_next_leader(self, reading: ExitStack) -> dict[str, float]:
        cut_at = time.monotonic()
        poll_until(self._only_victim_names_itself)
        times = {"another leads": time.monotonic() - cut_at}
        acked = self.producer.ends()[self.log]
        poll_until(lambda: self.producer.ends()[self.log] > acked)
        times["acknowledged"] = time.monotonic() - cut_at
        for reader in self.late.values():
            known = reader.reader_client.cache.snapshot.leader(self.log)
            assert known is not None and known.broker.node_id == self.victim
            reading.enter_context(reader)
        times |= seconds_until_read(self.readers, {self.log: acked + 1}, cut_at)
        assert self._only_victim_names_itself()
        return times

    def _only_victim_names_itself(self) -> bool:
        views = topic_on_each_broker(str(self.kafka.address(self.victim)), self.log.topic)
        leaders = [partition.leader_id for view in views if view is not None for partition in view.partitions]
        return leaders.count(self.victim) == 1


@pytest.fixture(scope="module")
def kafka() -> Iterator[CutOffKafka]:
    with ExitStack() as stack:
        yield stack.enter_context(CutOffKafka(stack))


@pytest.mark.parametrize("number", range(CUTS))
def test_a_leader_unaware_of_its_successor_hides_no_record(kafka: CutOffKafka, tmp_path: Path, number: int) -> None:
    played = Round.prepare(kafka, kafka.broker_ids[number % len(kafka.broker_ids)], tmp_path)
    times = played.play()
    seconds = {name: round(time_s, 1) for name, time_s in times.items()}
    refreshes = Counter(event["reason"] for reader in played.readers.values() for event in refreshes_of(reader))
    found = {name: dict(faults(reader, played.producer.acked)) for name, reader in played.readers.items()}
    logger.info("round %d: %s s after the cut; refreshes: %s; %s", number, seconds, dict(refreshes), found)
    assert not any(found.values()), found
    assert max(times.values()) < READ_TIMEOUT_S, seconds


class Link(NamedTuple):
    """The connections that node `source` opens to node `target`."""

    source: int
    target: int

    @property
    def listener(self) -> str:
        """Of `target`. Brokers must not have the name of a controller's listener."""
        return f"{'CONTROLLER' if self.target == CONTROLLER_ID else 'BROKER'}_{self.source}"


class CutOffKafka(LocalKafka):
    """Three brokers. The controller replaces the leaders of a silent broker after 3 s."""

    def __init__(self, stack: ExitStack) -> None:
        """The proxies run as long as `stack`."""
        super().__init__(config={"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"})
        links = [Link(*ends) for ends in product(self.broker_ids, (CONTROLLER_ID, *self.broker_ids))]
        self._proxies = {link: stack.enter_context(TcpProxy()) for link in links}
        for proxy, port in zip(self._proxies.values(), free_ports(len(links)), strict=True):
            proxy.target = Address(HOST, port)

    @contextmanager
    def cut_off(self, broker_id: int) -> Iterator[None]:
        """All packets between the broker and the other nodes are lost inside `with`, and sent again after it."""
        proxies = [proxy for link, proxy in self._proxies.items() if link.count(broker_id) == 1]
        for proxy in proxies:
            proxy.network = Network.HOLDS_ALL
        try:
            yield
        finally:
            for proxy in proxies:
                proxy.network = Network.GOOD

    def _controller_properties(self, folder: Path) -> Properties:
        names = ",".join(link.listener for link in self._proxies if link.target == CONTROLLER_ID)
        listeners = self._listeners(CONTROLLER_ID)
        return {**super()._controller_properties(folder), **listeners, "controller.listener.names": names}

    def _broker_properties(self, broker_id: int, folder: Path) -> Properties:
        to_controller = Link(broker_id, CONTROLLER_ID)
        return {
            **super()._broker_properties(broker_id, folder),
            **self._listeners(broker_id, f"PLAINTEXT://{self.address(broker_id)}"),
            "inter.broker.listener.name": Link(broker_id, broker_id).listener,
            "controller.listener.names": to_controller.listener,
            "controller.quorum.voters": f"{CONTROLLER_ID}@{self._proxies[to_controller].address}",
        }

    def _listeners(self, node_id: int, *of_clients: str) -> Properties:
        own = {link.listener: proxy for link, proxy in self._proxies.items() if link.target == node_id}
        names = {"PLAINTEXT", *(link.listener for link in self._proxies)}
        return {
            "listeners": ",".join([*of_clients, *(f"{name}://{proxy.target}" for name, proxy in own.items())]),
            "advertised.listeners": ",".join(
                [*of_clients, *(f"{name}://{proxy.address}" for name, proxy in own.items())]
            ),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in sorted(names)),
        }
