"""The listeners of streaming queries: what they pass on, and what `QueryListener` logs."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_kafka_meta import QueryListener
from pyspark_kafka_meta.errors import AuthenticationError, ConnectError, OptionError
from pyspark_kafka_meta.events.event import EventKind, Origin, Role
from pyspark_kafka_meta.model import Position
from pyspark_kafka_meta.read.planning.checkpoint_offsets import SourceOffset
from pyspark_kafka_meta.tables.rows import LagRow
from pyspark_kafka_meta.tools import query_listeners
from pyspark_kafka_meta.tools.exporter import driver
from pyspark_kafka_meta.tools.exporter.driver import ExporterListener, report_line
from pyspark_kafka_meta.tools.exporter.totals import QueryTotals
from tests.partitions import T0
from tests.unit.tools.states import lag_row
from tests.unit.written_events import made, write

PROGRESS: dict[str, Any] = {
    "id": "0123456789",
    "name": None,
    "batchId": 7,
    "numInputRows": 120,
    "batchDuration": 400,
    "sources": [],
}


@pytest.mark.parametrize(
    ("progress", "rows", "refreshes", "line"),
    [
        pytest.param({}, None, {}, "query 01234567, batch 7: 120 records in 0.4 s; refreshes: none", id="no cluster"),
        pytest.param(
            {"name": "copy", "numInputRows": None},
            [lag_row(5, 1.25), lag_row(7, 60.0)],
            {"not_leader": 2, "max_age": 1},
            "copy, batch 7: 0 records in 0.4 s; 12 records behind, at most 60.0 s; refreshes: max_age 1, not_leader 2",
            id="all",
        ),
        pytest.param(
            {},
            [lag_row(5, None), lag_row(None, None)],
            {},
            "query 01234567, batch 7: 120 records in 0.4 s; 5 records behind, 1 partitions without "
            "an end; refreshes: none",
            id="unknown",
        ),
        pytest.param(
            {},
            [lag_row(5, None), lag_row(7, 2.0)],
            None,
            "query 01234567, batch 7: 120 records in 0.4 s; 12 records behind, at least 2.0 s",
            id="partly unknown",
        ),
    ],
)
def test_a_line_says_what_a_query_did(
    progress: dict[str, Any], rows: list[LagRow] | None, refreshes: dict[str, int] | None, line: str
) -> None:
    assert report_line({**PROGRESS, **progress}, rows, refreshes) == line


def test_events_of_the_jvm_are_passed_on() -> None:
    queries = QueryTotals()
    listener = ExporterListener(queries)
    offset = SourceOffset({T0: Position(5)}, {"t": None})
    progress = {**PROGRESS, "sources": [{"endOffset": offset.as_dict()}]}
    listener.onQueryStarted(jvm_event(id=PROGRESS["id"], runId="r", name=None))
    listener.onQueryProgress(jvm_event(progress=progress))

    assert queries.offsets() == {PROGRESS["id"]: (offset,)}
    listener.onQueryTerminated(jvm_event(id=PROGRESS["id"], runId="r", exception=None))
    assert queries.offsets() == {}


def jvm_event(**fields: Any) -> Any:
    return SimpleNamespace(json=lambda: json.dumps(fields))


def of_query(sequence: int, **others: Any) -> Any:
    origin = Origin(role=Role.READER, query_id=PROGRESS["id"])
    return made("a" * 32, sequence, int(time.time() * 1000), origin=origin, **others)


def test_refreshes_since_the_line_before_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wait_for: Callable[..., Any]
) -> None:
    caplog.set_level(logging.INFO, "pyspark_kafka_meta.queries")
    write(tmp_path, made("b" * 32, 1, 1_000, origin=Origin(role=Role.READER, query_id="0123456789")))
    listener = QueryListener(eventsPath=str(tmp_path))
    lines = []
    for sequence in (1, 3):
        write(tmp_path, of_query(sequence), of_query(sequence + 1, kind=EventKind.BORN))
        listener.on_progress(PROGRESS)
        wait_for(lambda: caplog.messages)
        lines += caplog.messages
        caplog.clear()

    assert lines == ["query 01234567, batch 7: 120 records in 0.4 s; refreshes: max_age 1"] * 2


def test_a_line_without_lag_is_logged_while_no_broker_responds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wait_for: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise ConnectError("nobody there")

    monkeypatch.setattr(driver, "query_lag", fail)
    caplog.set_level(logging.INFO, "pyspark_kafka_meta.queries")
    listener = QueryListener(**{"eventsPath": str(tmp_path), "kafka.bootstrap.servers": "b:9"})
    listener.on_progress(PROGRESS)
    wait_for(lambda: len(caplog.messages) == 2)

    assert caplog.messages == [
        "the lag of queries is unknown: nobody there",
        "query 01234567, batch 7: 120 records in 0.4 s; refreshes: none",
    ]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, wait_for: Callable[..., Any]) -> Callable[[QueryListener], list[str]]:
    """What a listener logs of one more micro-batch."""
    caplog.set_level(logging.INFO, "pyspark_kafka_meta.queries")

    def log(listener: QueryListener) -> list[str]:
        caplog.clear()
        listener.on_progress(PROGRESS)
        wait_for(lambda: any("batch 7" in message or "unexpected" in message for message in caplog.messages))
        return list(caplog.messages)

    return log


def test_an_event_that_is_read_twice_counts_once(tmp_path: Path, logged: Callable[[QueryListener], list[str]]) -> None:
    listener = QueryListener(eventsPath=str(tmp_path))
    write(tmp_path, of_query(1), of_query(2))
    first = logged(listener)
    write(tmp_path, of_query(2), of_query(3))

    assert first[0].endswith("refreshes: max_age 2")
    assert logged(listener)[0].endswith("refreshes: max_age 1")


def test_an_unexpected_error_ends_no_thread(
    tmp_path: Path, logged: Callable[[QueryListener], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = QueryListener(**{"eventsPath": str(tmp_path), "kafka.bootstrap.servers": "b:9"})
    monkeypatch.setattr(driver, "query_lag", lambda *_: 1 / 0)
    failed = logged(listener)
    monkeypatch.setattr(driver, "query_lag", lambda *_: [])

    assert failed == ["unexpected error of the listener"]
    assert "0 records behind" in logged(listener)[0]


def test_the_thread_ends_and_the_next_goes_on(
    tmp_path: Path, logged: Callable[[QueryListener], list[str]], wait_for: Callable[..., Any]
) -> None:
    listener = QueryListener(eventsPath=str(tmp_path))
    write(tmp_path, of_query(1))
    logged(listener)
    wait_for(lambda: not any(thread.name == "kafkameta-query-listener" for thread in threading.enumerate()))
    write(tmp_path, of_query(2))

    assert logged(listener)[0].endswith("refreshes: max_age 1")


def test_a_refused_login_is_not_repeated(
    tmp_path: Path, logged: Callable[[QueryListener], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    def refuse(*_: object) -> Any:
        attempts.append("login")
        raise AuthenticationError("wrong password")

    monkeypatch.setattr(query_listeners, "open_driver_events", refuse)
    listener = QueryListener(eventsPath=str(tmp_path))
    first = logged(listener)

    assert logged(listener) == first[1:] == ["query 01234567, batch 7: 120 records in 0.4 s"]
    assert attempts == ["login"]


@pytest.mark.parametrize("options", [{"metricPath": "/data"}, {"kafka.bootstrap.server": "b:9"}])
def test_a_misspelt_option_is_refused_at_once(options: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        QueryListener(**options)
