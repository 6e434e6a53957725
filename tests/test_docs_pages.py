"""What the pages show can be used: links lead somewhere, Python compiles, commands parse, options and fields exist.

That the Python of the README runs, and the SQL of docs/queries.md, is for other tests.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest
import typer.main

from pyspark_kafka_meta import __all__ as exported
from pyspark_kafka_meta.cli.main import app
from pyspark_kafka_meta.options import ALL_OPTIONS
from pyspark_kafka_meta.options.unsupported import INSTEAD, UNUSED
from pyspark_kafka_meta.tables.table_schemas import ROWS, struct_type

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "examples" / "README.md"]
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"^ {4}(?:\$ )?(?:\w+=\S+ )*((?:kafkameta|make|python|spark-submit) .+)$", re.MULTILINE)
INLINE = re.compile(r"`((?:kafkameta|make|python -m) [^`.]+)`")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_links_and_pictures_are_there(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if not re.match(r"https?:", link):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@each_page
def test_files_that_are_named_are_there(page: Path) -> None:
    named = re.findall(r"`((?:tests|examples|benchmarks|docs)/[\w/.-]+)`", page.read_text())
    assert [one for one in named if not (ROOT / one).exists()] == []


@each_page
def test_python_compiles_and_asks_for_what_the_package_has(page: Path) -> None:
    for language, code in BLOCK.findall(page.read_text()):
        if language == "python":
            tree = ast.parse(code)
            attributes = {
                (ast.unparse(one.value), one.attr) for one in ast.walk(tree) if isinstance(one, ast.Attribute)
            }
            assert {name for module, name in attributes if module == "kafkameta"} <= set(exported)


def commands(page: Path) -> Iterator[list[str]]:
    text = page.read_text()
    text += "".join(indent(code, "    ") for language, code in BLOCK.findall(text) if language == "sh")
    for line in SHELL.findall(text.replace("\\\n", " ")) + INLINE.findall(text):
        yield shlex.split(line.split(" #")[0])


@each_page
def test_commands_are_understood(page: Path) -> None:
    for program, *arguments in commands(page):
        if program == "kafkameta":
            assert_understood(*arguments)
        elif program == "make":
            target = next(one for one in arguments if "=" not in one)
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
        elif arguments[0] == "-m":
            module = ROOT / arguments[1].replace(".", "/")
            assert module.with_suffix(".py").exists() or arguments[1] in ("venv", "pip", "pytest"), arguments
        else:
            programs = [one for one in arguments if one.endswith(".py")]
            assert [one for one in programs if "/" in one and not (ROOT / one).exists()] == []


def assert_understood(name: str, *arguments: str) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    known = {option for one in commands[name].params for option in one.opts}
    assert {one for one in arguments if one.startswith("--")} <= known


@each_page
def test_options_of_clients_exist_or_are_refused(page: Path) -> None:
    known = {one.name for one in ALL_OPTIONS.values()} | {f"kafka.{name}" for name in (*UNUSED, *INSTEAD)}
    assert set(re.findall(r"`(kafka\.[a-z.]+[a-z])`", page.read_text())) <= known


def test_fields_that_tuning_looks_at_exist() -> None:
    text = (ROOT / "docs" / "tuning.md").read_text() + (ROOT / "docs" / "events.md").read_text().split("## Outcomes")[0]
    known = {name for row in ROWS.values() for name in struct_type(row).names} | set(
        re.findall(r"^\| `(\w+)`", text, re.M)
    )
    named = set(re.findall(r"`([a-z]+_[a-z_]+)`", (ROOT / "docs" / "tuning.md").read_text()))
    assert named - known - {"refresh_events"} == set()
