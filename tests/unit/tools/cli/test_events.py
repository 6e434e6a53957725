"""`kafkameta events` over files: what a person sees of each event, what a pipe gets, and what a terminal is spared."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.client_facts import LookupReason
from pyspark_kafka_meta.events.default_folder import DefaultFolder, default_root
from pyspark_kafka_meta.events.event import EventKind, Origin, OtherReason, Outcome, Role
from pyspark_kafka_meta.events.sinks import FolderSink
from pyspark_kafka_meta.tables.caches_from_events import EventRow
from pyspark_kafka_meta.tools import event_sources
from pyspark_kafka_meta.tools.cli import events as events_module
from pyspark_kafka_meta.tools.cli.events import EventFilter, follow_events
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.event_sources import FolderEvents, open_events
from pyspark_kafka_meta.tools.formatting import broker_text, cache_text, changes_text, reason_text
from tests.unit.written_events import learning, made, moving, sequences, write

TERMINAL = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "300", "LINES": "50"}
NOW_MS = 1_800_000_000_000


def run(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Any:
    return CliRunner().invoke(app, ["events", "--path", str(folder), *arguments], env=env)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three events of two caches, the newest in the first file."""
    reader = Origin(role=Role.READER, application_id="app-1", executor_id="1", host="worker", pid=7)
    moved = made("a" * 32, 3, NOW_MS + 2_000, origin=reader, **moving("t", 0, (1, 2), (4, 5)))
    write(tmp_path, made("a" * 32, 1, NOW_MS), moved)
    planner = Origin(role=Role.PLANNER, executor_id="driver", host="head", pid=3)
    write(tmp_path, made("b" * 32, 2, NOW_MS + 1_000, origin=planner, **learning("t", 1)))
    return tmp_path


def test_a_pipe_gets_every_field_as_json_lines_newest_last(folder: Path) -> None:
    result = run(folder)

    assert sequences(result.stdout) == [1, 2, 3]
    assert json.loads(result.stdout.splitlines()[2])["leaders_changed"] == [
        {"topic": "t", "partition": 0, "old_leader_id": 1, "new_leader_id": 2, "old_epoch": 4, "new_epoch": 5}
    ]


WORDS = (
    "NOT_LEADER_OR_FOLLOWER",
    "worker-12.example:41187",
    "broker-3.eu-central-1.example:19092",
    "orders-by-customer-17:",
)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_no_name_is_split_at_any_width(tmp_path: Path, columns: int) -> None:
    moved = moving("orders-by-customer", 17, (1, 2), (4, 5)) | {"broker_host": WORDS[2][:-6], "broker_port": 19092}
    origin = Origin(role=Role.READER, executor_id="12", host=WORDS[1][:-6], pid=41187)
    write(tmp_path, made("a" * 32, 1, NOW_MS, origin=origin, **moved))
    lines = run(tmp_path, env={**TERMINAL, "COLUMNS": str(columns)}).stdout.splitlines()

    assert [word for word in WORDS if word not in " ".join(lines).split()] == []
    assert max(map(len, lines)) <= columns


def test_a_terminal_shows_an_event_as_a_paragraph_beside_its_time(folder: Path) -> None:
    lines = run(folder, "--reason", "not_leader", env={**TERMINAL, "COLUMNS": "80"}).stdout.splitlines()
    assert [line[15:].rstrip() for line in lines] == [
        "not_leader: t-0, broker 1, NOT_LEADER_OR_FOLLOWER (error 6)",
        "reader 1 worker:7 aaaaaaaa asked broker 1 broker-1:9092 (2.5 ms)",
        "t-0: 1 to 2 (epoch 4 to 5), healed in 120.0 ms",
    ]
    assert [bool(line[:14].strip()) for line in lines] == [True, False, False]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--reason", "not_leader"], [3]),
        (["--reason", "not_leader", "--reason", "bootstrap"], [2, 3]),
        (["--reason", "not_leader", "--reason", "closed", "--reason", "registration"], [3]),
        (["--role", "planner"], [2]),
        (["--role", "writer"], []),
        (["--application", "app-1"], [3]),
        (["--last", "2"], [2, 3]),
        (["--since", "10m"], []),
        (["--since", "9999d"], [1, 2, 3]),
    ],
)
def test_options_choose_among_the_events(
    folder: Path, arguments: list[str], shown: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: (NOW_MS + 3_600_000) / 1000)
    assert sequences(run(folder, *arguments).stdout) == shown


PLACE = {"cause_topic": "t", "cause_partition": 3}
LOOKED_UP = {"kind": EventKind.SCHEMA_LOOKUP, "schema_subject": "t-value"}
RECOVERED = {"transactional_id": "orders", "transactions": 3, "transactions_ms": 12.34, "copied_records": 40}
TEXTS: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"kind": EventKind.TRANSACTIONS_RECOVERED, "reason": OtherReason.TRANSACTION, **RECOVERED},
        "transaction",
        "(transactions_recovered)",
        "transactions recovered: 3 of orders in 12.3 ms, 40 records copied",
    ),
    ({**LOOKED_UP, "reason": LookupReason.QUERY_SCHEMA}, "query_schema", "schema registry", "subject t-value"),
    (
        {**LOOKED_UP, "reason": LookupReason.REGISTRATION, "schema_id": 8},
        "registration",
        "schema registry",
        "subject t-value, schema id 8",
    ),
    (
        {**LOOKED_UP, "reason": LookupReason.UNKNOWN_SCHEMA, "schema_subject": None, "schema_id": 7, "error": "no"},
        "unknown_schema",
        "schema registry",
        "schema id 7, no",
    ),
    (
        {"kind": EventKind.MALFORMED_RECORDS, "reason": OtherReason.MALFORMED, "malformed_records": 40, **PLACE},
        "malformed: t-3",
        "(malformed_records)",
        "40 malformed records (value), truncated",
    ),
    ({"kind": EventKind.BORN, "died_cache_ids": ("c0ffee" * 5,)}, "max_age", "(born)", "caches that died: c0ffeec0"),
]


@pytest.mark.parametrize(("event", "why", "asked", "changes"), TEXTS)
def test_texts_of_an_event(event: dict[str, Any], why: str, asked: str, changes: str) -> None:
    origin = Origin(role=Role.COMMITTER, host="head")  # of an unknown process
    texts = made("a" * 32, 1, NOW_MS, origin=origin, **event).to_dict()

    assert cache_text(texts) == "committer head aaaaaaaa"
    assert (reason_text(texts), broker_text(texts), changes_text(texts)) == (why, asked, changes)


def test_what_is_left_out_and_not_there_is_told(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(folder, "--last", "2").stderr == ""
    monkeypatch.setattr(events_module, "LAST", 2)
    assert "only the newest 2 events are shown: --last 1000000 shows more" in run(folder).stderr
    (tmp_path / "empty").mkdir()
    nothing = run(tmp_path / "empty")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert str(tmp_path / "empty") in nothing.stderr


@pytest.fixture
def applications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Default folders of three drivers: the third has written last, and the first has planned alone."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    for number in (1, 2, 3):
        folder = DefaultFolder(f"driver-{number}")
        planner = made("a" * 32, number, origin=Origin(role=Role.PLANNER))
        reader = made("b" * 32, number, origin=Origin(role=Role.READER, application_id=f"app-{number}"))
        FolderSink(folder).write([planner] if number == 1 else [planner, reader])
        written_s = time.time() - 60 + number
        os.utime(folder.make(), (written_s, written_s))
    return default_root()


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], [3, 3]),
        (["--all-applications"], [1, 2, 2, 3, 3]),
        (["--application", "app-2"], [2, 2]),
        (["--application", "driver-1"], [1]),
    ],
)
def test_latest_application_here_is_the_default(arguments: list[str], shown: list[int], applications: Path) -> None:
    assert sorted(sequences(CliRunner().invoke(app, ["events", *arguments]).stdout)) == shown


@pytest.mark.parametrize("command", ["events", "caches"])
def test_other_applications_of_this_machine_are_named_beside_the_output(command: str, applications: Path) -> None:
    note = CliRunner().invoke(app, [command]).stderr.splitlines()[0]
    others = "others, newest first: app-2, driver-1; --application NAME shows one, --all-applications all"
    assert note == f"kafkameta: the latest application is app-3; {others}"
    assert "others" not in CliRunner().invoke(app, [command, "--all-applications"]).stderr
    assert "others" not in CliRunner().invoke(app, [command, "--path", str(applications / "driver-3")]).stderr


def test_an_application_that_runs_is_chosen_by_its_name(applications: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_sources, "_name_of", lambda folder: "orders" if folder.name == "driver-2" else None)
    shown = CliRunner().invoke(app, ["events", "--application", "orders"])
    note = CliRunner().invoke(app, ["events"]).stderr

    assert sequences(shown.stdout) == [2, 2]
    assert "others, newest first: orders (app-2), driver-1;" in note


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--conf", "spark.app.name=daily orders", "pyspark-shell"], "daily orders"),
        (["--name", "PySparkShell", "pyspark-shell"], "PySparkShell"),
        (["/home/me/copy_orders.py", "--fast"], "copy_orders.py"),
        (["pyspark-shell"], None),
    ],
)
def test_a_driver_s_command_line_names_its_application(words: list[str], name: str | None) -> None:
    assert event_sources.application_name(["java", event_sources.SPARK_SUBMIT, *words]) == name
    assert event_sources.application_name(["java", "Other", *words]) is None, "its process id has been given to another"


def test_following_shows_applications_that_begin_later(applications: Path) -> None:
    source = open_events({}, must_exist=False)
    assert {event["sequence"] for event in source.read()} == {3}
    for name, number in (("driver-1", 8), ("driver-9", 9)):
        FolderSink(DefaultFolder(name)).write([made("c" * 32, number, NOW_MS)])
    assert [event["sequence"] for event in source.read()] == [9]


def test_following_shows_what_comes_once_and_ends_with_ctrl_c(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comes = iter([made("c" * 32, 7, NOW_MS), made("c" * 32, 8, NOW_MS)])

    def sleep(_: float) -> None:
        event = next(comes, None)
        if event is None:
            raise KeyboardInterrupt
        write(folder, event)

    monkeypatch.setattr(events_module, "sleep", sleep)
    result = run(folder, "--follow")

    assert (result.exit_code, sequences(result.stdout)) == (0, [1, 2, 3, 7, 8])


def test_following_shows_many_events_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "EVENTS_AT_ONCE", 2)
    shown: list[list[EventRow]] = []
    rounds = iter([None])

    def sleep(_: float) -> None:
        if next(rounds, 0) == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(events_module, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        follow_events(FolderEvents(str(folder)), EventFilter(), shown.append)
    assert sorted(len(part) for part in shown) == [1, 2]


def test_text_of_brokers_cannot_steer_the_terminal(tmp_path: Path) -> None:
    error = "\x1b[2Jgone [bold]loud[/] \u202eesrever"
    write(tmp_path, made("a" * 32, 1, NOW_MS, outcome=Outcome.FAILED, error=error))
    shown = " ".join(run(tmp_path, env={**TERMINAL, "COLUMNS": "400"}).stdout.split())

    assert r"\x1b[2Jgone [bold]loud[/] \u202eesrever" in shown
    assert "\x1b[2J" not in shown


@pytest.mark.usefixtures("no_pyspark")
def test_no_spark_takes_part(folder: Path) -> None:
    result = run(folder)
    assert (result.exit_code, sequences(result.stdout)) == (0, [1, 2, 3])
