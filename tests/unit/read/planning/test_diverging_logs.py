"""An unclean election onto a log that went its own way: noticed whatever its length is, and never where logs agree."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.kafka.client.kafka_client import KafkaClient
from pyspark_kafka_meta.model import NO_OFFSET, Position
from tests.partitions import T0, T3
from tests.unit.logs import batch
from tests.unit.read.planning.changes import HOW_TO_GO_ON
from tests.unit.read.planning.queries import GO_ON, Query, add_partition
from tests.unit.scene import Scene

TRUNCATED = r"the log of t-0 was truncated to offset 12 \(leader epoch 1, now 2\)"


@pytest.fixture(autouse=True)
def not_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaClient, "cleanup_policy", lambda client, topic: "delete")


def diverge(scene: Scene, kept_by_old_leader: int) -> None:
    """Broker 1 leads t-0 in epoch 0 and is cut off at offset 12. It takes records that no other broker gets. Broker 2,
    elected in epoch 1, takes offsets 12 to 14."""
    scene.cluster.isolate(T0, 1)
    for number in range(kept_by_old_leader):
        scene.cluster.append_isolated(T0, 1, batch([f"old-{number}"]))
    scene.cluster.move_leader(T0, 2)
    scene.write(T0, "new-0", "new-1", "new-2")
    scene.clock.sleep(300)


def elect_old_leader(scene: Scene) -> None:
    scene.cluster.elect_uncleanly(T0, 1)
    scene.clock.sleep(300)


LENGTHS = pytest.mark.parametrize("kept_by_old_leader", [0, 1, 2, 3, 4, 8])
RESTARTS = pytest.mark.parametrize("restarted", [False, True], ids=["one run", "restarted"])


@LENGTHS
@RESTARTS
def test_unclean_election_at_any_length_ends_the_query(scene: Scene, kept_by_old_leader: int, restarted: bool) -> None:
    query = Query.started(scene)
    diverge(scene, kept_by_old_leader)
    assert query.step() == {T0: (12, 15)}
    elect_old_leader(scene)
    query = query.restarted() if restarted else query

    for _ in range(2):
        with pytest.raises(DataLossError, match=f"{TRUNCATED}.*{HOW_TO_GO_ON}"):
            query.step()


@LENGTHS
@RESTARTS
def test_records_that_replaced_others_are_read_if_told(scene: Scene, kept_by_old_leader: int, restarted: bool) -> None:
    query = Query.started(scene, **GO_ON)
    diverge(scene, kept_by_old_leader)
    query.step()
    elect_old_leader(scene)
    scene.write(T0, "after")
    query = query.restarted(**GO_ON) if restarted else query

    assert query.step() == {T0: (12, 13 + kept_by_old_leader)}
    assert query.step() == {}
    assert scene.losses() == [(T0, 12, 15)]


def test_idle_leader_between_the_records_and_the_unclean_election_hides_nothing(scene: Scene) -> None:
    """Broker 3 leads without a record before and after the query reads offsets 12 to 14."""
    query = Query.started(scene)
    diverge(scene, 3)
    scene.cluster.move_leader(T0, 3)
    scene.clock.sleep(300)
    assert query.step() == {T0: (12, 15)}
    assert query.offset.positions[T0] == Position(15, 1, 12, reported_epoch=2)
    elect_old_leader(scene)

    with pytest.raises(DataLossError, match="was truncated to offset 12"):
        query.step()


def test_checkpoint_of_an_earlier_release_is_read_as_by_that_release(scene: Scene) -> None:
    """Its epoch may be of a leader that wrote nothing."""
    query = Query.started(scene)
    diverge(scene, 8)
    query.step()
    positions = {part: position._replace(epoch_start=NO_OFFSET) for part, position in query.offset.positions.items()}
    query.offset = replace(query.offset, positions=positions)
    elect_old_leader(scene)

    assert query.step() == {T0: (15, 20)}


@pytest.mark.parametrize(("policy", "is_lost"), [("compact", False), ("delete", True), (None, True)])
def test_epoch_that_compaction_may_have_removed_is_only_warned_of(
    scene: Scene, caplog: pytest.LogCaptureFixture, policy: str | None, is_lost: bool
) -> None:
    scene.monkeypatch.setattr(KafkaClient, "cleanup_policy", lambda client, topic: policy)
    query = Query.started(scene, **GO_ON)
    diverge(scene, 8)
    query.step()
    elect_old_leader(scene)

    assert query.step() == {T0: (12 if is_lost else 15, 20)}
    assert scene.losses() == ([(T0, 12, 15)] if is_lost else [])
    assert ("the log of t-0 has no records of leader epoch 1" in caplog.text) is not is_lost


def test_leader_is_asked_once_where_its_epoch_starts(scene: Scene) -> None:
    query = Query(scene)
    scene.cluster.move_leader(T0, 2)
    for _ in range(5):
        scene.write(T0, "more")
        scene.clock.sleep(10)
        query.step()

    assert scene.sent("OffsetForLeaderEpoch") == [2]


def test_position_in_a_new_partition_has_the_start_of_its_epoch_too(scene: Scene) -> None:
    query = Query.started(scene)
    add_partition(scene, T3)
    scene.cluster.move_leader(T3, 2)
    scene.write(T3, "first")
    scene.clock.sleep(300)

    assert query.step() == {T3: (0, 1)}
    assert query.offset.positions[T3] == Position(1, 1, 0)


def test_records_of_several_idle_leaders_keep_their_own_epoch(scene: Scene) -> None:
    query = Query.started(scene)
    scene.cluster.move_leader(T0, 2)
    scene.write(T0, "a")
    for node_id in (3, 2, 3):
        scene.cluster.move_leader(T0, node_id)
    scene.clock.sleep(300)

    assert query.step() == {T0: (12, 13)}
    assert query.offset.positions[T0] == Position(13, 1, 12, reported_epoch=4)


def test_leaders_of_the_first_epoch_are_not_asked(scene: Scene) -> None:
    Query.started(scene, startingOffsets="earliest")

    assert scene.sent("OffsetForLeaderEpoch") == []


class History:
    """A query over t-0 in a cluster whose leaders move. Clean elections lose nothing."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene, self.rng = scene, random.Random(seed)
        self.options = {"assign": '{"t":[0]}', "startingOffsets": "earliest", **GO_ON}
        if self.rng.random() < 0.5:
            self.options["maxOffsetsPerTrigger"] = str(self.rng.randrange(1, 9))
        self.query = Query(scene, **self.options)
        self.read: dict[int, bytes] = {}

    def write(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            self.scene.write(T0, f"{self.rng.random()}")

    def move(self) -> None:
        for _ in range(self.rng.randrange(1, 3)):
            self.scene.cluster.move_leader(T0, self.rng.choice([2, 3]))

    def step(self) -> None:
        self.scene.clock.sleep(self.rng.choice([1, 300]))
        for start, end in self.query.step().values():
            self.read |= {offset: data for offset, data in self.log().items() if start <= offset < end}

    def restart(self) -> None:
        self.query = self.query.restarted(**self.options)

    def log(self) -> dict[int, bytes]:
        """The records by offset. The values at an offset are unique."""
        stored = self.scene.cluster.logs[T0]
        return {offset: at.data for at in stored for offset in range(at.base_offset, at.until_offset)}

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice([self.write, self.move, self.step, self.step, self.restart])()

    def read_all(self) -> None:
        """Read on, and check that every record that is in the log was read."""
        log = self.log()
        for _ in log:
            self.step()
        assert {offset: self.read[offset] for offset in log} == log


@pytest.mark.parametrize("seed", range(30))
def test_clean_elections_lose_nothing_however_idle_leaders_are(scene: Scene, seed: int) -> None:
    history = History(scene, seed)
    history.go_on(40)
    history.read_all()

    assert scene.losses() == []


@pytest.mark.parametrize("seed", range(30))
def test_every_unclean_election_is_a_loss_if_it_replaced_what_was_read(scene: Scene, seed: int) -> None:
    history = History(scene, seed)
    history.go_on(20)
    scene.cluster.isolate(T0, 1)
    for number in range(history.rng.randrange(6)):
        scene.cluster.append_isolated(T0, 1, batch([f"old-{number}"]))
    fork = scene.cluster.bounds(T0)[1]
    history.move()
    for _ in range(history.rng.randrange(4)):
        history.rng.choice([history.write, history.step, history.restart])()
    if history.rng.random() < 0.5:
        history.move()
        history.step()
    read_until = history.query.offset.positions[T0].offset if history.read else 0
    elect_old_leader(scene)
    history.write()
    history.read_all()

    assert scene.losses() == ([(T0, fork, read_until)] if read_until > fork else [])
