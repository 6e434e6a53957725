"""Progress of a download of jars on stderr, with a script instead of Java and Ivy."""

from __future__ import annotations

import fcntl
import io
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.testing import maven_jars

COORDINATES = ("group:name:1.0",)

FAKE_JAVA = """\
#!/bin/sh
test "$1" = -version && exec echo 'openjdk version "17.0.15"' >&2
cache=$5  # java -cp <jar> org.apache.ivy.Main -cache <folder> ...
mkdir -p "$cache" "$cache/../jars"
"""
STEP = """\
head -c {size_bytes} /dev/zero > "$cache/{total_mb}.jar.part"
mv "$cache/{total_mb}.jar.part" "$cache/{total_mb}.jar"
while [ ! -e "{seen}/{total_mb}" ]; do sleep 0.01; done
"""


class Screen(io.StringIO):
    """Replaces stderr and creates a file named after each size in its text."""

    def __init__(self, folder: Path, is_terminal: bool) -> None:
        super().__init__()
        self._folder = folder
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        for size in re.findall(r"(\d+)\.0 MB", text):
            (self._folder / size).touch()
        return super().write(text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """JAVA_HOME, with an empty cache of jars."""
    monkeypatch.setenv("KAFKAMETA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(maven_jars, "PLAIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(maven_jars, "RESOLVE_TIMEOUT_S", 60.0)
    return tmp_path


def show_on(monkeypatch: pytest.MonkeyPatch, home: Path, is_terminal: bool = False) -> Screen:
    screen = Screen(home, is_terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def put_java(home: Path, script: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(FAKE_JAVA + script)
    java.chmod(0o755)


def put_slow_java(home: Path) -> None:
    """Java whose download waits, after each file, until its total size was shown."""
    steps = [STEP.format(size_bytes=size * 10**6, total_mb=total, seen=home) for size, total in ((3, 3), (4, 7))]
    put_java(home, "".join(steps) + 'touch "$cache/../jars/name-1.0.jar"\n')


def test_line_of_a_download() -> None:
    line = maven_jars.download_line("group:name:1.0", 43_600_000, 11.7)
    assert line == "Downloading group:name:1.0: 43.6 MB after 12 s"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_download_shows_its_growing_size_and_its_end(
    is_terminal: bool, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_slow_java(home)
    screen = show_on(monkeypatch, home, is_terminal)

    assert [jar.name for jar in maven_jars.resolve_jars(COORDINATES)] == ["name-1.0.jar"]

    output = screen.getvalue()
    sizes = [int(size) for size in re.findall(r"Downloading group:name:1\.0: (\d+)\.0 MB", output)]
    assert sizes == sorted(sizes)
    assert set(sizes) >= {3, 7}
    assert re.search(r"Downloaded 7\.0 MB in \d+ s to \S+/cache/jars/name-1\.0-\w+\n$", output)
    assert ("\x1b" in output) is is_terminal
    assert capsys.readouterr().out == ""


def test_an_archive_is_a_part_of_its_module_with_a_classifier() -> None:
    module = maven_jars.ivy_module(["group:name:tar.gz:all:1.0"], transitive=False)

    dependency = ElementTree.fromstring(module).find("./dependencies/dependency")
    assert dependency is not None
    assert (dependency.get("rev"), dependency.get("conf")) == ("1.0", "default->master")
    (part,) = dependency
    classifier = "{http://ant.apache.org/ivy/maven}classifier"
    assert part.attrib == {"name": "name", "type": "tar.gz", "ext": "tar.gz", classifier: "all"}


def test_without_a_terminal_lines_are_rare(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven_jars, "PLAIN_INTERVAL_S", 10.0)
    screen = show_on(monkeypatch, home)
    with maven_jars._progress_line(maven_jars._stderr_console()) as show:
        show("first", 0.0)
        show("too soon", 9.9)
        show("second", 10.1)
        show("too soon", 20.0)
    assert screen.getvalue() == "first\nsecond\n"


def test_cached_jars_show_no_progress(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven_jars.jar_folder(COORDINATES).mkdir(parents=True)
    screen = show_on(monkeypatch, home)
    maven_jars.resolve_jars(COORDINATES)
    assert screen.getvalue() == ""


@pytest.mark.usefixtures("quick_pauses")
def test_waiting_for_another_process_is_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = show_on(monkeypatch, home)
    folder = maven_jars.jar_folder(COORDINATES)
    folder.parent.mkdir(parents=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ClusterError, match="Another process has held"):
            maven_jars.resolve_jars(COORDINATES)
    assert re.match(r"Waiting for another process to download group:name:1\.0: \d+ s\n", screen.getvalue())


def test_failed_download_shows_no_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_java(home, "echo no route; exit 1\n")
    screen = show_on(monkeypatch, home)
    with pytest.raises(ClusterError, match=r"(?s)Cannot download group:name:1\.0: .*no route"):
        maven_jars.resolve_jars(COORDINATES)
    assert "Downloaded" not in screen.getvalue()


def test_hanging_download_times_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_java(home, "exec sleep 60\n")
    monkeypatch.setattr(maven_jars, "RESOLVE_TIMEOUT_S", 0.3)
    show_on(monkeypatch, home)
    with pytest.raises(ClusterError, match=r"Downloading group:name:1\.0 took over 0 s: try again"):
        maven_jars.resolve_jars(COORDINATES)
