"""Leader hints in error responses (KIP-951)."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.kafka.metadata.cache_state import LeaderHinted
from pyspark_kafka_meta.kafka.metadata.refresh_policy import RefreshCause
from pyspark_kafka_meta.kafka.metadata.snapshot import LeaderChange, SnapshotChanges
from pyspark_kafka_meta.model import Address, Broker, LeaderHint, RefreshReason
from tests.partitions import T0
from tests.unit.fake_network import about_ms
from tests.unit.kafka.metadata.cache_scene import Scene


def test_hint_moves_the_leader_and_a_refresh_confirms_it() -> None:
    scene = Scene().bootstrapped()
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


def test_refresh_corrects_a_wrong_hint() -> None:
    """AutoMQ #3546: a wrong hint suppressed the refresh that would have put it right, for up to 5 minutes."""
    scene = Scene().bootstrapped()
    scene.cluster.move_leader(T0, 3)
    scene.cache.take_hint(T0, LeaderHint(2, 1, None), generation=1)
    scene.refresh_when_due()

    assert scene.leader_id() == 3


def test_hint_with_an_endpoint_adds_a_broker() -> None:
    scene = Scene().bootstrapped()
    newcomer = Broker(4, Address("broker-4", 9092))

    assert scene.cache.take_hint(T0, LeaderHint(4, 1, newcomer), generation=1)
    assert scene.leader_id() == 4
    assert scene.facts[0].changes.brokers_added == (4,)


@pytest.mark.parametrize(
    ("epoch", "generation"), [(0, 1), (-1, 1), (1, 0)], ids=["same epoch", "no epoch", "older generation"]
)
def test_hint_without_a_newer_epoch_is_ignored(epoch: int, generation: int) -> None:
    scene = Scene().bootstrapped()

    assert not scene.cache.take_hint(T0, LeaderHint(3, epoch, None), generation)
    assert scene.leader_id() == 1
    assert scene.facts == []
    assert scene.cache.time_to_next_update_ms() == about_ms(290_000)


def test_hint_that_resolves_a_problem_has_the_recovery_time() -> None:
    scene = Scene().bootstrapped()
    scene.report()
    scene.clock.sleep(0.5)
    scene.cache.take_hint(T0, LeaderHint(3, 1, None), generation=1)

    assert scene.facts[0].recovery_ms == about_ms(500)
