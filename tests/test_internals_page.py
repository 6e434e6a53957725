"""docs/internals.md and its picture show the house as it is: its floors, in their order, and names that exist."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name
from xml.etree import ElementTree

import pytest

from tests.test_architecture import TABLE

ROOT = Path(__file__).parent.parent
NAMES = sorted(set(re.findall(rf"`((?:{'|'.join(TABLE)})\.\w[\w.]*)`", (ROOT / "docs" / "internals.md").read_text())))


def heights() -> dict[str, int]:
    """Of each floor in the picture, from its foot."""
    texts = ElementTree.parse(ROOT / "docs" / "images" / "house.svg").iter("{http://www.w3.org/2000/svg}text")
    return {
        re.sub(r"/$|\.py$", "", one.text or ""): -int(one.attrib["y"]) for one in texts if one.get("class") == "floor"
    }


def test_the_picture_has_every_floor_above_those_that_it_may_import() -> None:
    drawn = heights()

    assert drawn.keys() == TABLE.keys()
    below = {floor: {one.split(".")[0] for one in allowed} for floor, allowed in TABLE.items() if floor != "cli"}
    assert [(floor, one) for floor, allowed in below.items() for one in allowed if drawn[one] >= drawn[floor]] == []


@pytest.mark.parametrize("name", NAMES)
def test_what_the_page_names_exists(name: str) -> None:
    resolve_name(f"pyspark_kafka_meta.{name}")


def test_the_page_names_something() -> None:
    assert len(NAMES) > 30
