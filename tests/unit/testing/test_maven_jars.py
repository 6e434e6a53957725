"""Downloads of jars, with a script instead of Java and Ivy."""

from __future__ import annotations

import fcntl
import re
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
mkdir -p "$cache/../jars"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """JAVA_HOME, with an empty cache of jars."""
    monkeypatch.setenv("KAFKAMETA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return tmp_path


def put_java(home: Path, script: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(FAKE_JAVA + script)
    java.chmod(0o755)


def test_a_download_is_told_at_its_start_and_its_end(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_java(home, 'touch "$cache/../jars/name-1.0.jar"\n')

    assert [jar.name for jar in maven_jars.resolve_jars(COORDINATES)] == ["name-1.0.jar"]
    out, errors = capsys.readouterr()
    start, end = errors.splitlines()
    assert re.fullmatch(r"Downloading group:name:1\.0 once, to \S+/cache/jars/name-1\.0-\w+", start)
    assert re.fullmatch(r"Downloaded group:name:1\.0 in \d+ s", end)
    assert out == ""


def test_an_archive_is_a_part_of_its_module_with_a_classifier() -> None:
    module = maven_jars.ivy_module(["group:name:tar.gz:all:1.0"], transitive=False)

    dependency = ElementTree.fromstring(module).find("./dependencies/dependency")
    assert dependency is not None
    assert (dependency.get("rev"), dependency.get("conf")) == ("1.0", "default->master")
    (part,) = dependency
    classifier = "{http://ant.apache.org/ivy/maven}classifier"
    assert part.attrib == {"name": "name", "type": "tar.gz", "ext": "tar.gz", classifier: "all"}


@pytest.mark.usefixtures("home")
def test_nothing_is_told_of_cached_jars(capsys: pytest.CaptureFixture[str]) -> None:
    maven_jars.jar_folder(COORDINATES).mkdir(parents=True)
    maven_jars.resolve_jars(COORDINATES)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("home")
def test_the_wait_for_another_process_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven_jars, "RESOLVE_TIMEOUT_S", 0.1)
    folder = maven_jars.jar_folder(COORDINATES)
    folder.parent.mkdir(parents=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ClusterError, match="Another process has held"):
            maven_jars.resolve_jars(COORDINATES)


def test_a_failed_download_shows_no_end(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_java(home, "echo no route; exit 1\n")
    with pytest.raises(ClusterError, match=r"(?s)Cannot download group:name:1\.0: .*no route"):
        maven_jars.resolve_jars(COORDINATES)
    assert "Downloaded" not in capsys.readouterr().err


def test_a_hanging_download_times_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_java(home, "exec sleep 60\n")
    monkeypatch.setattr(maven_jars, "RESOLVE_TIMEOUT_S", 0.3)
    with pytest.raises(ClusterError, match=r"Downloading group:name:1\.0 took over 0 s: try again"):
        maven_jars.resolve_jars(COORDINATES)
