"""docs/troubleshooting.md quotes this package: each error text there is one that the code can say, each check one that
the doctor makes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pyspark_kafka_meta"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
QUOTED = [
    text
    for row in PAGE.partition("## Spark and Python")[2].splitlines()
    if row.startswith("| `")
    for text in re.findall(r"`([^`]+)`", row.split(" | ")[0])
]


def texts(tree: ast.AST) -> Iterator[str]:
    """Every string in it but docstrings, the outermost first, with `...` for what is put in."""
    nodes = list(ast.walk(tree))
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.value


TEXTS = [text for path in PACKAGE.rglob("*.py") for text in texts(ast.parse(path.read_text()))]


def checks(tree: ast.AST) -> Iterator[str]:
    """The names of checks that can warn or fail: given to one of these functions, maybe as `check` or with `who`."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Call(func=ast.Name("warn" | "fail" | "failure"), args=[name, *_])
                | ast.Assign([ast.Name("check" | "who")], name)
                | ast.Assign([ast.Tuple([ast.Name("check"), *_])], ast.Tuple([name, *_]))
            ):
                yield next(texts(name), "")


@pytest.mark.parametrize("symptom", QUOTED)
def test_the_code_can_say_what_is_quoted(symptom: str) -> None:
    pieces = [re.escape(piece) for piece in symptom.split("...")]
    assert any(re.search(".*".join(pieces), text, re.DOTALL) for text in TEXTS)


def test_there_is_something_quoted() -> None:
    assert len(QUOTED) > 20


def test_the_checks_of_the_doctor_are_those_of_the_code() -> None:
    table = PAGE.partition("## What the doctor finds")[2].partition("\n## ")[0]
    named = [name for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)]
    modules = [ast.parse(path.read_text()) for path in (PACKAGE / "cli" / "checks").glob("*.py")]
    made = {name.split("...")[0] for module in modules for name in checks(module)} - {""}

    assert {name.split("...")[0] for name in named} == made
