"""Known bugs of other clients with stale metadata, which this client does not have."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest

from pyspark_kafka_meta.errors import DataLossError, ReadTimeoutError
from pyspark_kafka_meta.kafka.metadata.refresh_events import EventKind, Outcome
from pyspark_kafka_meta.kafka.metadata.snapshot import TopicRecreated
from pyspark_kafka_meta.model import NO_EPOCH, NO_LEADER, Address, Broker, LeaderHint, RefreshReason
from tests.partitions import T0
from tests.unit.reader_scene import FIVE, MAX_AGE_S, ReaderScene


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> ReaderScene:
    """Five records in t-0, whose leader, broker 1, and epoch 5 are known; requests time out after 3 s."""
    scene = ReaderScene(monkeypatch, **{"kafka.request.timeout.ms": "3000", "kafka.client.rack": ""})
    scene.set_leader(T0, 1, epoch=5)
    scene.append(T0)
    assert scene.read(T0) == FIVE
    scene.clock.sleep(10)
    scene.events.clear()
    scene.network.requests.clear()
    scene.network.fetches.clear()
    return scene


def epochs_sent(scene: ReaderScene) -> list[int]:
    return [entry.leader_epoch for _, request in scene.network.fetches for entry in request.partitions]


def pauses_s(scene: ReaderScene) -> list[float]:
    """Between refreshes, by the age that the response before had reached."""
    return [event.age_ms / 1000 for event in scene.events[1:] if event.age_ms is not None]


def test_epoch_that_really_went_back_strands_no_reader(scene: ReaderScene) -> None:
    """franz-go #119: after an unclean election the lower epoch was refused for ever, in a loop of refreshes."""
    scene.set_leader(T0, 3, epoch=2)
    began = scene.clock()

    assert scene.read(T0) == FIVE
    assert scene.clock() - began < 10
    assert {event.reason for event in scene.events} == {RefreshReason.UNKNOWN_EPOCH}
    assert [event.details.changes.stale_ignored for event in scene.events] == [1] * 5 + [0]
    assert (epochs_sent(scene)[-1], scene.fetched_from()[-1]) == (2, 3)


def test_one_broker_that_tells_a_lower_epoch_rewinds_nothing(scene: ReaderScene) -> None:
    """franz-go #119, the other side: what one stale broker repeats must not be taken for a rewind."""
    scene.set_leader(T0, 3, epoch=4)
    scene.network.cut_off(2)
    scene.set_leader(T0, 1, epoch=5)
    scene.network.down |= {1, 3}
    for _ in range(40):
        scene.report(T0)
        scene.refresh_when_due()

    assert sum(event.details.changes.stale_ignored for event in scene.events) > 10
    assert scene.leader_id(T0) == 1


def refresh(scene: ReaderScene) -> None:
    """After trouble with t-0, by a broker that responds."""
    scene.report(T0)
    while scene.refresh_when_due().outcome is Outcome.FAILED:
        pass


def test_window_without_a_leader_does_not_lower_the_epoch(scene: ReaderScene) -> None:
    """franz-go #1331, #1332: epoch -1 was taken for a rewind, which put fencing and truncation checks off."""
    scene.set_leader(T0, 3, epoch=4)
    scene.network.cut_off(2)
    scene.set_leader(T0, NO_LEADER, epoch=NO_EPOCH)
    for silent in ({2}, {1, 3}):
        scene.network.down = silent
        refresh(scene)
    assert scene.events[-1].details.changes.stale_ignored == 1
    scene.network.down.clear()
    scene.clock.at(3, lambda: scene.set_leader(T0, 3, epoch=6))

    assert scene.read(T0) == FIVE
    assert set(epochs_sent(scene)) == {6}


def test_partition_that_had_no_leader_gets_the_next_one(scene: ReaderScene) -> None:
    """librdkafka #5430: a response without a leader was skipped; the partition stayed with the one that was gone."""
    scene.set_leader(T0, NO_LEADER, epoch=6)
    scene.network.down.add(1)
    scene.clock.at(5, lambda: scene.set_leader(T0, 2, epoch=7))
    began = scene.clock()

    assert scene.read(T0) == FIVE
    assert scene.clock() - began < 5 + 1.3
    assert scene.fetched_from()[-1] == 2


@pytest.mark.parametrize("epoch", [5, 4], ids=["same", "older"])
def test_hint_that_is_not_newer_is_refused_and_the_cache_refreshed(scene: ReaderScene, epoch: int) -> None:
    """franz-go #1413: a hint of the same or an older epoch was obeyed, 475 Fetches in 5 s and not one refresh."""
    scene.network.error_codes[T0] = deque([6] * 10_000)
    scene.clock.at(5, scene.network.error_codes.clear)
    if epoch < 5:
        scene.set_leader(T0, 2, epoch)
        scene.clock.at(4.9, lambda: scene.set_leader(T0, 1, 5))

    assert scene.read(T0) == FIVE
    assert len(scene.network.fetches) < 20
    assert len(scene.events) >= 5
    assert not any(event.kind is EventKind.HINT for event in scene.events)


def test_wrong_hint_lasts_no_longer_than_a_backoff(scene: ReaderScene) -> None:
    """AutoMQ #3546: a wrong hint suppressed the refresh that would have put it right, for up to 5 minutes."""
    scene.set_leader(T0, 3, epoch=6)
    assert scene.worker.cache.take_hint(T0, LeaderHint(2, 6, None), scene.worker.cache.snapshot.generation)
    assert scene.leader_id(T0) == 2
    assert scene.worker.cache.time_to_next_update_ms() <= 1_000
    scene.refresh_when_due()

    assert scene.leader_id(T0) == 3


def test_refreshes_that_change_nothing_come_at_growing_intervals(scene: ReaderScene) -> None:
    """librdkafka #4577, #4685: refreshes followed each other without a pause while the leader stayed the same."""
    scene.network.error_codes[T0] = deque([6] * 10_000)
    scene.clock.at(20, scene.network.error_codes.clear)

    assert scene.read(T0) == FIVE
    assert len(scene.events) <= 30
    assert min(pauses_s(scene)[4:]) >= 0.8
    assert [event.outcome for event in scene.events] == [Outcome.UNCHANGED] * len(scene.events)


def test_passing_error_of_a_topic_does_not_clear_the_cache(scene: ReaderScene) -> None:
    """librdkafka #4577, #4685: the cache was cleared by an error, which made the next refresh due at once."""
    scene.network.metadata_errors["t"] = 5
    scene.report(T0)
    scene.refresh_when_due()

    assert scene.leader_id(T0) == 1
    assert scene.worker.cache.time_to_next_update_ms() > MAX_AGE_S * 799, "max age, less its jitter"


def test_stale_metadata_does_not_migrate_a_partition_back(scene: ReaderScene) -> None:
    """librdkafka #4687, #5593, #4976, #3399: a lagging broker led the client back to the old leader."""
    scene.network.cut_off(2)
    scene.set_leader(T0, 3, epoch=6)
    scene.network.down = {2}
    refresh(scene)
    scene.network.down = {1, 3}
    for _ in range(20):
        scene.report(T0)
        scene.refresh_when_due()
        assert scene.leader_id(T0) == 3
    assert {event.details.broker_id for event in scene.events if event.details.changes.stale_ignored} == {2}


def test_hint_of_another_leader_in_the_same_epoch_is_no_news(scene: ReaderScene) -> None:
    """librdkafka #4687: two leaders of one epoch, and the client went from one to the other and back."""
    for leader_id in (2, 3, 2, 3):
        assert not scene.worker.cache.take_hint(
            T0, LeaderHint(leader_id, 5, None), scene.worker.cache.snapshot.generation
        )
    assert scene.leader_id(T0) == 1
    assert scene.events == []


@pytest.mark.parametrize("hints", [True, False])
def test_fetch_after_a_fence_is_built_anew(scene: ReaderScene, monkeypatch: pytest.MonkeyPatch, hints: bool) -> None:
    """librdkafka #4620, KAFKA-9535: the request in the buffer was sent again with the epoch that had been fenced."""
    if not hints:
        monkeypatch.setattr(scene.cluster, "leader_hint", lambda partition: None)
    scene.set_leader(T0, 1, epoch=6)

    assert scene.read(T0) == FIVE
    assert epochs_sent(scene) == [5, 6]


def test_broker_that_hangs_does_not_keep_others_from_being_asked(scene: ReaderScene) -> None:
    """librdkafka before 2.10: the refresh was tried again and again at one unreachable broker."""
    scene.network.hung.add(1)
    scene.set_leader(T0, 2, epoch=6)
    began = scene.clock()

    assert scene.read(T0) == FIVE
    assert scene.clock() - began <= 3 + 0.5 + 3
    assert scene.events[-1].details.broker_id in (2, 3)


def test_leader_that_is_no_known_broker_is_asked_for_again(scene: ReaderScene) -> None:
    """KAFKA-9261, KAFKA-20673, franz-go #746: a leader id that is not in the list of brokers was an exception, or hung
    the client until its time was up."""
    newcomer = Broker(4, Address("broker-4", 9092))
    scene.network.down.add(1)
    scene.set_leader(T0, 4, epoch=6)
    scene.clock.at(2, lambda: scene.cluster.brokers.update({4: newcomer}))
    began = scene.clock()

    assert scene.read(T0) == FIVE
    assert scene.clock() - began < 2 + 1.3
    assert scene.events[-1].details.changes.brokers_added == (4,)


def test_cached_leader_expires_though_nothing_goes_wrong(scene: ReaderScene) -> None:
    """Kafka #22390: the admin client's cache of partition leaders had no end of life."""
    scene.set_leader(T0, 3, epoch=6)
    scene.clock.sleep(MAX_AGE_S)

    assert scene.read(T0) == FIVE
    assert scene.fetched_from() == [3]
    assert [event.reason for event in scene.events] == [RefreshReason.MAX_AGE]


def test_recreated_topic_begins_with_its_own_epoch_and_is_told(scene: ReaderScene) -> None:
    """KAFKA-12257, librdkafka #4898: epoch 0 of the new topic was ignored, being lower than that of the old one."""
    old_id = scene.cluster.topics["t"].topic_id
    new_id = scene.cluster.create_topic("t", partitions=2)
    scene.set_leader(T0, 2, epoch=0)
    scene.report(T0)
    event = scene.refresh_when_due()

    assert event.details.changes.topics_recreated == (TopicRecreated("t", str(old_id), str(new_id)),)
    leader = scene.worker.cache.leader(T0)
    assert leader is not None and (leader.broker.node_id, leader.leader_epoch) == (2, 0)


def test_no_row_of_a_recreated_topic_is_read_under_old_offsets(scene: ReaderScene) -> None:
    """KAFKA-13488, redpanda #30671, franz-go #1426, cruise-control #1726: positions of the old topic were used, and
    committed, for the new one."""
    old_id, planned = scene.cluster.topics["t"].topic_id, [scene.range(T0)]
    new_id = scene.cluster.create_topic("t", partitions=2)
    scene.append(T0, 50)

    with pytest.raises(DataLossError, match=f"topic id {old_id}, now {new_id}"):
        scene.read_ranges(planned)


def test_inconsistent_topic_id_does_not_spin(scene: ReaderScene) -> None:
    """franz-go #1426, redpanda #30671: after INCONSISTENT_TOPIC_ID the same request was sent again, without a pause."""
    scene.network.error_codes[T0] = deque([103] * 10_000)

    with pytest.raises(ReadTimeoutError, match="INCONSISTENT_TOPIC_ID"):
        scene.read(T0)
    assert len(scene.network.fetches) <= 150, "in the 120 s of the poll time-out"


def test_client_whose_brokers_were_all_replaced_starts_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-8206: a client never came back when all brokers it knew were replaced; librdkafka #5088, #5546: it came
    back over and over again."""
    service = Address("kafka", 9092)
    scene = ReaderScene(monkeypatch, **{"kafka.bootstrap.servers": str(service)})
    scene.network.aliases[service] = 1
    scene.append(T0)
    scene.read(T0)
    scene.events.clear()
    scene.network.requests.clear()
    scene.cluster.brokers = {node_id: Broker(node_id, Address(f"new-{node_id}", 9092)) for node_id in (7, 8, 9)}
    scene.network.aliases[service] = 7
    scene.set_leader(T0, 8, epoch=6)

    assert scene.read(T0) == FIVE
    assert sorted(scene.worker.cache.snapshot.brokers) == [7, 8, 9]
    assert [event.reason for event in scene.events].count(RefreshReason.REBOOTSTRAP) == 1
    assert len(scene.network.requests) < 10


@pytest.mark.parametrize("fault", ["down", "hung", "out of range", "not a replica"])
def test_fetch_from_a_follower_does_not_get_stuck(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """KAFKA-14379, KAFKA-14372, franz-go #885: the preferred replica was asked for ever, whatever it responded."""
    scene = ReaderScene(monkeypatch, **{"kafka.request.timeout.ms": "3000"})
    scene.append(T0)
    scene.network.preferred_replicas[T0] = 3
    scene.read(T0)
    match fault:
        case "down":
            scene.network.down.add(3)
        case "hung":
            scene.network.hung.add(3)
        case "out of range":
            scene.network.replica_errors[3, T0] = 1
        case _:
            scene.network.replica_errors[3, T0] = 6
    began = scene.clock()

    assert scene.read(T0) == FIVE
    assert scene.fetched_from()[-1] == 1
    assert scene.clock() - began <= 3.5


def test_reader_survives_the_death_of_a_leader(scene: ReaderScene) -> None:
    """aiokafka #1018, kafka-go #1221, confluent-kafka-python #594, DataDog integrations-core #14341: NOT_LEADER, or a
    dead leader's host name, was never got over. Brokers name a dead leader for some 9 s, until its session ends."""
    scene.network.down.add(1)
    scene.clock.at(9, lambda: scene.set_leader(T0, 2, epoch=6))
    began = scene.clock()

    assert scene.read(T0) == FIVE
    assert scene.clock() - began < 9 + 1.3
    assert scene.events[-1].details.recovery_ms == pytest.approx((scene.clock() - began) * 1000, abs=100)
    assert all(later <= 1.3 for later in pauses_s(scene))
    assert all(event.sequence + 1 == other.sequence for event, other in pairwise(scene.events))
