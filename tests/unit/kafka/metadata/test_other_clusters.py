"""Brokers of another cluster behind an address of this one: their metadata is never used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import OtherClusterError
from pyspark_kafka_meta.model import Address, MetadataResponse, RefreshReason
from tests.unit.kafka.metadata.cache_scene import BROKER_1, Scene

BROKER_2, BROKER_3 = Address("broker-2", 9092), Address("broker-3", 9092)
ALL = [BROKER_1, BROKER_2, BROKER_3]


def reuse(scene: Scene, monkeypatch: pytest.MonkeyPatch, *addresses: Address, cluster_id: str | None = "other") -> None:
    """Give addresses to brokers of another cluster."""
    respond = scene.network.metadata

    def metadata(address: Address, topics: frozenset[str] | None, deadline: float) -> MetadataResponse:
        response = respond(address, topics, deadline)
        return replace(response, cluster_id=cluster_id) if address in addresses else response

    monkeypatch.setattr(scene.network, "metadata", metadata)


def test_a_broker_of_another_cluster_is_passed_over_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene().bootstrapped()
    reuse(scene, monkeypatch, BROKER_2)
    for _ in range(4):
        scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())

    assert scene.cache.snapshot.cluster_id == "fake-cluster"
    assert [fact.error for fact in scene.facts if fact.error is not None]
    (warning,) = caplog.messages
    assert warning.startswith("broker-2:9092 belongs to cluster other, and this client uses cluster fake-cluster")
    assert warning.endswith("Asking other brokers")


def test_brokers_of_another_cluster_alone_end_a_refresh_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene().bootstrapped()
    before, began = scene.cache.snapshot, scene.clock()
    reuse(scene, monkeypatch, *ALL)
    with pytest.raises(OtherClusterError, match="belongs to cluster other, and this client uses cluster fake-cluster"):
        scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())

    assert scene.cache.snapshot is before
    assert scene.clock() - began < 1
    assert len(scene.facts) == len(ALL)


def test_brokers_of_another_cluster_end_a_query_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene().bootstrapped()
    reuse(scene, monkeypatch, *ALL)
    with pytest.raises(OtherClusterError):
        for _ in ALL:
            scene.report()
            scene.refresh_when_due()


def test_a_cluster_that_is_back_at_its_addresses_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene().bootstrapped()
    with monkeypatch.context() as meanwhile:
        reuse(scene, meanwhile, *ALL)
        with pytest.raises(OtherClusterError):
            scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())
    generation = scene.cache.snapshot.generation

    assert scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline()).generation == generation + 1


@pytest.mark.parametrize(("first", "second"), [(None, "other"), ("fake-cluster", None)])
def test_a_cluster_without_an_id_is_no_other_cluster(
    first: str | None, second: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene()
    with monkeypatch.context() as before:
        reuse(scene, before, *ALL, cluster_id=first)
        scene.bootstrapped()
    reuse(scene, monkeypatch, *ALL, cluster_id=second)

    assert scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline()).cluster_id == second
