"""Generations of topics, which keep later offsets the greater ones, and the partitions that break the order of keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_meta.errors import CheckpointError, PartitionsAddedError
from pyspark_kafka_meta.model import OffsetRange, Position, TopicGeneration, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset, ranges, with_generations
from tests.checkpoints import restored, text
from tests.partitions import T0, T1, T2, T3, U0
from tests.unit.read.planning.changes import (
    PATTERN,
    delete,
    delete_u,
    lose,
    plan_again,
    recreate,
    recreate_smaller,
    truncate,
)
from tests.unit.read.planning.queries import GO_ON, Query, add_partition
from tests.unit.scene import Scene

ID, OTHER_ID = UUID(int=1), UUID(int=2)
SCHEMAS = {"keySchema": "id bigint", "valueSchema": "id bigint"}


class ChangesQuery(Query):
    """A query of changes."""

    def __init__(self, scene: Scene, /, **options: str) -> None:
        self._options = {"changes": "debezium", "valueFormat": "json", **SCHEMAS, **options}
        super().__init__(scene, **self._options)

    def restart(self) -> None:
        """With nothing but the checkpoint."""
        self.planner = self._scene.planner(**self._options)

    def generations(self) -> dict[TopicPartition, int]:
        """Of the ranges of the next micro-batch."""
        start = self.offset
        self.step()
        return {planned.partition: planned.generation for planned in ranges(start, self.offset)}


# --- the checkpoint ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_without_generations_has_no_word_of_them() -> None:
    assert "generations" not in text(SourceOffset({T0: Position(1)}, {"t": ID}))


def test_generations_are_written_and_read() -> None:
    known = {"u": TopicGeneration(0, None), "t": TopicGeneration(2, ID), "v": TopicGeneration(0, None, 3)}
    offset = SourceOffset({}, {}, generations=known)

    generations = f'{{"t": [2, "{ID}"], "u": [0, null], "v": [0, null, 3]}}'
    assert text(offset) == f'{{"generations": {generations}, "topics": {{}}, "version": 1}}'
    assert restored(offset) == offset


@pytest.mark.parametrize("pair", [1, [1], [1, None, "2"], [1, None, 2, 3], ["1", None], [-1, None], [1, "no id"], {}])
def test_a_generation_that_is_written_otherwise_is_refused(pair: object) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        SourceOffset.parse({"generations": {"t": pair}, "topics": {}, "version": 1})


topics = st.dictionaries(st.sampled_from("tuv"), st.sampled_from([ID, OTHER_ID]))


@given(topics, topics, st.dictionaries(st.sampled_from("tuv"), st.integers(0, 3)), st.sets(st.sampled_from("tuv")))
def test_no_generation_is_ever_lowered(
    before: dict[str, UUID], after: dict[str, UUID], numbers: dict[str, int], begun_again: set[str]
) -> None:
    known = {topic: TopicGeneration(number, ID) for topic, number in numbers.items()}
    start = SourceOffset({}, before, generations=known)
    end = with_generations(start, SourceOffset({}, after), begun_again)

    for topic in {*before, *numbers}:
        raised = topic in begun_again and topic in after
        assert end.generation(topic) == start.generation(topic) + raised
    assert end.generations.keys() >= (before.keys() | known.keys()) - after.keys(), "what is gone is remembered"
    assert restored(end).generations == end.generations


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_range_has_the_generation_of_its_topic() -> None:
    start = SourceOffset({T0: Position(0), U0: Position(0)}, {"t": ID, "u": ID})
    end = replace(start, positions={T0: Position(1), U0: Position(1)}, generations={"u": TopicGeneration(3, ID)})

    assert ranges(start, end) == [OffsetRange(T0, ID, 0, 1), OffsetRange(U0, ID, 0, 1, generation=3)]


@pytest.mark.parametrize("happens", [recreate, recreate_smaller, truncate])
@pytest.mark.parametrize("again", [1, 2])
def test_offsets_that_begin_again_have_a_new_one(scene: Scene, happens: Callable[[Scene], None], again: int) -> None:
    query = ChangesQuery(scene, startingOffsets="earliest", **GO_ON)
    assert set(query.generations().values()) == {0}

    for generation in range(1, again + 1):
        lose(scene, happens)
        scene.write(T0, "more")
        assert query.generations()[T0] == generation
        query.restart()
        scene.write(T0, "more")
        assert query.generations()[T0] == generation


def test_a_plan_that_is_made_again_raises_a_generation_once(scene: Scene) -> None:
    query = ChangesQuery.started(scene, startingOffsets="earliest", onTopicRecreated="earliest")
    lose(scene, recreate)
    plan_again(scene)

    assert set(query.generations().values()) == {1}


def test_a_topic_that_was_gone_has_its_generation_again_after_a_restart(scene: Scene) -> None:
    scene.cluster.create_topic("u", 1)
    scene.write(U0, "a", "b")
    u = scene.cluster.topics["u"]
    query = ChangesQuery.started(scene, **PATTERN, **GO_ON)
    lose(scene, delete_u)
    query.step()
    query.restart()
    scene.cluster.topics["u"] = u
    scene.clock.sleep(300)

    assert query.generations() == {U0: 0}, "its records have the offsets of before"
    lose(scene, delete_u)
    query.step()
    query.restart()
    scene.cluster.create_topic("u", 1)
    scene.write(U0, "new")
    scene.clock.sleep(300)
    assert query.generations() == {U0: 1}, "another topic begins again at offset 0"


def test_a_query_without_changes_writes_no_generations(scene: Scene) -> None:
    query = Query.started(scene, startingOffsets="earliest", **GO_ON)
    lose(scene, recreate)
    query.step()

    assert query.offset.generations == {}


# --- added partitions -------------------------------------------------------------------------------------------------


def test_added_partition_fails_a_query_that_relies_on_the_order_of_keys(scene: Scene) -> None:
    query = ChangesQuery.started(scene)
    add_partition(scene, T3, "moved")
    scene.clock.sleep(300)

    for _ in range(2):
        with pytest.raises(PartitionsAddedError, match=r"^t-3 were added .* set the option changeOrder to source, or"):
            query.step()
        query.restart()


def test_added_partition_is_read_if_the_order_is_the_sources(scene: Scene) -> None:
    query = ChangesQuery.started(scene, changeOrder="source")
    add_partition(scene, T3, "moved")
    scene.clock.sleep(300)

    assert query.step() == {T3: (0, 1)}


def query_whose_topic_returns(scene: Scene) -> ChangesQuery:
    """It has noticed that t was gone, and reads u."""
    scene.cluster.create_topic("u", 1)
    query = ChangesQuery.started(scene, **PATTERN, **GO_ON)
    t = scene.cluster.topics["t"]
    lose(scene, delete)
    query.step()
    scene.cluster.topics["t"] = t
    return query


def test_partition_that_was_added_while_the_topic_was_gone_fails_too(scene: Scene) -> None:
    query = query_whose_topic_returns(scene)
    add_partition(scene, T3, "moved")
    scene.clock.sleep(300)

    with pytest.raises(PartitionsAddedError, match="t-3"):
        query.step()


def grown(scene: Scene) -> None:
    scene.cluster.create_topic("t", 4)
    scene.write(T3, "new")


def new_topic(scene: Scene) -> None:
    scene.cluster.create_topic("u", 1)
    scene.write(U0, "new")


@pytest.mark.parametrize(("happens", "read"), [(grown, {T3: (0, 1)}), (new_topic, {U0: (0, 1)})])
def test_partition_of_another_topic_is_no_added_one(
    scene: Scene, happens: Callable[[Scene], None], read: dict[TopicPartition, tuple[int, int]]
) -> None:
    query = ChangesQuery.started(scene, **PATTERN, **GO_ON)
    lose(scene, happens)

    assert query.step() == read


def test_partitions_that_return_are_no_added_ones(scene: Scene) -> None:
    query = query_whose_topic_returns(scene)
    scene.write(T1, "more")
    scene.clock.sleep(300)

    assert query.step() == {T1: (12, 13)}


@pytest.mark.parametrize("gone", [T1, T2])
def test_partition_that_was_gone_at_a_restart_is_no_added_one(scene: Scene, gone: TopicPartition) -> None:
    query = ChangesQuery.started(scene, **GO_ON)
    t = scene.cluster.topics["t"]
    others = [each for each in t.partitions if each.partition != gone.partition]
    lose(scene, lambda scene: scene.cluster.topics.update(t=replace(t, partitions=tuple(others))))
    for _ in range(2):
        query.restart()
        query.step()
        scene.write(T0, "more")
    query.restart()
    scene.cluster.topics["t"] = t
    scene.clock.sleep(300)

    assert gone in query.step()
    add_partition(scene, T3, "moved")
    scene.clock.sleep(300)
    with pytest.raises(PartitionsAddedError, match=r"^t-3 were added"):
        query.step()


def test_topic_that_returns_without_ids_is_not_refused(scene: Scene) -> None:
    """Nothing tells whether it is the same topic."""
    scene.cluster.create_topic("u", 1)
    scene.cluster.topics["t"] = replace(scene.cluster.topics["t"], topic_id=None)
    query = ChangesQuery.started(scene, **PATTERN, **GO_ON)
    t = scene.cluster.topics["t"]
    lose(scene, delete)
    query.step()
    scene.cluster.topics["t"] = t
    scene.clock.sleep(300)

    assert query.step().keys() == {T0, T1, T2}
