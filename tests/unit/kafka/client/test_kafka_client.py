"""Questions to the cluster that need the network and the cache: partitions of topics, offsets from their leaders."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    BrokerError,
    ConnectError,
    NoLeaderError,
    ProtocolError,
    UnknownTopicError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.kafka.client.kafka_client import POLICY_AGE_S, KafkaClient
from pyspark_kafka_meta.kafka.client.leader_requests import OVERDUE_MS
from pyspark_kafka_meta.kafka.client.next_request import UNKNOWN_GRACE_MS
from pyspark_kafka_meta.kafka.network.connection import ConnectionSettings
from pyspark_kafka_meta.kafka.network.connection_diagnosis import FRAME_SLACK_BYTES
from pyspark_kafka_meta.kafka.protocol.apis import ApiResponse
from pyspark_kafka_meta.kafka.protocol.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    OffsetsRequest,
    OffsetsResponse,
    PartitionOffset,
)
from pyspark_kafka_meta.kafka.protocol.network_interface import RequestFailure
from pyspark_kafka_meta.model import NO_LEADER, Address, Broker, RefreshReason, TopicPartition
from tests.partitions import T0, T1, T2
from tests.unit.fake_network import about_s
from tests.unit.scene import Fault, Scene

DEADLINE_S = 60
GRACE_S = UNKNOWN_GRACE_MS / 1000


@pytest.fixture
def client(scene: Scene) -> KafkaClient:
    """It knows the leaders of a moment ago."""
    return scene.warm_client()


def latest(scene: Scene, client: KafkaClient, *partitions: TopicPartition) -> dict[TopicPartition, int]:
    """The ends of these logs."""
    responses = client.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP), scene.clock() + DEADLINE_S)
    return {partition: response.offset for partition, response in responses.items()}


# --- partitions -------------------------------------------------------------------------------------------------------


def test_partitions_of_several_topics_come_in_order_by_one_request(scene: Scene) -> None:
    scene.cluster.create_topic("a", 1)

    assert scene.client().partitions(["t", "a"], scene.clock() + 1) == [TopicPartition("a", 0), T0, T1, T2]
    assert scene.sent("Metadata") == [1]


def test_partitions_that_are_known_are_not_asked_for_again(scene: Scene, client: KafkaClient) -> None:

    assert client.partitions(["t"], scene.clock() + 1) == [T0, T1, T2]
    assert scene.sent("Metadata") == []
    scene.clock.sleep(300)
    client.partitions(["t"], scene.clock() + 1)
    assert scene.reasons() == [RefreshReason.MAX_AGE]


def test_new_topics_come_by_one_request_without_a_backoff(scene: Scene) -> None:
    topics = [f"new-{number}" for number in range(300)]
    for topic in topics:
        scene.cluster.create_topic(topic, 1)
    client = scene.client()
    client.partitions(["t"], scene.clock() + 1)
    began = scene.clock()

    assert client.partitions(topics, scene.clock() + 1) == sorted(TopicPartition(topic, 0) for topic in topics)
    assert (scene.reasons(), scene.clock()) == ([RefreshReason.BOOTSTRAP, RefreshReason.NEW_TOPIC], about_s(began))


def test_topics_that_a_pattern_found_are_not_asked_for_again(scene: Scene) -> None:
    client = scene.client(subscribePattern="t")
    client.partitions((), scene.clock() + 1)

    assert client.partitions(["t"], scene.clock() + 1) == [T0, T1, T2]
    assert scene.reasons() == [RefreshReason.BOOTSTRAP]


def test_name_that_kafka_does_not_allow_fails_at_once_and_is_shortened(scene: Scene, client: KafkaClient) -> None:
    began = scene.clock()
    with pytest.raises(BrokerError, match=r"topic x{260}\.\.\. cannot be read: INVALID_TOPIC_EXCEPTION") as raised:
        client.partitions(["t", "x" * 40_000], scene.clock() + DEADLINE_S)

    assert len(str(raised.value)) < 500
    assert scene.clock() == about_s(began)
    assert client.partitions(["t"], scene.clock() + 1) == [T0, T1, T2]


def test_topic_made_a_moment_ago_is_waited_for(scene: Scene) -> None:
    scene.clock.at(GRACE_S - 1, lambda: scene.cluster.create_topic("new"))
    client = scene.client()

    assert client.partitions(["new"], scene.clock() + DEADLINE_S) == [TopicPartition("new", 0)]
    assert set(scene.reasons()) == {RefreshReason.BOOTSTRAP, RefreshReason.UNKNOWN_TOPIC}
    assert len(scene.events) < 10


def test_topics_are_waited_for_as_long_as_some_become_known(scene: Scene) -> None:
    topics = [f"new-{number}" for number in range(5)]
    for number, topic in enumerate(topics):
        scene.clock.at((number + 1) * (GRACE_S - 1), partial(scene.cluster.create_topic, topic, 1))

    assert len(scene.client().partitions(topics, scene.clock() + DEADLINE_S)) == 5


def test_topic_exists_until_a_broker_has_denied_it(scene: Scene) -> None:
    """A driver reads in a topic of its tasks, which its client sees for the first time, while no broker responds."""
    client, partition = scene.warm_client(), TopicPartition("new", 0)
    scene.cluster.create_topic("new")
    scene.network.down = {1, 2, 3}
    scene.clock.at(2 * UNKNOWN_GRACE_MS / 1000, scene.network.down.clear)

    found = client.list_offsets({partition: LATEST_TIMESTAMP}, scene.clock() + 60)
    assert found[partition].offset == 0


def test_at_most_ten_unknown_topics_are_named(scene: Scene) -> None:
    with pytest.raises(UnknownTopicError, match=r"^topic no-1000, .*, no-1009 and 990 more does not exist"):
        scene.client().partitions([f"no-{number}" for number in range(1_000, 2_000)], scene.clock() + DEADLINE_S)


@pytest.mark.parametrize(("patience_s", "expected_s"), [(DEADLINE_S, GRACE_S), (1, 1)])
def test_unknown_topic_is_named_with_the_cluster_asked(scene: Scene, patience_s: int, expected_s: float) -> None:
    began = scene.clock()
    with pytest.raises(
        UnknownTopicError,
        match=r"^topic nope does not exist in the cluster at broker-1:9092: check the name, or create the topic first$",
    ):
        scene.client().partitions(["t", "nope"], began + patience_s)

    assert scene.clock() - began == about_s(expected_s)


def test_similar_name_is_suggested_and_asked_for_once(scene: Scene) -> None:
    scene.cluster.create_topic("clicks")
    client, requested = scene.client(), list[object]()
    send = scene.network.send_metadata
    scene.monkeypatch.setattr(
        scene.network, "send_metadata", lambda at, topics, due: (requested.append(topics), send(at, topics, due))
    )
    for _ in range(2):
        with pytest.raises(UnknownTopicError, match=r"check the name \(there is clicks\), or create the topic first$"):
            client.partitions(["clcks"], scene.clock() + DEADLINE_S)

    assert requested.count(None) == 1
    assert client.partitions(["t"], scene.clock() + DEADLINE_S) == [T0, T1, T2]


def test_unknown_topic_is_told_although_no_broker_lists_topics(scene: Scene) -> None:
    client = scene.warm_client()
    send = scene.network.send_metadata

    def refuse_list(address: Address, topics: Collection[str] | None, deadline: float) -> None:
        if topics is None:
            scene.network.failures[1] = deque([ConnectError("closed")])
        send(address, topics, deadline)

    scene.monkeypatch.setattr(scene.network, "send_metadata", refuse_list)
    with pytest.raises(UnknownTopicError, match="check the name, or create"):
        client.partitions(["tt"], scene.clock() + DEADLINE_S)


def test_topic_that_may_not_be_seen_fails_at_once(scene: Scene) -> None:
    scene.network.metadata_errors["t"] = 29
    began = scene.clock()
    with pytest.raises(BrokerError, match=r"topic t cannot be read: TOPIC_AUTHORIZATION_FAILED \(error 29\)") as raised:
        scene.client().partitions(["t"], began + DEADLINE_S)

    assert (raised.value.code, scene.clock()) == (29, about_s(began))


def test_no_broker_at_all_ends_at_the_deadline(scene: Scene) -> None:
    scene.network.down.update({1, 2, 3})
    began = scene.clock()
    with pytest.raises(ConnectError, match=r"broker-1:9092: Connection refused.*check kafka\.bootstrap\.servers"):
        scene.client().partitions(["t"], began + DEADLINE_S)

    assert DEADLINE_S - 1 <= scene.clock() - began <= DEADLINE_S


def test_known_topics_outlive_brokers_that_do_not_respond(scene: Scene, client: KafkaClient) -> None:
    scene.network.down.update({1, 2, 3})
    scene.clock.sleep(300)

    assert client.partitions(["t"], scene.clock() + DEADLINE_S) == [T0, T1, T2]


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_offsets_come_from_each_leader_by_one_request(scene: Scene) -> None:
    scene.cluster.move_leader(T1, 1)
    scene.write(T2, "one more")
    asked = {T0: EARLIEST_TIMESTAMP, T1: LATEST_TIMESTAMP, T2: LATEST_TIMESTAMP}
    responses = scene.warm_client().list_offsets(asked, scene.clock() + 1)

    assert {partition: response.offset for partition, response in responses.items()} == {T0: 0, T1: 12, T2: 13}
    assert responses[T1].leader_epoch == 1
    assert scene.sent("ListOffsets") == [1, 3]


RETRIED: dict[str, tuple[Fault, float]] = {
    "leader moved": ([lambda scene: scene.cluster.move_leader(T0, 2)], 1),
    "leader died": ([lambda scene: scene.network.down.add(1), lambda scene: scene.cluster.move_leader(T0, 3)], 1),
    "leader hangs": ([lambda scene: scene.network.hung.add(1), lambda scene: scene.cluster.move_leader(T0, 3)], 31),
    "no leader for a while": (
        [
            lambda scene: scene.cluster.move_leader(T0, NO_LEADER),
            lambda scene: scene.clock.at(9, lambda: scene.cluster.move_leader(T0, 2)),
        ],
        11,
    ),
    "every broker down for a while": (
        [lambda scene: scene.network.down.update({1, 2, 3}), lambda scene: scene.clock.at(9, scene.network.down.clear)],
        11,
    ),
    "errors that pass": ([lambda scene: scene.script(T0, 6, 74, 75, 78, 3, 5, 56, -1, 7)], 12),
    "response that cannot be read": ([lambda scene: scene.fail(1, ProtocolError("nonsense"))], 1),
}


@pytest.mark.parametrize(("fault", "within_s"), RETRIED.values(), ids=RETRIED.keys())
def test_offsets_are_asked_until_all_respond(scene: Scene, client: KafkaClient, fault: Fault, within_s: float) -> None:
    scene.undergo(fault)
    began = scene.clock()

    assert latest(scene, client, T0, T1, T2) == {T0: 12, T1: 12, T2: 12}
    assert scene.clock() - began <= within_s
    assert scene.sent("ListOffsets").count(2) + scene.sent("ListOffsets").count(3) >= 2
    assert len(scene.network.requests) < 20 * max(within_s, 2)


@pytest.mark.parametrize("after_s", [3.5, 9.5, 22])
def test_leader_that_hangs_is_left_soon_after_another_leads(scene: Scene, client: KafkaClient, after_s: float) -> None:
    """However long its response may take by then, at the second, third or fourth attempt."""
    scene.network.hung.add(1)
    scene.clock.at(after_s, lambda: scene.cluster.move_leader(T0, 2))
    began = scene.clock()

    assert latest(scene, client, T0, T1, T2) == {T0: 12, T1: 12, T2: 12}
    assert after_s <= scene.clock() - began < after_s + 1
    assert scene.sent("ListOffsets").count(2) == 2
    assert len(scene.sent("Metadata")) < 2 * after_s + 5


def test_leader_overdue_while_another_response_is_handled_is_left_at_once(scene: Scene, client: KafkaClient) -> None:
    scene.network.hung.add(1)
    scene.cluster.move_leader(T0, 2)
    scene.clock.tick_s = 1e-3
    just_before_s, offsets = OVERDUE_MS / 1000 - 1e-4, scene.network.offsets
    scene.monkeypatch.setattr(
        offsets, "_ends_at", lambda node_id: offsets.in_flight[node_id][0].sent_at + just_before_s
    )
    began = scene.clock()
    client.list_offsets(dict.fromkeys([T0, T1], LATEST_TIMESTAMP), began + DEADLINE_S)

    assert scene.clock() - began < 2 * OVERDUE_MS / 1000 + 0.5


def test_leader_that_hangs_is_looked_at_at_most_every_ten_ms(scene: Scene) -> None:
    """kafka.retry.backoff.ms = 0 is no reason to use a core for itself."""
    client = scene.warm_client(kafka_retry_backoff_ms="0", kafka_retry_backoff_max_ms="0")
    scene.network.hung.add(1)
    scene.clock.tick_s = 1e-5
    receive, looks = scene.network.offsets.receive, Counter[str]()

    def counting(node_ids: Collection[int], deadline: float) -> OffsetsResponse | RequestFailure | None:
        looks["receive"] += 1
        return receive(node_ids, deadline)

    scene.monkeypatch.setattr(scene.network.offsets, "receive", counting)
    with pytest.raises(NoLeaderError):
        client.list_offsets({T0: LATEST_TIMESTAMP}, scene.clock() + OVERDUE_MS / 1000 + 1)

    assert looks["receive"] < 150


def test_leader_that_throttles_is_given_the_time_that_it_asks_for(
    scene: Scene, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, receive, allowed_s = scene.network.offsets.send, scene.network.offsets.receive, []

    def noting(broker: Broker, request: OffsetsRequest, deadline: float) -> None:
        allowed_s.append(deadline - scene.clock())
        send(broker, request, deadline)

    def throttling(node_ids: Collection[int], deadline: float) -> OffsetsResponse:
        response = receive(node_ids, deadline)
        assert isinstance(response, ApiResponse)
        return replace(response, throttle_ms=10_000)

    monkeypatch.setattr(scene.network.offsets, "send", noting)
    monkeypatch.setattr(scene.network.offsets, "receive", throttling)
    for _ in range(2):
        latest(scene, client, T0)

    assert allowed_s[1] - allowed_s[0] == pytest.approx(10, abs=0.1)


def test_offsets_that_could_not_be_waited_for_may_be_asked_for_again(scene: Scene, client: KafkaClient) -> None:
    scene.network.hung.add(1)
    for node_id in (2, 3):
        scene.fail(node_id, AuthenticationError("the password was changed"))
    with pytest.raises(AuthenticationError):
        latest(scene, client, T0)
    scene.network.hung.clear()

    assert latest(scene, client, T0) == {T0: 12}


def hang_for_a_while(scene: Scene) -> None:
    scene.network.hung.add(1)
    scene.clock.at(4, scene.network.hung.clear)


def die_and_come_back(scene: Scene) -> None:
    scene.network.down.add(1)
    scene.clock.at(4, lambda: scene.cluster.move_leader(T0, 2))


def be_left(scene: Scene) -> None:
    scene.network.hung.add(1)
    scene.cluster.move_leader(T0, 2)


@pytest.mark.parametrize(("before", "pause_s"), [(hang_for_a_while, 0), (die_and_come_back, 0), (be_left, 300)])
def test_leader_that_failed_in_an_earlier_call_is_asked_again_and_not_suspected_so_soon(
    before: Callable[[Scene], None], pause_s: float, scene: Scene, client: KafkaClient
) -> None:
    before(scene)
    assert latest(scene, client, T0) == {T0: 12}
    scene.network.hung.clear()
    scene.network.down.clear()
    scene.cluster.move_leader(T0, 1)
    scene.clock.sleep(pause_s)
    client.cache.refresh(RefreshReason.ON_DEMAND, scene.clock() + DEADLINE_S)
    scene.network.requests.clear()
    scene.network.hung.add(1)
    scene.clock.at(1.5, scene.network.hung.clear)

    assert latest(scene, client, T0) == {T0: 12}
    assert scene.sent("Metadata") == []


def test_leaders_that_responded_are_not_asked_again(scene: Scene, client: KafkaClient) -> None:
    scene.script(T0, 6, 6, 6)
    latest(scene, client, T0, T1, T2)

    assert scene.sent("ListOffsets") == [1, 2, 3, 1, 1, 1]


def test_trouble_of_a_leader_is_the_reason_of_the_refresh(scene: Scene, client: KafkaClient) -> None:
    scene.cluster.move_leader(T0, 2)
    client.list_offsets({T0: LATEST_TIMESTAMP}, scene.clock() + 1)
    [event] = scene.events

    assert (event.reason, event.cause_error_code) == (RefreshReason.FENCED_EPOCH, 74)
    assert (event.cause_topic, event.cause_partition, event.cause_node_id) == ("t", 0, 1)


def change_offsets(scene: Scene, how: Callable[[Mapping[TopicPartition, PartitionOffset]], Any]) -> None:
    """Of every response to ListOffsets."""
    receive = scene.network.offsets.receive

    def changed(node_ids: Any, deadline: float) -> Any:
        received = receive(node_ids, deadline)
        return replace(received, result=how(received.result)) if isinstance(received, ApiResponse) else received

    scene.monkeypatch.setattr(scene.network.offsets, "receive", changed)


def outlive_deadlines(scene: Scene, node_id: int) -> None:
    """A broker that hangs, and has as much time again for its response when the connection is there."""
    scene.network.hung.add(node_id)
    send = scene.network.offsets.send

    def sent(broker: Any, request: Any, deadline: float) -> None:
        send(broker, request, deadline + DEADLINE_S * (broker.node_id == node_id))

    scene.monkeypatch.setattr(scene.network.offsets, "send", sent)


WITHOUT_RESPONSE: dict[str, tuple[Callable[[Scene], object], str]] = {
    "no leader": (lambda scene: scene.cluster.move_leader(T1, NO_LEADER), "it has no leader"),
    "leader down": (lambda scene: scene.network.down.add(2), "cannot connect to broker-2:9092: Connection refused"),
    "leader hangs": (lambda scene: scene.network.hung.add(2), "broker 2 did not answer ListOffsets in time"),
    "error for ever": (lambda scene: scene.script(T1, *[78] * 1000), r"OFFSET_NOT_AVAILABLE \(error 78\)"),
    "left out": (
        lambda scene: change_offsets(
            scene, lambda told: {partition: told[partition] for partition in told.keys() - {T1}}
        ),
        r"UNKNOWN_SERVER_ERROR \(error -1\)",
    ),
    "slow connection to one that hangs": (lambda scene: outlive_deadlines(scene, 2), "broker-2:9092 did not .*"),
}


@pytest.mark.parametrize(("happens", "trouble"), WITHOUT_RESPONSE.values(), ids=WITHOUT_RESPONSE.keys())
def test_partition_without_a_response_ends_at_the_deadline_and_is_named(
    scene: Scene, client: KafkaClient, happens: Callable[[Scene], object], trouble: str
) -> None:
    happens(scene)
    began = scene.clock()
    with pytest.raises(NoLeaderError, match=f"^no offsets of t-1 in 60000 ms: {trouble}$"):
        latest(scene, client, T0, T1, T2)

    assert scene.clock() - began == about_s(DEADLINE_S)
    assert len(scene.network.requests) < 4 * DEADLINE_S


def test_pauses_grow_to_a_second_while_every_broker_is_down(scene: Scene, client: KafkaClient) -> None:
    scene.network.down.update({1, 2, 3})
    with pytest.raises(NoLeaderError):
        latest(scene, client, T0)

    assert DEADLINE_S <= len(scene.sent("ListOffsets")) <= 1.25 * DEADLINE_S + 5


def test_offsets_that_may_not_be_seen_fail_at_once(scene: Scene, client: KafkaClient) -> None:
    scene.script(T0, 29)
    began = scene.clock()
    with pytest.raises(BrokerError, match=r"offsets of t-0 were refused: TOPIC_AUTHORIZATION_FAILED \(error 29\)"):
        latest(scene, client, T0)

    assert scene.clock() == about_s(began)


def test_broker_that_is_too_old_fails_at_once(scene: Scene, client: KafkaClient) -> None:
    scene.fail(1, UnsupportedBrokerError("too old"))
    with pytest.raises(UnsupportedBrokerError):
        latest(scene, client, T0)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_connections_are_made_as_the_options_say(scene: Scene) -> None:
    options = {"kafka_client_id": "me", "kafka_socket_connection_setup_timeout_ms": "700"}
    client = scene.options(**options, kafka_security_protocol="SSL").client
    settings = ConnectionSettings.of(client)

    assert (settings.client_id, settings.connect_timeout_ms) == ("me", 700)
    assert settings.max_frame_bytes == FRAME_SLACK_BYTES
    assert settings.security == client.security
    assert settings.security.uses_tls


def test_plan_does_not_trust_a_response_that_waited_since_the_plan_before(scene: Scene) -> None:
    client = scene.warm_client()
    scene.network.hung_metadata |= {1, 2, 3}
    client.cache.request_update(RefreshReason.NOT_LEADER, client.cache.snapshot.generation, T0, 6)
    client.cache.refresh_if_due(scene.clock() + 60, until=scene.clock())
    scene.network.hung_metadata.clear()
    scene.clock.sleep(600)
    asked = len(scene.sent("Metadata"))
    client.partitions(["t"], scene.clock() + 60)

    assert len(scene.sent("Metadata")) == asked + 1
    assert [event.reason for event in scene.events[-2:]] == [RefreshReason.NOT_LEADER, RefreshReason.ON_DEMAND]


def test_cleanup_policy_without_compact_is_asked_for_again_after_a_minute(scene: Scene, client: KafkaClient) -> None:
    policies = []
    for policy, pause_s in (("delete", 0), ("compact", 1), ("compact", POLICY_AGE_S), ("delete", POLICY_AGE_S)):
        scene.network.configs["t"] = {"cleanup.policy": policy}
        scene.clock.sleep(pause_s)
        policies.append(client.cleanup_policy("t"))

    assert policies == ["delete", "delete", "compact", "compact"], "what compaction has removed stays removed"
    assert len(scene.sent("DescribeConfigs")) == 2


def test_known_cleanup_policy_outlives_a_request_without_a_response(scene: Scene, client: KafkaClient) -> None:
    """Brokers that are slow must not make their records look compacted."""
    scene.network.configs["t"] = {"cleanup.policy": "delete"}
    client.cleanup_policy("t")
    other = scene.warm_client()
    scene.clock.sleep(POLICY_AGE_S)
    scene.network.hung |= {1, 2, 3}

    assert client.cleanup_policy("t") == "delete"
    assert other.cleanup_policy("t") is None, "it never knew one"


def test_cleanup_policies_of_deleted_topics_are_forgotten(scene: Scene) -> None:
    client = scene.client(subscribePattern="t.*")
    for number in range(5):
        scene.cluster.create_topic(f"t{number}")
        client.partitions([f"t{number}"], scene.clock() + 1)
        client.cleanup_policy(f"t{number}")
        scene.cluster.topics.pop(f"t{number}")
        scene.clock.sleep(1)

    assert list(client._cleanup_policies) == ["t4"]


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_of_each_client_have_a_cache_id_of_their_own(scene: Scene) -> None:
    clients = [scene.client(), scene.client()]

    assert [event.cache_id for event in scene.events] == [client.cache_id for client in clients]
    assert len({client.cache_id for client in clients}) == 2
