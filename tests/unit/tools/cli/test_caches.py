"""`kafkameta caches` over files: executors side by side, and what differs is seen without colours too."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pyspark_kafka_meta.events.default_folder import default_root
from pyspark_kafka_meta.events.event import Origin, Role
from pyspark_kafka_meta.kafka.metadata.snapshot import PartitionLearned, SnapshotChanges, TopicRecreated
from pyspark_kafka_meta.tables.caches_from_events import KnownCaches
from pyspark_kafka_meta.tables.rows import CacheRow, PartitionRow
from pyspark_kafka_meta.tools.cli.events import FoundCaches, known_caches, show_caches
from pyspark_kafka_meta.tools.cli.main import app
from pyspark_kafka_meta.tools.cluster_state import StaleEntry, stale_entries
from pyspark_kafka_meta.tools.event_sources import FolderEvents
from tests.partitions import T1
from tests.unit.written_events import learning, made, moving, write

TERMINAL = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "120", "LINES": "50"}
NOW_MS = 1_800_000_000_000
OLD, NEW = "a" * 32, "b" * 32


def run(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Any:
    return CliRunner().invoke(app, ["caches", "--path", str(folder), *arguments], env=env)


def table(text: str) -> dict[str, list[str]]:
    """The cells of each partition, by its number."""
    rows = [line.split() for line in text.splitlines()]
    return {cells[0]: cells[1:] for cells in rows if cells and cells[0].isdecimal()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Executor 1 knows t as it was, executor 2 that partition 1 moved from broker 2 to 3, eight seconds ago."""
    monkeypatch.setattr("time.time", lambda: NOW_MS / 1000)
    write(tmp_path, made(OLD, 1, NOW_MS - 20_000, **learning("t", 1, 2, epoch=4)))
    second = {"origin": Origin(role=Role.READER, executor_id="2", host="other", pid=9)}
    write(
        tmp_path,
        made(NEW, 1, NOW_MS - 20_000, **learning("t", 1, 2, epoch=4), **second),
        made(NEW, 2, NOW_MS - 8_000, **moving("t", 1, (2, 3), (4, 5)), **second),
    )
    return tmp_path


def stale(folder: Path, epoch: int, topic_id: str | None = None) -> list[StaleEntry]:
    """The stale entries of t-1 if the live cluster has this leader epoch and topic id."""
    known = known_caches(FolderEvents(str(folder)), 0, NOW_MS)
    leader = PartitionRow(topic="t", partition=1, topic_id=topic_id, leader_id=3, leader_epoch=epoch)
    return list(stale_entries(known.rows(), {T1: leader}, known.news, known.now_ms))


def test_a_cell_that_is_behind_another_cache_has_a_mark(folder: Path) -> None:
    text = run(folder, env=TERMINAL).stdout

    assert table(text) == {"0": ["1@4", "1@4"], "1": ["2@4*", "3@5"]}
    assert [text.index(name) for name in ("reader 1", "worker:7", "aaaaaaaa")] == sorted(
        text.index(name) for name in ("reader 1", "worker:7", "aaaaaaaa")
    )
    assert "another cache knows a newer leader epoch" in text
    write(folder, made(OLD, 2, NOW_MS - 7_000, **moving("t", 1, (2, 3), (4, 5))))
    assert "*" not in run(folder, env=TERMINAL).stdout, "both caches agree"


def test_a_pipe_gets_the_rows_of_the_caches_table(folder: Path) -> None:
    rows = [json.loads(line) for line in run(folder).stdout.splitlines()]

    assert [(row["executor_id"], row["partition"], row["leader_id"], row["leader_epoch"]) for row in rows] == [
        ("1", 0, 1, 4),
        ("1", 1, 2, 4),
        ("2", 0, 1, 4),
        ("2", 1, 3, 5),
    ]
    assert rows[0]["last_refresh"] == "2027-01-15 07:59:40+00:00"


def test_caches_that_said_nothing_for_long_are_left_out_and_counted(folder: Path) -> None:
    result = run(folder, "--since", "10s")
    assert {json.loads(line)["executor_id"] for line in result.stdout.splitlines()} == {"2"}
    assert "omitted caches without an event since then: 1;" in result.stderr


def test_cache_that_died_here_is_not_shown_as_if_it_lived(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(folder))
    # Left by a process that was killed: nobody holds its lock.
    left = default_root() / "application" / "alive-events" / f"{OLD}.alive"
    left.parent.mkdir(parents=True)
    left.touch()
    result = run(folder)

    assert {json.loads(line)["cache_id"] for line in result.stdout.splitlines()} == {NEW}
    assert "processes on this machine ended: 1" in result.stderr
    assert "run a query" not in result.stderr

    left.with_name(f"{NEW}.alive").touch()
    (line,) = run(folder).stderr.splitlines()
    assert "no cache is alive: look while a query runs, or see kafkameta events" in line


def test_more_caches_than_fit_are_shown_in_several_tables(folder: Path) -> None:
    text = run(folder, env={**TERMINAL, "COLUMNS": "40"}).stdout
    assert [line.split()[1] for line in text.splitlines() if line.split()[:1] == ["1"]] == ["2@4*", "3@5"]


def test_a_table_is_printed_before_the_rows_of_the_next_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [made(f"{number:032}", 1, NOW_MS, **learning("t", *[2] * 5)).to_dict() for number in range(10)]
    console, in_memory = Console(width=40), list[int]()

    def count(*_: object) -> None:
        in_memory.append(sum(isinstance(each, CacheRow) for each in gc.get_objects()))

    monkeypatch.setattr(console, "print", count)
    count()
    show_caches(FoundCaches(KnownCaches.of(events).living(), (), NOW_MS), console)

    assert len(in_memory) == 2 + 10, "before, the topic, and a table for each cache"
    assert max(in_memory) - in_memory[0] <= 2 * 5


def test_what_is_older_than_the_live_cluster_is_stale_since_another_cache_knew_better(folder: Path) -> None:
    (entry,) = stale(folder, epoch=5)
    assert (entry.row.cache_id, entry.row.leader_epoch, entry.behind_ms) == (OLD, 4, 8_000)
    newest = [(entry.row.cache_id, entry.behind_ms) for entry in stale(folder, epoch=6)]
    assert newest == [(OLD, 8_000), (NEW, None)], "nobody knew better than the best informed"


def test_entries_of_a_recreated_topic_are_stale_whatever_their_epoch(tmp_path: Path) -> None:
    old = SnapshotChanges(partitions_learned=(PartitionLearned("t", 1, 2, 9, "old"),))
    new = SnapshotChanges(
        partitions_learned=(PartitionLearned("t", 1, 2, 4, "new"),),
        topics_recreated=(TopicRecreated("t", "old", "new"),),
    )
    write(tmp_path, made(OLD, 1, NOW_MS - 20_000, changes=old), made(NEW, 1, NOW_MS - 20_000, changes=old))
    write(tmp_path, made(NEW, 2, NOW_MS - 8_000, changes=new))

    def behind(epoch: int, topic_id: str | None) -> list[tuple[str, bool, int | None]]:
        entries = stale(tmp_path, epoch, topic_id)
        return [(entry.row.cache_id, entry.is_recreated, entry.behind_ms) for entry in entries]

    assert behind(5, "new") == [(OLD, True, None), (NEW, False, None)]
    assert behind(0, "new") == [(OLD, True, None)]
    assert behind(0, None) == [], "brokers that report no topic ids"
    assert table(run(tmp_path, env=TERMINAL).stdout) == {"1": ["2@9*", "2@4"]}


def test_caches_of_another_cluster_do_not_make_a_cache_stale(tmp_path: Path) -> None:
    for cache, cluster, epoch, time_ms in ((OLD, "first", 4, NOW_MS - 9_000), (NEW, "second", 9, NOW_MS - 8_000)):
        learned = SnapshotChanges(partitions_learned=(PartitionLearned("t", 1, 2, epoch, cluster),))
        write(tmp_path, made(cache, 1, time_ms, cluster_id=cluster, changes=learned))

    assert "*" not in run(tmp_path, "--since", "9999d", env=TERMINAL).stdout


def test_caches_of_one_application_are_chosen(tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    for cache, application in ((OLD, "app-1"), (NEW, "app-2")):
        write(
            tmp_path,
            made(cache, 1, now_ms, origin=Origin(role=Role.READER, application_id=application), **learning("t", 1)),
        )
    rows = [json.loads(line) for line in run(tmp_path, "--application", "app-2").stdout.splitlines()]
    assert [row["cache_id"] for row in rows] == [NEW]

    none = run(tmp_path, "--application", "app-3")
    assert (none.exit_code, none.stdout) == (0, "")
    assert "no cache of application app-3 is alive" in none.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "no cache had an event since then: --since 1d goes back further"),
        (["--application", "x"], "no cache of application x is alive: look while a query runs, or see kafkameta"),
    ],
)
def test_staleness_without_cache_is_one_sentence_and_code_1(folder: Path, options: list[str], reason: str) -> None:
    arguments = ["--stale", "--bootstrap-servers", "b:9", "--since", "1s", *options]
    result = run(folder, *arguments)
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 1)
    assert result.stderr.startswith(f"kafkameta: nothing to compare with the cluster: {reason}")
    (folder / "empty").mkdir()
    result = run(folder / "empty", "--stale", "--bootstrap-servers", "b:9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"kafkameta: nothing to compare with the cluster: no events in {folder}/empty\n"
