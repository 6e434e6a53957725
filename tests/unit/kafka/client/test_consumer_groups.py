"""A consumer group's offsets: a missing coordinator is waited for, a refusal is an error."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_kafka_meta.errors import BrokerError, ConnectError
from pyspark_kafka_meta.kafka.client.consumer_groups import COMMIT_TIMEOUT_S, COORDINATOR_TIMEOUT_S, ConsumerGroups
from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.options import SourceOptions
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, RecentOffsets, SourceOffset
from pyspark_kafka_meta.spark import stream_reader
from pyspark_kafka_meta.spark.stream_reader import COMMIT_AGAIN_S, COMMIT_BACKOFF_S, KafkaMetaStreamReader
from tests.partitions import T0, T1
from tests.unit.fake_network import FakeClock, about_s
from tests.unit.scene import Scene

OF_A_GROUP = SourceOptions.parse(
    {"kafka.bootstrap.servers": "b:9092", "subscribe": "t", "commitOffsetsToGroup": "g"}
).for_stream()
T0_TO_5 = SourceOffset({T0: Position(5)}, {"t": None})
REFUSED = BrokerError("refused", 30)


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


# --- streams ----------------------------------------------------------------------------------------------------------


class Commits:
    """Takes the commits of a stream, and refuses as many as `refused`. Topics in `missing` do not exist."""

    def __init__(self, refused: int = 0) -> None:
        self.asked, self.missing, self._refused = 0, frozenset[str](), refused

    def __call__(self, group: str, offsets: dict[TopicPartition, int]) -> frozenset[str]:
        self.asked += 1
        if self.asked <= self._refused:
            raise REFUSED
        return self.missing


def new_reader(monkeypatch: pytest.MonkeyPatch, commits: Commits) -> KafkaMetaStreamReader:
    """Of a query for which there is nothing to plan."""
    planner = SimpleNamespace(
        next_offset=lambda start, *_: start,
        flush_events=lambda: None,
        available_now=dict,
        recent=RecentOffsets(),
        commit_to_group=commits,
    )
    monkeypatch.setattr(KafkaMetaStreamReader, "_planner", lambda self: planner)
    return KafkaMetaStreamReader(OF_A_GROUP, {})


def plan(reader: KafkaMetaStreamReader, finished: SourceOffset) -> None:
    """Plan the micro-batch that comes after those up to there."""
    reader.latestOffset(finished.as_dict(), ReadAllAvailable())


def test_a_commit_that_failed_does_not_hold_up_the_next_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    commits, clock = Commits(refused=1), FakeClock()
    monkeypatch.setattr(stream_reader, "time", SimpleNamespace(monotonic=clock))
    reader = new_reader(monkeypatch, commits)

    asked = []
    for _ in range(3):
        plan(reader, T0_TO_5)
        asked.append(commits.asked)
        clock.sleep(COMMIT_BACKOFF_S / 2)

    assert asked == [1, 1, 2]


def test_a_run_of_available_now_tries_once_more_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = Commits(refused=2)
    reader = new_reader(monkeypatch, commits)
    reader.prepareForTriggerAvailableNow()
    plan(reader, T0_TO_5)
    plan(reader, T0_TO_5)

    assert commits.asked == 3
    assert reader._committed == {T0: 5}


def test_a_stream_commits_each_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = Commits()
    reader = new_reader(monkeypatch, commits)
    for finished in (T0_TO_5, T0_TO_5, SourceOffset({T0: Position(6)}, {"t": None})):
        plan(reader, finished)

    assert commits.asked == 2


def test_a_stream_goes_on_to_commit_without_a_deleted_topic_and_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commits = Commits()
    reader = new_reader(monkeypatch, commits)
    commits.missing = frozenset({"t"})
    for offset in (5, 6, 7):
        plan(reader, SourceOffset({T0: Position(offset)}, {"t": None}))

    assert commits.asked == 3
    assert caplog.messages == ["no offsets were committed to consumer group g for missing topics: t"]


def test_an_idle_stream_commits_again_before_brokers_forget_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    commits, clock = Commits(), FakeClock()
    monkeypatch.setattr(stream_reader, "time", SimpleNamespace(monotonic=clock))
    reader = new_reader(monkeypatch, commits)

    committed = []
    for _ in range(4):
        plan(reader, T0_TO_5)
        committed.append(commits.asked)
        clock.sleep(COMMIT_AGAIN_S / 2)

    assert committed == [1, 1, 2, 2]


@pytest.mark.parametrize("nothing", [BEGINNING, SourceOffset({}, {})], ids=["a new query", "a pattern without a match"])
def test_a_stream_that_has_read_nothing_commits_nothing(nothing: SourceOffset, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = Commits()
    plan(new_reader(monkeypatch, commits), nothing)

    assert commits.asked == 0
