"""Event files have names that sort by age, are bounded, hold only whole lines, and error texts contain no key."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pyarrow as pa
import pytest
from pyarrow.fs import FileSystem, LocalFileSystem

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.events import default_folder, sinks
from pyspark_kafka_meta.events.default_folder import RETENTION_DAYS, DefaultFolder, StoredFile, beyond_limits
from pyspark_kafka_meta.events.event import Event
from pyspark_kafka_meta.events.sinks import CountedSink, Folder, FolderSink, LocalFolder, LossCount, RemoteFolder
from pyspark_kafka_meta.options import OPTIONS
from pyspark_kafka_meta.tables.event_file_reader import EventFolder, next_numbers
from tests.unit.written_events import events_in, made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "events"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path


def sink_of(folder: Folder) -> CountedSink:
    return CountedSink(FolderSink(folder))


def written(folder: Path) -> list[tuple[int, int]]:
    """Sequence and reported losses of each event, in the order of the files and lines."""
    return [(row["sequence"], row["dropped_before"]) for row in events_in(folder)]


def numbers(folder: Path) -> list[int]:
    """The numbers of the files. The folder holds files of one writer and nothing else."""
    names = [re.fullmatch(r"events-([0-9a-f]{32})-([0-9]{8})\.jsonl", path.name) for path in folder.iterdir()]
    files = [name.groups() for name in names if name is not None]
    assert len(files) == len(names)
    assert len({writer for writer, _ in files}) <= 1
    return sorted(int(number) for _, number in files)


def test_failed_write_begins_a_new_writer_id(folder: Path) -> None:
    sink = sink_of(LocalFolder(folder))
    sink.write([made("c0ffee", 1), made("c0ffee", 2)])
    folder.rename(folder.with_name("aside"))
    folder.write_text("in the way")
    sink.write([made("c0ffee", 3), made("c0ffee", 4)])
    sink.write([made("c0ffee", 5)])
    folder.unlink()
    folder.with_name("aside").rename(folder)
    sink.write([made("c0ffee", 6)])
    sink.write([made("c0ffee", 7)])

    assert sorted(path.name[-14:] for path in folder.iterdir()) == [
        "00000000.jsonl",
        "00000000.jsonl",
        "00000001.jsonl",
    ]
    assert len({path.name[:-14] for path in folder.iterdir()}) == 2
    assert sorted(written(folder)) == [(1, 0), (2, 0), (6, 3), (7, 0)]


def test_stream_that_read_a_file_of_a_failed_write_reads_all_later_files(folder: Path) -> None:
    class LateFailingFolder(LocalFolder):
        """The first write fails after the file has its name."""

        def write(self, name: str, content: bytes) -> None:
            is_first = not folder.exists()
            super().write(name, content)
            if is_first:
                raise OSError("no s3:DeleteObject")

    sink = sink_of(LateFailingFolder(folder))
    sink.write([made("c0ffee", 1)])
    read = next_numbers(EventFolder(str(folder)).files())
    sink.write([made("c0ffee", 2)])

    assert sorted(written(folder)) == [(1, 0), (2, 1)], "nothing is overwritten, though an event counts as lost"
    assert [file.number for file in EventFolder(str(folder)).files() if file.writer_id not in read] == [0]


def test_limits_hold_for_all_writers_of_a_sink(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(sinks, "MAX_FILES", 2)
    sink = sink_of(LocalFolder(folder))
    for sequence in range(1, 6):
        sink.write([made("c0ffee", sequence)])
        with monkeypatch.context() as full:
            full.setattr(LocalFolder, "write", refuse)
            sink.write([made("c0ffee", 100 + sequence)])

    assert sorted(written(folder)) == [(4, 1), (5, 1)]


def test_events_that_do_not_fit_in_memory_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Event) -> NoReturn:
        raise MemoryError

    sink = sink_of(LocalFolder(folder))
    with monkeypatch.context() as full:
        full.setattr(Event, "to_json", refuse)
        sink.write([made("c0ffee", 1), made("c0ffee", 2)])
    with monkeypatch.context() as full:
        full.setattr("os.rename", lambda *_, **__: refuse(made("c0ffee", 3)))
        sink.write([made("c0ffee", 3)])
    sink.write([made("c0ffee", 4)])

    assert written(folder) == [(4, 3)]
    assert len(list(folder.iterdir())) == 1, "no unfinished file"


def test_losses_that_a_lost_event_reports_are_counted_again() -> None:
    losses = LossCount()
    losses.add([made("c0ffee", 1), made("c0ffee", 2)])
    losses.add(losses.report_in([made("c0ffee", 3), made("c0ffee", 4)]))

    assert [event.dropped_before for event in losses.report_in([made("c0ffee", 5), made("c0ffee", 6)])] == [4, 0]
    assert [event.dropped_before for event in losses.report_in([made("c0ffee", 7)])] == [0]


def test_removed_folder_is_created_again(folder: Path) -> None:
    sink = sink_of(LocalFolder(folder))
    sink.write([made("c0ffee", 1)])
    shutil.rmtree(folder)
    sink.write([made("c0ffee", 2)])

    assert numbers(folder) == [1]


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 2), ("MAX_BYTES", 4000)])
def test_writer_keeps_its_newest_files(folder: Path, limit: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, limit, value)
    sink, other = sink_of(LocalFolder(folder)), sink_of(LocalFolder(folder.with_name("other")))
    other.write([made("c0ffee", 1)])
    [other_file] = other_files = list(folder.with_name("other").iterdir())
    size = other_file.stat().st_size
    assert 2 * size < 4000 < 3 * size
    for sequence in range(1, 6):
        sink.write([made("c0ffee", sequence)])

    assert numbers(folder) == [3, 4]
    assert all(path.exists() for path in other_files)


def test_newest_file_stays_even_above_the_size_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "MAX_BYTES", 10)
    sink = sink_of(LocalFolder(folder))
    sink.write([made("c0ffee", 1)])
    assert written(folder) == [(1, 0)]
    sink.write([made("c0ffee", 2)])

    assert written(folder) == [(2, 0)]


def test_missing_old_file_is_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sinks, "MAX_FILES", 1)
    sink = sink_of(LocalFolder(folder))
    sink.write([made("c0ffee", 1)])
    shutil.rmtree(folder)
    sink.write([made("c0ffee", 2)])

    assert (numbers(folder), caplog.records) == ([1], [])


def test_symbolic_link_as_folder_is_refused(folder: Path) -> None:
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    sink_of(LocalFolder(folder)).write([made("c0ffee", 1)])

    assert list(elsewhere.iterdir()) == []


def test_symbolic_link_in_the_way_of_a_file_is_not_followed(folder: Path) -> None:
    victim = folder.with_name("victim")
    victim.write_text("mine")
    folder.mkdir()
    (folder / ".one.jsonl.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        LocalFolder(folder).write("one.jsonl", b"{}")

    assert victim.read_text() == "mine"


@pytest.mark.parametrize("application", ["../../x", "..", "/x", "a/b", "\0"])
def test_default_folder_is_below_its_root_for_any_application_name(temporary: Path, application: str) -> None:
    sink_of(DefaultFolder(application)).write([made("c0ffee", 1)])
    root = temporary / f"kafkameta-events-{os.getuid()}"

    assert list(temporary.iterdir()) == [root]
    [folder] = root.iterdir()
    assert numbers(folder) == [0]


@pytest.mark.parametrize("which", ["the root", "the application's folder"])
@pytest.mark.parametrize("trap", ["a link", "open to others", "somebody else's", "a file"])
def test_default_folder_that_is_not_private_is_not_used(
    temporary: Path, which: str, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    root = temporary / f"kafkameta-events-{os.getuid()}"
    set_up = root if which == "the root" else root / "app"
    sink = sink_of(DefaultFolder("app"))
    if set_up != root:
        root.mkdir(mode=0o700)
    if trap == "a link":
        set_up.symlink_to(elsewhere)
    elif trap == "a file":
        set_up.write_text("")
    else:
        set_up.mkdir(mode=0o700)
        set_up.chmod(0o770 if trap == "open to others" else 0o700)
    if trap == "somebody else's":
        monkeypatch.setattr(os, "getuid", lambda: root.stat().st_uid + 1)
    sink.write([made("c0ffee", 1)])

    assert list(temporary.rglob("*.jsonl")) == []


def test_folders_without_events_for_a_week_are_deleted(temporary: Path) -> None:
    root = temporary / f"kafkameta-events-{os.getuid()}"
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    for name in ("old", "young"):
        sink_of(DefaultFolder(name)).write([made("c0ffee", 1)])
    for name, days in (("old", RETENTION_DAYS + 1), ("young", RETENTION_DAYS - 1)):
        modified = (root / name).stat().st_mtime - days * 24 * 3600
        os.utime(root / name, (modified, modified))
    (root / "link").symlink_to(elsewhere)
    sink_of(DefaultFolder("young")).write([made("c0ffee", 2)])
    assert (root / "old").exists(), "only a new application deletes old folders"
    sink_of(DefaultFolder("new")).write([made("c0ffee", 1)])

    assert sorted(path.name for path in root.iterdir()) == ["link", "new", "young"]
    assert elsewhere.exists()


@pytest.mark.parametrize(
    ("limits", "deleted"),
    [
        pytest.param({}, ["a"], id="a week"),
        pytest.param({"MAX_ENDED_FILES": 2}, ["a", "b"], id="files"),
        pytest.param({"MAX_ENDED_BYTES": 29}, ["a", "b"], id="bytes"),
        pytest.param({"MAX_ENDED_BYTES": 9}, ["a", "b", "c", "d"], id="a file that is too large"),
    ],
)
def test_oldest_files_are_deleted(limits: dict[str, int], deleted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(default_folder, name, value)
    now, day = 1_700_000_000.0, 24 * 3600
    files = [StoredFile(now - days * day, name, 10) for name, days in zip("dacb", (1, 8, 2, 6), strict=True)]

    assert [file.name for file in beyond_limits(files, now)] == deleted


def test_old_folder_that_another_deletes_costs_no_event(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iterdir = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([path / "removed", *iterdir(path)]))
    sink_of(DefaultFolder("new")).write([made("c0ffee", 1)])

    assert len(list(temporary.rglob("*.jsonl"))) == 1


def test_newest_files_are_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafka_meta.events.sinks.MAX_FILES", 2)
    sink = CountedSink(FolderSink(RemoteFolder(f"file://{tmp_path}")))
    for sequence in range(1, 4):
        sink.write([made("c0ffee", sequence)])

    assert sorted(path.name[-14:] for path in tmp_path.iterdir()) == ["00000001.jsonl", "00000002.jsonl"]


def test_missing_old_remote_file_is_ignored(tmp_path: Path) -> None:
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
