"""What the page shows of caches: few side by side, many as a map, of both first what is stale."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import pytest

from pyspark_kafka_meta.tables.known_leaders import UNKNOWN
from pyspark_kafka_meta.tables.rows import PartitionRow
from pyspark_kafka_meta.tools.cluster_state import SILENT_MS, CacheMap
from pyspark_kafka_meta.tools.page.caches_view import (
    CACHES_SHOWN,
    COLUMNS_SHOWN,
    EVERYTHING,
    PARTITIONS_SHOWN,
    SIDE_BY_SIDE,
    CachesView,
    CacheTable,
    Selection,
)
from pyspark_kafka_meta.tools.page.ui import render
from pyspark_kafka_meta.tools.page.view_model import view_of
from tests.unit.tools.page.test_view_model import KNOWN
from tests.unit.tools.states import FIRST_IS_STALE, state

LEADERS = {"t": (1, 2, 1, 2), "u": (1, -1)}
"""Of the partitions of each topic, all in epoch 4."""
MANY = 500


def view(
    caches: int, stale: Collection[tuple[int, int]] = (), leaders: Mapping[str, tuple[int, ...]] = LEADERS
) -> CachesView:
    """Of caches that know all partitions but the last, `stale` of them, given as cache and column, in epoch 3."""
    rows = [
        PartitionRow(topic=topic, partition=number, leader_id=leader, leader_epoch=4)
        for topic, ids in leaders.items()
        for number, leader in enumerate(ids)
    ]
    shape = caches, len(rows)
    known = np.full(shape, [row.leader_id for row in rows], np.int32)
    epochs, is_stale = np.full(shape, 4, np.int32), np.zeros(shape, bool)
    known[:, -1] = UNKNOWN
    for entry in stale:
        epochs[entry], is_stale[entry] = 3, True
    names = [(f"reader {number}", f"pid {1000 + number}, cache {number:08x}") for number in range(caches)]
    return CachesView(names, CacheMap(rows, known, epochs, is_stale))


def cells(table: CacheTable) -> dict[str, list[str]]:
    """By row, with a star at what is stale."""
    return {row.text: [f"{cell.text}{'*' * cell.is_stale}" for cell in cells] for row, _, cells in table.rows}


def test_few_caches_are_side_by_side() -> None:
    table = view(2, [(1, 3)]).table()

    assert (table.corner, [column.text for column in table.columns]) == ("Partition", ["reader 0", "reader 1"])
    assert cells(table) == {
        **{f"t-{number}": [f"{1 + number % 2}@4"] * 2 for number in range(3)},
        "t-3": ["2@4", "2@3*"],
        "u-0": ["1@4", "1@4"],
        "u-1": ["", ""],
    }
    assert [now for _, now, _ in table.rows][-1] == "none@4"
    assert table.left_out == []


def test_of_many_partitions_the_stale_ones_are_shown_in_order() -> None:
    count = PARTITIONS_SHOWN + 50
    table = view(2, [(1, count - 2), (0, 7)], {"t": (1,) * count}).table()

    assert len(table.rows) == PARTITIONS_SHOWN
    assert [row for row, *_ in table.rows][-1].text == f"t-{count - 2}"
    assert table.left_out == ["50 more partitions, none stale."]


STALE = [(7, 0), (7, 1), (7, 2), (450, 1)]
"""t-0 and t-2, which broker 1 leads, and t-1, which broker 2 leads."""


def test_many_caches_are_a_map_by_broker_the_stalest_first() -> None:
    table = view(MANY, STALE).table()

    assert (table.corner, len(table.rows)) == ("Cache", CACHES_SHOWN)
    assert [(column.text, column.note) for column in table.columns] == [
        ("no leader", "leads 1"),
        ("broker 1", "leads 3"),
        ("broker 2", "leads 2"),
    ]
    assert list(cells(table).items())[:3] == [
        ("reader 7", ["0", "2*", "1*"]),
        ("reader 450", ["0", "0", "1*"]),
        ("reader 0", ["0", "0", "0"]),
    ]
    assert [stale for _, stale, _ in table.rows][:3] == ["3 of 5", "1 of 5", "0 of 5"]
    assert table.left_out == [f"{MANY - CACHES_SHOWN} more caches, none stale."]


def test_a_broker_leads_to_its_topics_and_a_topic_to_its_partitions() -> None:
    shown = view(MANY, STALE)
    by_broker = shown.table(Selection(find="reader 7"))
    link = next(column.link for column in by_broker.columns if column.text == "broker 1")
    by_topic = shown.table(Selection("reader 7", broker=1))
    by_partition = shown.table(Selection("reader 7", 1, "t"))

    assert link == "?find=reader+7&broker=1#caches-title"
    assert [(column.text, column.note, column.link) for column in by_topic.columns] == [
        ("t", "2 partitions", "?find=reader+7&broker=1&topic=t#caches-title"),
        ("u", "1 partition", "?find=reader+7&broker=1&topic=u#caches-title"),
    ]
    assert cells(by_topic)["reader 7"] == ["2*", "0"]
    assert [(column.text, column.note, column.link) for column in by_partition.columns] == [
        ("t-0", "1@4", None),
        ("t-2", "1@4", None),
    ]
    assert cells(by_partition)["reader 7"] == ["1@3*", "1@3*"]


@pytest.mark.parametrize(
    ("find", "names"),
    [("reader 45", ["reader 450", "reader 45"]), ("PID 1007,", ["reader 7"]), ("000001f3", ["reader 499"]), ("x", [])],
)
def test_caches_are_found_by_executor_process_and_id(find: str, names: list[str]) -> None:
    rows = view(MANY, STALE).table(Selection(find)).rows

    assert [row.text for row, *_ in rows][: len(names)] == names
    assert bool(rows) == bool(names)


def test_of_many_columns_the_stalest_are_shown_in_order_and_the_others_counted() -> None:
    brokers = tuple(range(100))
    stale = [(cache, broker) for cache in range(CACHES_SHOWN + 3) for broker in range(60, 60 + COLUMNS_SHOWN + 2)]
    table = view(MANY, stale, {"t": (*brokers, 1)}).table()

    assert [column.text for column in table.columns] == [f"broker {60 + number}" for number in range(COLUMNS_SHOWN)]
    assert table.left_out == [
        f"{MANY - CACHES_SHOWN} more caches, 3 of them with stale entries.",
        f"{100 - COLUMNS_SHOWN} more brokers, 2 of them with stale entries.",
    ]


@pytest.mark.parametrize("selection", [Selection(broker=99), Selection(topic="none"), Selection("x", 1, "t")])
def test_what_is_not_there_is_an_empty_map(selection: Selection) -> None:
    for caches in (0, MANY):
        table = view(caches, STALE if caches else ()).table(selection)
        assert [cells for *_, cells in table.rows if cells] == []


def test_what_the_page_shows_of_caches_is_computed_again_only_if_it_changed() -> None:
    seen = state(*FIRST_IS_STALE)
    before = view_of(seen, KNOWN, (), {}, False)
    later = replace(seen, now_ms=seen.now_ms + 1)
    moved = replace(later, partitions=[*seen.partitions[:1], replace(seen.partitions[1], leader_epoch=6)])
    learned, silent = replace(later, caches=list(seen.caches)), replace(later, now_ms=seen.now_ms + SILENT_MS)

    assert view_of(later, KNOWN, (), {}, False, before).caches is before.caches
    changed = [view_of(each, KNOWN, (), {}, False, before).caches for each in (moved, learned, silent)]
    assert [caches.stale() for caches in changed] == [2, 1, 0]
    assert before.caches not in changed


@pytest.mark.parametrize(
    ("query", "selection"),
    [
        ({}, EVERYTHING),
        ({"find": " 7 ", "broker": "3", "topic": "t"}, Selection("7", 3, "t")),
        ({"broker": "-1"}, Selection(broker=-1)),
        ({"find": "", "broker": "three", "topic": " "}, EVERYTHING),
        ({"broker": "9" * 5_000}, EVERYTHING),
    ],
)
def test_a_selection_comes_from_the_address(query: dict[str, str], selection: Selection) -> None:
    assert Selection.of(query) == selection


def test_there_is_a_search_where_there_is_a_map() -> None:
    """What a user looks for is shown as text."""
    seen = view_of(state(), KNOWN, (), {}, False)
    found = Selection('"><script>', topic="t")

    assert "<form" not in render("caches_search", view=seen)
    assert "<form" in render("caches_search", view=replace(seen, caches=view(SIDE_BY_SIDE + 1)))
    html = render("caches_search", view=seen, selection=found)
    assert 'value="&#34;&gt;&lt;script&gt;"' in html
    assert "<script>" not in html
