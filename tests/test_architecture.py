"""The house as CONTRIBUTING.md draws it: who imports whom, what stays pure, what importing the package costs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pyspark_kafka_meta"
SOURCES = sorted(PACKAGE.rglob("*.py"))
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
HEAVY = {
    "pyspark",
    "pyarrow",
    "numpy",
    "kio",
    "confluent_kafka",
    "cramjam",
    "crc32c",
    "nicegui",
    "rich",
    "typer",
    "scramp",
    "cryptography",
}
IMPURE = {
    "asyncio",
    "concurrent",
    "http",
    "multiprocessing",
    "os",
    "pathlib",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib.request",
}
IMPURE_CALLS = re.compile(r"open|random\.[a-z]\w*|(.*\.)?(now|today|utcnow|uuid1|uuid4)")
"""Of modules that pure ones need: `datetime` for times that are given, `random` for the `random.Random` that is."""


def module_name(path: Path) -> str:
    """`reading.cursor`, or `reading` for the package itself; empty for the whole package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(source: str) -> Iterator[str]:
    """Every module that is imported anywhere in a file, inside functions and for type checking too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names if is_module(node.module, alias.name))


def is_module(package: str | None, name: str) -> bool:
    folder = ROOT / (package or "").replace(".", "/")
    return (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()


def ours(path: Path) -> set[str]:
    """The modules of this package among them, by `module_name`."""
    prefix = f"{PACKAGE.name}."
    return {name.removeprefix(prefix) for name in imports(path.read_text()) if name.startswith(prefix)}


def is_within(module: str, folder: str) -> bool:
    return module == folder or module.startswith(f"{folder}.")


def drawn() -> dict[str, set[str]]:
    """The table: each folder or module, and those that it may import."""
    text = CONTRIBUTING.partition("| folder or module |")[2].partition("\n\n")[0]
    table: dict[str, set[str]] = {}
    for line in text.splitlines()[2:]:
        names, _, may_import = (cell.strip() for cell in line.strip("|").split("|"))
        allowed = set(re.findall(r"`([\w.]+)`", may_import))
        if may_import == "all of the above":
            allowed = set(table)
        assert allowed or may_import in ("nothing of ours", "everything"), line
        for name in re.findall(r"`(\w+)(?:/|\.py)`", names):
            table[name] = allowed if may_import != "everything" else {module_name(one).split(".")[0] for one in SOURCES}
    return table


TABLE = drawn()
BY_NAME = {module_name(path): path for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: module_name(path) or "__init__")
def test_module_imports_only_what_the_table_allows(path: Path) -> None:
    floor = module_name(path).split(".")[0] or "__init__"
    allowed = TABLE[floor] | {floor}

    assert {name for name in ours(path) if not any(is_within(name, each) for each in allowed)} == set()


def test_table_names_every_floor_and_no_other() -> None:
    assert set(TABLE) == {module_name(path).split(".")[0] or "__init__" for path in SOURCES}


def test_protocol_library_stays_behind_the_wire() -> None:
    importers = {
        module_name(one) for one in SOURCES if any(is_within(name, "kio") for name in imports(one.read_text()))
    }

    assert importers
    assert {name for name in importers if not is_within(name, "wire")} == set()


def said_to_be_pure() -> set[str]:
    """The modules of the sentence "Pure are ...": whole folders, one of them without a module, and some of a folder."""
    sentence = " ".join(CONTRIBUTING.split()).partition(" Pure are ")[2].partition(".")[0]
    part = re.compile(r"((?:`\w+`,? (?:and )?)+)in `(\w+)/`|`(\w+)/`(?: but for its `(\w+)`)?")
    assert sentence and "`" not in part.sub("", sentence), "a part of the sentence is not understood"
    pure = set[str]()
    for some, their_folder, whole_folder, but in part.findall(sentence):
        pure |= {f"{their_folder}.{name}" for name in re.findall(r"\w+(?=`)", some)}
        pure |= {name for name in BY_NAME if whole_folder and is_within(name, whole_folder)} - {f"{whole_folder}.{but}"}
    return pure


def impurities(source: str) -> set[str]:
    """What a module imports or calls that a pure one is given instead."""
    calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
    imported = {name for name in imports(source) if not {name, name.split(".")[0]}.isdisjoint(IMPURE)}
    return imported | {name for name in calls if IMPURE_CALLS.fullmatch(name)}


@pytest.mark.parametrize("module", sorted(said_to_be_pure()))
def test_pure_module_needs_no_clock_chance_file_thread_or_socket(module: str) -> None:
    reached, to_come = set[str](), {module}
    while to_come:
        name = to_come.pop()
        reached.add(name)
        to_come |= (ours(BY_NAME[name]) & BY_NAME.keys()) - reached

    assert {(name, one) for name in reached for one in impurities(BY_NAME[name].read_text())} == set()


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import UTC, datetime\ndatetime.now(UTC)",
        "import datetime\ndatetime.datetime.now()",
        "import random\nrandom.random()",
        "import os\nos.environ",
        "open('/etc/hosts')",
        "from uuid import uuid4\nuuid4()",
        "def late():\n    import ssl",
        "from urllib.request import urlopen",
    ],
)
def test_what_is_not_pure_is_found(source: str) -> None:
    assert impurities(source)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, {PACKAGE.name}; print(*sorted({HEAVY} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("\n", "")


def test_a_reader_without_tls_and_scram_does_not_wait_for_their_libraries() -> None:
    code = (
        f"import sys, {PACKAGE.name}.reading.workers; print(*sorted({{'cryptography', 'scramp'}} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("\n", "")


def test_every_module_says_what_it_is_for() -> None:
    folders = ("pyspark_kafka_meta", "tests", "benchmarks", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path.read_text()]

    assert [str(path) for path in files if ast.get_docstring(ast.parse(path.read_text())) is None] == []


EXAMPLES = [path for path in sorted((ROOT / "examples").iterdir()) if path.suffix in (".py", ".ipynb")]
PUBLIC = {PACKAGE.name, f"{PACKAGE.name}.testing"}


def python_of(example: Path) -> str:
    """Its code; of a notebook, that of all cells."""
    if example.suffix == ".py":
        return example.read_text()
    cells = json.loads(example.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_import_the_public_modules_alone(example: Path) -> None:
    assert {name for name in imports(python_of(example)) if name.startswith(PACKAGE.name)} <= PUBLIC
