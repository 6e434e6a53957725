"""Folders beyond this machine: the same files, and no key in a message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow.fs import FileSystem, LocalFileSystem

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import OPTIONS
from pyspark_kafka_meta.telemetry.event_sinks import FolderSink
from pyspark_kafka_meta.telemetry.remote_folder import RemoteFolder
from tests.unit.written_events import made


def test_files_arrive_complete_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafka_meta.telemetry.event_sinks.MAX_FILES", 2)
    sink = FolderSink(RemoteFolder(f"file://{tmp_path}"))
    for sequence in range(1, 4):
        sink.write([made("c0ffee", sequence)])

    assert sorted(path.name[-14:] for path in tmp_path.iterdir()) == ["00000001.jsonl", "00000002.jsonl"]


def test_old_file_that_somebody_else_removed_is_no_trouble(tmp_path: Path) -> None:
    RemoteFolder(f"file://{tmp_path}").delete("a")


@pytest.mark.parametrize("uri", ["s3://key:hunter2@", "nonsense://key:hunter2@host/folder", "gs://key:hunter2@a b"])
def test_trouble_is_told_without_the_uri_that_may_hold_keys(uri: str) -> None:
    attempts: list[Callable[[], None]] = [
        lambda: RemoteFolder(uri).write("a", b""),
        lambda: RemoteFolder(uri).delete("a"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match=r"from the \w+ folder of metricsPath: check its URI") as raised:
            attempt()
        assert "hunter2" not in str(raised.value)
        assert raised.value.__suppress_context__


def test_whatever_breaks_a_file_system_down_costs_the_events_at_hand_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Exception | None] = [
        ImportError("key:hunter2"),
        RuntimeError("key:hunter2"),
        None,
        ValueError(),
        None,
    ]

    def from_uri(_: str) -> tuple[FileSystem, str]:
        if (error := failures.pop(0)) is not None:
            raise error
        return LocalFileSystem(), str(tmp_path)

    monkeypatch.setattr("pyarrow.fs.FileSystem", SimpleNamespace(from_uri=from_uri))
    sink = FolderSink(RemoteFolder("fsspec+nonsense://key:hunter2@host"))
    for sequence in range(1, 6):
        sink.write([made("c0ffee", sequence)])

    rows = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert sorted((row["sequence"], row["dropped_before"]) for row in rows) == [(3, 2), (5, 1)]
    assert [("ImportError" in text, "ValueError" in text) for text in caplog.messages] == [(True, False), (False, True)]
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("scheme", ["s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs"])
def test_pyarrow_knows_the_schemes_that_the_option_takes_and_names(scheme: str) -> None:
    OPTIONS["metrics_path"].value(f"{scheme}://bucket/events")
    with pytest.raises(OptionError, match=rf"pyarrow has no file system of that scheme, but .*\b{scheme}\b"):
        OPTIONS["metrics_path"].value("nonsense://bucket/events")
    try:
        FileSystem.from_uri(f"{scheme}://")
    except (OSError, pa.ArrowException) as error:
        assert "Unrecognized filesystem type" not in str(error)
