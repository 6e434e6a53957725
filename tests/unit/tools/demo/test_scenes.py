"""`kafkameta demo`: what a frame marks as stale, which events make a scene one that was seen, and what is told of the
query."""

from __future__ import annotations

import json
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from pyspark_kafka_meta.events.event import BrokerFetches, BrokerProduces, Event, Origin, Outcome, Role
from pyspark_kafka_meta.kafka.metadata.snapshot import SnapshotChanges
from pyspark_kafka_meta.model import Position, RefreshReason, TopicPartition
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tools.cluster_state import ClusterState, caches_by_process
from pyspark_kafka_meta.tools.demo import runner, scene_checks
from pyspark_kafka_meta.tools.demo.clusters import UserCluster
from pyspark_kafka_meta.tools.demo.query import RESTARTS, DemoQuery, QueryFailedError, root_cause
from pyspark_kafka_meta.tools.demo.runner import frame, result_line, summary
from pyspark_kafka_meta.tools.demo.scene_checks import Check
from pyspark_kafka_meta.tools.demo.scenes import Scene, SceneResult, scenes_of
from pyspark_kafka_meta.tools.formatting import event_line, is_notable
from tests.partitions import T0, T1
from tests.unit.tools.states import EXECUTOR_2, FIRST, FIRST_IS_STALE, NOW_MS, SECOND, WRITER, state
from tests.unit.written_events import learning, made, moving

CLI = {"origin": Origin(role=Role.CLI, host="here", pid=1)}
FAILED = {"outcome": Outcome.FAILED, "generation_before": 0, "generation_after": 0, "broker_id": None}
BORN = {"outcome": Outcome.CHANGED, "generation_before": 0, "generation_after": 1, "broker_id": None}


def as_read(event: Event) -> EventRow:
    return event.to_dict()


def shown(seen: ClusterState) -> str:
    console = Console(width=140, record=True, file=StringIO())
    console.print(frame(seen, "a heading", "1 of 2 executors run"))
    return console.export_text()


def test_a_frame_marks_what_is_older_than_the_cluster_beside_the_truth() -> None:
    rows = {
        cells[0]: cells[1:] for line in shown(state(*FIRST_IS_STALE)).splitlines() if len(cells := line.split()) > 1
    }

    assert rows["partition"][:5] == ["now", "executor", "1", "executor", "2"]
    assert rows["t-0"][:3] == ["1@4", "1@4", "1@4"]
    assert rows["t-1"][:3] == ["3@5", "2@4*", "3@5"]


def test_a_frame_tells_throughput_and_lag() -> None:
    assert "8 records read, 480 a second in the last batch, 12 behind" in shown(state(read=4))


def test_a_frame_tells_that_a_lag_is_known_in_part() -> None:
    seen = state(read=4)
    seen = replace(seen, partitions=[seen.partitions[0], replace(seen.partitions[1], end_offset=None)])

    assert "6 behind, 1 partitions without an end" in shown(seen)


def test_of_an_executor_the_process_that_spoke_last_counts() -> None:
    reborn = made(SECOND, 1, NOW_MS, **learning("t", 1, 3, epoch=5))
    (known,) = caches_by_process(state(FIRST_IS_STALE[0], reborn).cache_rows()).values()
    assert known[T1].cache_id == SECOND


def aging(time_ms: int, **others: Any) -> Event:
    return made(FIRST, 3, time_ms, **{"age_ms": 5_000.0, **others})


def first_response(**others: Any) -> Event:
    changes = SnapshotChanges(brokers_added=(1, 2, 3))
    return made(FIRST, 1, NOW_MS, reason=RefreshReason.BOOTSTRAP, changes=changes, **{**BORN, **others})


def refusal() -> Event:
    return made(FIRST, 1, NOW_MS, reason=RefreshReason.BOOTSTRAP, **{**FAILED, "broker_host": "dead"}, **CLI)


def fetching(**others: Any) -> Event:
    return made(FIRST, 9, NOW_MS, fetches=(BrokerFetches(1, 2, 10), BrokerFetches(3, 5, 10)), **others)


def producing(**others: Any) -> Event:
    return made(FIRST, 9, NOW_MS, produces=(BrokerProduces(1, 2, 10), BrokerProduces(3, 5, 10)), **{**WRITER, **others})


MOVED = made(FIRST, 2, NOW_MS, **moving("t", 1, (2, 3), (4, 5)))
MOVED_WRITER = made(FIRST, 2, NOW_MS, **moving("t", 1, (2, 3), (4, 5)), **WRITER)
MOVED_LATER = made(SECOND, 2, NOW_MS + 2_500, **moving("t", 1, (2, 3), (4, 5)), **EXECUTOR_2)
ASKED_AGAIN = made(FIRST, 5, NOW_MS, reason=RefreshReason.REBOOTSTRAP, broker_id=None, outcome=Outcome.FAILED)

SINCE: dict[str, Any] = {"since_ms": NOW_MS}
AT_T1: dict[str, Any] = {"partition": T1, **SINCE}
BY_ERROR: Check = partial(scene_checks.refreshed_by_error, old=2, **AT_T1)
OLD_LEFT = partial(scene_checks.old_leader_left, old=2, **AT_T1)
OLD_LEFT_BY_WRITES = partial(OLD_LEFT, requests="produces")
LEARNED_APART: Check = partial(scene_checks.learned_separately, epoch=4, **AT_T1)
T0_WRITTEN, T1_WRITTEN = (partial(scene_checks.records_written, partition=one, from_offset=9) for one in (T0, T1))
ALL_LEARNED, BY_ID = scene_checks.all_learned_from_first_response, scene_checks.brokers_asked_by_id
FAILED_OVER = partial(scene_checks.bootstrap_failed_over, dead={"dead:9092"}, **SINCE)
REBOOTSTRAPPED = partial(scene_checks.rebootstrapped, **SINCE)
BY_AGE, ON_DEMAND = (
    partial(check, **SINCE) for check in (scene_checks.refreshed_by_age, scene_checks.refreshed_on_demand)
)
LEADS_NOTHING = partial(scene_checks.broker_leads_nothing, broker_id=2, **SINCE)
LEADS_AGAIN = partial(scene_checks.broker_leads_again, broker_id=3, **SINCE)
NEW_READ = partial(scene_checks.new_partition_read, **AT_T1)
DEMANDED = made(FIRST, 2, NOW_MS, reason=RefreshReason.ON_DEMAND, **CLI)
LEARNED = made(FIRST, 2, NOW_MS, **learning("t", 1, 2))
PLANNED, NO_LEADER = (
    replace(MOVED, reason=reason, cause_node_id=None, cause_error_code=5)
    for reason in (RefreshReason.REPLACED_LEADER, RefreshReason.NO_LEADER)
)
HINTED, NOT_REFUSED = replace(MOVED, reason=RefreshReason.LEADER_HINT), replace(MOVED, cause_error_code=0)
OF_U = replace(MOVED, cause_topic="u")
EMPTY_T1, NO_T1 = state(MOVED, leaders=((2, 4), (3, 5))), state(leaders=((1, 4),))
CASES: dict[str, tuple[Check, ClusterState, ClusterState]] = {
    "all brokers come with the first response": (
        ALL_LEARNED,
        state(first_response()),
        state(first_response(), leaders=((1, 4), (-1, 5))),
    ),
    "a dead address first": (FAILED_OVER, state(refusal(), first_response(**CLI)), state(first_response(**CLI))),
    "brokers asked by id": (BY_ID, state(MOVED), state(MOVED, aging(NOW_MS, broker_id=None))),
    "the bootstrap list tried again, and a response after that": (
        REBOOTSTRAPPED,
        state(MOVED, ASKED_AGAIN, aging(NOW_MS + 1)),
        state(MOVED, aging(NOW_MS + 1)),
    ),
    "more fetches than requests": (scene_checks.more_fetches_than_refreshes, state(fetching()), state(MOVED)),
    "a cache that was old": (BY_AGE, state(aging(NOW_MS)), state(aging(NOW_MS - 1))),
    "an error healed": (BY_ERROR, state(MOVED), state(aging(NOW_MS))),
    "an error in another partition": (BY_ERROR, state(MOVED), state(FIRST_IS_STALE[0])),
    "a refresh on demand": (ON_DEMAND, state(DEMANDED), state(MOVED)),
    "a cache in each executor": (scene_checks.one_cache_per_executor, state(*FIRST_IS_STALE), state(FIRST_IS_STALE[0])),
    "executors that learn apart": (LEARNED_APART, state(MOVED, MOVED_LATER), state(MOVED)),
    "a broker that leads no more": (LEADS_NOTHING, state(MOVED), EMPTY_T1),
    "a broker that leads again": (LEADS_AGAIN, state(MOVED), state(MOVED, leaders=((1, 4), (2, 5)))),
    "a fetch refused": (OLD_LEFT, state(MOVED, fetching()), state(fetching())),
    "an old leader that refused a fetch and named the new leader": (
        OLD_LEFT,
        state(HINTED, fetching()),
        state(NOT_REFUSED, fetching()),
    ),
    "an old leader that a plan replaced": (OLD_LEFT, state(PLANNED, fetching()), state(NO_LEADER, fetching())),
    "a refused Produce request": (
        OLD_LEFT_BY_WRITES,
        state(MOVED_WRITER, producing()),
        state(MOVED_WRITER, fetching()),
    ),
    "one refused for another topic": (OLD_LEFT_BY_WRITES, state(MOVED, producing()), state(OF_U, producing())),
    "records written to a partition": (T1_WRITTEN, state(), NO_T1),
    "two things at once": (scene_checks.both(T0_WRITTEN, T1_WRITTEN), state(), NO_T1),
    "a new partition read from its start": (NEW_READ, state(LEARNED, read=3), state(LEARNED)),
}


@pytest.mark.parametrize(("check", "yes", "no"), CASES.values(), ids=CASES.keys())
def test_a_scene_is_seen_by_its_own_events_alone(check: Check, yes: ClusterState, no: ClusterState) -> None:
    assert check(yes) is not None
    assert check(no) is None
    assert check(state(leaders=())) is None


def test_what_was_written_and_refused_is_counted_by_broker() -> None:
    seen = state(MOVED_WRITER, producing())
    refused = scene_checks.old_leader_left(seen, T1, 2, NOW_MS, requests="produces")

    assert refused == "broker 2 refused with NOT_LEADER_OR_FOLLOWER (error 6); produces at broker 1: 2, broker 3: 5"
    assert scene_checks.records_written(seen, T1, 9) == "t-1 written from offset 9 to 10"
    assert scene_checks.records_written(seen, T1, 10) is None


@pytest.mark.parametrize("check", [BY_ERROR, OLD_LEFT])
def test_what_a_writer_meets_counts_as_what_a_reader_meets(check: Check) -> None:
    assert check(state(MOVED_WRITER, fetching())) is not None


def test_the_figures_say_how_long_one_executor_was_stale_after_the_other_knew() -> None:
    assert LEARNED_APART(state(MOVED, MOVED_LATER)) == "executor 1 knew first; executor 2 was stale for 2.5 s more"


def test_executors_that_do_not_know_their_ids_are_told_apart_by_process() -> None:
    here, there = ({"origin": Origin(role=Role.READER, host="worker", pid=pid)} for pid in (7, 9))
    learned = [made(one, 1, NOW_MS, **learning("t", 1, 2), **at) for one, at in ((FIRST, here), (SECOND, there))]
    moved = [made(FIRST, 2, NOW_MS, **moving("t", 1, (2, 3), (4, 5)), **here)]
    moved.append(made(SECOND, 2, NOW_MS + 2_500, **moving("t", 1, (2, 3), (4, 5)), **there))

    assert "executor with pid 7" in shown(state(*learned))
    told = "executor with pid 7: cache aaaaaaaa; executor with pid 9: cache bbbbbbbb"
    assert scene_checks.one_cache_per_executor(state(*learned)) == told
    assert str(BY_ERROR(state(*moved))).startswith("executor with pid 7: not_leader")
    told = "executor with pid 7 knew first; executor with pid 9 was stale for 2.5 s more"
    assert LEARNED_APART(state(*moved)) == told


def test_until_the_first_batch_a_frame_says_what_spark_is_doing() -> None:
    before = replace(state(), positions={})

    assert "No records read yet: 1 of 2 executors run" in shown(before)
    assert "a second" not in shown(before)
    assert "executors run" not in shown(state())


class Starting:
    """A screen of a query that has read nothing; each look takes a minute."""

    def __init__(self, activities: list[str], seen: ClusterState) -> None:
        self.now = 0.0
        self.activity = ""
        self._activities = activities
        self._seen = seen

    def monotonic(self) -> float:
        return self.now

    def wait(self) -> ClusterState:
        self.now += 60
        self.activity = self._activities.pop(0) if self._activities else "working"
        return self._seen if self._activities else replace(self._seen, positions={T0: Position(1)})


NOTHING_READ = replace(state(), positions={})
EMPTY = replace(NOTHING_READ, partitions=[replace(row, end_offset=0) for row in NOTHING_READ.partitions])


@pytest.mark.parametrize(
    ("activities", "seen", "is_fed", "error"),
    [
        (["one", "one", *map(str, range(9))], NOTHING_READ, True, None),
        (["one", "one", "one", "one", "one"], NOTHING_READ, True, "no progress in 120 s; this machine is too busy"),
        (["one", "two"], EMPTY, True, None),
        (["one", "two"], EMPTY, False, "the topic is empty: produce to it, or let the demo do so with --feed"),
    ],
)
def test_the_query_is_waited_for_as_long_as_there_is_progress(
    activities: list[str], seen: ClusterState, is_fed: bool, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen: Any = Starting(activities, seen)
    monkeypatch.setattr(runner, "time", screen)
    with nullcontext() if error is None else pytest.raises(QueryFailedError, match=error):
        runner.wait_for_query(screen, lambda seen: seen.positions, is_fed)


def test_a_scene_that_was_not_seen_says_so_in_the_summary() -> None:
    scene = Scene(6, "Refresh on error", "A leader moves.", ())
    console = Console(width=100, record=True, file=StringIO())
    console.print(summary([SceneResult(scene, "healed in 3 ms", 1.25), SceneResult(scene, None, 60.0)]))
    seen, missed = (line.split() for line in console.export_text().splitlines() if "Refresh" in line)

    assert seen == ["6", "Refresh", "on", "error", "1.2", "s", "healed", "in", "3", "ms"]
    assert missed == ["6", "Refresh", "on", "error", "NO"]
    assert result_line(SceneResult(scene, None, 60.0)) == "   NOT SEEN in 60 s"


def test_a_pipe_is_told_of_what_is_notable() -> None:
    assert "not_leader: t-1, broker 2, NOT_LEADER_OR_FOLLOWER" in event_line(as_read(MOVED))
    assert is_notable(as_read(MOVED)) and is_notable(as_read(refusal())) and not is_notable(as_read(aging(NOW_MS)))


@pytest.mark.parametrize(
    ("read", "ends", "is_seen"), [(9, [{T1: 5}, {T1: 9}], True), (8, [{T1: 9}], False), (9, [{T0: 1}, {T1: 1}], False)]
)
def test_one_key_is_read_past_its_partition(read: int, ends: list[dict[TopicPartition, int]], is_seen: bool) -> None:
    assert (scene_checks.one_key_read(state(read=read), ends) is not None) is is_seen


def test_on_your_cluster_only_scenes_that_change_nothing_are_played(tmp_path: Path) -> None:
    cluster = UserCluster({"kafka.bootstrap.servers": "b1:9092"}, "orders")
    whole, first_look = (scenes_of(cluster, tmp_path, is_whole) for is_whole in (True, False))

    assert [scene.number for scene in whole] == list(range(1, 8))
    assert [(scene.number, scene.title) for scene in first_look] == [(1, whole[0].title), (2, whole[6].title)]


class Stage:
    """A screen and an actor in one: acts are done at once, and a look takes a second of its own clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.acted: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def update(self) -> ClusterState:
        return state(read=int(self.now))

    def wait(self) -> ClusterState:
        self.now += 1
        return self.update()

    def submit(self, act: Any, seen: ClusterState) -> Future[Check]:
        self.acted.append(self.now)
        done: Future[Check] = Future()
        done.set_result(act(seen))
        return done


@pytest.mark.parametrize(("is_repeatable", "acted"), [(False, [0]), (True, [0, *range(10, 182, 9)])])
def test_an_act_is_repeated_at_most_as_soon_as_its_effect_could_have_shown_until_the_time_is_over(
    is_repeatable: bool, acted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage: Any = Stage()
    monkeypatch.setattr(runner, "time", stage)
    scene = Scene(10, "a title", "a line", (lambda _: lambda _: None,), is_repeatable)

    assert runner.play_scene(scene, stage, stage) == SceneResult(scene, None, 181)
    assert stage.acted == acted


OURS = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform it: Traceback
  File "/opt/pyspark_kafka_meta/errors.py", line 7, in offsets
pyspark_kafka_meta.errors.ConnectError: cannot connect to b:9092

During handling of the above exception, another exception occurred:

pyspark_kafka_meta.errors.NoLeaderError: no offsets of t-0 in 60000 ms: b:9092 is down
 SQLSTATE: 38000
=== Streaming Query ===
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (OURS, "no offsets of t-0 in 60000 ms: b:9092 is down"),
        ("\nJob aborted due to stage failure\n\tat org.apache", "Job aborted due to stage failure"),
        (
            "Job aborted\nPython worker failed to connect back.",
            "Spark's Python processes did not start within 10 s, 6 times; this machine is too busy: stop other "
            "programs, and start the demo again",
        ),
    ],
    ids=["ours", "Spark's", "a busy machine"],
)
def test_the_cause_is_told_rather_than_what_spark_was_doing(text: str, told: str) -> None:
    assert root_cause(text) == told


def test_a_query_that_had_to_wait_for_its_first_record_began_with_its_first_batch() -> None:
    t0 = TopicPartition("t", 0)
    offset = SourceOffset({t0: Position(9)}, {"t": None}, start={t0: Position(4)})
    reports = [report(None), report("null"), report(json.dumps(offset.as_dict()))]
    stream: Any = DemoQuery.__new__(DemoQuery)
    stream._begins, stream._records_per_s = {}, 0.0
    for seen, progress in ((0, ({}, {}, 0.0)), (2, ({}, {}, 0.0)), (3, (offset.start, offset.positions, 7.0))):
        last = reports[seen - 1] if seen else None
        stream._query = SimpleNamespace(exception=lambda: None, lastProgress=last, recentProgress=reports[:seen])

        assert stream.progress() == progress


def test_the_query_writes_nothing_to_a_cluster_of_yours(tmp_path: Path) -> None:
    spark = MagicMock()
    DemoQuery(spark, UserCluster({"kafka.bootstrap.servers": "b:9"}, "orders"), tmp_path)

    rows = spark.readStream.format("kafkameta").options().load()
    rows.writeStream.format.assert_called_once_with("noop")
    rows.selectExpr.assert_not_called()


def test_the_sink_has_its_cluster_s_further_options(tmp_path: Path) -> None:
    spark = MagicMock()
    cluster: Any = SimpleNamespace(
        options={"kafka.bootstrap.servers": "b:9"},
        selection={"subscribe": "clicks"},
        sink_options={"kafka.transactional.id": "demo"},
        copies=["copies"],
    )
    DemoQuery(spark, cluster, tmp_path)
    rows = spark.readStream.format().options
    written = rows().load().selectExpr().repartition().writeStream.format().options

    assert written.call_args.kwargs.items() >= cluster.sink_options.items()
    assert not rows.call_args_list[0].kwargs.keys() & cluster.sink_options.keys()


def test_a_query_whose_python_processes_start_too_slowly_is_started_again() -> None:
    stream: Any = DemoQuery.__new__(DemoQuery)
    stream._begins, stream._records_per_s, stream._restarts = {}, 0.0, 0
    starts = []

    def start() -> Any:
        starts.append(1)
        return SimpleNamespace(exception=lambda: "Python worker failed to connect back", lastProgress=None)

    stream._query, stream._sink = start(), SimpleNamespace(start=start)
    for _ in range(RESTARTS):
        assert stream.progress() == ({}, {}, 0.0)

    with pytest.raises(QueryFailedError, match="too busy"):
        stream.progress()
    assert len(starts) == 1 + RESTARTS


def report(end_offset: str | None) -> Any:
    rows = 0 if end_offset in (None, "null") else 5
    source = SimpleNamespace(endOffset=end_offset)
    return SimpleNamespace(sources=[source], numInputRows=rows, processedRowsPerSecond=7.0)
