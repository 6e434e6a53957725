"""Known bugs of other clients with stale metadata, which this client does not have."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest

from pyspark_kafka_meta.errors import ReadTimeoutError
from pyspark_kafka_meta.events.event import EventKind
from pyspark_kafka_meta.model import NO_LEADER, Address, Broker, RefreshReason
from tests.partitions import T0
from tests.unit.reader_scene import FIVE, ReaderScene


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> ReaderScene:
    """Five records in t-0, whose leader, broker 1, and epoch 5 are known; requests time out after 3 s."""
    scene = ReaderScene(monkeypatch, **{"kafka.request.timeout.ms": "3000", "kafka.client.rack": ""})
    scene.set_leader(T0, 1, epoch=5)
    scene.append(T0)
    assert scene.read(T0) == FIVE
    scene.clock.sleep(10)
    scene.events.clear()
    scene.network.requests.clear()
    scene.network.fetches.clear()
    return scene


def epochs_sent(scene: ReaderScene) -> list[int]:
    return [entry.leader_epoch for _, request in scene.network.fetches for entry in request.partitions]


def pauses_s(scene: ReaderScene) -> list[float]:
    """Between refreshes, by the age that the response before had reached."""
    return [event.age_ms / 1000 for event in scene.events[1:] if event.age_ms is not None]


def test_epoch_that_really_went_back_strands_no_reader(scene: ReaderScene) -> None:
    """franz-go #119: after an unclean election the lower epoch was refused for ever, in a loop of refreshes."""
    scene.set_leader(T0, 3, epoch=2)
    began = scene.clock()

    assert scene.read(T0) == FIVE
    assert scene.clock() - began < 10
    assert {event.reason for event in scene.events} == {RefreshReason.UNKNOWN_EPOCH}
    assert [event.details.changes.stale_ignored for event in scene.events] == [1] * 5 + [0]
    assert (epochs_sent(scene)[-1], scene.fetched_from()[-1]) == (2, 3)


def test_partition_that_had_no_leader_gets_the_next_one(scene: ReaderScene) -> None:
    """librdkafka #5430: a response without a leader was skipped; the partition stayed with the one that was gone."""
    scene.set_leader(T0, NO_LEADER, epoch=6)
    scene.network.down.add(1)
    scene.clock.at(5, lambda: scene.set_leader(T0, 2, epoch=7))
    began = scene.clock()

    assert scene.read(T0) == FIVE
    assert scene.clock() - began < 5 + 1.3
    assert scene.fetched_from()[-1] == 2


@pytest.mark.parametrize("epoch", [5, 4], ids=["same", "older"])
def test_hint_that_is_not_newer_is_refused_and_the_cache_refreshed(scene: ReaderScene, epoch: int) -> None:
    """franz-go #1413: a hint of the same or an older epoch was obeyed, 475 Fetches in 5 s and not one refresh."""
    scene.network.error_codes[T0] = deque([6] * 10_000)
    scene.clock.at(5, scene.network.error_codes.clear)
    if epoch < 5:
        scene.set_leader(T0, 2, epoch)
        scene.clock.at(4.9, lambda: scene.set_leader(T0, 1, 5))

    assert scene.read(T0) == FIVE
    assert len(scene.network.fetches) < 20
    assert len(scene.events) >= 5
    assert not any(event.kind is EventKind.HINT for event in scene.events)


@pytest.mark.parametrize("hints", [True, False])
def test_fetch_after_a_fence_is_built_anew(scene: ReaderScene, monkeypatch: pytest.MonkeyPatch, hints: bool) -> None:
    """librdkafka #4620, KAFKA-9535: the request in the buffer was sent again with the epoch that had been fenced."""
    if not hints:
        monkeypatch.setattr(scene.cluster, "leader_hint", lambda partition: None)
    scene.set_leader(T0, 1, epoch=6)

    assert scene.read(T0) == FIVE
    assert epochs_sent(scene) == [5, 6]


def test_leader_that_is_no_known_broker_is_asked_for_again(scene: ReaderScene) -> None:
    """KAFKA-9261, KAFKA-20673, franz-go #746: a leader id that is not in the list of brokers was an exception, or hung
    the client until its time was up."""
    newcomer = Broker(4, Address("broker-4", 9092))
    scene.network.down.add(1)
    scene.set_leader(T0, 4, epoch=6)
    scene.clock.at(2, lambda: scene.cluster.brokers.update({4: newcomer}))
    began = scene.clock()

    assert scene.read(T0) == FIVE
    assert scene.clock() - began < 2 + 1.3
    assert scene.events[-1].details.changes.brokers_added == (4,)


def test_inconsistent_topic_id_does_not_spin(scene: ReaderScene) -> None:
    """franz-go #1426, redpanda #30671: after INCONSISTENT_TOPIC_ID the same request was sent again, without a pause."""
    scene.network.error_codes[T0] = deque([103] * 10_000)

    with pytest.raises(ReadTimeoutError, match="INCONSISTENT_TOPIC_ID"):
        scene.read(T0)
    assert len(scene.network.fetches) <= 150, "in the 120 s of the poll time-out"


def test_reader_survives_the_death_of_a_leader(scene: ReaderScene) -> None:
    """aiokafka #1018, kafka-go #1221, confluent-kafka-python #594, DataDog integrations-core #14341: NOT_LEADER, or a
    dead leader's host name, was never got over. Brokers name a dead leader for some 9 s, until its session ends."""
    scene.network.down.add(1)
    scene.clock.at(9, lambda: scene.set_leader(T0, 2, epoch=6))
    began = scene.clock()

    assert scene.read(T0) == FIVE
    assert scene.clock() - began < 9 + 1.3
    assert scene.events[-1].details.recovery_ms == pytest.approx((scene.clock() - began) * 1000, abs=100)
    assert all(later <= 1.3 for later in pauses_s(scene))
    assert all(event.sequence + 1 == other.sequence for event, other in pairwise(scene.events))
