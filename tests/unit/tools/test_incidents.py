"""Which leader changes are one incident, and what `kafkameta incidents` prints of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.tables.rows import LeaderChangeRow
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.incidents import QUIET, find_incidents, incidents_view
from tests.unit.written_events import learning, made, moving, write

THREE = datetime(2026, 3, 1, 3, tzinfo=UTC)
TERMINAL = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "140", "LINES": "50"}


def change(partition: int, left: int, to: int, after: timedelta, slowest: timedelta, **others: Any) -> LeaderChangeRow:
    """Of topic t, `after` three o'clock."""
    fields = {
        "cluster_id": "cluster",
        "topic": "t",
        "topic_id": None,
        "partition": partition,
        "from_leader_id": left,
        "to_leader_id": to,
        "leader_epoch": 5,
        "first_seen": THREE + after,
        "first_cache_id": "c",
        "first_reason": "not_leader",
        "caches": 2,
        "median_ms": 0,
        "last_seen": THREE + after + slowest,
        "longest_recovery_ms": None,
        "retries": 0,
        "stale_caches": 0,
        "stale_cache_ids": (),
    }
    return LeaderChangeRow(**fields | others)


NOW, SECOND = timedelta(0), timedelta(seconds=1)


def test_a_rolling_restart_is_one_incident() -> None:
    rows = [
        change(0, 1, 2, NOW, SECOND, longest_recovery_ms=300.0),
        change(1, 2, 3, QUIET, SECOND, longest_recovery_ms=900.0),
        change(0, 2, -1, 2 * QUIET, 3 * SECOND, caches=7, stale_caches=4),
        change(0, -1, 3, 2 * QUIET + SECOND, SECOND),
        change(0, 3, 3, 2 * QUIET + 2 * SECOND, NOW),
    ]
    ((incident, changes),) = find_incidents(reversed(rows))

    assert (incident.began, incident.ended) == (THREE, THREE + 2 * QUIET + 3 * SECOND)
    assert incident.old_leaders == (1, 2), "a leader that keeps its partitions, and no leader, are no old leaders"
    assert (incident.partitions, incident.changes, incident.caches, incident.slowest_ms) == (2, 5, 7, 3_000)
    assert (incident.longest_recovery_ms, incident.stale_caches) == (900.0, 4)
    assert changes == rows


def test_what_comes_after_a_quiet_time_is_another_incident() -> None:
    rows = [change(0, 1, 2, NOW, 5 * QUIET), change(0, 2, 1, QUIET + SECOND, SECOND)]

    assert [incident.old_leaders for incident, _ in find_incidents(rows)] == [(1,), (2,)]


def test_clusters_have_incidents_of_their_own() -> None:
    rows = [change(0, 1, 2, SECOND, NOW), change(0, 3, 2, NOW, NOW, cluster_id="other")]

    assert [incident.cluster_id for incident, _ in find_incidents(rows)] == ["other", "cluster"]


def test_of_several_clusters_each_incident_names_its_own() -> None:
    rows = [change(0, 1, 2, SECOND, NOW), change(0, 3, 2, NOW, NOW, cluster_id="other")]
    view = incidents_view([incident for incident, _ in find_incidents(rows)])

    assert view.columns[-1].title == "Cluster"
    assert [row[-1] for row in view.rows] == ["other", "cluster"]
    assert {len(row) for row in view.rows} == {len(view.columns)}


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """At three one cache learns that t-1 has left broker 2."""
    at_ms = int(THREE.timestamp() * 1000)
    write(
        tmp_path,
        made("c", 1, at_ms - 20_000, **learning("t", 1, 2, epoch=4)),
        made("c", 2, at_ms, **moving("t", 1, (2, 3), (4, 5))),
    )
    return tmp_path


def run(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Any:
    return CliRunner().invoke(app, ["incidents", "--path", str(folder), *arguments], env=env)


def test_an_incident_is_a_line_of_json_in_a_pipe(folder: Path) -> None:
    (line,) = map(json.loads, run(folder).stdout.splitlines())

    assert (line["began"], line["old_leaders"], line["partitions"]) == (str(THREE), [2], 1)


def test_an_incident_is_a_row_in_a_terminal(folder: Path) -> None:
    *_, row = run(folder, env=TERMINAL).stdout.rstrip().splitlines()

    assert row.split()[2:] == ["0.0", "s", "2", "1", "1", "0.0", "s", "0.1", "s", "0"]


@pytest.mark.parametrize(("until", "incidents"), [("2026-03-01T02:59:59+00:00", 0), ("2026-03-01T03:00:00+00:00", 1)])
def test_later_events_than_until_are_ignored(folder: Path, until: str, incidents: int) -> None:
    assert len(run(folder, "--until", until).stdout.splitlines()) == incidents


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--since", "1h"], "since then: an earlier --since"), (["--application", "app-9"], "in these events")],
)
def test_no_incident_says_so(folder: Path, arguments: list[str], told: str) -> None:
    result = run(folder, *arguments)

    assert (result.exit_code, result.stdout) == (0, "")
    assert f"no leader changed {told}" in result.stderr
