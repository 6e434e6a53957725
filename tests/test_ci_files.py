"""Workflows, Makefile and setup.cfg agree on releases, what a workflow uses is pinned, and a wrong tag fails early."""

from __future__ import annotations

import os
import re
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

import pyspark_kafka_meta
from tests.compat import installed

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONS = [*WORKFLOWS, *(ROOT / ".github" / "actions").glob("*/action.yml")]


def matrix(job: str) -> dict[str, list[str]]:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    return dict(jobs[job]["strategy"]["matrix"])


def make_variable(name: str) -> str:
    (value,) = re.findall(rf"^{name} \??:?= (.*)$", MAKEFILE, re.MULTILINE)
    return str(value)


def test_a_wheel_that_no_python_tried_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_python", lambda _: None)
    monkeypatch.setattr(installed, "requirements", lambda _: [])
    with pytest.raises(SystemExit, match=r"none of Python 3\.11, 3\.12 is on the PATH"):
        installed.main(Path("any.whl"), "3.11", "3.12")


def test_a_release_compares_the_tag_before_it_builds() -> None:
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]["build"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    check = commands[0]

    assert commands[1:] == ["make dist"]
    for tag, code in ((f"v{pyspark_kafka_meta.__version__}", 0), ("v9.9.9", 1)):
        environment = {**os.environ, "GITHUB_REF_NAME": tag}
        assert subprocess.run(["sh", "-c", check], cwd=ROOT, env=environment, check=False).returncode == code


def test_supported_pythons_are_tested() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    supported = re.findall(r":: (3\.\d+)$", setup["metadata"]["classifiers"], re.MULTILINE)

    assert matrix("test")["python"] == supported
    assert make_variable("PYTHONS").split() == supported


def test_releases_of_kafka_in_the_makefile_are_tested() -> None:
    assert matrix("kafka")["release"] == make_variable("RELEASES").split()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_write_nothing(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (?!\./)(.*)", path.read_text())

    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []
