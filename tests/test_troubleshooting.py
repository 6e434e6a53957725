"""The error texts and the checks of the doctor that docs/troubleshooting.md quotes exist in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pyspark_kafka_meta"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


def quoted(section: str) -> list[str]:
    """The code spans in the first cells of the section's tables."""
    rows = [row.split(" | ")[0] for row in section.splitlines() if row.startswith("| `")]
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row)]


DOCTOR, _, ERRORS = PAGE.partition("## Spark and Python")


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


def texts_below(folder: Path) -> list[str]:
    return [text for path in folder.rglob("*.py") for text in texts(ast.parse(path.read_text()))]


TEXTS = texts_below(PACKAGE)
DOCTOR_TEXTS = texts_below(PACKAGE / "doctor")


@pytest.mark.parametrize("symptom", quoted(ERRORS))
def test_quoted_error_text_exists_in_the_code(symptom: str) -> None:
    pieces = [re.escape(piece) for piece in symptom.split("...")]
    assert any(re.search(".*".join(pieces), text, re.DOTALL) for text in TEXTS)


def test_error_texts_and_checks_are_quoted() -> None:
    assert len(quoted(ERRORS)) > 20
    assert len(quoted(DOCTOR)) > 10


@pytest.mark.parametrize("check", quoted(DOCTOR))
def test_the_doctor_has_the_checks_that_are_listed(check: str) -> None:
    assert any(text.startswith(check.split("...")[0]) for text in DOCTOR_TEXTS)
