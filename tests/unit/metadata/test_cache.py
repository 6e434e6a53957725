"""The cache as its users see it: a scripted cluster, a clock that passes by being waited on, and the events."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

import pytest

from pyspark_kafka_meta.errors import ConnectError, ProtocolError, UnknownHostError, UnsupportedBrokerError
from pyspark_kafka_meta.metadata.cache import MetadataCache
from pyspark_kafka_meta.metadata.changes import LeaderChange
from pyspark_kafka_meta.metadata.events import BrokerFetches, EventKind, Outcome, RefreshEvent, RefreshReason
from pyspark_kafka_meta.metadata.model import NO_LEADER, Address, Broker, LeaderHint, MetadataAnswer, TopicPartition
from pyspark_kafka_meta.metadata.policy import FIRST_ATTEMPT_TIMEOUT_MS, PolicySettings
from tests.unit.fake_wire import FakeClock, FakeWire

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
REQUEST_TIMEOUT_S = 5
WALL_S = 1_700_000_000.25
BROKER_1 = Address("broker-1", 9092)


class Unrandom(random.Random):
    """Addresses are asked in the order given, and nothing is jittered."""

    def random(self) -> float:
        return 0.5

    def uniform(self, a: float, b: float) -> float:
        return min(b, 1.0)


class ImpatientClock(FakeClock):
    """Fails a test that waits for ever."""

    def __init__(self) -> None:
        super().__init__()
        self._steps_left = 1_000

    def sleep(self, seconds: float) -> None:
        self._steps_left -= 1
        assert self._steps_left > 0, "it waits for ever"
        super().sleep(seconds)


class Scene:
    """A cluster with topic t (two partitions, led by brokers 1 and 2), a cache over it, and what it published."""

    def __init__(
        self,
        *bootstrap: Address,
        request_timeout_s: int = REQUEST_TIMEOUT_S,
        settings: PolicySettings = PolicySettings(),  # noqa: B008 (frozen)
    ) -> None:
        self.clock = ImpatientClock()
        self.wire = FakeWire(clock=self.clock)
        self.cluster = self.wire.cluster
        self.cluster.create_topic("t", partitions=2)
        self.events: list[RefreshEvent] = []
        self.cache = MetadataCache(
            self.wire,
            bootstrap or (BROKER_1,),
            settings,
            request_timeout_ms=request_timeout_s * 1000,
            publish=self.events.append,
            clock=self.clock,
            wall_clock=lambda: WALL_S,
            sleep=self.clock.sleep,
            rng=Unrandom(),
        )
        [self.birth] = self.events
        self.events.clear()
        self.cache.track(["t"])

    def deadline(self, seconds: float = 60) -> float:
        return self.clock() + seconds

    def bootstrapped(self) -> Scene:
        self.cache.refresh(RefreshReason.BOOTSTRAP, self.deadline())
        self.clock.sleep(10)
        self.events.clear()
        self.wire.requests.clear()
        return self

    def report(self, reason: RefreshReason = RefreshReason.NOT_LEADER, node_id: int = 1) -> None:
        partition = T0 if reason is RefreshReason.NOT_LEADER else None
        self.cache.request_update(reason, self.cache.snapshot.generation, partition, 6, node_id)

    def refresh_when_due(self) -> RefreshEvent:
        self.clock.sleep(self.cache.time_to_next_update_ms() / 1000)
        self.cache.refresh_if_due(self.deadline())
        return self.events[-1]

    def leader_id(self, partition: TopicPartition = T0) -> int | None:
        leader = self.cache.leader(partition)
        return None if leader is None else leader.broker.node_id


def test_one_address_is_enough_to_learn_the_cluster() -> None:
    scene = Scene()
    snapshot = scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())

    assert sorted(snapshot.brokers) == [1, 2, 3]
    assert (scene.leader_id(T0), scene.leader_id(T1)) == (1, 2)
    [event] = scene.events
    assert (event.kind, event.reason, event.outcome) == (EventKind.REFRESH, RefreshReason.BOOTSTRAP, Outcome.CHANGED)
    assert (event.broker_id, event.broker_host, event.broker_port) == (1, "broker-1", 9092)
    assert (scene.birth.cluster_id, event.cluster_id) == (None, "fake-cluster")
    assert (event.generation_before, event.generation_after, event.age_ms) == (0, 1, None)
    assert (event.api_version, event.correlation_id, event.request_bytes, event.response_bytes) == (12, 1, 40, 400)
    assert event.changes.brokers_added == (1, 2, 3)
    assert event.time_ms == 1_700_000_000_250
    assert event.recovery_ms is None


def test_birth_is_the_first_event_of_a_cache_and_asks_nobody() -> None:
    scene = Scene()

    assert (scene.birth.kind, scene.birth.sequence, scene.birth.cache_id) == (EventKind.BORN, 1, scene.cache.cache_id)
    assert (scene.birth.outcome, scene.birth.generation_after) == (Outcome.UNCHANGED, 0)
    assert (scene.birth.broker_host, scene.birth.attempt, scene.birth.idle_ms) == (None, 0, None)
    assert scene.wire.requests == []


def test_the_last_event_says_that_the_cache_has_ended_and_how_long_it_lay_idle() -> None:
    scene = Scene().bootstrapped()
    scene.cache.leader(T0)
    scene.clock.sleep(3)
    scene.cache.close()
    ended = scene.events[-1]

    assert (ended.kind, ended.reason, ended.sequence, ended.lookups) == (EventKind.CLOSED, RefreshReason.CLOSED, 3, 1)
    assert ended.idle_ms == 3_000


def test_event_tells_how_long_the_cache_lay_idle() -> None:
    scene = Scene().bootstrapped()
    scene.cache.leader(T0)
    scene.clock.sleep(42)
    scene.report()
    first = scene.refresh_when_due()
    scene.cache.leader(T0)
    scene.report()
    second = scene.refresh_when_due()

    assert (first.idle_ms, second.idle_ms) == (42_000, 100)


def test_patience_that_brokers_asked_of_fetches_is_in_the_next_event() -> None:
    scene = Scene().bootstrapped()
    scene.cache.count_fetch(1, 0, 30)
    scene.cache.count_fetch(1, 0, 12)
    scene.report()

    assert scene.refresh_when_due().fetch_throttle_ms == 42
    assert scene.refresh_when_due().fetch_throttle_ms == 0


def test_fetches_and_retries_are_told_once_by_the_next_event() -> None:
    scene = Scene().bootstrapped()
    for node_id, response_bytes in ((2, 100), (1, 7), (2, 50)):
        scene.cache.count_fetch(node_id, response_bytes, 0)
    scene.cache.count_retry()
    scene.cache.count_retry()
    event, next_event = scene.refresh_when_due(), scene.refresh_when_due()

    assert (event.fetches, event.retries) == ((BrokerFetches(1, 1, 7), BrokerFetches(2, 2, 150)), 2)
    assert (next_event.fetches, next_event.retries) == ((), 0)


def test_lost_records_are_an_event_that_asks_nobody() -> None:
    scene = Scene().bootstrapped()
    scene.cache.record_loss(T1, 3, 12, "they aged out")
    [event] = scene.events

    assert (event.kind, event.reason, event.error) == (EventKind.DATA_LOSS, RefreshReason.DATA_LOSS, "they aged out")
    assert (event.cause_topic, event.cause_partition) == ("t", 1)
    assert (event.lost_from_offset, event.lost_until_offset) == (3, 12)
    assert (event.generation_before, event.generation_after, event.attempt) == (1, 1, 0)
    assert scene.wire.requests == []


def test_many_lookups_need_no_request_and_are_counted() -> None:
    scene = Scene().bootstrapped()
    for _ in range(500):
        scene.cache.leader(T0)
    scene.report()
    event = scene.refresh_when_due()

    assert len(scene.wire.requests) == 1
    assert event.lookups == 500
    assert scene.refresh_when_due().lookups == 0


def test_nothing_is_asked_until_something_is_due() -> None:
    scene = Scene().bootstrapped()

    assert not scene.cache.refresh_if_due(scene.deadline())
    assert scene.cache.time_to_next_update_ms() == 290_000
    scene.clock.sleep(290)
    assert scene.cache.refresh_if_due(scene.deadline())
    [event] = scene.events
    assert (event.reason, event.outcome, event.age_ms) == (RefreshReason.MAX_AGE, Outcome.UNCHANGED, 300_000)


def test_periodic_refresh_finds_new_partitions() -> None:
    scene = Scene().bootstrapped()
    topic = scene.cluster.topics["t"]
    added = replace(topic.partitions[0], partition=2)
    scene.cluster.topics["t"] = replace(topic, partitions=(*topic.partitions, added))
    event = scene.refresh_when_due()

    assert event.changes.partitions_added == (TopicPartition("t", 2),)
    assert scene.cache.snapshot.partitions("t")[-1] == TopicPartition("t", 2)


def test_moved_leader_is_found_and_the_event_tells_why_whom_and_how_long() -> None:
    scene = Scene().bootstrapped()
    scene.cluster.move_leader(T0, 3)
    scene.report(node_id=1)
    scene.clock.sleep(2)
    event = scene.refresh_when_due()

    assert scene.leader_id() == 3
    assert (event.reason, event.cause_error_code, event.cause_topic) == (RefreshReason.NOT_LEADER, 6, "t")
    assert (event.cause_partition, event.cause_node_id) == (0, 1)
    assert event.changes.leaders_changed == (LeaderChange("t", 0, 1, 3, 0, 1),)
    assert event.recovery_ms == 2_000


def test_trouble_with_an_older_generation_is_already_answered() -> None:
    scene = Scene().bootstrapped()
    used = scene.cache.snapshot.generation
    scene.report()
    scene.refresh_when_due()

    scene.cache.request_update(RefreshReason.NOT_LEADER, used, T0, 6, 1)
    assert scene.cache.time_to_next_update_ms() == 300_000


def test_second_report_of_the_same_generation_adds_no_request() -> None:
    scene = Scene().bootstrapped()
    for _ in range(5):
        scene.report()
    scene.refresh_when_due()

    assert not scene.cache.refresh_if_due(scene.deadline())
    assert len(scene.wire.requests) == len(scene.events) == 1


def test_while_answers_are_stale_the_pauses_grow_until_the_leader_moves() -> None:
    scene = Scene().bootstrapped()
    scene.wire.down.add(1)
    times = []
    for _ in range(9):
        scene.report(RefreshReason.CONNECTION_LOST, node_id=1)
        assert scene.refresh_when_due().outcome is Outcome.UNCHANGED
        times.append(scene.clock())
    scene.cluster.move_leader(T0, 2)
    scene.report(RefreshReason.CONNECTION_LOST, node_id=1)
    event = scene.refresh_when_due()

    assert [round((b - a) * 1000) for a, b in pairwise(times)] == [100, 200, 400, 800, *[1000] * 4]
    assert scene.leader_id() == 2
    assert event.recovery_ms == pytest.approx(6_500, abs=0.1)


def test_broker_that_cannot_learn_better_is_not_the_only_one_asked() -> None:
    scene = Scene().bootstrapped()
    scene.wire.cut_off(1)
    scene.cluster.move_leader(T0, 3)
    scene.report()
    first = scene.refresh_when_due()
    scene.report()
    second = scene.refresh_when_due()

    assert (first.broker_id, first.outcome) == (1, Outcome.UNCHANGED)
    assert second.broker_id != 1
    assert scene.leader_id() == 3


def test_lagging_broker_does_not_lead_back() -> None:
    scene = Scene().bootstrapped()
    scene.wire.cut_off(1)
    scene.cluster.move_leader(T0, 3)
    scene.report(RefreshReason.CONNECTION_LOST, node_id=1)
    assert scene.refresh_when_due().broker_id != 1
    scene.wire.down |= {2, 3}
    scene.report()
    while scene.refresh_when_due().outcome is Outcome.FAILED:
        pass

    assert scene.events[-1].broker_id == 1
    assert scene.events[-1].changes.stale_ignored == 1
    assert scene.leader_id() == 3


def test_broker_that_answered_is_asked_again() -> None:
    scene = Scene().bootstrapped()
    for _ in range(10):
        scene.refresh_when_due()

    assert {event.broker_id for event in scene.events} == {1}


@pytest.mark.parametrize("reason", [RefreshReason.CONNECTION_LOST, RefreshReason.REQUEST_TIMEOUT])
def test_metadata_is_asked_of_another_broker_than_the_one_that_is_gone(reason: RefreshReason) -> None:
    scene = Scene().bootstrapped()
    scene.report(reason, node_id=1)

    assert scene.refresh_when_due().broker_id in (2, 3)


def test_bootstrap_fails_over_and_the_events_name_both_addresses_and_the_time_lost() -> None:
    dead, hung = Address("dead", 1), Address("broker-2", 9092)
    scene = Scene(dead, hung, BROKER_1)
    scene.wire.hung.add(2)
    scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())
    refused, silent, answered = scene.events

    assert scene.wire.requests == [("Metadata", one) for one in (dead, hung, BROKER_1)]
    assert (refused.attempt, refused.broker_host, refused.latency_ms) == (1, "dead", 0)
    assert refused.error == "cannot connect to dead:1: Connection refused"
    assert (silent.attempt, silent.broker_host, silent.latency_ms) == (2, "broker-2", 3_000)
    assert silent.error == "broker 2 did not answer in time"
    assert (answered.attempt, answered.broker_host, answered.recovery_ms) == (3, "broker-1", 3_000)
    assert [event.outcome for event in scene.events] == [Outcome.FAILED, Outcome.FAILED, Outcome.CHANGED]


def test_refresh_that_nobody_answers_names_every_address_and_what_to_check() -> None:
    scene = Scene(Address("dead", 1), Address("gone", 2), BROKER_1)
    scene.wire.failures[1] = deque(ProtocolError("an answer cannot be read") for _ in range(100))
    with pytest.raises(ConnectError) as caught:
        scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline(3))

    text = str(caught.value)
    assert "cannot connect to dead:1: Connection refused" in text
    assert "cannot connect to gone:2: Connection refused" in text
    assert "broker-1:9092: an answer cannot be read" in text
    assert "check kafka.bootstrap.servers" in text
    assert len(scene.events) == len(scene.wire.requests) == 3 * 6, "at 0, 100, 300, 700, 1500 and 2500 ms"
    assert scene.clock() <= 1_003


NOT_KNOWN = UnknownHostError("cannot connect to broker-1:9092: Name or service not known")


def test_names_that_nobody_can_resolve_fail_a_query_that_begins_after_seconds() -> None:
    scene = Scene()
    scene.wire.failures[1] = deque([NOT_KNOWN] * 100)
    began = scene.clock()
    with pytest.raises(ConnectError, match=r"Name or service not known.*check kafka\.bootstrap\.servers"):
        scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())

    assert scene.clock() - began < 4


def test_name_that_is_resolved_after_a_moment_is_enough() -> None:
    scene = Scene()
    scene.wire.failures[1] = deque([NOT_KNOWN] * 4)

    assert scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline()).generation == 1


@pytest.mark.parametrize(
    ("bootstrap", "reason"),
    [
        ([Address("dead", 1), BROKER_1], RefreshReason.BOOTSTRAP),  # which is refused, and may be up soon
        ([BROKER_1], RefreshReason.NEW_TOPIC),  # of a task
    ],
)
def test_name_that_cannot_be_resolved_is_waited_for_where_it_may_be_right(
    bootstrap: list[Address], reason: RefreshReason
) -> None:
    scene = Scene(*bootstrap)
    scene.wire.failures[1] = deque([NOT_KNOWN] * 15)
    began = scene.clock()
    scene.cache.refresh(reason, scene.deadline())

    assert scene.clock() - began > 4


def test_error_names_nobody_who_failed_before_the_last_good_answer() -> None:
    scene = Scene(Address("dead", 1), BROKER_1).bootstrapped()
    scene.wire.hung |= {1, 2, 3}
    with pytest.raises(ConnectError) as caught:
        scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline(4))

    assert "broker 2 did not answer in time" in str(caught.value)
    assert "dead" not in str(caught.value)


def test_one_hung_broker_does_not_use_up_the_deadline() -> None:
    scene = Scene().bootstrapped()
    scene.wire.hung.add(2)
    started = scene.clock()
    scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline(60))

    assert scene.clock() - started == FIRST_ATTEMPT_TIMEOUT_MS / 1000 < REQUEST_TIMEOUT_S
    assert [event.broker_id == 2 for event in scene.events] == [True, False]


def test_who_asks_on_demand_hears_another_broker_each_time_even_if_one_is_down() -> None:
    scene = Scene().bootstrapped()
    scene.wire.down.add(2)
    answered = [1]
    for _ in range(4):
        scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())
        answered.append(scene.events[-1].broker_id or 0)

    assert answered == [1, 3, 1, 3, 1]


def test_in_a_cluster_of_one_broker_its_word_is_enough() -> None:
    scene = Scene().bootstrapped()
    scene.wire.down |= {2, 3}
    scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())

    assert scene.events[-1].broker_id == 1


def test_attempt_ends_by_the_callers_deadline() -> None:
    scene = Scene()
    scene.wire.hung.add(1)
    scene.cache.refresh_if_due(scene.deadline(1))

    assert scene.events[-1].latency_ms == 1_000


def test_deadline_that_has_passed_sends_nothing() -> None:
    scene = Scene()

    assert not scene.cache.refresh_if_due(scene.clock())
    with pytest.raises(ConnectError, match="there was no time to ask one"):
        scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.clock())
    assert scene.wire.requests == []


def test_failure_keeps_the_last_good_view_and_is_no_exception() -> None:
    scene = Scene().bootstrapped()
    before = scene.cache.snapshot
    scene.wire.down |= {1, 2, 3}
    scene.report()

    assert not scene.cache.refresh_if_due(scene.deadline())
    assert scene.cache.snapshot is before
    [event] = scene.events
    assert (event.outcome, event.error) == (
        Outcome.FAILED,
        "cannot connect to broker-1:9092: Connection refused",
    )
    assert event.api_version is None
    assert (event.generation_before, event.generation_after) == (1, 1)


def test_when_every_known_broker_is_gone_the_bootstrap_list_is_used_again() -> None:
    service_name = Address("kafka", 9092)
    scene = Scene(service_name)
    scene.wire.aliases[service_name] = 1
    scene.bootstrapped()
    scene.cluster.brokers = {n: Broker(n, Address(f"new-{n}", 9092)) for n in (7, 8, 9)}
    scene.wire.aliases[service_name] = 7
    scene.cache.refresh(RefreshReason.ON_DEMAND, scene.deadline())

    assert sorted(scene.cache.snapshot.brokers) == [7, 8, 9]
    assert [event.reason for event in scene.events] == [RefreshReason.ON_DEMAND] * 3 + [RefreshReason.REBOOTSTRAP]
    assert scene.events[-1].changes.brokers_removed == (1, 2, 3)
    assert (scene.events[-1].broker_host, scene.events[-1].broker_id) == ("kafka", None)


def test_broker_that_says_so_sends_the_cache_back_to_the_bootstrap_list() -> None:
    """KIP-1102: REBOOTSTRAP_REQUIRED, though other brokers are known and well."""
    service_name = Address("kafka", 9092)
    scene = Scene(service_name)
    scene.wire.aliases[service_name] = 3
    scene.bootstrapped()
    scene.report()
    scene.wire.metadata_refusals = {node_id: deque([129]) for node_id in (1, 2)}
    refused, answered, after = (scene.refresh_when_due() for _ in range(3))

    assert (refused.broker_host, refused.outcome) == ("broker-1", Outcome.FAILED)
    assert "begin anew with the bootstrap addresses" in str(refused.error)
    assert (answered.broker_host, answered.reason) == ("kafka", RefreshReason.REBOOTSTRAP)
    assert answered.outcome is not Outcome.FAILED
    assert after.broker_host != "kafka", "the brokers are used again"


def test_metadata_request_that_is_refused_is_asked_of_another_broker() -> None:
    scene = Scene().bootstrapped()
    before = scene.cache.snapshot
    scene.report()
    scene.wire.metadata_refusals[1] = deque([31])
    refused, answered = scene.refresh_when_due(), scene.refresh_when_due()

    assert refused.error == "broker-1:9092 refused a Metadata request with error 31"
    assert refused.generation_after == before.generation
    assert (answered.broker_host, answered.reason) == ("broker-2", RefreshReason.NOT_LEADER)


def test_answer_without_brokers_is_a_failure() -> None:
    scene = Scene().bootstrapped()
    before = scene.cache.snapshot
    brokers, scene.cluster.brokers = scene.cluster.brokers, {}
    scene.wire.cut_off(1)
    scene.cluster.brokers = brokers
    scene.report()
    event = scene.refresh_when_due()

    assert scene.cache.snapshot is before
    assert event.error == "broker-1:9092 knows no brokers: it is starting up"


def test_permanent_error_reaches_the_caller_and_is_an_event(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.wire.failures[1] = deque([UnsupportedBrokerError("broker-1:9092 is too old")])

    with pytest.raises(UnsupportedBrokerError):
        scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())
    assert [event.error for event in scene.events] == ["broker-1:9092 is too old"]
    assert caplog.text == ""  # nobody is asked again, and the caller has the error


def test_publisher_that_fails_does_not_break_a_refresh(caplog: pytest.LogCaptureFixture) -> None:
    def publish(event: RefreshEvent) -> None:
        raise OSError("disk full")

    scene = Scene()
    cache = MetadataCache(
        scene.wire, [BROKER_1], PolicySettings(), request_timeout_ms=1000, publish=publish, clock=scene.clock
    )
    cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())

    assert cache.snapshot.generation == 1
    assert "refresh event 2 was not published" in caplog.text


def test_only_tracked_topics_are_asked_for() -> None:
    scene = Scene()
    scene.cluster.create_topic("other")
    scene.bootstrapped()

    assert list(scene.cache.snapshot.topics) == ["t"]
    scene.cache.track(["t"])
    assert scene.cache.time_to_next_update_ms() > 0, "nothing new"
    scene.cache.track(["other"])
    assert scene.refresh_when_due().reason is RefreshReason.NEW_TOPIC
    assert sorted(scene.cache.snapshot.topics) == ["other", "t"]


def test_topic_that_is_gone_is_not_asked_for_any_more_once_nobody_wants_it() -> None:
    scene = Scene()
    scene.cluster.create_topic("yesterday")
    scene.cache.track(["yesterday"])
    scene.bootstrapped()
    del scene.cluster.topics["yesterday"]
    real, asked = scene.wire.metadata, []

    def metadata(address: Address, topics: Collection[str] | None, deadline: float) -> MetadataAnswer:
        asked.append(sorted(topics or ()))
        return real(address, topics, deadline)

    scene.wire.metadata = metadata  # type: ignore[method-assign]
    for wanted in (True, True, False, False):
        scene.clock.sleep(200)
        if wanted:
            scene.cache.leader(TopicPartition("yesterday", 0))
        scene.cache.refresh(RefreshReason.MAX_AGE, scene.deadline())

    assert asked == [["t", "yesterday"]] * 3 + [["t"]]


def test_topic_that_was_never_answered_for_stays_wanted_however_long_brokers_are_down() -> None:
    scene = Scene()
    real, back_at = scene.wire.metadata, scene.clock() + 400

    def metadata(address: Address, topics: Collection[str] | None, deadline: float) -> MetadataAnswer:
        if scene.clock() < back_at:
            raise ConnectError("down")
        return real(address, topics, deadline)

    scene.wire.metadata = metadata  # type: ignore[method-assign]

    assert list(scene.cache.refresh(RefreshReason.BOOTSTRAP, back_at + 100).topics) == ["t"]


@pytest.mark.parametrize("code", [3, 29])
def test_topic_error_is_for_the_caller_to_judge(code: int) -> None:
    scene = Scene()
    scene.wire.metadata_errors["t"] = code
    snapshot = scene.cache.refresh(RefreshReason.BOOTSTRAP, scene.deadline())

    assert snapshot.topic_errors.get("t") == code
    assert scene.leader_id() is None


def test_leaderless_partition_is_found_again() -> None:
    scene = Scene().bootstrapped()
    scene.cluster.move_leader(T0, NO_LEADER)
    scene.report()
    assert scene.refresh_when_due().recovery_ms is None
    assert scene.leader_id() is None
    scene.cluster.move_leader(T0, 2)
    scene.cache.request_update(RefreshReason.NO_LEADER, scene.cache.snapshot.generation, T0)
    event = scene.refresh_when_due()

    assert scene.leader_id() == 2
    assert event.recovery_ms is not None


def test_hint_moves_the_leader_without_a_request_and_is_confirmed_by_one() -> None:
    scene = Scene().bootstrapped()
    scene.cluster.move_leader(T0, 3)

    assert scene.cache.take_hint(T0, LeaderHint(3, 1, None), generation=1, error_code=6, node_id=1)
    assert scene.leader_id() == 3
    assert scene.wire.requests == []
    [hint] = scene.events
    assert (hint.cause_error_code, hint.cause_partition, hint.cause_node_id, hint.recovery_ms) == (6, 0, 1, 0.0)
    assert (hint.kind, hint.outcome, hint.broker_host, hint.attempt) == (EventKind.HINT, Outcome.CHANGED, None, 0)
    assert hint.changes.leaders_changed == (LeaderChange("t", 0, 1, 3, 0, 1),)
    assert (hint.generation_before, hint.generation_after) == (1, 1)

    assert scene.refresh_when_due().reason is RefreshReason.LEADER_HINT
    assert scene.events[-1].outcome is Outcome.UNCHANGED


@pytest.mark.parametrize("request_timeout_s", [30, 2])
def test_bootstrap_addresses_are_asked_after_two_brokers_that_hang(request_timeout_s: int) -> None:
    alias = Address("kafka", 9092)
    scene = Scene(alias, request_timeout_s=request_timeout_s)
    scene.wire.aliases[alias] = 3
    scene.bootstrapped()
    scene.wire.hung |= {1, 2, 3}
    began = scene.clock()
    scene.report()
    asked = [scene.refresh_when_due() for _ in range(3)]

    assert [one.reason for one in asked[:2]] == [RefreshReason.NOT_LEADER] * 2
    assert (asked[2].reason, asked[2].broker_host) == (RefreshReason.REBOOTSTRAP, "kafka")
    assert asked[2].latency_ms == min(12, request_timeout_s) * 1000
    assert scene.clock() - began <= 3 + 6 + 12


def test_a_shorter_backoff_makes_more_attempts_and_a_shorter_recovery() -> None:
    """As docs/tuning.md says of the events."""
    healed = []
    for backoff_ms in (100, 1_000):
        settings = PolicySettings(retry_backoff_ms=backoff_ms, retry_backoff_max_ms=10 * backoff_ms)
        scene = Scene(settings=settings).bootstrapped()
        scene.cluster.move_leader(T0, 3)
        scene.report()
        scene.wire.down |= {1, 2, 3}
        began = scene.clock()
        while scene.clock() < began + 20.5:
            scene.refresh_when_due()
        scene.wire.down.clear()
        healed.append(scene.refresh_when_due())
    eager, patient = healed

    assert eager.attempt > 2 * patient.attempt
    assert eager.recovery_ms is not None
    assert patient.recovery_ms is not None
    assert 20_500 <= eager.recovery_ms < patient.recovery_ms


def test_recovery_is_told_by_the_answer_that_ends_that_nobody_answered_not_by_a_hint() -> None:
    scene = Scene().bootstrapped()
    scene.clock.sleep(300)
    scene.wire.down |= {1, 2, 3}
    scene.refresh_when_due()
    scene.wire.down.clear()
    scene.cluster.move_leader(T0, 3)
    scene.clock.sleep(5)
    assert scene.cache.take_hint(T0, LeaderHint(3, 1, None), scene.cache.snapshot.generation)
    hint = scene.events[-1]
    scene.clock.sleep(5)
    answered = scene.refresh_when_due()

    assert hint.recovery_ms == 0
    assert answered.recovery_ms is not None
    assert answered.recovery_ms >= 10_000


def test_that_no_broker_answers_is_told_once_in_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene().bootstrapped()
    for _ in range(2):
        scene.wire.down.update({1, 2, 3})
        scene.report()
        for _ in range(12):
            scene.refresh_when_due()
        scene.wire.down.clear()
        assert scene.refresh_when_due().outcome is not Outcome.FAILED

    first, second = (record.message for record in caplog.records)
    assert first.startswith("no broker answers a Metadata request (")
    assert ", for kafka.default.api.timeout.ms at most, and where a task is reading for kafkaConsumer.poll" in first
    assert all(first.count(f"broker-{one}:9092") == second.count(f"broker-{one}:9092") == 1 for one in (1, 2, 3))


def test_wrong_hint_is_put_right_by_its_confirmation() -> None:
    scene = Scene().bootstrapped()
    scene.cluster.move_leader(T0, 3)
    scene.cache.take_hint(T0, LeaderHint(2, 1, None), generation=1)
    scene.refresh_when_due()

    assert scene.leader_id() == 3


def test_hint_with_its_endpoint_leads_to_a_broker_not_known_before() -> None:
    scene = Scene().bootstrapped()
    newcomer = Broker(4, Address("broker-4", 9092))

    assert scene.cache.take_hint(T0, LeaderHint(4, 1, newcomer), generation=1)
    assert scene.leader_id() == 4
    assert scene.events[0].changes.brokers_added == (4,)


@pytest.mark.parametrize(
    ("epoch", "generation"), [(0, 1), (-1, 1), (1, 0)], ids=["same epoch", "no epoch", "older generation"]
)
def test_hint_that_is_not_news_changes_nothing(epoch: int, generation: int) -> None:
    scene = Scene().bootstrapped()

    assert not scene.cache.take_hint(T0, LeaderHint(3, epoch, None), generation)
    assert scene.leader_id() == 1
    assert scene.events == []
    assert scene.cache.time_to_next_update_ms() == 290_000


def test_hint_that_ends_trouble_tells_how_long_it_was() -> None:
    scene = Scene().bootstrapped()
    scene.report()
    scene.clock.sleep(0.5)
    scene.cache.take_hint(T0, LeaderHint(3, 1, None), generation=1)

    assert scene.events[0].recovery_ms == 500


def test_every_request_is_one_event_and_no_event_is_missing() -> None:
    scene = Scene(BROKER_1, Address("dead", 1))
    for step in range(60):
        scene.wire.down = {step % 4}
        scene.wire.hung = {(step + 1) % 5} - scene.wire.down
        if step % 3 == 0:
            scene.cluster.move_leader(T0, 1 + step % 3)
        scene.report()
        scene.refresh_when_due()
    scene.cache.take_hint(T0, LeaderHint(2, 1_000, None), scene.cache.snapshot.generation)
    refreshes = [event for event in scene.events if event.kind is EventKind.REFRESH]

    assert len(refreshes) == len(scene.wire.requests) == 60
    assert [event.sequence for event in (scene.birth, *scene.events)] == list(range(1, 63))
    assert {event.cache_id for event in scene.events} == {scene.cache.cache_id}
    assert {event.outcome for event in refreshes} == set(Outcome)


def test_caches_have_ids_of_their_own() -> None:
    assert Scene().cache.cache_id != Scene().cache.cache_id


class GatedWire:
    """Answers when it is told to, so that a test can look at what other threads do meanwhile."""

    def __init__(self, inner: FakeWire) -> None:
        self._inner = inner
        self.entered, self.open = threading.Event(), threading.Event()
        self.asked: list[frozenset[str]] = []

    def metadata(self, address: Address, topics: Collection[str] | None, deadline: float) -> MetadataAnswer:
        self.asked.append(frozenset(topics or ()))
        self.entered.set()
        assert self.open.wait(10)
        return self._inner.metadata(address, topics, deadline)


class CrowdClock(FakeClock):
    """Tells when a number of threads have looked at it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen_by: set[int] = set()
        self.crowd = 0
        self.crowded = threading.Event()

    def __call__(self) -> float:
        self.seen_by.add(threading.get_ident())
        if len(self.seen_by) == self.crowd:
            self.crowded.set()
        return super().__call__()


class Gate:
    """A cache over a `GatedWire`; topics t and u exist, t is tracked."""

    def __init__(self) -> None:
        self.clock = CrowdClock()
        inner = FakeWire(clock=self.clock)
        inner.cluster.create_topic("t", partitions=2)
        inner.cluster.create_topic("u")
        self.wire = GatedWire(inner)
        self.events: list[RefreshEvent] = []
        self.cache = MetadataCache(
            self.wire,
            [BROKER_1],
            PolicySettings(),
            request_timeout_ms=5_000,
            publish=self.events.append,
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        self.events.clear()
        self.cache.track(["t"])

    def refresh(self) -> None:
        self.cache.refresh(RefreshReason.ON_DEMAND, self.clock.now + 60)

    def start_refresh(self) -> threading.Thread:
        """A thread whose request is under way when this returns."""
        self.wire.entered.clear()
        self.wire.open.clear()
        thread = threading.Thread(target=self.refresh)
        thread.start()
        assert self.wire.entered.wait(10)
        return thread

    def finish(self, *threads: threading.Thread) -> None:
        self.wire.open.set()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


def test_threads_that_want_a_refresh_share_one_request() -> None:
    gate = Gate()
    first = gate.start_refresh()
    gate.clock.seen_by.clear()
    gate.clock.crowd = 4
    others = [threading.Thread(target=gate.refresh) for _ in range(4)]
    for thread in others:
        thread.start()
    assert gate.clock.crowded.wait(10), "all of them have asked for a refresh"
    gate.finish(first, *others)

    assert gate.cache.snapshot.generation == len(gate.wire.asked) == len(gate.events) == 1


def test_cache_answers_while_a_request_is_under_way() -> None:
    gate = Gate()
    thread = gate.start_refresh()

    assert gate.cache.leader(T0) is None
    assert gate.cache.snapshot.generation == 0
    assert gate.cache.time_to_next_update_ms() == 0
    gate.finish(thread)
    assert gate.cache.leader(T0) is not None


def test_who_waits_for_the_request_of_another_thread_gives_up_by_its_deadline() -> None:
    gate = Gate()
    thread = gate.start_refresh()

    assert not gate.cache.refresh_if_due(gate.clock.now + 0.01)
    assert thread.is_alive()
    gate.finish(thread)


def test_topic_that_came_into_use_while_a_request_was_under_way_is_asked_for_by_another() -> None:
    gate = Gate()
    thread = gate.start_refresh()
    gate.cache.track(["u"])
    gate.finish(thread)
    gate.clock.sleep(gate.cache.time_to_next_update_ms() / 1000)
    gate.cache.refresh_if_due(gate.clock.now + 60)

    assert gate.wire.asked == [frozenset({"t"}), frozenset({"t", "u"})]
    assert gate.events[-1].reason is RefreshReason.NEW_TOPIC


def test_hint_taken_while_a_request_was_under_way_is_confirmed_by_another() -> None:
    gate = Gate()
    gate.finish(gate.start_refresh())
    gate.clock.sleep(10)
    thread = gate.start_refresh()
    assert gate.cache.take_hint(T0, LeaderHint(3, 1, None), generation=1)
    gate.finish(thread)

    assert gate.cache.snapshot.leader(T0).broker.node_id == 3  # type: ignore[union-attr]
    assert gate.cache.time_to_next_update_ms() < 1_000
