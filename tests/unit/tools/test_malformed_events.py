"""One malformed line of events never ends what is made of the other lines: anybody who may write to the folder or the
topic, and any other version of this package, can add one."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pyspark_kafka_meta.events.event import EventKind
from pyspark_kafka_meta.options import EventTableOptions, Table
from pyspark_kafka_meta.tables.caches_from_events import EventRow, KnownCaches
from pyspark_kafka_meta.tables.readers import batch_reader
from pyspark_kafka_meta.tools.cluster_state import (
    ClusterState,
    NewestEvents,
    known_brokers,
    newest_leaders,
    stale_entries,
)
from pyspark_kafka_meta.tools.event_sources import FolderEvents
from pyspark_kafka_meta.tools.exporter.totals import EventTotals
from pyspark_kafka_meta.tools.formatting import events_table
from pyspark_kafka_meta.tools.page import plots
from pyspark_kafka_meta.tools.page.view_model import view_of
from tests.unit.tools.states import NOW_MS
from tests.unit.written_events import learning, made

GOOD = made("good", 1, NOW_MS - 1_000, **learning("t", 1, 2)).to_json()
BAD: dict[str, Any] = json.loads(made("bad", 1, NOW_MS - 500, **learning("t", 1, 2)).to_json())
LOSS: dict[str, Any] = json.loads(made("bad", 1, NOW_MS - 500, kind=EventKind.DATA_LOSS).to_json())
TINY = {"cache_id": "bad", "sequence": 1, "time_ms": NOW_MS}
LISTS = (
    "partitions_learned",
    "leaders_changed",
    "topics_added",
    "died_cache_ids",
    "fetches",
    "produces",
    "table_changes",
    "filtered",
)
LEADER = {"topic": "t", "partition": 0, "leader_id": 1, "leader_epoch": 7}

INVALID: dict[str, object] = {
    "torn": b'{"cache_id": "bad", "sequ',
    "not JSON": b"\xff\xfe",
    "a list": [BAD],
    "a number": 7,
    "no cache": {"sequence": 1, "time_ms": NOW_MS},
    "null sequence": {**BAD, "sequence": None},
    "sequence of 40 digits": {**BAD, "sequence": 10**40},
    "negative sequence": {**BAD, "sequence": -3},
    "time that is not finite": b'{"cache_id": "bad", "sequence": 1, "time_ms": Infinity}',
    "time after the year 10000": {**BAD, "time_ms": 253_402_300_799_999},
    "half a surrogate pair": b'{"cache_id": "\\ud800", "sequence": 1, "time_ms": 1}',
    "kind is a list": {**BAD, "kind": [1]},
    "reason is an object": {**BAD, "reason": {}},
    "role is a number": {**BAD, "role": 5},
    "lookups are a text": {**BAD, "lookups": "x"},
    "lookups that fill a column": {**BAD, "lookups": 2**63 - 1},
    "negative retries": {**BAD, "retries": -1},
    "negative losses": {**BAD, "dropped_before": -(2**63)},
    "latency is not a number": {**BAD, "latency_ms": math.nan},
    "latency is endless": {**BAD, "latency_ms": math.inf},
    "negative latency": {**BAD, "latency_ms": -1e300},
    "recovery is not a number": {**BAD, "recovery_ms": math.nan},
    "generation is a text": {**BAD, "generation_after": "x"},
    "topics are a number": {**BAD, "topics_removed": 5},
    "topics are an object": {**BAD, "topics_removed": {"a": 1}},
    "topic is a number": {**BAD, "topics_removed": [5]},
    "dead caches are a number": {**BAD, "died_cache_ids": 5},
    "dead cache is a list": {**BAD, "died_cache_ids": [[1]]},
    "leaders are a text": {**BAD, "partitions_learned": "x"},
    "leader is a number": {**BAD, "partitions_learned": [5]},
    "leader is an empty list": {**BAD, "partitions_learned": [[]]},
    "leader is a list": {**BAD, "partitions_learned": [[["topic", "t"]]]},
    "leader with a list as topic": {**BAD, "partitions_learned": [{**LEADER, "topic": []}]},
    "leader with a text as partition": {**BAD, "partitions_learned": [{**LEADER, "partition": "0"}]},
    "leader with an epoch of 40 digits": {**BAD, "partitions_learned": [{**LEADER, "leader_epoch": 10**40}]},
    "brokers that moved are texts": {**BAD, "brokers_moved": ["x", {}]},
    "negative requests": {**BAD, "produces": [{"broker_id": 1, "requests": -5, "request_bytes": 1}]},
    "negative changes": {**BAD, "table_changes": [{"topic": "t", "op": "c", "records": -1}]},
    "negative drops": {**BAD, "filtered": [{"topic": "t", "partition": 0, "records": -1}]},
    "fetched bytes are not a number": {**BAD, "fetches": [{"broker_id": 1, "requests": 5, "response_bytes": math.nan}]},
}
"""Left out, and counted."""
INCOMPLETE: dict[str, object] = {
    "nothing more than an identity": TINY,
    "unknown kind": {**BAD, "kind": "exploded"},
    "nulls for parts": {**BAD, **{name: [None] for name in LISTS}},
    "null for a dead cache": {**BAD, "died_cache_ids": [None]},
    "leader without an epoch": {**BAD, "partitions_learned": [{"topic": "t", "partition": 0, "leader_id": 1}]},
    "change without leaders": {**BAD, "leaders_changed": [{"topic": "t", "partition": 0}]},
    "removed partition without a number": {**BAD, "partitions_removed": [{}]},
    "recreated topic without ids": {**BAD, "topics_recreated": [{"topic": "t"}]},
    "requests of no broker": {**BAD, "produces": [{"requests": 5, "request_bytes": 1}]},
    "broker without requests": {**BAD, "produces": [{"broker_id": 1}], "fetches": [{}]},
    "changes without a topic": {**BAD, "table_changes": [{}]},
    "drops without a topic": {**BAD, "filtered": [{}]},
    "loss that ends before it begins": {**LOSS, "lost_from_offset": 9, "lost_until_offset": 3},
}
"""Events of other versions may lack fields. The rest of the event counts."""


def line(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def write(folder: Path, *lines: bytes) -> None:
    (folder / f"events-{'a' * 32}-00000000.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def caches_table(folder: Path) -> set[str]:
    """The caches that the table `caches` has."""
    reader: Any = batch_reader(Table.CACHES, EventTableOptions(path=str(folder)), {"cache_id": "cache_id"})
    return {row["cache_id"] for task in reader.partitions() for each in reader.read(task) for row in each.to_pylist()}


def use(events: Sequence[EventRow]) -> None:
    """Everything that tools make of events."""
    caches = KnownCaches.of(events).living()
    leaders = newest_leaders(caches)
    list(stale_entries([row for each in caches for row in each.rows(NOW_MS)], leaders, events, NOW_MS))
    newest = NewestEvents()
    newest.add(events)
    assert len(newest.in_order()) <= len(events)
    Console(file=StringIO()).print(events_table(events))
    for plot in (plots.timeline, plots.latencies, plots.recoveries):
        json.dumps(plot(events, NOW_MS).options, allow_nan=False)
    brokers = known_brokers(events, ())
    state = ClusterState(NOW_MS, brokers, tuple(leaders.values()), None, events, caches, {}, {}, 0.0)
    view_of(state, {}, (), {}, False).caches.table()
    totals = EventTotals()
    totals.add(events)
    totals.forget(NOW_MS)
    readings = totals.readings(NOW_MS, leaders)
    sums = [each.total for by_labels in readings.distributions.values() for each in by_labels.values()]
    numbers = [number for by_labels in readings.numbers.values() for number in by_labels.values()]
    assert all(0 <= number < math.inf for number in numbers + sums), "a counter that falls looks like a restart"


@pytest.mark.parametrize("name", [*INVALID, *INCOMPLETE])
def test_malformed_line_spoils_no_other(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    is_invalid = name in INVALID
    write(tmp_path, GOOD.encode(), line(INVALID[name] if is_invalid else INCOMPLETE[name]), GOOD.encode())
    with caplog.at_level(logging.WARNING):
        events = list(FolderEvents(str(tmp_path)).read())

    assert [event["cache_id"] for event in events] == (["good", "good"] if is_invalid else ["good", "bad", "good"])
    assert caplog.messages == ["skipped lines that are not refresh events: 1"] * is_invalid
    # The table does not read all fields: those that it needs may be good.
    assert caches_table(tmp_path) in ([{"good"}, {"good", "bad"}] if is_invalid else [{"good", "bad"}])
    use(events)
