"""`kafkameta page`: what is shown of a state, which requests are the page's own, and what the command refuses."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.cli import main
from pyspark_kafka_meta.errors import ConnectError
from pyspark_kafka_meta.metadata.refresh_events import EventKind, Origin, Outcome, Role
from pyspark_kafka_meta.model import RefreshReason
from pyspark_kafka_meta.monitor.cluster_state import State, known_brokers
from pyspark_kafka_meta.monitor.formatting import reason_text
from pyspark_kafka_meta.monitor.staleness import newest_leaders
from pyspark_kafka_meta.monitor.watcher import KEEP_EVENTS_MS, without_old_events
from pyspark_kafka_meta.page import start_page, state_poller
from pyspark_kafka_meta.page.html_templates import render
from pyspark_kafka_meta.page.plots import Sample, latencies, recoveries, throughput, timeline
from pyspark_kafka_meta.page.request_guard import is_own_request
from pyspark_kafka_meta.page.state_poller import StatePoller
from pyspark_kafka_meta.page.view_model import MOVE_SHOWN_MS, Move, moves_since, view_of
from pyspark_kafka_meta.tables.table_rows import BrokerRow
from tests.partitions import T0, T1
from tests.unit.monitor.states import BROKERS, EXECUTOR_2, FIRST, FIRST_IS_STALE, NOW_MS, SECOND, WRITER, state
from tests.unit.written_events import learning, made

STALE = (*FIRST_IS_STALE, made(SECOND, 3, NOW_MS - 7_000, **EXECUTOR_2))
KNOWN = {row.node_id: row for row in BROKERS}


@pytest.mark.parametrize("by_process", [True, False])
def test_only_the_cell_that_is_behind_the_cluster_is_stale(by_process: bool) -> None:
    table = view_of(state(*STALE), KNOWN, (), {}, by_process).caches
    stale = {
        (name, partition, cell.text)
        for partition, _, cells in table.rows
        for (name, _), cell in zip(table.names, cells, strict=True)
        if cell.is_stale
    }

    assert sorted(name for name, _ in table.names) == (
        ["executor 1", "executor 2"] if by_process else ["reader 1", "reader 2"]
    )
    assert [(partition, truth) for partition, truth, _ in table.rows] == [(T0, "1@4"), (T1, "3@5")]
    assert [(partition, text) for _, partition, text in stale] == [(T1, "2@4")]


@pytest.mark.parametrize(
    ("by_process", "names"), [(True, ["executor 1", "executor 2"]), (False, ["writer 1", "reader 2"])]
)
def test_a_stale_writer_is_shown_beside_a_reader(by_process: bool, names: list[str]) -> None:
    wrote = made(FIRST, 2, NOW_MS, **WRITER)
    table = view_of(state(*FIRST_IS_STALE, wrote), KNOWN, (), {}, by_process).caches
    (_, _, cells) = table.rows[1]

    assert [name for name, _ in table.names] == names
    assert [(cell.text, cell.is_stale) for cell in cells] == [("2@4", True), ("3@5", False)]


def test_a_killed_broker_and_one_that_is_told_of_no_more_are_dead() -> None:
    gone = {**KNOWN, 4: BROKERS[0]}
    cards = view_of(state(), gone, {2}, {}, True).brokers

    assert {card.node_id: card.is_alive for card in cards} == {1: True, 2: False, 3: True, 4: False}


def test_a_move_is_told_for_a_while_with_where_the_leader_came_from() -> None:
    moves = moves_since({}, state(leaders=((2, 3), (3, 5))), state())
    (led,) = view_of(state(), KNOWN, (), moves, True).brokers[0].leads

    assert moves == {T0: Move(2, NOW_MS)}
    assert (led.partition, led.old_leader_id) == (T0, 2)
    assert moves_since(moves, state(), state(now_ms=NOW_MS + MOVE_SHOWN_MS)) == {}


def test_events_that_bring_nothing_are_in_the_timeline_alone() -> None:
    view, plot = view_of(state(*STALE), KNOWN, (), {}, True), timeline(state(*STALE).events, NOW_MS)

    assert [reason_text(event).split(":")[0] for event in view.events] == ["not_leader", "bootstrap", "bootstrap"]
    assert "t-1: 2 to 3" in view.last_event
    assert plot.summary == "4 events in three minutes: bootstrap 2, not_leader 1, max_age 1."
    assert plot.options["yAxis"]["data"] == ["bootstrap", "max_age", "not_leader"]


def test_plots_say_in_words_what_they_show() -> None:
    events = state(*STALE).events

    assert latencies(events, NOW_MS).summary == "4 answers in three minutes: median 2.5 ms, longest 2.5 ms."
    assert recoveries(events, NOW_MS).summary == "1 recovery in three minutes: median 120.0 ms, longest 120.0 ms."
    assert recoveries(events, NOW_MS + 200_000).summary == "No recovery in three minutes."
    assert throughput([Sample(NOW_MS, 480.0, 12)], NOW_MS).summary.startswith("480 records a second now; 12 behind")


def test_lag_has_an_axis_beside_that_of_the_throughput() -> None:
    options = throughput([Sample(NOW_MS, 480.0, 90_000)], NOW_MS).options

    drawn = [(one["name"], one.get("yAxisIndex", 0)) for one in options["series"]]
    assert drawn == [("records/s (left)", 0), ("behind (right)", 1)]
    assert len(options["yAxis"]) == 2


@pytest.mark.parametrize(("has_query", "is_told"), [(True, True), (False, False)])
def test_until_a_query_reads_the_page_says_that_its_executors_are_starting(has_query: bool, is_told: bool) -> None:
    before = view_of(replace(state(*STALE), positions={}), KNOWN, (), {}, True)
    html = render("figures", view=before, has_query=has_query)

    assert ("Executors are starting" in html) is is_told
    assert ("Caches" in html) is not has_query
    assert "Executors are starting" in render("lag", view=before)


def test_a_query_that_reads_has_its_figures_and_no_word_of_starting() -> None:
    html = render("figures", view=view_of(state(*STALE), KNOWN, (), {}, True), has_query=True)

    assert "Records behind" in html
    assert "starting" not in html


@pytest.mark.parametrize("term", ["2@4", "raises the epoch", "planner", "executors"])
def test_what_caches_know_is_explained_beside_it(term: str) -> None:
    html = render("caches", view=view_of(state(*STALE), KNOWN, (), {}, True), leaders_title="Cluster now")
    above = " ".join(html.partition('<div class="scroll"')[0].split())

    assert term in above, "what scrolls is cut off on a phone"


def test_reasons_that_every_query_has_are_explained_beside_the_events_and_the_docs_named() -> None:
    html = render("events", view=view_of(state(*STALE), KNOWN, (), {}, True))
    (caption,) = re.findall("<caption>(.*?)</caption>", html, re.DOTALL)

    for text in ("bootstrap", "max_age", "not_leader", "connection_lost", "docs/events.md", "docs/page.md"):
        assert text in caption


def test_of_a_process_that_is_not_told_the_cache_alone_is_named() -> None:
    unknown = made(FIRST, 1, NOW_MS, **learning("t", 1), origin=Origin(role=Role.READER))

    assert view_of(state(unknown), KNOWN, (), {}, False).caches.names == [("reader", "cache aaaaaaaa")]


def test_what_events_say_is_shown_as_text() -> None:
    evil = made(FIRST, 1, NOW_MS, **learning("<script>", 1), origin=Origin(role=Role.READER, host="a\u202eb", pid=7))
    html = render("events", view=view_of(state(evil), KNOWN, (), {}, True))

    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert "a\\u202eb" in html


def test_leaders_come_from_the_newest_cache_where_no_cluster_is_asked() -> None:
    seen = state(*STALE)
    leaders = newest_leaders(seen.caches).values()

    assert [(row.node_id, row.host) for row in known_brokers(seen.events, leaders)] == [(1, "broker-1"), (3, "")]
    assert [(row.partition, row.leader_id, row.leader_epoch) for row in leaders] == [(0, 1, 4), (1, 3, 5)]


def test_old_events_are_forgotten_but_for_what_live_caches_know() -> None:
    third = made("c" * 32, 1, NOW_MS - 9_000, **learning("t", 1))
    ended = made("c" * 32, 2, NOW_MS - 9_000, kind=EventKind.CLOSED, reason=RefreshReason.CLOSED)
    events = state(*STALE, third, ended).events
    left = without_old_events(events, NOW_MS + KEEP_EVENTS_MS)

    assert without_old_events(events, NOW_MS) == events
    assert {one["cache_id"] for one in left} == {FIRST, SECOND}
    assert {one["outcome"] for one in left} == {Outcome.CHANGED}


@pytest.mark.parametrize(
    ("host", "origin", "ours"),
    [
        ("127.0.0.1:8080", None, True),
        ("localhost:8080", "http://localhost:8080", True),
        ("[::1]:8080", "http://[::1]:8080", True),
        ("10.0.0.5:8080", None, True),
        ("Page.Internal:8080", "http://Page.Internal:8080", True),
        ("evil.example:8080", None, False),
        ("localhost.evil.example", None, False),
        ("127.0.0.1:8080", "http://evil.example", False),
        ("127.0.0.1:8080", "http://127.0.0.1:9999", False),
        ("127.0.0.1:8080", "null", False),
        (None, None, False),
        ("[", None, False),
    ],
)
def test_only_the_page_itself_gets_through(host: str | None, origin: str | None, ours: bool) -> None:
    assert is_own_request(host, origin, "page.internal") is ours


def test_a_mistake_of_the_program_is_told_and_the_page_looks_on(wait_for: Callable[..., Any]) -> None:
    looks = [RuntimeError("sasl.password=secret"), ConnectError("no broker responded")]

    def look() -> State:
        seen = looks.pop(0) if looks else state(*STALE)
        if isinstance(seen, Exception):
            raise seen
        return seen

    def act(_: State) -> str:
        raise ZeroDivisionError

    told: list[str] = []
    with StatePoller(look, by_process=False) as poller:
        for _ in range(2):
            told.append(wait_for(lambda: poller.trouble if poller.trouble not in told else None))
        wait_for(lambda: poller.snapshot)
        poller.submit("restart", act)
        said = wait_for(lambda: poller.result)

    assert told == ["RuntimeError, see the log of kafkameta page", "no broker responded"]
    assert said == "restart failed: ZeroDivisionError, see the log of kafkameta page"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--bootstrap-servers", "b:9"], "--bootstrap-servers, --option and --config need --path or --topic"),
        (["--path", "p", "--topic", "t"], "--path and --topic"),
        (["--path", "p", "--cluster", "kafka"], "--cluster excludes --path"),
        (["--topic", "t"], "give --bootstrap-servers, or a --config that names them"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(arguments: list[str], complaint: str) -> None:
    done = CliRunner().invoke(main.app, ["page", "--port", "0", *arguments])

    assert done.exit_code == 1
    assert complaint in done.output


def test_a_folder_of_events_that_is_not_there_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_page, "serve", lambda *_: pytest.fail("an empty page is served"))
    done = CliRunner().invoke(main.app, ["page", "--port", "0", "--path", str(tmp_path / "typo")])

    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "typo cannot be read (No such file or directory): correct --path" in done.stderr


def test_where_nobody_can_listen_the_host_is_doubted_too() -> None:
    done = CliRunner().invoke(main.app, ["page", "--path", "p", "--host", "192.0.2.1"])

    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert "cannot listen on 192.0.2.1, port 8080: Cannot assign requested address. Give a --host" in done.stderr


def test_without_the_packages_it_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setattr(main, "find_spec", lambda name: None)
    done = CliRunner().invoke(main.app, ["page"])

    assert (done.exit_code, done.output.strip()) == (
        1,
        "kafkameta: the page needs more packages: pip install '.[page]' in a clone of pyspark-kafka-meta",
    )


def test_an_event_without_a_reason_has_a_lane_beside_the_others() -> None:
    events = [made("a" * 32, number, NOW_MS).to_dict() for number in (1, 2)]
    plot = timeline([events[0], {**events[1], "reason": None}], NOW_MS)

    assert plot.options["yAxis"]["data"] == ["max_age", "unknown"]
    assert "unknown 1" in plot.summary


@pytest.mark.parametrize(("answered_by", "badge"), [("", None), ("b:9", "alive")])
def test_a_broker_is_called_alive_only_where_the_cluster_was_asked(answered_by: str, badge: str | None) -> None:
    row = BrokerRow(
        node_id=1, host="b", port=9, rack=None, is_controller=False, cluster_id=None, answered_by=answered_by
    )
    seen = State(0, [row], [], None, [], [], {}, {}, 0.0)
    (card,) = view_of(seen, {1: row}, (), {}, by_process=False).brokers
    html = render("broker", broker=card)

    assert ("badge" in html, "dead" in html) == (badge is not None, False)
    assert badge is None or badge in html


def test_a_look_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_poller, "CLOSE_TIMEOUT_S", 0.01)
    looks, answered = threading.Event(), threading.Event()

    def look() -> State:
        looks.set()
        answered.wait(10)
        raise ConnectError("no broker responded")

    with StatePoller(look, by_process=False):
        assert looks.wait(10)
        began = time.monotonic()

    assert time.monotonic() - began < 5
    answered.set()
