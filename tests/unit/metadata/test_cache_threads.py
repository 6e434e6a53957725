"""A cache that several threads share."""

from __future__ import annotations

import threading
from collections.abc import Collection

from pyspark_kafka_meta.metadata.cache import MetadataCache
from pyspark_kafka_meta.metadata.events import RefreshEvent, RefreshReason
from pyspark_kafka_meta.metadata.model import Address, LeaderHint, MetadataAnswer
from pyspark_kafka_meta.metadata.policy import PolicySettings
from tests.partitions import T0
from tests.unit.fake_wire import FakeClock, FakeWire
from tests.unit.metadata.cache_scene import BROKER_1


class GatedWire:
    """Answers when it is told to, so that a test can look at what other threads do meanwhile."""

    def __init__(self, inner: FakeWire) -> None:
        self._inner = inner
        self.entered, self.open = threading.Event(), threading.Event()
        self.asked: list[frozenset[str]] = []

    def metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> MetadataAnswer:
        self.asked.append(frozenset(topics or ()))
        self.entered.set()
        assert self.open.wait(10)
        return self._inner.metadata(address, topics, deadline)


class CrowdClock(FakeClock):
    """Tells when a number of threads have looked at it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen_by: set[int] = set()
        self.crowd = 0
        self.crowded = threading.Event()

    def __call__(self) -> float:
        self.seen_by.add(threading.get_ident())
        if len(self.seen_by) == self.crowd:
            self.crowded.set()
        return super().__call__()


class Gate:
    """A cache over a `GatedWire`; topics t and u exist, t is tracked."""

    def __init__(self) -> None:
        self.clock = CrowdClock()
        inner = FakeWire(clock=self.clock)
        inner.cluster.create_topic("t", partitions=2)
        inner.cluster.create_topic("u")
        self.wire = GatedWire(inner)
        self.events: list[RefreshEvent] = []
        self.cache = MetadataCache(
            self.wire,
            [BROKER_1],
            PolicySettings(),
            request_timeout_ms=5_000,
            publish=self.events.append,
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        self.events.clear()
        self.cache.track(["t"])

    def refresh(self) -> None:
        self.cache.refresh(RefreshReason.ON_DEMAND, self.clock.now + 60)

    def start_refresh(self) -> threading.Thread:
        """A thread whose request is under way when this returns."""
        self.wire.entered.clear()
        self.wire.open.clear()
        thread = threading.Thread(target=self.refresh)
        thread.start()
        assert self.wire.entered.wait(10)
        return thread

    def finish(self, *threads: threading.Thread) -> None:
        self.wire.open.set()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


def test_threads_that_want_a_refresh_share_one_request() -> None:
    gate = Gate()
    first = gate.start_refresh()
    gate.clock.seen_by.clear()
    gate.clock.crowd = 4
    others = [threading.Thread(target=gate.refresh) for _ in range(4)]
    for thread in others:
        thread.start()
    assert gate.clock.crowded.wait(10), "all of them have asked for a refresh"
    gate.finish(first, *others)

    assert gate.cache.snapshot.generation == len(gate.wire.asked) == len(gate.events) == 1


def test_cache_answers_while_a_request_is_under_way() -> None:
    gate = Gate()
    thread = gate.start_refresh()

    assert gate.cache.leader(T0) is None
    assert gate.cache.snapshot.generation == 0
    assert gate.cache.time_to_next_update_ms() == 0
    gate.finish(thread)
    assert gate.cache.leader(T0) is not None


def test_who_waits_for_the_request_of_another_thread_gives_up_by_its_deadline() -> None:
    gate = Gate()
    thread = gate.start_refresh()

    assert not gate.cache.refresh_if_due(gate.clock.now + 0.01)
    assert thread.is_alive()
    gate.finish(thread)


def test_topic_that_came_into_use_while_a_request_was_under_way_is_asked_for_by_another() -> None:
    gate = Gate()
    thread = gate.start_refresh()
    gate.cache.track(["u"])
    gate.finish(thread)
    gate.clock.sleep(gate.cache.time_to_next_update_ms() / 1000)
    gate.cache.refresh_if_due(gate.clock.now + 60)

    assert gate.wire.asked == [frozenset({"t"}), frozenset({"t", "u"})]
    assert gate.events[-1].reason is RefreshReason.NEW_TOPIC


def test_hint_taken_while_a_request_was_under_way_is_confirmed_by_another() -> None:
    gate = Gate()
    gate.finish(gate.start_refresh())
    gate.clock.sleep(10)
    thread = gate.start_refresh()
    assert gate.cache.take_hint(T0, LeaderHint(3, 1, None), generation=1)
    gate.finish(thread)

    assert gate.cache.snapshot.leader(T0).broker.node_id == 3  # type: ignore[union-attr]
    assert gate.cache.time_to_next_update_ms() < 1_000
