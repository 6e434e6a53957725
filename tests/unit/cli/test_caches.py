"""`kafkameta caches` over events that another version wrote, which lack parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pyspark_kafka_meta.cli.caches import known_caches, stale_rows
from pyspark_kafka_meta.cli.main import app
from pyspark_kafka_meta.cli.sources import FolderEvents
from pyspark_kafka_meta.metadata.model import PartitionMetadata, TopicPartition
from tests.unit.written_events import learning, made, write

NOW_MS = 1_800_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache knows t-0 at epoch 4; another tells of it without an epoch, and has nulls for parts."""
    write(tmp_path, made("a" * 32, 1, NOW_MS - 9_000, **learning("t", 1, epoch=4)))
    odd = {
        **made("b" * 32, 1, NOW_MS - 8_000).to_dict(),
        "partitions_learned": [None, {"topic": "t", "partition": 0, "leader_id": 2}],
        "leaders_changed": [None],
        "topics_added": [None],
        "died_cache_ids": [None],
    }
    (tmp_path / f"events-{'d' * 32}-00000000.jsonl").write_text(json.dumps(odd) + "\n")
    return tmp_path


def test_parts_that_are_not_there_say_nothing(folder: Path) -> None:
    known = known_caches(FolderEvents(str(folder)), 0, NOW_MS)
    live = {TopicPartition("t", 0): PartitionMetadata(0, leader_id=3, leader_epoch=5)}

    assert [(row.cache_id[0], row.leader_epoch) for row in known.rows] == [("a", 4), ("b", None)]
    assert [(one.row.cache_id[0], one.behind_ms) for one in stale_rows(known, live, {})] == [("a", None)]


@pytest.mark.parametrize("command", ["caches", "events"])
@pytest.mark.parametrize("env", [{}, {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}], ids=["pipe", "terminal"])
def test_every_command_reads_them(command: str, env: dict[str, str], folder: Path) -> None:
    result = CliRunner().invoke(app, [command, "--path", str(folder), "--since", "9999d"], env=env)
    assert (result.exit_code, "a" * 8 in result.stdout) == (0, True)


def test_that_no_cache_is_known_is_not_called_up_to_date(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["caches", "--path", str(tmp_path), "--stale", "--bootstrap-servers", "b:9"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no cache is known" in result.stderr
