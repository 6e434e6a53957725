"""A cache of a killed process is reported once, by the next cache of its application. Other caches are not reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_kafka_meta.telemetry import default_folder
from pyspark_kafka_meta.telemetry.liveness_lock import LivenessLock, dead_caches

HOLD = """
import sys
from pathlib import Path
from pyspark_kafka_meta.telemetry import default_folder
from pyspark_kafka_meta.telemetry.liveness_lock import LivenessLock
default_folder.default_root = lambda: Path(sys.argv[1])
lock = LivenessLock("app", "a folder")
sys.stdout.write(",".join(lock.acquire(sys.argv[2])) + "\\n")
sys.stdout.flush()
sys.stdin.read()
"""


class OtherProcess:
    """Holds the lock of a cache until the process is killed."""

    def __init__(self, root: Path, cache_id: str) -> None:
        command = [sys.executable, "-c", HOLD, str(root), cache_id]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.dead_caches = self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=10)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(default_folder, "default_root", lambda: tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def other(root: Path) -> Iterator[OtherProcess]:
    process = OtherProcess(root, "other")
    yield process
    process.kill()


def new_lock(application: str = "app", destination: str = "a folder") -> LivenessLock:
    return LivenessLock(application, destination)


def test_killed_cache_is_reported_once(other: OtherProcess, root: Path) -> None:
    assert other.dead_caches == ""
    assert new_lock().acquire("beside it") == (), "it lives"
    assert dead_caches(root) == set()
    other.kill()
    assert dead_caches(root) == {"other"}

    elsewhere = [new_lock("another app"), new_lock(destination="another folder")]
    assert [lock.acquire(f"elsewhere-{number}") for number, lock in enumerate(elsewhere)] == [(), ()]
    assert new_lock().acquire("next") == ("other",)
    assert new_lock().acquire("after") == ()
    assert dead_caches(root) == set()


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
    assert [path.name.partition(".")[0] for path in (root / "app").iterdir()] == ["next"]


def test_unusable_folder_raises_nothing(root: Path) -> None:
    root.write_text("in the way")
    lock = new_lock()

    assert lock.acquire("one") == ()
    lock.release()
