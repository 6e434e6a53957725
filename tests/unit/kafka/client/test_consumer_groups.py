"""A consumer group's offsets: a missing coordinator is waited for, a refusal is an error."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import BrokerError, ConnectError
from pyspark_kafka_meta.kafka.client.coordinators import COMMIT_TIMEOUT_S, COORDINATOR_TIMEOUT_S, ConsumerGroups
from pyspark_kafka_meta.model import TopicPartition
from tests.partitions import T0, T1
from tests.unit.fake_network import about_s
from tests.unit.scene import Scene


@pytest.fixture
def groups(scene: Scene) -> ConsumerGroups:
    return scene.warm_client().groups


def test_commit_and_read_wait_for_the_coordinator(scene: Scene, groups: ConsumerGroups) -> None:
    scene.network.admin_errors["FindCoordinator"].append(ErrorCode.coordinator_not_available)
    scene.network.admin_errors["OffsetCommit"] += [ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator]
    groups.commit("g", {T0: 5})
    scene.network.admin_errors["OffsetFetch"].append(ErrorCode.coordinator_load_in_progress)

    assert groups.committed("g", [T0, T1]) == {T0: 5}


def test_coordinator_that_moves_is_looked_up_again(scene: Scene, groups: ConsumerGroups) -> None:
    groups.commit("g", {T0: 5})
    scene.network.group_coordinator = 3
    groups.commit("g", {T0: 6})
    scene.network.group_coordinator = 2
    scene.network.down.add(3)
    groups.commit("g", {T0: 7})

    assert groups.committed("g", [T0]) == {T0: 7}
    assert len(scene.sent("FindCoordinator")) == 3


def test_coordinator_is_looked_up_once(scene: Scene, groups: ConsumerGroups) -> None:
    for offset in range(3):
        groups.commit("g", {T0: offset})

    assert len(scene.sent("FindCoordinator")) == 1


def test_missing_topic_does_not_keep_the_offsets_of_others_from_being_committed(
    scene: Scene, groups: ConsumerGroups
) -> None:
    assert groups.commit("g", {TopicPartition("deleted", 0): 7, T0: 5}) == {"deleted"}
    assert groups.committed("g", [T0]) == {T0: 5}


def test_group_with_members_is_not_overwritten(scene: Scene, groups: ConsumerGroups) -> None:
    scene.network.groups["g"] = {T0: 2}
    scene.network.groups_with_members.add("g")
    with pytest.raises(BrokerError, match=r"UNKNOWN_MEMBER_ID.*and has no members"):
        groups.commit("g", {T0: 5})

    assert groups.committed("g", [T0]) == {T0: 2}


def test_refused_commit_names_the_group_and_what_to_check(scene: Scene, groups: ConsumerGroups) -> None:
    scene.network.admin_errors["OffsetCommit"].append(ErrorCode.group_authorization_failed)
    with pytest.raises(
        BrokerError, match=r"offsets of consumer group g could not be committed: .*Check that the group .* may be read$"
    ):
        groups.commit("g", {T0: 5})

    assert len(scene.sent("OffsetCommit")) == 1


@pytest.mark.parametrize(("verb", "timeout_s"), [("committed", COMMIT_TIMEOUT_S), ("listed", COORDINATOR_TIMEOUT_S)])
def test_group_without_a_coordinator_is_an_error_in_time(
    scene: Scene, groups: ConsumerGroups, verb: str, timeout_s: float
) -> None:
    scene.network.admin_errors["FindCoordinator"] += [ErrorCode.coordinator_not_available] * 1_000
    began = scene.clock.now
    with pytest.raises(BrokerError, match=f"could not be {verb}: COORDINATOR_NOT_AVAILABLE.*offsets.topic.replication"):
        groups.commit("g", {T0: 5}) if verb == "committed" else groups.committed("g", [T0])

    assert scene.clock.now - began == pytest.approx(timeout_s, abs=1.5)


def test_brokers_that_hang_hold_a_commit_up_for_its_timeout_alone(scene: Scene, groups: ConsumerGroups) -> None:
    scene.network.hung |= {1, 2, 3}
    began = scene.clock.now
    with pytest.raises(ConnectError, match="offsets of consumer group g could not be committed in time"):
        groups.commit("g", {T0: 5})

    assert scene.clock.now - began == about_s(COMMIT_TIMEOUT_S)
