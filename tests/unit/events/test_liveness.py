"""A cache of a killed process is reported once, by the next cache of its application. Other caches are not reported.
No trouble with the temporary folder fails a cache, or delays it for long."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from pyspark_kafka_meta.events import default_folder
from pyspark_kafka_meta.events.default_folder import DefaultFolder, LivenessLock, dead_caches
from pyspark_kafka_meta.events.sinks import FolderSink, open_folder
from tests.unit.written_events import events_in, made

TIMEOUT_S = 60

HOLD = """
import sys
from pyspark_kafka_meta.events.default_folder import LivenessLock
lock = LivenessLock("app", "a folder")
sys.stdout.write(",".join(lock.acquire(sys.argv[1])) + "\\n")
sys.stdout.flush()
sys.stdin.read()
"""


class OtherProcess:
    """Holds the lock of a cache until the process is killed."""

    def __init__(self, temporary: Path, cache_id: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD, cache_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        assert self._process.stdout is not None
        self.dead_caches = self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(default_folder, "WAIT_S", TIMEOUT_S)
    return default_folder.default_root()


@pytest.fixture
def other(root: Path) -> Iterator[OtherProcess]:
    process = OtherProcess(root.parent, "other")
    yield process
    process.kill()


def new_lock(application: str = "app", destination: str = "a folder") -> LivenessLock:
    return LivenessLock(application, destination)


def test_killed_cache_is_reported_once(other: OtherProcess, root: Path) -> None:
    assert other.dead_caches == ""
    assert new_lock().acquire("beside it") == (), "it lives"
    assert dead_caches() == set()
    other.kill()
    assert dead_caches() == {"other"}

    elsewhere = [new_lock("another app"), new_lock(destination="another folder")]
    assert [lock.acquire(f"elsewhere-{number}") for number, lock in enumerate(elsewhere)] == [(), ()]
    assert new_lock().acquire("next") == ("other",)
    assert new_lock().acquire("after") == ()
    assert dead_caches() == set()


def test_old_folder_is_deleted_only_without_a_living_cache(other: OtherProcess, root: Path) -> None:
    expired = (root / "app").stat().st_mtime - (default_folder.RETENTION_DAYS + 1) * 24 * 3600
    os.utime(root / "app", (expired, expired))
    new_lock("new app").acquire("new")
    assert (root / "app").exists()
    other.kill()
    new_lock("newer app").acquire("newer")
    assert not (root / "app").exists()


def test_closed_cache_is_not_reported_as_dead(root: Path) -> None:
    lock = new_lock()
    lock.acquire("one")
    lock.release()
    lock.release()

    assert new_lock().acquire("next") == ()
    assert [path.name for path in root.rglob("*.*")] == ["next.alive"]


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        pytest.param("tempfile.gettempdir", FileNotFoundError("No usable temporary directory"), id="no folder"),
        pytest.param("os.mkdir", OSError(30, "Read-only file system"), id="read-only"),
        pytest.param("os.open", OSError(28, "No space left on device"), id="full"),
        pytest.param("os.open", MemoryError(), id="no memory"),
        pytest.param("threading.Thread.start", RuntimeError("can't start new thread"), id="no thread"),
    ],
)
def test_unusable_folder_is_none(root: Path, failing: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise error

    lock = new_lock()
    with monkeypatch.context() as broken:
        broken.setattr(failing, fail)
        assert lock.acquire("one") == ()
        assert lock.take_dead() == ()
        assert dead_caches() == set()
        lock.release()


def test_foreign_lock_of_the_folder_does_not_matter(other: OtherProcess, root: Path) -> None:
    other.kill()
    with open_folder(root / "app") as folder:
        fcntl.flock(folder, fcntl.LOCK_EX)

        assert new_lock().acquire("next") == ("other",)


class Hanging(NamedTuple):
    """A temporary folder that hangs until `responds` is set."""

    is_called: threading.Event
    responds: threading.Event

    def end(self) -> None:
        """Let it respond, until the threads of the lock have ended."""
        self.responds.set()
        for thread in threading.enumerate():
            if thread.name == "kafkameta-liveness":
                thread.join(TIMEOUT_S)


@pytest.fixture(params=[(DefaultFolder, "make"), (Path, "rename")], ids=["make", "rename"])
def hanging(root: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    """It hangs before anything is locked, or once the lock file is and has no name yet. Waits for it are short."""
    owner, method = request.param
    hanging, call = Hanging(threading.Event(), threading.Event()), getattr(owner, method)

    def hang(*arguments: Any) -> Any:
        hanging.is_called.set()
        hanging.responds.wait(TIMEOUT_S)
        return call(*arguments)

    monkeypatch.setattr(default_folder, "WAIT_S", 0.001)
    monkeypatch.setattr(owner, method, hang)
    yield hanging
    hanging.end()


def refuse(_: threading.Thread) -> NoReturn:
    raise RuntimeError("can't start new thread")


def test_hanging_folder_delays_it_briefly(other: OtherProcess, hanging: Hanging, wait_for: Callable[..., Any]) -> None:
    other.kill()
    lock = new_lock()
    assert lock.acquire("next") == (), "none yet"
    hanging.responds.set()

    assert wait_for(lock.take_dead) == ("other",)
    assert lock.take_dead() == (), "once"


def test_cache_that_is_closed_while_the_folder_hangs_leaves_no_lock(root: Path, hanging: Hanging) -> None:
    lock = new_lock()
    lock.acquire("one")
    assert hanging.is_called.wait(TIMEOUT_S)
    lock.release()
    hanging.end()

    assert (root / "app").exists()
    assert list(root.rglob("*.alive")) == []
    assert lock.take_dead() == (), "nor takes itself for dead"


def test_lock_is_released_where_no_more_threads_can_be_started(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = new_lock()
    lock.acquire("one")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    lock.release()

    assert (root / "app").exists()
    assert list(root.rglob("*.alive")) == []


def test_lock_is_kept_while_the_folder_hangs_and_no_more_threads_can_be_started(
    root: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = new_lock()
    lock.acquire("one")
    assert hanging.is_called.wait(TIMEOUT_S)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    lock.release()
    hanging.end()

    assert [path.name for path in root.rglob("*.alive")] == ["one.alive"]
    assert dead_caches() == set()
    lock.release()


def test_new_cache_deletes_the_oldest_files_of_ended_caches_alone(
    other: OtherProcess, root: Path, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[..., Any]
) -> None:
    monkeypatch.setattr(default_folder, "MAX_ENDED_FILES", 2)

    def write(cache_id: str, count: int) -> None:
        sink = FolderSink(DefaultFolder("app"))
        for sequence in range(1, 1 + count):
            sink.write([made(cache_id, sequence)])

    def cache_ids() -> list[str]:
        try:
            return sorted(event["cache_id"] for event in events_in(root / "app"))
        except FileNotFoundError:  # deleted since the folder was listed
            return []

    for cache_id in ("other", "ended", "latest"):
        write(cache_id, 2)
    foreign = root / "app" / "foreign.jsonl"
    foreign.touch()
    new_lock().acquire("next")
    wait_for(lambda: len(cache_ids()) == 4)

    assert cache_ids() == ["latest", "latest", "other", "other"]
    assert foreign.exists()
