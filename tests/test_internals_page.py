"""docs/internals.md names modules, classes and functions that exist."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parent.parent
PARTS = {path.stem for path in (ROOT / "pyspark_kafka_meta").iterdir()}
NAMES = {name for name in re.findall(r"`(\w+(?:\.\w+)+)`", (ROOT / "docs" / "internals.md").read_text())}


@pytest.mark.parametrize("name", sorted(name for name in NAMES if name.split(".")[0] in PARTS))
def test_what_the_page_names_exists(name: str) -> None:
    resolve_name(f"pyspark_kafka_meta.{name}")
