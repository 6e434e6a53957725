"""docs/troubleshooting.md quotes this package: each error text there is one that the code can say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
QUOTED = [
    text
    for row in PAGE.partition("## Spark and Python")[2].splitlines()
    if row.startswith("| `")
    for text in re.findall(r"`([^`]+)`", row.split(" | ")[0])
]


def texts(path: Path) -> Iterator[str]:
    """Every string of a module, with `...` for what is put in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


TEXTS = [text for path in (ROOT / "pyspark_kafka_meta").rglob("*.py") for text in texts(path)]


@pytest.mark.parametrize("symptom", QUOTED)
def test_the_code_can_say_what_is_quoted(symptom: str) -> None:
    pieces = [re.escape(piece) for piece in symptom.split("...")]
    assert any(re.search(".*".join(pieces), text, re.DOTALL) for text in TEXTS)


def test_there_is_something_quoted() -> None:
    assert len(QUOTED) > 20
