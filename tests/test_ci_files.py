"""Workflows, Makefile and setup.cfg agree on releases, what a workflow uses is pinned, and a release is refused.

By a wrong tag, a placeholder, a changelog without the version, or a link that leads nowhere on a package index.
"""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs import release
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


def owner() -> str:
    """Of the repository, in setup.cfg."""
    return release.metadata(ROOT)["url"].split("/")[-2]


def test_a_wheel_that_no_python_tried_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_python", lambda _: None)
    monkeypatch.setattr(installed, "requirements", lambda _: [])
    with pytest.raises(SystemExit, match=r"none of Python 3\.11, 3\.12 is on the PATH"):
        installed.main(Path("any.whl"), "3.11", "3.12")


def test_a_release_checks_the_tag_before_it_builds() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    check, *builds = [step["run"] for step in jobs["build"]["steps"] if "run" in step]

    assert 'docs.release "$GITHUB_REF_NAME" > build/notes.md' in check
    assert builds == ["make dist sbom"]
    assert {name: job.get("needs") for name, job in jobs.items()} == {
        "build": None,
        "publish": "build",
        "release": "publish",
        "site": "publish",
    }


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """The files that a release checks, ready for v0.2.0."""
    for name in release.WITH_PLACEHOLDER:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = (ROOT / name).read_text().replace(owner(), "someone")
        (tmp_path / name).write_text(re.sub(r"^version = .*", "version = 0.2.0", text, flags=re.MULTILINE))
    news = "- [News](docs/news.md)\n  of a year.\n  - More.\n"
    sections = f"## Unreleased\n\n## 0.2.0 - 2030-01-31\n\n{news}\n## 0.1.0 - 2029-01-31\n\nOld.\n"
    (tmp_path / "CHANGELOG.md").write_text(sections)
    return tmp_path


def test_notes_of_a_release_are_the_section_of_its_version(ready: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release.main("v0.2.0", ready)

    news = "https://github.com/someone/pyspark-kafka-meta/blob/v0.2.0/docs/news.md"
    assert capsys.readouterr().out == f"- [News]({news}) of a year.\n  - More.\n"


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        ("setup.cfg", "version = 0.2.0", "version = 0.3.0", "the tag is v0.2.0, but setup.cfg has version 0.3.0; "),
        ("CHANGELOG.md", "## 0.2.0 - 2030-01-31", "## 0.2.0", "CHANGELOG.md has no section '## 0.2.0 - <date>'"),
        *((name, "someone", release.PLACEHOLDER, f"{name} has the placeholder") for name in release.WITH_PLACEHOLDER),
    ],
)
def test_what_is_not_ready_is_not_released(ready: Path, name: str, old: str, new: str, problem: str) -> None:
    text = (ready / name).read_text()
    assert old in text
    (ready / name).write_text(text.replace(old, new))

    with pytest.raises(SystemExit, match=f"^not released: {re.escape(problem)}"):
        release.main("v0.2.0", ready)


@pytest.fixture
def distribution(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py says of the distribution."""
    said: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", lambda **given: said.update(given))
    runpy.run_path(str(ROOT / "setup.py"))
    return said


def test_links_of_the_page_on_an_index_lead_into_the_repository_at_the_tag(distribution: dict[str, Any]) -> None:
    url, version = release.metadata(ROOT)["url"], release.metadata(ROOT)["version"]
    links = re.findall(r"(!?)\[[^]]*\]\(([^)\s]+)\)", distribution["long_description"])
    inside = [(picture, link) for picture, link in links if link.startswith(url)]

    assert {link for _, link in links if not link.startswith("https://")} == set()
    for picture, link in inside:
        path = link.removeprefix(f"{url}/{'raw' if picture else 'blob'}/v{version}/").partition("#")[0]
        assert (ROOT / path).is_file(), link
    assert len(inside) > 20
    assert distribution["project_urls"]["Issues"] == f"{url}/issues"


def test_supported_pythons_are_tested() -> None:
    supported = re.findall(r":: (3\.\d+)$", release.metadata(ROOT)["classifiers"], re.MULTILINE)

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


def test_the_least_coverage_is_the_one_that_a_page_names() -> None:
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["report"]["fail_under"]

    assert f"fails below {least} %" in (ROOT / "CONTRIBUTING.md").read_text()
