"""A cache whose process was killed is told of by the next one beside it, once; one that left, or lives, is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_kafka_meta.telemetry import event_folders
from pyspark_kafka_meta.telemetry.liveness import LivingCaches, dead_caches

HOLD = """
import sys
from pathlib import Path
from pyspark_kafka_meta.telemetry import event_folders
from pyspark_kafka_meta.telemetry.liveness import LivingCaches
event_folders.default_root = lambda: Path(sys.argv[1])
living = LivingCaches("app", "a folder")
sys.stdout.write(",".join(living.enter(sys.argv[2])) + "\\n")
sys.stdout.flush()
sys.stdin.read()
"""


class OtherProcess:
    """Holds a cache until it is killed."""

    def __init__(self, root: Path, cache_id: str) -> None:
        command = [sys.executable, "-c", HOLD, str(root), cache_id]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.told = self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=10)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(event_folders, "default_root", lambda: tmp_path / "root")
    return tmp_path / "root"


@pytest.fixture
def other(root: Path) -> Iterator[OtherProcess]:
    process = OtherProcess(root, "other")
    yield process
    process.kill()


def living(application: str = "app", outlet: str = "a folder") -> LivingCaches:
    return LivingCaches(application, outlet)


def test_killed_cache_is_told_of_once(other: OtherProcess, root: Path) -> None:
    assert other.told == ""
    assert living().enter("beside it") == (), "it lives"
    assert dead_caches(root) == set()
    other.kill()
    assert dead_caches(root) == {"other"}

    elsewhere = [living("another app"), living(outlet="another folder")]
    assert [one.enter(f"elsewhere-{number}") for number, one in enumerate(elsewhere)] == [(), ()]
    assert living().enter("next") == ("other",)
    assert living().enter("after") == ()
    assert dead_caches(root) == set()


def test_folder_of_a_cache_that_lives_is_not_removed_as_old_but_that_of_a_dead_one_is(
    other: OtherProcess, root: Path
) -> None:
    silent = (root / "app").stat().st_mtime - (event_folders.KEPT_DAYS + 1) * 24 * 3600
    os.utime(root / "app", (silent, silent))
    living("new app").enter("new")
    assert (root / "app").exists()
    other.kill()
    living("newer app").enter("newer")
    assert not (root / "app").exists()


def test_cache_that_left_is_not_told_of_as_dead(root: Path) -> None:
    one = living()
    one.enter("one")
    one.leave()
    one.leave()

    assert living().enter("next") == ()
    assert [path.name.partition(".")[0] for path in (root / "app").iterdir()] == ["next"]


def test_folder_that_cannot_be_used_costs_nothing(root: Path) -> None:
    root.write_text("in the way")
    one = living()

    assert one.enter("one") == ()
    one.leave()
