"""The error texts that docs/troubleshooting.md quotes exist in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pyspark_kafka_meta"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


SYMPTOMS = re.findall(r"^- (`[^`]+`(?:`[^`]+`|[^`:])*): ", PAGE, re.MULTILINE)
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


def test_quoted_error_texts_exist_in_the_code() -> None:
    code = "\0".join(text for path in PACKAGE.rglob("*.py") for text in texts(ast.parse(path.read_text())))
    patterns = {quoted: "[^\0]*".join(re.escape(piece) for piece in quoted.split("...")) for quoted in QUOTED}
    assert [quoted for quoted, pattern in patterns.items() if not re.search(pattern, code)] == []
    assert len(QUOTED) > 20
