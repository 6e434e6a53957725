"""Planning for a pattern of topics: those with a match now, and those to come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyspark_kafka_meta.errors import DataLossError
from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import BEGINNING, ranges
from pyspark_kafka_meta.read.planning.offset_planner import OffsetPlanner
from tests.checkpoints import restored, text
from tests.partitions import T0, T1, T2, U0
from tests.unit.read.planning.changes import HOW_TO_GO_ON
from tests.unit.read.planning.queries import GO_ON, Query, batch_planner, positions, spans
from tests.unit.scene import Scene

BY_PATTERN = {"subscribePattern": "^[tu]$", "kafka_metadata_max_age_ms": "5000"}


def test_topics_with_a_match_in_their_name_are_read(scene: Scene) -> None:
    for topic in ("u", "tu", "other"):
        scene.cluster.create_topic(topic, partitions=1)
    scene.cluster.create_topic("__t", partitions=1)
    scene.cluster.topics["__t"] = replace(scene.cluster.topics["__t"], is_internal=True)
    scene.write(U0, "a")

    assert spans(batch_planner(scene, **BY_PATTERN).batch_ranges()) == {
        **dict.fromkeys((T0, T1, T2), (0, 12)),
        U0: (0, 1),
    }
    assert sorted(batch_planner(scene, subscribePattern="^_*t$").available_now()) == [T0, T1, T2]
    assert U0 in batch_planner(scene, subscribePattern="u").available_now()
    assert TopicPartition("tu", 0) in batch_planner(scene, subscribePattern="u").available_now()


OWN_TOPICS = {
    "kafkameta-decisions": {},
    "team-a.kafkameta-decisions_2": {},
    "team-a.kafkameta-events": {},
    "audit": {"eventsTopic": "audit"},
    "u": {"eventsTopic": "u", "eventsBootstrapServers": "broker-2:9092,broker-1:9092"},
    "ledger": {"decisionsTopic": "ledger"},
}


@pytest.mark.parametrize(("topic", "options"), OWN_TOPICS.items(), ids=OWN_TOPICS.keys())
def test_pattern_matches_no_topic_that_queries_write_into(scene: Scene, topic: str, options: dict[str, str]) -> None:
    scene.cluster.create_topic(topic, partitions=1)
    query = Query(scene, **options, subscribePattern=".", startingOffsets="earliest")
    assert query.step().keys() == {T0, T1, T2}

    scene.write(TopicPartition(topic, 0), "an event or a decision")
    scene.clock.sleep(5)
    assert query.step() == {}
    assert batch_planner(scene, **options, subscribePattern=".").available_now().keys() == {T0, T1, T2}


@pytest.mark.parametrize("selection", [{"subscribe": "audit"}, {"assign": '{"audit":[0]}'}])
@pytest.mark.parametrize("topic", ["kafkameta-decisions", "kafkameta-events", "audit"])
def test_topic_that_queries_write_is_read_by_its_name(scene: Scene, topic: str, selection: dict[str, str]) -> None:
    scene.cluster.create_topic(topic, partitions=1)
    scene.write(TopicPartition(topic, 0), "an event or a decision")
    selection = {name: text.replace("audit", topic) for name, text in selection.items()}

    planner = batch_planner(scene, **selection, eventsTopic="audit")
    assert spans(planner.batch_ranges()) == {TopicPartition(topic, 0): (0, 1)}


def test_topic_with_the_name_of_an_events_topic_in_another_cluster_is_read(scene: Scene) -> None:
    planner = batch_planner(scene, subscribePattern="t", eventsTopic="t", eventsBootstrapServers="another:9092")
    assert planner.available_now().keys() == {T0, T1, T2}


def test_topic_that_a_query_begins_to_write_is_no_loss(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.cluster.create_topic("u", partitions=1)
    query = Query.started(scene, **BY_PATTERN).restarted(**BY_PATTERN, eventsTopic="u")
    scene.write(U0, "an event")
    scene.write(T0, "a record")

    assert query.step() == {T0: (12, 13)}
    assert positions(query.offset).keys() == {T0, T1, T2}
    assert query.step() == {}
    assert caplog.text.count("u-0: read no more, because queries write these topics for themselves") == 1


def test_pattern_without_a_match_is_warned_of_as_acls_hide(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    assert batch_planner(scene, subscribePattern="t").batch_ranges()
    assert caplog.text == ""
    assert batch_planner(scene, subscribePattern="none").batch_ranges() == []
    assert "no topic that this user may see" in caplog.text
    assert batch_planner(scene, subscribePattern="n" * 40_000).batch_ranges() == []
    assert len(caplog.messages[-1]) < 1_000


def test_a_new_topic_that_matches_is_read_from_its_start_within_the_max_age(scene: Scene) -> None:
    query = Query.started(scene, **BY_PATTERN)
    scene.cluster.create_topic("u", partitions=1)
    scene.write(U0, "a", "b")
    assert query.step() == {}

    scene.clock.sleep(5)
    assert query.step() == {U0: (0, 2)}


def test_a_pattern_that_matches_nothing_yet_waits_for_topics(scene: Scene) -> None:
    query = Query(scene, **BY_PATTERN | {"subscribePattern": "u"})
    assert query.step() == {}
    scene.cluster.create_topic("u", partitions=1)
    scene.write(U0, "a")
    scene.clock.sleep(5)

    assert query.step() == {U0: (0, 1)}


def test_a_pattern_that_matched_nothing_at_first_pins_that_though_it_would_begin_at_the_latest(scene: Scene) -> None:
    planner = scene.planner(**BY_PATTERN | {"subscribePattern": "u"}, startingOffsets="latest")
    first = restored(planner.next_offset(BEGINNING, None, limited=True))
    assert text(first) != text(BEGINNING), "Spark takes equal texts for nothing new, and would begin anew"
    scene.cluster.create_topic("u", partitions=1)
    scene.write(U0, "a")
    scene.clock.sleep(300)

    assert spans(ranges(first, planner.next_offset(first, None, limited=True))) == {U0: (0, 1)}


def test_a_matching_topic_that_is_deleted_is_data_loss_or_left_out_where_that_is_allowed(scene: Scene) -> None:
    scene.cluster.create_topic("u", partitions=1)
    scene.write(U0, "a")
    strict, lenient = Query(scene, **BY_PATTERN), Query(scene, **BY_PATTERN, **GO_ON)
    for query in (strict, lenient):
        query.step()
    del scene.cluster.topics["u"]
    scene.write(T0, "b")
    scene.clock.sleep(5)

    with pytest.raises(DataLossError, match=f"topic u does not exist .*{HOW_TO_GO_ON}"):
        strict.step()
    assert lenient.step() == {T0: (12, 13)}
    assert positions(lenient.offset).keys() == {T0, T1, T2}
    assert [lost for lost, *_ in scene.losses()] == [U0]


DAY_S = 24 * 3600


def daily_topic(scene: Scene, query: Query, day: int) -> None:
    """A topic whose first records aged out, and whose leader is elected while it is read, is deleted after a day."""
    topic, partition = f"day-{day}", TopicPartition(f"day-{day}", 0)
    scene.cluster.create_topic(topic, partitions=1)
    for number in range(3):
        scene.write(partition, *"abc")
        scene.cluster.move_leader(partition, number + 1)
    del scene.cluster.logs[partition][0]
    query.step()
    scene.cluster.move_leader(partition, 1)
    scene.write(partition, "d")
    scene.clock.sleep(DAY_S)
    query.step()
    del scene.cluster.topics[topic]
    scene.clock.sleep(5)
    query.step()


def known_of(planner: OffsetPlanner) -> dict[str, int]:
    """The number of entries in what a planner remembers of partitions."""
    epochs, starts, client = planner._epochs, planner._starts, planner._client
    remembered: dict[str, Any] = {
        "compared": epochs._compared,
        "epochs before": epochs._epochs_before,
        "left off": starts._left_off,
        "told": starts._told,
        "reported": planner._losses._reported,
        "given up": client._given_up,
    }
    return {name: len(entries) for name, entries in remembered.items()}


def test_a_query_over_daily_topics_forgets_those_that_were_deleted(scene: Scene) -> None:
    query = Query(scene, **{**BY_PATTERN, "subscribePattern": "^(t|day-.*)$"}, **GO_ON)
    scene.fill()
    sizes = []
    for day in range(3 * 7):
        daily_topic(scene, query, day)
        sizes.append(known_of(query.planner))

    assert max(sizes[1].values()) > 0
    assert sizes[-1] == sizes[-8], sizes[-1]
    assert max(sizes[-1].values()) <= 8


@pytest.mark.parametrize(("absent_s", "begins_at"), [(6 * DAY_S, 4), (8 * DAY_S, 0)])
def test_topic_that_returns_within_a_week_continues_where_left_off(scene: Scene, absent_s: int, begins_at: int) -> None:
    """It keeps its id: brokers did not show it, as an ACL was taken away."""
    scene.cluster.create_topic("u", partitions=1)
    scene.write(U0, *"abcd")
    query = Query.started(scene, **BY_PATTERN, **GO_ON)
    hidden = scene.cluster.topics.pop("u")
    for day in range(absent_s // DAY_S):
        scene.write(T0, str(day))
        scene.clock.sleep(DAY_S)
        query.step()
    scene.cluster.topics["u"] = hidden
    scene.write(U0, "e")
    scene.clock.sleep(5)

    assert query.step() == {U0: (begins_at, 5)}
