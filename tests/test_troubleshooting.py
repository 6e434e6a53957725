"""The error texts that docs/troubleshooting.md quotes exist in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pyspark_kafka_meta"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


SYMPTOMS = [row.split(" | ")[0] for row in PAGE.splitlines() if row.startswith("| `")]
QUOTED = [text for symptom in SYMPTOMS for text in re.findall(r"`([^`]+)`", symptom)]


def texts(tree: ast.AST) -> Iterator[str]:
    """Yields every string of the code but docstrings, with `...` for each formatted value."""
    nodes = list(ast.walk(tree))
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.value


TEXTS = [text for path in PACKAGE.rglob("*.py") for text in texts(ast.parse(path.read_text()))]


@pytest.mark.parametrize("symptom", QUOTED)
def test_quoted_error_text_exists_in_the_code(symptom: str) -> None:
    pieces = [re.escape(piece) for piece in symptom.split("...")]
    assert any(re.search(".*".join(pieces), text, re.DOTALL) for text in TEXTS)


def test_error_texts_are_quoted() -> None:
    assert len(QUOTED) > 20
