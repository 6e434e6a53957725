"""What the import contracts in pyproject.toml cannot check: pure calls, the cost of an import."""

from __future__ import annotations

import ast
import configparser
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

import pyspark_kafka_meta
from pyspark_kafka_meta.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pyspark_kafka_meta"
OF_EXTRAS = set(EXTRAS) - {"pyspark"}
FOR_LOGINS_AND_COMMANDS = {"scramp"} | OF_EXTRAS
HEAVY = {"pyspark", "pyarrow", "numpy", "kio", "cramjam", "crc32c", "msgspec"} | FOR_LOGINS_AND_COMMANDS
NOT_FOR_READING = (
    *FOR_LOGINS_AND_COMMANDS,
    "kio.schema.describe_transactions",
    f"{PACKAGE.name}.kafka.client.transactions",
    f"{PACKAGE.name}.kafka.network.producer_",
    f"{PACKAGE.name}.kafka.protocol.produce",
    f"{PACKAGE.name}.kafka.protocol.transactions",
    f"{PACKAGE.name}.write.",
)
"""Beginnings of module names."""
IMPURE_CALLS = re.compile(r"open|random\.[a-z]\w*|(.*\.)?(now|today|utcnow|uuid1|uuid4)")
"""Impure calls of modules that pure modules may import: `datetime` for given times, `random` for `random.Random`."""


def pure_modules() -> list[Path]:
    """The modules that may not import a clock, a file, a thread or a socket, by the contract in pyproject.toml."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = (contract["source_modules"] for contract in contracts if contract["name"].startswith("Pure modules"))
    paths = [ROOT / name.replace(".", "/") for name in pure]
    return [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")])]


def impure_calls(source: str) -> set[str]:
    """Impure calls that need no import of a forbidden module."""
    calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
    return {name for name in calls if IMPURE_CALLS.fullmatch(name)}


def test_pure_modules_use_no_clock_randomness_or_file() -> None:
    calls = {path: impure_calls(path.read_text()) for path in pure_modules()}
    assert {path: found for path, found in calls.items() if found} == {}
    assert len(calls) > 50


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import UTC, datetime\ndatetime.now(UTC)",
        "import datetime\ndatetime.datetime.now()",
        "import random\nrandom.random()",
        "open('/etc/hosts')",
        "from uuid import uuid4\nuuid4()",
    ],
)
def test_impure_calls_are_found(source: str) -> None:
    assert impure_calls(source)


@pytest.mark.parametrize("name", pyspark_kafka_meta.__all__)
def test_exported_name_exists(name: str) -> None:
    assert getattr(pyspark_kafka_meta, name)


def test_importing_the_package_or_a_schema_imports_nothing_heavy() -> None:
    schemas = [
        f"{PACKAGE.name}.{name}" for name in ("kafka.records.schema", "spark.records_table", "write.input_columns")
    ]
    code = (
        f"import sys, {PACKAGE.name}; print(*sorted({HEAVY} & sys.modules.keys())); "
        f"import {', '.join(schemas)}; print(*sorted({{'pyarrow', 'numpy', 'pyspark.sql'}} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)

    assert (done.stdout, done.stderr) == ("\n\n", "")


def test_pytest_finds_the_fixtures_and_imports_nothing_heavy_before_their_use(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_one(mock_kafka, kafka_topic): ...")
    code = "import sys, pytest; pytest.main(['--collect-only', 'test_one.py']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200)

    loaded = set(done.stdout.splitlines()[-1].split())
    assert f"{PACKAGE.name}.testing.pytest_plugin" in loaded, done.stderr
    assert loaded & HEAVY == set()


def test_reading_imports_nothing_that_only_logins_writing_or_commands_need_and_no_masked_arrays() -> None:
    names = (
        *("source", "kafka.client.kafka_client", "read.planning.offset_planner", "events.publisher"),
        *("spark.client_pool", "read.fetching.task_reader"),
    )
    own = [f"{PACKAGE.name}.{name}" for name in names]
    code = (
        f"import sys, {', '.join(own)}; print(*sys.modules); from tests.unit.kafka.records.handmade import *; "
        "from pyspark_kafka_meta.kafka.records.decoder import decode; "
        "print(len(list(decode([fetched(batch([Row(0)]))], ALL_COLUMNS))), 'numpy.ma' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)

    modules, decoded = done.stdout.splitlines()
    assert [name for name in modules.split() if name.startswith(NOT_FOR_READING)] == []
    assert set(own) <= set(modules.split())
    assert (decoded, done.stderr) == ("1 False", "")


def test_everything_but_tools_and_test_clusters_can_be_imported_without_the_packages_of_extras() -> None:
    paths = [path.relative_to(ROOT).with_suffix("") for path in sorted(PACKAGE.rglob("*.py"))]
    own = [
        ".".join(path.parts)
        for path in paths
        if not {"tools", "testing"} & set(path.parts) and not path.name.startswith("__")
    ]
    code = (
        f"import sys, importlib; sys.modules |= dict.fromkeys({OF_EXTRAS}); "  # None: an import raises ImportError
        f"print(*(importlib.import_module(name).__name__ for name in {own}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)

    assert (done.stdout.split(), done.stderr) == (own, "")
    assert len(own) > 100


def test_commands_that_start_no_query_the_exporter_and_the_page_need_no_pyspark() -> None:
    commands = ("cli.main", "cli.cluster", "cli.events", "cli.transactions")
    checks = [f"doctor.{path.stem}" for path in sorted((PACKAGE / "tools/doctor").glob("*_checks.py"))]
    names = (*commands, *checks, "exporter.server", "page.server")
    own = [f"tools.{name}" for name in names]
    code = (
        "import sys, importlib; sys.modules['pyspark'] = None; "  # an import raises ImportError
        f"print(*(importlib.import_module(f'pyspark_kafka_meta.{{name}}').__name__ for name in {own}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)

    assert len(done.stdout.split()) == len(own), done.stderr


def test_installation_requires_only_what_a_query_needs() -> None:
    """Of a cluster, which has pyspark. Whatever else needs an extra says which."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    required = config["options"]["install_requires"].split("\n")
    names = {re.split("[<>=]", line)[0] for line in required if line}
    in_extras = config["options.extras_require"]

    assert names == {"pyarrow", "numpy", "kio", "cramjam", "crc32c", "scramp", "msgspec"}
    assert set(EXTRAS.values()) <= set(in_extras)
    for package, extra in EXTRAS.items():
        assert re.split("[_-]", package)[0] in in_extras[extra], f"{extra} does not install {package}"
    assert "pytest" not in in_extras["testing"], "pytest alone loads the fixtures, and the page needs the test clusters"


MISSING: dict[str, tuple[str, str, str]] = {
    "command": ("typer", "from pyspark_kafka_meta.tools.cli import run; run()", "kafkameta: this command .*[cli]"),
    "page": (
        "nicegui",
        "from pyspark_kafka_meta.tools.cli import run; run()",
        "kafkameta: the page needs a missing package: .*[page]",
    ),
    "test cluster": (
        "cryptography",
        "from pyspark_kafka_meta.testing import LocalKafka",
        "ModuleNotFoundError: pyspark_kafka_meta.testing.LocalKafka needs .*[testing]",
    ),
    "data source": (
        "pyspark",
        "from pyspark_kafka_meta import DefaultSource",
        "ImportError: pyspark is missing.*[spark]",
    ),
    "exporter": (
        "typer",
        "from pyspark_kafka_meta import start_exporter",
        r"ImportError: pyspark_kafka_meta\.start_exporter needs .*[exporter]",
    ),
    "query listener": (
        "rich",
        "from pyspark_kafka_meta import QueryListener",
        r"ImportError: pyspark_kafka_meta\.QueryListener needs .*[exporter]",
    ),
    "trace listener": (
        "typer",
        "from pyspark_kafka_meta import TraceListener",
        r"ImportError: pyspark_kafka_meta\.TraceListener needs .*[otel]",
    ),
    "lineage listener": (
        "openlineage",
        "from pyspark_kafka_meta import LineageListener",
        r"ImportError: pyspark_kafka_meta\.LineageListener needs .*[openlineage]",
    ),
}


@pytest.mark.parametrize(("package", "code", "text"), MISSING.values(), ids=MISSING.keys())
def test_what_needs_a_missing_extra_says_which_in_one_line(
    package: str, code: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with patch.dict(sys.modules):  # its modules are imported anew
        for name in [name for name in sys.modules if name.partition(".")[0] in (PACKAGE.name, package)]:
            del sys.modules[name]
        sys.modules[package] = None  # type: ignore[assignment]
        with patch.object(sys, "argv", ["kafkameta", "page"]), pytest.raises((ImportError, SystemExit)) as raised:
            exec(code)

    error = f"{capsys.readouterr().err}{raised.typename}: {raised.value}"
    assert not error.endswith(": 0")
    assert re.search(text.replace("[", r"\["), error), error
    assert error.count("\n") <= 1


def test_every_module_has_a_docstring() -> None:
    folders = ("pyspark_kafka_meta", "tests", "benchmarks", "docs", "examples")
    texts = {path: path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")}

    assert [path for path, text in texts.items() if text and not re.match(r'(#.*\n)*"""', text)] == []


EXAMPLES = [path for path in sorted((ROOT / "examples").iterdir()) if path.suffix in (".py", ".ipynb")]
PUBLIC = {PACKAGE.name, f"{PACKAGE.name}.testing"}


def python_of(example: Path) -> str:
    """The code of an example, or of all cells of a notebook."""
    if example.suffix == ".py":
        return example.read_text()
    cells = json.loads(example.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def imports(source: str) -> Iterator[str]:
    """Every module that a file imports anywhere."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_import_only_public_modules(example: Path) -> None:
    assert {name for name in imports(python_of(example)) if name.startswith(PACKAGE.name)} <= PUBLIC
