"""A Metadata request in flight, for which the caller does not wait."""

from __future__ import annotations

import math
from typing import NoReturn

import pytest

from pyspark_kafka_meta.model import LeaderHint, RefreshReason
from tests.partitions import T0
from tests.unit.fake_network import about_ms, about_s
from tests.unit.kafka.metadata.cache_scene import Scene


def asking() -> Scene:
    """A cache with a request in flight."""
    scene = Scene().bootstrapped()
    scene.network.hung_metadata |= {1, 2, 3}
    scene.report()
    look(scene)
    assert scene.cache.has_request_in_flight
    return scene


def look(scene: Scene) -> bool:
    """Take the response if it has arrived."""
    return scene.cache.refresh_if_due(scene.deadline(), until=scene.clock())


def test_lookups_work_while_a_request_is_in_flight() -> None:
    scene = asking()
    began = scene.clock()
    for _ in range(3):
        scene.report()
        assert not look(scene)

    assert scene.leader_id() == 1
    assert scene.cache.time_to_next_update_ms() == math.inf
    assert (len(scene.network.requests), scene.facts, scene.clock()) == (1, [], about_s(began))


def test_response_is_merged_when_it_arrives() -> None:
    scene = asking()
    scene.cluster.move_leader(T0, 2)
    scene.clock.sleep(1)
    scene.network.hung_metadata.clear()

    assert look(scene)
    assert scene.leader_id() == 2
    [fact] = scene.facts
    assert (fact.cause.reason, fact.attempt, fact.latency_ms) == (RefreshReason.NOT_LEADER, 1, about_ms(1_000))
    assert not scene.cache.has_request_in_flight


def test_timeout_leads_to_another_broker() -> None:
    scene = asking()
    scene.clock.sleep(3)
    assert not look(scene)
    [fact] = scene.facts
    assert "did not answer in time" in str(fact.error)
    scene.network.hung_metadata.clear()

    assert look(scene)
    assert [fact.attempt for fact in scene.facts] == [1, 2]
    assert scene.facts[0].broker_id != scene.facts[1].broker_id


def test_age_of_metadata_starts_at_the_request() -> None:
    scene = asking()
    scene.clock.sleep(200)
    scene.network.hung_metadata.clear()
    assert look(scene)

    assert scene.cache.time_to_next_update_ms() == about_ms(100_000)
    after = scene.refresh_when_due()
    assert after.began - after.fetched_before == about_s(300)


def test_refresh_sends_its_own_request() -> None:
    scene = asking()
    scene.network.hung_metadata.clear()
    scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())

    assert [fact.cause.reason for fact in scene.facts] == [RefreshReason.NOT_LEADER, RefreshReason.ON_DEMAND]
    assert len({fact.broker_id for fact in scene.facts}) == 2


def test_topic_added_during_a_request_needs_another_request() -> None:
    scene = asking()
    scene.cluster.create_topic("u")
    scene.cache.track(["u"])
    scene.network.hung_metadata.clear()
    assert look(scene)
    assert not scene.cache.snapshot.partitions("u")

    assert scene.refresh_when_due().cause.reason is RefreshReason.NEW_TOPIC
    assert scene.cache.snapshot.partitions("u")


def test_hint_during_a_request_needs_another_request() -> None:
    scene = asking()
    assert scene.cache.take_hint(T0, LeaderHint(3, 1, None), scene.cache.snapshot.generation)
    scene.network.hung_metadata.clear()
    assert look(scene)

    assert scene.leader_id() == 3
    assert scene.cache.time_to_next_update_ms() < 1_000


def test_request_in_flight_at_close_is_reported() -> None:
    scene = asking()
    scene.clock.sleep(1)
    scene.cache.close()

    [refresh] = scene.facts
    assert refresh.latency_ms == about_ms(1_000)
    assert "did not respond before the cache was closed" in refresh.error


def test_unexpected_exception_leaves_no_request_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = asking()
    scene.network.hung_metadata.clear()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(scene.network, "receive_metadata", interrupted)
        look(scene)

    assert scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline()).generation == 2


def interrupted(_: float) -> NoReturn:
    raise KeyboardInterrupt
