"""A stream commits where it is to a consumer group, which neither fails nor delays it."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from pyspark_kafka_meta.model import Position, TopicPartition
from pyspark_kafka_meta.read.planning.group_commits import COMMIT_AGAIN_S, COMMIT_BACKOFF_S, GroupCommits
from tests.partitions import T0
from tests.unit.scene import Scene

REFUSED = ErrorCode.group_authorization_failed


@pytest.fixture
def commits(scene: Scene) -> GroupCommits:
    return GroupCommits(scene.warm_client(), "g")


def to(offset: int) -> dict[TopicPartition, Position]:
    return {T0: Position(offset)}


def asked(scene: Scene) -> int:
    return len(scene.sent("OffsetCommit"))


def test_each_end_is_committed_once(scene: Scene, commits: GroupCommits) -> None:
    for offset in (5, 5, 6):
        commits.commit(to(offset))

    assert asked(scene) == 2
    assert scene.network.groups == {"g": {T0: 6}}


def test_nothing_is_committed_for_a_query_that_has_read_nothing(scene: Scene, commits: GroupCommits) -> None:
    commits.commit({})

    assert asked(scene) == 0


@pytest.mark.parametrize(
    ("refusals", "pause_s", "expected"),
    [
        ([REFUSED], COMMIT_BACKOFF_S / 2, [1, 1, 2]),  # a failed commit does not hold up the next micro-batches
        ([], COMMIT_AGAIN_S / 2, [1, 1, 2, 2]),  # brokers would forget the group of an idle query
    ],
)
def test_commit_is_repeated_after_a_pause(
    scene: Scene, commits: GroupCommits, refusals: list[ErrorCode], pause_s: float, expected: list[int]
) -> None:
    scene.network.admin_errors["OffsetCommit"] += refusals
    seen = []
    for _ in expected:
        commits.commit(to(5))
        seen.append(asked(scene))
        scene.clock.sleep(pause_s)

    assert seen == expected


def test_last_micro_batch_of_a_run_tries_once_more(scene: Scene, commits: GroupCommits) -> None:
    scene.network.admin_errors["OffsetCommit"] += [REFUSED] * 2
    commits.commit(to(5))
    for _ in range(2):
        commits.commit(to(5), is_last=True)

    assert asked(scene) == 3
    assert scene.network.groups == {"g": {T0: 5}}


def test_deleted_topic_is_warned_of_once(scene: Scene, commits: GroupCommits, caplog: pytest.LogCaptureFixture) -> None:
    del scene.cluster.topics["t"]
    for offset in (5, 6, 7):
        commits.commit(to(offset))

    assert asked(scene) == 3
    assert caplog.messages == ["no offsets were committed to consumer group g for missing topics: t"]
