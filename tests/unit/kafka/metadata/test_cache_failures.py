"""A cache whose brokers fail or respond with errors: the next broker and the messages."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import (
    AuthenticationError,
    ConnectError,
    KafkaMetaError,
    OtherClusterError,
    ProtocolError,
    RefusedRequestError,
    TlsError,
    UnknownHostError,
    UnsupportedBrokerError,
)
from pyspark_kafka_meta.kafka.metadata.refresh_policy import FIRST_ATTEMPT_TIMEOUT_MS
from pyspark_kafka_meta.model import Address, Broker, LeaderHint, MetadataResponse, RefreshReason
from tests.partitions import T0
from tests.unit.fake_network import about_ms, about_s
from tests.unit.kafka.metadata.cache_scene import BROKER_1, REQUEST_TIMEOUT_S, Scene

BROKER_2 = Address("broker-2", 9092)
TOO_OLD = UnsupportedBrokerError("broker-1:9092 is too old")
EXPIRED = TlsError("broker-2:9092: its certificate has expired")


def test_bootstrap_failover_has_events_of_both_addresses() -> None:
    dead, hung = Address("dead", 1), Address("broker-2", 9092)
    scene = Scene(dead, hung, BROKER_1)
    scene.network.hung.add(2)
    scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())
    refused, silent, responded = scene.facts

    assert scene.network.requests == [("Metadata", address) for address in (dead, hung, BROKER_1)]
    assert (refused.attempt, refused.broker_host, refused.latency_ms) == (1, "dead", about_ms(0))
    assert refused.error == "cannot connect to dead:1: Connection refused"
    assert (silent.attempt, silent.broker_host, silent.latency_ms) == (2, "broker-2", about_ms(3_000))
    assert silent.error == "broker 2 did not answer in time"
    assert (responded.attempt, responded.broker_host, responded.recovery_ms) == (3, "broker-1", about_ms(3_000))
    assert [bool(fact.changes) for fact in scene.facts] == [False, False, True]


def test_error_without_a_response_names_every_address() -> None:
    scene = Scene(Address("dead", 1), Address("gone", 2), BROKER_1)
    scene.network.failures[1] = deque(ProtocolError("unreadable response") for _ in range(100))
    with pytest.raises(ConnectError) as caught:
        scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline(3))

    text = str(caught.value)
    assert "cannot connect to dead:1: Connection refused" in text
    assert "cannot connect to gone:2: Connection refused" in text
    assert "broker-1:9092: unreadable response" in text
    assert "check kafka.bootstrap.servers" in text
    assert len(scene.facts) == len(scene.network.requests) == 3 * 6, "at 0, 100, 300, 700, 1500 and 2500 ms"
    assert scene.clock() <= 1_003


NOT_KNOWN = UnknownHostError("cannot connect to broker-1:9092: Name or service not known")


EXPECTS_TLS = RefusedRequestError("broker-1:9092 closed the connection, as servers do that expect TLS")


@pytest.mark.parametrize(
    ("mistake", "text", "within_s"), [(NOT_KNOWN, "Name or service not known", 4), (EXPECTS_TLS, "expect TLS", 11)]
)
def test_probable_mistake_fails_a_new_query_within_seconds(mistake: ConnectError, text: str, within_s: float) -> None:
    scene = Scene()
    scene.network.failures[1] = deque([mistake] * 100)
    began = scene.clock()
    with pytest.raises(ConnectError, match=rf"{text}.*check kafka\.bootstrap\.servers"):
        scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())

    assert scene.clock() - began < within_s


def test_one_host_name_that_resolves_later_suffices() -> None:
    scene = Scene()
    scene.network.failures[1] = deque([NOT_KNOWN] * 4)

    assert scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline()).generation == 1


@pytest.mark.parametrize(
    ("bootstrap", "reason"),
    [
        ([Address("dead", 1), BROKER_1], RefreshReason.BOOTSTRAP),  # refuses connections, and may be up soon
        ([BROKER_1], RefreshReason.NEW_TOPIC),  # of a task
    ],
)
def test_unknown_host_name_is_retried_if_it_may_be_right(bootstrap: list[Address], reason: RefreshReason) -> None:
    scene = Scene(*bootstrap)
    scene.network.failures[1] = deque([NOT_KNOWN] * 15)
    began = scene.clock()
    scene.cache.refresh(reason, scene.deadline())

    assert scene.clock() - began > 4


def test_error_omits_failures_before_the_last_refresh() -> None:
    scene = Scene(Address("dead", 1), BROKER_1).bootstrapped()
    scene.network.hung |= {1, 2, 3}
    with pytest.raises(ConnectError) as caught:
        scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline(4))

    assert "broker 2 did not answer in time" in str(caught.value)
    assert "dead" not in str(caught.value)


def test_broker_that_hangs_does_not_use_up_the_deadline(scene: Scene) -> None:
    """librdkafka before 2.10 tried one unreachable broker again and again."""
    scene.network.hung.add(2)
    started = scene.clock()
    scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline(60))

    assert scene.clock() - started == about_s(FIRST_ATTEMPT_TIMEOUT_MS / 1000)
    assert FIRST_ATTEMPT_TIMEOUT_MS / 1000 < REQUEST_TIMEOUT_S
    assert [fact.broker_id == 2 for fact in scene.facts] == [True, False]


def test_refreshes_on_demand_use_different_brokers(scene: Scene) -> None:
    scene.network.down.add(2)
    responded = [1]
    for _ in range(4):
        scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())
        responded.append(scene.facts[-1].broker_id or 0)

    assert responded == [1, 3, 1, 3, 1]
    scene.network.down.add(3)
    for _ in range(2):
        scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())
        assert scene.facts[-1].broker_id == 1, "the only one"


def test_attempt_ends_at_the_callers_deadline() -> None:
    scene = Scene()
    scene.network.hung.add(1)
    scene.cache.refresh_if_due(scene.deadline(1))

    assert scene.facts[-1].latency_ms == about_ms(1_000)


def test_no_request_after_the_deadline() -> None:
    scene = Scene()

    assert not scene.cache.refresh_if_due(scene.clock())
    with pytest.raises(ConnectError, match="no time was left"):
        scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.clock())
    assert scene.network.requests == []


def test_failed_refresh_keeps_the_metadata(scene: Scene) -> None:
    before = scene.cache.snapshot
    scene.network.down |= {1, 2, 3}
    scene.report()

    assert not scene.cache.refresh_if_due(scene.deadline())
    assert scene.cache.snapshot is before
    [fact] = scene.facts
    assert (fact.error, fact.api_version) == ("cannot connect to broker-1:9092: Connection refused", None)
    assert fact.generation_before == before.generation


def test_cache_rebootstraps_if_every_known_broker_failed() -> None:
    """KAFKA-8206, librdkafka #5088, #5546."""
    service_name = Address("kafka", 9092)
    scene = Scene(service_name)
    scene.network.aliases[service_name] = 1
    scene.bootstrapped()
    scene.cluster.brokers = {n: Broker(n, Address(f"new-{n}", 9092)) for n in (7, 8, 9)}
    scene.network.aliases[service_name] = 7
    scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())

    assert sorted(scene.cache.snapshot.brokers) == [7, 8, 9]
    assert [fact.cause.reason for fact in scene.facts] == [RefreshReason.ON_DEMAND] * 3 + [RefreshReason.REBOOTSTRAP]
    assert scene.facts[-1].changes.brokers_removed == (1, 2, 3)
    assert (scene.facts[-1].broker_host, scene.facts[-1].broker_id) == ("kafka", None)


def test_rebootstrap_required_leads_to_the_bootstrap_addresses() -> None:
    """KIP-1102, although other brokers are known and respond."""
    service_name = Address("kafka", 9092)
    scene = Scene(service_name)
    scene.network.aliases[service_name] = 3
    scene.bootstrapped()
    scene.report()
    scene.network.metadata_refusals = {node_id: deque([129]) for node_id in (1, 2)}
    refused, responded, after = (scene.refresh_when_due() for _ in range(3))

    assert refused.broker_host == "broker-1"
    assert "REBOOTSTRAP_REQUIRED" in str(refused.error)
    assert (responded.broker_host, responded.cause.reason) == ("kafka", RefreshReason.REBOOTSTRAP)
    assert responded.error is None
    assert after.broker_host != "kafka", "the brokers are used again"


def test_refused_metadata_request_goes_to_another_broker(scene: Scene) -> None:
    before = scene.cache.snapshot
    scene.report()
    scene.network.metadata_refusals[1] = deque([31])
    refused, responded = scene.refresh_when_due(), scene.refresh_when_due()

    assert refused.error == "broker-1:9092 refused a Metadata request: CLUSTER_AUTHORIZATION_FAILED (error 31)"
    assert refused.generation_before == before.generation
    assert (responded.broker_host, responded.cause.reason) == ("broker-2", RefreshReason.NOT_LEADER)


def test_response_without_brokers_is_a_failure(scene: Scene) -> None:
    before = scene.cache.snapshot
    brokers, scene.cluster.brokers = scene.cluster.brokers, {}
    scene.network.cut_off(1)
    scene.cluster.brokers = brokers
    scene.report()
    fact = scene.refresh_when_due()

    assert scene.cache.snapshot is before
    assert fact.error == "broker-1:9092 knows no brokers: it is starting up"


def test_error_that_is_not_retriable_is_raised_and_a_fact(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.network.failures[1] = deque([TOO_OLD])

    with pytest.raises(UnsupportedBrokerError):
        scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())
    assert [fact.error for fact in scene.facts] == ["broker-1:9092 is too old"]
    assert caplog.text == ""  # there is no retry, and the caller has the error


def test_a_broker_that_fails_for_good_is_passed_over_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(BROKER_2, BROKER_1)
    scene.network.failures[2] = deque([EXPIRED] * 10)
    for _ in range(3):
        scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())

    assert scene.cache.snapshot.generation == 3
    assert [fact.error for fact in scene.facts].count(str(EXPIRED)) >= 1
    assert caplog.messages.count(f"{EXPIRED}. Asking other brokers") == 1


@pytest.mark.parametrize("other", [TOO_OLD, ConnectError("cannot connect to broker-1:9092: Connection refused")])
def test_error_that_is_not_retriable_ends_a_refresh_once_all_addresses_failed(other: KafkaMetaError) -> None:
    scene = Scene(BROKER_2, BROKER_1)
    scene.network.failures = {2: deque([EXPIRED]), 1: deque([other])}

    with pytest.raises((TlsError, UnsupportedBrokerError)):
        scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())
    assert len(scene.network.requests) == 2


def test_a_refused_login_is_not_tried_at_another_broker() -> None:
    scene = Scene(BROKER_2, BROKER_1)
    refused = AuthenticationError("wrong password")
    scene.network.failures = {2: deque([refused]), 1: deque([refused])}

    with pytest.raises(AuthenticationError):
        scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())
    assert len(scene.network.requests) == 1


@pytest.mark.parametrize("request_timeout_s", [30, 2])
def test_bootstrap_addresses_follow_two_brokers_that_hang(request_timeout_s: int) -> None:
    alias = Address("kafka", 9092)
    scene = Scene(alias, request_timeout_s=request_timeout_s)
    scene.network.aliases[alias] = 3
    scene.bootstrapped()
    scene.network.hung |= {1, 2, 3}
    began = scene.clock()
    scene.report()
    events = [scene.refresh_when_due() for _ in range(3)]

    assert [fact.cause.reason for fact in events[:2]] == [RefreshReason.NOT_LEADER] * 2
    assert (events[2].cause.reason, events[2].broker_host) == (RefreshReason.REBOOTSTRAP, "kafka")
    assert events[2].latency_ms == about_ms(min(12, request_timeout_s) * 1000)
    assert round(scene.clock() - began, 3) <= 3 + 6 + 12


def test_response_resolves_missing_responses_and_a_hint_does_not(scene: Scene) -> None:
    scene.clock.sleep(300)
    scene.network.down |= {1, 2, 3}
    scene.refresh_when_due()
    scene.network.down.clear()
    scene.cluster.move_leader(T0, 3)
    scene.clock.sleep(5)
    assert scene.cache.take_hint(T0, LeaderHint(3, 1, None), scene.cache.snapshot.generation)
    hint = scene.facts[-1]
    scene.clock.sleep(5)
    responded = scene.refresh_when_due()

    assert hint.recovery_ms == about_ms(0)
    assert responded.recovery_ms is not None
    assert responded.recovery_ms >= 10_000


def test_outage_is_logged_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        scene.network.down.update({1, 2, 3})
        scene.report()
        for _ in range(12):
            scene.refresh_when_due()
        scene.network.down.clear()
        assert scene.refresh_when_due().error is None

    first, second = (record.message for record in caplog.records)
    assert first.startswith("no broker answers a Metadata request (")
    assert first.endswith("; retrying for 60 s")
    assert all(first.count(f"broker-{one}:9092") == second.count(f"broker-{one}:9092") == 1 for one in (1, 2, 3))


# --- brokers of another cluster behind an address of this one ---------------------------------------------------------


BROKER_3 = Address("broker-3", 9092)
ALL = [BROKER_1, BROKER_2, BROKER_3]


def reuse(scene: Scene, monkeypatch: pytest.MonkeyPatch, *addresses: Address, cluster_id: str | None = "other") -> None:
    """Give addresses to brokers of another cluster."""
    respond = scene.network.metadata

    def metadata(address: Address, topics: frozenset[str] | None, deadline: float) -> MetadataResponse:
        response = respond(address, topics, deadline)
        return replace(response, cluster_id=cluster_id) if address in addresses else response

    monkeypatch.setattr(scene.network, "metadata", metadata)


def test_a_broker_of_another_cluster_is_passed_over_with_one_warning(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reuse(scene, monkeypatch, BROKER_2)
    for _ in range(4):
        scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())

    assert scene.cache.snapshot.cluster_id == "fake-cluster"
    assert [fact.error for fact in scene.facts if fact.error is not None]
    (warning,) = caplog.messages
    assert warning.startswith("broker-2:9092 belongs to cluster other, and this client uses cluster fake-cluster")
    assert warning.endswith("Asking other brokers")


def test_brokers_of_another_cluster_alone_end_a_refresh_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    before, began = scene.cache.snapshot, scene.clock()
    with monkeypatch.context() as meanwhile:
        reuse(scene, meanwhile, *ALL)
        with pytest.raises(OtherClusterError, match="to cluster other, and this client uses cluster fake-cluster"):
            scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())

    assert scene.cache.snapshot is before
    assert scene.clock() - began < 1
    assert len(scene.facts) == len(ALL)
    again = scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())
    assert again.generation == before.generation + 1, "the cluster is back at its addresses"


def test_brokers_of_another_cluster_end_a_query_that_runs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    reuse(scene, monkeypatch, *ALL)
    with pytest.raises(OtherClusterError):
        for _ in ALL:
            scene.report()
            scene.refresh_when_due()


@pytest.mark.parametrize(("first", "second"), [(None, "other"), ("fake-cluster", None)])
def test_missing_id_is_no_other_cluster(first: str | None, second: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    with monkeypatch.context() as before:
        reuse(scene, before, *ALL, cluster_id=first)
        scene.bootstrapped()
    reuse(scene, monkeypatch, *ALL, cluster_id=second)

    assert scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline()).cluster_id == second
