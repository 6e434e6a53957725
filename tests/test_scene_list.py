"""tests/scenes.toml lists every scene of client metadata, and names tests that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

TESTS = Path(__file__).parent
SCENES = tomllib.loads((TESTS / "scenes.toml").read_text())["scene"]


def test_scenes_name_tests_that_exist_and_all_scene_tests() -> None:
    sources = [path.read_text() for path in TESTS.rglob("test_*.py")]
    existing = {name for source in sources for name in re.findall(r"^def (test_\w+)\(", source, re.MULTILINE)}
    named = {name for scene in SCENES for name in scene["tests"]}

    assert named <= existing
    assert {name for name in existing if name.startswith("test_scene_")} <= named


def test_every_scene_says_where_to_see_it_and_has_a_test() -> None:
    assert [scene["number"] for scene in SCENES] == list(range(1, 18))
    for scene in SCENES:
        assert all(scene[field] for field in ("title", "see", "demo", "tests")), scene
