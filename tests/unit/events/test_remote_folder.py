"""Remote folders hold the same files as local ones, and error texts contain no key."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pyarrow as pa
import pytest
from pyarrow.fs import FileSystem, LocalFileSystem

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.events.sinks import CountedSink, FolderSink, RemoteFolder
from pyspark_kafka_meta.options import OPTIONS
from tests.unit.written_events import made


def test_newest_files_are_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafka_meta.events.sinks.MAX_FILES", 2)
    sink = CountedSink(FolderSink(RemoteFolder(f"file://{tmp_path}")))
    for sequence in range(1, 4):
        sink.write([made("c0ffee", sequence)])

    assert sorted(path.name[-14:] for path in tmp_path.iterdir()) == ["00000001.jsonl", "00000002.jsonl"]


def test_missing_old_file_is_ignored(tmp_path: Path) -> None:
    RemoteFolder(f"file://{tmp_path}").delete("a")


@pytest.mark.parametrize("error", [OSError("no s3:DeleteObject"), MemoryError(), RuntimeError("fsspec")])
def test_failed_move_leaves_no_file(tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def move(*_: str) -> NoReturn:
        raise error

    files = LocalFileSystem()
    unmovable = SimpleNamespace(open_output_stream=files.open_output_stream, delete_file=files.delete_file, move=move)
    monkeypatch.setattr("pyarrow.fs.FileSystem", SimpleNamespace(from_uri=lambda _: (unmovable, str(tmp_path))))
    with pytest.raises(OSError, match="from the s3 folder"):
        RemoteFolder("s3://bucket/events").write("a", b"{}")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("uri", ["s3://key:hunter2@", "nonsense://key:hunter2@host/folder", "gs://key:hunter2@a b"])
def test_error_text_does_not_contain_the_uri(uri: str) -> None:
    attempts: list[Callable[[], None]] = [
        lambda: RemoteFolder(uri).write("a", b""),
        lambda: RemoteFolder(uri).delete("a"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match=r"from the \w+ folder of eventsPath: check its URI") as raised:
            attempt()
        assert "hunter2" not in str(raised.value)
        assert raised.value.__suppress_context__


def test_any_error_of_a_file_system_is_logged_once_and_its_events_are_counted(
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
    sink = CountedSink(FolderSink(RemoteFolder("fsspec+nonsense://key:hunter2@host")))
    for sequence in range(1, 6):
        sink.write([made("c0ffee", sequence)])

    rows = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert sorted((row["sequence"], row["dropped_before"]) for row in rows) == [(3, 2), (5, 1)]
    assert [("ImportError" in text, "ValueError" in text) for text in caplog.messages] == [(True, False), (False, True)]
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("scheme", ["s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs"])
def test_pyarrow_knows_the_schemes_that_the_option_accepts(scheme: str) -> None:
    OPTIONS["eventsPath"].value(f"{scheme}://bucket/events")
    with pytest.raises(OptionError, match=rf"pyarrow has no file system of that scheme, but .*\b{scheme}\b"):
        OPTIONS["eventsPath"].value("nonsense://bucket/events")
    try:
        FileSystem.from_uri(f"{scheme}://")
    except (OSError, pa.ArrowException) as error:
        assert "Unrecognized filesystem type" not in str(error)
