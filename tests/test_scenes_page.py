"""docs/scenes.md names tests that there are, and no scene is without one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "scenes.md").read_text()
ROWS = [line.strip("|").split(" | ") for line in PAGE.splitlines() if re.match(r"\| \d", line)]


def test_every_test_that_is_named_exists() -> None:
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for source in sources for name in re.findall(r"^def (test_\w+)\(", source, re.MULTILINE)}

    assert set(re.findall(r"`(test_\w+)`", PAGE)) <= there
    assert {name for name in there if name.startswith("test_scene_")} <= set(re.findall(r"`(test_\w+)`", PAGE))


def test_every_scene_has_a_place_and_a_test() -> None:
    assert [int(scene.split(".")[0]) for scene, *_ in ROWS] == list(range(1, 18))
    for scene, where, tests, demo in ROWS:
        assert where.strip(), scene
        assert "`test_" in tests, scene
        assert demo.strip(), scene
