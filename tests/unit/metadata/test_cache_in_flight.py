"""A Metadata request that its caller does not wait for."""

from __future__ import annotations

import math
from typing import NoReturn

import pytest

from pyspark_kafka_meta.metadata.refresh_events import EventKind, Outcome
from pyspark_kafka_meta.model import LeaderHint, RefreshReason
from tests.partitions import T0
from tests.unit.metadata.cache_scene import Scene


def asking() -> Scene:
    """A refresh is under way that no broker answers yet."""
    scene = Scene().bootstrapped()
    scene.wire.hung_metadata |= {1, 2, 3}
    scene.report()
    look(scene)
    assert scene.cache.has_request_in_flight
    return scene


def look(scene: Scene) -> bool:
    """Take the answer if it has come."""
    return scene.cache.refresh_if_due(scene.deadline(), until=scene.clock())


def test_cache_answers_while_a_request_is_under_way_and_sends_no_other() -> None:
    scene = asking()
    began = scene.clock()
    for _ in range(3):
        scene.report()
        assert not look(scene)

    assert scene.leader_id() == 1
    assert scene.cache.time_to_next_update_ms() == math.inf
    assert (len(scene.wire.requests), scene.events, scene.clock()) == (1, [], began)


def test_answer_is_taken_once_it_has_come_and_is_one_event() -> None:
    scene = asking()
    scene.cluster.move_leader(T0, 2)
    scene.clock.sleep(1)
    scene.wire.hung_metadata.clear()

    assert look(scene)
    assert scene.leader_id() == 2
    [event] = scene.events
    assert (event.reason, event.attempt, event.latency_ms) == (RefreshReason.NOT_LEADER, 1, 1_000)
    assert not scene.cache.has_request_in_flight


def test_broker_that_does_not_answer_in_time_is_left_for_another() -> None:
    scene = asking()
    scene.clock.sleep(3)
    assert not look(scene)
    [event] = scene.events
    assert "did not answer in time" in str(event.error)
    scene.wire.hung_metadata.clear()

    assert look(scene)
    assert [event.attempt for event in scene.events] == [1, 2]
    assert scene.events[0].broker_id != scene.events[1].broker_id


def test_answer_that_waited_for_its_caller_is_as_old_as_its_request() -> None:
    scene = asking()
    scene.clock.sleep(200)
    scene.wire.hung_metadata.clear()
    assert look(scene)

    assert scene.cache.time_to_next_update_ms() == 100_000
    assert scene.refresh_when_due().age_ms == 300_000


def test_refresh_is_not_content_with_the_answer_to_an_earlier_request() -> None:
    scene = asking()
    scene.wire.hung_metadata.clear()
    scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())

    assert [event.reason for event in scene.events] == [RefreshReason.NOT_LEADER, RefreshReason.ON_DEMAND]
    assert len({event.broker_id for event in scene.events}) == 2


def test_topic_that_came_into_use_while_a_request_was_under_way_is_asked_for_by_another() -> None:
    scene = asking()
    scene.cluster.create_topic("u")
    scene.cache.track(["u"])
    scene.wire.hung_metadata.clear()
    assert look(scene)
    assert not scene.cache.snapshot.partitions("u")

    assert scene.refresh_when_due().reason is RefreshReason.NEW_TOPIC
    assert scene.cache.snapshot.partitions("u")


def test_hint_taken_while_a_request_was_under_way_is_confirmed_by_another() -> None:
    scene = asking()
    assert scene.cache.take_hint(T0, LeaderHint(3, 1, None), scene.cache.snapshot.generation)
    scene.wire.hung_metadata.clear()
    assert look(scene)

    assert scene.leader_id() == 3
    assert scene.cache.time_to_next_update_ms() < 1_000


def test_request_under_way_at_the_end_has_its_event() -> None:
    scene = asking()
    scene.clock.sleep(1)
    scene.cache.close()

    refresh, closed = scene.events
    assert (refresh.kind, refresh.outcome, refresh.latency_ms) == (EventKind.REFRESH, Outcome.FAILED, 1_000)
    assert closed.kind is EventKind.CLOSED


def test_unexpected_exception_leaves_no_request_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = asking()
    scene.wire.hung_metadata.clear()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(scene.wire, "receive_metadata", interrupted)
        look(scene)

    assert scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline()).generation == 2


def interrupted(_: float) -> NoReturn:
    raise KeyboardInterrupt
