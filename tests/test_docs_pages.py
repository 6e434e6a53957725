"""The pages are usable: links lead somewhere, Python compiles, commands, options, fields, names and the error texts of
docs/troubleshooting.md exist. tests/scenes.toml and tests/parity.toml are complete, and name tests that exist.

tests/test_readme.py runs the README's Python, tests/spark/test_queries.py that of docs/observe.md with its SQL.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from textwrap import indent
from typing import Any

import pytest
import typer.main

from docs import site_hooks
from pyspark_kafka_meta import __all__ as exported
from pyspark_kafka_meta.events.event import REASONS, EventKind
from pyspark_kafka_meta.options import OPTIONS as ROWS_OF_OPTIONS
from pyspark_kafka_meta.options.unknown_options import refused
from pyspark_kafka_meta.tables.rows import ROWS, struct_type
from pyspark_kafka_meta.tools.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/README.md")]
SITE_PAGES = sorted({*ROOT.glob("docs/*.md"), *(path for path in site_hooks.PAGES if path.suffix == ".md")})
CODE_WIDTH = 80
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"^ {4}(?:\$ )?(?:\w+=\S+ )*((?:kafkameta|make|python|spark-submit) .+)$", re.MULTILINE)
INLINE = re.compile(r"`((?:kafkameta|make|python -m) [^`.]+)`")
PARTS = {path.stem for path in (ROOT / "pyspark_kafka_meta").iterdir()}
OPTIONS = {*ROWS_OF_OPTIONS} | {f"kafka.{name}" for name in (*refused("kafka"), *refused("librdkafka"))}
QUALIFIED_NAMES = set(re.findall(r"`(\w+(?:\.\w+)+)`", (ROOT / "docs" / "internals.md").read_text()))
for_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@for_each_page
def test_linked_files_and_anchors_exist(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if not re.match(r"https?:", link):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", SITE_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_of_the_site(page: Path) -> None:
    """`make site` refuses others."""
    paths = {link.partition("#")[0] for link in LINK.findall(page.read_text()) if not re.match(r"https?:|#", link)}
    targets = {path: (page.parent / path).resolve() for path in paths}
    in_docs = {path for path, target in targets.items() if ROOT / "docs" in target.parents and target.suffix != ".py"}
    assert {path for path in targets.keys() - in_docs if targets[path] not in site_hooks.PAGES} == set()


@pytest.mark.parametrize("page", SITE_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_fit_the_site(page: Path) -> None:
    """A longer line of a code block is cut at the right."""
    lines = re.findall(
        r"^ {4}(?:\$ )?((?:\w+=\S+ )*(?:docker|kafkameta|make|pip|python|spark-submit) .+)$", page.read_text(), re.M
    )
    assert [line for line in lines if " # " in line and len(line) > CODE_WIDTH] == []


@for_each_page
def test_only_contributors_install_a_clone(page: Path) -> None:
    assert page.name == "CONTRIBUTING.md" or not re.search(r"pip install '?\.", page.read_text())


@for_each_page
def test_named_files_exist(page: Path) -> None:
    names = re.findall(r"`((?:tests|examples|benchmarks|docs)/[\w/.-]+)`", page.read_text())
    assert [name for name in names if not (ROOT / name).exists()] == []


@for_each_page
def test_python_compiles_and_uses_exported_names(page: Path) -> None:
    for language, code in BLOCK.findall(page.read_text()):
        if language == "python":
            nodes = ast.walk(ast.parse(code))
            attributes = {(ast.unparse(node.value), node.attr) for node in nodes if isinstance(node, ast.Attribute)}
            assert {name for module, name in attributes if module == "kafkameta"} <= set(exported)


def commands(page: Path) -> Iterator[list[str]]:
    text = page.read_text()
    text += "".join(indent(code, "    ") for language, code in BLOCK.findall(text) if language == "sh")
    for line in SHELL.findall(text.replace("\\\n", " ")) + INLINE.findall(text):
        yield shlex.split(line.split(" #")[0])


@for_each_page
def test_commands_exist(page: Path) -> None:
    for program, *arguments in commands(page):
        if program == "kafkameta":
            assert_parameters_exist(*arguments)
        elif program == "make":
            target = next(argument for argument in arguments if "=" not in argument)
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
        elif arguments[0] == "-m":
            module = ROOT / arguments[1].replace(".", "/")
            is_program = module.with_suffix(".py").exists() or (module / "__main__.py").exists()
            assert is_program or arguments[1] in ("venv", "pip", "pytest"), arguments
        else:
            programs = [argument for argument in arguments if argument.endswith(".py")]
            assert [path for path in programs if "/" in path and not (ROOT / path).exists()] == []


@cache
def commands_of_cli() -> dict[str, Any]:
    return typer.main.get_command(app).commands  # type: ignore[attr-defined, no-any-return]


def assert_parameters_exist(name: str, *arguments: str) -> None:
    known = {option for parameter in commands_of_cli()[name].params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= known


@for_each_page
def test_client_options_exist_or_are_refused(page: Path) -> None:
    names = set(re.findall(r"`(kafka\.[a-z.]+[a-z])`", page.read_text()))
    assert [name for name in names - OPTIONS if not is_code(name)] == []


def is_code(name: str) -> bool:
    try:
        resolve_name(f"pyspark_kafka_meta.{name}")
    except (ImportError, AttributeError):
        return False
    return True


def test_the_notebook_shows_its_table_and_its_plot() -> None:
    notebook = json.loads((ROOT / "examples" / "refreshes_during_a_rolling_restart.ipynb").read_text())
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert any("bootstrap" in "".join(output.get("text", "")) for output in outputs)
    assert any("image/png" in output.get("data", ()) for output in outputs)


def test_fields_in_tuning_exist() -> None:
    columns = {name for row in ROWS.values() for name in struct_type(row).names}
    tuning = (ROOT / "docs" / "options.md").read_text().partition("\n## Tuning\n")[2]
    names = set(re.findall(r"`([a-z]+_[a-z_]+)`", tuning))
    assert names
    assert names <= columns | {*EventKind, *REASONS, "refresh_events"}


def test_names_in_internals_exist() -> None:
    names = {name for name in QUALIFIED_NAMES - OPTIONS if name.split(".")[0] in PARTS}
    assert [name for name in names if not is_code(name)] == []
    assert len(names) > 50


def test_modules_and_packages_in_the_plan_of_the_house_exist() -> None:
    plan = (ROOT / "docs" / "images" / "house.svg").read_text()
    names = set(re.findall(r'class="package"[^>]*>([\w./]+)<', plan))
    assert {name for name in names if not any((ROOT / "pyspark_kafka_meta").rglob(name))} == set()


def test_variables_that_make_tests_longer_are_read_by_a_test() -> None:
    names = set(re.findall(r"KAFKAMETA_\w+", (ROOT / "CONTRIBUTING.md").read_text()))
    read = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    assert {name for name in names if name not in read} == set()


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


SUITES = {"MB": 36, "R": 22, "C": 13, "D": 2, "O": 11, "K": 5, "J": 3, "S": 14}
VERDICTS = {"same", "better", "differs", "not_possible"}
CASES: dict[str, dict[str, Any]] = tomllib.loads((TESTS / "parity.toml").read_text())
COMPARED = "\n".join(file.read_text() for file in sorted((TESTS / "spark").glob("test_parity_*.py")))


def is_compared(case: str) -> bool:
    """Whether a test beside Spark's own source or sink, or a row of its table, has the name of the case."""
    in_name = re.search(rf"^def test_(?:[a-z]+\d+_)*{case.lower()}_", COMPARED, re.MULTILINE)
    return bool(in_name or f'\n    "{case} ' in COMPARED)


def test_every_case_has_one_entry_in_order() -> None:
    assert list(CASES) == [f"{suite}{number}" for suite, count in SUITES.items() for number in range(1, count + 1)]


def test_each_case_is_compared_or_names_tests_that_exist() -> None:
    texts = (file.read_text() for file in TESTS.rglob("test_*.py"))
    names = {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    for name, case in CASES.items():
        verdicts = case.keys() - {"claim", "tests"}
        assert case["claim"] and len(verdicts) <= 1 and verdicts <= VERDICTS, name
        assert set(case.get("tests", ())) <= names, name
        assert case.get("tests") or is_compared(name) or "not_possible" in case, name
