"""`kafkameta page`: what is shown of a state, which requests are the page's own, and what the command refuses."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.client_facts import LookupReason
from pyspark_kafka_meta.errors import AuthenticationError, ConnectError, UnsupportedBrokerError
from pyspark_kafka_meta.events.event import BrokerProduces, Event, EventKind, Origin, OtherReason, Outcome, Role
from pyspark_kafka_meta.tables.caches_from_events import KnownCaches
from pyspark_kafka_meta.tables.lag import QueryProgress
from pyspark_kafka_meta.tables.rows import TransactionRow
from pyspark_kafka_meta.tools.checkpoints import CheckpointLag
from pyspark_kafka_meta.tools.cli import main
from pyspark_kafka_meta.tools.cluster_state import SILENT_MS, ClusterState, known_brokers, newest_leaders
from pyspark_kafka_meta.tools.formatting import reason_text
from pyspark_kafka_meta.tools.page import state_poller
from pyspark_kafka_meta.tools.page.plots import (
    LAG_WINDOW_MS,
    POINTS,
    WHEN_REFRESHED,
    WINDOW_MS,
    Behind,
    Sample,
    lag,
    latencies,
    recoveries,
    timeline,
)
from pyspark_kafka_meta.tools.page.state_poller import ClusterPoll, ClusterPolls, StatePoller
from pyspark_kafka_meta.tools.page.ui import render
from pyspark_kafka_meta.tools.page.view_model import (
    LAG_SHOWN,
    MOVE_SHOWN_MS,
    WRITERS_MS,
    Move,
    NamedLag,
    Polled,
    behind,
    moves_since,
    polled_view,
    view_of,
)
from tests.partitions import T0
from tests.unit.tools.states import (
    BROKERS,
    EXECUTOR_2,
    FIRST,
    FIRST_IS_STALE,
    NOW_MS,
    SECOND,
    WRITER,
    broker_row,
    lag_row,
    state,
    transaction_row,
)
from tests.unit.written_events import learning, made

STALE = (*FIRST_IS_STALE, made(SECOND, 3, NOW_MS - 7_000, **EXECUTOR_2))
KNOWN = {row.node_id: row for row in BROKERS}


@pytest.mark.parametrize("by_process", [True, False])
def test_only_the_cell_that_is_behind_the_cluster_is_stale(by_process: bool) -> None:
    table = view_of(state(*STALE), KNOWN, (), {}, by_process).caches.table()
    stale = {(row.text, cell.text) for row, _, cells in table.rows for cell in cells if cell.is_stale}

    assert sorted(column.text for column in table.columns) == (
        ["executor 1", "executor 2"] if by_process else ["reader 1", "reader 2"]
    )
    assert [(row.text, now) for row, now, _ in table.rows] == [("t-0", "1@4"), ("t-1", "3@5")]
    assert stale == {("t-1", "2@4")}


@pytest.mark.parametrize(
    ("by_process", "names"), [(True, ["executor 1", "executor 2"]), (False, ["writer 1", "reader 2"])]
)
def test_a_stale_writer_is_shown_beside_a_reader(by_process: bool, names: list[str]) -> None:
    wrote = made(FIRST, 2, NOW_MS, **WRITER)
    table = view_of(state(*FIRST_IS_STALE, wrote), KNOWN, (), {}, by_process).caches.table()
    (_, _, cells) = table.rows[1]

    assert [column.text for column in table.columns] == names
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
    assert "max_age -> unchanged" in view.last_event, "the last of all"
    assert plot.summary == "4 events in three minutes: bootstrap 2, not_leader 1, max_age 1."
    assert plot.options["yAxis"]["data"] == ["bootstrap", "max_age", "not_leader"]


def test_bad_records_and_requests_to_the_registry_that_matter_are_shown() -> None:
    place = {"cause_topic": "t", "cause_partition": 0}
    lost = {"lost_from_offset": 5, "lost_until_offset": 9, "error": "aged"}
    asked = {"kind": EventKind.SCHEMA_LOOKUP, "schema_subject": "t-value"}
    failed = {"outcome": Outcome.FAILED, "error": "no response"}
    events = [
        made(FIRST, 1, NOW_MS, kind=EventKind.DATA_LOSS, reason=OtherReason.DATA_LOSS, **place, **lost),
        made(FIRST, 2, NOW_MS, **asked, reason=LookupReason.QUERY_SCHEMA),
        made(FIRST, 3, NOW_MS, **asked, reason=LookupReason.NEW_VERSIONS, **failed),
        made(FIRST, 4, NOW_MS, **asked, reason=LookupReason.REGISTRATION, schema_id=3),
        made(FIRST, 5, NOW_MS, kind=EventKind.MALFORMED_RECORDS, reason=OtherReason.MALFORMED, **place),
    ]
    view = view_of(state(*events), KNOWN, (), {}, True)

    assert [event["reason"] for event in view.events] == ["malformed", "registration", "new_versions", "data_loss"]
    assert "malformed: t-0 -> 1 malformed records (value), truncated" in view.last_event
    assert latencies(state(*events).events, NOW_MS).summary.startswith("No answer in three minutes. A cache is")


def test_plots_say_in_words_what_they_show() -> None:
    """An event without a reason has a lane beside the others."""
    events = state(*STALE).events

    assert latencies(events, NOW_MS).summary == "4 answers in three minutes: median 2.5 ms, longest 2.5 ms."
    assert recoveries(events, NOW_MS).summary == "1 recovery in three minutes: median 120.0 ms, longest 120.0 ms."
    assert not recoveries(events, NOW_MS).is_empty
    told = "No recovery in three minutes. One follows when a leader moves or a connection is lost."
    assert recoveries(events, NOW_MS + 200_000)[1:] == (told, True)
    assert timeline(events, NOW_MS + 200_000)[1:] == (f"No event in three minutes. {WHEN_REFRESHED}", True)
    strange = timeline([events[0], {**events[-1], "reason": None}], NOW_MS)
    assert strange.options["yAxis"]["data"] == ["bootstrap", "unknown"]
    assert "unknown 1" in strange.summary


def test_events_of_a_clock_that_is_ahead_hide_no_others_in_plots() -> None:
    ahead = [{**event, "time_ms": NOW_MS + 3_600_000} for event in state(*STALE).events] * POINTS
    events = [*state(*STALE).events, *ahead]

    assert latencies(events, NOW_MS).summary == "4 answers in three minutes: median 2.5 ms, longest 2.5 ms."


COPIES, ORDERS = Behind(12, 3.4), Behind(90_000, 75.06)


def test_of_each_query_the_lag_is_drawn_and_the_seconds_of_the_one_furthest_behind() -> None:
    samples = [Sample(NOW_MS - 5_000, [Behind(40, 9.0), ORDERS]), Sample(NOW_MS, [COPIES, Behind(None, None)])]
    plot = lag(["copies", "orders"], samples, NOW_MS)

    assert [
        (one["name"], one.get("yAxisIndex", 0), [value for _, value in one["data"]]) for one in plot.options["series"]
    ] == [("copies", 0, [40, 12]), ("orders", 0, [90_000, None]), ("seconds (right)", 1, [75.1, None])]
    assert plot.summary == (
        "copies: 12 records, 3.4 s behind now, 40 records at most. orders: unknown behind now, 90,000 records at most."
    )


@pytest.mark.parametrize(
    ("ages_ms", "begins_ms"), [([0], WINDOW_MS), ([LAG_WINDOW_MS, 0], LAG_WINDOW_MS)], ids=["just opened", "old"]
)
def test_the_plot_of_the_lag_grows_from_three_minutes_on(ages_ms: list[int], begins_ms: int) -> None:
    plot = lag(["copies"], [Sample(NOW_MS - age_ms, [COPIES]) for age_ms in ages_ms], NOW_MS)

    assert plot.options["xAxis"]["min"] == NOW_MS - begins_ms


@pytest.mark.parametrize(
    ("names", "told"),
    [([], "start the page with --bootstrap-servers and, for each query, --checkpoint"), (["copies"], "yet: copies.")],
)
def test_a_page_without_lag_says_how_to_get_it(names: list[str], told: str) -> None:
    plot = lag(names, [Sample(NOW_MS, [Behind(None, None)])] * len(names), NOW_MS)

    assert plot.is_empty
    assert told in plot.summary


@pytest.mark.parametrize("has_query", [True, False])
def test_until_a_query_reads_the_page_says_that_its_executors_are_starting(has_query: bool) -> None:
    before = view_of(replace(state(*STALE), positions={}), KNOWN, (), {}, True)
    polled = polled_view([("copies", Polled(trouble="the checkpoint has no offsets"))], None)
    html = render("figures", view=before, polled=polled, has_query=has_query)

    assert ("Executors are starting" in html) is has_query
    assert ("Caches" in html) is not has_query
    assert ("Executors are starting" in render("lag", view=before, polled=polled, has_query=has_query)) is has_query


def lag_of(*behind: tuple[int | None, float | None]) -> NamedLag:
    """The lag of query-1 in partitions 0, 1 ... of t, in records and seconds."""
    rows = [lag_row(records, seconds, number) for number, (records, seconds) in enumerate(behind)]
    return "copies", Polled(CheckpointLag(QueryProgress("query-1", 7, ()), rows))


def figures_in(html: str) -> set[tuple[str, str]]:
    return set(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", html))


UNKNOWN_LAG: NamedLag = ("orders", Polled(trouble="no broker responded"))


@pytest.mark.parametrize(
    ("lags", "records", "seconds", "plotted"),
    [
        ([lag_of((12, 3.4), (1, 5.0))], "13", "5.0", Behind(13, 5.0)),
        ([lag_of((0, 0.0))], "0", "0.0", Behind(0, 0.0)),
        ([lag_of((12, 3.4), (None, None))], "12 or more", "3.4 or more", Behind(None, None)),
        ([lag_of((0, 0.0), (None, None))], "unknown", "unknown", Behind(None, None)),
        ([lag_of((12, None), (0, 0.0))], "12", "unknown", Behind(12, None)),
        ([lag_of((12, 3.4)), UNKNOWN_LAG], "12 or more", "3.4 or more", Behind(12, 3.4)),
        ([UNKNOWN_LAG], "unknown", "unknown", Behind(None, None)),
        ([("copies", Polled())], "unknown", "unknown", Behind(None, None)),
        ([], None, None, None),
    ],
)
def test_a_lag_that_is_unknown_is_never_shown_as_none_and_is_a_gap_in_the_plot(
    lags: list[NamedLag], records: str | None, seconds: str | None, plotted: Behind | None
) -> None:
    """The plot of the first query."""
    shown = polled_view(lags, None)

    assert (shown.records_behind, shown.seconds_behind) == (records, seconds)
    assert not lags or behind(lags[0][1]) == plotted


def test_of_many_partitions_those_that_are_furthest_behind_are_shown_in_order() -> None:
    lags = [(number % 7, 1.0) for number in range(LAG_SHOWN)]
    ((name, lag),) = polled_view([lag_of((0, 0.0), *lags, (None, None))], None).lags
    assert lag.value is not None
    partitions = [int(partition.removeprefix("t-")) for partition, *_ in lag.value.rows]

    assert (len(partitions), lag.value.left_out, partitions == sorted(partitions)) == (LAG_SHOWN, 2, True)
    assert partitions[-1] == LAG_SHOWN + 1, "the unknown one"
    assert (name, lag.value.title) == ("copies", "Query query-1, after micro-batch 7")


def test_a_lag_without_a_response_says_why() -> None:
    view = view_of(state(*STALE), KNOWN, (), {}, False)
    html = render("lag", view=view, polled=polled_view([lag_of((None, None)), UNKNOWN_LAG], None), has_query=False)

    assert html.count(">unknown</td>") == 3
    assert "Unknown: no broker responded" in html.partition("orders")[2]


ENDED = {"state": None, "open_ms": None, "timeout_ms": None}
DECIDED = {"is_decided": True, "query_id": "query-1", "batch_id": 12}


def test_open_and_decided_transactions_are_told_apart() -> None:
    rows = [
        transaction_row("orders/0/0", **DECIDED),
        transaction_row("orders/1/0", **ENDED, **DECIDED),
        transaction_row("<b>flink", sink=None, open_ms=None),
    ]
    polled = polled_view([], Polled(rows))
    html = render("transactions", polled=polled)
    cells = [
        [re.sub("<.*?>", "", cell) for cell in re.findall("<t[dh].*?>(.*?)</t[dh]>", row)]
        for row in re.findall("<tr.*?>(.*?)</tr>", html.partition("<tbody")[2], re.DOTALL)
    ]

    assert cells == [
        ["orders/0/0", "orders", "Ongoing", "5.2 s", "900.0 s", "t-0", "micro-batch 12 of query query-1"],
        ["orders/1/0", "orders", "unknown", "not open", "-", "t-0", "micro-batch 12 of query query-1"],
        ["&lt;b&gt;flink", "-", "Ongoing", "unknown", "900.0 s", "t-0", "no"],
    ]
    polled = polled_view([lag_of((12, 3.4), (0, 0.0))], Polled(rows))
    figures = render("figures", view=view_of(state(), KNOWN, (), {}, False), polled=polled, has_query=True)
    assert "starting" not in figures, "the query reads"
    expected = {("Records behind", "12"), ("Seconds behind", "3.4"), ("Open transactions", "2")}
    assert figures_in(figures) >= expected


@pytest.mark.parametrize(
    ("transactions", "text", "figure"),
    [
        (Polled([]), "No transaction is open", "0"),
        (Polled(trouble="no broker responded"), "Unknown: no broker responded", "unknown"),
        (Polled(), "Unknown", "unknown"),
        (Polled(trouble="brokers before Kafka 3.0", is_supported=False), "Unknown: brokers before Kafka 3.0", None),
    ],
)
def test_no_transaction_is_not_the_same_as_unknown_transactions(
    transactions: Polled[list[TransactionRow]], text: str, figure: str | None
) -> None:
    polled = polled_view([], transactions)
    html = render("figures", view=view_of(state(), KNOWN, (), {}, False), polled=polled, has_query=False)

    assert text in render("transactions", polled=polled)
    assert dict(figures_in(html)).get("Open transactions") == figure


def test_writers_have_their_produce_requests_by_broker_their_retries_and_their_throttle_time() -> None:
    wrote = {"produces": (BrokerProduces(1, 4, 100), BrokerProduces(3, 2, 50)), "produce_throttle_ms": 30, "retries": 2}
    events = [
        made(FIRST, 2, NOW_MS - 2_000, **WRITER, **wrote),
        made(FIRST, 3, NOW_MS - 1_000, produces=(BrokerProduces(1, 1, 20),), retries=5),  # the worker reads too
        made(FIRST, 1, NOW_MS - WRITERS_MS - 1, **WRITER, **wrote),
    ]
    (writer,) = view_of(state(*FIRST_IS_STALE[1:], *events), KNOWN, (), {}, False).writers

    assert (writer.name, writer.requests) == ("writer 1", {1: 5, 3: 2}), "also if its last task has read"
    assert (writer.retries, writer.throttle_ms) == (2, 30)


def test_what_events_of_another_version_do_not_count_is_unknown() -> None:
    event = made(FIRST, 1, NOW_MS, **WRITER, produces=(BrokerProduces(1, 4, 100),)).to_dict()
    seen = state(*FIRST_IS_STALE[1:])
    events = [{**event, "retries": None, "produce_throttle_ms": None}]
    view = view_of(replace(seen, events=events, caches=KnownCaches.of(events).living()), KNOWN, (), {}, False)

    assert render("writers", view=view).count(">unknown</td>") == 2
    assert "No task of a kafkameta sink has reported" in render("writers", view=view_of(seen, KNOWN, (), {}, False))


@pytest.mark.parametrize(
    ("events", "has_query", "told"),
    [
        ((), False, "set the option eventsPath of a query"),
        ((), True, "Executors are starting"),
        (STALE, False, "in the last ten minutes: its query may have ended"),
    ],
)
def test_a_page_without_caches_says_why_and_what_to_do(events: tuple[Event, ...], has_query: bool, told: str) -> None:
    seen = state(*events, now_ms=NOW_MS + SILENT_MS)
    html = render("caches", view=view_of(seen, KNOWN, (), {}, False), has_query=has_query)

    assert told in html


def test_a_transaction_is_the_last_event_though_the_table_leaves_it_out() -> None:
    ended = made(FIRST, 4, NOW_MS, kind=EventKind.TRANSACTIONS_COMMITTED, reason=OtherReason.TRANSACTION)
    view = view_of(state(*STALE, ended), KNOWN, (), {}, False)

    assert "transactions committed: 1 of orders" in view.last_event
    assert OtherReason.TRANSACTION not in {event["reason"] for event in view.events}


def test_reasons_that_every_query_has_are_explained_beside_the_events_and_the_docs_named() -> None:
    html = render("events", view=view_of(state(*STALE), KNOWN, (), {}, True))
    (caption,) = re.findall("<caption>(.*?)</caption>", html, re.DOTALL)

    for text in ("bootstrap", "max_age", "not_leader", "connection_lost", "docs/observe.md", "docs/command-line.md"):
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
    from pyspark_kafka_meta.tools.page.server import is_own_request  # heavy

    assert is_own_request(host, origin, "page.internal") is ours


def test_a_mistake_of_the_program_is_told_and_the_page_looks_on(wait_for: Callable[..., Any]) -> None:
    looks = [RuntimeError("sasl.password=secret"), ConnectError("no broker responded")]

    def look() -> ClusterState:
        seen = looks.pop(0) if looks else state(*STALE)
        if isinstance(seen, Exception):
            raise seen
        return seen

    def act(_: ClusterState) -> str:
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


def test_without_the_packages_it_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setattr(main, "find_spec", lambda name: None)
    done = CliRunner().invoke(main.app, ["page"])

    assert (done.exit_code, done.output.strip()) == (
        1,
        "kafkameta: the page needs a missing package: pip install 'pyspark-kafka-meta[page]'",
    )


@pytest.mark.parametrize(("answered_by", "badge"), [("", None), ("b:9", "alive")])
def test_a_broker_is_called_alive_only_where_the_cluster_was_asked(answered_by: str, badge: str | None) -> None:
    row = broker_row(1, answered_by)
    seen = ClusterState(0, [row], [], None, [], [], {}, {}, 0.0)
    (card,) = view_of(seen, {1: row}, (), {}, by_process=False).brokers
    html = render("broker", broker=card)

    assert ("badge" in html, "dead" in html) == (badge is not None, False)
    assert badge is None or badge in html


def test_a_poll_without_a_response_delays_neither_the_state_nor_the_other_polls(
    wait_for: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_poller, "CLUSTER_POLL_S", 0.01)
    asked, ended = threading.Event(), threading.Event()

    def hang() -> CheckpointLag:
        asked.set()
        ended.wait(10)
        raise ConnectError("no broker responded")

    with StatePoller(lambda: state(*STALE), False, ClusterPolls([("copies", hang)], list)) as poller:
        wait_for(lambda: asked.is_set() and poller.polled().transactions == Polled([]))
        wait_for(lambda: poller.snapshot)
        assert poller.polled().lags == [("copies", Polled())]
        ended.set()
        wait_for(lambda: poller.polled().lags == [("copies", Polled(trouble="no broker responded"))])


def test_a_cluster_that_does_not_respond_is_not_polled_and_its_old_values_are_unknown() -> None:
    trouble: list[str | None] = ["login refused"]
    asked: list[int] = []
    poll = ClusterPoll(lambda: asked.append(1), lambda: trouble[-1])
    poll.poll()
    assert (asked, poll.last) == ([], Polled(trouble="login refused"))
    trouble.append(None)
    poll.poll()
    assert asked == [1]
    trouble.append("no broker responded")
    assert poll.last == Polled(trouble="no broker responded")


@pytest.mark.parametrize(
    ("error", "last", "is_repeated"),
    [
        (ConnectError("no broker responded"), Polled(trouble="no broker responded"), True),
        (UnsupportedBrokerError("before Kafka 3.0"), Polled(trouble="before Kafka 3.0", is_supported=False), False),
        (AuthenticationError("refused"), Polled(trouble="refused (not asked again: restart the command)"), False),
    ],
)
def test_a_poll_without_hope_is_made_once(error: Exception, last: Polled[None], is_repeated: bool) -> None:
    poll = ClusterPoll[None](lambda: None, lambda: None)

    assert (poll.on_error(error), poll.last) == (is_repeated, last)
