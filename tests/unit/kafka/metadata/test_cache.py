"""The cache as callers see it: its requests and its facts."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import NoReturn

import pytest

from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.kafka.metadata.cache_state import LeaderHinted, Refreshed
from pyspark_kafka_meta.kafka.metadata.refresh_policy import RefreshCause
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, SnapshotChanges
from pyspark_kafka_meta.kafka.protocol.error_codes import INVALID_TOPIC_EXCEPTION
from pyspark_kafka_meta.model import (
    NO_LEADER,
    Address,
    Broker,
    LeaderHint,
    MetadataResponse,
    RefreshReason,
    TopicEpoch,
    TopicPartition,
)
from tests.partitions import T0, T1
from tests.unit.fake_network import about_ms, about_s
from tests.unit.kafka.metadata.cache_scene import BROKER_1, Scene


def test_one_bootstrap_address_suffices() -> None:
    scene = Scene()
    snapshot = scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())

    assert sorted(snapshot.brokers) == [1, 2, 3]
    assert (scene.leader_id(T0), scene.leader_id(T1)) == (1, 2)
    [fact] = scene.facts
    assert (fact.cause.reason, fact.error, fact.recovery_ms) == (RefreshReason.BOOTSTRAP, None, None)
    assert (fact.broker_id, fact.broker_host, fact.broker_port) == (1, "broker-1", 9092)
    assert (fact.generation_before, snapshot.generation, snapshot.cluster_id) == (0, 1, "fake-cluster")
    assert (fact.api_version, fact.correlation_id, fact.request_bytes, fact.response_bytes) == (12, 1, 40, 400)
    assert fact.changes.brokers_added == (1, 2, 3)


def test_many_lookups_need_no_request_and_are_counted(scene: Scene) -> None:
    for _ in range(500):
        scene.cache.leader(T0)
    scene.report()
    scene.refresh_when_due()

    assert len(scene.network.requests) == 1
    assert (scene.cache.lookups, scene.cache.last_lookup) == (500, about_s(scene.clock()))


def test_no_request_before_a_refresh_is_due(scene: Scene) -> None:

    assert not scene.cache.refresh_if_due(scene.deadline())
    assert scene.cache.time_to_next_update_ms() == about_ms(290_000)
    scene.clock.sleep(290)
    assert scene.cache.refresh_if_due(scene.deadline())
    [fact] = scene.facts
    assert (fact.cause.reason, bool(fact.changes)) == (RefreshReason.MAX_AGE, False)
    assert fact.began - fact.fetched_before == about_s(300)


def test_periodic_refresh_finds_new_partitions(scene: Scene) -> None:
    topic = scene.cluster.topics["t"]
    added = replace(topic.partitions[0], partition=2)
    scene.cluster.topics["t"] = replace(topic, partitions=(*topic.partitions, added))
    fact = scene.refresh_when_due()

    assert fact.changes.partitions_added == (TopicPartition("t", 2),)
    assert scene.cache.snapshot.partitions("t")[-1] == TopicPartition("t", 2)


def test_fact_of_a_moved_leader_has_reason_broker_and_recovery_time(scene: Scene) -> None:
    scene.cluster.move_leader(T0, 3)
    scene.report(node_id=1)
    scene.clock.sleep(2)
    fact = scene.refresh_when_due()

    assert scene.leader_id() == 3
    assert fact.cause == RefreshCause(RefreshReason.NOT_LEADER, 6, T0, 1)
    assert fact.changes.leaders_changed == (LeaderChange("t", 0, 1, 3, 0, 1),)
    assert fact.recovery_ms == about_ms(2_000)


def test_errors_of_one_generation_cause_one_request(scene: Scene) -> None:
    used = scene.cache.snapshot.generation
    for _ in range(5):
        scene.report()
    scene.refresh_when_due()

    assert not scene.cache.refresh_if_due(scene.deadline())
    scene.cache.request_update(RefreshReason.NOT_LEADER, used, T0, 6, 1)
    assert scene.cache.time_to_next_update_ms() == about_ms(300_000), "an older generation"
    assert len(scene.network.requests) == len(scene.facts) == 1


def test_backoff_grows_while_responses_are_stale(scene: Scene) -> None:
    """librdkafka #4577, #4685: refreshes that changed nothing followed each other without a pause."""
    scene.network.down.add(1)
    times = []
    for _ in range(9):
        scene.report(RefreshReason.CONNECTION_LOST, node_id=1)
        assert not scene.refresh_when_due().changes
        times.append(scene.clock())
    scene.cluster.move_leader(T0, 2)
    scene.report(RefreshReason.CONNECTION_LOST, node_id=1)
    fact = scene.refresh_when_due()

    assert [round((b - a) * 1000) for a, b in pairwise(times)] == [100, 200, 400, 800, *[1000] * 4]
    assert scene.leader_id() == 2
    assert fact.recovery_ms == pytest.approx(6_500, abs=0.1)


def test_stale_broker_is_not_the_only_one_used(scene: Scene) -> None:
    scene.network.cut_off(1)
    scene.cluster.move_leader(T0, 3)
    scene.report()
    first = scene.refresh_when_due()
    scene.report()
    second = scene.refresh_when_due()

    assert (first.broker_id, bool(first.changes)) == (1, False)
    assert second.broker_id != 1
    assert scene.leader_id() == 3


def test_lagging_broker_does_not_bring_back_an_old_leader(scene: Scene) -> None:
    """librdkafka #4687, #5593, #4976, #3399."""
    scene.network.cut_off(1)
    scene.cluster.move_leader(T0, 3)
    scene.report(RefreshReason.CONNECTION_LOST, node_id=1)
    assert scene.refresh_when_due().broker_id != 1
    scene.network.down |= {2, 3}
    scene.report()
    while scene.refresh_when_due().error is not None:
        pass

    assert scene.facts[-1].broker_id == 1
    assert scene.facts[-1].changes.stale_ignored == 1
    assert scene.leader_id() == 3


def test_refresh_by_age_asks_another_broker_than_the_last(scene: Scene) -> None:
    """The last may be cut off from the cluster: nothing else would show it."""
    for _ in range(10):
        assert scene.refresh_when_due().cause.reason is RefreshReason.MAX_AGE

    asked = [fact.broker_id for fact in scene.facts]
    assert all(before != after for before, after in pairwise(asked))


def test_refresh_for_a_new_topic_asks_the_last_responding_broker(scene: Scene) -> None:
    for number in range(10):
        scene.cache.track([f"t{number}"])
        scene.refresh_when_due()

    assert {fact.broker_id for fact in scene.facts} == {1}


def test_epochs_of_a_plan_that_come_before_the_metadata_count_too() -> None:
    scene = Scene()
    topic_id = scene.cluster.topics["t"].topic_id
    assert topic_id is not None
    scene.cluster.move_leader(T0, 2)
    scene.cache.raise_epochs({T0: TopicEpoch(topic_id, 2)})
    scene.bootstrapped()

    assert scene.cache.leader(T0) is None
    scene.cluster.move_leader(T0, 3)
    scene.report()
    scene.refresh_when_due()
    assert scene.leader_id() == 3


@pytest.mark.parametrize(
    "reason", [RefreshReason.CONNECTION_LOST, RefreshReason.REQUEST_TIMEOUT, RefreshReason.ON_DEMAND]
)
def test_refresh_avoids_the_unreachable_broker_or_doubted_leader(scene: Scene, reason: RefreshReason) -> None:
    scene.refresh_when_due()
    scene.report(reason, node_id=1)

    assert scene.refresh_when_due().broker_id in (2, 3)


def test_only_tracked_topics_are_requested() -> None:
    scene = Scene()
    scene.cluster.create_topic("other")
    scene.bootstrapped()

    assert list(scene.cache.snapshot.topics) == ["t"]
    scene.cache.track(["t"])
    assert scene.cache.time_to_next_update_ms() > 0, "nothing new"
    scene.cache.track(["other"])
    assert scene.refresh_when_due().cause.reason is RefreshReason.NEW_TOPIC
    assert sorted(scene.cache.snapshot.topics) == ["other", "t"]


def test_missing_topic_leaves_the_requests_after_its_last_lookup() -> None:
    scene = Scene()
    scene.cluster.create_topic("yesterday")
    scene.cache.track(["yesterday"])
    scene.bootstrapped()
    del scene.cluster.topics["yesterday"]
    real, requested = scene.network.metadata, []

    def metadata(address: Address, topics: Collection[str] | None, deadline: float) -> MetadataResponse:
        requested.append(sorted(topics or ()))
        return real(address, topics, deadline)

    scene.network.metadata = metadata  # type: ignore[method-assign]
    for wanted in (True, True, False, False):
        scene.clock.sleep(200)
        if wanted:
            scene.cache.leader(TopicPartition("yesterday", 0))
        scene.cache.refresh(RefreshReason.MAX_AGE, scene.deadline())

    assert requested == [["t", "yesterday"]] * 3 + [["t"]]


def test_topic_without_a_response_stays_in_requests() -> None:
    scene = Scene()
    real, back_at = scene.network.metadata, scene.clock() + 400

    def metadata(address: Address, topics: Collection[str] | None, deadline: float) -> MetadataResponse:
        if scene.clock() < back_at:
            raise ConnectError("down")
        return real(address, topics, deadline)

    scene.network.metadata = metadata  # type: ignore[method-assign]

    assert list(scene.cache.refresh(RefreshReason.BOOTSTRAP, back_at + 100).topics) == ["t"]


@pytest.mark.parametrize("code", [3, 29])
def test_topic_error_is_no_failed_refresh(code: int) -> None:
    scene = Scene()
    scene.network.metadata_errors["t"] = code
    snapshot = scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())

    assert snapshot.topic_errors.get("t") == code
    assert scene.leader_id() is None


def test_partition_gets_a_leader_again(scene: Scene) -> None:
    scene.cluster.move_leader(T0, NO_LEADER)
    scene.report()
    assert scene.refresh_when_due().recovery_ms is None
    assert scene.leader_id() is None
    scene.cluster.move_leader(T0, 2)
    scene.cache.request_update(RefreshReason.NO_LEADER, scene.cache.snapshot.generation, T0)
    fact = scene.refresh_when_due()

    assert scene.leader_id() == 2
    assert fact.recovery_ms is not None


def test_a_shorter_backoff_makes_more_attempts_and_a_shorter_recovery() -> None:
    """As docs/options.md explains."""
    healed = []
    for backoff_ms in (100, 1_000):
        scene = Scene(retry_backoff_ms=backoff_ms, retry_backoff_max_ms=10 * backoff_ms).bootstrapped()
        scene.cluster.move_leader(T0, 3)
        scene.report()
        scene.network.down |= {1, 2, 3}
        began = scene.clock()
        while scene.clock() < began + 20.5:
            scene.refresh_when_due()
        scene.network.down.clear()
        healed.append(scene.refresh_when_due())
    eager, patient = healed

    assert eager.attempt > 2 * patient.attempt
    assert eager.recovery_ms is not None
    assert patient.recovery_ms is not None
    assert 20_500 <= eager.recovery_ms < patient.recovery_ms


def test_every_request_is_one_fact() -> None:
    scene = Scene(BROKER_1, Address("dead", 1))
    for step in range(60):
        scene.network.down = {step % 4}
        scene.network.hung = {(step + 1) % 5} - scene.network.down
        if step % 3 == 0:
            scene.cluster.move_leader(T0, 1 + step % 3)
        scene.report()
        scene.refresh_when_due()
    scene.cache.take_hint(T0, LeaderHint(2, 1_000, None), scene.cache.snapshot.generation)
    *refreshes, hint = scene.facts

    assert len(refreshes) == len(scene.network.requests) == 60
    assert {type(fact) for fact in refreshes} == {Refreshed}
    assert isinstance(hint, LeaderHinted)
    assert {(fact.error is None, bool(fact.changes)) for fact in refreshes} == {
        (False, False),
        (True, False),
        (True, True),
    }


def test_topic_whose_name_is_refused_is_requested_once_for_each_lookup(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[Collection[str]] = []
    send = scene.network.send_metadata

    def record(address: Address, topics: Collection[str] | None, deadline: float) -> None:
        requested.append(sorted(topics or ()))
        send(address, topics, deadline)

    monkeypatch.setattr(scene.network, "send_metadata", record)
    scene.network.metadata_errors["refused"] = INVALID_TOPIC_EXCEPTION
    for _ in range(2):
        assert scene.cache.track(["refused"]) == {"refused"}
        scene.cache.refresh(RefreshReason.NEW_TOPIC, scene.deadline())
        assert scene.cache.snapshot.topic_errors == {"refused": INVALID_TOPIC_EXCEPTION}
        assert scene.cache.time_to_next_update_ms() > 200_000
        scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())

    assert requested == [["refused", "t"], ["t"]] * 2


# --- leader hints in error responses (KIP-951) ------------------------------------------------------------------------


def test_hint_moves_the_leader_and_a_refresh_confirms_it(scene: Scene) -> None:
    scene.cluster.move_leader(T0, 3)

    assert scene.cache.take_hint(T0, LeaderHint(3, 1, None), generation=1, error_code=6, node_id=1)
    assert scene.leader_id() == 3
    assert scene.network.requests == []
    [hint] = scene.facts
    changes = SnapshotChanges(leaders_changed=(LeaderChange("t", 0, 1, 3, 0, 1),))
    assert hint == LeaderHinted(RefreshCause(RefreshReason.LEADER_HINT, 6, T0, 1), 0.0, changes)
    assert scene.cache.snapshot.generation == 1

    assert scene.refresh_when_due().cause.reason is RefreshReason.LEADER_HINT
    assert not scene.facts[-1].changes


def test_refresh_corrects_a_wrong_hint(scene: Scene) -> None:
    """AutoMQ #3546: a wrong hint suppressed the refresh that would have put it right, for up to 5 minutes."""
    scene.cluster.move_leader(T0, 3)
    scene.cache.take_hint(T0, LeaderHint(2, 1, None), generation=1)
    scene.refresh_when_due()

    assert scene.leader_id() == 3


def test_hint_with_an_endpoint_adds_a_broker(scene: Scene) -> None:
    newcomer = Broker(4, Address("broker-4", 9092))

    assert scene.cache.take_hint(T0, LeaderHint(4, 1, newcomer), generation=1)
    assert scene.leader_id() == 4
    assert scene.facts[0].changes.brokers_added == (4,)


@pytest.mark.parametrize(
    ("epoch", "generation"), [(0, 1), (-1, 1), (1, 0)], ids=["same epoch", "no epoch", "older generation"]
)
def test_hint_without_a_newer_epoch_is_ignored(scene: Scene, epoch: int, generation: int) -> None:

    assert not scene.cache.take_hint(T0, LeaderHint(3, epoch, None), generation)
    assert scene.leader_id() == 1
    assert scene.facts == []
    assert scene.cache.time_to_next_update_ms() == about_ms(290_000)


def test_hint_that_resolves_a_problem_has_the_recovery_time(scene: Scene) -> None:
    scene.report()
    scene.clock.sleep(0.5)
    scene.cache.take_hint(T0, LeaderHint(3, 1, None), generation=1)

    assert scene.facts[0].recovery_ms == about_ms(500)


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
