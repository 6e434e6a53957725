"""Rare requests about topics, configuration and consumer groups: another broker is asked after a failure, refusals name
the next step."""

from __future__ import annotations

from collections import Counter

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.errors import BrokerError, ConnectError
from pyspark_kafka_meta.kafka.client.cluster_admin import CONFIG_TIMEOUT_S, TIMEOUT_S, ClusterAdmin
from pyspark_kafka_meta.kafka.client.consumer_groups import COMMIT_TIMEOUT_S, COORDINATOR_TIMEOUT_S, ConsumerGroups
from pyspark_kafka_meta.model import Address, TopicPartition
from tests.partitions import T0, T1
from tests.unit.fake_network import about_s
from tests.unit.scene import Scene

FIRST_BACKOFF_S = 0.08
"""Of kafka.retry.backoff.ms, without jitter upwards."""


@pytest.fixture
def admin(scene: Scene) -> ClusterAdmin:
    return ClusterAdmin(scene.warm_client())


def test_administrative_requests_begin_with_known_brokers_among_which_is_no_controller(scene: Scene) -> None:
    controller = Address("controller", 9093)
    scene.network.aliases[controller] = 1
    client = scene.client(kafka_bootstrap_servers=str(controller))
    ClusterAdmin(client).topic_config("t")

    (asked,) = [address for name, address in scene.network.requests if name == "DescribeConfigs"]
    assert asked in {broker.address for broker in client.cache.snapshot.brokers.values()}


@pytest.mark.parametrize("code", [ErrorCode.not_controller, ErrorCode.request_timed_out])
def test_topic_is_created_by_the_next_broker(scene: Scene, admin: ClusterAdmin, code: ErrorCode) -> None:
    scene.network.admin_errors["CreateTopics"] += [code, code]
    assert admin.create_topic("new", 2, 3, {"cleanup.policy": "compact"})

    assert len(scene.cluster.topics["new"].partitions) == 2
    assert len(scene.sent("CreateTopics")) == 3


def test_each_broker_is_asked_for_the_controller_before_any_is_asked_again(scene: Scene, admin: ClusterAdmin) -> None:
    scene.network.admin_errors["CreateTopics"] += [ErrorCode.not_controller] * 2
    began = scene.clock.now
    admin.create_topic("new", 1, 1, {})

    assert len(set(scene.sent("CreateTopics"))) == 3
    assert scene.clock.now - began < FIRST_BACKOFF_S


def test_topic_that_exists_stays_as_it_is(scene: Scene, admin: ClusterAdmin) -> None:
    before = scene.cluster.topics["t"]
    assert not admin.create_topic("t", 1, 1, {})

    assert scene.cluster.topics["t"] is before


def test_refused_topic_is_an_error_that_says_why(scene: Scene, admin: ClusterAdmin) -> None:
    scene.network.admin_errors["CreateTopics"].append(ErrorCode.topic_authorization_failed)
    with pytest.raises(BrokerError, match=r"topic new could not be created: TOPIC_AUTHORIZATION_FAILED"):
        admin.create_topic("new", 1, 1, {})


def test_creation_ends_at_its_deadline(scene: Scene, admin: ClusterAdmin) -> None:
    scene.network.hung |= {1, 2, 3}
    began = scene.clock.now
    with pytest.raises(ConnectError, match="no broker created topic new in time"):
        admin.create_topic("new", 1, 1, {})

    assert scene.clock.now - began == about_s(TIMEOUT_S)


def test_creation_ends_at_its_deadline_also_if_the_request_may_take_longer(scene: Scene, admin: ClusterAdmin) -> None:
    """A request has its whole timeout again once a new connection is open."""
    scene.network.set_latencies((2 * TIMEOUT_S,))
    scene.clock.tick_s = 0.1
    began = scene.clock.now
    with pytest.raises(ConnectError, match=r"in time: broker \d did not respond"):
        admin.create_topic("new", 1, 1, {})

    assert scene.clock.now - began == pytest.approx(TIMEOUT_S, abs=1)


def test_longest_timeout_is_the_lowest_limit_of_the_brokers_that_respond(scene: Scene, admin: ClusterAdmin) -> None:
    assert admin.transaction_max_timeout_ms() == scene.cluster.coordinators.max_timeout_ms
    scene.network.admin_errors["DescribeConfigs"] += [ErrorCode.cluster_authorization_failed] * 2
    assert admin.transaction_max_timeout_ms() == scene.cluster.coordinators.max_timeout_ms
    scene.network.admin_errors["DescribeConfigs"] += [ErrorCode.cluster_authorization_failed] * 3
    assert admin.transaction_max_timeout_ms() is None
    scene.cluster.coordinators.max_timeout_ms = ""  # type: ignore[assignment]
    assert admin.transaction_max_timeout_ms() is None


def test_limit_of_a_broker_that_restarts_is_waited_for(scene: Scene, admin: ClusterAdmin) -> None:
    scene.network.admin_errors["DescribeConfigs"] += [ErrorCode.cluster_authorization_failed] * 2
    scene.network.down.add(2)
    scene.clock.at(1, lambda: scene.network.down.discard(2))

    assert admin.transaction_max_timeout_ms() == scene.cluster.coordinators.max_timeout_ms
    assert Counter(scene.sent("DescribeConfigs"))[1] == 1


def test_limit_of_a_broker_that_stays_down_is_done_without_in_seconds(scene: Scene, admin: ClusterAdmin) -> None:
    scene.network.down.add(2)
    began = scene.clock.now

    assert admin.transaction_max_timeout_ms() == scene.cluster.coordinators.max_timeout_ms
    assert scene.clock.now - began == about_s(CONFIG_TIMEOUT_S)


def test_configuration_that_no_broker_describes_in_seconds_is_empty(scene: Scene, admin: ClusterAdmin) -> None:
    scene.network.hung |= {1, 2, 3}
    began = scene.clock.now

    assert admin.topic_config("t") == {}
    assert scene.clock.now - began == about_s(CONFIG_TIMEOUT_S)
    assert admin.transaction_max_timeout_ms() is None


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


def test_missing_topic_does_not_keep_others_from_being_committed(scene: Scene, groups: ConsumerGroups) -> None:
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
def test_group_without_one_is_an_error(scene: Scene, groups: ConsumerGroups, verb: str, timeout_s: float) -> None:
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
